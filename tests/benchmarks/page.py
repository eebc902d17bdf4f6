"""Twenty open pages and 200 live runs: what they cost other calls, and how soon an event is seen."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import httpx2

from mcp_server.page.sessions import PageSessions
from mcp_server.record.run_directory import now
from mcp_server.store.state_home import StateHome
from mcp_server.store.tokens import Tokens
from tests.benchmarks import processes
from tests.benchmarks.harness import NotMeasured, Sandbox, until
from tests.benchmarks.report import Row, Table, measured, median, percentile
from tests.benchmarks.swarm import measure_calls, read_answer, serve

_PAGES, _RUNS, _PAUSE_S = 20, 200, 0.05
_FOLLOWED_S = 1.0  # after the last event


async def measure(sandbox: Sandbox) -> Table:
    """Call before any page is open and while twenty are, and events come twenty times a second."""
    home = StateHome(sandbox.home)
    token = Tokens(home).add("caller")
    home.create()
    with live_runs(home) as run_ids:
        async with serve(sandbox) as (url, pid):
            quiet = await measure_calls(sandbox, url, token, run_ids[0])
            before_mib = processes.memory_mib(pid)[0]
            cookie = f"{PageSessions(home).cookie}={PageSessions(home).log_in(token)}"
            names = {"url": url, "cookie": cookie, "pages": _PAGES}
            pages = subprocess.Popen(
                [sys.executable, "-m", __name__, json.dumps(names)],
                env=sandbox.environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )

            def count() -> int:
                answer = httpx2.get(f"{url}/api/me", headers={"cookie": cookie})
                return int(answer.json()["pages"])

            if not await until(lambda: count() == _PAGES, within_s=60, every_s=0.2):
                raise NotMeasured("not all pages are open")
            written: dict[tuple[str, int], float] = {}
            used_s, begun_s = processes.cpu_s(pid), time.monotonic()
            async with anyio.create_task_group() as group:
                group.start_soon(_write_events, home, run_ids, written)
                busy = await measure_calls(sandbox, url, token, run_ids[0])
                group.cancel_scope.cancel()
            core = (processes.cpu_s(pid) - used_s) / (time.monotonic() - begun_s) * 100
            await anyio.sleep(_FOLLOWED_S)
            most_mib = processes.memory_mib(pid)[0]
            assert pages.stdin is not None
            pages.stdin.close()
            pages.stdin = None
            seen: list[tuple[str, int, float]] = await read_answer(pages)
    late = _list_latencies(written, seen)
    lost = len(written) * _PAGES - len(late)
    rows = (
        measured("other calls, p50", median(busy), "ms", baseline=median(quiet)),
        measured("other calls, p99", percentile(busy, 99), "ms", baseline=percentile(quiet, 99), at_most=50),
        measured("event in the record → read by a page, p50", median(late), "ms"),
        measured("event in the record → read by a page, p99", percentile(late, 99), "ms", at_most=500),
        measured("events that a page did not hear of", float(lost), "", at_most=0),
        measured("memory of the server (RSS) more than before", most_mib - before_mib, "MiB", at_most=40),
        Row("the server meanwhile, of one core", f"{core:.0f} %"),
    )
    notes = (
        f"N = {len(late)} arrivals of {len(written)} events. The {_RUNS} runs are records whose lock this process "
        "holds, so that they cost the machine nothing themselves; baseline: the same calls before any page was open.",
        "Later events of a run that come with an earlier one in one row count as heard with it.",
    )
    return Table(f"The page: {_PAGES} open, {_RUNS} live runs", rows, notes)


@contextmanager
def live_runs(home: StateHome) -> Iterator[list[str]]:
    """Yield the ids of runs that live by their record: this process holds their locks."""
    locks, run_ids = [], []
    for number in range(_RUNS):
        run_id = f"live-{number:04}"
        directory = home.runs / run_id
        (directory / "attempts" / "1").mkdir(parents=True)
        spec = {"run_id": run_id, "name": f"live {number}", "command": "sleep 9", "owner": "caller", "layout": 3}
        (directory / "spec.json").write_text(json.dumps({**spec, "created_at": now(), "cwd": "/tmp"}))
        (directory / "attempts" / "1" / "output.log").write_text("step 1/100 loss 0.5\n")
        (directory / "attempts" / "1" / "progress.json").write_text('{"step": 1, "total_steps": 100}')
        (directory / "events.jsonl").write_text(
            json.dumps({"seq": 1, "kind": "started", "at": now(), "attempt": 1}) + "\n"
        )
        fd = os.open(directory / "supervisor.lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        locks.append(fd)
        run_ids.append(run_id)
    try:
        yield run_ids
    finally:
        for fd in locks:
            os.close(fd)


async def _write_events(home: StateHome, run_ids: list[str], written: dict[tuple[str, int], float]) -> None:
    number = 0
    while True:
        run_id, seq = run_ids[number % len(run_ids)], 2 + number // len(run_ids)
        event = {"seq": seq, "kind": "stalled" if seq % 2 else "resumed", "at": now(), "text": f"event {seq}"}
        with (home.runs / run_id / "events.jsonl").open("a") as file:
            file.write(json.dumps(event) + "\n")
        written[run_id, seq] = time.monotonic()
        number += 1
        await anyio.sleep(_PAUSE_S)


def _list_latencies(written: dict[tuple[str, int], float], seen: list[tuple[str, int, float]]) -> list[float]:
    """Return for each event and page how long it took until the page had a row of that event or a later one, in ms."""
    by_run: dict[str, list[tuple[int, float, int]]] = {}
    for number, (run_id, seq, at_s) in enumerate(seen):
        by_run.setdefault(run_id, []).append((seq, at_s, number))
    found = []
    for (run_id, seq), at_s in written.items():
        heard = sorted(at for newest, at, _ in by_run.get(run_id, ()) if newest == seq)
        found += [(at - at_s) * 1000 for at in heard[:_PAGES]]
    return found


async def _open_pages(facts: dict[str, Any]) -> None:
    """Be so many pages; print what they heard once standard input ends."""
    seen: list[tuple[str, int, float]] = []

    async def follow(http: httpx2.AsyncClient, cursor: str) -> None:
        known: dict[str, int] = {}
        async with http.stream("GET", f"/api/events?cursor={cursor}") as answer:
            async for line in answer.aiter_lines():
                at_s = time.monotonic()
                for row in json.loads(line[6:])["runs"] if line.startswith("data: {") else ():
                    if known.get(row["id"], 1) != row["seq"]:
                        known[row["id"]] = row["seq"]
                        seen.append((row["id"], row["seq"], at_s))

    limits = httpx2.Limits(max_connections=100)
    async with (
        httpx2.AsyncClient(
            base_url=facts["url"], headers={"cookie": facts["cookie"]}, timeout=None, limits=limits
        ) as http,
        anyio.create_task_group() as group,
    ):
        cursor = (await http.get("/api/runs")).json()["cursor"]
        for _ in range(facts["pages"]):
            group.start_soon(follow, http, cursor)
        await anyio.to_thread.run_sync(sys.stdin.read)
        group.cancel_scope.cancel()
    print(json.dumps(seen))


if __name__ == "__main__":
    asyncio.run(_open_pages(json.loads(sys.argv[1])))
