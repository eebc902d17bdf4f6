"""Reads large files in a process of its own, since Python's parsers and SQLite's rows let no other thread run.

The process keeps nothing: what it has read comes back, and later reads of what was appended need it no more.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, Any, TypeVar

from mcp_server import __version__
from mcp_server.scalars.series import ScalarsUnreadable
from mcp_server.threads import stop_if_abandoned

LARGE_BYTES = 8 * 2**20  # less is read in the time that the process takes to start
_IDLE_S = 60.0
_PATIENCE_S = 20.0  # behind another read, whose disk may not answer
_LOOK_S = 0.1
_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from mcp_server.scalars import reading_process; "
_MOST_AT_ONCE = 2**20
_COUNT, _LENGTH = struct.Struct("<I"), struct.Struct("<Q")
T = TypeVar("T")


class ReadingProcess:
    """Calls functions in one other process, which lives for a minute after the last call. May be shared by threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._idle: threading.Timer | None = None

    def call(self, act: Callable[..., T], *arguments: Any) -> T:
        """Return ``act(*arguments)``, called there; here where the process cannot be started, or stays busy.

        Function, arguments and result are pickled.

        Raises:
            ScalarsUnreadable: it died meanwhile.
            CallAbandoned: nobody waits for the result any more. The process is killed.
            Exception: the function raised it.
        """
        give_up_s = time.monotonic() + _PATIENCE_S
        while not self._lock.acquire(timeout=_LOOK_S):
            stop_if_abandoned()
            if time.monotonic() > give_up_s:
                return act(*arguments)
        try:
            if self._idle is not None:
                self._idle.cancel()
            process = self._process or self._start()
            if process is None:
                return act(*arguments)
            self._process = process
            try:
                _send(process.stdin, (act, arguments))
                is_result, answer = _receive(process)
            except (OSError, EOFError) as error:
                status = self._end()
                raise ScalarsUnreadable(
                    f"The process that read it ended ({status}): its memory may be used up."
                ) from error
            except BaseException:
                self._end()
                raise
            self._idle = threading.Timer(_IDLE_S, self._end_if_idle)
            self._idle.daemon = True
            self._idle.start()
        finally:
            self._lock.release()
        if is_result:
            return answer  # type: ignore[no-any-return]
        raise answer

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _start(self) -> subprocess.Popen[bytes] | None:
        """Return a new process; None where none can be started, or the package was replaced by another version."""
        words = [sys.executable, "-I", "-c", f"{_START}reading_process.serve()", json.dumps(sys.path)]
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # so a Ctrl-C in the terminal does not reach it
            )
        except OSError:
            return None
        self._process = process
        try:
            if _receive(process) == __version__:
                return process
        except (OSError, EOFError):
            pass
        except BaseException:
            self._end()
            raise
        self._end()
        return None

    def _end_if_idle(self) -> None:
        if self._lock.acquire(blocking=False):
            try:
                self._end()
            finally:
                self._lock.release()

    def _end(self) -> int | None:
        """Kill the process, and return its exit status; None where it waits for a disk, and ends by itself later."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.kill()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr] # both are pipes
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_LOOK_S)
        return None


def serve() -> None:
    """Answer calls until the server ends. What a library prints does not reach the answers."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    threading.Thread(target=_end_with_server, daemon=True).start()
    gc.disable()  # nothing stays of what is read
    _send(answers, __version__)
    while True:
        act, arguments = _read(lambda size: os.read(0, size))
        try:
            answer: Any = True, act(*arguments)
        except Exception as error:
            answer = False, error
        _send(answers, answer)
        del act, arguments, answer


def _end_with_server() -> None:
    poll = select.poll()
    poll.register(0, 0)  # which reports the end of the other side alone
    poll.poll()
    os._exit(0)


def _send(file: IO[bytes] | None, value: object) -> None:
    assert file is not None  # noqa: S101 - a pipe
    buffers: list[pickle.PickleBuffer] = []
    parts = [memoryview(pickle.dumps(value, 5, buffer_callback=buffers.append)), *(one.raw() for one in buffers)]
    file.write(_COUNT.pack(len(parts)) + b"".join(_LENGTH.pack(len(part)) for part in parts))
    for part in parts:
        file.write(part)
    file.flush()


def _receive(process: subprocess.Popen[bytes]) -> Any:
    """Return what the process sends next. Raises CallAbandoned, or EOFError where the process has ended."""
    assert process.stdout is not None  # noqa: S101 - a pipe
    fd, poll = process.stdout.fileno(), select.poll()
    poll.register(fd, select.POLLIN)

    def read(size: int) -> bytes:
        while not poll.poll(_LOOK_S * 1000):
            stop_if_abandoned()
        return os.read(fd, size)

    return _read(read)


def _read(read: Callable[[int], bytes]) -> Any:
    """Return the value that ``_send`` wrote; its arrays cannot be changed."""

    def read_all(size: int) -> memoryview:
        data = memoryview(bytearray(size))
        done = 0
        while done < size:
            if not (part := read(min(size - done, _MOST_AT_ONCE))):
                raise EOFError
            data[done : done + len(part)] = part
            done += len(part)
        return data.toreadonly()

    (count,) = _COUNT.unpack(read_all(_COUNT.size))
    lengths = _LENGTH.iter_unpack(read_all(count * _LENGTH.size))
    first, *buffers = [read_all(length) for (length,) in lengths]
    return pickle.loads(first, buffers=buffers)  # noqa: S301 - from this program
