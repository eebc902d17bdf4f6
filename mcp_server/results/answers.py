"""Result models of finish_blueprint and compare_runs, importable without their implementation."""

from __future__ import annotations

from mcp_server.answer import Answer


class Finished(Answer):
    """What was written for a run, and where. ``files``: everything in the result directory that is of this run."""

    run_id: str
    status: str
    state: str
    results_path: str
    flag_path: str | None = None
    files: list[str]
    notes: list[str] | None = None


class Comparison(Answer):
    """One table, a row for each run, cells parted by ``|``; a column that has the same value in all is in ``same``.

    A metric tells its last value, then its best where that is another. ``root``: where checkpoint paths begin.
    """

    columns: str | None = None
    rows: list[str] | None = None
    markdown: str | None = None
    same: dict[str, str] | None = None
    root: str | None = None
    notes: list[str] | None = None
