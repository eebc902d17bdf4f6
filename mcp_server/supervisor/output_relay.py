"""Between the command's terminal, its log and the pane: output one way, keys the other."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Literal

from mcp_server.supervisor import terminal
from mcp_server.text.redaction import Redactor

# A flood is read in gulps: woken for every line, the reader takes the training's processor (on two cores
# 0.9 s of it for 100,000 lines). In longer ones the terminal's buffer fills, and the training waits.
_FLOW_S, _GATHER_S = 0.010, 0.002


class Relay:
    """Masks what the command prints; the log gets it first, the pane second, the judge third. Passes on keys."""

    def __init__(
        self, log: terminal.Log, redactor: Redactor, pane: terminal.Pane | None, judge: Callable[[bytes], None]
    ) -> None:
        self.log, self.pane = log, pane
        self._redactor, self._judge = redactor, judge
        self.master_fd = -1
        # Whether any process still holds the command's side of the terminal.
        self.connected = False
        self.last_s = 0.0

    def connect(self, master_fd: int) -> None:
        """Begin with the command's terminal."""
        self.master_fd, self.connected = master_fd, True

    def read(self) -> None:
        """Pass on what there is; a little later if output flows, so that there is more of it."""
        if time.monotonic() - self.last_s < _FLOW_S:
            time.sleep(_GATHER_S)
        self._pass_on()
        self.last_s = time.monotonic()

    def drain(self) -> None:
        """Pass on what those that have ended have written."""
        for _ in range(64):
            if not self.connected or not self._pass_on():
                break
        self._show(self._redactor.flush())
        self.log.write(b"")  # tells what was lost, if the disk takes it by now

    def type(self) -> Literal["interrupt", "gone"] | None:
        """Pass on what was typed; tell whether it interrupts the command, or that the pane is gone."""
        keys = self.pane.read() if self.pane else b""
        if keys is None:
            return "gone"
        told = bool(keys) and terminal.interrupts(self.master_fd, keys)
        with contextlib.suppress(OSError):  # a command that reads nothing
            os.write(self.master_fd, keys)
        return "interrupt" if told else None

    def follow_size(self) -> None:
        """Give the command's terminal the pane's size, so that it follows whoever is attached."""
        if self.pane and self.pane.open:
            with contextlib.suppress(OSError):
                terminal.resize(self.master_fd, self.pane.size())

    def _pass_on(self) -> bool:
        output, self.connected = terminal.read_output(self.master_fd)
        self._show(self._redactor.feed(output))
        return bool(output)

    def _show(self, output: bytes) -> None:
        if output:
            self.log.write(output)
            if self.pane:
                self.pane.write(output)
            self._judge(output)
