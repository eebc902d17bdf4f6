"""Rewrites HTML in a document as the markdown that a person would read there. Pure.

Only what certainly means the same is rewritten: block tags at the ends of a line, tables without joined cells, and
inline tags around a whole value. Everything else stays, and is refused as part of a value: ``<path>`` is a placeholder,
``<del>`` is no longer meant, and a command's ``"<b>"`` is its own. Code blocks and inline code are never touched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from html import unescape

from mcp_server.blueprints.markdown import find_code

Lines = list[tuple[int, str]]  # numbers and texts of lines; several may have one number

_LONGEST_LINE = 8_000
_ANY_TAG = re.compile(
    r"</?(?:h[1-6]|p|div|pre|table|t[rdh]|[uod]l|li|d[td]|summary|code|kbd|tt|b|strong|span|a)\b", re.IGNORECASE
)
_ATTRIBUTES = r"(?:\s+(?![^<>]*(?:hidden|display\s*:\s*none|line-through))[^<>]*)?"
_CONTAINERS = (
    "html|body|main|header|footer|article|section|div|p|center|ul|ol|dl|dd|details|blockquote|thead|tbody|tfoot|hr|li"
)
_FIRST_TAG = re.compile(rf"^<(?P<tag>{_CONTAINERS}){_ATTRIBUTES}\s*/?>\s*", re.IGNORECASE)
_FIRST_END = re.compile(rf"^</(?:{_CONTAINERS})>\s*", re.IGNORECASE)
_LAST_END = re.compile(rf"\s*</(?:{_CONTAINERS})>$", re.IGNORECASE)
_LINE_START = re.compile(r"^[ \t>]*(?:(?:[-*+]|\d{1,3}[.)])[ \t]+)?")
_HEADING = re.compile(rf"^<h(?P<level>[1-6]){_ATTRIBUTES}>(?P<text>.*?)</h(?P=level)>$", re.IGNORECASE)
_LABEL = re.compile(
    rf"^<(?P<tag>dt|summary|b|strong){_ATTRIBUTES}>(?P<text>[^<>]*(?:<(?:b|strong|code)>[^<>]*</(?:b|strong|code)>)?[^<>]*)</(?P=tag)>",
    re.IGNORECASE,
)
_AROUND = re.compile(
    rf"^<(?P<tag>b|strong|i|em|u|span|font|a|p|div|code|kbd|tt|samp){_ATTRIBUTES}>(?P<text>.*)</(?P=tag)>$",
    re.IGNORECASE | re.DOTALL,
)
_SEPARATOR = re.compile(r"(?:[^<>`'\"$|]{0,80}[:：=])?\s*(?=<[A-Za-z]+)")  # a label, in front of a tag
_CODE_TAGS = frozenset({"code", "kbd", "tt", "samp"})
_PRE = re.compile(rf"^<pre{_ATTRIBUTES}>(?:\s*<code{_ATTRIBUTES}>)?", re.IGNORECASE)
_PRE_END = re.compile(r"(?:</code>\s*)?</pre>\s*$", re.IGNORECASE)
_TABLE, _TABLE_END = re.compile(rf"^\s*<table{_ATTRIBUTES}>", re.IGNORECASE), re.compile(r"</table>\s*$", re.IGNORECASE)
_ROW = re.compile(rf"<tr{_ATTRIBUTES}>(?P<cells>.*?)</tr>", re.IGNORECASE | re.DOTALL)
_CELL = re.compile(rf"<t[dh]{_ATTRIBUTES}>(?P<text>.*?)</t[dh]>", re.IGNORECASE | re.DOTALL)
_BETWEEN_ROWS = re.compile(
    rf"<table{_ATTRIBUTES}>|</?(?:thead|tbody|tfoot|colgroup){_ATTRIBUTES}>|<col{_ATTRIBUTES}/?>|</table>|<caption>[^<>]*</caption>",
    re.IGNORECASE,
)
_JOINED_CELLS = re.compile(r"\b(?:col|row)span\s*=\s*[\"']?(?!1\b)", re.IGNORECASE)
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_EMPHASIS = re.compile(r"<(?P<tag>b|i|em|strong|u|small|mark)>(?P<text>[^<>]*)</(?P=tag)>", re.IGNORECASE)
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)


_BLOCK_TAG = r"(?:h[1-6]|p|div|pre|table|[uod]l|li|d[td]|details|summary|section|blockquote|hr)"
_BETWEEN_BLOCKS = re.compile(rf"\s*(?=<{_BLOCK_TAG}\b[^<>]*>)", re.IGNORECASE)
_BLOCK_START = re.compile(rf"\s*</?{_BLOCK_TAG}\b", re.IGNORECASE)


def rewrite_html(lines: Lines) -> Lines:
    """Return the lines of a document with markdown instead of HTML, each with the number where it was written."""
    if not any(_ANY_TAG.search(text) for _, text in lines):
        return lines
    return list(_rewrite(list(_split_blocks(lines))))


def _split_blocks(lines: Lines) -> Iterator[tuple[int, str]]:
    """Yield a line of HTML as several, one for each block that begins on it, all with its number."""
    for (number, text), is_code in zip(lines, find_code(text for _, text in lines), strict=True):
        if is_code or len(text) > _LONGEST_LINE or not _BLOCK_START.match(text) or "<table" in text.lower():
            yield number, text
        else:
            yield from ((number, part) for part in _BETWEEN_BLOCKS.split(text) if part.strip() or not text.strip())


def _rewrite(lines: Lines) -> Iterator[tuple[int, str]]:
    last_ends = [
        max((n for n, (_, text) in enumerate(lines) if ends.search(text)), default=-1) for _, ends, _ in _BLOCKS
    ]
    is_code, behind = list(find_code(text for _, text in lines)), 0
    for at, (number, text) in enumerate(lines):
        if at < behind:
            continue
        if is_code[at] or "<" not in text or len(text) > _LONGEST_LINE:
            yield number, text
        elif (block := _rewrite_block(lines, at, last_ends)) is not None:
            rewritten, behind = block
            yield from rewritten
        else:
            yield number, _rewrite_line(text)


def _rewrite_block(lines: Lines, at: int, last_ends: Sequence[int]) -> tuple[Lines, int] | None:
    """Return the table or the preformatted text that begins at a line, and the index behind it; None without one.

    ``last_ends``: the index of the last line that ends a block, for each kind. What cannot be rewritten stays.
    """
    text = lines[at][1].lstrip()
    for (begins, ends, read), last_end in zip(_BLOCKS, last_ends, strict=True):
        if at <= last_end and begins.match(text):
            end = next(n for n in range(at, len(lines)) if ends.search(lines[n][1]))
            return read(lines[at : end + 1]) or lines[at : end + 1], end + 1
    return None


def _read_pre(lines: Lines) -> Lines | None:
    """Return preformatted text as a code block, or None where it holds other tags."""
    texts = [text for _, text in lines]
    texts[0] = _PRE.sub("", texts[0].lstrip(), count=1)
    texts[-1] = _PRE_END.sub("", texts[-1])
    if any(_TAG.search(text) for text in texts):
        return None
    code = [(number, unescape(text)) for (number, _), text in zip(lines, texts, strict=True)]
    if any(find_code(text for _, text in code)):
        return None
    return [(lines[0][0], "```"), *code, (lines[-1][0], "```")]


def _read_table(lines: Lines) -> Lines | None:
    """Return a table as rows of markdown, or None where it has joined cells or anything between its rows and cells."""
    whole = "\n".join(text for _, text in lines)
    if _JOINED_CELLS.search(whole) or _BETWEEN_ROWS.sub("", _ROW.sub("", whole)).strip():
        return None
    rows: Lines = []
    for row in _ROW.finditer(whole):
        cells = [_read_cell(cell["text"]) for cell in _CELL.finditer(row["cells"])]
        if None in cells or _CELL.sub("", row["cells"]).strip():
            return None
        rows.append((lines[whole.count("\n", 0, row.start())][0], f"| {' | '.join(cell or '' for cell in cells)} |"))
        if len(rows) == 1:
            rows.append((rows[0][0], f"|{'---|' * len(cells)}"))
    return [(lines[0][0], ""), *rows, (lines[-1][0], "")]


def _read_cell(text: str) -> str | None:
    """Return the text of a cell on one line, or None where tags remain in it, or preformatted lines."""
    text = "<br>".join(filter(None, (part.strip() for part in text.split("\n"))))
    text = _unwrap(text)
    text = text if "`" in text else _EMPHASIS.sub(r"\g<text>", text)
    if _TAG.search(_BREAK.sub("", text)):
        return None
    return text.replace("|", "\\|")


_BLOCKS: tuple[tuple[re.Pattern[str], re.Pattern[str], Callable[[Lines], Lines | None]], ...] = (
    (_TABLE, _TABLE_END, _read_table),
    (_PRE, _PRE_END, _read_pre),
)


def _rewrite_line(text: str) -> str:
    """Return a line with marks of markdown instead of block tags at its ends, and of inline tags around a value."""
    start = _LINE_START.match(text)
    prefix = start[0] if start else ""
    rest = text[len(prefix) :].rstrip()
    if not rest.startswith("<") and not _LAST_END.search(rest):
        separator = _SEPARATOR.match(rest)  # a label of markdown, and its value
        return text if separator is None else text[: len(prefix) + separator.end()] + _unwrap(rest[separator.end() :])
    while (tag := _FIRST_TAG.match(rest)) or _FIRST_END.match(rest):
        if tag and tag["tag"].lower() == "li":
            prefix = f"{prefix}- "
        rest = rest[tag.end() :] if tag else _FIRST_END.sub("", rest, count=1)
    while _LAST_END.search(rest):
        rest = _LAST_END.sub("", rest, count=1)
    if heading := _HEADING.match(rest):
        return f"{'#' * int(heading['level'])} {_unwrap(heading['text'])}"
    if label := _LABEL.match(rest):
        behind = _SEPARATOR.match(rest, label.end())
        end = behind.end() if behind else label.end()
        return f"{prefix}**{_unwrap(label['text'])}**{rest[label.end() : end]}{_unwrap(rest[end:])}"
    return prefix + _unwrap(rest)


def _unwrap(text: str) -> str:
    """Return a value without the inline tags around all of it; code becomes inline code."""
    inner, is_code = text.strip(), False
    while (around := _AROUND.match(inner)) and not re.search(rf"</?{around['tag']}\b", around["text"], re.IGNORECASE):
        inner, is_code = around["text"].strip(), is_code or around["tag"].lower() in _CODE_TAGS
    if _TAG.search(_BREAK.sub("", inner)) or (is_code and "`" in inner):
        return text
    inner = inner if "`" in inner else unescape(inner)
    return f"`{inner}`" if is_code else inner
