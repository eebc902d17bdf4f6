"""Names what event files hold beside scalars: histograms, images, audio, text, hyperparameters. Looks, and reads none.

Records are passed over by their lengths, and only their beginnings are read: the tag stands before the content.
"""

import os
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from mcp_server.record.curves.event_records import SCALARS, plugin_name
from mcp_server.record.curves.protobuf import BYTES, Malformed, read_varint
from mcp_server.system.files import open_regular

_HEADER = struct.Struct("<QI")  # length of a record, and its checksum; another one follows the record
_HEADER_BYTES, _FOOTER_BYTES = 12, 4
_PEEKED_BYTES, _LONGEST = 64 * 2**10, 2**32
_MOST_RECORDS, _LOOK_S = 5_000, 0.05
_SUMMARY, _VALUE, _TAG, _METADATA, _TENSOR = 5, 1, 1, 9, 8
_KINDS = {4: "images", 5: "histograms", 6: "audio"}
_FIXED = {1: 8, 5: 4}  # bytes of a field, by its type
_MOST_TAGS = 100


def list_other_data(files: Iterable[Path]) -> dict[str, list[str]]:
    """Return tags by kind, of each file as far as a look of 50 ms at all of them comes."""
    until_s = time.monotonic() + _LOOK_S
    found: dict[str, dict[str, None]] = {}
    for path in files:
        with suppress(OSError), open_regular(path) as file:
            for tag, kind in _look(file.fileno(), until_s):
                found.setdefault(kind, {})[tag] = None
    return {kind: list(tags)[:_MOST_TAGS] for kind, tags in sorted(found.items())}


def _look(fd: int, until_s: float) -> Iterator[tuple[str, str]]:
    at = 0
    for _ in range(_MOST_RECORDS):
        header = os.pread(fd, _HEADER_BYTES, at)
        if len(header) < _HEADER_BYTES or time.monotonic() > until_s:
            return
        length, _crc = _HEADER.unpack(header)
        if not 0 < length < _LONGEST:
            return  # damage: where the next record begins is unknown
        with suppress(Malformed, IndexError, UnicodeDecodeError):
            yield from _peek(os.pread(fd, min(length, _PEEKED_BYTES), at + _HEADER_BYTES))
        at += _HEADER_BYTES + length + _FOOTER_BYTES


def _peek(event: bytes) -> Iterator[tuple[str, str]]:
    """Yield tag and kind of the values in the beginning of an event, but for its scalars."""
    for field, begin, end in _fields(event, 0, len(event)):
        if field == _SUMMARY:
            for value, value_begin, value_end in _fields(event, begin, end):
                if value == _VALUE and (found := _peek_value(event, value_begin, value_end)) is not None:
                    yield found


def _peek_value(event: bytes, begin: int, end: int) -> tuple[str, str] | None:
    tag, kind = "", ""
    for field, start, stop in _fields(event, begin, end):
        if field == _TAG:
            tag = event[start:stop].decode()
        elif field == _METADATA and stop <= len(event):
            plugin = plugin_name(event[start:stop])
            kind = "" if plugin == SCALARS else plugin
        elif field in _KINDS:
            kind = kind or _KINDS[field]
    return (tag, kind) if tag and kind else None


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, begin and end of each field of bytes between two places; the last may end beyond the data."""
    while at < min(end, len(data)):
        key, at = read_varint(data, at)
        if key & 7 == BYTES:
            length, at = read_varint(data, at)
            yield key >> 3, at, at + length
            at += length
        elif key & 7 in _FIXED:
            at += _FIXED[key & 7]
        else:
            _, at = read_varint(data, at)
