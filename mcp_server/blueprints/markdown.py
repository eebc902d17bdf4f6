"""Lines of a markdown document with what markdown-it reads in them: fences, headings, lists, quotes, comments. Pure.

Blueprints are written loosely, so that a few rules of markdown are off or changed. Indented lines are not code, and
more than 3 blanks count as 3. Underlined headings and links are not read: `---` ends front matter, `[exp_purpose]:`
begins a section. Of HTML only comments count, because `<path>` is a placeholder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token


_DEEP_INDENT = re.compile(r"^(?: {4}| {0,3}\t)[ \t]*")
_COMMENT = re.compile(r"<!--.*?-->")
_QUOTE_MARKS = re.compile(r"^(?:[ \t]*>)+ ?")


@dataclass(frozen=True)
class SourceLine:
    """One line of a document, without HTML comments.

    ``text`` is as written. ``content`` lacks the marks of headings, lists and quotes, ``plain`` also those of bold.
    ``level`` is that of a heading, else 0; ``list_mark`` is the mark of a list item that begins here. ``fence`` is the
    language of the code block around the line, None outside of one; ``block`` numbers the code blocks from 1.
    """

    number: int
    text: str
    content: str
    plain: str
    level: int = 0
    list_mark: str = ""
    fence: str | None = None
    block: int = 0


@dataclass(frozen=True)
class Fence:
    """A code block: its first line, the line after it, its language, and whether a line of its own closes it."""

    first: int
    end: int
    language: str
    is_closed: bool


def read_lines(texts: Sequence[str], *, with_fences: bool = True) -> tuple[list[SourceLine], list[Fence]]:
    """Return the lines of a document, without those that open or close a code block, and its code blocks."""
    flat = [_DEEP_INDENT.sub("   ", text) for text in texts]
    tokens = _parser(with_fences=with_fences).parse("\n".join([*flat, ""]))
    lines: dict[int, SourceLine | None] = {number: _bare_line(number, text) for number, text in enumerate(texts, 1)}
    fences: list[Fence] = []
    marks: dict[int, str] = {}
    level = quotes = 0
    for token in tokens:
        first, end = token.map or (0, 0)
        written = texts[first:end]
        if token.type.startswith("blockquote"):
            quotes += token.nesting
        elif token.type == "list_item_open":
            marks.setdefault(first + 1, token.markup)
        elif token.type == "heading_open":
            level = int(token.tag[1:])
        elif token.type == "fence":
            fence = Fence(first + 1, end + 1, token.info.strip().lower(), token.content.count("\n") == end - first - 2)
            fences.append(fence)
            lines |= dict.fromkeys(range(fence.first, fence.end), None)
            lines |= {line.number: line for line in _code_lines(fence, written, len(fences), is_quoted=quotes > 0)}
        elif token.type in ("html_block", "hr"):
            lines |= {line.number: line for line in _empty_lines(token, written, first + 1)}
        elif token.type == "inline":
            lines |= {line.number: line for line in _inline_lines(token, written, first + 1, level)}
            level = 0
    return [replace(line, list_mark=marks.get(line.number, "")) for line in lines.values() if line is not None], fences


def strip_bold(text: str) -> str:
    """Return ``text`` without the marks of bold."""
    return _join(_inline(text), keep_bold=False).strip() if "**" in text else text.strip()


def code_spans(text: str) -> list[str]:
    """Return the inline code in ``text``."""
    return [token.content for token in _inline(text) if token.type == "code_inline"] if "`" in text else []


def _code_lines(fence: Fence, written: Sequence[str], block: int, *, is_quoted: bool) -> Iterator[SourceLine]:
    """Yield the lines in a code block."""
    last = len(written) - 1 if fence.is_closed else len(written)
    for number, text in enumerate(written[1:last], fence.first + 1):
        code = _QUOTE_MARKS.sub("", text) if is_quoted else text
        yield SourceLine(number, code, code, code, fence=fence.language, block=block)


def _empty_lines(token: Token, written: Sequence[str], first: int) -> Iterator[SourceLine]:
    """Yield the lines of a rule, or of a comment with the text behind it."""
    for number, text in enumerate(written, first):
        is_end = token.type == "html_block" and number == first + len(written) - 1
        behind = _COMMENT.sub("", text.partition("-->")[2]).strip() if is_end else ""
        yield SourceLine(number, text if token.type == "hr" else behind, behind, strip_bold(behind))


def _inline_lines(token: Token, written: Sequence[str], first: int, level: int) -> Iterator[SourceLine]:
    """Yield the lines of a paragraph or heading."""
    children = token.children or []
    contents = _join(children, keep_bold=True).split("\n")
    plains = _join(children, keep_bold=False).split("\n")
    comments = [part.strip() for child in children if child.type == "html_inline" for part in child.content.split("\n")]
    if not len(contents) == len(plains) == len(written):  # inline code of several lines, which markdown-it joins
        contents = plains = token.content.split("\n")
    if len(contents) != len(written):  # a last line of blanks that only Python knows
        contents = plains = [text.strip() for text in written]
    for number, (text, content, plain) in enumerate(zip(written, contents, plains, strict=True), first):
        while comments and comments[0] in text:
            text = text.replace(comments.pop(0), "", 1)  # noqa: PLW2901
        yield SourceLine(number, text, content.strip(), plain.strip(), level)


def _join(children: Sequence[Token], *, keep_bold: bool) -> str:
    """Return the text of inline tokens.

    A comment leaves only its line ends.
    """
    parts = []
    for token in children:
        if token.type == "code_inline":
            parts.append(f"{token.markup}{token.content}{token.markup}")
        elif token.type == "html_inline":
            parts.append("\n" * token.content.count("\n"))
        elif token.type in ("strong_open", "strong_close", "em_open", "em_close"):
            parts.append("" if token.markup == "**" and not keep_bold else token.markup)
        else:
            parts.append(token.content)
    return "".join(parts)


def _bare_line(number: int, text: str) -> SourceLine:
    """Return a line outside of all paragraphs: an empty one, or an empty line of a quote."""
    content = text.strip() if text.strip(" \t>") else ""
    return SourceLine(number, text, content, content)


def _inline(text: str) -> list[Token]:
    (token,) = _parser(with_fences=False).parseInline(text)
    return token.children or []


@cache
def _parser(*, with_fences: bool) -> MarkdownIt:
    from markdown_it import MarkdownIt  # noqa: PLC0415 - few calls read a blueprint, and a server must start fast

    parser = MarkdownIt("zero", {"html": True})
    parser.enable(["heading", "hr", "list", "blockquote", "backticks", "emphasis"])
    # In the places that the library's own rules have, and with the same rights to end a paragraph.
    parser.block.ruler.at("html_block", _comment_block, {"alt": ["paragraph", "reference", "blockquote"]})
    parser.inline.ruler.at("html_inline", _inline_comment)
    parser.block.ruler.at("fence", _fence, {"alt": ["paragraph", "reference", "blockquote", "list"]})
    return parser.enable(["html_block", "html_inline", *(["fence"] if with_fences else [])])


def _fence(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Read a code block.

    Lines of a list's code block may be indented less than the list.
    """
    from markdown_it.rules_block import fence  # noqa: PLC0415 - see above

    indent, state.blkIndent = state.blkIndent, 0
    try:
        return fence(state, start, end, silent)
    finally:
        state.blkIndent = indent


def _comment_block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Read an HTML comment that begins a line."""
    from markdown_it.rules_block import html_block  # noqa: PLC0415 - see above

    return state.src.startswith("<!--", state.bMarks[start] + state.tShift[start]) and html_block(
        state, start, end, silent
    )


def _inline_comment(state: StateInline, silent: bool) -> bool:
    """Read an HTML comment within a line or a paragraph."""
    if not state.src.startswith("<!--", state.pos):
        return False
    source, last = state.env.get("last comment end", ("", -1))
    if source is not state.src:  # searched once per paragraph: a text of `<!--` alone would take quadratic time
        last = state.src.rfind("-->")
        state.env["last comment end"] = (state.src, last)
    if last < state.pos:
        return False
    close = state.src.index("-->", state.pos) + len("-->")
    if not silent:
        state.push("html_inline", "", 0).content = state.src[state.pos : close]
    state.pos = close
    return True
