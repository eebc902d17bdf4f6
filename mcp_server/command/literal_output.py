"""What programs write whose words say it: ``echo``, ``printf``, ``base64 -d``. Pure."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from itertools import cycle

_ESCAPE = re.compile(r"\\(n|t|r|\\|0?[0-7]{3}|x[0-9a-fA-F]{1,2})")
_DIRECTIVE = re.compile(r"%%|%[-\d.]*[sbdiqc]")
_NAMES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}
_DECODES = frozenset({"-d", "-D", "--decode", "-di", "-id"})
LONGEST = 64 * 1024


def write_literally(words: Sequence[str], stdin: str | None) -> str | None:
    """Return what the program writes, at most 64 Ki characters; None where that is not in its words and ``stdin``."""
    name = words[0].rpartition("/")[2] if words else ""
    text: str | None = None
    if name == "echo":
        text = _echo(words[1:])
    elif name == "printf":
        text = _print_formatted(words[1:])
    elif name == "base64" and not _DECODES.isdisjoint(words[1:]):
        text = _decode(stdin)
    elif name in ("cat", "tee", "tac") and (name == "tee" or set(words[1:]) <= {"-"}):
        text = stdin
    elif name == "rev" and stdin is not None:
        text = "\n".join(line[::-1] for line in stdin.split("\n"))
    return None if text is None else text[:LONGEST]


def _echo(arguments: Sequence[str]) -> str:
    at = 0
    while at < len(arguments) and re.fullmatch(r"-[neE]+", arguments[at]):
        at += 1
    return _resolve(" ".join(arguments[at:])) + "\n"  # sh resolves escapes, bash with -e: the text is run either way


def _print_formatted(arguments: Sequence[str]) -> str | None:
    arguments = arguments[1:] if arguments[:1] == ["--"] else arguments
    if not arguments or arguments[0] == "-v":
        return None
    form, values = _resolve(arguments[0]), list(arguments[1:])
    directives = len(_DIRECTIVE.findall(form.replace("%%", "")))
    rounds = max(1, -(-len(values) // directives)) if directives else 1
    following = cycle(values or [""])
    return _DIRECTIVE.sub(
        lambda match: "%" if match[0] == "%%" else _resolve(next(following)), form * min(rounds, LONGEST)
    )


def _decode(text: str | None) -> str | None:
    try:
        return base64.b64decode("".join((text or "").split()), validate=True).decode()
    except (binascii.Error, ValueError):
        return None


def _resolve(text: str) -> str:
    return _ESCAPE.sub(lambda match: _NAMES.get(match[1]) or _to_character(match[1]), text)


def _to_character(code: str) -> str:
    return chr(int(code[1:], 16) if code.startswith("x") else int(code, 8) & 0xFF)
