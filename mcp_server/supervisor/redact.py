"""Masks secret values in a stream of bytes before they reach a disk or a screen. Pure."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote, quote_plus

# Shorter values would mask ordinary words, and their encodings would match by chance.
SHORTEST_SECRET = 6

_SHORTEST_HALF = 10

_LINE_ENDS = b"\r\n"
# So much of a spelling before a line's end makes the rest worth waiting for.
_BEFORE_A_WRAP = 2


@dataclass(frozen=True)
class _Mask:
    """One spelling of a secret. ``wrapped`` is the same with line ends in it, as base64 programs write it."""

    spelling: bytes
    label: bytes
    wrapped: re.Pattern[bytes] | None = None

    def spans(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield where the spelling stands, as (start, end)."""
        if self.wrapped is not None:
            # A line holds 64 or 76 digits, so that a wrap breaks one of these at most.
            if self.spelling[:8] in data or self.spelling[8:16] in data:
                yield from (match.span() for match in self.wrapped.finditer(data))
            return
        at = data.find(self.spelling)
        while at >= 0:
            yield at, at + len(self.spelling)
            at = data.find(self.spelling, at + 1)

    def undecided(self, data: bytes) -> int:
        """Return the length of the longest end of ``data`` that begins the spelling and is not all of it."""
        if self.wrapped is None:
            return _overlap(data[-(len(self.spelling) - 1) :], self.spelling)
        tail = data[-2 * len(self.spelling) :]
        digits = tail.translate(None, _LINE_ENDS)
        hold = _overlap(digits[-(len(self.spelling) - 1) :], self.spelling)
        if not hold or (hold < _BEFORE_A_WRAP and tail[-1:] in _LINE_ENDS):
            return 0
        start = len(tail)
        for _ in range(hold):
            start = len(tail[:start].rstrip(_LINE_ENDS)) - 1
        return len(tail) - start


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
        """Return what may be shown after ``chunk``."""
        if not self._masks:
            return chunk
        data = self._held + chunk
        decided = len(data) - max(mask.undecided(data) for mask in self._masks)
        if decided == len(data):
            self._held = b""
            return self._mask(data)
        # A secret whose end might begin another one waits with it.
        spans = sorted((span for mask in self._masks for span in mask.spans(data)), reverse=True)
        for start, end in spans:
            if start < decided < end:
                decided = start
        self._held = data[decided:]
        return self._mask(data[:decided])

    def flush(self) -> bytes:
        """Return what was held back: the stream has ended."""
        held, self._held = self._held, b""
        return self._mask(held)

    def text(self, value: str) -> str:
        """Mask one whole text."""
        return self._mask(value.encode(errors="surrogateescape")).decode(errors="replace")

    def _mask(self, data: bytes) -> bytes:
        for mask in self._masks:
            if mask.wrapped is None:
                if mask.spelling in data:
                    data = data.replace(mask.spelling, mask.label)
            else:
                for start, end in reversed(list(mask.spans(data))):
                    data = data[:start] + mask.label + data[end:]
        return data


def _overlap(tail: bytes, spelling: bytes) -> int:
    """Return the length of the longest end of ``tail`` that begins ``spelling``."""
    at = tail.find(spelling[:1])
    while at >= 0:
        if spelling.startswith(tail[at:]):
            return len(tail) - at
        at = tail.find(spelling[:1], at + 1)
    return 0


def _masks(value: str, label: bytes) -> Iterator[_Mask]:
    """Yield the byte strings under which ``value`` may be printed."""
    plain = value.strip()
    raw = plain.encode(errors="surrogateescape")
    escaped = json.dumps(plain)[1:-1], json.dumps(plain, ensure_ascii=False)[1:-1]
    spellings = {raw, raw.hex().encode(), raw.hex().upper().encode()}
    spellings |= {text.encode(errors="surrogateescape") for text in escaped}
    spellings |= {text.encode() for text in (quote(raw), quote(raw, safe=""), quote_plus(raw))}
    spellings |= {line for line in raw.splitlines() if len(line) >= SHORTEST_SECRET}  # e.g. a private key
    half = len(raw) // 2
    if half >= _SHORTEST_HALF:  # printed in two lines, or cut off
        spellings |= {raw[:half], raw[half:]}
    for spelling in spellings:
        yield _Mask(spelling, label)
    for offset in range(3):
        digits = _base64_digits(raw, offset)
        if len(digits) >= SHORTEST_SECRET:
            for spelling in {digits, digits.translate(bytes.maketrans(b"+/", b"-_"))}:
                yield _Mask(spelling, label, _wrapped(spelling))


def _wrapped(digits: bytes) -> re.Pattern[bytes]:
    """Match ``digits`` with line ends between; its first may be lost to a line before."""
    first, *rest = (re.escape(digits[i : i + 1]) for i in range(len(digits)))
    return re.compile(b"(?:" + first + b"[\r\n]*)?" + b"[\r\n]*".join(rest))


def _base64_digits(raw: bytes, offset: int) -> bytes:
    """Return the base64 digits that ``raw`` alone decides when ``offset`` bytes (mod 3) stand before it."""
    encoded = base64.b64encode(b"\0" * offset + raw)
    return encoded[-(-8 * offset // 6) : 8 * (offset + len(raw)) // 6]
