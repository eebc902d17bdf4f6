"""Some seventy ordinary ways in which programs print a value that is secret, or a part of it."""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
import textwrap
from collections.abc import Callable
from urllib.parse import quote


def full_width(text: str) -> str:
    return text.translate({code: code + 0xFEE0 for code in range(33, 127)})


def lower_escapes(address: str) -> str:
    return re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), address)


def every_second(text: str, spell: Callable[[str], str]) -> str:
    return "".join(spell(c) if number % 2 else c for number, c in enumerate(text))


SPELLINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "upper case": str.upper,
    "lower case": str.lower,
    "swapped case": str.swapcase,
    "reversed": lambda v: v[::-1],
    "first 16": lambda v: v[:16] + "…",
    "last 16": lambda v: "…" + v[-16:],
    "thirds, a line each": lambda v: "\n".join(textwrap.wrap(v, len(v) // 3 + 1)),
    "two lines": lambda v: v[: len(v) // 2] + "\n" + v[len(v) // 2 :],
    "Python string": repr,
    "Python bytes": lambda v: repr(v.encode()),
    "list of characters": lambda v: repr(list(v)),
    "spaced": " ".join,
    "with dashes": "-".join,
    "with middle dots": "·".join,
    "with no-break spaces": "\xa0".join,
    "with ideographic spaces": "\u3000".join,
    "with replacement characters": "\ufffd".join,
    "with combining marks": "\u0332".join,
    "a character set begun at each": "\x1b(".join,
    "a colour begun at each": "\x1b[".join,
    "a character a line": "\n".join,
    "JSON": json.dumps,
    "JSON in JSON": lambda v: json.dumps(json.dumps({"k": v})),
    "shell": lambda v: shlex.quote(v + " "),
    "HTML": html.escape,
    "URL": lambda v: quote(v, safe=""),
    "full width": full_width,
    "URL in lower case": lambda v: lower_escapes(quote(v, safe="")),
    "URL twice, in lower case": lambda v: lower_escapes(quote(lower_escapes(quote(v, safe="")), safe="")),
    "%xx of every second": lambda v: every_second(v, lambda c: f"%{ord(c):02x}"),
    "\\xXX of every second": lambda v: every_second(v, lambda c: f"\\x{ord(c):02X}"),
    "&#DD; of every second": lambda v: every_second(v, lambda c: f"&#{ord(c)};"),
    "full width of every second": lambda v: every_second(v, full_width),
    "full width, upper case": lambda v: full_width(v.upper()),
    "full width, spaced": lambda v: "\u3000".join(full_width(v)),
    "full width, reversed": lambda v: full_width(v)[::-1],
    "full width, first 16": lambda v: full_width(v)[:16],
    "full width in JSON": lambda v: json.dumps(full_width(v)),
    "full width in a URL": lambda v: lower_escapes(quote(full_width(v))),
    "full width of a URL": lambda v: full_width(lower_escapes(quote(v, safe=""))),
    "full width of base64": lambda v: full_width(base64.b64encode(v.encode()).decode()),
    "URL twice": lambda v: quote(quote(v, safe=""), safe=""),
    "base64 twice": lambda v: base64.b64encode(base64.b64encode(v.encode())).decode(),
    "%XX of all": lambda v: "".join(f"%{b:02X}" for b in v.encode()),
    "%xx of all": lambda v: "".join(f"%{b:02x}" for b in v.encode()),
    "\\xXX of all": lambda v: "".join(f"\\x{b:02x}" for b in v.encode()),
    "\\uXXXX of all": lambda v: "".join(f"\\u{ord(c):04x}" for c in v),
    "\\UXXXXXXXX of all": lambda v: "".join(f"\\U{ord(c):08x}" for c in v),
    "&#DD; of all": lambda v: "".join(f"&#{ord(c)};" for c in v),
    "&#xXX; of all": lambda v: "".join(f"&#x{ord(c):x};" for c in v),
    "octal of all": lambda v: "".join(f"\\{b:03o}" for b in v.encode()),
    "list of numbers": lambda v: repr(list(v.encode())),
    "hex": lambda v: v.encode().hex(),
    "HEX": lambda v: v.encode().hex().upper(),
    "hEx": lambda v: v.encode().hex().title(),
    "hex with spaces": lambda v: v.encode().hex(" "),
    "hex with colons": lambda v: v.encode().hex(":"),
    "list of 0x": lambda v: ", ".join(map(hex, v.encode())),
    "xxd": lambda v: "\n".join(
        f"{i:08x}: {v.encode()[i : i + 16].hex(' ', 2):39}  {v[i : i + 16]}" for i in range(0, len(v), 16)
    ),
    "od -c": lambda v: "\n".join(f"{i:07o}   " + "   ".join(v[i : i + 16]) for i in range(0, len(v), 16)),
    "base64": lambda v: base64.b64encode(v.encode()).decode(),
    "base64 behind a user": lambda v: base64.b64encode(f"user:{v}".encode()).decode(),
    "base64 for URLs": lambda v: base64.urlsafe_b64encode(v.encode()).decode(),
    "base64 in lines": lambda v: "\n".join(textwrap.wrap(base64.b64encode(v.encode()).decode(), 20)),
    "base32": lambda v: base64.b32encode(v.encode()).decode(),
    "base32, lower case": lambda v: base64.b32encode(v.encode()).decode().lower(),
    "base85": lambda v: base64.b85encode(v.encode()).decode(),
    "ascii85": lambda v: base64.a85encode(v.encode()).decode(),
}
# What nobody sees between the characters of a value.
INVISIBLE = {
    "BEL": "\a",
    "ENQ": "\x05",
    "DEL": "\x7f",
    "NUL": "\0",
    "shift out and in": "\x0e\x0f",
    "C1": "\x85",
    "colour": "\x1b[35m",
    "two colours": "\x1b[0m\x1b[1;95m",
    "keypad": "\x1b=",
    "save the cursor": "\x1b7",
    "charset": "\x1b(B",
    "hyperlink": "\x1b]8;;http://x\a",
    "title": "\x1b]0;a title\x1b\\",
    "title of lines": "\x1b]0;a\ntitle\x1b\\",
    "DCS": "\x1bP1;2|q\x1b\\",
    "APC": "\x1b_Gi=1;AAAA\x1b\\",
    "PM": "\x1b^private\x1b\\",
    "SOS": "\x1bXstring\x1b\\",
    "OSC without an end": "\x1b]",
    "OSC with a number and without an end": "\x1b]8;;",
    "DCS without an end": "\x1bP",
    "a title that the next sequence ends": "\x1b]0;t\x1b[0m",
    "a title that CAN ends": "\x1b]0;t\x18",
    "a colour that SUB ends": "\x1b[3\x1a",
    "zero width": "\u200b",
    "variation selector": "\ufe0f",
    "tag": "\U000e0041",
    "soft hyphen": "\xad",
    "a control in a colour": "\x1b\x00[3\x0135m",
}
