"""Lines of a markdown document with what markdown-it reads in them: fences, headings, lists, quotes, comments. Pure.

Blueprints are written loosely, so that a few rules of markdown are off or changed. Indented lines are not code, and
more than 3 blanks count as 3. Underlined headings and links are not read: `---` is a rule, `[exp_purpose]:`
begins a section. Of HTML only comments count here, because `<path>` is a placeholder; `html` rewrites the rest before.
Text within a line is read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.token import Token


_DEEP_INDENT = re.compile(r"^(?: {4}| {0,3}\t)[ \t]*")
_COMMENT = re.compile(r"<!--.*?-->")
_TICKS = re.compile("`+")
_INLINE_SIGN = re.compile(r"`+|<!--|\*\*|~~(?=[^\s~])|\[\^[\w-]+\](?!:)|\\[_*\[\]#.~()!{}<>`+-]")
_FENCE = re.compile(r"[ \t>]*(?:(?:[-*+]|\d+[.)])[ \t]+)?(`{3,}|~{3,})")
_STRUCK = re.compile(r"~~[^~\n]*[^\s~]~~(?!~)")
_TASK_BOX = re.compile(r"^\[[ xX]\]\s+")
_CALLOUT = re.compile(r"^\[!\w+\][+-]?\s*")  # how Obsidian and GitHub begin a coloured quote
_DEFINITION = re.compile(r"^\s*:\s+(?=\S)")
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
        source_lines = texts[first:end]
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
            lines |= {line.number: line for line in _code_lines(fence, source_lines, len(fences), is_quoted=quotes > 0)}
        elif token.type in ("html_block", "hr"):
            lines |= {line.number: line for line in _empty_lines(token, source_lines, first + 1)}
        elif token.type == "inline":
            lines |= {line.number: line for line in _inline_lines(token, source_lines, first + 1, level)}
            level = 0
    return [_mark_item(line, marks.get(line.number, "")) for line in lines.values() if line is not None], fences


def find_code(texts: Iterable[str]) -> Iterator[bool]:
    """Yield for each line whether it is in a code block, or opens or closes one, before anything else is read."""
    fence = ""
    for text in texts:
        mark = _FENCE.match(text)
        is_mark = mark is not None and (not fence or mark[1].startswith(fence))
        yield bool(fence) or is_mark
        if mark is not None and is_mark:
            fence = "" if fence else mark[1]


def strip_bold(text: str) -> str:
    """Return ``text`` without the marks of bold."""
    return _read_inline(text).plain.strip() if "**" in text else text.strip()


def code_spans(text: str) -> list[str]:
    """Return the inline code in ``text``."""
    return _read_inline(text).spans if "`" in text else []


def _mark_item(line: SourceLine, mark: str) -> SourceLine:
    """Return a line with its mark of a list; the box of a task is not text."""
    if not mark or line.fence is not None:
        return replace(line, list_mark=mark)
    content, plain = (_TASK_BOX.sub("", text, count=1) for text in (line.content, line.plain))
    return replace(line, list_mark=mark, content=content, plain=plain)


def _code_lines(fence: Fence, source_lines: Sequence[str], block: int, *, is_quoted: bool) -> Iterator[SourceLine]:
    """Yield the lines in a code block."""
    last = len(source_lines) - 1 if fence.is_closed else len(source_lines)
    for number, text in enumerate(source_lines[1:last], fence.first + 1):
        code = _QUOTE_MARKS.sub("", text) if is_quoted else text
        yield SourceLine(number, code, code, code, fence=fence.language, block=block)


def _empty_lines(token: Token, source_lines: Sequence[str], first: int) -> Iterator[SourceLine]:
    """Yield the lines of a rule, or of a comment with the text behind it."""
    for number, text in enumerate(source_lines, first):
        is_end = token.type == "html_block" and number == first + len(source_lines) - 1
        behind = _COMMENT.sub("", text.partition("-->")[2]).strip() if is_end else ""
        yield SourceLine(number, text if token.type == "hr" else behind, behind, strip_bold(behind))


def _inline_lines(token: Token, source_lines: Sequence[str], first: int, level: int) -> Iterator[SourceLine]:
    """Yield the lines of a paragraph or heading."""
    inline = _read_inline(token.content)
    contents, plains = inline.content.split("\n"), inline.plain.split("\n")
    comments = [part.strip() for comment in inline.comments for part in comment.split("\n")]
    if len(contents) != len(source_lines):  # a last line of blanks that only Python knows
        contents = plains = [text.strip() for text in source_lines]
    for number, (text, content, plain) in enumerate(zip(source_lines, contents, plains, strict=True), first):
        while comments and comments[0] in text:
            text = text.replace(comments.pop(0), "", 1)  # noqa: PLW2901
        if _DEFINITION.match(text) and not level:  # below its term
            text, content, plain = (_DEFINITION.sub("", each, count=1) for each in (text, content, plain))  # noqa: PLW2901
        content, plain = (_CALLOUT.sub("", each.strip(), count=1) for each in (content, plain))  # noqa: PLW2901
        yield SourceLine(number, text, content, plain, level)


@dataclass
class _Inline:
    """Text without comments and escapes, the same without the marks of bold, its inline code, and its comments."""

    content: str
    plain: str
    spans: list[str] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)


def _read_inline(text: str) -> _Inline:
    """Read inline code, comments, escapes and bold.

    markdown-it needs 5 µs for a word here, and does not read Chinese bold that ends in a colon.
    """
    if not _INLINE_SIGN.search(text):
        return _Inline(text, text)
    inline = _Inline("", "")
    parts: list[str] = []  # at even places text, at odd places a mark of bold
    opened: list[int] = []
    paired: set[int] = set()
    piece: list[str] = []
    last = 0
    for start, end, text_part in _read_signs(text, inline):
        piece.append(text[last:start])
        last = end
        if text_part != "**":
            piece.append(text_part)
            continue
        parts += ["".join(piece), text_part]
        piece = []
        if opened and not text[start - 1].isspace():
            paired |= {opened.pop(), len(parts) - 1}
        elif text[end : end + 1].strip():
            opened.append(len(parts) - 1)
    parts.append("".join([*piece, text[last:]]))
    inline.content = "".join(parts)
    inline.plain = "".join(part for place, part in enumerate(parts) if place not in paired)
    return inline


def _read_signs(text: str, inline: _Inline) -> Iterator[tuple[int, int, str]]:
    """Yield start and end of every sign in ``text``, with what is kept of it; append inline code and comments."""
    by_length: dict[int, list[int]] = {}
    for ticks in reversed(list(_TICKS.finditer(text))):
        by_length.setdefault(len(ticks[0]), []).append(ticks.start())
    last_comment = text.rfind("-->")
    position = 0
    while match := _INLINE_SIGN.search(text, position):
        sign, start, position = match[0], match.start(), match.end()
        if sign[0] == "`":
            same = by_length.get(len(sign), [])  # none where a backslash took the first
            while same and same[-1] < position:
                same.pop()
            if same:
                code = text[position : same[-1]]
                inline.spans.append(code[1:-1] if code.strip() and code[0] == code[-1] == " " else code)
                position = same.pop() + len(sign)
            yield start, position, text[start:position]
        elif sign == "<!--" and position <= last_comment:
            position = text.index("-->", position) + len("-->")
            inline.comments.append(text[start:position])
            yield start, position, "\n" * text.count("\n", start, position)
        elif sign == "~~" and (struck := _STRUCK.match(text, start)):
            position = struck.end()
            yield start, position, ""
        elif sign.startswith("[^"):  # a footnote's number
            yield start, position, ""
        else:
            yield start, position, sign.removeprefix("\\")


def _bare_line(number: int, text: str) -> SourceLine:
    """Return a line outside of all paragraphs: an empty one, or an empty line of a quote."""
    content = text.strip() if text.strip(" \t>") else ""
    return SourceLine(number, text, content, content)


@cache
def _parser(*, with_fences: bool) -> MarkdownIt:
    from markdown_it import MarkdownIt  # noqa: PLC0415 - few calls read a blueprint, and a server must start fast

    parser = MarkdownIt("zero", {"html": True})
    parser.enable(["heading", "hr", "list", "blockquote"])
    parser.core.ruler.disable(["inline", "text_join"])
    # In the places that the library's own rules have, and with the same rights to end a paragraph.
    parser.block.ruler.at("html_block", _comment_block, {"alt": ["paragraph", "reference", "blockquote"]})
    parser.block.ruler.at("fence", _fence, {"alt": ["paragraph", "reference", "blockquote", "list"]})
    return parser.enable(["html_block", *(["fence"] if with_fences else [])])


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
