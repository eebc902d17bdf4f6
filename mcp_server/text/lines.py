r"""Splits a terminal's output into lines for diagnosis. Pure.

A carriage return ends a line as a line feed does: errors are often printed right after a progress bar that was being
redrawn. Line numbers count line feeds only, from 1, as every editor does.
"""

from __future__ import annotations

from typing import NamedTuple

from mcp_server.text.invisible import INVISIBLE
from mcp_server.text.regex import compile_lazily

LINE_CHARS = 4_000  # of a line that are read; error messages are shorter
TRACEBACK_CHARS = 65_536  # ... and of a line that holds a whole traceback as a string of JSON
_ESCAPED = "Traceback (most recent call last):\\n"
ESCAPED_TRACEBACK = _ESCAPED.encode()
_ENDS = compile_lazily(r"\r\n|\n|\r")
_ESCAPES = compile_lazily(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor, erasing
    r"|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # OSC: titles, links
    r"|\x1b[ -/]*[0-~]"  # two characters and more
    r"|[\x00-\x08\x0b\x0c\x0e-\x1a\x7f]"  # Keras moves back with \b
)


class Line(NamedTuple):
    """One piece of output up to a line feed or a carriage return, without escape sequences and invisible characters."""

    number: int
    text: str


def split_lines(text: str, line_chars: int = LINE_CHARS) -> list[str]:
    r"""Return the lines of ``text``, split at ``\n`` and ``\r``, without empty ones. Long ones are cut."""
    if "\x1b" in text or "\b" in text or "\0" in text:
        text = _ESCAPES.sub("", text)
    if not text.isascii():
        text = INVISIBLE.sub("", text)
    lines = text.split("\n") if "\r" not in text else _ENDS.split(text)
    return [line[:line_chars] for line in lines if line and not line.isspace()]


def number_lines(data: bytes, first_number: int = 1) -> list[Line]:
    """Return the lines of ``data`` with their numbers. Pieces of one line share its number."""
    return [
        Line(number, text)
        for number, raw in enumerate(data.decode(errors="replace").split("\n"), first_number)
        for text in split_lines(raw, TRACEBACK_CHARS if _ESCAPED in raw else LINE_CHARS)
    ]
