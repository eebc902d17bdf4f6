"""Lines of a markdown document with what a person reads in them: fences, headings, lists, quotes, comments. Pure.

Blueprints are written loosely, so that a few rules of markdown are off or changed. Indented lines are not code, and a
list item needs no paragraph's end. Underlined headings and links are not read: `---` is a rule, `[exp_purpose]:`
begins a section. HTML is rewritten before, but for comments: `<path>` is a placeholder.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from html import unescape

from mcp_server.text.rows import read_patterns

_RX = read_patterns("blueprints/patterns", "markdown")

LINE_BREAK = _RX.line_break
_KEPT = "\ue000"  # in whose place inline code and escaped characters stand
_MAX_INLINE_CHARS = 8_000
_DEEPEST = 20  # lists and quotes within each other
_UNANSWERED = "_No response_"  # by which an issue form of GitHub says that a field was left empty


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
    lines: list[SourceLine] = []
    fences: list[Fence] = []
    comments = _CommentReader(texts)
    mark, is_quoted = "", False  # of the code block that is open
    for number, written in enumerate(texts, 1):
        if mark and is_quoted and not written.lstrip().startswith(">"):
            fences[-1], mark = replace(fences[-1], end=number), ""  # the quote ends, and its code block with it
        if mark:
            code = _RX.quote_marks.sub("", written) if is_quoted else written
            if code.strip() and set(code.strip()) == {mark[0]} and len(code.strip()) >= len(mark):
                fences[-1], mark = replace(fences[-1], end=number + 1, is_closed=True), ""
            else:
                lines.append(SourceLine(number, code, code, code, fence=fences[-1].language, block=len(fences)))
            continue
        text = comments.drop(number - 1)
        line, quoted = _read_line(number, "" if text.strip() == _UNANSWERED else text)
        if with_fences and (opening := _RX.opening.fullmatch(line.content)):
            mark, is_quoted = opening[1] or opening[3], quoted
            language = (opening[2] or opening[4] or "").strip().lower()
            fences.append(Fence(number, len(texts) + 1, language, is_closed=False))
        else:
            lines.append(line)
    return lines, fences


def find_code(texts: Iterable[str]) -> Iterator[bool]:
    """Yield for each line whether it is in a code block, or opens or closes one, before anything else is read."""
    fence = ""
    for text in texts:
        mark = _RX.fence.match(text)
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


def _read_line(number: int, text: str) -> tuple[SourceLine, bool]:
    """Return a line outside of code blocks, and whether it is quoted."""
    if _RX.bar.fullmatch(text):
        return SourceLine(number, text, "", ""), False
    rest, list_mark, is_quoted = text, "", False
    for _ in range(_DEEPEST):
        if (marks := _RX.list_or_quote.match(rest)) is None:
            break
        rest, is_quoted = rest[marks.end() :], is_quoted or bool(marks["quote"])
        list_mark = list_mark or marks["sign"] or marks["mark"] or ""
    rest, level = rest.strip(), 0
    if heading := _RX.heading.fullmatch(rest):
        level, rest = len(heading[1]), heading[2] or ""
    elif _RX.definition.match(rest):  # below its term
        text, rest = _RX.definition.sub("", text, count=1), _RX.definition.sub("", rest, count=1)
    inline = _read_inline(_RX.task_box.sub("", rest, count=1) if list_mark else rest)
    content, plain = (_RX.callout.sub("", each.strip(), count=1) for each in (inline.content, inline.plain))
    return SourceLine(number, text, content, plain, level, list_mark), is_quoted


class _CommentReader:
    """Takes HTML comments out of lines, each asked for in order; those in code blocks are not asked for.

    A comment in the middle of a line ends before the next empty line, or is text. So is one that never ends.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._is_open = False
        self._ends = [len(texts)] * (len(texts) + 1)  # the next line with the end of a comment, from each line on
        self._empty = [len(texts)] * (len(texts) + 1)  # the next empty line
        for at in range(len(texts) - 1, -1, -1):
            self._ends[at] = at if "-->" in texts[at] else self._ends[at + 1]
            self._empty[at] = self._empty[at + 1] if texts[at].strip() else at

    def drop(self, at: int) -> str:
        """Return a line without comments."""
        text, parts = self._texts[at], []
        if not self._is_open and "<!--" not in text:
            return text
        if self._is_open:
            if "-->" not in text:
                return ""
            self._is_open, text = False, text.partition("-->")[2]
        position = 0
        while begin := next((m for m in _RX.code_or_comment.finditer(text, position) if m["begin"]), None):
            end = text.find("-->", begin.end())
            last = self._ends[at + 1]
            if end < 0 and (last == len(self._texts) or (text[: begin.start()].strip() and last >= self._empty[at])):
                break
            parts.append(text[position : begin.start()])
            if end < 0:
                self._is_open, position = True, len(text)
                break
            position = end + len("-->")
        return "".join([*parts, text[position:]])


@dataclass
class _Inline:
    """Text without escapes, the same without the marks of bold, and its inline code."""

    content: str
    plain: str
    spans: list[str] = field(default_factory=list)


def _read_inline(text: str) -> _Inline:
    """Read inline code, escapes, bold, footnotes' numbers, and what is struck. A line of 8,000 characters stays."""
    if len(text) > _MAX_INLINE_CHARS or not _RX.inline.search(text):
        return _Inline(text, _RX.bold.sub(r"\1", text) if len(text) <= _MAX_INLINE_CHARS else text)
    inline, kept = _Inline("", ""), list[str]()

    def keep(sign: re.Match[str]) -> str:
        if (code := sign["code"]) is not None:
            inline.spans.append(code[1:-1] if code.strip() and code[0] == code[-1] == " " else code)
        elif sign["escaped"] is None:
            return ""
        kept.append(sign["escaped"] or sign[0])
        return _KEPT

    masked = _RX.inline.sub(keep, text.replace(_KEPT, " "))
    inline.content, inline.plain = (
        "".join(part + sign for part, sign in zip(each.split(_KEPT), [*kept, ""], strict=True))
        for each in (masked, _RX.bold.sub(r"\1", masked))
    )
    return inline


Lines = list[tuple[int, str]]  # numbers and texts of lines; several may have one number

_LINE_START = re.compile(r"^[ \t>]*(?:(?:[-*+]|\d{1,3}[.)])[ \t]+)?")
_CODE_TAGS = frozenset({"code", "kbd", "tt", "samp"})


def rewrite_html(lines: Lines) -> Lines:
    """Return the lines of a document with markdown instead of HTML, each with the number where it was written.

    Only what certainly means the same is rewritten: block tags at the ends of a line, tables without joined cells, and
    inline tags around a whole value. Everything else stays, and is refused as part of a value: ``<path>`` is a
    placeholder, ``<del>`` is no longer meant, and a command's ``"<b>"`` is its own. Code is never touched.
    """
    if not any(_RX.any_tag.search(text) for _, text in lines):
        return lines
    return list(_rewrite(list(_split_blocks(lines))))


def _split_blocks(lines: Lines) -> Iterator[tuple[int, str]]:
    """Yield a line of HTML as several, one for each block that begins on it, all with its number."""
    for (number, text), is_code in zip(lines, find_code(text for _, text in lines), strict=True):
        if is_code or len(text) > _MAX_INLINE_CHARS or not _RX.block_start.match(text) or "<table" in text.lower():
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
        if is_code[at] or "<" not in text or len(text) > _MAX_INLINE_CHARS:
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
    if heading := _RX.html_heading.match(rest):
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
