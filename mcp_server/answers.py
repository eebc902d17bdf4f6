"""What tools answer whose work few servers ever do: apart from that work, so that a server starts without it."""

from __future__ import annotations

from mcp_server.status import Answer


class BlueprintProblem(Answer):
    """What is wrong, and where."""

    line: int
    text: str


class BlueprintCheck(Answer):
    """What a blueprint says, with defaults and variables filled in. Paths are absolute; durations in seconds."""

    ok: bool
    purpose: str
    codebase_dir: str | None = None
    venv_exe: str | None = None
    yaml_path: str | None = None
    launch_command: str | None = None
    result_dir: str | None = None
    time_limit_s: float
    first_step_timeout_s: float
    first_step_pattern: str | None = None
    defaults_used: list[str]
    notes: str
    problems: list[BlueprintProblem]


class Problem(Answer):
    """One thing that is wrong, and what to do about it."""

    what: str
    text: str
    remedy: str


class Preflight(Answer):
    """The verdict, what is wrong, and who trains here already."""

    ok: bool
    problems: list[Problem]
    running: list[str] | None = None


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
