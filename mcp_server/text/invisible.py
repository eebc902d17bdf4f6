r"""The invisible part of a program's output: control characters, escape sequences, invisible characters. Pure.

The one definition for the text that agents read, without it, and for the masks of secrets, which look through it. The
order counts: control bytes, escape sequences, BEL, which may end one, and characters whose bytes the others separated.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

from mcp_server.text.regex import compile_lazily

CONTROLS = bytes(set(range(32)) - set(b"\a\b\t\n\r\x1b")) + b"\x7f"
# Every escape sequence except cursor up and down, which show what a redraw replaces. A sequence that never ends
# (a title without its BEL) loses its introducer and number, not the rest of the line.
ESCAPES = compile_lazily(
    rb"\x1b\][^\x07\x1b\n]*+(?:\x07|\x1b\\)"  # OSC: titles, hyperlinks
    rb"|\x1b\]\d{1,5};++"
    rb"|\x1b[PX^_][^\x1b\n]*+\x1b\\"  # DCS, SOS, PM, APC
    rb"|\x1b\[(?!\d{0,4}[ABEF]|[01]?G)[0-?]*+[ -/]*+[@-~]?"  # CSI: colours, erasing
    rb"|\x1b(?!\[)[ -/]*+[0-~]?"  # two characters and more: ESC ( B
)
# As a terminal takes them: strings may have lines, each sequence ends where the next begins, CAN and SUB end any, and
# a string without an end hides the rest. `ESC k` is a title.
CANCELS = b"\x18\x1a"
TERMINAL_ESCAPES = compile_lazily(
    rb"\x1b[\]PX^_k][^\x07\x18\x1a\x1b]*+(?:[\x07\x18\x1a]|\x1b\\|\x1b?\Z)?"
    rb"|\x1b\[[0-?]*+[ -/]*+[\x18\x1a@-~]?"
    rb"|\x1b(?!\[)[ -/]*+[\x18\x1a0-~]?"
    rb"|[\x18\x1a]+"
)
# C1, soft hyphen, fillers, zero-width, bidi, variation selectors, tags: invisible to people, yet read by a model.
_RANGES = (
    (0x80, 0x9F), (0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F),
    (0x200B, 0x200F), (0x2028, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0), (0xFFF0, 0xFFFB), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
)  # fmt: skip
INVISIBLE = compile_lazily("[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in _RANGES) + "]")
# No UTF-8 has lone surrogates (half an emoji, a byte of a Latin-1 name); control characters, bidirectional marks and
# tags make a reader see another text than stands there.
_UNSENDABLE = compile_lazily(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e0fff]"
)
_FIRST_BYTE, _LAST_BYTE = 0xDC80, 0xDCFF  # as `os.fsdecode` keeps a byte that is no UTF-8


def escape_unsendable(text: str) -> str:
    r"""Return ``text`` as it may leave: each character that JSON cannot carry, or nobody sees, as ``\xe9``."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSENDABLE.sub(lambda found: _escape(ord(found[0])), text)


def escape_unencodable(text: str) -> str:
    """Return ``text`` with each of its characters escaped."""
    return "".join(_escape(ord(character)) for character in text)


def _escape(code: int) -> str:
    if _FIRST_BYTE <= code <= _LAST_BYTE:
        return f"\\x{code - 0xDC00:02x}"
    return ascii(chr(code))[1:-1]


def escape_all_unsendable(value: Any) -> Any:
    """Return a JSON value with all its texts, keys included, as they may leave."""
    if isinstance(value, str):
        return escape_unsendable(value)
    if isinstance(value, dict):
        return {escape_all_unsendable(name): escape_all_unsendable(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [escape_all_unsendable(part) for part in value]
    return value


def _utf_8_patterns() -> Iterator[bytes]:
    """Yield patterns of the bytes of invisible characters, by first byte; one may be cut off at the end of the text."""
    ends: dict[bytes, list[int]] = {}
    for first, last in _RANGES:
        for code in range(first, last + 1):
            encoded = chr(code).encode()
            ends.setdefault(encoded[:-1], []).append(encoded[-1])
    for lead in sorted({beginning[:1] for beginning in ends}):
        rests = [
            re.escape(beginning[1:]) + b"[" + b"".join(b"\\x%02x" % end for end in ends[beginning]) + b"]"
            for beginning in ends
            if beginning[:1] == lead
        ]
        cuts = {beginning[1:length] for beginning in ends if beginning[:1] == lead for length in range(1, 4)}
        rests += [re.escape(cut) + rb"\Z" for cut in sorted(cuts, reverse=True)]
        yield re.escape(lead) + b"(?:" + b"|".join(rests) + b")"


@functools.cache
def invisible_utf_8() -> re.Pattern[bytes]:
    """Return the pattern of the bytes of invisible characters, compiled when a mask first needs it: that takes 6 ms."""
    return re.compile(b"|".join(_utf_8_patterns()))


FIRST_BYTES = bytes({chr(code).encode()[0] for first, last in _RANGES for code in (first, last)})
