"""Lines of a markdown document with what a person reads in them: fences, headings, lists, quotes, comments. Pure.

Blueprints are written loosely, so that a few rules of markdown are off or changed. Indented lines are not code, and a
list item needs no paragraph's end. Underlined headings and links are not read: `---` is a rule, `[exp_purpose]:`
begins a section. HTML comments alone count here: `<path>` is a placeholder; `html` rewrites the rest before.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

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
