"""`attempts.md`: one row for each attempt of a run with several, for people. Agents read the events."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from mcp_server.record.run_directory import RunDir
from mcp_server.supervisor.attempt import Attempt
from mcp_server.system.files import open_private

if TYPE_CHECKING:
    from mcp_server.diagnosis.failure.diagnose import Diagnosis

_HEAD = (
    "| attempt | started | ended | end | step | arguments | failure | root line | then |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
)
_LINE_CHARS = 300


class AttemptsReport:
    """Appends one row for each attempt. A full disk omits a row. The events have the same facts."""

    def __init__(self, rundir: RunDir, reported: int = 0) -> None:
        self._path = rundir.account
        self._run_id = rundir.run_id
        self._reported = reported  # number of the attempt that was reported last

    def add(self, attempt: Attempt, failure: Diagnosis | None, then: str) -> None:
        """Append an attempt that has ended, and what followed."""
        self._append_row(
            attempt.number,
            attempt.started_at,
            attempt.ended_at,
            attempt.ending.text(),
            "" if attempt.observer.step is None else attempt.observer.step,
            " ".join(attempt.arguments),
            failure.kind if failure else "",
            f"{failure.line_number or ''} {failure.line[:_LINE_CHARS]}" if failure else "",
            then,
        )

    def add_lost(self, number: int, started_at: str, then: str) -> None:
        """Append an attempt whose supervisor died before it could write the end, and what followed."""
        self._append_row(number, started_at, "", "lost: its supervisor died", "", "", "", "", then)

    def close(self, attempt: Attempt, failure: Diagnosis | None, why: str) -> None:
        """Append the last attempt of a run, or why no other followed, if earlier attempts are in the report."""
        if attempt.number > self._reported > 0:
            self.add(attempt, failure, why)
        elif self._reported:
            self._write(f"\n{why}\n")

    def _append_row(self, number: int, *cells: object) -> None:
        self._reported = number
        self._write(f"# Attempts of {self._run_id}\n\n{_HEAD}" if not self._path.exists() else "")
        row = " | ".join(" ".join(str(cell).split()).replace("|", "\\|") for cell in (number, *cells))
        self._write(f"| {row} |\n")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError), open(self._path, "a", opener=open_private) as file:
            file.write(text)
