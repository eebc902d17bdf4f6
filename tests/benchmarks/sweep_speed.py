"""How long many short cells take beside `xargs -P`, and how right the estimate of what is left is."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import anyio

from mcp_server.record.state import posix
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from tests.benchmarks import processes
from tests.benchmarks.harness import NotMeasured, Sandbox, Server, until
from tests.benchmarks.report import Row, measured, median

_CELLS, _CELL_S, SLOTS = 300, 0.3, 8
_SHARES, _LOOKS = (0.25, 0.5, 0.75), 3  # of a sweep, and the looks nearest to each
_PLANNED = 2000
_TOGETHER = 4  # sweeps whose estimates are noted at once
_STEPS = 10
# A cell: its seconds from a file by its number, so that no parameter says them; it fails at first, hangs, or neither.
_CELL = """
n=$1 each=$(sed -n "$((n + 1))p" "$0/lengths"); fate=$(sed -n "$((n + 1))p" "$0/fates")
[ "$fate" = hang ] && sleep 600
[ "$fate" = fail ] && [ ! -e "$0/failed$n" ] && { touch "$0/failed$n"; sleep "$each"; exit 3; }
"""
_SILENT = _CELL + 'sleep "$each"'
_PRINTS = _CELL + f'for i in $(seq {_STEPS}); do sleep "$each"; echo "step $i/{_STEPS} loss $n.$i"; done'


@dataclass(frozen=True)
class _Shape:
    """A sweep whose estimates are noted: ``cells`` of about ``cell_s`` seconds, which print steps or nothing.

    ``sizes``: of a parameter, so many times as long are its cells. ``fails``: every so manieth fails at first.
    ``halved``: the worse half stops at the third step. ``promotes``: the best one runs again, three times as long.
    ``hangs``: the first cell stands still until ``limit_s``.
    """

    cell_s: float
    cells: int
    slots: int
    steps: bool
    sizes: tuple[float, ...] = (1,)
    fails: int = 0
    halved: bool = False
    promotes: bool = False
    hangs: bool = False
    limit_s: float | None = None


_SHAPES = (
    _Shape(60, 4, 2, True),  # which takes longest, so first
    *(_Shape(0.3, 40, 8, False), _Shape(0.3, 24, 4, True), _Shape(0.5, 24, 4, False), _Shape(1, 24, 6, True)),
    *(_Shape(1, 16, 4, False), _Shape(2, 16, 4, True), _Shape(3, 12, 4, False), _Shape(5, 12, 4, True)),
    *(_Shape(8, 8, 4, False), _Shape(10, 8, 4, True)),
    *(_Shape(1, 24, 3, False, sizes=(1, 2, 4, 8)), _Shape(0.5, 24, 4, True, sizes=(1, 2, 4, 8))),
    *(_Shape(2, 12, 2, False, sizes=(1, 2, 4)), _Shape(1, 16, 4, False, sizes=(4, 2, 1))),
    *(_Shape(2, 16, 4, False, fails=4), _Shape(4, 12, 4, True, fails=3)),
    *(_Shape(12, 12, 4, True, halved=True), _Shape(3, 8, 4, True, promotes=True)),
    _Shape(3, 12, 4, False, hangs=True, limit_s=12),
)


async def measure_speed(sandbox: Sandbox) -> tuple[Row, ...]:
    """Return the rows of short cells, and of a large plan."""
    peer_s, peer_cpu_s = await anyio.to_thread.run_sync(_run_xargs)
    async with sandbox.server() as server:
        short_s, cpu_s, most = await _run_short(sandbox, server)
        plan_s = await _rehearse(sandbox, server)
    return (
        measured(
            f"{_CELLS} cells of {_CELL_S:g} s on {SLOTS} slots, from the call to the end; baseline: xargs -P {SLOTS}",
            short_s,
            "s",
            baseline=peer_s,
            ratio_at_most=4,
        ),
        measured(
            "processor time of conductor, supervisors and commands for such a cell",
            1e3 * cpu_s / _CELLS,
            "ms",
            baseline=1e3 * peer_cpu_s / _CELLS,
        ),
        Row("most of these cells at once", f"{most}", bar=f"≤ {SLOTS}", ok=most <= SLOTS),
        measured(f"dry run of {_PLANNED:,} cells", plan_s, "s", at_most=10),
    )


async def measure_estimates(sandbox: Sandbox) -> Row:
    """Return the row of the estimates."""
    async with sandbox.server() as server:
        errors, unknown = await _note_estimates(server, sandbox)
    return measured(
        f"eta_s at a quarter, half and three quarters of {len(_SHAPES)} sweeps, error, median; unknown: {unknown} of "
        f"{len(errors) + unknown} looks",
        100 * median(errors),
        "%",
        at_most=20,
    )


async def _rehearse(sandbox: Sandbox, server: Server) -> float:
    """Return the seconds of a dry run of many cells, median of three."""
    seeds = list(range(_PLANNED // 20))
    taken_s = []
    for number in range(3):
        common = {"command": f"python3 -c pass --try {number}", "cwd": str(sandbox.work)}
        begun_s = time.monotonic()
        grid = {"lr": [n / 100 for n in range(1, 21)], "seed": seeds}
        answer = await server.call("launch_sweep", name="large", common=common, grid=grid, dry_run=True)
        taken_s.append(time.monotonic() - begun_s)
        if answer.data["cells"] != {"total": _PLANNED}:
            raise NotMeasured(f"the dry run has {answer.data['cells']}")
    return median(taken_s)


def _run_xargs() -> tuple[float, float]:
    """Return wall and processor seconds of as many commands under xargs."""
    command = f"seq {_CELLS} | xargs -P {SLOTS} -I@ sh -c 'sleep {_CELL_S:g}'"
    before, began_s = os.times(), time.monotonic()
    subprocess.run(command, shell=True, check=True)
    took_s, after = time.monotonic() - began_s, os.times()
    return took_s, sum(after[2:4]) - sum(before[2:4])


async def _run_short(sandbox: Sandbox, server: Server) -> tuple[float, float, int]:
    """Return wall and processor seconds of the short cells, and how many ran at once at most."""
    store = RunStore(StateHome(sandbox.home))
    before_s, began_s = _tmux_cpu_s(sandbox), time.monotonic()
    common = {"command": ["sh", "-c", f"sleep {_CELL_S:g}", "cell", "{n}"], "cwd": str(sandbox.work)}
    cells = [{"n": n} for n in range(_CELLS)]
    answer = await server.call("launch_sweep", name="short", common=common, cells=cells, max_parallel=SLOTS)
    sweep_id = answer.data["sweep_id"]
    while (await server.wait(sweep_id, timeout_s=60)).data["reason"] != "ended":
        if time.monotonic() - began_s > 300:
            raise NotMeasured("the short cells have not ended in 300 s")
    took_s = time.monotonic() - began_s
    if store.sweeps.observe(sweep_id).count().get("finished") != _CELLS:
        raise NotMeasured("not all short cells finished")
    await until(lambda: not store.sweeps.observe(sweep_id).conducted)
    runs = [run for run in store.list_runs() if run.spec.sweep == sweep_id]
    spans = [(posix(run.started_at), posix(run.ended_at)) for run in runs if run.started_at and run.ended_at]
    changes = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    return took_s, _tmux_cpu_s(sandbox) - before_s, max(accumulate(change for _, change in changes))


def _tmux_cpu_s(sandbox: Sandbox) -> float:
    """Return the processor time of the tmux server and its starters, with all that they have reaped."""
    pid = sandbox.tmux("display-message", "-p", "#{pid}", socket=sandbox.socket).strip()
    return sum(map(processes.cpu_s, (int(pid), *processes.starters(int(pid))))) if pid else 0.0


async def _note_estimates(server: Server, sandbox: Sandbox) -> tuple[list[float], int]:
    """Return the relative errors of the estimates, and at how many looks there was none."""
    errors: list[float] = []
    unknown = 0
    limit = anyio.Semaphore(_TOGETHER)

    async def play(number: int, shape: _Shape) -> None:
        nonlocal unknown
        async with limit:
            looks = await _play(server, sandbox, number, shape)
        begun_s, ended_s = looks[0][0], looks[-1][0]
        for share in _SHARES:
            at_s = begun_s + share * (ended_s - begun_s)
            for look_s, eta_s in sorted(looks[:-1], key=lambda look: abs(look[0] - at_s))[:_LOOKS]:
                if eta_s is None:
                    unknown += 1
                else:
                    errors.append(abs(eta_s - (ended_s - look_s)) / (ended_s - look_s))

    async with anyio.create_task_group() as group:
        for number, shape in enumerate(_SHAPES):
            group.start_soon(play, number, shape)
    return errors, unknown


async def _play(server: Server, sandbox: Sandbox, number: int, shape: _Shape) -> list[tuple[float, float | None]]:
    """Run a sweep; return when it was looked at, from its start to its end, and what it said is left."""
    chance, name = random.Random(number), f"eta{number}"
    directory = sandbox.work / name
    directory.mkdir()
    sizes = [shape.sizes[n * len(shape.sizes) // shape.cells] for n in range(shape.cells)] + [3] * shape.promotes
    each_s = shape.cell_s / (_STEPS if shape.steps else 1)
    lengths = [f"{each_s * size * chance.uniform(0.85, 1.15):.3f}\n" for size in sizes]
    (directory / "lengths").write_text("".join(lengths))
    fates = ["fail" if shape.fails and n % shape.fails == 0 else "-" for n in range(len(sizes))]
    (directory / "fates").write_text("\n".join(["hang", *fates[1:]] if shape.hangs else fates) + "\n")
    command = ["bash", "-c", _PRINTS if shape.steps else _SILENT, str(directory), "{n}"]
    common: dict[str, Any] = {"command": command, "cwd": "/", "time_limit_s": shape.limit_s}
    cells = [{"n": n, "size": size} for n, size in enumerate(sizes[: shape.cells])]
    plan: dict[str, Any] = {"cells": [each if len(shape.sizes) > 1 else {"n": each["n"]} for each in cells]}
    if shape.promotes:
        last = {"name": "final", "promote": "best", "common": {"params": {"n": shape.cells}}}
        plan = {"phases": [{"name": "explore", **plan}, last], "metric": "loss"}
    if shape.halved:
        plan |= {"halving": {"steps": [3]}, "metric": "loss"}
    more = {"max_parallel": shape.slots, "cell_failures": 2}
    answer = await server.call("launch_sweep", name=name, common=common, **plan, **more)
    looks: list[tuple[float, float | None]] = []
    while True:
        wait = (await server.call("wait_run", run_ids=answer.data["sweep_id"], timeout_s=0)).data
        sweep: Mapping[str, float | None] = wait["sweep"]
        looks.append((time.monotonic(), sweep.get("eta_s")))
        if wait["reason"] == "ended":
            return looks
        await anyio.sleep(max(0.2, shape.cell_s / 12))
