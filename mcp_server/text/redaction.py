"""Masks secret values in a stream of bytes before they reach a disk or a screen. Pure."""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote, quote_plus

# Shorter values would mask ordinary words, and their encodings would match by chance.
SHORTEST_SECRET = 6
_SHORTEST_HALF = 10

# Invisible bytes that may split a value which is highlighted or printed in pieces: colours and other escape
# sequences (one may be cut off at the end), NUL, zero-width characters.
_INVISIBLE = (
    rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][0-B]"
    rb"|(?:\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*\x1b?|[()])?|\xe2[\x80\x81]?|\xef\xbb?|\xc2)\Z"
    rb"|[\x00\x0e\x0f]+|\xe2\x80[\x8b-\x8f]|\xe2\x81\xa0|\xef\xbb\xbf|\xc2\xad"
)
_NOISE = re.compile(_INVISIBLE)
_NOISE_BEGINS = (b"\x1b", b"\0", b"\x0e", b"\x0f", b"\xe2", b"\xef", b"\xad")
# base64 programs break lines after 64 or 76 digits, and some indent them.
_WRAPS = re.compile(rb"[\r\n]+[ \t]*")
_NOISE_AND_WRAPS = re.compile(_INVISIBLE + rb"|[\r\n]+[ \t]*")
# A line that ends with so many bytes of a spelling is held back until the next line.
_BEFORE_A_WRAP = 2


@dataclass(frozen=True)
class _Mask:
    """One spelling of a secret; ``wraps``: it may contain line ends."""

    spelling: bytes
    label: bytes
    wraps: bool = False

    def undecided(self, text: bytes) -> int:
        """Return the length of the longest end of ``text`` that begins the spelling and is not all of it."""
        tail = text[-(len(self.spelling) - 1) :]
        at = tail.find(self.spelling[:1])
        while at >= 0:
            if self.spelling.startswith(tail[at:]):
                return len(tail) - at
            at = tail.find(self.spelling[:1], at + 1)
        return 0


class _View:
    """Bytes without noise, and the original index of each."""

    def __init__(self, data: bytes, noise: re.Pattern[bytes] | None) -> None:
        self._ends: list[int] = []  # index in the text of each piece of noise left out ...
        self._shifts: list[int] = [0]  # ... and how many bytes were left out by then
        shift = 0
        self.text = data
        if noise is None:
            return
        for match in noise.finditer(data):
            start, end = match.span()
            self._ends.append(start - shift)
            shift += end - start
            self._shifts.append(shift)
        if shift:
            self.text = noise.sub(b"", data)

    def origin(self, index: int) -> int:
        """Return the original index of the byte at ``index`` of the text."""
        return index + self._shifts[bisect_right(self._ends, index)]


class Redactor:
    """Replaces every spelling of every secret by ``[secret:NAME]``, also across chunk borders.

    The end of a chunk that might begin a secret is held back until more output decides.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        masks: dict[bytes, _Mask] = {}
        for name, value in secrets.items():
            for mask in _masks(value, b"[secret:%s]" % name.encode()):
                masks.setdefault(mask.spelling, mask)
        self._masks = sorted(masks.values(), key=lambda mask: -len(mask.spelling))
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """Return the bytes that may be printed after ``chunk``."""
        if not self._masks:
            return chunk
        masked, self._held = self._split(self._held + chunk)
        return masked

    def flush(self) -> bytes:
        """Return the bytes held back, at the end of the stream."""
        held, self._held = self._held, b""
        return self._split(held, ended=True)[0]

    def text(self, value: str) -> str:
        """Mask one whole text."""
        return self._split(value.encode(errors="surrogateescape"), ended=True)[0].decode(errors="replace")

    def _split(self, data: bytes, *, ended: bool = False) -> tuple[bytes, bytes]:
        """Return the masked beginning of ``data`` that is decided, and the rest as it is."""
        noisy = any(begin in data for begin in _NOISE_BEGINS)
        views = {
            False: _View(data, _NOISE if noisy else None),
            True: _View(data, _NOISE_AND_WRAPS if noisy else _WRAPS),
        }
        decided = len(data)
        spans: list[tuple[int, int, bytes]] = []
        for mask in self._masks:
            view = views[mask.wraps]
            at = view.text.find(mask.spelling)
            while at >= 0:
                end = view.origin(at + len(mask.spelling) - 1) + 1
                spans.append((view.origin(at), end, mask.label))
                at = view.text.find(mask.spelling, at + len(mask.spelling))
            hold = 0 if ended else mask.undecided(view.text)
            if hold and not (mask.wraps and hold < _BEFORE_A_WRAP and data[-1:] in b"\r\n"):
                decided = min(decided, view.origin(len(view.text) - hold))
        # A secret whose end might begin another one waits with it; of two that overlap the longer names the mask.
        spans.sort(key=lambda span: (span[0], -span[1]))
        for start, end, _ in reversed(spans):
            if start < decided < end:
                decided = start
        masked, done = [], 0
        for start, end, label in spans:
            if end <= decided and end > done:
                masked += [data[done : max(start, done)], label if start >= done else b""]
                done = end
        return b"".join([*masked, data[done:decided]]), data[decided:]


def _masks(value: str, label: bytes) -> Iterator[_Mask]:
    """Yield the byte strings under which ``value`` may be printed."""
    plain = value.strip()
    raw = plain.encode(errors="surrogateescape")
    half = len(raw) // 2
    spellings = {raw, raw.hex().encode(), raw.hex().upper().encode()}
    spellings |= {text.encode(errors="surrogateescape") for text in _quoted(plain)}
    if half >= _SHORTEST_HALF:  # printed in two lines, or cut off
        spellings |= {raw[:half], raw[half:]}
    spellings |= {line for line in raw.splitlines() if len(line) >= SHORTEST_SECRET}  # e.g. a private key
    for spelling in spellings:
        yield _Mask(spelling, label)
    for offset in range(3):
        digits = _base64_digits(raw, offset)
        for spelling in {digits, digits.translate(bytes.maketrans(b"+/", b"-_"))}:
            # The second serves where a line ends after the first digit, which alone proves nothing.
            for part in (spelling, spelling[_BEFORE_A_WRAP:]):
                if len(part) >= SHORTEST_SECRET:
                    yield _Mask(part, label, wraps=True)


def _quoted(plain: str) -> Iterator[str]:
    """Yield ``plain`` as programs write it in strings, addresses, pages and shell commands."""
    raw = plain.encode(errors="surrogateescape")
    once = json.dumps(plain)[1:-1]
    yield from (once, json.dumps(plain, ensure_ascii=False)[1:-1], json.dumps(once)[1:-1])
    yield from (repr(raw)[2:-1], ascii(plain)[1:-1], html.escape(plain))
    for text in (quote(raw), quote(raw, safe=""), quote_plus(raw)):
        yield text
        yield re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), text)
    yield shlex.quote(plain).strip("'")
    yield plain.replace("'", "'\\''")
    yield re.sub(r"([$`\"\\])", r"\\\1", plain)
    yield re.sub(r"([^\w@%+=:,./-])", r"\\\1", plain)


def _base64_digits(raw: bytes, offset: int) -> bytes:
    """Return the base64 digits that ``raw`` alone decides when ``offset`` bytes (mod 3) precede it."""
    encoded = base64.b64encode(b"\0" * offset + raw)
    return encoded[-(-8 * offset // 6) : 8 * (offset + len(raw)) // 6]
