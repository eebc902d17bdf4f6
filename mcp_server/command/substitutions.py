r"""Substitutions of a shell text, each cut out and replaced by a placeholder that the shell's parser takes for a word.

``$(…)``, backquotes, ``<(…)``, ``>(…)`` and ``$'…'``. What single quotes and comments hold is not a substitution. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_OPEN, _CLOSE = "\ue000", "\ue001"  # of the private use area: no command holds them
PLACEHOLDER = re.compile(rf"{_OPEN}(\d+){_CLOSE}")
_PIECE = re.compile(
    r"""
    (?P<escaped>\\.)
    | (?P<ansi>\$'(?:[^'\\]|\\.)*')
    | (?P<single>'[^']*')
    | (?P<comment>(?:^|(?<=[\s;&|(]))\#[^\n]*)
    | (?P<double>")
    | (?P<arithmetic>\$\(\()
    | (?P<open>\$\(|[<>]\()
    | (?P<back>`)
    | (?P<group>\()
    | (?P<close>\))
    """,
    re.VERBOSE | re.DOTALL,
)
_ANSI = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "0": "\0"}


@dataclass(frozen=True)
class Substitution:
    """What stood in the text (``raw``): ``opening`` is one of ``$(``, ``<(``, ``>(``, ``$'``; ``text`` what is in it.

    A backquote counts as ``$(``. The text of ``$'`` has its escapes resolved.
    """

    opening: str
    text: str
    raw: str


def cut_substitutions(text: str) -> tuple[str, list[Substitution]]:
    """Return ``text`` with placeholders, which keep the number of lines, and what they stand for.

    A text whose parentheses or quotes are not closed comes back as it is.
    """
    if not any(mark in text for mark in ("$(", "`", "<(", ">(", "$'")) or _OPEN in text:
        return text, []
    return _Cutter(text).cut()


class _Cutter:
    """Scans a text once. ``closers``: what ends each level that is open: a quote, a backquote, ``)`` or ``$)``."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._pieces: list[str] = []
        self._parts: list[Substitution] = []
        self._closers: list[str] = []
        self._kept_to = 0  # up to here the text is in the pieces
        self._opening, self._start = "", 0  # of the outermost substitution that is open

    def cut(self) -> tuple[str, list[Substitution]]:
        at = 0
        while (match := _PIECE.search(self._text, at)) is not None:
            at = self._read(match, match.lastgroup or "")
        if self._closers:
            return self._text, []
        return "".join((*self._pieces, self._text[self._kept_to :])), self._parts

    def _read(self, match: re.Match[str], kind: str) -> int:
        """Take one piece; return where the next may begin."""
        closers, end = self._closers, match.end()
        is_quoted = closers[-1:] == ['"']
        if kind in ("ansi", "single", "comment"):
            if is_quoted:  # in double quotes these are characters
                return match.start() + (2 if kind == "ansi" else 1)
            if kind == "ansi" and not closers:
                self._replace("$'", _resolve(match[0][2:-1]), match.start(), end)
        elif kind in ("double", "back"):
            self._toggle(match[0], match.start(), end)
        elif kind == "open" and (not is_quoted or match[0] == "$("):
            self._open(match[0], "$)", match.start())
        elif kind == "arithmetic" or (kind == "group" and not is_quoted):
            closers += [")"] * len(match[0].lstrip("$"))
        elif kind == "close" and closers and closers[-1] in (")", "$)"):
            self._close(end)
        return end

    def _toggle(self, mark: str, start: int, end: int) -> None:
        if self._closers[-1:] == [mark]:
            self._close(end)
        elif mark == '"':
            self._closers.append(mark)
        else:
            self._open("$(", mark, start)

    def _open(self, opening: str, closer: str, start: int) -> None:
        if not self._is_inside():
            self._opening, self._start = opening, start
        self._closers.append(closer)

    def _close(self, end: int) -> None:
        closer = self._closers.pop()
        if closer in ("`", "$)") and not self._is_inside():
            raw = self._text[self._start : end]
            inner = raw[1:-1].replace("\\`", "`") if closer == "`" else raw[2:-1]
            self._replace(self._opening, inner, self._start, end)

    def _is_inside(self) -> bool:
        return "`" in self._closers or "$)" in self._closers

    def _replace(self, opening: str, inner: str, start: int, end: int) -> None:
        raw = self._text[start:end]
        # A backslash before each line's end: the parser joins the lines to one word.
        place = f"{_OPEN}{len(self._parts)}{_CLOSE}" + "\\\n" * raw.count("\n")
        self._parts.append(Substitution(opening, inner, raw))
        self._pieces += (self._text[self._kept_to : start], place)
        self._kept_to = end


def restore(word: str, parts: Sequence[Substitution]) -> str:
    """Return ``word`` with what stood in the text, in place of the placeholders."""
    return PLACEHOLDER.sub(lambda match: parts[int(match[1])].raw, word) if _OPEN in word else word


def _resolve(text: str) -> str:
    return re.sub(
        r"\\(?:x([0-9a-fA-F]{1,2})|(.))",
        lambda match: chr(int(match[1], 16)) if match[1] else _ANSI.get(match[2], match[2]),
        text,
        flags=re.DOTALL,
    )
