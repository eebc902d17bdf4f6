"""Kinds of words in a clause about a time."""

import re

import pytest

from mcp_server.blueprints.clauses import split_clauses
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
        ("approved for 60 hours", False),
        ("stop after 3 hours", False),
        ("better 80 hours", False),
        ("so take 60 hours", False),
        ("60 hours", False),
    ],
)
def test_a_duration_is_beside_a_limit_where_a_clause_gives_it_to_something_else(text: str, is_beside: bool) -> None:
    (clause,) = split_clauses(text)
    assert clause.is_beside(72 * HOUR_S, is_only=False) is is_beside


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
