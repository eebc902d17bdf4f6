r"""Characters written as something else: `%2f`, `%252F`, `\x2f`, `\u002f`, `&#47;`, full width. Pure.

A program may write some of a text's characters so and leave the others, so that no spelling of the whole text is met.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator

from mcp_server.text.regex import compile_lazily

__all__ = ["Decoded", "decode_escapes"]

# Each also cut off at the end of the text, where it stands for nothing yet: `%25` may go on as `%252f`.
_ESCAPED = compile_lazily(
    rb"%(?:25){0,2}[0-9A-Fa-f]?\Z"
    rb"|\\\\{0,3}(?:x[0-9A-Fa-f]?|(?:u|U0{0,4})[0-9A-Fa-f]{0,3})?\Z"
    rb"|&#?(?:[xX][0-9A-Fa-f]{0,7}|\d{0,8})\Z"
    rb"|%(?:25){0,2}([0-9A-Fa-f]{2})"
    rb"|\\\\{0,3}x([0-9A-Fa-f]{2})"
    rb"|\\\\{0,3}(?:u|U0000)([0-9A-Fa-f]{4})"
    rb"|&#[xX]0{0,4}([0-9A-Fa-f]{2,4});"
    rb"|&#0{0,4}(\d{2,5});"
)
_AS_BYTES, _IN_DECIMAL, _DECIMAL, _HEXADECIMAL = 2, 5, 10, 16  # groups of _ESCAPED, and what its digits are
_SIGNS = (b"%", b"\\", b"&")
_LETTER_IN_FULL_WIDTH = compile_lazily(b"\xef(?:\xbc[\x90-\x99\xa1-\xba]|\xbd[\x81-\x9a])")
_FULL_WIDTH = compile_lazily(rb"\xef(?:\xbc[\x81-\xbf]|\xbd[\x80-\x9e]|[\xbc\xbd]?\Z)")
_NARROW = {chr(code + 0xFEE0).encode(): bytes([code]) for code in range(0x21, 0x7F)}


class Decoded:
    """A text with its escaped characters as what they stand for, and where each byte of it comes from."""

    def __init__(self, text: bytes, pattern: re.Pattern[bytes], decode: Callable[[re.Match[bytes]], bytes]) -> None:
        self._source, self._pattern, self._decode = text, pattern, decode
        self._pieces: tuple[list[int], list[tuple[int, int]]] | None = None
        self.text = pattern.sub(decode, text)

    def span(self, index: int) -> tuple[int, int]:
        """Return begin and end, in the text as it was, of what the byte at ``index`` stands for."""
        if self._pieces is None:
            self._pieces = self._list_pieces()
        begins, pieces = self._pieces
        at = bisect_right(begins, index) - 1
        if at < 0:
            return index, index + 1
        begin, end = pieces[at]
        after = index - begins[at]
        width = len(self._decode_at(begin))
        return (begin, end) if after < width else (end + after - width, end + after - width + 1)

    def _decode_at(self, begin: int) -> bytes:
        match = self._pattern.match(self._source, begin)
        return self._decode(match) if match else b""

    def _list_pieces(self) -> tuple[list[int], list[tuple[int, int]]]:
        """Return where each decoded character begins in the text, and its begin and end in the text as it was."""
        begins, pieces, shift = [], [], 0
        for match in self._pattern.finditer(self._source):
            begins.append(match.start() - shift)
            pieces.append(match.span())
            shift += len(match[0]) - len(self._decode(match))
        return begins, pieces


def decode_escapes(text: bytes) -> Iterator[Decoded]:
    """Yield the steps that decode ``text``, each on the text of the one before; none where nothing is escaped."""
    for find, pattern, decode in (
        (_has_full_width, _FULL_WIDTH, _narrow),
        (_has_escapes, _ESCAPED, _unescape),
        (_has_full_width, _FULL_WIDTH, _narrow),
    ):
        if find(text):
            step = Decoded(text, pattern, decode)
            yield step
            text = step.text


def _has_full_width(text: bytes) -> bool:
    """Return whether there are letters or digits in full width: punctuation alone is ordinary East Asian text."""
    return b"\xef" in text and _LETTER_IN_FULL_WIDTH.search(text) is not None


def _has_escapes(text: bytes) -> bool:
    return any(sign in text for sign in _SIGNS) and _ESCAPED.search(text) is not None


def _narrow(match: re.Match[bytes]) -> bytes:
    return _NARROW.get(match[0], b"")


def _unescape(match: re.Match[bytes]) -> bytes:
    kind = match.lastindex
    if kind is None:
        return b""
    code = int(match[kind], _DECIMAL if kind == _IN_DECIMAL else _HEXADECIMAL)
    return bytes([code]) if kind <= _AS_BYTES else chr(code).encode(errors="surrogatepass")
