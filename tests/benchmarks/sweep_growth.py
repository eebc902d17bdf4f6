"""What a cell of a large sweep costs its conductor. Most cells ended before: their records are copies of a real one."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.system.processes import command_words
from tests.benchmarks import processes
from tests.benchmarks.harness import NotMeasured, Sandbox

SIZES = (100, 300, 1000)
_CELLS = 24  # that are left to run
_FIRST = 5  # of them are not counted: the conductor loads modules and reads all records once
_ENDED = "cost-ended-"


@dataclass(frozen=True)
class Cost:
    """Processor time of a conductor, with what it starts for a launch (tmux), for one cell, and its memory."""

    cpu_ms: float
    memory_mib: float


async def measure_costs(sandbox: Sandbox) -> dict[int, Cost]:
    """Return the costs by the number of cells of the sweep."""
    store = RunStore(StateHome(sandbox.home))
    async with sandbox.server() as server:
        plan: dict[str, Any] = {"cells": [{"n": 0}], "metric": "reward", "max_parallel": 4}
        common = {"command": "echo step 1/1 reward {n}", "cwd": str(sandbox.work)}
        one = (await server.call("launch_sweep", name="one", common=common, **plan)).data["sweep_id"]
        await server.wait(one)
        return {size: await _measure_cost(sandbox, store, _extend(sandbox.home, store, one, size)) for size in SIZES}


async def _measure_cost(sandbox: Sandbox, store: RunStore, sweep_id: str) -> Cost:
    def done() -> int:
        return sum(cell.done for cell in store.sweeps.observe(sweep_id).cells)

    before = done()
    async with sandbox.server() as server:
        await server.call("launch_sweep", name=sweep_id)
        titles = {pid: (command_words(pid) or [""])[0] for pid in processes.carrying(sandbox.token)}
        conductor = next(pid for pid, title in titles.items() if title == "runward-conductor")
        samples: list[tuple[int, float]] = []
        memory_mib = 0.0
        while not store.sweeps.observe(sweep_id).ended:
            try:
                samples.append((done() - before, processes.cpu_s(conductor)))
                memory_mib = max(memory_mib, processes.memory_mib(conductor)[0])
            except (OSError, StopIteration):  # it has just exited
                break
            await anyio.sleep(0.1)
    counted = [sample for sample in samples if sample[0] >= _FIRST]
    if len(counted) < 2 or counted[-1][0] - counted[0][0] < _CELLS // 2:
        raise NotMeasured(f"of {sweep_id} only {len(counted)} samples were taken")
    (first, first_s), (last, last_s) = counted[0], counted[-1]
    return Cost(1e3 * (last_s - first_s) / (last - first), memory_mib)


def _extend(home: Path, store: RunStore, one: str, size: int) -> str:
    """Write a sweep of ``size`` cells like the only one of ``one``, of which all but the last 30 have ended."""
    former = store.sweeps.files_of(store.sweeps.observe(one))
    sweep_id, cell = f"cost{size}-abcd", json.loads(former.spec.read_text())["cells"][0]
    events = [json.loads(line) for line in former.events.read_text().splitlines()]
    run_id = str(store.sweeps.observe(one).cells[0].run_id)
    of_cell = [event for event in events if event.get("cell") == cell["name"]]
    lines = [events[0]]
    for number in range(size - _CELLS):
        copy = f"{_ENDED}{size}-{number:04}"
        shutil.copytree(home / "runs" / run_id, home / "runs" / copy)
        spec = (home / "runs" / copy / "spec.json").read_text()
        (home / "runs" / copy / "spec.json").write_text(spec.replace(run_id, copy).replace(one, sweep_id))
        lines += [{**event, "cell": f"n{number}", "run_id": copy} for event in of_cell]
    cells = [
        {
            **cell,
            "name": f"n{n}",
            "params": {"n": n},
            "launch": {**cell["launch"], "command": f"echo step 1/1 reward {n}"},
        }
        for n in range(size)
    ]
    directory = former.path.with_name(sweep_id)
    (directory / "requests").mkdir(parents=True)
    facts = {**json.loads(former.spec.read_text()), "sweep_id": sweep_id, "name": f"cost{size}", "cells": cells}
    (directory / "spec.json").write_text(json.dumps(facts))
    numbered = [{**event, "seq": seq} for seq, event in enumerate(lines, 1)]
    (directory / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in numbered))
    return sweep_id
