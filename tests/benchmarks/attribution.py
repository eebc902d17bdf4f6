"""Eight runs beside each other in one directory: how many figures that are said of a run are another's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mcp_server.record.state import posix
from tests.benchmarks.harness import NotMeasured, Sandbox, Server, until
from tests.benchmarks.report import Row, Table
from tests.support.neighbours import HABITS, KINDS, STEPLESS, Neighbours

_NUMBER = re.compile(r"(?:model_step_|eval_|metrics_|log_)([1-8])")
_READY_WITHIN_S = 60.0


async def measure(sandbox: Sandbox) -> Table:
    """Launch them, ask everything about each while all run, and again with a server that has seen nothing."""
    directory = sandbox.work / "project"
    directory.mkdir(parents=True)
    async with sandbox.server() as server:
        during = Neighbours(directory, _calling(server))
        await during.launch()
        if not await until(during.are_ready, _READY_WITHIN_S):
            raise NotMeasured("not all runs came half-way")
        await during.ask(_asking(server))
        during.go()
        for run_id in during.run_ids.values():
            await server.wait(run_id)
    async with sandbox.server() as server:
        after = Neighbours(directory, _calling(server), during.run_ids)
        await after.ask(_asking(server))
        await after.finish(sandbox.root / "results")
    habits_during, habits_after = await _measure_habits(sandbox)
    naive_foreign, naive_own = _attribute_by_time(sandbox, directory, during.run_ids)
    rows = [
        Row(
            f"foreign figures in answers {when}",
            f"{len(beside.foreign)} of {len(beside.foreign) + beside.own}",
            f"{naive_foreign} of {naive_foreign + naive_own}" if beside is after else "",
            bar="0",
            ok=not beside.foreign and beside.own > 0,
        )
        for when, beside in (
            ("while they run", during),
            ("after the ends", after),
            ("while they run, habits of frameworks", habits_during),
            ("after the ends, habits of frameworks", habits_after),
        )
    ]
    foreign = [*during.foreign, *after.foreign, *habits_during.foreign, *habits_after.foreign]
    note = (
        "read_tb, compare_runs, wait_run(until=…) and results.md about each of eight runs: TensorBoard files in one "
        "directory, written by a child, by a halved run; JSON lines; two runs without a step; a file that all "
        "overwrite. Then eight with the habits of rsl_rl, SB3, Keras, Transformers, Lightning, Hydra and a process "
        "that outlives its parent. Baseline: files below "
        "the directory that changed while the run ran."
    )
    return Table("Attribution", tuple(rows), (note, *[text[:200] for text in foreign[:8]]))


async def _measure_habits(sandbox: Sandbox) -> tuple[Neighbours, Neighbours]:
    """Ask the same about runs that keep their files as frameworks do, and that all overwrite and append to some."""
    directory = sandbox.work / "habits"
    directory.mkdir()
    async with sandbox.server() as server:
        during = Neighbours(directory, _calling(server))
        await during.launch_habits()
        if not await until(during.are_ready, _READY_WITHIN_S):
            raise NotMeasured("not all runs with habits came half-way")
        await during.ask(_asking(server))
        during.go()
        for run_id in during.run_ids.values():
            await server.wait(run_id)
    async with sandbox.server() as server:
        after = Neighbours(directory, _calling(server), during.run_ids, kinds=HABITS)
        await after.ask(_asking(server))
        await after.finish(sandbox.root / "habits-results")
    return during, after


def _calling(server: Server) -> Any:
    async def call(tool: str, **arguments: Any) -> dict[str, Any]:
        return (await server.call(tool, **arguments)).data

    return call


def _asking(server: Server) -> Any:
    async def try_call(tool: str, **arguments: Any) -> str:
        try:
            return (await server.call(tool, **arguments)).text
        except NotMeasured as refusal:
            return str(refusal)

    return try_call


def _attribute_by_time(sandbox: Sandbox, directory: Path, run_ids: dict[int, str]) -> tuple[int, int]:
    """Return how many files that changed while a run ran were another's, and how many its own."""
    foreign = own = 0
    for number, run_id in run_ids.items():
        rundir = sandbox.run_dir(run_id)
        begun_s = posix(json.loads((rundir / "events.jsonl").read_text().splitlines()[0])["at"])
        ended_s = max(path.stat().st_mtime for path in rundir.glob("attempts/*/exit.json"))
        for path in directory.rglob("*"):
            match = _NUMBER.match(path.name)
            if match is None or not begun_s <= path.stat().st_mtime <= ended_s:
                continue
            if int(match[1]) == number and KINDS[number - 1] not in STEPLESS:
                own += 1
            else:
                foreign += 1
    return foreign, own
