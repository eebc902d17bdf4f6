"""Whether two values of a setting mean the same: one normal form, in which equal settings are equal texts. Pure.

Only what is certain counts: numbers however they are written, true and false in any case, a relative path and the
absolute one that it means in its run's directory, the same Python by its name and its path.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from pathlib import PurePosixPath

_NUMBER = re.compile(r"[+-]?(?:0|[1-9]\d*)?(?:\.\d*)?(?:[eE][+-]?\d{1,3})?")  # 007 is a name
_NAMES = re.compile(r"(?i)(?:^|.*[_.\-/:$])(?:\w*name|version|revision|commit|tag|id|sha|hash)$")  # 1.10 is no 1.1
_PYTHON = re.compile(r"python3?")  # of one directory these are the same


@dataclass(frozen=True)
class Place:
    """Where a run ran: its working directory, and the path of its Python, as far as they are known."""

    cwd: str = ""
    python: str = ""


def find_equal_forms(name: str, values: Sequence[str | None], places: Sequence[Place]) -> list[str]:
    """Return the normal forms of one setting's values in several runs. A run that lacks it has an empty one."""
    if len(places) != len(values):
        raise ValueError("each value has a place")
    words = [(value or "").split(" ") for value in values]
    absolute = {os.path.normpath(word) for each in words for word in each if word.startswith("/")}
    return [" ".join(_normal_word(name, word, place, absolute) for word in each) for each, place in zip(words, places)]


def _normal_word(name: str, word: str, place: Place, absolute: Collection[str]) -> str:
    if word.lower() in ("true", "false"):
        return word.lower()
    if word and not _NAMES.fullmatch(name) and _NUMBER.fullmatch(word):
        return _normal_number(word)
    if _PYTHON.fullmatch(PurePosixPath(word).name) and place.python:
        python = PurePosixPath(place.python)
        if "/" not in word:
            return str(_plain_python(python))
        if _plain_python(PurePosixPath(os.path.normpath(os.path.join(place.cwd, word)))) == _plain_python(python):  # noqa: PTH118 - a text
            return str(_plain_python(python))
    path = os.path.normpath(os.path.join(place.cwd, word)) if word else word  # noqa: PTH118 - a text
    return path if path in absolute else word  # a word that only looks like a path stays as it is


def _plain_python(path: PurePosixPath) -> PurePosixPath:
    return path.with_name("python") if _PYTHON.fullmatch(path.name) else path


def _normal_number(word: str) -> str:
    try:
        number = Decimal(word).normalize(Context(prec=len(word)))  # by default 28 digits, which are not all
    except ArithmeticError:  # no number, or one of a million digits
        return word
    return "0" if number == 0 else f"{number:E}"
