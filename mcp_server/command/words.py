"""The pieces of one word of a shell: its quotes taken off, its substitutions found. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Union

from mcp_server.text.regex import compile_lazily

_INSIDE = compile_lazily(r"""\\.|\$'(?:[^'\\]|\\.)*'|'[^']*'|(?<=[\s;&|(])\#[^\n]*|["`(){}]|\$[({]""", re.DOTALL)
_CLOSING = {'"': '"', "`": "`", "${": "}"}  # all others end with a parenthesis
_OPENS_INSIDE = {
    '"': frozenset({"`", "$(", "${"}),
    "`": frozenset[str](),
    "}": frozenset({'"', "`", "$(", "${"}),
    ")": frozenset({'"', "`", "$(", "${", "("}),
}
_QUOTED = compile_lazily(r"""\$'(?P<ansi>(?:[^'\\]|\\.)*)'|\\(?P<escaped>.)|'(?P<single>[^']*)'""", re.DOTALL)
_ESCAPED_IN_QUOTES = compile_lazily(r'\\([$`"\\\n])')
_ANSI_ESCAPE = compile_lazily(r"\\(?:x([0-9a-fA-F]{1,2})|(.))", re.DOTALL)
_ANSI = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "0": "\0"}
_IN_QUOTES = compile_lazily(r"(?:\\.|[^`$\\]|\$(?![({]))+|(?P<opening>`|\$[({])|\\", re.DOTALL)


@dataclass(frozen=True)
class Substitution:
    """A part of a word (``raw``): ``opening`` is one of ``$(``, ``<(``, ``>(``, ``$'``; ``text`` what is in it.

    A backquote counts as ``$(``. The text of ``$'`` has its escapes resolved.
    """

    opening: str
    text: str
    raw: str


Piece = Union[str, Substitution]


class Word(str):
    """A word with substitutions, or an array, without its quotes. ``pieces``: its texts and substitutions in order."""

    pieces: tuple[Piece, ...] = ()
    is_array = False  # NAME=(a b)

    @classmethod
    def of(cls, pieces: Iterable[Piece]) -> Word:
        """Return the word that these pieces make."""
        kept = tuple(pieces)
        word = cls("".join([piece if isinstance(piece, str) else piece.raw for piece in kept]))
        word.pieces = kept
        return word

    @property
    def substitutions(self) -> list[Substitution]:
        """Its substitutions."""
        return [piece for piece in self.pieces if not isinstance(piece, str)]


def join_pieces(pieces: list[Piece]) -> str:
    """Return the word that these pieces make; a plain text where none is a substitution."""
    try:
        return "".join(pieces)  # type: ignore[arg-type]  # most words have no other pieces
    except TypeError:
        return Word.of(pieces)


def expand_word(word: str, replace: Callable[[Substitution], str]) -> str:
    """Return the text of a word in which ``replace`` gives the text of each substitution."""
    if not isinstance(word, Word) or not word.pieces:
        return word
    return "".join(piece if isinstance(piece, str) else replace(piece) for piece in word.pieces)


def find_end(text: str, opening: str, start: int) -> int | None:
    """Return where the part of a word ends that begins with ``opening``; None where nothing closes it."""
    closing, at = [_CLOSING.get(opening, ")")], start + len(opening)
    while closing:
        piece = _INSIDE.search(text, at)
        if piece is None:
            return None
        mark, at = piece[0], piece.end()
        if mark == closing[-1]:
            closing.pop()
        elif mark in _OPENS_INSIDE[closing[-1]]:
            closing.append(_CLOSING.get(mark, ")"))
        elif mark[0] != "\\" and (closing[-1] in '"`' or (mark[0] == "#" and closing[-1] == "}")):
            at = piece.start() + 1  # quotes and comments are text there
    return at


def split_plain(raw: str) -> Iterator[Piece]:
    """Yield the pieces of a part that holds no other."""
    at = 0
    for match in _QUOTED.finditer(raw):
        yield raw[at : match.start()]
        if match["ansi"] is not None:
            yield Substitution("$'", _ANSI_ESCAPE.sub(_resolve_escape, match["ansi"]), match[0])
        else:  # a backslash at the end of a line joins two lines
            yield match["single"] if match["escaped"] is None else match["escaped"].replace("\n", "")
        at = match.end()
    yield raw[at:]


def split_part(opening: str, raw: str) -> Iterator[Piece]:
    """Yield the pieces of a part that begins with ``opening``."""
    if len(raw) <= len(opening):  # nothing closes it
        yield raw
    elif opening == '"':
        yield from split_inside(raw[1:-1], unquotes=True)
    elif opening == "${" or raw.startswith("$(("):
        yield from (raw[:2], *split_inside(raw[2:-1]), raw[-1:])
    else:
        text = raw[1:-1].replace("\\`", "`") if opening == "`" else raw[len(opening) : -1]
        yield Substitution("$(" if opening == "`" else opening, text, raw)


def split_inside(text: str, *, unquotes: bool = False) -> Iterator[Piece]:
    """Yield the pieces of a text in which only ``$(…)`` and backquotes mean anything, as in double quotes."""
    at = 0
    while mark := _IN_QUOTES.match(text, at):
        end = find_end(text, mark[0], at) if mark["opening"] else None
        at = end or mark.end()
        if end is not None:
            yield from split_part(mark[0], text[mark.start() : end])
        else:
            yield _ESCAPED_IN_QUOTES.sub(_unescape, mark[0]) if unquotes else mark[0]


def _resolve_escape(match: re.Match[str]) -> str:
    return chr(int(match[1], 16)) if match[1] else _ANSI.get(match[2], match[2])


def _unescape(match: re.Match[str]) -> str:
    return match[1].replace("\n", "")


def scan_quotes(text: str, quote: str = "") -> tuple[str, int | None]:
    """Return the quote that is open at the end of ``text`` and the start of a comment. ``quote`` is open before.

    Unlike ``parse`` this continues from line to line, so that a command of many lines takes linear time.
    """
    open_quote = quote
    for index, char, open_quote in read_characters(text, quote):
        if char == "#" and index and text[index - 1].isspace():
            return open_quote, index
    return open_quote, None


def read_characters(text: str, quote: str) -> Iterator[tuple[int, str, str]]:
    """Yield position and character of ``text``, and the quote open behind it; the character is empty where quoted."""
    is_escaped = False
    for index, char in enumerate(text):
        plain = ""
        if is_escaped:
            is_escaped = False
        elif char == "\\" and quote != "'":
            is_escaped = True
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        else:
            plain = char
        yield index, plain, quote
