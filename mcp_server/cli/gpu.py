"""`runward gpu`: a table of this machine's GPUs, with the same reasons as gpu_check."""

import argparse
import contextlib
import json
import os
import sys
import time

from rich.console import Group
from rich.live import Live
from rich.text import Text

from mcp_server.cli.tables import draw_table, open_console
from mcp_server.gpus.leases import Leases, lease_directory
from mcp_server.gpus.query import query_gpus
from mcp_server.gpus.snapshot import Gpu, Snapshot
from mcp_server.hosts.config import read_gpu_limits
from mcp_server.store.state_home import StateHome
from mcp_server.views.gpu_report import GpuReport, list_flags, list_processes, name_gpus, report_machine

_EVERY_S = 2.0
_COLUMNS = ("GPU", "UUID", "MEMORY MiB", "UTIL", "TEMP", "POWER", "SM CLOCK", "STATE")


def run(arguments: argparse.Namespace) -> int:
    """Print the GPUs, once or repeatedly, and return 1 when a GPU has a fault, or none is free."""
    if not arguments.watch:
        snapshot, holders, report = _query_report()
        if arguments.json:
            print(json.dumps(report.model_dump(mode="json"), ensure_ascii=False, indent=2))
        else:
            open_console().print(_render(snapshot, holders, report))
        return 0 if report.ok else 1
    if arguments.json:
        return _stream_reports()
    with contextlib.suppress(KeyboardInterrupt), Live(auto_refresh=False) as live:
        while True:
            live.update(_render(*_query_report()), refresh=True)
            time.sleep(_EVERY_S)
    return 0


def _stream_reports() -> int:
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            print(json.dumps(_query_report()[2].model_dump(mode="json"), ensure_ascii=False), flush=True)
            time.sleep(_EVERY_S)
    return 0


def _query_report() -> tuple[Snapshot, dict[str, str], GpuReport]:
    snapshot = query_gpus(sys.executable, os.environ)
    holders = {uuid: holder.text for uuid, holder in Leases(lease_directory(os.environ)).holders().items()}
    limits = read_gpu_limits(StateHome.of(os.environ))
    return snapshot, holders, report_machine(snapshot, holders, limits=limits)


def _render(snapshot: Snapshot, holders: dict[str, str], report: GpuReport) -> Group:
    table = draw_table(())
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column in ("UUID", "STATE") else "right", overflow="fold")
    names = name_gpus([gpu.uuid for gpu in snapshot.gpus], len(snapshot.gpus))
    for gpu in snapshot.gpus:
        name = names[gpu.uuid]
        table.add_row(*_render_values(gpu, name), _render_state(gpu, holders.get(gpu.uuid), name in report.free))
    reasons = [Text(reason, style="green" if report.ok else "yellow") for reason in report.reasons]
    title = f"{report.header or 'no GPUs'}; driver {report.driver or 'unknown'}"
    return Group(Text(title, style="dim"), table, *reasons)


def _render_values(gpu: Gpu, name: str) -> list[str]:
    def amount(value: float | None, unit: str = "", of: float | None = None) -> str:
        limit = "" if of is None else f"/{of:.0f}"
        return "" if value is None else f"{value:.0f}{limit}{unit}"

    return [
        str(gpu.index),
        name,
        amount(gpu.memory_used_mib, of=gpu.memory_total_mib),
        amount(gpu.utilisation, "%"),
        amount(gpu.temperature_c, " C"),
        amount(gpu.power_w, " W", of=gpu.power_limit_w),
        amount(gpu.sm_clock_mhz, " MHz"),
    ]


def _render_state(gpu: Gpu, holder: str | None, is_free: bool) -> Text:
    words = [*list_flags(gpu), *list_processes(gpu), *([f"leased by {holder}"] if holder else [])]
    state = "; ".join(words)
    if is_free:
        return Text(f"free; {state}" if state else "free", style="green")
    return Text(state or "not free", style="red" if gpu.lost or gpu.hangs else "cyan")
