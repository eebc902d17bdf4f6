r"""Turns program output into text that an agent can read cheaply: bytes in, plain lines out. Pure.

A log holds what was written, not what a person saw: colours, bars redrawn a thousand times, the same warning from
eight ranks. The result is what stayed on the screen. In doubt a line stays: text that does not look like a bar is
kept, even where something was drawn over it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import NamedTuple

from mcp_server.text.invisible import CONTROLS, ESCAPES, INVISIBLE
from mcp_server.text.regex import compile_lazily
from mcp_server.text.rows import read_patterns

_RX = read_patterns("text/patterns", "log_text")


LINE_CHARS = 600  # longer lines are cut in the middle
_BAR_WITHIN_CHARS = 4_000  # of a line that are searched for a progress bar

_TO_COLUMN_1 = compile_lazily(rb"\x1b\[[01]?G")
_STEP = compile_lazily(r"(\r+|\x1b\[\d{0,4}[ABEF])")
# Kept are: letters, % and /, line ends, and the first byte of letters outside ASCII and of no bar glyph.
_NOT_WORDS = bytes(
    set(range(0xC0)) - set(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ%/\r\n\x1b")
    | {0xE2}  # U+2000 to U+2FFF: punctuation, lines, blocks
)

_GLYPHS = "▀-▟━╸╺╶╴■□▪▫▬▭▮▯▰▱◼◻⣀-⣿"
_TOTAL = compile_lazily(r"(?<=\d)/\d[\d.]{0,12}")
_GLYPH = compile_lazily(f"[{_GLYPHS}]")
_WIDE = compile_lazily(rf"([{_GLYPHS}])\1{{10,}}")
_DRAWN = compile_lazily(rf"[{_GLYPHS}]{{2}}|\[[=#>. -]{{5,80}}\]")
_COUNT = compile_lazily(r"\d{1,12}(?:/\d|(?:\.\d{1,3})?%)")
_COUNT_BEFORE = compile_lazily(r"\d{1,12}(?:/\d{1,12}|%)\s{0,9}$")  # Keras: "5/100 [==>...] - ETA: 3s"
_AFTER_METER = compile_lazily(r"\[\d{1,4}:\d\d[:\d]{0,6}[<,][^\]]{0,400}\]\s*+(?=[^\s,\]])")
_BARLIKE = compile_lazily(rf"\d%|(?<![\d/])\d{{1,12}}/\d{{1,12}}(?![\d/])|[{_GLYPHS}]|\d \[\d+:\d\d")
_NOT_LETTERS = compile_lazily(r"[\W\d_]+")


class ShownLine(NamedTuple):
    r"""A readable line. ``number`` is its number in the raw output, counted by ``\n`` from 1."""

    number: int
    text: str
    since: int  # the first raw line that it represents
    repeats: int = 0  # so many lines like it were left out


@dataclass(frozen=True)
class FittedLines:
    """Those lines that fit. ``left_out`` counts the others, ``repeats`` the repeats that these represent."""

    text: str
    lines: tuple[ShownLine, ...]
    left_out: int
    repeats: int


def clean_lines(data: bytes, first_number: int = 1) -> list[ShownLine]:
    r"""Return the text as a person reads it on a terminal, in the order of writing. Blank lines stay.

    A line overwritten by ``\r``, backspaces or a cursor that moves up keeps its last state, and every message. ``data``
    starts at the beginning of a line; the cursor cannot move above it.
    """
    text = _plain(data)
    raw = text.split("\n")
    if not raw[-1]:
        raw.pop()
    if not ("\r" in text or "\b" in text or "\x1b" in text):
        return [ShownLine(number, line.rstrip(), number) for number, line in enumerate(raw, first_number)]
    screen = _Screen()
    for number, line in enumerate(raw, first_number):
        screen.feed(number, line)
    return [line for line in screen.lines if line is not None]


def collapse(lines: Iterable[ShownLine], line_chars: int = LINE_CHARS) -> list[ShownLine]:
    """Return one shortened line for a series of equal ones ("… (x12)") or of one bar's updates ("… (12 updates)")."""
    out = []
    for (is_bar, name), group in groupby(lines, key=_identity):
        run = list(group)
        newest, repeats = run[-1], len(run) - 1 if is_bar or name else 0
        text = shorten(_WIDE.sub(lambda run: run[1] * 10, newest.text), longest=line_chars)
        if repeats:
            text += f" ({len(run):,} updates)" if is_bar else f" (x{len(run):,})"
        out.append(ShownLine(newest.number, text, run[0].since, repeats))
    return out


