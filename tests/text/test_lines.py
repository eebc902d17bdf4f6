"""Lines for diagnosis hold what a person sees, and nothing else."""

from mcp_server.text.lines import Line, number_lines


def test_a_line_holds_no_character_that_nobody_sees() -> None:
    data = "loss \u202enan\u2066 \x1b[31m\u200bred\n训\ufeff练 é\x85".encode()
    assert number_lines(data) == [Line(1, "loss nan red"), Line(2, "训练 é")]
