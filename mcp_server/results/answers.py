"""Result models of finish_blueprint and compare_runs, importable without their implementation."""

from __future__ import annotations

from mcp_server.answer import Answer


class Finished(Answer):
    """The written results of a run. ``files``: all files of this run in the result directory."""

    run_id: str
    status: str
    state: str
    results_path: str
    flag_path: str | None = None
    files: list[str]
    notes: list[str] | None = None


class Comparison(Answer):
    """One table with a row per run, cells separated by ``|``. A column with one value for all runs is in ``same``.

    A metric shows its last value, then its best with its step where it differs. Settings are those of the newest
    attempt; ``notes`` says how a retry changed them. ``root``: the directory of checkpoint paths.
    """

    columns: str | None = None
    rows: list[str] | None = None
    markdown: str | None = None
    same: dict[str, str] | None = None
    root: str | None = None
    notes: list[str] | None = None
