"""Conditions on scalars: what is said, which tag is meant, and when it holds."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mcp_server.errors import BadArgument
from mcp_server.scalars.condition import (
    Condition,
    describe_match,
    first_match,
    match_tags,
    parse_condition,
    resolve_tag,
)


@dataclass(frozen=True)
class Points:
    values: Any

    @property
    def steps(self) -> Any:
        return np.arange(len(self.values))


def points(*values: float) -> Points:
    return Points(np.array(values, np.float64))


@pytest.mark.parametrize(
    ("said", "tag", "sign", "number"),
    [
        ("Train/mean_reward >= 20", "Train/mean_reward", ">=", 20),
        ("loss<1e-3", "loss", "<", 0.001),
        ("  lr  ==  -0.5 ", "lr", "==", -0.5),
        ("x != 1_000", "x", "!=", 1000),
        ("'reward > 3' > 4", "reward > 3", ">", 4),
        ("reward > 3 > 4", "reward > 3", ">", 4),
        ('"a b/ü" <= .5', "a b/ü", "<=", 0.5),
        ("is nan > 3", "is nan", ">", 3),
        ("fps > inf", "fps", ">", math.inf),
    ],
)
def test_a_comparison_is_a_tag_a_sign_and_a_number(said: str, tag: str, sign: str, number: float) -> None:
    assert parse_condition(said) == Condition(said.strip(), tag, sign, number)


@pytest.mark.parametrize(
    ("said", "tag", "kind"),
    [
        ("loss is nan", "loss", "nan"),
        ("Loss/value function IS NaN", "Loss/value function", "nan"),
        ("'x is y' is inf", "x is y", "inf"),
        ("x is infinite", "x", "inf"),
        ("x is finite", "x", "finite"),
    ],
)
def test_a_state_is_a_tag_and_a_kind(said: str, tag: str, kind: str) -> None:
    found = parse_condition(said)
    assert (found.tag, found.kind) == (tag, kind)


@pytest.mark.parametrize(
    "said",
    ["", "loss", "loss = 3", "> 3", "loss > ", "loss > big", "loss > nan", "loss is bad", "x" * 600 + " > 1", "a is"],
)
def test_what_is_no_condition_is_refused_with_examples(said: str) -> None:
    with pytest.raises(BadArgument, match=r"Train/mean_reward >= 20"):
        parse_condition(said)


@pytest.mark.parametrize(
    ("said", "held"),
    [
        ("x >= 2", [False, True, True, False, True, False]),
        ("x <= 2", [True, True, False, False, False, True]),
        ("x > 2", [False, False, True, False, True, False]),
        ("x < 2", [True, False, False, False, False, True]),
        ("x == 2", [False, True, False, False, False, False]),
        ("x != 2", [True, False, True, False, True, True]),
        ("x is nan", [False, False, False, True, False, False]),
        ("x is inf", [False, False, False, False, True, True]),
        ("x is finite", [True, True, True, False, False, False]),
    ],
)
def test_it_holds_of_single_values_and_of_arrays_alike(said: str, held: list[bool]) -> None:
    condition = parse_condition(said)
    values = [1.0, 2.0, 3.0, math.nan, math.inf, -math.inf]
    assert condition(np.array(values)).tolist() == held
    assert [bool(condition(value)) for value in values] == held


TAGS = ["Train/mean_reward", "Train/loss", "lr", "eval/Accuracy", "Loss", "a[0]", "a0"]


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("Train/loss", ["Train/loss"]),
        ("loss", ["Loss"]),
        ("mean_reward", ["Train/mean_reward"]),
        ("LR", ["lr"]),
        ("accuracy", ["eval/Accuracy"]),
        ("Train/*", ["Train/mean_reward", "Train/loss"]),
        ("*REWARD*", ["Train/mean_reward"]),
        ("a[0]", ["a[0]"]),
        ("reward", []),
    ],
)
def test_a_tag_is_meant_by_name_by_glob_or_by_its_last_part(pattern: str, meant: list[str]) -> None:
    assert match_tags(pattern, TAGS) == meant


def test_a_tag_that_could_be_several_is_refused_with_the_candidates() -> None:
    with pytest.raises(BadArgument, match=r"could be any of train/loss, eval/loss"):
        describe_match(parse_condition("loss < 1"), {"train/loss": (1, 3.0), "eval/loss": (1, 3.0)})


def test_a_tag_that_is_not_there_yet_is_waited_for() -> None:
    assert resolve_tag(parse_condition("loss < 1"), ["reward"]) is None
    assert describe_match(parse_condition("loss < 1"), {"reward": (1, 0.0)}) is None


def test_what_holds_is_told_with_value_and_step() -> None:
    newest = {"Train/mean_reward": (900, 20.41234), "loss": (None, math.nan)}
    assert describe_match(parse_condition("mean_reward >= 20"), newest) == "Train/mean_reward = 20.41 at step 900"
    assert describe_match(parse_condition("loss is nan"), newest) == "loss = nan"
    assert describe_match(parse_condition("mean_reward >= 21"), newest) is None


def test_a_value_between_two_looks_is_found() -> None:
    told = points(1, 5, 2, math.nan, 3)
    assert first_match(parse_condition("x >= 5"), told) == 1
    assert first_match(parse_condition("x >= 5"), told, 2) is None
    assert first_match(parse_condition("x is nan"), told, 2) == 3
    assert first_match(parse_condition("x > 0"), told, 5) is None
    assert first_match(parse_condition("x > 0"), points()) is None
