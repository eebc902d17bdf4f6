"""Reads the events of a run again and again: each time only what was added, and of a huge file only both ends."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from mcp_server.record.events import Event, parse_events
from mcp_server.system.files import is_absent, open_regular

# 4 MiB hold about 15,000 events and take half a second to parse. A supervisor writes far fewer; a command that writes
# to its own record may write any number.
_END_BYTES = 2 * 2**20
_MARK_BYTES = 64  # before the offset: they are other ones if the file was replaced in place


@dataclass(frozen=True)
class EventsRead:
    """The events of a file up to ``offset``. ``kept_bytes``: of the lines that they were read from."""

    events: tuple[Event, ...] = ()
    inode: int = 0
    offset: int = 0
    mark: bytes = b""
    kept_bytes: int = 0


def read_new_events(path: Path, earlier: EventsRead | None = None, *, end_bytes: int | None = None) -> EventsRead:
    """Return the events of a file as it is now. ``earlier`` is the result of a former call, whose events are kept.

    An incomplete last line is left for later. Where there are more than twice ``end_bytes`` (by default 2 MiB), as
    many at each end are read.

    Raises:
        OSError: the file is there, and cannot be read now.
    """
    end_bytes = end_bytes or _END_BYTES
    try:
        file = open_regular(path)
    except OSError as error:
        if is_absent(error):
            return EventsRead()
        raise
    with file:
        fd = file.fileno()
        status = os.fstat(fd)
        size = status.st_size
        if (
            earlier is None
            or earlier.inode != status.st_ino
            or size < earlier.offset
            or earlier.kept_bytes + size - earlier.offset > 3 * end_bytes
            or os.pread(fd, len(earlier.mark), earlier.offset - len(earlier.mark)) != earlier.mark
        ):
            return _read_all(fd, status, end_bytes)
        if size == earlier.offset:
            return earlier
        lines = _whole_lines(os.pread(fd, size - earlier.offset, earlier.offset))
        return _extend(earlier, lines, status.st_ino, earlier.offset + len(lines))


def _read_all(fd: int, status: os.stat_result, end_bytes: int) -> EventsRead:
    size = status.st_size
    if size <= 2 * end_bytes:
        lines = _whole_lines(os.pread(fd, size, 0))
        return _extend(EventsRead(), lines, status.st_ino, len(lines))
    head = _extend(EventsRead(), _whole_lines(os.pread(fd, end_bytes, 0)), status.st_ino, 0)
    tail = _whole_lines(os.pread(fd, end_bytes, size - end_bytes))
    end = size - end_bytes + len(tail)
    return _extend(head, tail.partition(b"\n")[2], status.st_ino, end)


def _extend(earlier: EventsRead, lines: bytes, inode: int, offset: int) -> EventsRead:
    events = (*earlier.events, *parse_events(lines))
    mark = (earlier.mark + lines)[-_MARK_BYTES:]
    return EventsRead(events, inode, offset, mark, earlier.kept_bytes + len(lines))


def _whole_lines(data: bytes) -> bytes:
    return data[: data.rfind(b"\n") + 1]
