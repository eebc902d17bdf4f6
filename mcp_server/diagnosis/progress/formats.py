"""Formats in which training frameworks print a step, as `steps.rows` describes them. Pure."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple

from mcp_server.text.regex import compile_lazily
from mcp_server.text.rows import read_blocks, read_patterns

_RX = read_patterns("diagnosis/progress/patterns", "formats")


class CounterRank(IntEnum):
    """Reliability of a step counter: one of higher rank takes the lead, and lower ones then change nothing."""

    NONE = 0  # training is over; no count
    LOSS = 1  # losses without a counter: each new value is a sign of life
    EPOCH = 2  # custom loop, epochs
    UNLABELLED = 3  # a progress bar that does not say what it shows
    STEP = 4  # custom loop, steps
    BAR = 5  # a training progress bar
    SECONDARY = 6  # a framework's second counter, in another unit than its first
    FRAMEWORK = 7
    USER = 8  # the user's own pattern


class StepFormat(NamedTuple):
    """One format in which a framework prints a step: a block of `steps.rows`, which says what the fields mean."""

    name: str
    needle: str
    pattern: re.Pattern[str]
    rank: CounterRank = CounterRank.FRAMEWORK
    zero: bool = False
    base: int | None = None
    adds: bool = False
    always: bool = False


def _read_format(fields: dict[str, str]) -> StepFormat:
    options = fields.get("with", "").split()
    return StepFormat(
        fields["name"],
        fields.get("has", "").replace("[ ]", " "),
        compile_lazily(fields["line"]),
        CounterRank[fields.get("rank", "framework").upper()],
        "zero" in options,
        int(fields["base"]) if "base" in fields else None,
        "adds" in options,
        "always" in options,
    )


_BLOCKS = [dict(block) for block in read_blocks("diagnosis/progress/steps")]
STEP_FORMATS = tuple(map(_read_format, _BLOCKS))


# fmt: off
def may_show_progress(line: str) -> bool:
    """Whether ``line`` may show a step or a metric. Literals, without initials, are thrice as fast as a pattern."""
    return (
        "tep" in line or "oss" in line or "poch" in line or "it/s" in line or "s/it" in line or "iter" in line
        or "Iter" in line or "rain" in line or "eward" in line or "eturn" in line or "pisode" in line
        or "pdate" in line or "_rew" in line or "score" in line or "norm" in line or "fps" in line or "FPS" in line
        or "SPS" in line or "STEP" in line or "LOSS" in line or "learn:" in line or "kimg" in line or " Up. " in line
        or "frames: " in line or "]\t" in line or "acc" in line or "Acc" in line or "nll" in line or "NLL" in line
        or "val_" in line or "val/" in line or "ppl" in line or "erplex" in line or "ound " in line
        or "%)   " in line or "[batch=" in line or "━" in line or "Trial " in line or "失" in line or "奖" in line
        or "inimum" in line or "itness" in line or "cost" in line or "ding tree " in line
        or "EPOCH" in line or "eneration " in line or "_env" in line
    ) and (_RX.number.search(line) is not None or _RX.no_number.search(line) is not None)
