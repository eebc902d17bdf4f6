"""A run's curves as the page draws them: every extreme and every NaN stays. Several runs beside each other."""

import json
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from mcp_server.errors import BadArgument
from mcp_server.record.code.code_snapshot import read_code_snapshot
from mcp_server.record.events import NOTEWORTHY
from mcp_server.record.results.notes import NOTES, read_notes
from mcp_server.record.state import Run, posix
from mcp_server.record.sweeps.sweep_ranking import find_differing, rank_groups
from mcp_server.record.sweeps.sweep_spec import read_cell_notes
from mcp_server.record.sweeps.sweep_state import Sweep
from mcp_server.results.code_differences import find_code_differences, read_code_diff, read_ran_code
from mcp_server.results.comparison_cells import find_differences, merge_overrides
from mcp_server.results.configuration import read_configuration
from mcp_server.results.metrics import read_metrics
from mcp_server.results.run_differences import describe_run_differences
from mcp_server.scalars.downsample import pick_finite, pick_points
from mcp_server.scalars.from_log import read_printed
from mcp_server.scalars.run_scalars import NoScalars, ScalarReading
from mcp_server.scalars.series import Series
from mcp_server.scalars.summary import summarise_series
from mcp_server.scalars.tag_names import best_direction, match_tags, rank_headline
from mcp_server.store.run_store import RunStore
from mcp_server.sweeps.tables.settings_table import describe_states
from mcp_server.sweeps.tables.trial_table import describe_state
from mcp_server.sweeps.trials.ledger import list_rows
from mcp_server.sweeps.trials.trials import read_trials
from mcp_server.text.formatting import plain_value, shorten_facts, shorten_middle
from mcp_server.tools.support.context import ServerContext
from mcp_server.views.people_rows import name_kind
from mcp_server.views.progress_text import first_metrics
from mcp_server.views.sweep_status import find_kind

POINTS, SPARK_POINTS = 1_500, 40
_MOST_POINTS = 4_500  # of all tags together: 200 KB
_MOST_TAGS, _MOST_DRAWN, _MOST_ODD = 2_000, 40, 200
_EVENT_CHARS = 160


def read_curves(server: ServerContext, run: Run) -> ScalarReading:
    """Return the series of a run: of its files, else the numbers that it printed; empty where it has none. Blocks."""
    notes: list[str] = []
    located = server.scalars.locate(run)
    try:
        if located.locations:
            reading = server.scalars.read(located.locations, run.run_id)
            if reading.series:
                return reading
            notes += reading.notes
    except NoScalars as error:
        notes.append(str(error))
    notes += [located.note] if located.note else []
    printed = read_printed(run, server.store)
    if printed is None:
        return ScalarReading(run.run_id, {}, tuple(notes))
    target, reading = printed
    return ScalarReading(run.run_id, reading.series, (*notes, *reading.notes), str(target.path))


def list_tags(run: Run, reading: ScalarReading) -> dict[str, Any]:
    """Return the tags of a run with their last values and extremes: that of its row first, then the main ones."""
    tags, of_row = [], find_tags_of_row(run, reading)
    for tag in sorted(reading.series, key=lambda tag: (tag not in of_row, *rank_headline(tag)))[:_MOST_TAGS]:
        one = summarise_series(reading.series[tag], now_s=time.time())
        facts = {"last": one.last, "last_step": one.last_step, "min": one.min, "max": one.max, "nan": one.nan}
        more = {"first_step": one.first_step, "inf": one.inf, "best_is": best_direction(tag)}
        tags.append({"tag": tag, "points": one.count, **facts, **more})
    return {"tags": tags, "total": len(reading.series), "source": reading.source or None, "notes": list(reading.notes)}


