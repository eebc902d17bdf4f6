"""How long a launch takes, and how soon the end of a command is answered to whoever waits for it."""

from __future__ import annotations

import random
import time
from pathlib import Path

import anyio

from tests.benchmarks.harness import Sandbox, Server, elapsed_ms, program, read_number
from tests.benchmarks.report import Row, Table, measured, median, percentile

_RUNS = 60
_WORKS_S = 1.5  # a shorter run loads its diagnosis at its end: 0.07 s more
_POLLED, _POLL_S, _POLLED_ENDS_S = 30, 2.0, 6.0


async def measure(sandbox: Sandbox) -> Table:
    """Launch runs one after the other, each with a wait open at its end; plain tmux sessions between them."""
    sandbox.start_plain_tmux()
    launches: list[float] = []
    news: list[float] = []
    plain: list[float] = []
    async with sandbox.server() as server:
        first_ms, _ = await _one(server, sandbox.work / "first")
        for number in range(_RUNS):
            launch_ms, news_ms = await _one(server, sandbox.work / f"stamp-{number}")
            launches.append(launch_ms)
            news += [] if news_ms is None else [news_ms]
            plain.append(_plain_launch(sandbox, number))
    polled = await _polled(sandbox)
    rows = [
        measured("launch_run, p50", median(launches), "ms", baseline=median(plain), at_most=250),
        measured("launch_run, p99", percentile(launches, 99), "ms", baseline=percentile(plain, 99)),
        Row("launch_run that has to start tmux, too", f"{first_ms:.1f} ms"),
        measured(
            "end of command → answer of the open wait_run, p50",
            median(news),
            "ms",
            baseline=median(polled),
            at_most=100,
        ),
        measured(
            "end of command → answer, p99", percentile(news, 99), "ms", baseline=percentile(polled, 99), at_most=500
        ),
    ]
    return Table(
        "Launch and news",
        tuple(rows),
        (
            f"N = {len(launches)} launches, {len(news)} ends. Baseline of launch: `tmux new-session -d` by a "
            "subprocess, in turn with it; it keeps no log and no exit code.",
            f"Baseline of news, measured: {len(polled)} plain panes that end at random times, all looked at every "
            f"{_POLL_S:g} s (`tmux list-panes`). With agents 30 s to 16 min are usual, and the figure grows with them.",
        ),
    )


async def _one(server: Server, stamp: Path) -> tuple[float, float | None]:
    """Return how long a launch took, and the news of its end, in ms; None if the wait was not yet open then."""
    begun_s = time.perf_counter()
    run_id = await server.launch(program("worker", "--stamp", stamp, "--seconds", _WORKS_S, "--exit", 3), name="news")
    launch_ms = elapsed_ms(begun_s)
    waiting_ns = time.time_ns()
    answer = await server.wait(run_id, until="event")
    answered_ns, stamped_ns = time.time_ns(), read_number(stamp)
    ended = answer.data["reason"] == "ended" and stamped_ns is not None
    if not ended or stamped_ns is None or stamped_ns < waiting_ns + 50_000_000:
        return launch_ms, None
    return launch_ms, (answered_ns - stamped_ns) / 1e6


def _plain_launch(sandbox: Sandbox, number: int) -> float:
    begun_s = time.perf_counter()
    sandbox.tmux("new-session", "-d", "-s", f"plain-{number}", "sleep 0.1")
    took_ms = elapsed_ms(begun_s)
    sandbox.tmux("kill-session", "-t", f"=plain-{number}")
    return took_ms


async def _polled(sandbox: Sandbox) -> list[float]:
    """Return how old the news of an end is when somebody looks every 2 s, in ms."""
    stamps: dict[str, Path] = {}
    chance = random.Random(2)
    for number in range(_POLLED):
        name = f"polled-{number}"
        stamps[name] = sandbox.work / name
        argv = program("worker", "--stamp", stamps[name], "--seconds", f"{1 + chance.random() * _POLLED_ENDS_S:.3f}")
        sandbox.tmux("new-session", "-d", "-s", name, "--", *argv)
    found: list[float] = []
    until_s = time.monotonic() + 3 * _POLLED_ENDS_S
    while stamps and time.monotonic() < until_s:
        await anyio.sleep(_POLL_S)
        panes = sandbox.tmux("list-panes", "-a", "-F", "#{session_name} #{pane_dead}").splitlines()
        seen_ns = time.time_ns()
        dead = [name for name in stamps if f"{name} 1" in panes]
        ended = [read_number(stamps.pop(name)) for name in dead]
        found += [(seen_ns - stamp) / 1e6 for stamp in ended if stamp is not None]
    return found
