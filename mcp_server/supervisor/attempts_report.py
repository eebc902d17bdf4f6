"""`attempts.md`: what became of every attempt of a run that was retried, for people; agents read the events."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from mcp_server.record.run_directory import RunDir, now
from mcp_server.supervisor.attempt import Attempt
from mcp_server.system.files import open_private

if TYPE_CHECKING:
    from mcp_server.diagnosis.failure.diagnose import Failure

_HEAD = (
    "| attempt | started | ended | end | step | arguments | failure | root line | then |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
)
_LINE_CHARS = 300


class Account:
    """Appends one row for each attempt; a full disk leaves a row out, the events have it."""

    def __init__(self, rundir: RunDir) -> None:
        self._path = rundir.account
        self._run_id = rundir.run_id
        self._told = 0

    def add(self, attempt: Attempt, failure: Failure | None, then: str) -> None:
        """Note an attempt that has ended, and what came of it."""
        self._told = attempt.number
        self._write(f"# Attempts of {self._run_id}\n\n{_HEAD}" if not self._path.exists() else "")
        cells = (
            attempt.number,
            attempt.started_at,
            now(),
            attempt.ending.text(),
            "" if attempt.observer.step is None else attempt.observer.step,
            " ".join(attempt.arguments),
            failure.kind if failure else "",
            f"{failure.line_number or ''} {failure.line[:_LINE_CHARS]}" if failure else "",
            then,
        )
        self._write("| " + " | ".join(" ".join(str(cell).split()).replace("|", "\\|") for cell in cells) + " |\n")

    def close(self, attempt: Attempt, failure: Failure | None, why: str) -> None:
        """Note the end of a run that was retried, or that was going to be."""
        if attempt.number > self._told > 0:
            self.add(attempt, failure, why)
        elif self._told:
            self._write(f"\n{why}\n")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError), open(self._path, "a", opener=open_private) as file:
            file.write(text)
