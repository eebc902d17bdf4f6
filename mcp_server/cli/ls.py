"""`runward ls`: list runs, newest first."""

import argparse
import os

from rich.text import Text

from mcp_server.cli.output import print_json
from mcp_server.cli.tables import draw_table, open_console
from mcp_server.store.freshness import refresh
from mcp_server.store.run_index import RunQuery
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.text.formatting import clock
from mcp_server.views.run_status import RunStatus, status_of
from mcp_server.views.sweep_status import line_of_sweep

_COLUMNS = ("RUN", "STATE", "EXIT", "STEP", "ELAPSED", "LAST OUTPUT", "OWNER", "STARTED")
COLOURS = {"finished": "green", "failed": "red", "killed": "yellow", "timed_out": "yellow", "lost": "magenta"}
_MOST_SWEEPS = 20  # looked at


def run(arguments: argparse.Namespace) -> int:
    """Print the runs in the asked state, at most ``arguments.limit``, and return the exit status."""
    store = RunStore(StateHome.of(os.environ))
    state = arguments.state
    query = RunQuery(state, cut_off=None if state == "lost" else False)
    runs, total = store.list_runs(query, arguments.limit), sum(store.count_states(query).values())
    statuses = [status_of(store, run, since=run.last_seq, listed=True) for run in refresh(store, runs)]
    if arguments.json:
        print_json({"runs": [status.model_dump(mode="json") for status in statuses], "total": total})
        return 0
    if not statuses:
        print("No runs yet." if state is None else f"No runs: {state}.")
        return 0
    rows = [[*_cells(one, run.spec.owner), one.host or ""] for run, one in zip(runs, statuses, strict=True)]
    columns = (*_COLUMNS, "HOST") if any(status.host for status in statuses) else _COLUMNS
    console = open_console()
    console.print(draw_table(columns, (row[: len(columns)] for row in rows), whole=("RUN", "STATE")))
    for away in {one.unreachable.host: one.unreachable for one in statuses if one.unreachable}.values():
        since = f"{away.host} cannot be reached since {away.since} ({away.why})"
        text = f"{since}: the states of its runs are the last known."
        console.print(Text(text, style="yellow"))
    if state in (None, "live"):
        newest = store.sweeps.list_sweeps(_MOST_SWEEPS) if store.home.sweeps.is_dir() else []
        for sweep in (each for each in newest if not each.ended):
            console.print(Text(f"sweep {line_of_sweep(sweep, store)}", style="dim"))
    if total > len(statuses):
        console.print(f"{total - len(statuses)} older runs: -n {total}", style="dim")
    return 0


def _cells(status: RunStatus, owner: str) -> tuple[str | Text, ...]:
    code = status.signal or ("" if status.exit_code is None else str(status.exit_code))
    total = f"/{status.total_steps}" if status.total_steps else ""
    step = "" if status.step is None else f"{status.step}{total}"
    step = f"{step} (round {status.round})" if status.round else step
    return (
        status.run_id,
        Text(status.state, style=COLOURS.get(status.state, "cyan")),
        status.failure.kind if status.failure else code,
        step,
        "" if status.elapsed_s is None else clock(status.elapsed_s),
        _describe_output(status),
        Text(owner),
        (status.started_at or "")[:16].replace("T", " "),
    )


def _describe_output(status: RunStatus) -> str:
    if status.unreachable:
        return f"{status.unreachable.host} is away"
    return "" if status.last_output_s is None else f"{clock(status.last_output_s)} ago"
