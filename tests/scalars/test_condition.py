"""Conditions on scalars: how they are parsed, which tag they match, and when they hold."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mcp_server.errors import BadArgument
from mcp_server.scalars.condition import Condition, describe_value, first_match, parse_condition, resolve_tag
from mcp_server.scalars.tag_names import match_tags


@dataclass(frozen=True)
class Points:
    values: Any

    @property
    def steps(self) -> Any:
        return np.arange(len(self.values))


def points(*values: float) -> Points:
    return Points(np.array(values, np.float64))


@pytest.mark.parametrize(
    ("text", "tag", "sign", "number"),
    [
        ("Train/mean_reward >= 20", "Train/mean_reward", ">=", 20),
        ("loss<1e-3", "loss", "<", 0.001),
        ("  lr  ==  -0.5 ", "lr", "==", -0.5),
        ("x != 1_000", "x", "!=", 1000),
        ("'reward > 3' > 4", "reward > 3", ">", 4),
        ("`reward > 3` > 4", "reward > 3", ">", 4),
        ('"a b/ü" <= .5', "a b/ü", "<=", 0.5),
        ("is nan > 3", "is nan", ">", 3),
        ("fps > inf", "fps", ">", math.inf),
    ],
)
def test_a_comparison_is_a_tag_a_sign_and_a_number(text: str, tag: str, sign: str, number: float) -> None:
    assert parse_condition(text) == Condition(text.strip(), tag, sign, number)


@pytest.mark.parametrize(
    ("text", "tag", "kind"),
    [
        ("loss is nan", "loss", "nan"),
        ("Loss/value function IS NaN", "Loss/value function", "nan"),
        ("'x is y' is inf", "x is y", "inf"),
        ("x is infinite", "x", "inf"),
        ("x is finite", "x", "finite"),
    ],
)
def test_a_state_is_a_tag_and_a_kind(text: str, tag: str, kind: str) -> None:
    condition = parse_condition(text)
    assert (condition.tag, condition.kind) == (tag, kind)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "loss",
        "loss = 3",
        "> 3",
        "a => 3",
        "a =< 3",
        "a > 1 and step > 3",
        "a >= 1, b < 2",
        "loss > ",
        "loss > big",
        "loss > nan",
        "loss is bad",
        "x" * 600 + " > 1",
        "a is",
    ],
)
def test_text_that_is_not_a_condition_is_refused_with_examples(text: str) -> None:
    with pytest.raises(BadArgument, match=r"Train/mean_reward >= 20"):
        parse_condition(text)


@pytest.mark.parametrize(
    ("text", "held"),
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
def test_a_condition_holds_for_single_values_and_arrays_alike(text: str, held: list[bool]) -> None:
    condition = parse_condition(text)
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
        ("reward", ["Train/mean_reward"]),
        ("mean reward", ["Train/mean_reward"]),
        ("train/Mean-Reward", ["Train/mean_reward"]),
        ("value", []),
        ("fps", []),
    ],
)
def test_a_pattern_matches_a_name_a_glob_or_the_last_part(pattern: str, meant: list[str]) -> None:
    assert match_tags(pattern, TAGS) == meant


def test_the_word_of_a_status_means_the_one_tag_that_has_it_in_its_name() -> None:
    assert match_tags("loss", ["Loss/surrogate", "Train/mean_reward"]) == ["Loss/surrogate"]


def test_a_tag_that_could_be_several_is_refused_with_the_candidates() -> None:
    with pytest.raises(BadArgument, match=r"could be any of seed1/psnr, seed2/psnr"):
        resolve_tag(parse_condition("psnr < 1"), ["seed1/psnr", "seed2/psnr"])


def test_a_word_of_wait_run_for_several_tags_is_none_of_them() -> None:
    tags = ["Train/mean_reward", "Episode/reward"]
    assert match_tags("reward", tags) == ["Episode/reward"], "its own name comes first"
    tags = ["Train/mean_reward", "Episode/total_reward"]
    assert match_tags("reward", tags) == tags
    assert resolve_tag(parse_condition("reward > 1"), tags) is None, "what is printed under the word decides"
    with pytest.raises(BadArgument, match="could be any of"):
        resolve_tag(parse_condition("reward > 1"), ["a/reward", "b/reward"])


def test_a_tag_without_points_yet_is_not_an_error() -> None:
    assert resolve_tag(parse_condition("loss < 1"), ["reward"]) is None


def test_a_value_is_described_with_its_step() -> None:
    assert describe_value("Train/mean_reward", 20.41234, 900) == "Train/mean_reward = 20.41 at step 900"
    assert describe_value("loss", math.nan, None) == "loss = nan"


def test_a_value_between_two_looks_is_found() -> None:
    series = points(1, 5, 2, math.nan, 3)
    assert first_match(parse_condition("x >= 5"), series) == 1
    assert first_match(parse_condition("x >= 5"), series, 2) is None
    assert first_match(parse_condition("x is nan"), series, 2) == 3
    assert first_match(parse_condition("x > 0"), series, 5) is None
    assert first_match(parse_condition("x > 0"), points()) is None
