"""``sweep_log.md`` and ``results.tsv``: the plan of a sweep, and what became of every cell, made from its record."""

from __future__ import annotations

import contextlib
import csv
import io
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_server.errors import BadArgument, RunwardError
from mcp_server.hosts.environment import find_distinct_secrets, mask_distinct_secrets
from mcp_server.record.attempt_params import count_ends
from mcp_server.record.events import RecordEvent
from mcp_server.record.results.notes import MOST_CHARS, NOTES, VERDICTS, append_note, mark_noted
from mcp_server.record.run_directory import RunDir, read_json
from mcp_server.record.state import Run
from mcp_server.record.sweeps.sweep_ranking import Best, choose_best, find_changed, find_whole, rank_groups
from mcp_server.record.sweeps.sweep_spec import LONGEST_NOTE, SweepDir, read_cell_notes
from mcp_server.record.sweeps.sweep_state import LIVE, CellState, Sweep, Watched
from mcp_server.results.evaluations.evaluation_text import render_table
from mcp_server.runs.launch.arguments import check_no_secret
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.sweeps.tables.trial_table import render_trials
from mcp_server.sweeps.trials.ledger import write_ledger
from mcp_server.sweeps.trials.trials import read_trials
from mcp_server.system.files import read_regular_file, write_atomic
from mcp_server.system.lock_files import release_lock, take_lock
from mcp_server.text.formatting import duration, printable, rough_duration, shorten_facts, shorten_middle, significant
from mcp_server.text.near_names import find_near_names
from mcp_server.text.secret_patterns import mask_secrets
from mcp_server.views.progress_text import first_metrics
from mcp_server.views.sweep_eta import estimate_rest_s

if TYPE_CHECKING:
    from mcp_server.results.figures import Figure

_MIB_PER_GIB = 1024
_LONGEST_TEXT = 120
_MOST_ROWS, _MOST_LIVE = 100, 50
_LOOKED_EVERY_S, _MOST_MEASURED = 30.0, 16
# The columns of results.tsv before and after the settings.
_BEFORE = ("cell", "phase", "state", "run")
_AFTER = ("value", "step", "ranked_by", "best", "best_step", "last", "last_step", "elapsed_s", "why", "note")


