"""The spellings under which programs print a secret value, and the views of output in which they are searched. Pure."""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote, quote_plus

from mcp_server.text.regex import compile_lazily

# Shorter values would mask ordinary words, and their encodings would match by chance.
SHORTEST_SECRET = 6
_SHORTEST_HALF = 10
_SHORTEST_FOLDED = 12  # characters of a value whose case and separators do not count
# A part of so many characters is masked. Each has an anchor of 5 that begins at a multiple of 4 of the value.
SHORTEST_PART = 8
_ANCHOR, _ANCHOR_STEP, _LONGEST_IN_PARTS = 5, 4, 128
# Between small letters, capitals and digits: no word and no number has two. A key has one in every four characters.
_FEWEST_CHANGES, _LONGEST_WITHOUT_CHANGE = 2, 4
_CHANGE = compile_lazily(rb"[a-z](?=[A-Z0-9])|[A-Z](?=[a-z0-9])|[0-9](?=[A-Za-z])")
# As input methods and normalised East Asian text write ASCII.
_FULL_WIDTH = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}


@dataclass(frozen=True)
class View:
    """The rest of a text in which a kind of spelling is searched: bytes left out, and letters in lower case.

    An end of at least ``shortest_hold`` bytes that may begin a spelling waits for more.
    """

    left_out: bytes
    lower: bool
    shortest_hold: int

    @property
    def table(self) -> bytes:
        """The translation of the bytes that remain."""
        return bytes(range(256)).lower() if self.lower else bytes(range(256))

    def fold(self, text: bytes) -> bytes:
        """Return what remains of ``text``."""
        return text.translate(self.table, self.left_out) if self.left_out else text


_SPACE = b" \t\r\n"
# What is not ASCII separates: dots, ideographic and no-break spaces, combining marks, bytes that are no text.
_NOT_LETTERS = bytes(code for code in range(256) if not (code < 128 and chr(code).isalnum()) and code not in b"\a\b")  # noqa: PLR2004 - ASCII
PLAIN = View(b"", lower=False, shortest_hold=1)
# base64 programs break lines after 64 or 76 digits, and some indent them.
WRAPPED = View(_SPACE + b"'\"\\", lower=False, shortest_hold=1)
# Digits of bytes, whatever is before each (%, \x, 0x, \u, &#x) and between them.
DIGITS = View(_NOT_LETTERS + b"xXuU", lower=True, shortest_hold=6)
# Lists of characters, spaced out, other case.
LETTERS = View(_NOT_LETTERS, lower=True, shortest_hold=4)
# Parts as they are; the first two letters of one are passed on.
PARTS = View(b"", lower=False, shortest_hold=3)
VIEWS = (PLAIN, WRAPPED, DIGITS, LETTERS, PARTS)


@dataclass(frozen=True)
class Spelling:
    """Bytes that a value has in a view."""

    view: View
    text: bytes

    def undecided(self, text: bytes) -> int:
        """Return the length of the longest end of ``text`` that begins the spelling and is not all of it."""
        tail = text[-(len(self.text) - 1) :]
        at = tail.find(self.text[:1])
        while at >= 0:
            if self.text.startswith(tail[at:]):
                return len(tail) - at
            at = tail.find(self.text[:1], at + 1)
        return 0

    def find(self, text: bytes) -> Iterator[tuple[int, int]]:
        """Yield where the spelling begins and ends in ``text``."""
        end = 0
        while (start := text.find(self.text, end)) >= 0:
            end = start + len(self.text)
            yield start, end


@dataclass(frozen=True)
class Part(Spelling):
    """An anchor, by which parts of ``whole`` around ``offset`` are found. ``digits``: bytes that spell a character."""

    whole: bytes
    offset: int
    digits: int = 1
    is_key: bool = False

    def undecided(self, text: bytes) -> int:
        """Return the length of the end of ``text`` with which a part may begin: the first anchor answers for all."""
        if self.offset:
            return 0
        most = min(len(text), len(self.whole))
        sizes = range(self.view.shortest_hold, most + 1)
        return next((size for size in sizes if text[-size:] not in self.whole), most + 1) - 1

    def find(self, text: bytes) -> Iterator[tuple[int, int]]:
        """Yield where parts begin and end in ``text``, as far as the whole reaches."""
        for anchor, _ in super().find(text):
            start, begin = anchor, self.offset
            while begin and start and text[start - 1] == self.whole[begin - 1]:
                start, begin = start - 1, begin - 1
            end, at = anchor + len(self.text), self.offset + len(self.text)
            while at < len(self.whole) and end < len(text) and text[end] == self.whole[at]:
                end, at = end + 1, at + 1
            if at - begin >= SHORTEST_PART * self.digits and (self.is_key or self._is_mixed(begin, at)):
                yield start, end

    def _is_mixed(self, begin: int, end: int) -> bool:
        part = self.whole[begin:end]
        if self.digits > 1:
            part = bytes.fromhex(self.whole[begin + begin % 2 : end - end % 2].decode())
        return _count_changes(part) >= _FEWEST_CHANGES


