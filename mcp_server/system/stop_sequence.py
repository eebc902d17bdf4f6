"""Stopping processes stage by stage: interrupt, terminate, kill."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass

from mcp_server.system.processes import Process, send_signal

_KILL_GRACE_S = 5.0


@dataclass(frozen=True)
class Stage:
    """One signal, and how many seconds its receivers have to exit."""

    number: signal.Signals
    grace_s: float


def stop_stages(grace_s: float) -> tuple[Stage, ...]:
    """Return the usual stages to stop a training run: SIGINT, SIGTERM, SIGKILL."""
    return (
        Stage(signal.SIGINT, grace_s),
        Stage(signal.SIGTERM, grace_s),
        Stage(signal.SIGKILL, _KILL_GRACE_S),
    )


class StopSequence:
    """Stops a set of processes. Call ``step`` repeatedly until it returns True.

    Processes that appear during a stage get its signal as well.
    """

    def __init__(self, stages: Iterable[Stage]) -> None:
        self._stages = list(stages)
        self._until_s: float | None = None
        self._signalled: set[Process] = set()
        self.sent: list[str] = []

    def step(self, living: list[Process], now_s: float) -> bool:
        """Send what is due to ``living`` at ``now_s`` (monotonic); return True when no process or no stage is left."""
        if not living:
            return True
        if self._until_s is None:
            self._until_s = now_s + self._stages[0].grace_s
        elif now_s >= self._until_s:
            self._stages.pop(0)
            self._signalled.clear()
            if not self._stages:
                return True
            self._until_s = now_s + self._stages[0].grace_s
        number = self._stages[0].number
        for p in living:
            if p not in self._signalled and send_signal(p, number):
                self._signalled.add(p)
                if number.name not in self.sent:
                    self.sent.append(number.name)
                if number is not signal.SIGKILL:
                    send_signal(p, signal.SIGCONT)  # a suspended process handles no other signal
        return False
