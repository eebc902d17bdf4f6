"""A question about former runs in its parts, all of which must hold. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from mcp_server.results.memory.vocabulary import Names, Sign, plain_name


@dataclass(frozen=True)
class Bound:
    """A setting, metric or fact beside a value: ``lr > 0.001``. ``value`` is text; compared as a number if both are."""

    name: str
    sign: Sign
    value: str

    @property
    def text(self) -> str:
        """The condition as an answer quotes it."""
        return f"{self.name}{self.sign}{self.value}" if len(self.sign) == 1 else f"{self.name} {self.sign} {self.value}"


@dataclass(frozen=True)
class Question:
    """A question in parts, all of which must hold. Times are POSIX seconds of the launch.

    ``ranked``: the metric by which the hits stand, empty for the one that most of them have; None: newest first.
    """

    comparisons: tuple[Bound, ...] = ()
    states: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    fields: tuple[tuple[str, str], ...] = ()
    project: str | None = None
    since_s: float | None = None
    until_s: float | None = None
    ranked: str | None = None
    goal: Literal["max", "min", "worst"] | None = None
    words: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()  # words that must not stand there
    not_states: tuple[str, ...] = ()
    not_fields: tuple[tuple[str, str], ...] = ()
    shown: tuple[str, ...] = ()  # settings that are told of each
    joined: tuple[tuple[str, ...], ...] = field(default=(), compare=False)  # words between which ``and`` stands
    most: int | None = None
    claimed: tuple[str, ...] = field(
        default=(), compare=False
    )  # words that are quoted, or that something was done with

    def list_wider(self) -> dict[str, Question]:
        """Return the question without each of its parts, by that part."""
        wider = {}
        for one in self.comparisons:
            wider[one.text] = replace(self, comparisons=tuple(each for each in self.comparisons if each != one))
        for key, value in self.fields:
            others = tuple(each for each in self.fields if each != (key, value))
            wider[f"{key}:{value}"] = replace(self, fields=others)
        for word in self.words:
            wider[word] = replace(self, words=tuple(each for each in self.words if each != word))
        for word in self.unlike:
            wider[f"not {word}"] = replace(self, unlike=tuple(each for each in self.unlike if each != word))
        if self.not_states or self.not_fields:
            left_out = [*self.not_states, *(":".join(each) for each in self.not_fields)]
            wider[f"not {', '.join(left_out)}"] = replace(self, not_states=(), not_fields=())
        if self.states or self.causes:
            words = [*(f"state:{each}" for each in self.states), *(f"cause:{each}" for each in self.causes)]
            wider[" ".join(words)] = replace(self, states=(), causes=())
        if self.project is not None:
            wider[f"project:{self.project}"] = replace(self, project=None)
        if self.since_s is not None or self.until_s is not None:
            wider["a time"] = replace(self, since_s=None, until_s=None)
        return wider

    def of_owner(self, owner: str) -> Question:
        """Return the question about the runs of one owner alone."""
        return replace(self, fields=(*self.fields, ("owner", owner)))


def join_values(comparisons: Sequence[Bound], names: Names) -> tuple[Bound, ...]:
    """Return comparisons in which values that one setting cannot have at once are one: ``modes=16 vs modes=32``."""
    joined: dict[object, Bound] = {}
    for number, each in enumerate(comparisons):
        key = plain_name(each.name) if each.sign == "=" and names.is_setting(each.name) else number
        former = joined.get(key)
        joined[key] = replace(former, value=f"{former.value} or {each.value}") if former else each
    return tuple(joined.values())
