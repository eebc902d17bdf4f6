"""`runward gpu`: the GPUs of this machine as a table; the same verdict as gpu_check's."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mcp_server.gpus import query
from mcp_server.gpus.leases import Leases, lease_directory
from mcp_server.gpus.snapshot import Gpu, Snapshot
from mcp_server.views import gpu_report

_EVERY_S = 2.0
_COLUMNS = ("GPU", "UUID", "MEMORY MiB", "UTIL", "TEMP", "POWER", "SM CLOCK", "STATE")


def run(arguments: argparse.Namespace) -> int:
    """Print the GPUs, once or again and again; return 1 when something is wrong, or none is free.

    Raises:
        GpusNotTold: there is no driver, or it does not answer.
    """
    if not arguments.watch:
        snapshot, held, found = _look()
        if arguments.json:
            print(json.dumps(found.model_dump(mode="json"), ensure_ascii=False, indent=2))
        else:
            # In a pipe there is no width to keep to.
            Console(width=None if sys.stdout.isatty() else 240).print(_picture(snapshot, held, found))
        return 0 if found.ok else 1
    if arguments.json:
        return _stream()
    with contextlib.suppress(KeyboardInterrupt), Live(auto_refresh=False) as live:
        while True:
            live.update(_picture(*_look()), refresh=True)
            time.sleep(_EVERY_S)
    return 0


def _stream() -> int:
    """Print one report a line."""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            print(json.dumps(_look()[2].model_dump(mode="json"), ensure_ascii=False), flush=True)
            time.sleep(_EVERY_S)
    return 0


def _look() -> tuple[Snapshot, dict[str, str], gpu_report.GpuReport]:
    snapshot = query.ask(sys.executable, os.environ)
    held = {uuid: holder.text for uuid, holder in Leases(lease_directory(os.environ)).holders().items()}
    return snapshot, held, gpu_report.of_machine(snapshot, held)


def _picture(snapshot: Snapshot, held: dict[str, str], found: gpu_report.GpuReport) -> Group:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column in ("UUID", "STATE") else "right", overflow="fold")
    told = gpu_report.names([each.uuid for each in snapshot.gpus], len(snapshot.gpus))
    for each in snapshot.gpus:
        table.add_row(*_cells(each, told[each.uuid]), _state(each, held.get(each.uuid), told[each.uuid] in found.free))
    reasons = [Text(reason, style="green" if found.ok else "yellow") for reason in found.reasons]
    return Group(Text(f"{found.header or 'no GPUs'}; driver {found.driver or 'unknown'}", style="dim"), table, *reasons)


def _cells(each: Gpu, uuid: str) -> list[str]:
    def amount(value: float | None, unit: str = "", of: float | None = None) -> str:
        limit = "" if of is None else f"/{of:.0f}"
        return "" if value is None else f"{value:.0f}{limit}{unit}"

    return [
        str(each.index),
        uuid,
        amount(each.memory_used_mib, of=each.memory_total_mib),
        amount(each.utilisation, "%"),
        amount(each.temperature_c, " C"),
        amount(each.power_w, " W", of=each.power_limit_w),
        amount(each.sm_clock_mhz, " MHz"),
    ]


def _state(each: Gpu, holder: str | None, is_free: bool) -> Text:
    words = [*gpu_report.faults(each), *gpu_report.uses(each), *([f"leased by {holder}"] if holder else [])]
    state = "; ".join(words)
    if is_free:
        return Text(f"free; {state}" if state else "free", style="green")
    return Text(state or "not free", style="red" if each.lost or each.hangs else "cyan")