def shorten(text: str, at: int = 0, longest: int = LINE_CHARS) -> str:
    """Return ``text`` cut to about ``longest`` characters: both its ends, or the part at ``at`` if in neither."""
    if len(text) <= longest:
        return text
    half = longest // 2 - 12
    if at < half or at >= len(text) - half:
        return f"{text[:half]}…[+{len(text) - 2 * half:,} chars]…{text[-half:]}"
    start, end = at - half // 2, at + 3 * half // 2
    return f"…[+{start:,} chars]…{text[start:end]}…[+{max(0, len(text) - end):,} chars]…"


def fit_lines(lines: Sequence[ShownLine], max_bytes: int, *, newest: bool = True) -> FittedLines:
    """Return the newest (else the first) lines whose text fits in ``max_bytes`` of UTF-8; a single one may be cut."""
    fitting: list[ShownLine] = []
    room = max_bytes + 1  # the last line has no line end
    for line in reversed(lines) if newest else lines:
        cost = len(line.text.encode()) + 1
        if cost > room:
            if not fitting and room > len("…".encode()) + 1:
                fitting.append(line._replace(text=line.text.encode()[: room - 4].decode(errors="ignore") + "…"))
            break
        room -= cost
        fitting.append(line)
    if newest:
        fitting.reverse()
    text, repeats = "\n".join(line.text for line in fitting), sum(line.repeats for line in fitting)
    return FittedLines(text, tuple(fitting), len(lines) - len(fitting), repeats)


def bar_name(text: str) -> str | None:
    """Return the identity of a progress bar: the words before its count, and its total ("Map:/300").

    None for all other lines, and where a message follows the bar. A percentage alone is a metric, not a bar: a
    line like ``acc 93% | loss 0.2`` is not an update of the line before.
    """
    if "%|" not in text and "[" not in text and (text.isascii() or not _GLYPH.search(text)):
        return None  # most lines, in a tenth of the time
    text = text[:_BAR_WITHIN_CHARS]
    bar = _RX.meter.search(text)
    if bar is None:
        drawn = _DRAWN.search(text)
        if drawn is None:
            return None
        bar = drawn if _COUNT.search(text, drawn.end()) else _COUNT_BEFORE.search(text, 0, drawn.start())
    if bar is None or _AFTER_METER.search(text):
        return None
    total = _TOTAL.search(text, bar.start())
    return text[: bar.start()].strip() + (total[0] if total else "")


def _identity(line: ShownLine) -> tuple[bool, str]:
    name = bar_name(line.text)
    return (False, line.text) if name is None else (True, name)


def _plain(data: bytes) -> str:
    r"""Decode, and keep of all control characters only ``\t \n``, and ``\r \b ESC[nA`` where they overwrite."""
    data = data.translate(None, CONTROLS)
    if b"\x1b" in data:
        data = _TO_COLUMN_1.sub(b"\r", ESCAPES.sub(b"", data))
    data = data.replace(b"\a", b"").replace(b"\r\n", b"\n")
    text = _thin(data).decode(errors="replace")
    return text if text.isascii() else INVISIBLE.sub("", text)


def _thin(data: bytes) -> bytes:
    """Drop text that the same words overwrite, in the bytes of all lines together: nine times as fast as one by one."""
    if b"\r" not in data:
        return data
    words = data.translate(None, _NOT_WORDS).split(b"\r")
    parts = [
        part
        for part, letters, following in zip(data.split(b"\r"), words, [*words[1:], b""])
        if not letters or letters != following or b"\n" in letters or b"\x1b" in letters
    ]
    return b"\r".join(parts)


