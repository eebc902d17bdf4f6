"""A server and the command line beside ten thousand ended runs, against the same beside a hundred."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

from tests.benchmarks import processes
from tests.benchmarks.harness import NotMeasured, Sandbox, connect, elapsed_ms, program
from tests.benchmarks.report import Row, Table, amount, measured, median
from tests.support.many_runs import multiply

LONGEST_S = 400.0
_FEW, _MANY, _ROUNDS = 100, 10_000, 5
_AT_MOST, _AT_MOST_MIB = 1.3, 20.0
_RATIOS = ("server ready", "first list_runs", "list_runs again", "kill_run(tag), its question", "runward ls")
_QUESTIONS = ("tag:160m since:2d", "failed 410m", "qwen2 tag:batch-7", "exit_code=1 name:1b", "qwen2 oom_gpu since:4d")
_OTHERS = ("wait_run(tag)", "launch_run with a key", "runward doctor")


async def measure(sandbox: Sandbox) -> Table:
    """Measure both in turn; the index of the many is made by the first list, and timed."""
    async with sandbox.server() as server:
        run_id = await server.launch(program("failing_training"), name="qwen2-7b-sft")
        await server.wait(run_id)
    many = sandbox.root / "many"
    (many / "runs").mkdir(parents=True, mode=0o700)
    shutil.copytree(sandbox.run_dir(run_id), many / "runs" / run_id)
    multiply(sandbox.run_dir(run_id), _FEW - 1)
    multiply(many / "runs" / run_id, _MANY - 1)
    made = await _look(sandbox, many, _MANY)
    few: dict[str, list[float]] = defaultdict(list)
    lots: dict[str, list[float]] = defaultdict(list)
    await _look(sandbox, sandbox.home, _FEW)
    for _ in range(_ROUNDS):
        for home, taken, number in ((sandbox.home, few, _FEW), (many, lots, _MANY)):
            for name, value in (await _look(sandbox, home, number)).items():
                taken[name].append(value)
    rows = [_compare(name, lots[name], few[name], _AT_MOST) for name in _RATIOS]
    more_mib = median(lots["memory"]) - median(few["memory"])
    rows.append(measured("memory of a server then: more than beside 100", more_mib, "MiB", at_most=_AT_MOST_MIB))
    rows += [_compare(name, lots[name], few[name]) for name in _OTHERS]
    rows.append(Row("first list_runs without an index", amount(made["first list_runs"] / 1000, "s")))
    found = await _search(sandbox, many)
    rows.append(
        Row("find_runs: all of them read", amount(found["made"] / 1000, "s"), bar="≤ 20 s", ok=found["made"] <= 20_000)
    )
    rows.append(measured("find_runs, median of 20 questions", found["median"], "ms", at_most=50))
    note = f"Baseline: the same with {_FEW} ended runs, in turn; the quickest of {_ROUNDS}."
    return Table(f"{_MANY:,} ended runs", tuple(rows), (note,))


async def _search(sandbox: Sandbox, home: Path) -> dict[str, float]:
    """Return the milliseconds until all runs were read for questions, and of one question then."""
    async with connect(
        sandbox.parameters(["-m", "mcp_server", "serve"], {"RUNWARD_HOME": str(home)}), sandbox.root / "search.log"
    ) as server:
        begun_s = time.perf_counter()
        while "the same call reads more" in str((await server.call("find_runs", query="tag:160m")).data):
            pass
        made = elapsed_ms(begun_s)
        taken = []
        for question in _QUESTIONS * 4:
            begun_s = time.perf_counter()
            total = (await server.call("find_runs", query=question)).data["total"]
            taken.append(elapsed_ms(begun_s))
            if not total:
                raise NotMeasured(f"find_runs({question!r}) found nothing")
    return {"made": made, "median": median(taken)}


def _compare(what: str, ours: list[float], few: list[float], at_most: float | None = None) -> Row:
    ratio = min(ours) / min(few)
    bar, is_met = (f"≤ {at_most} x", ratio <= at_most) if at_most is not None else ("", None)
    return Row(what, amount(min(ours), "ms"), amount(min(few), "ms"), f"{ratio:.2f} x", bar, is_met)


async def _look(sandbox: Sandbox, home: Path, number: int) -> dict[str, float]:
    """Return the milliseconds that each call took, and the memory of the server after its first list."""
    taken: dict[str, float] = {}
    environment = {"RUNWARD_HOME": str(home)}
    begun_s = time.perf_counter()

    def note(name: str) -> None:
        nonlocal begun_s
        taken[name] = elapsed_ms(begun_s)
        begun_s = time.perf_counter()

    async with connect(
        sandbox.parameters(["-m", "mcp_server", "serve"], environment), sandbox.root / "server.log"
    ) as server:
        await server.client.list_tools()
        note("server ready")
        total = (await server.call("list_runs")).data["total"]
        note("first list_runs")
        if total < number:
            raise NotMeasured(f"list_runs found {total} runs, not {number}")
        taken["memory"] = processes.memory_mib(server.pid)[1]
        begun_s = time.perf_counter()
        await server.call("list_runs")
        note("list_runs again")
        await server.wait("tag:batch-0", timeout_s=0)
        note("wait_run(tag)")
        launched = await server.launch("sleep 60", idempotency_key=f"key {time.monotonic()}", tags=["living"])
        note("launch_run with a key")
        await server.call("kill_run", run_id="tag:living")
        note("kill_run(tag), its question")
        await server.kill(launched)
    for command in ("ls", "doctor"):
        begun_s = time.perf_counter()
        words = [sys.executable, "-m", "mcp_server", command]
        subprocess.run(words, env={**sandbox.environment(), **environment}, capture_output=True, check=False)
        note(f"runward {command}")
    return taken