def _render_filled(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table in markdown without the columns that are empty in every row."""
    columns = [number for number in range(len(headers)) if any(row[number] for row in rows)]
    return render_table([headers[n] for n in columns], [[row[n] for n in columns] for row in rows])


@dataclass(frozen=True)
class _Look:
    """The live cells as seen at a time: their rows, their values by run, how many they are, and when the sweep ends."""

    at_s: float
    rows: Sequence[Sequence[str]] = ()
    values: Mapping[str, tuple[float, int | None]] = field(default_factory=dict)
    count: int = 0
    rest_s: float | None = None

    @property
    def time(self) -> str:
        """When it was, e.g. ``12:00:03 UTC``."""
        return datetime.fromtimestamp(self.at_s, UTC).strftime("%H:%M:%S UTC")


class SweepLog:
    """The two files of one sweep, of which 1,000 cells take 90 ms.

    The steps of live cells change all the time, so they are looked at every half minute, and the log says when.
    ``measure``: reads the value that a live run has now; without it the log has none of live cells.
    """

    def __init__(
        self,
        directory: SweepDir,
        measure: Callable[[Run], Figure] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._directory, self._measure, self._clock = directory, measure, clock
        self._look: _Look | None = None

    def write(self, sweep: Sweep, live: Mapping[str, Run]) -> None:
        """Bring both files up to date, and the table of an open sweep; what is right is left alone."""
        directory = self._directory
        notes = read_cell_notes(directory)
        files = {directory.log: self.render(sweep, live, notes), directory.results: self.render_results(sweep, notes)}
        for path, text in files.items():
            data = text.encode(errors="replace")
            try:
                current = read_regular_file(path)
            except OSError:
                current = b""
            if current != data:
                write_atomic(path, data, durable=False)
        if sweep.spec.open is not None:
            write_ledger(read_trials(sweep))

    def render(self, sweep: Sweep, live: Mapping[str, Run], notes: Mapping[str, str]) -> str:
        """Return the log. It changes with the record, and every half minute with the steps of live cells."""
        look = self._look_at(sweep, live)
        metric, names = sweep.spec.metric, _varying(sweep.cells)
        headers = ["#", "phase", "cell", *names, "GPUs", "limit", "status", "step", "steps/s", "fps"]
        headers += [sweep.spec.ranked_by or "metrics", "note"]
        whole = find_whole(sweep.cells)
        plan = []
        for cell in sweep.cells:
            run, note, counts = live.get(cell.cell.name), notes.get(cell.cell.name), cell.cell.name in whole
            plan.append(_plan_row(cell, names, run, note, metric, counts=counts))
        home = self._directory.path.parents[1]
        values = {} if look is None else look.values
        if sweep.spec.open is not None:
            seen = read_trials(sweep)
            lines = [*_render_head(sweep, look, f": {seen.tip}"), "", "## Trials", "", *render_trials(seen)]
        else:
            settings, best = _rank_settings(sweep, values, notes, home)
            value = f": {best.text_with_run}" if best is not None else ": none yet"
            lines = [*_render_head(sweep, look, value), "", "## Settings", "", *settings]
        if live and look is not None:
            lines += ["", f"## Live cells at {look.time}", "", *_render_live(sweep, look)]
        lines += ["", "## Plan", "", *_render_filled(headers, plan), "", "## Runs", ""]
        events: dict[str, list[RecordEvent]] = {}
        for event in sweep.events:
            events.setdefault(event.get("run_id", ""), []).append(event)
        headers = ["cell", "run", "began (UTC)", "ended (UTC)", "state", "why", "attempts"]
        headers += ["peak GPU GiB", "log", "curves"]
        runs = [
            _run_row(
                cell, run_id, events.get(run_id, []), live.get(cell.cell.name) if run_id == cell.run_id else None, home
            )
            for cell in sweep.cells
            for run_id in cell.runs
        ]
        lines += _render_filled(headers, runs) if runs else ["No run has begun."]
        return "\n".join(map(printable, lines)) + "\n"

    def render_results(self, sweep: Sweep, notes: Mapping[str, str], separator: str = "\t") -> str:
        """Return one row a cell, with tabs between: what programs read. A field with a quote is quoted, as in CSV.

        ``value`` is empty where it does not count, so that a mean over it is that of the tables. A setting is the value
        as it ran; where a retry changed one, a further column has it as it was planned, of every cell: both together
        name a row of the tables.
        """
        names = list(dict.fromkeys(name for cell in sweep.cells for name in cell.settings))
        changed = list(dict.fromkeys(name for cell in sweep.cells for name in find_changed(cell)))
        columns = [f"{name} set" if name in (*_BEFORE, *_AFTER) else name for name in names]
        columns += [f"{name} planned" for name in changed]
        text = io.StringIO()
        writer = csv.writer(text, delimiter=separator, lineterminator="\n")
        writer.writerow(map(_as_field, [*_BEFORE, *columns, *_AFTER]))
        whole = find_whole(sweep.cells)
        for cell in sweep.cells:
            note, counts = notes.get(cell.cell.name), cell.cell.name in whole
            writer.writerow(_result_row(cell, names, changed, note, sweep.spec.ranked_by if counts else None))
        return text.getvalue()

    def _look_at(self, sweep: Sweep, live: Mapping[str, Run]) -> _Look | None:
        now_s = self._clock()
        if not live or sweep.ended:
            self._look = None
        elif self._look is None or not 0 <= now_s - self._look.at_s < _LOOKED_EVERY_S:
            values = {}
            for run in list(live.values())[:_MOST_MEASURED] if self._measure and sweep.spec.metric else ():
                with contextlib.suppress(RunwardError, OSError):
                    figure = self._measure(run) if self._measure else None
                    if figure is not None and figure.value is not None:
                        values[run.run_id] = figure.value, figure.step
            rows = [
                [name, run.run_id, run.state, *_describe_live(run, values.get(run.run_id), now_s)]
                for name, run in list(live.items())[:_MOST_LIVE]
            ]
            self._look = _Look(now_s, rows, values, len(live), estimate_rest_s(sweep, live, now_s))
        return self._look


def _rank_settings(
    sweep: Sweep, values: Mapping[str, tuple[float, int | None]], notes: Mapping[str, str], home: Path
) -> tuple[list[str], Best | None]:
    from mcp_server.sweeps.tables.settings_table import Ranking, describe_ranking, make_rows  # noqa: PLC0415 - 340 ms

    by, cells = Ranking(sweep.spec.metric, sweep.spec.ranking, sweep.spec.goal), []
    for cell in sweep.cells:
        value = values.get(cell.run_id or "") if cell.state == LIVE else None
        cells.append(cell if value is None else replace(cell, value=value[0], value_step=value[1]))
    groups, remarks = rank_groups(cells, by.goal), list[str]()
    names, rows = make_rows(groups, groups[:_MOST_ROWS], by, notes, remarks)
    lines = render_table(names, rows)
    if len(groups) > _MOST_ROWS:
        remarks.append(f"The first {_MOST_ROWS} of {len(groups)} settings: `runward sweep {sweep.sweep_id} --csv`.")
    if by.metric is None:
        remarks.append("The sweep has no metric: in the order of the plan.")
    remarks += describe_ranking(groups, by, home).notes
    lines += [line for remark in remarks for line in ("", remark)]
    return lines, choose_best(groups) if by.metric is not None else None


def _render_live(sweep: Sweep, look: _Look) -> list[str]:
    headers = ["cell", "run", "state", "step", sweep.spec.ranked_by or "metrics", "left"]
    more = ["", f"{look.count - len(look.rows)} more are live."] if look.count > len(look.rows) else []
    return [*render_table(headers, look.rows), *more]


def _describe_live(run: Run, value: tuple[float, int | None] | None, now_s: float) -> Sequence[str]:
    step, total, left_s = run.progress.get("step"), run.progress.get("total_steps"), run.left_s(now_s)
    if isinstance(step, int) and value is not None and value[1] is not None and value[1] > step:
        step_s = run.progress.get("step_s")  # the curve is read later than the record
        if left_s is not None and isinstance(step_s, int | float):
            left_s = min(left_s, max(0.0, run.progress["eta_s"] - (value[1] - step) * step_s))
        step = value[1]
    at = "" if step is None else f"{step}" if total is None else f"{step}/{total}"
    if value is not None:
        newest = f"{_number(value[0])}{'' if value[1] is None else f'@{value[1]}'}"
    else:
        newest = ", ".join(f"{name} {_number(v)}" for name, v in first_metrics(run.progress.get("metrics") or {}))
    return at, newest, "" if left_s is None else rough_duration(left_s)


def _render_head(sweep: Sweep, look: _Look | None, best: str) -> list[str]:
    spec, counts = sweep.spec, sweep.count()
    tally = ", ".join(f"{count} {state}" for state, count in counts.items() if state != "total")
    lines = [f"# Sweep {spec.sweep_id}", "", f"State: {sweep.state}; {counts['total']} cells: {tally}"]
    if look is not None and look.rest_s is not None:
        lines[-1] += f"; about {rough_duration(look.rest_s)} left at {look.time}"
    lines += [reason for reason in (sweep.reason, sweep.refusal) if reason]
    limit = f"at most {spec.max_parallel} at once" if spec.max_parallel else "as many at once as get a lease"
    lines.append(f"Owner: {spec.owner or 'unknown'}; planned {spec.created_at}; {limit}")
    if spec.metric:
        lines.append(f"Best {spec.ranked_by}, {spec.goal}{best}")
    return lines


def _result_row(
    cell: CellState, names: Sequence[str], changed: Sequence[str], note: str | None, ranked_by: str | None
) -> list[str]:
    settings = [*map(cell.setting, names), *map(cell.planned, changed)]
    value, step = (cell.value, cell.value_step) if ranked_by else (None, cell.end.get("step"))
    figures = [figure for ranking in ("best", "last") for figure in cell.figures.get(ranking) or (None, None)]
    elapsed_s = cell.end.get("elapsed_s")
    values = [cell.cell.name, cell.cell.phase, cell.state, cell.run_id, *settings, value, step, ranked_by, *figures]
    values += [round(elapsed_s, 1) if isinstance(elapsed_s, float) else elapsed_s, _why(cell), note]
    return [_as_field(each) for each in values]


def _plan_row(
    cell: CellState, names: Sequence[str], run: Run | None, note: str | None, metric: str | None, *, counts: bool
) -> list[str]:
    """Return the fields of a cell; its value stands in brackets where it does not count."""
    end, launch = cell.end, cell.cell.launch
    progress: Mapping[str, Any] = run.progress if run is not None else end
    step, step_s = end.get("step"), progress.get("step_s")
    value = _number(cell.value) if cell.value is not None else cell.bad_end or ""
    if cell.value is not None and not counts:
        value = f"({value}{'' if cell.value_step is None else f'@{cell.value_step}'})"
    if metric is None:
        value = ", ".join(f"{name} {_number(v)}" for name, v in list((end.get("metrics") or {}).items())[:2])
    gpus = (list(run.gpu_names) if run is not None else end.get("gpus")) or launch.get("gpus")
    limit_s = launch.get("time_limit_s")
    status = run.state if run is not None else "running" if cell.state == LIVE else cell.state
    return [
        str(cell.number),
        cell.cell.phase,
        cell.cell.name,
        *(_change(cell, name) for name in names),
        "" if gpus is None else ",".join(map(str, gpus)) if isinstance(gpus, list) else str(gpus),
        duration(limit_s) if isinstance(limit_s, int | float) else "",
        status,
        "" if step is None else str(step),
        f"{1 / step_s:.3g}" if isinstance(step_s, int | float) and step_s > 0 and run is None else "",
        _number(end["fps"]) if "fps" in end else "",
        value,
        _shorten(note or _why(cell) or cell.origin or ""),
    ]


def _change(cell: CellState, name: str) -> str:
    """Return a setting of a cell, with the value it was planned with where a retry has changed it."""
    planned, value = cell.planned(name), cell.setting(name)
    return f"{planned} → {value}" if planned != value and planned is not None else "" if value is None else str(value)


def _run_row(cell: CellState, run_id: str, events: Sequence[RecordEvent], run: Run | None, home: Path) -> list[str]:
    end: Mapping[str, Any] = next((e for e in reversed(events) if e["kind"] in ("cell_ended", "cell_failed")), {})
    begin: Mapping[str, Any] = next((e for e in events if e["kind"] == "cell_started"), {})
    measured: Mapping[str, Any] = next((e for e in reversed(events) if e["kind"] == "cell_measured"), {})
    attempt = run.attempt if run is not None else end.get("attempt") or 1
    peak = end.get("peak_mib")
    return [
        cell.cell.name,
        run_id,
        str(end.get("started_at") or begin.get("at") or "")[:19],
        str(end.get("ended_at") or "")[:19],
        run.state if run is not None else str(end.get("state") or "running"),
        _shorten(end.get("why") or _describe_failure(end)) or str(end.get("signal") or ""),
        f"{attempt} (after {count_ends(end['tries'])})" if end.get("tries") else str(attempt),
        f"{peak / _MIB_PER_GIB:.1f}" if isinstance(peak, int | float) else "",
        _describe_log_place(home, run_id, attempt),
        str(measured.get("curves") or ""),
    ]


def _describe_log_place(home: Path, run_id: str, attempt: int) -> str:
    """Return the path of an attempt's log, as HOST:PATH where it is on a host that ssh reaches."""
    for mirror in StateHome(home).list_mirrors():
        if (mirror / "runs" / run_id).is_dir():
            state = (read_json(mirror / "host.json") or {}).get("state") or mirror
            return f"{mirror.name}:{RunDir(Path(str(state)) / 'runs' / run_id).log(attempt)}"
    return str(RunDir(home / "runs" / run_id).log(attempt))


def _why(cell: CellState) -> str:
    failure = cell.end.get("failure") or {}
    if why := cell.end.get("why"):
        return str(why)
    before = f"after {count_ends(cell.tries)}" if cell.tries else ""
    if failure and (cell.has_diverged or cell.state not in ("finished", "timed_out", LIVE)):
        why = _describe_failure(cell.end)
    elif cell.bad_end:
        why = f"the metric ended as {cell.bad_end}"
    else:
        why = str(cell.end.get("text") or "") if cell.state in ("failed", "lost") else ""
    return ", ".join(filter(None, (why, before)))


def _describe_failure(end: Mapping[str, Any]) -> str:
    """Return why a run failed, and whether the recovery policy stopped it for that."""
    failure = end.get("failure") or {}
    by = "policy stopped it" if failure and end.get("stopped_by") == "policy" else None
    return ": ".join(filter(None, [by, failure.get("kind"), failure.get("line")]))


def _varying(cells: Sequence[CellState]) -> list[str]:
    names = dict.fromkeys(name for cell in cells for name in cell.settings)
    return [name for name in names if len({_change(cell, name) for cell in cells}) > 1]


def _as_field(value: object) -> str:
    return printable(" ".join(str("" if value is None else value).split()))


def _number(value: Any) -> str:
    return f"{significant(value):g}" if isinstance(value, int | float) else str(value)


def _shorten(text: str) -> str:
    return shorten_facts(" ".join(text.split()), _LONGEST_TEXT)


_PATIENCE_S = 2.0  # the conductor of a sweep that has just ended is about to exit


def note_cells(
    sweep: Sweep,
    store: RunStore,
    notes: Mapping[str, str],
    by: str,
    environ: Mapping[str, str],
    *,
    is_of_run: bool = False,
) -> None:
    """Add a note to each of these cells or trials. The newest one of a cell counts. Reads and writes files.

    ``is_of_run``: the newest run of the cell has it already.

    The conductor brings the log up to date. That of an ended sweep has exited, so this does.

    Raises:
        BadArgument: there is no such cell, a note is too long or holds the value of a secret, or the proposer keeps
            a trial that is too good; nothing was noted.
        OSError: a note was not written.
    """
    trials = read_trials(sweep).trials if sweep.spec.open is not None else {}
    names = [*(cell.cell.name for cell in sweep.cells), *trials]
    for cell, text in notes.items():
        if cell not in names:
            near = ", ".join(find_near_names(cell, names))
            cause = f"{sweep.sweep_id} has no cell {cell[:80]!r}."
            raise BadArgument("notes", cause, f"Did you mean {near}?" if near else "")
        if len(text) > LONGEST_NOTE:
            raise BadArgument("notes", f"that of {cell} has {len(text)} characters; at most {LONGEST_NOTE}.")
        is_kept = text.strip().lower().startswith("keep")
        if is_kept and (trial := trials.get(cell)) is not None and trial.verdict == "suspect" and trial.by == by:
            cause = f"{cell} is too good, and you ({by}) proposed it: a person or another owner keeps it."
            raise BadArgument("notes", cause, f"A person can: runward note {sweep.sweep_id}/{cell} keep WHY")
    check_no_secret({"notes": notes}, find_distinct_secrets(environ, store.home.secrets))
    directory, runs = store.sweeps.files_of(sweep), {cell.cell.name: cell.run_id for cell in sweep.cells}
    for cell, text in notes.items():
        append_note(directory.notes, {"cell": cell, "note": text, "by": by})
        if not is_of_run and (run_id := runs.get(cell)):
            verdict, _, said = text.partition(": ")
            _note_run(store, run_id, by, *((verdict, said) if verdict in VERDICTS else (None, text)))
    if not sweep.ended or (lock := take_lock(directory.lock, _PATIENCE_S)) is None:
        return
    try:
        with contextlib.suppress(OSError):
            SweepLog(directory).write(store.sweeps.observe(sweep.sweep_id), {})
    finally:
        release_lock(lock)


def keep_note(
    store: RunStore, run: Watched, verdict: object, text: object, by: str, environ: Mapping[str, str], trial: str = ""
) -> dict[str, Any]:
    """Append a note on a run or sweep, masked, and return it; the newest one on a cell stands in its sweep's tables.

    ``trial``: of the sweep, which the note is about. Blocks. BadArgument: it says nothing, is too long, or cannot be
    kept, or the proposer judges a trial that is too good.
    """
    if not isinstance(text, str) or len(text) > MOST_CHARS:
        raise BadArgument("text", f"is not a text of at most {MOST_CHARS:,} characters.")
    if verdict is not None and verdict not in VERDICTS:
        raise BadArgument("verdict", f"is not one of {', '.join(VERDICTS)}.")
    if not text.strip() and verdict is None:
        raise BadArgument("text", "is empty.")
    masked = mask_secrets(mask_distinct_secrets(text, environ, store.home.secrets))
    if trial and isinstance(run, Sweep):
        note_cells(run, store, {trial: ": ".join(filter(None, (verdict, masked)))}, by, environ)
        return {"by": by, "verdict": verdict, "text": masked, "trial": trial}
    try:
        note = _note_run(store, run.run_id, by, verdict, masked)
        if isinstance(run, Run) and run.spec.sweep and run.spec.cell:
            said = shorten_middle(": ".join(filter(None, (verdict, masked))), LONGEST_NOTE)
            with contextlib.suppress(RunwardError):  # the sweep was removed, or planned anew
                note_cells(
                    store.sweeps.observe(run.spec.sweep), store, {run.spec.cell: said}, by, environ, is_of_run=True
                )
    except OSError as error:
        raise BadArgument("text", f"it could not be kept: {error.strerror}.") from error
    return note


def _note_run(store: RunStore, run_id: str, by: str, verdict: object, text: str) -> dict[str, Any]:
    note = append_note(store.directory_of(run_id) / NOTES, {"by": by, "verdict": verdict, "text": text})
    mark_noted(store.home.path, run_id)
    return note
