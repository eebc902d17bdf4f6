"""Result models of finish_blueprint and compare_runs, importable without their implementation."""

from mcp_server.answer import Answer
from mcp_server.record.state import RunState
from mcp_server.views.sweep_status import BestCell


class Finished(Answer):
    """The written results of a run. ``files``: all files of this run in the result directory."""

    run_id: str
    status: str
    state: str
    results_path: str
    flag_path: str | None = None
    files: list[str]
    notes: list[str] | None = None


class BenchmarkTable(Answer):
    """The newest values of one metric: a row per setting and step, a column per benchmark, cells separated by ``|``.

    A cell is the value, ± one standard error, and the number of episodes, as far as known; of several seeds the mean, ±
    the deviation of the sample, and their number, as ``(n 3)``.
    """

    metric: str
    columns: str
    rows: list[str]


class SweepFacts(Answer):
    """A compared sweep. ``cells`` counts them by state; ``failed``: the newest, with the reason."""

    sweep_id: str
    state: RunState
    reason: str | None = None
    cells: dict[str, int]
    metric: str | None = None
    goal: str | None = None
    best: BestCell | None = None
    failed: list[str] | None = None


class Comparison(Answer):
    """One table with a row per run, cells separated by ``|``. A column with one value for all runs is in ``same``.

    A metric shows its last value, then its best with its step where it differs. An evaluation shows its last value ±
    one standard error @step, then its best. Settings are those of the newest attempt; ``notes`` says how a retry
    changed them. ``root``: the directory of checkpoint paths. ``checkpoints`` of a single run has the newest 20.

    A row of a sweep is a setting, the best first: the mean of its n cells with a result ± the deviation of the sample,
    and ``cell``, the best of them. Further metrics are means too, at a step of all that have reached it. Where a
    parameter names the benchmark, ``benchmarks`` has the settings by it. ``more`` says what did not fit.
    """

    sweep: SweepFacts | None = None
    columns: str | None = None
    rows: list[str] | None = None
    markdown: str | None = None
    same: dict[str, str] | None = None
    benchmarks: list[BenchmarkTable] | None = None
    root: str | None = None
    checkpoints: list[str] | None = None
    findings: list[str] | None = None  # what was concluded of a run, its results document, its page in a tracker
    more: str | None = None
    notes: list[str] | None = None
    diff: list[str] | None = None
