"""The server's log: plain lines on stderr, written by code that imports nothing and never raises.

The SDK would put a handler of rich on the root logger, which imports modules while it writes. Where no descriptor is
left, such an import fails inside of asyncio's error handling, and the exception leaves the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import linecache  # noqa: F401 - a traceback needs it, and tokenize
import logging
import sys
import time
import tokenize  # noqa: F401
import traceback
from typing import Any

_REPEAT_S = 60.0
_MOST_KINDS = 200


def configure_logging() -> None:
    """Write log records to stderr as plain lines. Call it before the SDK's server is built."""
    logging.raiseExceptions = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    traceback.format_exception(OSError())  # what it imports at its first use is imported now


class LoopErrors:
    """The exception handler of an event loop: each kind of error is written at most once a minute."""

    def __init__(self) -> None:
        self._written_s: dict[str, float] = {}

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Write one error of the loop to stderr."""
        del loop
        with contextlib.suppress(Exception):
            error = context.get("exception")
            kind = f"{context.get('message', 'Error in the event loop')}: {type(error).__name__}"
            now_s = time.monotonic()
            if now_s - self._written_s.get(kind, -_REPEAT_S) < _REPEAT_S:
                return
            if len(self._written_s) >= _MOST_KINDS:
                self._written_s.clear()
            self._written_s[kind] = now_s
            if isinstance(error, OSError):  # the reason is in its words
                text = f"{kind}: {error}\n"
            else:
                text = f"{kind}\n{''.join(traceback.format_exception(error)) if error is not None else ''}"
            sys.stderr.write(f"runward: {text}")
            sys.stderr.flush()
