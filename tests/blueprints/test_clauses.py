"""Kinds of words in a clause about a time."""

# ruff: noqa: RUF001 - people write full-width punctuation

import re

import pytest

from mcp_server.blueprints.clauses import split_clauses
from mcp_server.blueprints.parser import parse_blueprint
from mcp_server.text.rows import read_blocks

HOUR_S = 3600.0


@pytest.mark.parametrize("block", [*read_blocks("blueprints/clauses")], ids=lambda block: block[0][1])
def test_words_of_a_sort_are_found_in_its_example_alone_of_two(block: list[tuple[str, str]]) -> None:
    words = re.compile("|".join(value for key, value in block if key == "words"), re.IGNORECASE)
    assert words.search(dict(block)["seen"])
    assert not words.search("very big tree")


@pytest.mark.parametrize(
    ("text", "is_beside"),
    [
        ("I'm at the robot on Tuesdays (2 hours)", True),
        ("The quota has 120 hours left", True),
        ("The quota has 20 hours left", False),
        ("the loss broke after 3 hours", True),
        ("NaN showed up 4 hours in", True),
        ("checkpoints every 2 hours", True),
        ("8 experts: 60 hours", True),
        ("8 gpus: 60 hours", False),
        ("2 seeds: 60 hours", False),
        ("softmax loss: 4 hours", True),
        ("the shards load in 10 minutes", True),
        ("smoke test 10 min", True),
        ("the power is cut in 8 hours", False),
        ("deadline: 8 hours", False),
        ("remaining: 4 hours", False),
        ("new plan: 8 hours", False),
        ("Lena suggests 6 hours", False),
        ("only 6 hours are booked", False),
        ("preferably 8 hours", False),
        ("evaluation adds 1 hour", False),
        ("the 3090 needs 4 hours", False),
        ("booked 6 hours", False),
        ("stage 2: 2 hours", False),
        ("approved for 60 hours", False),
        ("stop after 3 hours", False),
        ("better 80 hours", False),
        ("so take 60 hours", False),
        ("60 hours", False),
    ],
)
def test_a_duration_is_beside_a_limit_where_a_clause_gives_it_to_something_else(text: str, is_beside: bool) -> None:
    (clause,) = split_clauses(text)
    assert clause.is_beside(72 * HOUR_S, is_plain=True) is is_beside


def test_a_clause_that_begins_with_a_duration_or_words_of_a_limit_is_its_head() -> None:
    heads = {
        text: split_clauses(text)[0].head for text in ("8 h on one node", "at most 8 h", "Tim says 8 h", "it took 8 h")
    }
    assert heads == {
        "8 h on one node": (8 * HOUR_S,),
        "at most 8 h": (8 * HOUR_S,),
        "Tim says 8 h": (),
        "it took 8 h": (),
    }


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("22 hours (p32: 19 hours)", 22),
        ("6h   # 4h without shaping", 6),
        ("9 hours; k = 4 took 6 hours, and the eigenvectors are computed once at the start (40 min).", 9),
        ("42 hours. HiFi-GAN converged in about 30, and BigVGAN is slower per step.", 42),
        ("25 hours. (Estimate: 50k steps at 1.6 s = 22 h, plus reserve)", 25),
        ("no more than 36 h (that is 2 x 36 = 72 GPU hours, roughly 130 USD)", 36),
        ("12 h (2 nodes x 8 GPUs x 12 h = 192 GPU hours)", 12),
        ("19 Hours (~25 $)", 19),
        ("8 小时（约 200 元）", 8),
        ("10 hours. Costs 3 $ per hour.", 10),
        ("10 hours or 50 USD, whichever comes first", None),
        ("10 hours, stop at 50 USD", None),
        ("5 h × 8 GPUs", None),
        ("18 h (training 16 h, eval 3 h)", None),
        ("20 hours (A100: 16 h)", None),
        ("8 hours of training, evaluation takes 1 hour", None),
        ("10 hours; anything beyond 12 is a hang", None),
        ("10 hours; 8 would do", None),
    ],
)
def test_a_limit_stands_beside_durations_of_other_things_and_not_beside_those_that_may_change_it(
    text: str, hours: float | None
) -> None:
    blueprint = parse_blueprint(f"[exp_launch_command]: python a.py\n## [exp_max_time]\n{text}\n")
    assert (blueprint.time_limit_s / HOUR_S if blueprint.ok else None) == hours
