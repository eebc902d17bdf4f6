"""How an attempt ended: a wait status and a stop request become one state. Pure."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mcp_server.record.run_directory import Facts
from mcp_server.system.files import sync_directory
from mcp_server.system.own_process import read_status
from mcp_server.text.formatting import clock

_COLOURS = {"finished": "32", "failed": "31"}
_OTHER_COLOUR = "33"
_SHELL_SIGNAL_BASE = 128
_NO_STATUS = 125


@dataclass(frozen=True)
class StopRequest:
    """A request to stop a run: the state that it leads to, who made it, and why.

    ``stopped_by`` is one of STOPPERS; empty where that is not known.
    """

    state: str
    by: str
    reason: str
    stopped_by: str = ""

    @property
    def text(self) -> str:
        """Why and who, e.g. `diverged; alice`."""
        return "; ".join(filter(None, (self.reason, self.by)))


STOPPERS = ("policy", "person", "agent", "time_limit", "scheduler", "sweep", "service")
CTRL_C = StopRequest("killed", "a person at the terminal", "Ctrl-C", "person")

_SESSION = "session "


@dataclass(frozen=True)
class Ending:
    """The end of one attempt, on this host. A command that may go on elsewhere is `lost`.

    It has an exit code or a signal, as the kernel says. Where a shell reports 128 + n for a child that died of signal
    n, that is an exit code: a program may choose it too.
    """

    state: str
    exit_code: int | None
    signal: str | None
    stop_request: StopRequest | None = None
    far_side: str = ""  # the host on which the command may go on, or the session in which its program has ended

    @property
    def stopped_by(self) -> str | None:
        """Who or what stopped the attempt, one of STOPPERS, or None where nothing did, or where that is not known."""
        return (self.stop_request.stopped_by or None) if self.stop_request else None

    @property
    def remedy(self) -> str:
        """What to do about a command that may go on elsewhere. Empty otherwise."""
        if not self.far_side:
            return ""
        if self.far_side.startswith(_SESSION):  # of a program that was watched, and has ended
            return f"How the program of {self.far_side} ended is unknown: look at what it wrote before another launch."
        return f"Whether the command on {self.far_side} goes on is unknown: look there before another launch."

    def lose(self, far_side: str) -> Ending:
        """Return this end of a command that may go on at ``far_side``, a host."""
        return replace(self, state="lost", far_side=far_side)

    @property
    def status(self) -> int:
        """The exit status as a shell reports it."""
        return shell_status(self.exit_code, self.signal)

    def record(self, started_at: str, ended_at: str) -> dict[str, Any]:
        """Return the content of exit.json."""
        by = {"stopped_by": self.stopped_by} if self.stopped_by else {}
        return {
            "exit_code": self.exit_code,
            "signal": self.signal,
            "state": self.state,
            "started_at": started_at,
            "ended_at": ended_at,
            **by,
        }

    @property
    def how(self) -> str:
        """The signal and the exit code in words."""
        code = f"exit code {self.exit_code}" if self.exit_code is not None else ""
        return self.signal or code or "the exit status is unknown"

    def text(self, leftovers: int = 0, lost_bytes: int = 0) -> str:
        """Return one sentence for people and agents."""
        why = f" ({self.stop_request.text})" if self.stop_request and self.stop_request.text else ""
        left = f" Stopped {leftovers} process(es) that it left behind." if leftovers else ""
        lost = f" The last {lost_bytes:,} bytes of output are not in the log." if lost_bytes else ""
        return f"{self.state}: {self.how}{why}.{left}{lost}"


def classify_ending(status: int | None, stop_request: StopRequest | None, *, interrupted: bool) -> Ending:
    """Return the ending that a raw wait status means, or None where no process could report it.

    Exit code 0 is finished unless a stop was requested. ``interrupted``: a person typed Ctrl-C shortly
    before, so that any other end is that person's request.
    """
    exit_code, name = (None, None) if status is None else read_status(status)
    if stop_request is None and interrupted and exit_code != 0:
        stop_request = CTRL_C
    if stop_request is not None:
        state = stop_request.state
    elif status is None:
        state = "lost"
    else:
        state = "finished" if exit_code == 0 else "failed"
    return Ending(state, exit_code, name, stop_request)


def shell_status(exit_code: int | None, name: str | None) -> int:
    """Return the exit status as a shell reports it: 128 + n for signal n. 125 if nothing is known."""
    if exit_code is not None:
        return exit_code
    base, _, above = (name or "").partition("+")
    number = signal.Signals.__members__.get(base)
    return _NO_STATUS if number is None else _SHELL_SIGNAL_BASE + number + int(above or 0)


def closing_line(log: Path, ending: Ending, elapsed_s: float) -> bytes:
    """Return what the pane shows when the run is over. The pane stays open for reading."""
    colour = _COLOURS.get(ending.state, _OTHER_COLOUR)
    return (
        f"\x1b[0m\x1b[?25h\r\n\x1b[1;{colour}m[runward] {log.parents[2].name} {ending.text().rstrip('.')}\x1b[0m "
        f"after {clock(elapsed_s)}\r\n[runward] log: {log}\r\n"
    ).encode(errors="replace")


# One block, filled with spaces when an attempt starts and overwritten in place when it ends: a full disk cannot keep
# the end from being recorded.
_RECORD_BYTES = 512


class ExitRecord:
    """The record of one attempt's end. Its disk space is reserved when the attempt starts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(".exit.json")
        self._fd = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(self._fd, b" " * _RECORD_BYTES)
            os.fsync(self._fd)
        except OSError:
            os.close(self._fd)
            raise

    def close(self) -> None:
        """Give the record up: nothing started whose end it could keep."""
        os.close(self._fd)

    def write(self, value: Facts) -> None:
        """Write the end and publish the file under its name, atomically."""
        line = json.dumps(value, ensure_ascii=False).encode()
        os.pwrite(self._fd, line.ljust(_RECORD_BYTES - 1) + b"\n", 0)
        os.fsync(self._fd)
        os.close(self._fd)
        self._part.rename(self._path)
        sync_directory(self._path.parent)
