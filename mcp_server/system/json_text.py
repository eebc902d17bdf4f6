"""Reads one long text out of a JSON object piece by piece, as it comes, without ever holding all of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

# Whole characters of a JSON string. The two halves of one beyond the basic plane stay together.
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_WHOLE = re.compile(
    rf'(?:[^"\\]+|\\["\\/bfnrt]|{_HIGH}{_LOW}|{_HIGH}(?=[^\\]|\\[^u]|\\u(?![dD][c-fC-F])[0-9a-fA-F]{{4}})'
    rf"|\\u(?![dD][89abAB])[0-9a-fA-F]{{4}})*"
)
_LONGEST_CHARACTER = 12  # two escapes
_LONGEST_HEAD = 4096


def read_json_text(pieces: Iterable[str], name: str) -> Iterator[str]:
    """Yield the parts of the text that the first member of an object, ``name``, holds; nothing where it is null.

    Raises:
        ValueError: the pieces are not such an object, or end within it.
    """
    begin = re.compile(rf'\s*\{{\s*"{re.escape(name)}"\s*:\s*(?P<value>"|null)')
    buffer, is_inside = "", False
    for piece in pieces:
        buffer += piece
        if not is_inside:
            if (match := begin.match(buffer)) is None:
                if len(buffer) > _LONGEST_HEAD:
                    break
                continue
            if match["value"] == "null":
                return
            buffer, is_inside = buffer[match.end() :], True
        whole = _WHOLE.match(buffer)
        end = whole.end() if whole else 0
        if end:
            yield str(json.loads(f'"{buffer[:end]}"', strict=False))
        buffer = buffer[end:]
        if buffer.startswith('"'):
            return
        if len(buffer) >= _LONGEST_CHARACTER:
            break
    raise ValueError(f"not an object with a text {name!r}, or not all of it")
