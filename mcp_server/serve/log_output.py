"""The server's log: plain lines on stderr, written by code that imports nothing and never raises.

The SDK would put a handler of rich on the root logger, which imports modules while it writes. Where no descriptor is
left, such an import fails inside of asyncio's error handling, and the exception leaves the event loop.
"""

import asyncio
import contextlib
import linecache  # noqa: F401 - a traceback needs it, and tokenize
import logging
import sys
import time
import tokenize  # noqa: F401
import traceback
from collections.abc import Hashable
from typing import Any

_REPEAT_S = 60.0
_MOST_KINDS = 200


def configure_logging() -> None:
    """Write log records to stderr as plain lines. Call it before the SDK's server is built."""
    logging.raiseExceptions = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    handler.addFilter(OncePerMinute())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    traceback.format_exception(OSError())  # what it imports at its first use is imported now


class _Repeats:
    """Which kinds of errors were written within the last minute: a caller can cause thousands of a kind a second."""

    def __init__(self) -> None:
        self._written_s: dict[Hashable, float] = {}
        self._left_out: dict[Hashable, int] = {}

    def admit(self, kind: Hashable) -> int | None:
        """Return how many errors of this kind were left out since the last written one; None: leave out this one."""
        now_s = time.monotonic()
        if now_s - self._written_s.get(kind, -_REPEAT_S) < _REPEAT_S:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return None
        if len(self._written_s) >= _MOST_KINDS:
            self._written_s.clear()
            self._left_out.clear()
        self._written_s[kind] = now_s
        return self._left_out.pop(kind, 0)


class OncePerMinute(logging.Filter):
    """Writes log records of one place and origin once a minute: their texts differ by a caller's words."""

    def __init__(self) -> None:
        super().__init__()
        self._repeats = _Repeats()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a record; it then says how many of its kind were not."""
        error = record.exc_info[1] if record.exc_info else None
        trace = error.__traceback__ if error is not None else None
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        raised = (type(error).__name__, trace.tb_frame.f_code, trace.tb_lineno) if trace is not None else None
        left_out = self._repeats.admit((record.pathname, record.lineno, raised))
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out:,} more of these since the last one)", None
        return left_out is not None


class LoopErrors:
    """The exception handler of an event loop: each kind of error is written at most once a minute."""

    def __init__(self) -> None:
        self._repeats = _Repeats()

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Write one error of the loop to stderr."""
        del loop
        with contextlib.suppress(Exception):
            error = context.get("exception")
            kind = f"{context.get('message', 'Error in the event loop')}: {type(error).__name__}"
            if self._repeats.admit(kind) is None:
                return
            if isinstance(error, OSError):  # the reason is in its words
                text = f"{kind}: {error}\n"
            else:
                text = f"{kind}\n{''.join(traceback.format_exception(error)) if error is not None else ''}"
            sys.stderr.write(f"runward: {text}")
            sys.stderr.flush()
