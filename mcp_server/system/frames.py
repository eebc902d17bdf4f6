"""Frames of the channel between a server and its relay: one line of JSON, and raw bytes where the line says so."""

from __future__ import annotations

import json
import os
import select
import threading
from typing import Any, BinaryIO

_CLOSED_WITHIN_S = 1.0
_LONGEST_LINE = _MOST_BYTES = 64 * 2**20  # the other side may be hostile


class FrameWriter:
    """Writes whole frames to a descriptor. Several threads may."""

    def __init__(self, fd: int) -> None:
        self._fd, self._lock = fd, threading.Lock()

    def write(self, message: dict[str, Any], data: bytes = b"") -> None:
        """Write a frame.

        Raises:
            OSError: the reader has gone.
        """
        if data:
            message = {**message, "bytes": len(data)}
        frame = memoryview(json.dumps(message).encode() + b"\n" + data)
        with self._lock:
            while frame:
                if self._fd < 0:
                    raise BrokenPipeError
                frame = frame[os.write(self._fd, frame) :]

    def close(self) -> None:
        """Write no more: the descriptor is about to be closed, and its number may soon be another file's."""
        is_taken = self._lock.acquire(timeout=_CLOSED_WITHIN_S)
        self._fd = -1
        if is_taken:
            self._lock.release()

    def write_if_free(self, message: dict[str, Any]) -> None:
        """Write a frame of less than 4 KiB, unless that waits: another frame is under way, or the pipe is full."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            poll = select.poll()
            poll.register(self._fd, select.POLLOUT)
            if poll.poll(0):  # there is room for PIPE_BUF bytes
                os.write(self._fd, json.dumps(message).encode() + b"\n")
        except (OSError, ValueError):  # the reader has gone, which others notice
            pass
        finally:
            self._lock.release()


def read_frame(file: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """Return the next frame, or None at the end of the channel, and where the end cuts a frame off.

    Raises:
        ValueError: it is not a frame.
    """
    line = file.readline(_LONGEST_LINE)
    if not line.endswith(b"\n"):
        return None
    try:
        message = json.loads(line)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if not isinstance(message, dict):
        raise ValueError("a frame is an object")  # noqa: TRY004 - as for text that is not JSON
    count = message.get("bytes", 0)
    if not isinstance(count, int) or not 0 <= count <= _MOST_BYTES:
        raise ValueError(f"a frame has no {count!r} bytes"[:80])
    data = file.read(count) if count else b""
    return None if len(data) < count else (message, data)
