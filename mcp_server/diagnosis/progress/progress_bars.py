"""Reads progress bars (tqdm and its relatives) and decides whether they show training. Pure."""

from __future__ import annotations

import functools
import re
from enum import Enum
from typing import NamedTuple

from mcp_server.diagnosis.progress.named_values import MAX_COUNT, POWERS, parse_integer
from mcp_server.text.rows import read_patterns

_RX = read_patterns("diagnosis/progress/patterns", "progress_bars")

# A bar over a list is walked faster, and is over soon; one of training without a loss is neither.
_SHORT_STEP_S, _LONG_S, _MIN_STEP_S = 0.001, 4, 0.00002
_MAX_TITLES = 1_024
_MAX_TITLE_CHARS = 160
_UNITS_OF_DATA = frozenset({"B", "iB", "kB", "KB", "MB", "GB", "MiB", "examples", "files", "file", "ba"})


class BarSubject(Enum):
    """A progress bar's state."""

    TRAINING = "training"
    OTHER = "something else"
    UNLABELLED = "unlabelled"


class ProgressBar(NamedTuple):
    """A bar as drawn: ``n`` of ``total`` (None: unknown), its title, and the seconds per step that it prints.

    ``rest``: the text after the speed, e.g. `loss=0.3`. ``is_young``: less than a second has elapsed. ``behind``: what
    print() put behind the bar, on its line.
    """

    title: BarTitle
    kind: BarSubject
    n: int
    total: int | None
    step_s: float | None
    rest: str
    is_young: bool = False
    behind: str = ""


class BarTitle(NamedTuple):
    """Text before a bar, the epoch it names, and what the bar shows. ``key`` is the text without digits."""

    key: str
    epoch: int | None
    epochs: int | None
    kind: BarSubject
    shows_loss: bool
    text: str


_title_cache: dict[str, BarTitle] = {}


def find_bar(line: str) -> ProgressBar | None:
    """Return the last bar in ``line``, or None."""
    start = line.rfind("%|")
    if start >= 0 or "/s" in line or "s/it" in line:
        if match := _RX.tqdm.search(line, max(start, 0)):
            digits, power, total, total_power, unit, elapsed, rest = match.groups()
            of = None if total == "?" else _bar_count(total, total_power)
            bar = _build_bar(
                line[: start if start >= 0 else match.start()], _bar_count(digits, power), of, unit, elapsed, rest
            )
            behind = line[match.end() + 1 :]
            return bar._replace(behind=behind) if behind and not behind.isspace() else bar
        if match := _RX.count.search(line):
            return _build_bar(line[: match.start()], parse_integer(match[1]), None, "", match[2], match[3])
    return _find_rich_bar(line) if "━" in line else None


def _find_rich_bar(line: str) -> ProgressBar | None:
    """Return a bar as rich draws it, its count before or behind it. A package manager's has no time and no loss."""
    match = _RX.rich.search(line)
    if match is None or (match["n"] or match["first"]) is None:
        return None
    title, rest = match["title"], match["rest"]
    time = _RX.time.search(rest)
    bar = _build_bar(
        f"{title}:",  # its number is of the epoch
        parse_integer(match["first"] or match["n"]),
        parse_integer(match["of_first"] or match["of"]),
        match["unit"] or "",
        time[0] if time is not None else "",
        rest,
    )
    return bar if time is not None or bar.kind is BarSubject.TRAINING else None


def _build_bar(before: str, n: int, total: int | None, unit: str, elapsed: str, rest: str) -> ProgressBar:
    before = before.rstrip("0123456789.% ━╸╺")[-_MAX_TITLE_CHARS:]
    title = _title_cache.get(before)
    if title is None:
        if len(_title_cache) >= _MAX_TITLES:
            _title_cache.clear()
        title = _title_cache[before] = _read_title(before)
    speed = _RX.speed.search(rest)
    step_s = _step_s(speed) if speed is not None else None
    rest = rest[speed.end() :] if speed is not None else rest
    kind = title.kind
    if unit or (speed is not None and speed[4] in _UNITS_OF_DATA):
        kind = BarSubject.OTHER
    elif kind is BarSubject.UNLABELLED:
        if rest and _RX.measurement.search(rest):
            kind = BarSubject.TRAINING
        elif step_s is not None and step_s < (_MIN_STEP_S if _seconds(elapsed) >= _LONG_S else _SHORT_STEP_S):
            kind = BarSubject.OTHER
    return ProgressBar(title, kind, n, total, step_s, rest, is_young=not elapsed.strip("0:"))


def _read_title(before: str) -> BarTitle:
    text = re.split(r"(?:it/s|s/it)[^\]]{0,99}\]", before)[-1].strip(" \t|:-")
    while (match := _RX.label.match(text)) and match.end():
        text = text[match.end() :]
    epoch = _RX.epoch.search(text)
    epoch_numbers = [parse_integer(group) for group in epoch.groups() if group] if epoch else []
    measured = _RX.measurement.search(text)
    shows_loss = measured is not None
    kind = BarSubject.UNLABELLED
    if _RX.other.search(text[: measured.start()] if measured else text):
        kind = BarSubject.OTHER
    elif shows_loss or _RX.train.search(text):
        kind = BarSubject.TRAINING
    return BarTitle(
        _RX.digits.sub("", text),
        epoch_numbers[0] if epoch_numbers else None,
        epoch_numbers[1] if len(epoch_numbers) > 1 else None,
        kind,
        shows_loss,
        text,
    )


def _seconds(elapsed: str) -> int:
    return functools.reduce(lambda seconds, part: seconds * 60 + int(part or 0), elapsed.split(":"), 0)


def _bar_count(text: str, power: str) -> int:
    digits = text.replace(",", "")
    return round(min(float(digits) * POWERS[power], MAX_COUNT)) if digits.count(".") <= 1 else 0


def _step_s(speed: re.Match[str]) -> float | None:
    digits = speed[1].replace(",", "").strip(".")
    value = float(digits) * POWERS[speed[2]] if digits.count(".") <= 1 and digits else 0.0
    if speed[3]:
        return value
    return 1 / value if value else None
