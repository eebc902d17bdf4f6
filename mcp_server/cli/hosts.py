"""`runward hosts`: which machines of hosts.toml can be reached by ssh, and what they have."""

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from mcp_server.backends.ssh.ssh_backend import query_host_gpus
from mcp_server.backends.ssh.ssh_channel import channel_of, forget_refusal
from mcp_server.cli.output import print_json
from mcp_server.cli.tables import draw_table
from mcp_server.errors import BadArgument, RunwardError
from mcp_server.hosts.config import read_hosts_file
from mcp_server.store.run_index import RunQuery
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.views.gpu_report import report_machine

_COLUMNS = ("HOST", "REACHABLE", "PYTHON", "TMUX", "GPUS", "LIVE RUNS", "STATE DIRECTORY")


@dataclass(frozen=True)
class HostReport:
    """One host as a person sees it. ``why``: it cannot be reached."""

    name: str
    reachable: bool
    why: str = ""
    python: str = ""
    tmux: str = ""
    gpus: str = ""
    live_runs: int | None = None  # None: unknown
    state: str = ""


def run(arguments: argparse.Namespace) -> int:
    """Print what the hosts have; return 1 when one cannot be reached. A refused login is repeated only by name."""
    home = StateHome.of(os.environ)
    reports = report_hosts(home, [arguments.host] if arguments.host else [])
    if arguments.json:
        print_json([asdict(report) for report in reports])
    else:
        _print(reports)
    return 0 if all(report.reachable for report in reports) else 1


def report_hosts(home: StateHome, names: Sequence[str] = ()) -> list[HostReport]:
    """Return a report on these hosts, by default all that are reached by ssh. BadArgument: there is no such."""
    known = [host.name for host in read_hosts_file(home).hosts.values() if host.ssh is not None]
    if unknown := [name for name in names if name not in known]:
        there = f"Those with ssh are {', '.join(known)}." if known else "None there has ssh = ALIAS."
        raise BadArgument("HOST", f"hosts.toml does not reach {unknown[0]!r}.", there)
    for name in names:
        forget_refusal(home.hosts / name)
    if not known:
        return []
    with ThreadPoolExecutor(len(known)) as threads:
        return list(threads.map(lambda name: _report(home, name), names or known))


def _report(home: StateHome, name: str) -> HostReport:
    mirror = home.hosts / name
    channel = channel_of(mirror)
    try:
        channel.open()
    except RunwardError as error:
        return HostReport(name, reachable=False, why=str(getattr(error, "why", error)))
    hello = channel.hello
    runs = RunStore(home).list_runs(RunQuery("live", mirror=str(mirror)))
    return HostReport(
        name,
        reachable=True,
        python=str(hello.get("python") or ""),
        tmux=str(hello.get("tmux") or "").removeprefix("tmux ") or "none",
        gpus=_describe_gpus(mirror),
        live_runs=len(runs),
        state=str(hello.get("state") or ""),
    )


def _describe_gpus(mirror: Path) -> str:
    try:
        state = query_host_gpus(mirror)
    except RunwardError:
        return "unknown"
    if state.snapshot.trouble:
        return "no driver" if state.snapshot.trouble == "no_driver" else "unknown"
    report = report_machine(state.snapshot, state.holders)
    return f"{len(report.free)} of {len(state.snapshot.gpus)} free"


def _print(reports: Sequence[HostReport]) -> None:
    console = Console()
    if not reports:
        console.print("hosts.toml has no host with ssh = ALIAS; guide://other_machines says how.")
        return
    rows = []
    for one in reports:
        cells = [one.name, "yes", one.python, one.tmux, one.gpus, str(one.live_runs), one.state]
        if not one.reachable:
            cells = [one.name, f"no: {one.why}", "", "", "", "unknown", ""]
        rows.append([Text(cell, style="" if one.reachable else "yellow") for cell in cells])
    console.print(draw_table(_COLUMNS, rows, overflow="fold"))
