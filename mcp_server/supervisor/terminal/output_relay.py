"""Passes output from the command's terminal to its log, the pane and the observer, and keys back to the command.

The log is written first and must never miss a line; the pane gets output as far as it takes it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Literal

from mcp_server.supervisor.terminal import pty
from mcp_server.supervisor.terminal.output_log import OutputLog
from mcp_server.supervisor.terminal.pane import Pane
from mcp_server.text.redaction import Redactor

# A flood is read in large pieces: woken for every line, the reader takes the training's processor (on two cores
# 0.9 s of it for 100,000 lines). During longer pauses the terminal's buffer fills, and the training waits.
_FLOW_S, _GATHER_S = 0.010, 0.002
_DRAIN_READS = 64


class OutputRelay:
    """Masks secrets in the command's output and passes it on: first to the log, then to the pane and the observer."""

    def __init__(
        self, master_fd: int, log: OutputLog, redactor: Redactor, pane: Pane | None, observe: Callable[[bytes], None]
    ) -> None:
        self.log = log
        # Whether any process still has the command's side of the terminal open.
        self.connected = True
        self.last_output_s = 0.0
        self._master_fd, self._pane = master_fd, pane
        self._redactor, self._observe = redactor, observe

    def read(self) -> None:
        """Pass on the output that is there. While output flows, wait 2 ms for more first."""
        if time.monotonic() - self.last_output_s < _FLOW_S:
            time.sleep(_GATHER_S)
        self._pass_on()
        self.last_output_s = time.monotonic()

    def drain(self) -> None:
        """Pass on the last output of processes that have ended."""
        for _ in range(_DRAIN_READS):
            if not self.connected or not self._pass_on():
                break
        self._show(self._redactor.flush())
        self.log.write(b"")  # notes lost bytes, if the disk takes the note by now

    def forward_keys(self) -> Literal["interrupt", "closed"] | None:
        """Pass on keys typed in the pane and return whether they interrupt the command, or that the pane is closed."""
        keys = self._pane.read_keys() if self._pane else b""
        if keys is None:
            return "closed"
        is_interrupt = bool(keys) and pty.interrupts(self._master_fd, keys)
        with contextlib.suppress(OSError):  # a command that reads nothing
            os.write(self._master_fd, keys)
        return "interrupt" if is_interrupt else None

    def resize_terminal(self) -> None:
        """Give the command's terminal the size of the pane, which is that of the attached client."""
        if self._pane and self._pane.is_open:
            with contextlib.suppress(OSError):
                pty.resize(self._master_fd, self._pane.size())

    def _pass_on(self) -> bool:
        output, self.connected = pty.read_output(self._master_fd)
        self._show(self._redactor.feed(output))
        return bool(output)

    def _show(self, output: bytes) -> None:
        if output:
            self.log.write(output)
            if self._pane:
                self._pane.write(output)
            self._observe(output)
