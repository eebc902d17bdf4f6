"""What the codec keeps of a value, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest

from mcp_server.record.codec import decode, encode

Word = Literal["near", "far"]


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Part:
    name: str
    weight: float = 0.0


@dataclass(frozen=True)
class Whole:
    name: str
    colour: Colour = Colour.RED
    place: Word = "near"
    count: int | None = None
    parts: tuple[Part, ...] = ()
    best: Part | None = None
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    numbers: frozenset[int] = frozenset()
    words: str | list[str] = ""
    anything: Any = None
    directory: Path = Path()


def test_a_value_is_read_as_it_was_written() -> None:
    whole = Whole("a", place="far", parts=(Part("b", 2), Part("c")), best=Part("d"), spans={"x": (1, 2)}, words=["e"])
    facts = json.loads(json.dumps(encode(whole)))
    assert decode(Whole, facts, strict=True) == whole
    assert facts["parts"] == [{"name": "b", "weight": 2}, {"name": "c"}], "defaults are left out"
    assert decode(Whole, {**facts, "numbers": [1, 1], "newer": 1}).numbers == {1}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("colour", "blue"),
        ("place", "between"),
        ("count", True),
        ("count", "1"),
        ("parts", [{"weight": 1}]),
        ("parts", {}),
        ("best", []),
        ("spans", {"x": [1]}),
        ("words", [1]),
        ("directory", "/etc"),
    ],
)
def test_a_value_of_a_wrong_type_has_its_default_or_is_an_error(name: str, value: object) -> None:
    assert decode(Whole, {"name": "a", name: value}) == Whole("a")
    with pytest.raises(ValueError, match=f"Whole.{name} is not as it should be"):
        decode(Whole, {"name": "a", name: value}, strict=True)


@pytest.mark.parametrize("facts", [None, [], {}, {"name": 1}, "name"])
def test_a_value_without_what_it_needs_is_an_error(facts: object) -> None:
    with pytest.raises(ValueError, match=r"Whole\.name"):
        decode(Whole, facts)
