"""How long the judging of one line takes at most: lines made to be slow, for every pattern that a supervisor uses."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from mcp_server.diagnosis.failure.diagnose import diagnose
from mcp_server.diagnosis.live.output_monitor import OutputMonitor
from mcp_server.text.lines import LINE_CHARS, Line
from mcp_server.text.log_text import clean_lines
from mcp_server.text.redaction import Redactor
from mcp_server.text.secret_patterns import mask_secrets
from tests.benchmarks.harness import Sandbox
from tests.benchmarks.report import Row, Table, measured
from tests.support.hostile_lines import find_patterns, hostile_lines

_ROUNDS = 3  # random mixtures a pattern, beside its pieces and the classes of characters
_MOST_MS = 5.0
_TRIES = 4  # the least of so many counts: another process may evict the caches
_SEED = 12
_REDACTOR = Redactor({"TOKEN": "s3cr3t-Passw0rd-xyz", "KEY": "0123456789abcdef0123456789abcdef"})


async def measure(_: Sandbox) -> Table:
    """Judge, mask and show lines that are made for one pattern after the other."""
    slowest = dict.fromkeys(_STEPS, (0.0, ""))
    lines: set[str] = set()
    for pattern_name, pattern in find_patterns().items():
        for line in hostile_lines(pattern, LINE_CHARS, _ROUNDS, random.Random(_SEED)):
            if line in lines:
                continue
            lines.add(line)
            for name, step in _STEPS.items():
                took_ms = _processor_ms(step, line)
                slowest[name] = max(slowest[name], (took_ms, f"{pattern_name}: {line[:24]!r}…{line[-8:]!r}"))
    rows = [Row("lines of 4,000 characters tried", f"{len(lines):,}")]
    rows += [
        measured(f"{name}: the slowest line, processor time", took_ms, "ms", at_most=_MOST_MS)
        for name, (took_ms, _) in slowest.items()
    ]
    return Table("fuzz", tuple(rows), tuple(f"{name}: {where}" for name, (_, where) in slowest.items()))


def _judge(line: str) -> Callable[[], object]:
    monitor = OutputMonitor({}, 0.0)
    monitor.read_output(b"step 1 loss 0.5\n", 1.0)
    data = line.replace("\r", " ").encode() + b"\n"
    return lambda: monitor.read_output(data, 2.0)


def _diagnose(line: str) -> Callable[[], object]:
    lines = [Line(1, "step 1 loss 0.5"), Line(2, line), Line(3, "RuntimeError: boom")]
    return lambda: diagnose(lines, 1)


_STEPS: dict[str, Callable[[str], Callable[[], object]]] = {
    "judged while it runs": _judge,
    "diagnosed at the end": _diagnose,
    "named secrets masked": lambda line: lambda: _REDACTOR.text(line),
    "unknown secrets masked": lambda line: lambda: mask_secrets(line),
    "shown to an agent": lambda line: lambda: list(clean_lines(line.encode(), 1)),
}


def _processor_ms(step: Callable[[str], Callable[[], object]], line: str) -> float:
    least = float("inf")
    for _ in range(_TRIES):
        act = step(line)
        begun_ns = time.process_time_ns()
        act()
        least = min(least, (time.process_time_ns() - begun_ns) / 1e6)
        if least <= _MOST_MS:
            break
    return least
