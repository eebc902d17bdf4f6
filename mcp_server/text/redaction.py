"""Masks secret values in a stream of bytes before they reach a disk or a screen. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress

from mcp_server.text.invisible import CANCELS, CONTROLS, ESCAPES, FIRST_BYTES, TERMINAL_ESCAPES, invisible_utf_8
from mcp_server.text.regex import compile_lazily
from mcp_server.text.secret_spellings import PLAIN, VIEWS, WRAPPED, Spelling, View, list_spellings

# Each with the bytes without which there is none of it. The last is printed and erased, or printed twice for bold.
_CONTROL_RUNS = (compile_lazily(b"[" + re.escape(CONTROLS) + b"]+"), CONTROLS)
_NOT_CANCELS = CONTROLS.translate(None, CANCELS)
_CONTROLS_IN_A_TERMINAL = (compile_lazily(b"[" + re.escape(_NOT_CANCELS) + b"]+"), _NOT_CANCELS)
_BELLS = (compile_lazily(b"\a+"), b"\a")
_ERASED = (compile_lazily(rb"[^\x08\n]\x08|\x08+"), b"\b")
_BACKSPACES = (compile_lazily(rb"\x08+"), b"\b")
_MAY_HIDE = CONTROLS + b"\a\b\x1b" + FIRST_BYTES
# A line that ends with so many base64 digits of a spelling is held back until the next line.
_BEFORE_A_WRAP = 2
# Bytes held back at most: this much noise, and each byte of the longest value as `0x68, `.
_MOST_NOISE, _BYTES_OF_ONE = 4_096, 6
# Bytes already passed on in which a spelling of digits or letters may have begun.
_REMEMBERED = 64


class _Layer:
    """A text without what is invisible in it, and the original index of each byte, which is seldom asked for."""

    def __init__(
        self, data: bytes, escapes: re.Pattern[bytes] | None = None, erased: tuple[re.Pattern[bytes], bytes] = _ERASED
    ) -> None:
        self._steps: list[tuple[bytes, re.Pattern[bytes]]] = []
        self._shifts: list[tuple[list[int], list[int]]] | None = None
        self._decoded: list[Decoded] = []
        self.text = data
        if escapes is None:
            return
        characters = (invisible_utf_8(), FIRST_BYTES)
        controls = _CONTROLS_IN_A_TERMINAL if escapes is TERMINAL_ESCAPES else _CONTROL_RUNS
        for noise, signs in (controls, (escapes, b"\x1b" + CANCELS), _BELLS, characters, erased):
            visible = noise.sub(b"", self.text) if _has_any(self.text, signs) else self.text
            if len(visible) < len(self.text):
                self._steps.append((self.text, noise))
                self.text = visible

    def decode(self) -> bool:
        self._decoded = list(decode_escapes(self.text))
        if self._decoded:
            self.text = self._decoded[-1].text
        return bool(self._decoded)

    def origin(self, index: int, *, last: bool = False) -> int:
        """Return the original index of the first byte, or of the ``last`` one, of what is at ``index`` of the text."""
        for step in reversed(self._decoded):
            begin, end = step.span(index)
            index = end - 1 if last else begin
        if self._shifts is None:
            self._shifts = [_shifts(text, noise) for text, noise in reversed(self._steps)]
        for ends, shifts in self._shifts:
            index += shifts[bisect_right(ends, index)]
        return index


def _shifts(text: bytes, noise: re.Pattern[bytes]) -> tuple[list[int], list[int]]:
    """Return the index in the shown text of each piece of noise, and how many bytes were left out before and by it."""
    ends, shifts, shift = [], [0], 0
    for match in noise.finditer(text):
        start, end = match.span()
        ends.append(start - shift)
        shift += end - start
        shifts.append(shift)
    return ends, shifts


def _has_any(text: bytes, signs: bytes) -> bool:
    return len(text.translate(None, signs)) < len(text)


def _peel(data: bytes) -> Iterator[_Layer]:
    """Yield ``data`` as it is, as an agent reads it, and as a terminal shows it."""
    yield _Layer(data)
    if _has_any(data, _MAY_HIDE):
        yield _Layer(data, ESCAPES)
        if b"\b" in data:  # a diagnosis reads all that was printed
            yield _Layer(data, ESCAPES, _BACKSPACES)
        if b"\x1b" in data:
            yield _Layer(data, TERMINAL_ESCAPES)


class _Fold:
    def __init__(self, layer: _Layer, view: View) -> None:
        self._layer, self._view = layer, view
        self._places: list[int] | None = None
        self.text = view.fold(layer.text)

    def origin(self, index: int, *, last: bool = False) -> int:
        if not self._view.left_out:
            return self._layer.origin(index, last=last)
        if self._places is None:
            kept = bytes(code not in self._view.left_out for code in range(256))
            text = self._layer.text
            self._places = list(compress(range(len(text)), text.translate(kept)))
        return self._layer.origin(self._places[index], last=last)


class Redactor:
    """Replaces every spelling of every secret by ``[secret:NAME]``, also across chunk borders.

    The end of a chunk that might begin a secret is held back until more output decides, at most some KB. The time
    for a chunk depends on its length alone.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        labels: dict[Spelling, bytes] = {}
        for name, value in secrets.items():
            for spelling in list_spellings(value):
                if spelling.text:
                    labels.setdefault(spelling, b"[secret:%s]" % name.encode())
        self._labels = labels
        self._spellings = {view: [s for s in labels if s.view is view] for view in VIEWS}
        longest = max((len(value.encode(errors="surrogateescape")) for value in secrets.values()), default=0)
        self._most_held = _MOST_NOISE + _BYTES_OF_ONE * longest
        self._waiting = b""
        self._passed = b""  # the last bytes that were returned, unmasked

    def feed(self, chunk: bytes) -> bytes:
        """Return the bytes that may be printed after ``chunk``."""
        if not self._labels:
            return chunk
        data = self._waiting + chunk
        masked, decided = self._mask(self._passed, data, ended=False)
        self._passed, self._waiting = (self._passed + data[:decided])[-_REMEMBERED:], data[decided:]
        return masked

    def flush(self) -> bytes:
        """Return the bytes held back, at the end of the stream."""
        masked, _ = self._mask(self._passed, self._waiting, ended=True)
        self._passed = self._waiting = b""
        return masked

    def text(self, value: str) -> str:
        """Mask one whole text."""
        return self._mask(b"", value.encode(errors="surrogateescape"), ended=True)[0].decode(errors="replace")

    def finds(self, value: str) -> bool:
        """Return whether a text holds a spelling of a secret."""
        return next(self._find(b"", value.encode(errors="surrogateescape")), None) is not None

    def _mask(self, passed: bytes, data: bytes, *, ended: bool) -> tuple[bytes, int]:
        spans = sorted(self._find(passed, data), key=lambda span: (span[0], -span[1]))
        decided = len(data) if ended else len(data) - self._undecided(passed, data)
        # A secret whose end might begin another one waits with it; of two that overlap the longer names the mask.
        for start, end, _ in reversed(spans):
            if start < decided < end:
                decided = start
        masked, done = [], 0
        for start, end, label in spans:
            if done < end <= decided:
                masked += [data[done : max(start, done)], label if start >= done else b""]
                done = end
        return b"".join([*masked, data[done:decided]]), decided

    def _find(self, passed: bytes, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield begin, end and mask of each spelling in ``data``, or in it and what was passed on before."""
        for before, fold, spellings in self._folds(passed, data):
            for spelling in spellings:
                for start, end in spelling.find(fold.text):
                    last = fold.origin(end - 1, last=True) + 1 - before
                    if last > 0:
                        yield max(fold.origin(start) - before, 0), last, self._labels[spelling]

    def _undecided(self, passed: bytes, data: bytes) -> int:
        """Return how many bytes at the end of ``data`` might begin a spelling."""
        tail = data[-self._most_held :]
        ends_a_line = data[-1:] in (b"\r", b"\n")
        held = 0
        for before, fold, spellings in self._folds(passed if len(tail) == len(data) else b"", tail):
            longest = max((spelling.undecided(fold.text) for spelling in spellings), default=0)
            view = spellings[0].view
            if longest < view.shortest_hold or (view is WRAPPED and longest < _BEFORE_A_WRAP and ends_a_line):
                continue
            held = max(held, before + len(tail) - fold.origin(len(fold.text) - longest))
        return min(held, len(tail))

    def _folds(self, passed: bytes, data: bytes) -> Iterator[tuple[int, _Fold, Sequence[Spelling]]]:
        """Yield the views of ``data``, with the number of bytes in them that were passed on before it."""
        plain = list(_peel(data))
        others = list(_peel(passed + data)) if passed else plain
        # With what was passed on: of the first character of a spelling its escape may have been cut off.
        decoded = [layer for layer in _peel(passed + data) if layer.decode()]
        for view, spellings in self._spellings.items():
            for layer in (plain if view is PLAIN else others) if spellings else ():
                yield (0 if view is PLAIN else len(passed)), _Fold(layer, view), spellings
            for layer in decoded if spellings else ():
                yield len(passed), _Fold(layer, view), spellings


# --- characters written as something else: `%2f`, `%252F`, `\x2f`, `\u002f`, `&#47;`, full width. A program may write
# some of a text's characters so and leave the others, so that no spelling of the whole text is met.

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