def list_spellings(value: str) -> Iterator[Spelling]:
    """Yield the spellings of ``value``. Some occur more than once."""
    plain = value.strip()
    raw = plain.encode(errors="surrogateescape")
    for text in {raw, *_list_plain(plain, raw)}:
        yield Spelling(PLAIN, text)
    for text in (*_list_base64(raw), *_list_base64(base64.b64encode(raw))):  # or twice
        yield Spelling(WRAPPED, text)
    if len(raw) >= SHORTEST_SECRET:
        for text in _list_digits(raw):
            yield Spelling(DIGITS, text)
    letters, in_address = LETTERS.fold(raw), LETTERS.fold(quote(raw, safe="").encode())
    if len(in_address) >= _SHORTEST_FOLDED:
        yield Spelling(LETTERS, in_address)
    if len(letters) >= _SHORTEST_FOLDED:
        for text in (letters, letters[::-1]):
            yield Spelling(LETTERS, text)
        for text in _list_base32(raw):
            yield Spelling(LETTERS, LETTERS.fold(text))
    if _SHORTEST_FOLDED <= len(raw) <= _LONGEST_IN_PARTS:
        yield from _list_parts(raw, letters)


def _list_plain(plain: str, raw: bytes) -> Iterator[bytes]:
    yield from (text.encode(errors="surrogateescape") for text in _list_quoted(plain))
    yield from (raw.hex().encode(), raw.hex().upper().encode())
    half = len(raw) // 2
    if half >= _SHORTEST_HALF:  # printed in two lines, or cut off
        yield from (raw[:half], raw[half:])
    yield from (line for line in raw.splitlines() if len(line) >= SHORTEST_SECRET)  # e.g. a private key
    if len(raw) >= _SHORTEST_FOLDED:
        yield from (base64.b85encode(raw), base64.a85encode(raw))


def _list_quoted(plain: str) -> Iterator[str]:
    from html import escape  # noqa: PLC0415 - 1 ms and 0.4 MB; few runs have secrets

    raw = plain.encode(errors="surrogateescape")
    once = json.dumps(plain)[1:-1]
    yield from (once, json.dumps(plain, ensure_ascii=False)[1:-1], json.dumps(once)[1:-1])
    yield from (repr(raw)[2:-1], ascii(plain)[1:-1], escape(plain))
    for text in (quote(raw), quote(raw, safe=""), quote_plus(raw), quote(quote(raw, safe=""), safe="")):
        yield text
        yield re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), text)
    yield plain.translate(_FULL_WIDTH)
    yield shlex.quote(plain).strip("'")
    yield plain.replace("'", "'\\''")
    yield re.sub(r"([$`\"\\])", r"\\\1", plain)
    yield re.sub(r"([^\w@%+=:,./-])", r"\\\1", plain)


def _list_base64(raw: bytes) -> Iterator[bytes]:
    """Yield the base64 digits that ``raw`` alone decides, whatever number of bytes precedes it."""
    for offset in range(3):
        encoded = base64.b64encode(b"\0" * offset + raw)
        digits = encoded[-(-8 * offset // 6) : 8 * (offset + len(raw)) // 6]
        for spelling in (digits, digits.translate(bytes.maketrans(b"+/", b"-_"))):
            if len(spelling) >= SHORTEST_SECRET:
                yield spelling


def _list_base32(raw: bytes) -> Iterator[bytes]:
    for offset in range(5):
        encoded = base64.b32encode(b"\0" * offset + raw)
        yield encoded[-(-8 * offset // 5) : 8 * (offset + len(raw)) // 5]


def _list_digits(raw: bytes) -> Iterator[bytes]:
    r"""Yield the digits of the bytes: hexadecimal with the zeros of `0x`, `\u00` and `\U000000`, decimal, octal."""
    for form in ("%02x", "0%02x", "00%02x", "000000%02x", "%d", "%03d", "%o", "%03o"):
        yield "".join(form % code for code in raw).encode()


def _list_parts(raw: bytes, letters: bytes) -> Iterator[Part]:
    """Yield the anchors by which a part of a key is recognised; a part that is words or a number is not one."""
    for view, whole, digits in ((LETTERS, letters, 1), (PARTS, raw, 1), (DIGITS, raw.hex().encode(), 2)):
        changes = _count_changes(raw if digits > 1 else whole)
        if changes < _FEWEST_CHANGES:
            continue
        is_key = changes * _LONGEST_WITHOUT_CHANGE * digits >= len(whole)
        for offset in range(0, len(whole) - _ANCHOR * digits + 1, _ANCHOR_STEP * digits):
            yield Part(view, whole[offset : offset + _ANCHOR * digits], whole, offset, digits, is_key)


def _count_changes(text: bytes) -> int:
    return len(_CHANGE.findall(text))
