"""Rewrites HTML in a document as the markdown that a person would read there. Pure.

Only what certainly means the same is rewritten: block tags at the ends of a line, tables without joined cells, and
inline tags around a whole value. Everything else stays, and is refused as part of a value: ``<path>`` is a placeholder,
``<del>`` is no longer meant, and a command's ``"<b>"`` is its own. Code blocks and inline code are never touched.
"""

# ruff: noqa: RUF001 - people write full-width punctuation, which is searched for here

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from html import unescape

Lines = list[tuple[int, str]]  # numbers and texts of lines; several may have one number

_LONGEST_LINE = 8_000
_FENCE = re.compile(r"[ \t>]*(?:(?:[-*+]|\d+[.)])[ \t]+)?(`{3,}|~{3,})")
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
_ROW, _ROW_END = re.compile(rf"<tr{_ATTRIBUTES}>", re.IGNORECASE), re.compile(r"</tr>", re.IGNORECASE)
_CELL, _CELL_END = re.compile(rf"\s*<t[dh]{_ATTRIBUTES}>", re.IGNORECASE), re.compile(r"</t[dh]>", re.IGNORECASE)
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
    fence = ""
    for number, text in lines:
        if (mark := _FENCE.match(text)) and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
        if fence or len(text) > _LONGEST_LINE or not _BLOCK_START.match(text) or "<table" in text.lower():
            yield number, text
            continue
        for part in _BETWEEN_BLOCKS.split(text):
            if part.strip() or not text.strip():
                yield number, part


def _rewrite(lines: Lines) -> Iterator[tuple[int, str]]:
    at, fence = 0, ""
    last_ends = [
        max((n for n, (_, text) in enumerate(lines) if ends.search(text)), default=-1) for _, ends, _ in _BLOCKS
    ]
    while at < len(lines):
        number, text = lines[at]
        if (mark := _FENCE.match(text)) and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
        elif not fence and "<" in text and len(text) <= _LONGEST_LINE:
            block = _rewrite_block(lines, at, last_ends)
            if block is not None:
                rewritten, at = block
                yield from rewritten
                continue
            text = _rewrite_line(text)
        yield number, text
        at += 1


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
    if any(_FENCE.match(text) for _, text in code):
        return None
    return [(lines[0][0], "```"), *code, (lines[-1][0], "```")]


def _read_table(lines: Lines) -> Lines | None:
    """Return a table as rows of markdown, or None where it has joined cells or anything between its rows."""
    whole = "\n".join(text for _, text in lines)
    *parts, behind = _ROW_END.split(whole)
    if _JOINED_CELLS.search(whole) or _BETWEEN_ROWS.sub("", behind).strip():
        return None
    rows: Lines = []
    at = 0
    for part in parts:
        begin = _ROW.search(part)
        cells = (
            _read_cells(part[begin.end() :])
            if begin and not _BETWEEN_ROWS.sub("", part[: begin.start()]).strip()
            else None
        )
        if begin is None or cells is None:
            return None
        number = lines[at + part.count("\n", 0, begin.start())][0]
        at += part.count("\n")
        rows.append((number, f"| {' | '.join(cells)} |"))
        if len(rows) == 1:
            rows.append((number, f"|{'---|' * len(cells)}"))
    return [(lines[0][0], ""), *rows, (lines[-1][0], "")]


def _read_cells(row: str) -> list[str] | None:
    """Return the texts of a row's cells, or None where one cannot be read, or anything is between them."""
    *parts, behind = _CELL_END.split(row)
    begins = [_CELL.match(part) for part in parts]
    if behind.strip():
        return None
    cells = [_read_cell(part[begin.end() :]) for part, begin in zip(parts, begins, strict=True) if begin]
    read = [cell for cell in cells if cell is not None]
    return read if len(read) == len(parts) else None


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
