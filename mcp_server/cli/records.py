"""`runward show`, `note`, `import`, `prune`: records are read, noted on, made of others' trainings, and removed."""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mcp_server.cli.output import print_json
from mcp_server.errors import BadArgument, RunNotFound
from mcp_server.record.results.notes import tell_note
from mcp_server.record.sweeps.sweep_state import Sweep, Watched
from mcp_server.results.memory.imports import import_trainings
from mcp_server.results.memory.pruning import PruneSelection, plan_prune, prune
from mcp_server.results.ran_status import describe_ran
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.sweeps.tables.log import keep_note
from mcp_server.text.durations import find_duration
from mcp_server.text.formatting import format_size, printable

_INDENT = "  "
_DID = {"new": "imported", "again": "renewed", "known": "known", "run": "a run's"}  # written by a run of runward


def run(arguments: argparse.Namespace) -> int:
    """Do what the verb says, and return 0."""
    store = RunStore(StateHome.of(os.environ))
    return {"show": _show, "note": _note, "import": _import, "prune": _prune}[arguments.command](store, arguments)


def _show(store: RunStore, arguments: argparse.Namespace) -> int:
    status = describe_ran(store, Scalars(store.home, store), store.find(arguments.run_id))
    facts = status.model_dump(mode="json")
    if arguments.json:
        print_json(facts)
    else:
        print("\n".join(_lay_out(facts)))
    return 0


def _import(store: RunStore, arguments: argparse.Namespace) -> int:
    owner, roots = arguments.owner or store.home.owner(os.environ), [Path(path) for path in arguments.paths]
    if not arguments.dry_run:
        store.home.create()
    scalars = Scalars(store.home, store)
    done, notes = import_trainings(roots, store, scalars, owner, dry_run=arguments.dry_run)
    if arguments.json:
        print_json({"trainings": [asdict(one) for one in done], "notes": notes})
        return 0
    for one in done:
        name = "" if arguments.dry_run and one.did == "new" else f" {one.run_id}"
        print(f"{_DID[one.did]:<9}{name} {printable(one.source)}")
    counts = Counter(_DID[one.did] for one in done)
    print(*notes, ", ".join(f"{count} {did}" for did, count in counts.items()) or "Nothing imported.", sep="\n")
    return 0


def _prune(store: RunStore, arguments: argparse.Namespace) -> int:
    older_s = find_duration(arguments.older) if arguments.older else None
    if arguments.older and (older_s is None or older_s < 0):
        raise BadArgument("--older", f"{arguments.older!r} is no time; times are 90d, 12h.")
    facts = {name: getattr(arguments, name) for name in ("failed", "keep_best", "metric", "checkpoints")}
    selection = PruneSelection(tuple(arguments.runs), older_s, **facts)
    plan = plan_prune(selection, store, Scalars(store.home, store))
    failures = prune(plan, store) if arguments.yes else []
    if arguments.json:
        paths = {str(path): size for path, size in plan.paths.items()}
        checkpoints = list(map(str, plan.checkpoints))
        told = {"removed" if arguments.yes else "would_remove": paths, "checkpoints": checkpoints, "kept": plan.kept}
        print_json({**told, "failures": failures})
        return 1 if failures else 0
    for run in plan.runs:
        print(f"{run.run_id} {run.state} {run.ended_at or run.spec.created_at}")
    for path in plan.checkpoints:
        print(f"checkpoint {printable(str(path))}")
    for run_id, why in plan.kept.items():
        print(f"stays: {run_id} ({printable(why)})")
    size = format_size(sum(plan.paths.values()))
    print(
        f"{len(plan.runs)} runs, {len(plan.sweeps)} sweeps, {len(plan.checkpoints)} checkpoints, {size} of records",
        end="",
    )
    print(" removed." if arguments.yes else ". Nothing was removed: the same with --yes does it.")
    for failure in failures:
        print(f"Not removed: {printable(failure)}.", file=sys.stderr)
    return 1 if failures else 0


def _lay_out(value: Any, indent: str = "") -> Iterator[str]:
    """Yield the lines of a value: a name and its text a line, and what is inside of it below."""
    pairs = value.items() if isinstance(value, dict) else (("-", each) for each in value)
    for name, each in pairs:
        label = f"{indent}{printable(str(name))}{'' if name == '-' else ':'}"
        if isinstance(each, dict | list) and each:
            yield label
            yield from _lay_out(each, indent + _INDENT)
        else:
            yield f"{label} {printable(str(each))}"


def _note(store: RunStore, arguments: argparse.Namespace) -> int:
    by, sweep = f"{store.home.owner(os.environ)}, on a terminal", _find_open_sweep(store, arguments.run_id)
    trial = arguments.run_id.partition("/")[2] if sweep is not None else ""
    noted = sweep or _find(store, arguments.run_id)
    note = keep_note(store, noted, arguments.verdict, " ".join(arguments.text), by, os.environ, trial)
    if arguments.json:
        print_json({"sweep_id" if sweep is not None else "run_id": noted.run_id, **note})
    else:
        print(f"Noted on {f'{noted.run_id}/{trial}' if trial else noted.run_id}: {tell_note(note)}")
    return 0


def _find_open_sweep(store: RunStore, name: str) -> Sweep | None:
    """Return the open sweep of SWEEP/TRIAL, None where it is none, or a cell of it."""
    sweep_name, slash, trial = name.partition("/")
    sweep = store.sweeps.find(sweep_name) if slash else None
    return sweep if sweep is not None and sweep.spec.open is not None and "." not in trial else None


def _find(store: RunStore, name: str) -> Watched:
    """Return the run or sweep, or the run of SWEEP/CELL."""
    try:
        return store.find_any(name)
    except RunNotFound:
        sweep_name, slash, cell_name = name.partition("/")
        if not slash:
            raise
    sweep = store.sweeps.find(sweep_name)
    cell = next((each for each in sweep.cells if each.cell.name == cell_name), None)
    if cell is None or not cell.run_id:
        why = f"{sweep.sweep_id} has no cell {cell_name[:80]!r}" if cell is None else f"{cell_name} has no run yet"
        raise BadArgument("run_id", f"{why}.", f"runward sweep {sweep.sweep_id} names its cells.")
    return store.observe(cell.run_id)
