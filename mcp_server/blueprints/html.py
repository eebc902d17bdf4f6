"""Rewrites HTML in a document as the markdown that a person would read there. Pure.

Only what certainly means the same is rewritten: block tags at the ends of a line, tables without joined cells, and
inline tags around a whole value. Everything else stays, and is refused as part of a value: ``<path>`` is a placeholder,
``<del>`` is no longer meant, and a command's ``"<b>"`` is its own. Code blocks and inline code are never touched.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from html import unescape

from mcp_server.blueprints.markdown import LINE_BREAK, find_code
from mcp_server.text.rows import read_patterns

_RX = read_patterns("blueprints/patterns", "html")

Lines = list[tuple[int, str]]  # numbers and texts of lines; several may have one number

_LONGEST_LINE = 8_000
_LINE_START = re.compile(r"^[ \t>]*(?:(?:[-*+]|\d{1,3}[.)])[ \t]+)?")
_CODE_TAGS = frozenset({"code", "kbd", "tt", "samp"})


def rewrite_html(lines: Lines) -> Lines:
    """Return the lines of a document with markdown instead of HTML, each with the number where it was written."""
    if not any(_RX.any_tag.search(text) for _, text in lines):
        return lines
    return list(_rewrite(list(_split_blocks(lines))))


def _split_blocks(lines: Lines) -> Iterator[tuple[int, str]]:
    """Yield a line of HTML as several, one for each block that begins on it, all with its number."""
    for (number, text), is_code in zip(lines, find_code(text for _, text in lines), strict=True):
        if is_code or len(text) > _LONGEST_LINE or not _RX.block_start.match(text) or "<table" in text.lower():
            yield number, text
        else:
            yield from ((number, part) for part in _RX.between_blocks.split(text) if part.strip() or not text.strip())


def _rewrite(lines: Lines) -> Iterator[tuple[int, str]]:
    texts = [text for _, text in lines]
    last_ends = [max((n for n, text in enumerate(texts) if ends.search(text)), default=-1) for _, ends, _ in _BLOCKS]
    is_code, behind = list(find_code(texts)), 0
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
    texts[0] = _RX.pre.sub("", texts[0].lstrip(), count=1)
    texts[-1] = _RX.pre_end.sub("", texts[-1])
    if any(_RX.tag.search(text) for text in texts):
        return None
    code = [(number, unescape(text)) for (number, _), text in zip(lines, texts, strict=True)]
    if any(find_code(text for _, text in code)):
        return None
    return [(lines[0][0], "```"), *code, (lines[-1][0], "```")]


def _read_table(lines: Lines) -> Lines | None:
    """Return a table as rows of markdown, or None where it has joined cells or anything between its rows and cells."""
    whole = "\n".join(text for _, text in lines)
    if _RX.joined_cells.search(whole) or _RX.between_rows.sub("", _RX.row.sub("", whole)).strip():
        return None
    rows: Lines = []
    for row in _RX.row.finditer(whole):
        cells = [_read_cell(cell["text"]) for cell in _RX.cell.finditer(row["cells"])]
        if None in cells or _RX.cell.sub("", row["cells"]).strip():
            return None
        rows.append((lines[whole.count("\n", 0, row.start())][0], f"| {' | '.join(cell or '' for cell in cells)} |"))
        if len(rows) == 1:
            rows.append((rows[0][0], f"|{'---|' * len(cells)}"))
    return [(lines[0][0], ""), *rows, (lines[-1][0], "")]


def _read_cell(text: str) -> str | None:
    """Return the text of a cell on one line, or None where tags remain in it, or preformatted lines."""
    text = "<br>".join(filter(None, (part.strip() for part in text.split("\n"))))
    text = _unwrap(text)
    text = text if "`" in text else _RX.emphasis.sub(r"\g<text>", text)
    if _RX.tag.search(LINE_BREAK.sub("", text)):
        return None
    return text.replace("|", "\\|")


_BLOCKS: tuple[tuple[re.Pattern[str], re.Pattern[str], Callable[[Lines], Lines | None]], ...] = (
    (_RX.table, _RX.table_end, _read_table),
    (_RX.pre, _RX.pre_end, _read_pre),
)


def _rewrite_line(text: str) -> str:
    """Return a line with marks of markdown instead of block tags at its ends, and of inline tags around a value."""
    start = _LINE_START.match(text)
    prefix = start[0] if start else ""
    rest = text[len(prefix) :].rstrip()
    if not rest.startswith("<") and not _RX.last_end.search(rest):
        separator = _RX.separator.match(rest)  # a label of markdown, and its value
        return text if separator is None else text[: len(prefix) + separator.end()] + _unwrap(rest[separator.end() :])
    while (tag := _RX.first_tag.match(rest)) or _RX.first_end.match(rest):
        if tag and tag["tag"].lower() == "li":
            prefix = f"{prefix}- "
        rest = rest[tag.end() :] if tag else _RX.first_end.sub("", rest, count=1)
    while _RX.last_end.search(rest):
        rest = _RX.last_end.sub("", rest, count=1)
    if heading := _RX.heading.match(rest):
        return f"{'#' * int(heading['level'])} {_unwrap(heading['text'])}"
    if label := _RX.label.match(rest):
        behind = _RX.separator.match(rest, label.end())
        end = behind.end() if behind else label.end()
        return f"{prefix}**{_unwrap(label['text'])}**{rest[label.end() : end]}{_unwrap(rest[end:])}"
    return prefix + _unwrap(rest)


def _unwrap(text: str) -> str:
    """Return a value without the inline tags around all of it; code becomes inline code."""
    inner, is_code = text.strip(), False
    while (around := _RX.around.match(inner)) and not re.search(rf"(?i)</?{around['tag']}\b", around["text"]):
        inner, is_code = around["text"].strip(), is_code or around["tag"].lower() in _CODE_TAGS
    if _RX.tag.search(LINE_BREAK.sub("", inner)) or (is_code and "`" in inner):
        return text
    inner = inner if "`" in inner else unescape(inner)
    return f"`{inner}`" if is_code else inner