def _pieces(raw: str) -> Iterator[tuple[str, str]]:
    r"""Yield each stretch of text of a raw line after the step (``\r``, ``ESC[nA``, none) that led to it."""
    parts = ["", *_STEP.split(raw)]
    for step, text in zip(parts[::2], parts[1::2]):
        first, *others = _erased(text) if "\b" in text else [text]
        yield step, first
        for other in others:
            yield "\r", other


def _erased(text: str) -> list[str]:
    """Return ``text`` after its backspaces; text that they erase as a whole is a state of its own."""
    states = []
    state: list[str] = []  # characters, so that a hostile line is not copied for every backspace
    for part in re.split("(\b+)", text):
        if not part.startswith("\b"):
            state.extend(part)
        elif len(part) < len(state):
            del state[-len(part) :]
        else:
            states.append("".join(state))
            state.clear()
    return [*states, "".join(state)]


class _Screen:
    """The rows of a terminal, as far as they can still be overwritten."""

    def __init__(self) -> None:
        self.lines: list[ShownLine | None] = []  # in the order written; None: overwritten
        self._rows: list[int] = []  # the index in lines of each row; -1: none yet
        self._row = 0

    def feed(self, number: int, raw: str) -> None:
        if self._row == len(self._rows):
            self._rows.append(-1)
            if not ("\r" in raw or "\b" in raw or "\x1b" in raw):
                self._append(ShownLine(number, raw.rstrip(), number))
                self._row += 1
                return
        pieces = list(_pieces(raw))
        prefix, first = "", pieces[0][1]
        on_this_row = takewhile(lambda piece: not piece[0].startswith("\x1b"), pieces[1:])
        if _RX.prefix.fullmatch(first.strip()):
            prefix, first = first, ""
        elif _has_message(first, next((text for _, text in on_this_row if text.strip()), first)):
            self.lines.append(ShownLine(number, first.rstrip(), number))
            first = ""
        for step, text in [("", first), *pieces[1:]]:
            self._move(step)
            if text.strip():
                whole = text if text.startswith(prefix) else prefix + text
                self._write(ShownLine(number, whole.rstrip(), number))
        if self._rows[self._row] < 0:
            self._append(ShownLine(number, prefix.rstrip(), number))
        self._row += 1

    def _move(self, step: str) -> None:
        if step.startswith("\x1b"):
            rows = int(step[2:-1] or 1)
            self._row += -rows if step[-1] in "AF" else rows
            self._row = min(max(self._row, 0), len(self._rows) - 1)

    def _write(self, line: ShownLine) -> None:
        index = self._rows[self._row]
        old = self.lines[index] if index >= 0 else None
        if old is not None and _is_replaceable(old.text, line.text):
            self.lines[index] = None
            if index == len(self.lines) - 1:
                self.lines.pop()
        self._append(line)

    def _append(self, line: ShownLine) -> None:
        self._rows[self._row] = len(self.lines)
        self.lines.append(line)


def _is_replaceable(old: str, new: str) -> bool:
    """Return whether ``old`` is dropped when ``new`` overwrites it: a bar, or the same words again."""
    if not old or bar_name(old) is not None:
        return True
    head = old[:_BAR_WITHIN_CHARS]
    if _BARLIKE.search(head) and not _RX.alarm.search(head) and not _AFTER_METER.search(head):
        return True
    return _letters(old) == _letters(new)


def _has_message(bar: str, follower: str) -> bool:
    """Return whether a message precedes the first ``bar`` of a line: words that its next update lacks."""
    words = _letters(bar_name(bar) or "")
    return bool(words) and words != _letters(bar_name(follower) or "")


def _letters(text: str) -> str:
    return _NOT_LETTERS.sub("", text)
