"""Masks secret values in a stream of bytes before they reach a disk or a screen. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from urllib.parse import quote, quote_plus

# Shorter values would mask ordinary words, and their encodings would match by chance.
SHORTEST_SECRET = 6

# `base64` wraps at 76 characters, `openssl base64` at 64.
_WRAPS = (76, 64)


class Redactor:
    """Replaces every spelling of every secret by ``[secret:NAME]``, also across chunk borders.

    The end of a chunk that might begin a secret is held back until more output decides.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        spellings = {s: name for name, value in secrets.items() for s in _spellings(value)}
        self._masks = [
            (spelling, b"[secret:%s]" % name.encode())
            for spelling, name in sorted(spellings.items(), key=lambda item: -len(item[0]))
        ]
        self._longest = max((len(spelling) for spelling, _ in self._masks), default=0)
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """Return what may be shown after ``chunk``."""
        if not self._masks:
            return chunk
        data = self._mask(self._held + chunk)
        hold = self._undecided(data)
        self._held = data[len(data) - hold :]
        return data[: len(data) - hold]

    def flush(self) -> bytes:
        """Return what was held back: the stream has ended."""
        held, self._held = self._held, b""
        return held

    def text(self, value: str) -> str:
        """Mask one whole text."""
        return self._mask(value.encode(errors="surrogateescape")).decode(errors="replace")

    def _mask(self, data: bytes) -> bytes:
        for spelling, label in self._masks:
            if spelling in data:
                data = data.replace(spelling, label)
        return data

    def _undecided(self, data: bytes) -> int:
        """Length of the longest end of ``data`` that begins a spelling."""
        tail = data[-(self._longest - 1) :]
        best = 0
        for spelling, _ in self._masks:
            at = tail.find(spelling[:1])
            while at >= 0 and len(tail) - at > best:
                if spelling.startswith(tail[at:]):
                    best = len(tail) - at
                    break
                at = tail.find(spelling[:1], at + 1)
        return best


def _spellings(value: str) -> Iterator[bytes]:
    """Yield the byte strings under which ``value`` may be printed."""
    plain = value.strip()
    for text in {
        value,
        plain,
        quote(plain),
        quote(plain, safe=""),
        quote_plus(plain),
        json.dumps(plain)[1:-1],
    }:
        yield text.encode()
    for line in plain.splitlines():  # e.g. a private key
        if len(line) >= SHORTEST_SECRET:
            yield line.encode()
    raw = plain.encode()
    yield raw.hex().encode()
    yield raw.hex().upper().encode()
    for offset in range(3):
        core = _base64_core(raw, offset)
        if len(core) >= SHORTEST_SECRET:
            yield core
            yield core.translate(bytes.maketrans(b"+/", b"-_"))
        if offset == 0:
            for width in _WRAPS:
                if len(core) > width:
                    yield b"\n".join(core[i : i + width] for i in range(0, len(core), width))


def _base64_core(raw: bytes, offset: int) -> bytes:
    """Return the base64 digits that ``raw`` alone decides when ``offset`` bytes (mod 3) stand before it."""
    encoded = base64.b64encode(b"\0" * offset + raw)
    return encoded[-(-8 * offset // 6) : 8 * (offset + len(raw)) // 6]
