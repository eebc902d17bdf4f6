"""The log of an attempt whose readers are on other hosts: what is written reaches the shared disk within seconds."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

from mcp_server.supervisor.terminal.output_log import OutputLog

_PAUSE_S = 2.0


class SharedLog(OutputLog):
    """A log on a disk that hosts share. Network file systems keep what is written for half a minute otherwise.

    A thread sends it, so that a disk that hangs does not hold up the command.
    """

    def __init__(self, path: Path, on_failure: Callable[[str], None]) -> None:
        super().__init__(path, on_failure)
        self._unsent, self._closing = threading.Event(), threading.Event()
        self._sender = threading.Thread(target=self._send_until_closed, daemon=True)
        with contextlib.suppress(RuntimeError):  # no thread is left: then the end sends all
            self._sender.start()

    def write(self, data: bytes) -> None:
        """Append ``data``, and have it sent."""
        super().write(data)
        self._unsent.set()

    def send(self) -> None:
        """Return once readers on other hosts see all that was written, or the disk refused."""
        with contextlib.suppress(OSError):
            os.fsync(self._fd)

    def close(self) -> None:
        """End the thread, and close the file, which sends the rest."""
        self._closing.set()
        self._unsent.set()
        if self._sender.is_alive():
            self._sender.join()
        super().close()

    def _send_until_closed(self) -> None:
        while self._unsent.wait() and not self._closing.is_set():
            self._unsent.clear()
            self.send()
            self._closing.wait(_PAUSE_S)
