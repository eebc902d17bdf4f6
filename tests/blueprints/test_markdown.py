"""Lines of a document as a person reads them: some rules of markdown are off."""

import time

import pytest

from mcp_server.blueprints.markdown import code_spans, read_lines, strip_bold


def contents(*texts: str) -> list[str]:
    return [line.content for line in read_lines(texts)[0]]


def test_marks_of_headings_lists_and_quotes_are_removed() -> None:
    texts = ["## a ##", "> - b", "> 1. ## c", "* d", "", "e", "f"]
    lines, _ = read_lines(texts)
    assert [line.content for line in lines] == ["a", "b", "c", "d", "", "e", "f"]
    assert [line.text for line in lines] == texts
    assert [(line.level, line.list_mark) for line in lines[:4]] == [(2, ""), (0, "-"), (2, "."), (0, "*")]


def test_bold_is_removed_from_plain_text_and_other_marks_stay() -> None:
    (line,), _ = read_lines(["**a** __init__ *b* `**c**` x_y_z d**"])
    assert line.content == "**a** __init__ *b* `**c**` x_y_z d**"
    assert line.plain == "a __init__ *b* `**c**` x_y_z d**"
    assert strip_bold(" **a** b ") == "a b"


def test_deep_indentation_is_not_code_and_stays_in_the_text() -> None:
    lines, _ = read_lines(["a:", "        - b", "\t```", "\t  c", "\t```"])
    assert [(line.text, line.content, line.fence) for line in lines] == [
        ("a:", "a:", None),
        ("        - b", "b", None),
        ("\t  c", "\t  c", ""),
    ]


def test_a_code_block_of_a_list_may_be_indented_less() -> None:
    lines, fences = read_lines(["1. a", "   ```bash", "python b.py", "   ```", "2. c"])
    assert [(line.number, line.fence) for line in lines] == [(1, None), (3, "bash"), (5, None)]
    assert (fences[0].first, fences[0].end, fences[0].is_closed) == (2, 5, True)


def test_a_code_block_of_a_quote_is_without_its_marks() -> None:
    lines, _ = read_lines(["> ```sh", "> a", ">   b", "> ```"])
    assert [line.text for line in lines] == ["a", "  b"]


@pytest.mark.parametrize("text", ["```", "```\na", "```\na\n", "~~~\n```", "> ```\n> a\n\nb"])
def test_a_code_block_without_its_end_is_known(text: str) -> None:
    _, fences = read_lines(text.split("\n"))
    assert not fences[-1].is_closed


def test_comments_are_removed_and_placeholders_stay() -> None:
    assert contents("<!-- a", "", "## b -->", "c <!-- d --> e", "<path>", "f <!-- g", "h --> i") == [
        *("", "", "", "c  e", "<path>", "f", "i")
    ]
    assert contents("```", "<!-- a -->", "```") == ["<!-- a -->"]
    assert contents("<!-- a --> b <!-- c -->") == ["b"]


def test_neither_links_nor_underlined_headings_are_read() -> None:
    assert contents("[exp_purpose]: a", "---", "b", "===") == ["[exp_purpose]: a", "", "b", "==="]


def test_inline_code_has_any_number_of_backticks() -> None:
    assert code_spans("a `b c` ``d ` e`` `f") == ["b c", "d ` e"]


@pytest.mark.parametrize(
    "text",
    [
        *("a<!--" * 40_000, "a<!--\n" * 9_000, "> " * 100_000, "- " * 100_000, "*a **b " * 25_000),
        *("`a``b" * 40_000, "```sh\n## a\n" * 4_000, "- a\n" * 9_000, "[" * 200_000, "a\n\u3000"),
    ],
)
def test_hostile_text_is_read_in_bounded_time(text: str) -> None:
    begun = time.process_time()
    lines, _ = read_lines(text.split("\n"))
    assert time.process_time() - begun < 10
    assert len(lines) <= text.count("\n") + 1
