"""Kinds of words in a clause about a time."""

import re

import pytest

from mcp_server.blueprints.clauses import is_aside
from mcp_server.text.rows import read_blocks

HOUR_S = 3600.0


@pytest.mark.parametrize("block", [*read_blocks("blueprints/clauses")], ids=lambda block: block[0][1])
def test_words_of_a_sort_are_found_in_its_example_alone_of_two(block: list[tuple[str, str]]) -> None:
    words = re.compile("|".join(value for key, value in block if key == "words"), re.IGNORECASE)
    assert words.search(dict(block)["seen"])
    assert not words.search("on the big node")


@pytest.mark.parametrize(
    ("text", "is_beside"),
    [
        ("I'm at the robot on Tuesdays (2 hours).", True),
        ("The quota has 120 hours left.", True),
        ("The quota has 20 hours left.", False),
        ("The quota has 120 hours left, so take 90.", False),
        ("Run it for 80 hours.", False),
        ("I'm away for 3 hours. Stop it after 10 hours.", False),
    ],
)
def test_a_paragraph_is_beside_a_limit_where_its_durations_are_the_writers_or_a_larger_quotas(
    text: str, is_beside: bool
) -> None:
    assert is_aside(text, 72 * HOUR_S) is is_beside
