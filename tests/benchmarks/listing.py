"""list_runs over a thousand ended runs."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tests.benchmarks.harness import NotMeasured, Sandbox, elapsed_ms, program
from tests.benchmarks.report import Row, Table, amount, measured, median, percentile
from tests.support.many_runs import multiply

_RUNS, _CALLS = 1000, 40


async def measure(sandbox: Sandbox) -> Table:
    """Copy one real ended run a thousand times, and list them with a server that has seen none of them."""
    async with sandbox.server() as server:
        run_id = await server.launch(program("failing_training"), name="qwen2-7b-sft")
        await server.wait(run_id)
    multiply(sandbox.run_dir(run_id), _RUNS - 1)
    ours: list[float] = []
    naive: list[float] = []
    async with sandbox.server() as server:
        begun_s = time.perf_counter()
        total = (await server.call("list_runs")).data["total"]
        first_ms = elapsed_ms(begun_s)
        if total != _RUNS:
            raise NotMeasured(f"list_runs found {total} runs, not {_RUNS}")
        for _ in range(_CALLS):
            begun_s = time.perf_counter()
            await server.call("list_runs")
            ours.append(elapsed_ms(begun_s))
            begun_s = time.perf_counter()
            _naive(sandbox.home / "runs")
            naive.append(elapsed_ms(begun_s))
        begun_s = time.perf_counter()
        await server.call("list_runs", limit=500)
        many_ms = elapsed_ms(begun_s)
    rows = (
        measured(f"list_runs, {_RUNS:,} ended runs, p50", median(ours), "ms", baseline=median(naive), at_most=50),
        measured("p99", percentile(ours, 99), "ms", baseline=percentile(naive, 99)),
        measured("first call of a new server", first_ms, "ms", baseline=naive[0]),
        Row("with limit=500", amount(many_ms, "ms")),
    )
    note = f"{_CALLS} calls over stdio. Baseline, in turn: json.load of every spec.json and exit.json in this process."
    return Table("Listing", rows, (note,))


def _naive(runs: Path) -> int:
    found = 0
    for path in runs.iterdir():
        with (path / "spec.json").open() as spec, (path / "attempts/1/exit.json").open() as end:
            found += bool(json.load(spec)) and bool(json.load(end))
    return found
