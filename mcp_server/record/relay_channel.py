"""The channel between a server and the relay of a far host: the table of requests, and frames. Both ends import it.

A frame is one line of JSON, and raw bytes where the line says so.
"""

from __future__ import annotations

import json
import os
import select
import threading
from typing import Any, BinaryIO, NamedTuple

MOST_CONTENT_BYTES = 8 * 2**20  # of a file, in one answer
_CLOSED_WITHIN_S = 1.0
_LONGEST_LINE = _MOST_BYTES = 64 * 2**20  # the other side may be hostile
_CODE = "name hash sync files sent commit clone origin of repository pack_bytes token"


class RelayRequest(NamedTuple):
    """A request: the words that it may say.

    ``finishes``: it is carried out although nobody hears the answer. ``most_bytes``: its answer brings compressed
    bytes, unpacked at most so many.
    """

    words: frozenset[str]
    finishes: bool = False
    most_bytes: int = 0


def _ask(words: str = "", *, finishes: bool = False, most_bytes: int = 0) -> RelayRequest:
    return RelayRequest(frozenset(words.split()), finishes, most_bytes)


REQUESTS = {
    "ping": _ask(),  # shows that the channel works
    "subscribe": _ask("have dead"),  # pushes all runs from now on
    # Of launches: at most once for a run id.
    "launch": _ask("spec handover options", finishes=True),
    "launch_array": _ask("runs options name most_at_once", finishes=True),  # as one array of jobs
    "preview_job": _ask("run options"),  # the batch script, and Slurm's estimate of its start
    "preview_array": _ask("name count options most_at_once"),
    "withdraw": _ask("run"),  # a run which is not there is never started
    "discard": _ask("run", finishes=True),  # directory and session of a refused launch
    # Of runs.
    "stop_request": _ask("run request", finishes=True),  # writes it, or withdraws it
    "interrupt": _ask("run", finishes=True),  # a living supervisor reads its stop request; says whether it reached it
    "reap": _ask("run", finishes=True),  # stops all processes of a run whose supervisor is dead or stuck, and verifies
    "leftovers": _ask("run"),  # the processes that a run left behind when its supervisor died
    "screen": _ask("run history"),  # the lines of its pane, of a run without tmux the end of its log
    "close_screens": _ask("ended"),  # the sessions of these runs
    "sessions": _ask("socket"),  # those of a tmux server
    # Of files. A path is absolute or below the state directory.
    "read": _ask("path offset count", most_bytes=MOST_CONTENT_BYTES),
    "files": _ask("patterns"),  # size, time and inode of the regular files that match
    "paths": _ask("paths"),  # what is there: ``directory``, ``file``, ``missing`` with near names, or ``unknown``
    "trees": _ask("roots"),  # the files below some directories
    "contents": _ask("paths", most_bytes=2 * MOST_CONTENT_BYTES),  # of small files
    "write_documents": _ask("directory files"),  # into a result directory
    "disk": _ask("path"),  # free bytes on the disk of a directory
    # Of code: where a content is or would be, and what is missing for it; a part of an upload; make its directory.
    "code_look": _ask(_CODE),
    "code_put": _ask("token offset"),
    "code_make": _ask(_CODE),
    "code_restore": _ask("run attempt name dry_run"),  # the code of an attempt in a new directory of this name
    # Of the code of a trial: notes what its protected files are; says which are others now; removes it.
    "code_guard": _ask("cwd base protect clone"),
    "code_changes": _ask("cwd"),
    "code_remove": _ask("cwd", finishes=True),
    # Of the host.
    "gpus": _ask("env near query since_s python"),  # with the holders of leases of them and of its cpu slots
    "free_port": _ask("low high"),
    "check": _ask("python imports env cwd ports ray"),  # as preflight does; nothing that is named is started
}


class FrameWriter:
    """Writes whole frames to a descriptor. Several threads may."""

    def __init__(self, fd: int) -> None:
        self._fd, self._lock = fd, threading.Lock()

    def write(self, message: dict[str, Any], data: bytes = b"") -> None:
        """Write a frame; OSError where the reader has gone."""
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
    """Return the next frame, or None at the end of the channel, also within a frame; other bytes are a ValueError."""
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
