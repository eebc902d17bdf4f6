"""What a hundred silent runs cost: memory, processor time, descriptors and wake-ups, beside the same in plain tmux."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio

from tests.benchmarks import processes
from tests.benchmarks.harness import Sandbox, started_facts
from tests.benchmarks.report import Row, Table, amount, measured

LONGEST_S = 400.0
_RUNS = int(os.environ.get("RUNWARD_BENCH_IDLE_RUNS", "100"))
_SETTLE_S, _WINDOW_S = 45.0, 60.0
_SILENT = ["sleep", "3600"]
_MIB_A_RUN, _CORE_PERCENT = 10.0, 2.0


@dataclass(frozen=True)
class _Use:
    cpu_s: float
    wakeups: int


async def measure(sandbox: Sandbox) -> Table:
    """Launch runs that print nothing, let them settle, and look at everything that lives beside their commands."""
    sandbox.start_plain_tmux()
    for number in range(_RUNS):
        sandbox.tmux("new-session", "-d", "-s", f"plain-{number}", "--", *_SILENT)
    plain = [int(sandbox.tmux("display-message", "-p", "#{pid}"))]
    async with sandbox.server() as server:
        run_ids = [await server.launch(_SILENT, name=f"silent-{number}") for number in range(_RUNS)]
        facts = [started_facts(sandbox.run_dir(run_id)) for run_id in run_ids]
    supervisors = [int(fact["supervisor_pid"]) for fact in facts]
    guards = [int(fact["guard_pid"]) for fact in facts]
    tmux = [int(sandbox.tmux("display-message", "-p", "#{pid}", socket=sandbox.socket))]
    panes = list(map(int, sandbox.tmux("list-panes", "-a", "-F", "#{pane_pid}", socket=sandbox.socket).split()))
    beside = {*panes, *processes.starters(tmux[0])} - {*supervisors}
    ours = [*supervisors, *guards, *beside]
    await anyio.sleep(_SETTLE_S)
    begun_s, groups = time.monotonic(), (ours, tmux, plain)
    first = [_use(group) for group in groups]
    await anyio.sleep(_WINDOW_S)
    wall_s = time.monotonic() - begun_s
    used = [(_use(group), former) for group, former in zip(groups, first, strict=True)]
    cpu, tmux_cpu, plain_cpu = [(now.cpu_s - former.cpu_s) / wall_s * 100 for now, former in used]
    woken = used[0][0].wakeups - used[0][1].wakeups
    rows = (
        measured("memory a run, all processes but the command, PSS", _pss(ours) / _RUNS, "MiB", at_most=_MIB_A_RUN),
        Row("of it the supervisor", amount(_pss(supervisors) / _RUNS, "MiB")),
        Row("of it the guard", amount(_pss(guards) / _RUNS, "MiB")),
        Row("of it processes of panes, and the starter", amount(_pss([*beside]) / _RUNS, "MiB")),
        measured(f"{_RUNS} silent runs, of one core", cpu, "%", baseline=plain_cpu, at_most=_CORE_PERCENT),
        Row("their tmux, of one core", amount(tmux_cpu, "%"), amount(plain_cpu, "%")),
        Row("wake-ups a run and minute", f"{woken / _RUNS / wall_s * 60:.1f}"),
        Row("descriptors a run", f"{sum(map(_descriptors, ours)) / _RUNS:.0f}"),
        Row("tmux's memory a run, PSS", amount(_pss(tmux) / _RUNS, "MiB"), amount(_pss(plain) / _RUNS, "MiB")),
    )
    notes = (
        f"`sleep`, {_RUNS} times, no server connected; after {_SETTLE_S:g} s, CPU clocks over {_WINDOW_S:g} s.",
        "Baseline: the same by `tmux new-session -d`; it keeps no log, no end, and watches nothing.",
    )
    return Table(f"{_RUNS} silent runs", rows, notes)


def _use(pids: Sequence[int]) -> _Use:
    return _Use(sum(map(processes.cpu_s, pids)), sum(map(_wakeups, pids)))


def _wakeups(pid: int) -> int:
    """Return how often the threads of a process have gone to sleep by themselves."""
    status = (path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status"))
    return sum(int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0]) for text in status)


def _pss(pids: Sequence[int]) -> float:
    return sum(processes.memory_mib(pid)[1] for pid in pids)


def _descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
