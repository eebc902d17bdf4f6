"""Texts are shortened and made printable, by value."""

import pytest

from mcp_server.text.formatting import fold_bars, printable, shorten_middle


def test_a_text_is_shortened_in_its_middle_to_an_exact_length() -> None:
    assert shorten_middle("abcdefghij", 10) == "abcdefghij"
    assert shorten_middle("abcdefghijk", 10) == "abcdef…ijk"
    assert shorten_middle("abcdefghijk", 7, head=3) == "abc…ijk"


def test_control_characters_are_replaced() -> None:
    assert printable("a\x1b[31mé\n") == "a·[31mé·"


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        (" 50%|█████     | 5/10 [00:40<02:19]", " 50%|…| 5/10 [00:40<02:19]"),
        ("  0%|          | 0/10 [00:00<?]", "  0%|…| 0/10 [00:00<?]"),
        ("20/40 ━━━━━━━━━━╸━━━━━━━━━ 1s 9ms/step", "20/40 … 1s 9ms/step"),
        ("10/63 [======>.......................] - ETA: 1s", "10/63 […] - ETA: 1s"),
        ("100%|##########| 1/1", "100%|…| 1/1"),
        ("a == b ... # comment, |x| and 3/4", "a == b ... # comment, |x| and 3/4"),
    ],
)
def test_a_drawn_bar_is_folded_to_an_ellipsis(text: str, folded: str) -> None:
    assert fold_bars(text) == folded
