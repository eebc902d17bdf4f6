"""What a run asks of a machine's GPUs: from what a user writes to values. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

ALL = ("all",)
_FORMS = 'a count (2), indices or UUIDs ([4, 5], "4-7", ["GPU-8f3a"]), "all", "cpu", "cpu:2", ["cpu-0"], or "none"'
_MOST_NAMED = 1024
_NAME = re.compile(r"(?P<index>[0-9]{1,6})|(?P<uuid>GPU-[A-Za-z0-9._-]{1,96})|(?P<slot>cpu-[0-9]{1,6})")
_RANGE = re.compile(r"([0-9]{1,6})-([0-9]{1,6})")


@dataclass(frozen=True)
class Wanted:
    """What a run asks for: ``count`` GPUs, those named by ``ids``, or ``cpu`` slots; ``ids`` may name slots as well.

    False where it asks for none at all.
    """

    count: int = 0
    ids: tuple[str, ...] = ()
    cpu: int = 0

    def __bool__(self) -> bool:
        return bool(self.count or self.ids or self.cpu)

    @classmethod
    def of(cls, facts: object) -> Wanted | None:
        """Return what ``asdict`` made; None where it is something else."""
        match facts:
            case {"count": int(count), "ids": list(ids), "cpu": int(cpu)}:
                return cls(count, tuple(map(str, ids)), cpu)
        return None


@dataclass(frozen=True)
class Require:
    """What every GPU must fulfil. ``count``: so many must, at least. ``no_strangers``: nobody else computes on it."""

    free_memory_mib: int | None = None
    power_limit_w: float | None = None
    max_sm_clock_mhz: int | None = None
    count: int | None = None
    no_strangers: bool = True


def wanted(gpus: int | str | Sequence[int | str] | None) -> Wanted | None:
    """Return what a user means by ``gpus``; None where nobody asked.

    Raises:
        ValueError: it cannot be understood, or means no whole GPUs or slots; says what could be written.
    """
    if gpus is None:
        return None
    if isinstance(gpus, int) and not isinstance(gpus, bool):
        if gpus < 0:
            raise ValueError(f"{gpus} GPUs cannot be had. Write {_FORMS}.")
        return Wanted(count=gpus)
    if isinstance(gpus, str):
        text = gpus.strip()
        if text == "none":
            return Wanted()
        if re.fullmatch(r"[0-9]{1,6}", text):
            return Wanted(count=int(text))
        if slots := re.fullmatch(r"cpu(?::([1-9][0-9]{0,5}))?", text):
            return Wanted(cpu=int(slots[1] or 1))
        return _named(text.split(","))
    if isinstance(gpus, Sequence) and not isinstance(gpus, bytes):
        if any(isinstance(word, bool) or not isinstance(word, (int, str)) for word in gpus):
            raise ValueError(f"{gpus!r:.80} is not understood. Write {_FORMS}.")
        return _named([str(word) for word in gpus]) if gpus else Wanted()
    raise ValueError(f"{gpus!r:.80} is not understood. Write {_FORMS}.")


def _named(words: Sequence[str]) -> Wanted:
    ids: list[str] = []
    kinds: set[str] = set()
    for word in (word.strip() for word in words):
        if word.startswith("MIG-"):
            raise ValueError(f"{word:.80} is a part of a GPU; only whole GPUs can be had.")
        if (span := _RANGE.fullmatch(word)) and 0 <= int(span[2]) - int(span[1]) < _MOST_NAMED:
            ids += map(str, range(int(span[1]), int(span[2]) + 1))
            kinds.add("gpu")
        elif name := _NAME.fullmatch(word):
            ids.append(str(int(word)) if name["index"] else f"cpu-{int(word[4:])}" if name["slot"] else word)
            kinds.add("cpu" if name["slot"] else "gpu")
        elif len(words) == 1 and word == "all":
            return Wanted(ids=ALL)
        else:
            raise ValueError(f"{word[:80]!r} names no GPU. Write {_FORMS}.")
    if len(kinds) > 1:
        raise ValueError("GPUs and cpu slots cannot be had together.")
    if twice := sorted({each for each in ids if ids.count(each) > 1}):
        raise ValueError(f"{', '.join(twice[:8])} named twice.")
    return Wanted(ids=tuple(ids), cpu=len(ids) if kinds == {"cpu"} else 0)


def require(facts: Mapping[str, object] | None) -> Require:
    """Return what a user requires.

    Raises:
        ValueError: a name or a value is not understood; tells the names.
    """
    told: dict[str, int | float | bool] = {}
    names = [field.name for field in fields(Require)]
    for name, value in (facts or {}).items():
        if name not in names:
            raise ValueError(f"{name!r:.80} is not known. There are {', '.join(names)}.")
        if name == "no_strangers":
            if not isinstance(value, bool):
                raise ValueError(f"{name} is true or false, not {value!r:.80}.")
            told[name] = value
        elif value is not None:
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise ValueError(f"{name} is a number above 0, not {value!r:.80}.")
            told[name] = float(value) if name == "power_limit_w" else math.ceil(value)
    return Require(**told)  # type: ignore[arg-type]  # checked by name above


def compete(one: Wanted, other: Wanted) -> bool:
    """Whether two requests could want the same: not where both name what they want, and it differs."""
    if not one or not other or bool(one.cpu) != bool(other.cpu):
        return False
    if not one.ids or not other.ids or ALL in (one.ids, other.ids):
        return True
    return any(_may_be_one(a, b) for a in one.ids for b in other.ids)


def _may_be_one(a: str, b: str) -> bool:
    if a.startswith("GPU-") != b.startswith("GPU-"):  # an index may be any of them
        return True
    return a == b or (a.startswith("GPU-") and (a.startswith(b) or b.startswith(a)))
