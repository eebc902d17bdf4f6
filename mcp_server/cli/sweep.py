"""`runward sweep`: list sweeps. Show one with its cells ranked. Note something about a cell."""

import argparse
import os
import sys
from pathlib import Path

from rich.text import Text

from mcp_server.cli.ls import COLOURS
from mcp_server.cli.output import print_json
from mcp_server.cli.tables import draw_table, open_console
from mcp_server.errors import BadArgument, RunwardError
from mcp_server.record.sweeps.sweep_ranking import find_best
from mcp_server.record.sweeps.sweep_spec import read_cell_notes
from mcp_server.record.sweeps.sweep_state import Sweep
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.sweeps.tables.log import SweepLog
from mcp_server.sweeps.tables.trial_table import COLUMNS, describe_row, describe_state, find_trial, read_diff
from mcp_server.sweeps.trials.ledger import list_rows
from mcp_server.sweeps.trials.trials import read_trials
from mcp_server.system import tmux
from mcp_server.text.formatting import printable
from mcp_server.views.sweep_status import SweepStatus, describe_best, describe_sweep

_COLUMNS = ("SWEEP", "STATE", "CELLS", "FAILED", "BEST", "OWNER", "PLANNED")


def run(arguments: argparse.Namespace) -> int:
    """List sweeps, print or export one, and return the exit status."""
    store = RunStore(StateHome.of(os.environ))
    if arguments.sweep is None:
        for option in ("csv", "latex", "plot", "diff", "output"):
            if getattr(arguments, option):
                raise BadArgument(f"--{option}", f"name the sweep: runward sweep SWEEP --{option}.")
        return _list(store, arguments.limit, as_json=arguments.json)
    sweep = store.sweeps.find(arguments.sweep)
    if arguments.csv or arguments.latex or arguments.plot or arguments.diff:
        _export(sweep, store, arguments)
        return 0
    if arguments.output:
        raise BadArgument("--output", "needs what to write.", "Add --csv, --latex, --plot or --diff.")
    return _show(sweep, store, as_json=arguments.json)


def _export(sweep: Sweep, store: RunStore, arguments: argparse.Namespace) -> None:
    output = arguments.output or (f"{sweep.sweep_id}.png" if arguments.plot else None)
    path = None if output is None else Path(output)
    if arguments.plot and path is not None:
        from mcp_server.scalars.run_scalars import Scalars  # noqa: PLC0415 - 100 ms
        from mcp_server.sweeps.tables.plot import FORMS, draw_sweep  # noqa: PLC0415 - 145 ms

        form = path.suffix.lower().lstrip(".")
        if form not in FORMS:
            raise BadArgument("--output", f"{path} is no .png, .svg or .pdf.", "No picture was written.")
        data = draw_sweep(sweep, store, Scalars(store.home, store), form)
    elif arguments.diff:
        data = read_diff(store.sweeps.files_of(sweep), find_trial(sweep, arguments.diff)).encode(errors="replace")
    elif arguments.csv:
        directory = store.sweeps.files_of(sweep)
        data = SweepLog(directory).render_results(sweep, read_cell_notes(directory), separator=",").encode()
    else:
        from mcp_server.sweeps.tables.latex import render_latex  # noqa: PLC0415 - 310 ms

        data = render_latex(sweep, store.home.path).encode()
    if path is None:
        sys.stdout.write(data.decode())
        return
    try:
        path.write_bytes(data)
    except OSError as error:
        raise RunwardError(f"{path}: {error.strerror}.", "Nothing was written.") from error
    print(f"Wrote {path}", file=sys.stderr)


def _list(store: RunStore, limit: int, *, as_json: bool) -> int:
    total = len(store.sweeps.list_ids())
    sweeps = store.sweeps.list_sweeps(limit)
    if as_json:
        print_json({"sweeps": [_summary(sweep) for sweep in sweeps], "total": total})
        return 0
    if not sweeps:
        print("No sweeps yet.")
        return 0
    rows: list[list[str | Text]] = []
    for sweep in sweeps:
        done, failed = f"{sum(cell.done for cell in sweep.cells)}/{len(sweep.cells)}", str(len(sweep.failed) or "")
        best = "" if (found := find_best(sweep)) is None else f"{found.group.text} {found.cell.cell.name}"
        planned = sweep.spec.created_at[:16].replace("T", " ")
        labels: list[str | Text] = [Text(sweep.sweep_id), _state(sweep), done, failed, Text(best)]
        rows.append([*labels, Text(printable(sweep.spec.owner)), planned])
    console = open_console()
    console.print(draw_table(_COLUMNS, rows, whole=("SWEEP", "STATE")))
    if total > len(sweeps):
        console.print(f"{total - len(sweeps)} older sweeps: -n {total}", style="dim")
    return 0


def _summary(sweep: Sweep) -> dict[str, object]:
    best = find_best(sweep)
    facts = {
        "sweep_id": sweep.sweep_id,
        "name": sweep.spec.name,
        "state": sweep.state,
        "cells": sweep.count(),
        "done": sum(cell.done for cell in sweep.cells),
        "failed": len(sweep.failed),
        "best": None if best is None else describe_best(best).model_dump(mode="json"),
        "owner": sweep.spec.owner,
        "created_at": sweep.spec.created_at,
        "conducted": sweep.conducted,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _show(sweep: Sweep, store: RunStore, *, as_json: bool) -> int:
    from mcp_server.scalars.run_scalars import Scalars  # noqa: PLC0415 - 100 ms
    from mcp_server.sweeps.tables.comparison import SweepTable, describe_failed, make_table  # noqa: PLC0415 - 315 ms

    status = describe_sweep(sweep, store)
    if sweep.spec.open is None:
        table = make_table(sweep, store, Scalars(store.home, store))
    else:
        seen = read_trials(sweep)
        rows = [describe_row(row, row.files, row.text) for row in list_rows(seen)]
        table = SweepTable(COLUMNS, rows, len(rows), sweep.spec.ranked_by, sweep.spec.goal, describe_state(seen))
    if as_json:
        shown = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        name = "settings" if sweep.spec.open is None else "trials"
        print_json({**status.model_dump(mode="json"), "sweep_log": _log(sweep, store), name: shown})
        return 0
    console = open_console()
    console.print(_headline(sweep, status), _state(sweep), end="\n\n", highlight=False)
    console.print(draw_table(table.columns, (map(Text, map(printable, row)) for row in table.rows)))
    lines = [printable(describe_failed(cell)) for cell in sweep.failed]
    lines += [printable(line) for line in (*(status.live or ()), *table.notes)]
    lines += [status.reason] if status.reason else []
    for line in ["", *lines] if lines else []:
        console.print(Text(line))
    console.print(f"\nlog: {_log(sweep, store)}", style="dim", highlight=False, soft_wrap=True)
    if not sweep.ended:
        console.print(tmux.attach_command(sweep.session, sweep.spec.tmux_socket), style="dim", highlight=False)
    return 0


def _headline(sweep: Sweep, status: SweepStatus) -> Text:
    counts = ", ".join(f"{count} {state}" for state, count in status.cells.items() if state != "total")
    best = find_best(sweep)
    value = "" if best is None else f"; best {status.metric} {best.text_with_run}"
    return Text(f"{sweep.sweep_id}: {status.cells['total']} cells, {counts}{value};")


def _log(sweep: Sweep, store: RunStore) -> str:
    return str(store.sweeps.files_of(sweep).log)


def _state(sweep: Sweep) -> Text:
    return Text(sweep.state, style=COLOURS.get(sweep.state, "cyan"))
