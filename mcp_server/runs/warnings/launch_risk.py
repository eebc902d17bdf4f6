"""Live runs that a launch may end, and the refusal of a launch that nobody has confirmed. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from mcp_server.errors import RunwardError
from mcp_server.record.state import Run

_MOST_NAMED = 10


@dataclass(frozen=True)
class Risk:
    """The runs that a launch may end. ``command``: a confirmation is bound to it. No elapsed time is in the text."""

    command: str
    killers: tuple[str, ...]
    runs: tuple[Run, ...]

    @property
    def attempts(self) -> dict[str, int]:
        """The attempt of each run."""
        return {run.run_id: run.attempt for run in self.runs}

    @property
    def text(self) -> str:
        """The killers, and the runs that they may end."""
        named = [f"{run.run_id} ({run.state}, owner {run.spec.owner or 'unknown'})" for run in self.runs[:_MOST_NAMED]]
        more = [f"{len(self.runs) - _MOST_NAMED} more"] if len(self.runs) > _MOST_NAMED else []
        return f"{' '.join(self.killers)} It may end {_count(len(self.runs))}: {'; '.join([*named, *more])}."


class LaunchNotConfirmed(RunwardError):
    """A launch may end live runs of others, and nobody has confirmed it."""

    def __init__(self, risk: Risk) -> None:
        super().__init__(risk.text, "Nothing was started.", "Leave that part of the command out.")
        self.risk = risk


def _count(number: int) -> str:
    return "a live run" if number == 1 else f"{number} live runs"
