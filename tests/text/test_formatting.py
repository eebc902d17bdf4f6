"""Texts are shortened and made printable, by value."""

from mcp_server.text.formatting import printable, shorten_middle


def test_a_text_is_shortened_in_its_middle_to_an_exact_length() -> None:
    assert shorten_middle("abcdefghij", 10) == "abcdefghij"
    assert shorten_middle("abcdefghijk", 10) == "abcdef…ijk"
    assert shorten_middle("abcdefghijk", 7, head=3) == "abc…ijk"


def test_control_characters_are_replaced() -> None:
    assert printable("a\x1b[31mé\n") == "a·[31mé·"
