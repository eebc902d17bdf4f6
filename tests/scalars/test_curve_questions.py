"""One word asks a curve for its value at a step, the mean of its end, or where it first crosses a number."""

import math

import numpy as np
import pytest

from mcp_server.errors import BadArgument
from mcp_server.scalars.curve_questions import CurveQuestion, answer, describe_figure, parse_question
from mcp_server.scalars.series import Points

VALUES = [5.0, 4.0, math.nan, 2.0, 1.0, 1.5, 1.25, 1.0, 0.75, 0.5]
CURVE = Points(np.arange(100, 1100, 100), np.full(10, math.nan), np.array(VALUES))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("loss@400", "loss at step 400: 2"),
        ("loss@450", "loss at step 450: 2 (step 400)"),
        ("loss@300", "loss at step 300: no number, its last step is 1000"),
        ("loss@1001", "loss at step 1001: no number, its last step is 1000"),
        ("loss@50", "loss at step 50: no number, its last step is 1000"),
        ("best:loss", "loss best: 0.5 (step 1000)"),
        ("mean2:loss", "loss mean2: 0.625 (2 points to step 1000), before 1.125 (-0.5)"),
        ("mean30%:loss", "loss mean30%: 0.75 (3 points to step 1000), before 1.25 (-0.5)"),
        ("mean99:loss", "loss mean99: 1.889 (10 points to step 1000)"),
        ("first:loss<1.1", "loss < 1.1: first at step 500, 1"),
        ("first:loss < 0.1", "loss < 0.1: never, its last step is 1000"),
        ("first:loss is nan", "loss is nan: first at step 300, nan"),
    ],
)
def test_a_word_is_answered_with_value_and_step(text: str, told: str) -> None:
    question = parse_question(text)
    assert question.tag == "loss"
    assert describe_figure(question, "loss", CURVE, "min") == told


def test_the_best_of_a_name_without_a_direction_is_both_of_its_ends() -> None:
    told = "policy: max 5 (step 100), min 0.5 (step 1000); which is better is not known"
    assert describe_figure(parse_question("best:policy"), "policy", CURVE, None) == told
    assert describe_figure(parse_question("policy@400"), "policy", CURVE, None) == "policy at step 400: 2"


def test_a_tag_alone_is_no_question_and_a_crossing_needs_a_comparison() -> None:
    for tag in ("loss", "rollout/ep_rew_mean", "metrics/mAP50(B)", "valid_0's l1"):
        assert parse_question(tag) == CurveQuestion(tag)
    with pytest.raises(BadArgument, match=r"first:loss<0\.3"):
        parse_question("first:loss")


def test_the_last_point_of_a_step_counts_and_steps_in_any_order() -> None:
    curve = Points(np.array([3, 1, 2, 2]), np.full(4, math.nan), np.array([9.0, 7.0, 8.0, 8.5]))
    found = answer(parse_question("x@2"), curve)
    assert found is not None
    assert (found.value, found.step) == (8.5, 2)
