"""64 agents over HTTP whose waits are tasks: when an end arrives, what polling costs others, what kills lose."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import httpx2

from mcp_server.store.state_home import StateHome
from mcp_server.store.tokens import Tokens
from tests.benchmarks import processes
from tests.benchmarks.harness import NotMeasured, Sandbox, read_number, until
from tests.benchmarks.report import Row, Table, measured, median, percentile
from tests.benchmarks.swarm import connect, measure_calls, read_answer, serve
from tests.support.ports import free_port

_AGENTS, _ALONE, _APART_S, _KILLS = 64, 56, 0.25, 20
_VERSION, _TASKS = "2026-07-28", "io.modelcontextprotocol/tasks"
_RETRY_S = 0.5  # of a client whose server is gone
_POLLED_S, LONGEST_S = 300.0, 600.0


async def measure(sandbox: Sandbox) -> Table:
    """Open 64 tasks, call from a process of its own meanwhile, end all runs at once; then again, with kills."""
    tokens = Tokens(StateHome(sandbox.home))
    names = [f"agent-{number}" for number in range(_AGENTS)]
    given = {name: tokens.add(name) for name in [*names, "caller"]}
    async with serve(sandbox) as (url, pid):
        gates = _make_gates(sandbox, "first", names)
        runs = await _launch(url, given, gates)
        quiet = await measure_calls(sandbox, url, given["caller"], runs[names[0]])
        poller = _start_poller(sandbox, url, given, runs)
        if not await until(lambda: _count_tasks(sandbox) == _AGENTS, within_s=40, every_s=0.1):
            raise NotMeasured(f"{_count_tasks(sandbox)} of {_AGENTS} tasks were open")
        used_s, begun_s = processes.cpu_s(pid), time.monotonic()
        busy = await measure_calls(sandbox, url, given["caller"], runs[names[0]])
        core = (processes.cpu_s(pid) - used_s) / (time.monotonic() - begun_s) * 100
        for name in names[:_ALONE]:
            gates[name].write_text("")
            await anyio.sleep(_APART_S)
        for name in names[_ALONE:]:
            gates[name].write_text("")
        answers = await read_answer(poller)
    late_ms = {
        name: (answers[name]["at_ns"] - (read_number(_stamp(gates[name])) or 0)) / 1e6
        for name in names
        if _is_whole(answers.get(name))
    }
    alone_ms = [late_ms[name] for name in names[:_ALONE] if name in late_ms]
    together_ms = [late_ms[name] for name in names[_ALONE:] if name in late_ms]
    if not alone_ms or not together_ms:
        raise NotMeasured("no end arrived")
    lost, kills_s = await _count_lost(sandbox, given, names)
    rows = (
        measured("a command ends → its task is completed for a polling client, p50", median(alone_ms), "ms"),
        measured("the same, p99", percentile(alone_ms, 99), "ms", at_most=1000),
        measured(f"{_AGENTS - _ALONE} commands end at once → the last task is completed", max(together_ms), "ms"),
        measured("ends that did not arrive", float(_AGENTS - len(late_ms)), "", at_most=0),
        measured("other calls, p50", median(busy), "ms", baseline=median(quiet)),
        measured("other calls, p99", percentile(busy, 99), "ms", baseline=percentile(quiet, 99), at_most=50),
        measured(
            f"tasks lost, or answered twice differently, with {_KILLS} kills of the server", float(lost), "", at_most=0
        ),
        Row("the server, 64 tasks polled and the calls served, of one core", f"{core:.1f} %"),
        Row(f"the {_KILLS} kills took", f"{kills_s:.0f} s"),
    )
    return Table(
        f"Tasks: {_AGENTS} agents over HTTP, each with a token and a wait that is a task",
        rows,
        (
            f"N = {len(busy)} calls that only look, by a client process of its own. Baseline: before any task was "
            "open. Each task is polled as often as the server asks, some 80 times a second in all, by another process.",
            "With kills: SIGKILL at a random moment, a new server at the same port, three commands end in each round.",
        ),
    )


async def _count_lost(sandbox: Sandbox, given: Mapping[str, str], names: Sequence[str]) -> tuple[int, float]:
    """Kill the server again and again while 64 tasks are open and end; return how many ends were lost."""
    rounds, port = random.Random(4), free_port()
    gates = _make_gates(sandbox, "second", names)
    closed = list(names)
    rounds.shuffle(closed)
    before = _count_tasks(sandbox)
    async with serve(sandbox, port) as (url, pid):
        runs = await _launch(url, given, gates)
        poller = _start_poller(sandbox, url, given, runs)
        if not await until(lambda: _count_tasks(sandbox) == before + _AGENTS, within_s=40, every_s=0.1):
            raise NotMeasured("not all tasks were open")
        os.kill(pid, signal.SIGKILL)
    begun_s = time.monotonic()
    for _ in range(_KILLS - 1):
        async with serve(sandbox, port) as (_, pid):
            for name in [closed.pop() for _ in range(min(3, len(closed)))]:
                gates[name].write_text("")
            await anyio.sleep(rounds.uniform(0.0, 0.4))
            os.kill(pid, signal.SIGKILL)
    for name in closed:
        gates[name].write_text("")
    async with serve(sandbox, port):
        answers = await read_answer(poller)
    return sum(not _is_whole(answers.get(name)) for name in names), time.monotonic() - begun_s


def _make_gates(sandbox: Sandbox, group: str, names: Sequence[str]) -> dict[str, Path]:
    """Make a FIFO for each run: it ends when somebody writes into its own."""
    (place := sandbox.work / group).mkdir()
    for name in names:
        os.mkfifo(place / name)
    return {name: place / name for name in names}


def _stamp(gate: Path) -> Path:
    """Return the file that holds when the run of this gate ended, in ns."""
    return gate.with_suffix(".ended")


async def _launch(url: str, given: Mapping[str, str], gates: Mapping[str, Path]) -> dict[str, str]:
    runs = {}
    async with connect(url, given["caller"]) as client:
        for name, gate in gates.items():
            command = f'read -r < {gate}; printf %s "${{EPOCHREALTIME/[.,]/}}000" > {_stamp(gate)}; exit 3'
            result = await client.call_tool("launch_run", {"command": command, "name": name})
            runs[name] = str((result.structured_content or {})["run_id"])
    return runs


def _count_tasks(sandbox: Sandbox) -> int:
    waits = StateHome(sandbox.home).waits
    return sum(not path.name.endswith(".end.json") for path in waits.glob("[!.]*.json")) if waits.is_dir() else 0


def _is_whole(answer: Any) -> bool:
    """Whether a task was completed with the end of its run, and answered with the same once more."""
    return answer is not None and answer["reason"] == "ended" and answer["exit_code"] == 3 and answer["same"]


# --- the polling process


def _start_poller(
    sandbox: Sandbox, url: str, given: Mapping[str, str], runs: Mapping[str, str]
) -> subprocess.Popen[str]:
    agents = {name: {"token": given[name], "run_id": run_id} for name, run_id in runs.items()}
    return subprocess.Popen(
        [sys.executable, "-m", __name__, url, json.dumps(agents)],
        env=sandbox.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )


async def _poll_all(url: str, agents: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Be so many clients, each with one task."""
    answers: dict[str, Any] = {}

    async def poll(name: str, token: str, run_id: str) -> None:
        headers = {"authorization": f"Bearer {token}", "accept": "application/json, text/event-stream"}
        async with httpx2.AsyncClient(headers=headers, timeout=30) as http:
            arguments = {"run_ids": run_id, "until": "end"}
            task = await _ask(http, url, "tools/call", "wait_run", {"name": "wait_run", "arguments": arguments})
            result = again = task  # where a kill cut the first answer off, the run may have ended before the second
            if (task_id := task.get("taskId")) is not None:
                while task["status"] == "working":
                    await anyio.sleep(task["pollIntervalMs"] / 1000)
                    task = await _ask(http, url, "tasks/get", task_id, {"taskId": task_id})
                result = task["result"]
            at_ns = time.time_ns()
            if task_id is not None:
                again = (await _ask(http, url, "tasks/get", task_id, {"taskId": task_id}))["result"]
            told = result["structuredContent"]
            answers[name] = {
                "at_ns": at_ns,
                "reason": told["reason"],
                "exit_code": told["runs"][0].get("exit_code"),
                "same": again == result,
            }

    with anyio.move_on_after(_POLLED_S):
        async with anyio.create_task_group() as tasks:
            for name, agent in agents.items():
                tasks.start_soon(poll, name, agent["token"], agent["run_id"])
    return answers


async def _ask(http: httpx2.AsyncClient, url: str, method: str, name: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a request; while no server answers, ask again."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": _VERSION,
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {_TASKS: {}}},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    headers = {"mcp-protocol-version": _VERSION, "mcp-method": method, "mcp-name": name}
    while True:
        with contextlib.suppress(httpx2.HTTPError):
            response = await http.post(f"{url}/mcp", json=body, headers=headers)
            if response.status_code == 200 and (start := response.text.find("{")) >= 0:  # an event has it in a line
                answer, _ = json.JSONDecoder().raw_decode(response.text[start:])
                result: dict[str, Any] = answer["result"]
                return result
        await anyio.sleep(_RETRY_S)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_poll_all(sys.argv[1], json.loads(sys.argv[2])))))
