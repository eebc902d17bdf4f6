"""Progress bars, and whether it is training that they show. Pure."""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from mcp_server.diagnosis.progress.named_values import MOST, POWERS, whole

# Faster than this nothing trains that shows no loss.
_FASTEST_S = 0.001
_TITLES_KEPT = 1_024
_LONGEST_TITLE = 160
_UNITS_OF_DATA = frozenset({"B", "iB", "kB", "KB", "MB", "GB", "MiB", "examples", "files", "file", "ba"})

_TQDM = re.compile(
    r"(?<![\d.,])(\d[\d.,]{0,20})([kKMG]?)[a-z]{0,9}/(\d[\d.,]{0,20}|\?)([kKMG]?)(B?)[a-z]{0,9}\s{0,3}"
    r"\[\s?(\d*:[\d:]+) ?< ?([^\]]{0,1000})"
)
_COUNT = re.compile(r"(?<!\d)(\d{1,15})it \[(\d+:[\d:]+), ([^\]]{0,1000})")
_SPEED = re.compile(r"(?<![\d.,])([\d.,]{1,15})([kKMG]?) ?(?:(s)/[A-Za-z]+|([A-Za-z]+)/s)")
_DIGITS = re.compile(r"\d+")
_LABEL = re.compile(r"(?:\([^()]*\)|\[[^\[\]]*\]:?|\d+:|[\d:., -]+\|)\s*")  # (Trainer pid=1), [rank0]:, 0:
_EPOCH = re.compile(r"(?i)\b(?:epochs?|ep)\W{0,3}_?(\d+)(?:\s?(?:/|of)\s?(\d+))?|^\[?(\d+)/(\d+)\]?$|epoch_(\d+)")

_OTHER = re.compile(
    r"(?i)\b(?:map|filter|(?:pre|re|down|up|un)?-?load|fetch|token|eval|valid|val\b|test|infer|predict|generat|preproc|prepar|extract"
    r"|sav(?:e|ing)|shard|creat|sanity|warm|compil|captur|profil|comput|pack|read|build|cach|scan|plot|collect|encod|decod"
    r"|quant|writ|copy|convert|apply|truncat|resolv|pull|verif|import|index|cast|concat|flatten|render|dev\b|adding|dropping"
    r"|class\b|search|merg|measur|pars|hash|split|shuffl|unpack|unzip|install|init|rollout|simulat|denois|check|prun"
    r"|calibrat|calculat|chunk|crop|resiz|format|analy[sz]|setup|setting|make|processed|processing|sampling|diffusing)"
    r"|\u9a8c\u8bc1|\u6d4b\u8bd5|\u52a0\u8f7d|\u4e0b\u8f7d"
)
_TRAIN = re.compile(
    r"(?i)train|epoch|\bsteps?\b|\biter|update|timestep|episode|\boptimi|learn|\bfit|fine-?tun|\bep\b|global_step"
    r"|(?:loss|reward|return|lr|rew)\b|\u8bad\u7ec3"
)
_FIGURE = re.compile(r"(?i)(?:loss|reward|return|rew|grad_norm|lr|ppl)\w{0,20}['\"]?\s?[=:]\s?['\"(]?-?(?:\d|nan|inf)")


class Kind(Enum):
    """What a bar shows."""

    TRAINING = "training"
    OTHER = "something else"
    UNTOLD = "it does not say"


class Bar(NamedTuple):
    """A bar as drawn: ``n`` of ``total`` (None: unknown), the epoch it names, seconds per step as it prints them.

    ``rest``: what stands behind the speed, e.g. `loss=0.3`. ``is_young``: it was begun in this second.
    """

    title: Title
    kind: Kind
    n: int
    total: int | None
    step_s: float | None
    rest: str
    is_young: bool = False


class Title(NamedTuple):
    """What stands before a bar: its words without numbers, the epoch they name, and what the bar shows."""

    key: str
    epoch: int | None
    epochs: int | None
    kind: Kind
    shows_loss: bool
    text: str


_titles: dict[str, Title] = {}


def bar(line: str) -> Bar | None:
    """Return the last bar that ``line`` shows, None where it shows none."""
    start = line.rfind("%|")
    if start >= 0 or "/s" in line or "s/it" in line:
        if match := _TQDM.search(line, max(start, 0)):
            digits, power, total, total_power, unit, elapsed, rest = match.groups()
            of = None if total == "?" else _count(total, total_power)
            return _bar(line[: start if start >= 0 else match.start()], _count(digits, power), of, unit, elapsed, rest)
        if match := _COUNT.search(line):
            return _bar(line[: match.start()], whole(match[1]), None, "", match[2], match[3])
    return None


def _bar(before: str, n: int, total: int | None, unit: str, elapsed: str, rest: str) -> Bar:
    before = before.rstrip("0123456789.% ━╸╺")[-_LONGEST_TITLE:]
    title = _titles.get(before)
    if title is None:
        if len(_titles) >= _TITLES_KEPT:
            _titles.clear()
        title = _titles[before] = _title(before)
    speed = _SPEED.search(rest)
    step_s = _step_s(speed) if speed is not None else None
    rest = rest[speed.end() :] if speed is not None else rest
    kind = title.kind
    if unit or (speed is not None and speed[4] in _UNITS_OF_DATA):
        kind = Kind.OTHER
    elif kind is Kind.UNTOLD:
        if rest and _FIGURE.search(rest):
            kind = Kind.TRAINING
        elif step_s is not None and step_s < _FASTEST_S:
            kind = Kind.OTHER  # files are read, lists walked; training takes its time
    return Bar(title, kind, n, total, step_s, rest, is_young=not elapsed.strip("0:"))


def _title(before: str) -> Title:
    """Read what stands before a bar, without the marks of launchers and loggers."""
    text = re.split(r"(?:it/s|s/it)[^\]]{0,99}\]", before)[-1].strip(" \t|:-")
    while (match := _LABEL.match(text)) and match.end():
        text = text[match.end() :]
    epoch = _EPOCH.search(text)
    told = [whole(group) for group in epoch.groups() if group] if epoch else []
    shows_loss = _FIGURE.search(text) is not None
    kind = Kind.UNTOLD
    if _OTHER.search(text):
        kind = Kind.OTHER
    elif shows_loss or _TRAIN.search(text):
        kind = Kind.TRAINING
    return Title(
        _DIGITS.sub("", text), told[0] if told else None, told[1] if len(told) > 1 else None, kind, shows_loss, text
    )


def _count(text: str, power: str) -> int:
    digits = text.replace(",", "")
    return round(min(float(digits) * POWERS[power], MOST)) if digits.count(".") <= 1 else 0


def _step_s(speed: re.Match[str]) -> float | None:
    digits = speed[1].replace(",", "").strip(".")
    value = float(digits) * POWERS[speed[2]] if digits.count(".") <= 1 and digits else 0.0
    if speed[3]:
        return value
    return 1 / value if value else None
