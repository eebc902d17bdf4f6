"""Reads large files in a process of its own, since Python's parsers and SQLite's rows let no other thread run.

The process keeps nothing: what it has read comes back, and later reads of what was appended need it no more.
"""

import contextlib
import gc
import json
import os
import pickle
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from mcp_server import __version__
from mcp_server.scalars.series import ScalarsUnreadable
from mcp_server.threads import stop_if_abandoned

LARGE_BYTES = 8 * 2**20  # less is read in the time that the process takes to start
_IDLE_S = 60.0
_PATIENCE_S = 20.0  # behind another read, whose disk may not answer
_LOOK_S = 0.1
_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from mcp_server.scalars import reading_process; "
T = TypeVar("T")


class ReadingProcess:
    """Calls functions in one other process, which lives for a minute after the last call. May be shared by threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
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
            if self._pipe is None and not self._start():
                return act(*arguments)
            try:
                _send(self._pipe, (act, arguments))
                is_result, answer = _receive(self._pipe)
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

    def _start(self) -> bool:
        """Return whether a new process could be started, and is not of another version that replaced the package."""
        self._pipe, theirs = Pipe()
        serve_it = f"{_START}reading_process.serve({theirs.fileno()})"
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-c", serve_it, json.dumps(sys.path)],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # so a Ctrl-C in the terminal does not reach it
                )
            if _receive(self._pipe) == __version__:
                return True
        except (OSError, EOFError):
            pass
        except BaseException:
            self._end()
            raise
        self._end()
        return False

    def _end_if_idle(self) -> None:
        if self._lock.acquire(blocking=False):
            try:
                self._end()
            finally:
                self._lock.release()

    def _end(self) -> int | None:
        """Kill the process, and return its exit status; None where it waits for a disk, and ends by itself later."""
        process, self._process = self._process, None
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pipe.close()
        if process is None:
            return None
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_LOOK_S)
        threading.Thread(target=process.wait, daemon=True).start()  # it is reaped whenever it ends
        return None


def serve(fd: int) -> None:
    """Answer the calls that come through a socket, until the server ends."""
    pipe = Connection(fd)
    threading.Thread(target=_end_with_server, args=(fd,), daemon=True).start()
    gc.disable()  # nothing stays of what is read
    _send(pipe, __version__)
    while True:
        act, arguments = _receive(pipe)
        try:
            answer: Any = True, act(*arguments)
        except Exception as error:
            answer = False, error
        _send(pipe, answer)
        del act, arguments, answer


def _end_with_server(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, 0)  # which reports the end of the other side alone
    poll.poll()
    os._exit(0)


def _send(pipe: Connection | None, value: object) -> None:
    """Write a value; its arrays are not copied."""
    assert pipe is not None  # noqa: S101 - of a process
    buffers: list[pickle.PickleBuffer] = []
    pipe.send_bytes(pickle.dumps(value, 5, buffer_callback=buffers.append))
    pipe.send(len(buffers))
    for buffer in buffers:
        pipe.send_bytes(buffer.raw())


def _receive(pipe: Connection | None) -> Any:
    """Return what ``_send`` wrote, arrays read-only. Raises CallAbandoned, or EOFError at the end of the other side."""
    assert pipe is not None  # noqa: S101 - of a process
    while not pipe.poll(_LOOK_S):
        stop_if_abandoned()
    value = pipe.recv_bytes()
    return pickle.loads(value, buffers=[pipe.recv_bytes() for _ in range(pipe.recv())])  # noqa: S301 - from this program
