"""list_runs over a thousand ended runs."""

from __future__ import annotations

import json
import shutil
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import NotMeasured, Sandbox, elapsed_ms, program
from tests.benchmarks.report import Row, Table, amount, measured, median, percentile

_RUNS, _CALLS = 1000, 40
_LETTERS = "abcdefghjkmnpqrstvwxyz23456789"


async def measure(sandbox: Sandbox) -> Table:
    """Copy one real ended run a thousand times, and list them with a server that has seen none of them."""
    async with sandbox.server() as server:
        run_id = await server.launch(program("failing_training"), name="qwen2-7b-sft")
        await server.wait(run_id)
    _multiply(sandbox.run_dir(run_id), _RUNS - 1)
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


def _multiply(original: Path, times: int) -> None:
    """Copy a run's directory under other ids, each a minute older than the one before."""
    spec = json.loads((original / "spec.json").read_text())
    exit_record = json.loads((original / "attempts/1/exit.json").read_text())
    events = [json.loads(line) for line in (original / "events.jsonl").read_text().splitlines()]
    for number in range(1, times + 1):
        run_id = f"{spec['name']}-{_suffix(number)}"
        copy = original.with_name(run_id)
        shutil.copytree(original, copy)
        older = timedelta(minutes=number)
        new = {**spec, "run_id": run_id, "session": run_id, "created_at": _earlier(spec["created_at"], older)}
        _write(copy / "spec.json", new)
        times_of = {name: _earlier(exit_record[name], older) for name in ("started_at", "ended_at")}
        _write(copy / "attempts/1/exit.json", {**exit_record, **times_of})
        lines = [json.dumps({**event, "at": _earlier(event["at"], older)}) for event in events]
        (copy / "events.jsonl").write_text("\n".join(lines) + "\n")


def _suffix(number: int) -> str:
    letters = ""
    for _ in range(4):
        number, digit = divmod(number, len(_LETTERS))
        letters += _LETTERS[digit]
    return letters


def _earlier(at: str, by: timedelta) -> str:
    return (datetime.fromisoformat(at) - by).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value))


def _naive(runs: Path) -> int:
    found = 0
    for path in runs.iterdir():
        with (path / "spec.json").open() as spec, (path / "attempts/1/exit.json").open() as end:
            found += bool(json.load(spec)) and bool(json.load(end))
    return found
