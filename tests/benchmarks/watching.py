"""What it costs to watch 20 live runs: CPU time of the server, of the supervisors, of tmux."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable

import anyio

from tests.benchmarks import processes
from tests.benchmarks.harness import Sandbox, Server, program, shell, started_facts
from tests.benchmarks.report import Row, Table, amount, measured

_RUNS, _WINDOW_S, _SETTLE_S, _POLL_S = 20, 22.0, 3.0, 2.0
_CORE_PERCENT = 2.0


async def measure(sandbox: Sandbox) -> Table:
    """Watch 20 runs by one open wait, and beside them 20 plain panes that a loop captures every 2 s."""
    sandbox.start_plain_tmux()
    for number in range(_RUNS):
        sandbox.tmux("new-session", "-d", "-s", f"plain-{number}", "--", *program("ticker", 120))
    async with sandbox.server() as server, anyio.create_task_group() as tasks:
        run_ids = [await server.launch(program("ticker", 120), name=f"watched-{n}") for n in range(_RUNS)]
        facts = [started_facts(sandbox.run_dir(run_id)) for run_id in run_ids]
        supervisors = [int(fact["supervisor_pid"]) for fact in facts]
        tasks.start_soon(_wait, server, run_ids)
        poller = _poller(sandbox)
        await anyio.sleep(_SETTLE_S)
        groups = {
            "server": [server.pid],
            "supervisors": supervisors + [int(fact["guard_pid"]) for fact in facts],
            "tmux": [_tmux_pid(sandbox, sandbox.socket)],
            "loop": [poller.pid],
            "plain tmux": [_tmux_pid(sandbox, sandbox.plain_socket)],
        }
        used = await _used(groups)
        memory = sum(processes.memory_mib(pid)[1] for pid in supervisors)
        poller.kill()
        poller.wait()
        tasks.cancel_scope.cancel()
    ours, plain = used["server"] + used["supervisors"], used["loop"] + used["plain tmux"]
    rows = (
        measured(
            f"{_RUNS} runs watched: server + supervisors, of one core", ours, "%", baseline=plain, at_most=_CORE_PERCENT
        ),
        Row("the server, one wait_run open over all", amount(used["server"], "%"), amount(used["loop"], "%")),
        Row("all supervisors", amount(used["supervisors"], "%")),
        measured("tmux (not in the sum above)", used["tmux"], "%", baseline=used["plain tmux"]),
        Row("memory of all supervisors, PSS", amount(memory, "MiB")),
    )
    return Table(
        "Watching 20 runs",
        rows,
        (
            f"Each prints a line a second; CPU clocks over {_WINDOW_S:g} s, in percent of one core.",
            f"Baseline, in the same seconds: a shell loop that captures {_RUNS} plain panes every {_POLL_S:g} s, "
            "and their tmux server; it learns no exit code and keeps no log.",
        ),
    )


async def _wait(server: Server, run_ids: list[str]) -> None:
    await server.wait(run_ids, timeout_s=600)


def _poller(sandbox: Sandbox) -> subprocess.Popen[bytes]:
    capture = shell(["tmux", "-L", sandbox.plain_socket, "capture-pane", "-p", "-t"])
    loop = f"while :; do for n in {{0..{_RUNS - 1}}}; do {capture} =plain-$n: >/dev/null; done; sleep {_POLL_S:g}; done"
    return subprocess.Popen(["bash", "-c", loop], env=sandbox.environment())


def _tmux_pid(sandbox: Sandbox, socket: str) -> int:
    return int(sandbox.tmux("display-message", "-p", "#{pid}", socket=socket))


async def _used(groups: dict[str, list[int]]) -> dict[str, float]:
    """Return the CPU time of groups of processes over a window, in percent of one core."""
    begun_s, before = time.monotonic(), {name: _total(pids) for name, pids in groups.items()}
    await anyio.sleep(_WINDOW_S)
    wall_s = time.monotonic() - begun_s
    return {name: (_total(pids) - before[name]) / wall_s * 100 for name, pids in groups.items()}


def _total(pids: Iterable[int]) -> float:
    return sum(processes.cpu_s(pid) for pid in pids)
