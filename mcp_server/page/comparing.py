"""Several runs beside each other: the settings and code in which they differ, and a sweep's settings ranked."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mcp_server.errors import BadArgument
from mcp_server.record.code.code_snapshot import read_code_snapshot
from mcp_server.record.results.notes import NOTES, read_notes
from mcp_server.record.state import Run
from mcp_server.record.sweeps.sweep_ranking import find_differing, rank_groups
from mcp_server.record.sweeps.sweep_spec import read_cell_notes
from mcp_server.record.sweeps.sweep_state import Sweep
from mcp_server.results.code_differences import find_code_differences, read_code_diff, read_ran_code
from mcp_server.results.comparison_cells import find_differences, merge_overrides
from mcp_server.results.configuration import read_configuration
from mcp_server.results.metrics import read_metrics
from mcp_server.results.run_differences import describe_run_differences
from mcp_server.scalars.tag_names import rank_headline
from mcp_server.store.run_store import RunStore
from mcp_server.sweeps.tables.settings_table import describe_states
from mcp_server.sweeps.tables.trial_table import describe_state
from mcp_server.sweeps.trials.ledger import list_rows
from mcp_server.sweeps.trials.trials import read_trials
from mcp_server.text.formatting import plain_value, shorten_middle
from mcp_server.tools.support.context import ServerContext
from mcp_server.views.people_rows import name_kind
from mcp_server.views.sweep_status import find_kind

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
