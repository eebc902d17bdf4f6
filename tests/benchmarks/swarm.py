"""64 agents over HTTP, each with an open wait on a run of its own, and what that costs everybody else's calls."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from mcp_server.store.state_home import StateHome
from mcp_server.store.tokens import Tokens
from tests.benchmarks import processes
from tests.benchmarks.harness import NotMeasured, Sandbox, elapsed_ms, program, read_number, until
from tests.benchmarks.report import Row, Table, measured, median, percentile
from tests.support.ports import free_port

_AGENTS, _CROWDS = 64, 2  # real clients cost more than the server: a few processes share them
_CALLS, _PAUSE_S, _SINGLES = 400, 0.02, 15
_TOOLS = ("list_runs", "wait_run", "read_log")


async def measure(sandbox: Sandbox) -> Table:
    """Open 64 waits, call from a process of its own before and meanwhile, then end all runs at once."""
    tokens = Tokens(StateHome(sandbox.home))
    names = [f"agent-{number}" for number in range(_AGENTS)]
    given = {name: tokens.add(name) for name in [*names, "caller"]}
    async with serve(sandbox) as (url, pid):
        alone_mib = processes.memory_mib(pid)[0]
        gate = sandbox.work / "gate"
        os.mkfifo(gate)  # every run opens it to read, which none can before somebody opens it to write
        async with connect(url, given["caller"]) as caller:
            runs = [await _launch(caller, gate, sandbox.work / name, name) for name in names]
        quiet = await measure_calls(sandbox, url, given["caller"], runs[0])
        agents = {name: {"token": given[name], "run_id": run} for name, run in zip(names, runs, strict=True)}
        shares = [dict(list(agents.items())[number::_CROWDS]) for number in range(_CROWDS)]
        crowds = [_helper(sandbox, "wait", {"url": url, "agents": share}) for share in shares]
        if not await until(lambda: _waits(url) == _AGENTS, within_s=40, every_s=0.2):
            raise NotMeasured(f"{_waits(url)} of {_AGENTS} waits were open")
        used_s, begun_s = processes.cpu_s(pid), time.monotonic()
        busy = await measure_calls(sandbox, url, given["caller"], runs[0])
        core = (processes.cpu_s(pid) - used_s) / (time.monotonic() - begun_s) * 100
        single = await _singles(sandbox, url, given["caller"])
        used_s = processes.cpu_s(pid)
        gate.write_text("")
        told = [await read_answer(crowd) for crowd in crowds]
        telling_ms = (processes.cpu_s(pid) - used_s) * 1000
        most_mib = processes.memory_mib(pid)[0]
    answers = {name: answer for part in told for name, answer in part.items()}
    late = [_late_ms(sandbox.work / name, answers[name]) for name in names if _whole(answers.get(name))]
    news = [_news_ms(answers[name]) for name in names if _whole(answers.get(name))]
    if not news:
        raise NotMeasured("no end arrived")
    lost = _AGENTS - len(late)
    rows = (
        measured("other calls, p50", median(busy), "ms", baseline=median(quiet)),
        measured("other calls, p99", percentile(busy, 99), "ms", baseline=percentile(quiet, 99), at_most=50),
        measured("ends, or events before them, that did not arrive", float(lost), "", at_most=0),
        measured("one more command ends while 64 wait → its agent knows, p50", median(single), "ms"),
        measured("end of 64 commands at once → the last agent knows", max(late), "ms"),
        measured("end noted by a run's supervisor → its agent knows, p50", median(news), "ms"),
        measured("end noted → its agent knows, p99", percentile(news, 99), "ms"),
        Row("the server's own time for these 64 answers", f"{telling_ms:,.0f} ms of CPU"),
        measured("memory of the server (RSS), at its most", most_mib, "MiB", baseline=alone_mib, at_most=150),
        Row("the server, 64 waits open and the calls served, of one core", f"{core:.1f} %"),
    )
    return Table(
        f"A swarm: {_AGENTS} agents over HTTP, each with a token and an open wait",
        rows,
        (
            f"N = {len(busy)} calls of {', '.join(_TOOLS)} in turn, {_PAUSE_S * 1000:g} ms apart, by a client process "
            "of its own. Baseline: the same calls before any wait was open.",
            f"The waiting clients are {_AGENTS} of the SDK's in {_CROWDS} processes, on the same machine.",
        ),
    )


@contextlib.asynccontextmanager
async def serve(sandbox: Sandbox, port: int | None = None) -> AsyncIterator[tuple[str, int]]:
    """Serve over HTTP; yield the address and the server's process id."""
    port = port or free_port()
    with (sandbox.root / "server.log").open("a") as log:
        argv = [sys.executable, "-m", "mcp_server", "serve", "--http", f"127.0.0.1:{port}"]
        process = subprocess.Popen(argv, env=sandbox.environment(), stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        if not await until(lambda: _waits(url) is not None, within_s=60):
            raise NotMeasured("the server does not answer")
        yield url, process.pid
    finally:
        if process.poll() is None:  # unless the measurement killed it
            process.terminate()
        process.wait()


def _waits(url: str) -> int | None:
    """Return how many waits the server has open; None when it does not answer."""
    try:
        return int(httpx2.get(f"{url}/healthz").json()["waits"])
    except httpx2.HTTPError:
        return None


@contextlib.asynccontextmanager
async def connect(url: str, token: str) -> AsyncIterator[Client]:
    """Connect a client of the SDK."""
    async with (
        httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=300) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client,
    ):
        yield client


