"""How an attempt ended: from a wait status and a request to one word. Pure."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_COLOURS = {"finished": "32", "failed": "31"}
_SHELL_SIGNAL_BASE = 128
_NO_STATUS = 125


@dataclass(frozen=True)
class Asked:
    """A stop that somebody asked for: the state that it leads to, who, and why."""

    state: str
    by: str
    reason: str

    @property
    def text(self) -> str:
        """Why and who, e.g. `diverged; alice`."""
        return "; ".join(filter(None, (self.reason, self.by)))


CTRL_C = Asked("killed", "a person at the terminal", "Ctrl-C")


@dataclass(frozen=True)
class Ending:
    """The end of one attempt.

    A shell that reports 128 + n for a child that died of signal n is told as both; a command that
    died of a signal itself has no exit code.
    """

    state: str
    exit_code: int | None
    signal: str | None
    asked: Asked | None = None

    @property
    def status(self) -> int:
        """The exit status as a shell would tell it."""
        return shell_status(self.exit_code, self.signal)

    def record(self, started_at: str, ended_at: str) -> dict[str, Any]:
        """Return the content of exit.json."""
        return {
            "exit_code": self.exit_code,
            "signal": self.signal,
            "state": self.state,
            "started_at": started_at,
            "ended_at": ended_at,
        }

    def text(self, leftovers: int = 0, lost_bytes: int = 0) -> str:
        """Return one sentence for people and agents."""
        code = f"exit code {self.exit_code}" if self.exit_code is not None else ""
        how = " and ".join(filter(None, (self.signal, code))) or "no exit status could be had"
        why = f" ({self.asked.text})" if self.asked and self.asked.text else ""
        left = f" Stopped {leftovers} process(es) that it left behind." if leftovers else ""
        lost = f" The last {lost_bytes:,} bytes of output are not in the log." if lost_bytes else ""
        return f"{self.state}: {how}{why}.{left}{lost}"


def judge(status: int | None, asked: Asked | None, *, interrupted: bool) -> Ending:
    """Turn a raw wait status into an Ending.

    Exit status first: 0 is finished unless a stop was asked for. ``interrupted``: a person typed Ctrl-C
    shortly before, so that any other end is that person's. None: nobody could tell the status.
    """
    exit_code, name = None, None
    if status is not None:
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            name = _signal_name(-code)
        else:
            exit_code = code
            name = _signal_name(code - _SHELL_SIGNAL_BASE) if code > _SHELL_SIGNAL_BASE else None
    if asked is None and interrupted and exit_code != 0:
        asked = CTRL_C
    if asked is not None:
        state = asked.state
    elif status is None:
        state = "lost"
    else:
        state = "finished" if exit_code == 0 else "failed"
    return Ending(state, exit_code, name, asked)


def shell_status(exit_code: int | None, name: str | None) -> int:
    """Return the exit status as a shell tells it: 128 + n for signal n; 125 where nothing is known."""
    if exit_code is not None:
        return exit_code
    base, _, above = (name or "").partition("+")
    number = signal.Signals.__members__.get(base)
    return _NO_STATUS if number is None else _SHELL_SIGNAL_BASE + number + int(above or 0)


def _signal_name(number: int) -> str | None:
    if number not in signal.valid_signals():
        return None  # e.g. exit code 255
    if number > signal.SIGRTMIN:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
    return signal.Signals(number).name


def closing_line(log: Path, ending: Ending, elapsed_s: float) -> bytes:
    """Return what the pane says when the run is over; the pane stays for reading."""
    minutes, seconds = divmod(round(elapsed_s), 60)
    hours, minutes = divmod(minutes, 60)
    colour = _COLOURS.get(ending.state, "33")
    return (
        f"\x1b[0m\x1b[?25h\r\n\x1b[1;{colour}m[runward] {log.parents[2].name} {ending.text()}\x1b[0m "
        f"after {hours}:{minutes:02}:{seconds:02}\r\n[runward] log: {log}\r\n"
    ).encode(errors="replace")
