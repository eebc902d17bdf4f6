"""Near names share words with the wrong one, or are spelled alike."""

import pytest

from mcp_server.text.near_names import find_near_ids, find_near_names

TAGS = ["train/loss", "eval/success_once", "eval/success_at_end", "env/return", "Train/mean_reward", "lr"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("success_rate", ["eval/success_at_end", "eval/success_once"]),
        ("meanReward", ["Train/mean_reward"]),
        ("losses", ["train/loss"]),
        ("retrun", ["env/return"]),
        ("checkpoint", []),
    ],
)
def test_names_that_share_words_or_letters_are_near(name: str, expected: list[str]) -> None:
    assert list(find_near_names(name, TAGS)) == expected


def test_ids_are_near_by_themselves_or_else_by_the_names_before_their_letters() -> None:
    ids = ["ten-2afs", "one-xnsk"]
    assert [list(find_near_ids(word, ids)) for word in ("ten-2af", "tenn", "oneee")] == [["ten-2afs"], ["ten"], ["one"]]
    assert list(find_near_ids("runn", ["run-ab3d", "run-x9wz", "other-c4e5"])) == ["run-ab3d", "run-x9wz"]
