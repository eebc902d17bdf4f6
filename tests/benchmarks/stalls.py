"""Stall detection on simulated training runs: false alarms on healthy runs, and hangs found."""

from __future__ import annotations

import random
from itertools import islice

from mcp_server.diagnosis.live.stall import StallDetector
from tests.benchmarks.report import Row
from tests.diagnosis.live.test_stall import Sign, first_stall_s, healthy

_HISTORIES = 1000
_LEAST_PERCENT = 95.0
_WEEK_S = 7 * 86_400.0


def rows() -> list[Row]:
    """Replay random histories with pauses of 10 x the step time, with and without a hang; baseline: a limit of 60 s."""
    alarms, late, fixed_alarms, fixed_late = 0, 0, 0, 0
    for seed in range(_HISTORIES):
        chance = random.Random(seed)
        signs = list(islice(healthy(chance), chance.choice([20, 600])))
        alarms += first_stall_s(StallDetector(0.0), signs, signs[-1].at_s, cpu_idle=True) is not None
        fixed_alarms += _first_silence_of_60_s(signs, signs[-1].at_s) is not None
        signs = signs[: chance.randint(10, len(signs))]
        end_s = signs[-1].at_s + _WEEK_S
        late += not _is_hang_found(first_stall_s(StallDetector(0.0), signs, end_s, cpu_idle=True), signs)
        fixed_late += not _is_hang_found(_first_silence_of_60_s(signs, end_s), signs)
    found, fixed_found = (100 * (1 - missed / _HISTORIES) for missed in (late, fixed_late))
    return [
        Row(
            f"healthy simulated runs called stalled, of {_HISTORIES:,}",
            f"{alarms}",
            f"{fixed_alarms}",
            bar="0",
            ok=alarms == 0,
        ),
        Row(
            f"hangs found, of {_HISTORIES:,}, and not before",
            f"{found:.1f} %",
            f"{fixed_found:.1f} %",
            bar=f"≥ {_LEAST_PERCENT:g} %",
            ok=found >= _LEAST_PERCENT,
        ),
    ]


def _first_silence_of_60_s(signs: list[Sign], until_s: float) -> float | None:
    """Return the first time at which 60 s have passed without output."""
    times = [0.0, *(sign.at_s for sign in signs), until_s]
    return next((last + 60 for last, at_s in zip(times, times[1:], strict=False) if at_s - last > 60), None)  # noqa: RUF007


def _is_hang_found(stall_s: float | None, signs: list[Sign]) -> bool:
    return stall_s is not None and stall_s >= signs[-1].at_s
