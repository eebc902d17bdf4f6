"""Texts are shortened and made printable, by value."""

import pytest

from mcp_server.text.formatting import count_digits, fold_bars, printable, shorten_middle, significant, spread


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


@pytest.mark.parametrize(
    ("values", "digits"),
    [
        ([0.1414, 0.1449], 3),
        ([0.14141, 0.14144], 5),
        ([12345.6, 12345.9], 6),
        ([1.0, 1.0], 3),
        ([0.1 + 0.2, 0.3], 3),  # the same but for arithmetic
        ([1.00000001, 1.00000002], 3),
        ([float("nan"), 2.5], 3),
        ([], 3),
    ],
)
def test_a_column_has_the_digits_by_which_its_values_differ(values: list[float], digits: int) -> None:
    assert count_digits(values) == digits


@pytest.mark.parametrize(
    ("mean", "deviation", "text"),
    [
        (24.5, 0.71, "24.5±0.71"),
        (1000.3, 0.05, "1000.3±0.05"),
        (0.14146, 0.00123, "0.1415±0.0012"),
        (0.0, 0.1, "0±0.1"),
        (2.0, 0.0, "2±0"),
        (2.0, None, "2"),
        (None, None, ""),
    ],
)
def test_a_mean_goes_as_far_as_its_deviation(mean: float | None, deviation: float | None, text: str) -> None:
    assert spread(mean, deviation) == text


def test_control_and_invisible_characters_are_replaced_and_some_are_kept() -> None:
    assert printable("ein\x1b[31m Wort\u200b") == "ein·[31m Wort·"
    assert printable("a\tb\nc\x07", "?", keep="\t\n") == "a\tb\nc?"
    assert printable("a\u202eb", "") == "ab"
    assert printable("损失 0.5") == "损失 0.5"


def test_a_whole_part_keeps_its_digits() -> None:
    numbers = (32768.0, 491519.6, -16384.0, 1234.56, 0.123456, 12.3456, 9999.7)
    assert [significant(number) for number in numbers] == [32768, 491520, -16384, 1234.6, 0.1235, 12.35, 9999.7]
