"""Evidence is collected from any text, in linear time, with tables that fit together."""

from __future__ import annotations

import random
import time

import pytest

from mcp_server.diagnosis.failure.diagnose import diagnose
from mcp_server.diagnosis.failure.kinds import ACTIONS, KINDS
from mcp_server.diagnosis.failure.last_lines import guess_kind
from mcp_server.diagnosis.failure.statements import Weight
from mcp_server.diagnosis.live.fatal_lines import may_be_fatal
from mcp_server.text.lines import number_lines
from tests.support.logs import FAILED_LOGS, HEALTHY_LOGS, STEPS, TRACE


@pytest.mark.slow
def test_no_input_raises() -> None:
    rng = random.Random(7)
    pieces = [log.text for log in (*FAILED_LOGS, *HEALTHY_LOGS)]
    pieces += ["\0\x1b[31m\r\b", "«»│╭", "Traceback (most recent call last):"]
    for _ in range(300):
        text = "".join(piece[rng.randrange(len(piece) + 1) :][:200] for piece in rng.choices(pieces, k=6))
        noise = bytes(rng.randrange(256) for _ in range(60))
        lines = number_lines(noise + text.encode() + noise)
        for exit_code, signal in ((None, None), (1, None), (None, "SIGSEGV"), (0, None)):
            found = diagnose(lines, exit_code, signal)
            assert (found is not None) or not (exit_code or signal)
            assert found is None or (found.line and found.kind in KINDS and found.action in ACTIONS)
        for line in lines:
            may_be_fatal(line.text)


@pytest.mark.parametrize("text", [
    STEPS * 40,
    TRACE + "ValueError: x\n" + STEPS * 40,
    (TRACE + "ValueError: x\n") * 4_000,
    "Traceback (most recent call last):\n" * 15_000,
    "".join(f"ValueError: checkpoint {n} dataset not found\n" for n in range(12_000)),
    "".join(f"{n} " + "checkpoint loss nan Killed SIG exit Error: " * 90 + "\n" for n in range(120)),
    "Error " * 80_000,
    (" " * 3_990 + "Error: x\n") * 120,
])  # fmt: skip
def test_judging_takes_linear_time_whatever_the_lines_hold(text: str) -> None:
    lines = number_lines(text.encode())
    began = time.process_time()
    diagnose(lines, 1)
    assert time.process_time() - began < 1.0  # 0.1 s on a slow machine


def test_the_tables_name_known_kinds() -> None:
    assert guess_kind("ERROR: no") is not None
    assert guess_kind("fine") is None
    assert Weight.OWN > Weight.CRASH > Weight.PEER > Weight.STOPPED > Weight.ABORT > Weight.ECHO > Weight.HINT