def draw_curves(
    run: Run, reading: ScalarReading, tags: Sequence[str], points: int, low: int | None, high: int | None
) -> dict[str, Any]:
    """Return the series of ``tags`` with at most ``points`` each, of steps from ``low`` to ``high``. Pure.

    BadArgument: more tags than are drawn at once. Tags that the run lacks are left out.
    """
    if len(tags) > _MOST_DRAWN:
        raise BadArgument("tag", f"at most {_MOST_DRAWN} at once.")
    known = [tag for tag in dict.fromkeys(tags) if tag in reading.series]
    most = max(2, min(points, _MOST_POINTS // max(1, len(known))))
    series = [{"tag": tag, **reduce_series(_cut(reading.series[tag], low, high), most)} for tag in known]
    clock = next((one for one in reading.series.values() if np.isfinite(one.walls).all() and len(one.walls)), None)
    return {
        "series": series,
        "attempts": _list_attempts(run, clock),
        "events": _list_events(run, clock),
        "notes": list(reading.notes),
    }


def reduce_series(series: Series, points: int) -> dict[str, Any]:
    """Return a series with at most ``points`` finite points and its NaN, as lists of one length. Pure."""
    nan, inf = np.flatnonzero(np.isnan(series.values)), np.flatnonzero(np.isinf(series.values))
    shown = _thin(nan)
    chosen = np.concatenate([pick_finite(series, points), shown])
    chosen = chosen[series.steps[chosen].argsort(kind="stable")]
    times = [round(at, 2) if math.isfinite(at) else None for at in series.walls[chosen].tolist()]
    return {
        "steps": series.steps[chosen].tolist(),
        "times": times if any(at is not None for at in times) else None,
        "values": [None if math.isnan(value) else float(f"{value:.7g}") for value in series.values[chosen].tolist()],
        "nan": series.steps[shown].tolist(),
        "inf": series.steps[_thin(inf)].tolist(),
        "total": int(series.values.size),
        "restarts": list(series.certain_restarts) or None,
    }


def find_tags_of_row(run: Run, reading: ScalarReading) -> list[str]:
    """Return the tags that the row of a run means by the name of its metric."""
    word = next((name for name, _ in first_metrics(run.progress.get("metrics") or {})), None)
    return match_tags(word, reading.series) if word is not None else []


def draw_spark(run: Run, reading: ScalarReading, tag: str | None) -> dict[str, Any] | None:
    """Return the small curve of a row: of the metric whose value it shows, unless one is named; None without any."""
    for name in [tag] if tag is not None else find_tags_of_row(run, reading):
        if (series := reading.series.get(name)) is not None and np.isfinite(series.values).any():
            _, values = pick_points(series, SPARK_POINTS)
            last = float(series.values[-1])
            return {"tag": name, "values": [float(f"{value:.5g}") for value in values.tolist()], "last": last}
    return None


def _cut(series: Series, low: int | None, high: int | None) -> Series:
    if low is None and high is None:
        return series
    inside = np.ones(len(series.steps), bool)
    if low is not None:
        inside &= series.steps >= low
    if high is not None:
        inside &= series.steps <= high
    return series.where(inside)


def _thin(indices: Any) -> Any:
    return indices[:: -(-indices.size // _MOST_ODD) or 1]


def _find_step(clock: Series | None, at: object) -> int | None:
    """Return the step that was logged last before a time, None where that is unknown."""
    if clock is None or not isinstance(at, str):
        return None
    place = int(np.searchsorted(clock.walls, posix(at), side="right")) - 1
    return int(clock.steps[max(0, place)])


def _list_attempts(run: Run, clock: Series | None) -> list[dict[str, Any]]:
    started = [event for event in run.events if event["kind"] == "started"]
    return [
        {"n": event.get("attempt", 1), "step": _find_step(clock, event.get("at")), "at": event.get("at")}
        for event in started
    ]


def _list_events(run: Run, clock: Series | None) -> list[dict[str, Any]]:
    shown: Sequence[Mapping[str, Any]] = [event for event in run.events if event["kind"] in NOTEWORTHY]
    return [
        {
            "step": event.get("step", _find_step(clock, event.get("at"))),
            "at": event.get("at"),
            "kind": event["kind"],
            "text": shorten_facts(str(event.get("text", "")), _EVENT_CHARS),
        }
        for event in shown
        if event["kind"] != "first_step"
    ][-_MOST_ODD:]


MOST_RUNS = 40
_MOST_SETTINGS, _MOST_METRICS, _VALUE_CHARS = 200, 60, 200


def compare(server: ServerContext, runs: Sequence[Run]) -> dict[str, Any]:
    """Return the settings that differ between runs, and their metrics, by run. Reads files."""
    settings, metrics, codes = [], dict[str, dict[str, Any]](), []
    for run in runs:
        rundir = server.store.record_of(run)
        snapshot = read_code_snapshot(rundir, run.attempt)
        own, code = read_configuration(run, snapshot), read_ran_code(run.run_id, run.spec.cwd, snapshot)
        settings.append(own | ({"commit": code.described_commit} if code.commit else {}))
        codes.append(code)
        for one in read_metrics(run, server.scalars, (), rundir).metrics:
            metrics.setdefault(one.tag, {})[run.run_id] = one.last
    merged = merge_overrides(settings)
    differing, places = find_differences(merged)
    shown = [*differing, *places][:_MOST_SETTINGS]
    ids = [run.run_id for run in runs]
    values = {
        name: {
            run_id: shorten_middle(own[name], _VALUE_CHARS)
            for run_id, own in zip(ids, merged, strict=True)
            if name in own
        }
        for name in shown
    }
    tags = sorted(metrics, key=lambda tag: (-len(metrics[tag]), rank_headline(tag)))[:_MOST_METRICS]
    notes = find_code_differences(codes)
    if len(runs) == 2:  # noqa: PLR2004 - as compare_runs(diff=true) says it, but for the settings
        notes = describe_run_differences(server.store, server.scalars, *runs, environ=server.environ, settings=False)
    return {"settings": values, "metrics": {tag: metrics[tag] for tag in tags}, "notes": notes}


def show_code(server: ServerContext, run: Run, other: Run | None = None) -> dict[str, Any]:
    """Return the code of a run against its commit, or against the code of ``other``, as far as it was kept."""
    text, note = read_code_diff(server.store, server.environ, run, other)
    names = [line.rpartition(" b/")[2] for line in text.splitlines() if line.startswith("diff --git ")]
    return {"text": text, "files": list(dict.fromkeys(names)), "note": note}


def describe_sweep_table(store: RunStore, sweep: Sweep) -> dict[str, Any]:
    """Return a sweep's settings in their order, with the runs of each, and what failed by cause."""
    groups = rank_groups(sweep.cells, sweep.spec.goal) if sweep.spec.open is None else []
    names, failed_cells = find_differing(groups), set(map(id, sweep.failed))
    causes = [
        Counter(name_kind(find_kind(cell)) for cell in group.cells if id(cell) in failed_cells) for group in groups
    ]
    metric = sweep.spec.metric
    rows = [
        {
            "cell": group.first.cell.name,
            "run_ids": [cell.run_id for cell in group.cells if cell.run_id],
            "settings": {name: plain_value(group.settings.get(name)) for name in names if name in group.settings},
            "phase": group.first.cell.phase if len(sweep.spec.phases) > 1 else None,
            "n": len(group.results),
            "mean": group.mean,
            "sd": group.deviation,
            "state": describe_states(group, metric) or group.first.state,
            "causes": ", ".join(f"{count} {kind}" for kind, count in causes[number].items()) or None,
            "best": number == 0 and group.mean is not None,
        }
        for number, group in enumerate(groups)
    ]
    failed: dict[str, list[str]] = {}
    for cell in sweep.failed:
        failed.setdefault(name_kind(find_kind(cell)), []).append(cell.run_id or cell.cell.name)
    return {
        "metric": metric,
        "goal": sweep.spec.goal if metric else None,
        "table": {"rows": rows},
        "failed": failed,
        "notes": read_notes(store.directory_of(sweep.sweep_id) / NOTES),
        "agent": f"compare_runs(sweep={json.dumps(sweep.sweep_id)})",
        **({} if sweep.spec.open is None else _describe_trials(store, sweep)),
    }


def _describe_trials(store: RunStore, sweep: Sweep) -> dict[str, Any]:
    """Return the trials of an open sweep with runs and newest note, and the state of the research in sentences."""
    seen, notes = read_trials(sweep), read_cell_notes(store.sweeps.files_of(sweep))
    runs = {name: [run.cell.run_id for run in trial.runs if run.cell.run_id] for name, trial in seen.trials.items()}
    return {
        "trials": [
            {**asdict(row), "run_ids": runs[row.trial], "note": notes.get(row.trial)} for row in list_rows(seen)
        ],
        "state": describe_state(seen),
    }


def check_count(run_ids: Sequence[str]) -> None:
    """Refuse a comparison of no run, or of too many. BadArgument."""
    if not 1 <= len(run_ids) <= MOST_RUNS:
        raise BadArgument("run", f"name 1 to {MOST_RUNS}.")
