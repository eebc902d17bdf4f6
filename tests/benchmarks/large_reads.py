"""How long other calls take while one reads a million points, at first and again as the file grows."""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio

from tests.benchmarks import event_files
from tests.benchmarks.harness import Sandbox, Server, elapsed_ms
from tests.benchmarks.report import Row, Table, measured, percentile

LONGEST_S = 900.0
_ROWS, _TAGS = 1_000_000, 200_000
_AGAIN_S, _IDLE_S, _EVERY_S = 8.0, 6.0, 0.01
_AT_MOST_MS = 50.0
_NEIGHBOUR = "while True: sum(range(10**6))"


async def measure(sandbox: Sandbox) -> Table:
    """Read four sources, twice each and more, while `list_runs` is called all the time."""
    root = sandbox.root / "scalars"
    sources: dict[str, tuple[Path, Callable[[Path], None]]] = {
        f"metrics.csv of {_ROWS:,} rows": (_write_csv(root / "csv"), _append_row),
        f"event file of {_TAGS:,} tags": (_write_events(root / "events"), _append_event),
        f"mlflow.db of {_ROWS:,} points": (_write_mlflow(root / "mlflow"), _insert_point),
        "trainer_state.json of 60 MB": (_write_state(root / "state"), lambda _: None),
    }
    rows: list[Row] = []
    async with sandbox.server() as server:
        await server.wait(await server.launch("true"))
        for what, (path, grow) in sources.items():
            quiet = await _time_calls(server, lambda: anyio.sleep(_IDLE_S))
            first = await _time_calls(server, partial(server.call, "read_tb", logdir=str(path.parent)))
            again = await _time_calls(server, partial(_read_again, server, path, grow))
            for when, taken in (("first read", first), ("read again as it grows", again)):
                bar = {"baseline": percentile(quiet, 99), "at_most": _AT_MOST_MS}
                rows.append(measured(f"{what}, {when}: other calls, p99", percentile(taken, 99), "ms", **bar))
        quiet = await _time_calls(server, lambda: anyio.sleep(_IDLE_S))
        neighbour = subprocess.Popen([sys.executable, "-c", _NEIGHBOUR])
        try:
            beside = await _time_calls(server, lambda: anyio.sleep(_AGAIN_S))
        finally:
            neighbour.kill()
            neighbour.wait()
    rows.append(
        measured(
            "beside another program on one core, p99", percentile(beside, 99), "ms", baseline=percentile(quiet, 99)
        )
    )
    notes = (
        f"`list_runs` every {1000 * _EVERY_S:g} ms over the same stdio connection. Baseline: the server without "
        f"reads in the {_IDLE_S:g} s before. Again: one read after the other, with a row more each time.",
    )
    return Table("Others' calls beside large reads", tuple(rows), notes)


async def _time_calls(server: Server, act: Callable[[], Awaitable[object]]) -> list[float]:
    """Return how many milliseconds each `list_runs` took until ``act`` was done."""
    taken: list[float] = []
    async with anyio.create_task_group() as group:

        async def call() -> None:
            while True:
                begun_s = time.perf_counter()
                await server.call("list_runs")
                taken.append(elapsed_ms(begun_s))
                await anyio.sleep(_EVERY_S)

        group.start_soon(call)
        await act()
        group.cancel_scope.cancel()
    return taken


async def _read_again(server: Server, path: Path, grow: Callable[[Path], None]) -> None:
    until_s = time.monotonic() + _AGAIN_S
    while time.monotonic() < until_s:
        await anyio.to_thread.run_sync(grow, path)
        await server.call("read_tb", logdir=str(path.parent))


def _write_csv(directory: Path) -> Path:
    directory.mkdir(parents=True)
    chance = random.Random(1)
    with (directory / "metrics.csv").open("w") as file:
        file.write("step,loss,reward\n")
        file.writelines(f"{step},{chance.random():.4f},{step * 0.001:.3f}\n" for step in range(_ROWS))
    return directory / "metrics.csv"


def _append_row(path: Path) -> None:
    with path.open("a") as file:
        file.write(f"{path.stat().st_size},0.5,0.5\n")


def _write_events(directory: Path) -> Path:
    path = directory / "events.out.tfevents.1750000000.host.1.0"
    return event_files.write(path, event_files.simple_values(_TAGS, _TAGS))


def _append_event(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"".join(event_files.simple_values(1, 1, behind=path.stat().st_size)))


def _write_mlflow(directory: Path) -> Path:
    directory.mkdir(parents=True)
    with sqlite3.connect(directory / "mlflow.db") as database:
        database.executescript(
            """CREATE TABLE experiments (experiment_id INTEGER PRIMARY KEY, name TEXT, artifact_location TEXT,
                 lifecycle_stage TEXT, creation_time INTEGER, last_update_time INTEGER);
               CREATE TABLE runs (run_uuid TEXT PRIMARY KEY, name TEXT, status TEXT, start_time INTEGER,
                 end_time INTEGER, lifecycle_stage TEXT, artifact_uri TEXT, experiment_id INTEGER);
               CREATE TABLE metrics (key TEXT, value DOUBLE, timestamp INTEGER, run_uuid TEXT, step INTEGER,
                 is_nan BOOLEAN, PRIMARY KEY (key, timestamp, step, run_uuid, value, is_nan));
               INSERT INTO experiments VALUES (1, 'one', '', 'active', 0, 0);
               INSERT INTO runs VALUES ('a', 'a', 'RUNNING', 1750000000000, NULL, 'active', '', 1);"""
        )
        points = (("loss", 1 / (1 + step), 1750000000000 + step, "a", step, 0) for step in range(_ROWS))
        database.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", points)
    database.close()
    return directory / "mlflow.db"


def _insert_point(path: Path) -> None:
    with sqlite3.connect(path, timeout=30) as database:
        (step,) = database.execute("SELECT max(step) + 1 FROM metrics").fetchone()
        database.execute("INSERT INTO metrics VALUES ('loss', 0.5, ?, 'a', ?, 0)", (1750000000000 + step, step))
    database.close()


def _write_state(directory: Path) -> Path:
    directory.mkdir(parents=True)
    entry = {"loss": 0.5, "grad_norm": 0.25, "learning_rate": 1e-4}
    history = [{"step": step, "epoch": step / 1000, **entry} for step in range(650_000)]
    (directory / "trainer_state.json").write_text(json.dumps({"global_step": len(history), "log_history": history}))
    return directory / "trainer_state.json"
