"""The meaning of a raw wait status. Guards of commands use it, so it imports nothing that takes memory."""

from __future__ import annotations

import _signal
import os

_SHELL_SIGNAL_BASE = 128


def read_status(status: int) -> tuple[int | None, str | None]:
    """Return exit code and signal. A shell reports 128 + n for a child that died of signal n: then both are set."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return None, name_signal(-code)
    return code, name_signal(code - _SHELL_SIGNAL_BASE) if code > _SHELL_SIGNAL_BASE else None


def name_signal(number: int) -> str | None:
    """Return the name of a signal, or None where there is none of that number, e.g. for exit code 255."""
    if number not in _signal.valid_signals():
        return None
    if number > _signal.SIGRTMIN:
        return f"SIGRTMIN+{number - _signal.SIGRTMIN}"
    return min(str(name) for name, value in vars(_signal).items() if value == number and _is_signal(name))


def _is_signal(name: str) -> bool:
    return name.startswith("SIG") and not name.startswith("SIG_")