async def _launch(client: Client, gate: Path, stamp: Path, name: str) -> str:
    command = f'read -r < {gate}; printf %s "${{EPOCHREALTIME/[.,]/}}000" > {stamp}; exit 3'
    result = await client.call_tool("launch_run", {"command": command, "name": name})
    return str((result.structured_content or {})["run_id"])


def _helper(sandbox: Sandbox, what: str, facts: Any) -> subprocess.Popen[str]:
    """Start one of the programs at the end of this file in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", __name__, what, json.dumps(facts)],
        env=sandbox.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )


async def read_answer(helper: subprocess.Popen[str]) -> Any:
    """Return what a helper process prints at its end."""
    said, _ = await anyio.to_thread.run_sync(helper.communicate)
    if helper.returncode:
        raise NotMeasured("a process of clients failed")
    return json.loads(said)


async def measure_calls(sandbox: Sandbox, url: str, token: str, run_id: str) -> list[float]:
    """Call the tools that only look from another process; return what each call took in ms."""
    found: list[float] = await read_answer(_helper(sandbox, "call", {"url": url, "token": token, "run_id": run_id}))
    return found


def _whole(answer: Any) -> bool:
    """Whether an agent was told the end of its run, and with it every event since the launch."""
    if answer is None or answer["reason"] != "ended":
        return False
    seqs = [event["seq"] for event in answer["events"]]
    return bool(seqs) and seqs == list(range(seqs[0], seqs[0] + len(seqs))) and answer["exit_code"] == 3


def _late_ms(stamp: Path, answer: dict[str, Any]) -> float:
    return (int(answer["at_ns"]) - (read_number(stamp) or 0)) / 1e6


async def _singles(sandbox: Sandbox, url: str, token: str) -> list[float]:
    """Launch short runs one after the other and wait for each; return how old the news of its end was, in ms."""
    found = []
    async with connect(url, token) as client:
        for number in range(_SINGLES):
            stamp = sandbox.work / f"single-{number}"
            launch = {"command": program("worker", "--stamp", stamp, "--seconds", 0.4, "--exit", 3), "name": "single"}
            run_id = ((await client.call_tool("launch_run", launch)).structured_content or {})["run_id"]
            await client.call_tool("wait_run", {"run_ids": run_id, "until": "end", "timeout_s": 30})
            found.append((time.time_ns() - (read_number(stamp) or 0)) / 1e6)
    return found


def _news_ms(answer: dict[str, Any]) -> float:
    noted = datetime.fromisoformat(answer["events"][-1]["at"])
    return int(answer["at_ns"]) / 1e6 - noted.timestamp() * 1000


async def _wait_all(url: str, agents: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Be so many agents, each of which waits for the end of its run."""
    answers: dict[str, Any] = {}

    async def wait(name: str, token: str, run_id: str) -> None:
        async with connect(url, token) as client:
            arguments = {"run_ids": run_id, "until": "end", "timeout_s": 240, "since": 0}
            told = (await client.call_tool("wait_run", arguments)).structured_content or {}
            run = told["runs"][0]
            answers[name] = {
                "at_ns": time.time_ns(),
                "reason": told["reason"],
                "exit_code": run.get("exit_code"),
                "events": run.get("events", []),
            }

    async with anyio.create_task_group() as tasks:
        for name, agent in agents.items():
            tasks.start_soon(wait, name, agent["token"], agent["run_id"])
    return answers


async def _call_often(url: str, token: str, run_id: str) -> list[float]:
    """Call the tools that only look, one after the other; return what each call took in ms."""
    arguments: dict[str, dict[str, Any]] = {
        "list_runs": {},
        "wait_run": {"run_ids": run_id, "timeout_s": 0},
        "read_log": {"run_id": run_id},
    }
    took: list[float] = []
    async with connect(url, token) as client:
        for number in range(_CALLS):
            tool = _TOOLS[number % len(_TOOLS)]
            begun_s = time.perf_counter()
            await client.call_tool(tool, arguments[tool])
            took.append(elapsed_ms(begun_s))
            await anyio.sleep(_PAUSE_S)
    return took[20:]  # the first ones compile patterns and fill caches


if __name__ == "__main__":
    programs: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {"wait": _wait_all, "call": _call_often}
    print(json.dumps(asyncio.run(programs[sys.argv[1]](**json.loads(sys.argv[2])))))
