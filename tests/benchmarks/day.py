"""What it costs an agent to supervise a training run for a day, on virtual time: three habits, calls and tokens.

The run lasts 24 h. It runs out of memory after 9.2 h, and its policy retries it. The server and its answers are real;
the run directory is written as a supervisor would have written it by each moment, and the clock says that moment.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mcp.client import Client

from mcp_server.record.run_directory import RunDir
from mcp_server.runs.wait.cursors import backoff
from mcp_server.serve.app import build
from mcp_server.system.lock_files import take_lock
from tests.benchmarks.harness import NotMeasured, Sandbox
from tests.benchmarks.report import Row, Table, amount, measured
from tests.benchmarks.tokens import count
from tests.support.task_client import TASKS, TaskClient

_HOUR_S = 3600.0
_FIRST_STEP_S, _FAILS_S, _ENDS_S = 95.0, 9.2 * _HOUR_S, 24 * _HOUR_S
_STEP_S, _STEPS = 30.0, 2880
_SHELL_S, _SHELL_LINES = 60.0, 20
_OOM = {
    "kind": "oom",
    "line": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.",
    "line_number": 1117,
    "retryable": True,
    "action": "retry",
    "advice": "Halve the batch, or the number of environments.",
}


@dataclass
class World:
    """A run directory at a moment of the day. ``now_s``: seconds since the launch."""

    directory: RunDir
    begun_at_s: float = field(default_factory=time.time)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        oom = {"text": f"Attempt 1 failed: oom: {_OOM['line']} Retried.", "failure": _OOM}
        end = {"text": "finished: exit code 0.", "state": "finished", "exit_code": 0, "elapsed_s": _ENDS_S}
        self._events: list[tuple[float, int, dict[str, Any]]] = [
            (2.0, 1, {"kind": "started", "text": "The command runs.", "attempt": 1, "at_start": {}}),
            (_FIRST_STEP_S, 1, {"kind": "first_step", "text": "First training step seen."}),
            (_FAILS_S, 1, {"kind": "retrying", **oom}),
            (_FAILS_S + 30, 2, {"kind": "started", "text": "Attempt 2 runs.", "attempt": 2, "at_start": {}}),
            (_FAILS_S + 125, 2, {"kind": "first_step", "text": "First training step seen."}),
            (_ENDS_S, 2, {"kind": "ended", "attempt": 2, **end}),
        ]
        for number in (1, 2):
            self.directory.attempt(number).mkdir(parents=True)
        facts = {"layout": 3, "run_id": self.directory.run_id, "name": "qwen2-7b-sft", "command": "python train.py"}
        facts |= {"cwd": str(self.directory.path), "owner": "alice", "host": socket.gethostname()}
        self.directory.spec.write_text(json.dumps({**facts, "created_at": self._at(0)}))
        lock = take_lock(self.directory.lock)
        assert lock is not None
        self._lock: int | None = lock

    @property
    def moments(self) -> list[float]:
        """When something happens."""
        return [at_s for at_s, _, _ in self._events]

    def move_to(self, now_s: float) -> None:
        """Write everything that a supervisor has written by ``now_s``."""
        self.now_s = now_s
        happened = [each for each in self._events if each[0] <= now_s]
        lines = [
            json.dumps({"seq": seq, "at": self._at(at_s), **event}) for seq, (at_s, _, event) in enumerate(happened, 1)
        ]
        self.directory.events.write_text("".join(f"{line}\n" for line in lines))
        number = happened[-1][1] if happened else 1
        step = self.step
        progress = {"at": self._at(now_s), "step": step, "total_steps": _STEPS, "step_s": _STEP_S}
        progress |= {
            "eta_s": (_STEPS - step) * _STEP_S,
            "metrics": {"loss": round(3 - 2 * step / _STEPS, 4), "lr": 3e-4},
        }
        if step:
            self.directory.progress(number).write_text(json.dumps(progress))
        self.directory.log(number).write_text(self.tail(200))
        if now_s >= _ENDS_S and self._lock is not None:
            record = {"exit_code": 0, "signal": None, "state": "finished"}
            record |= {"started_at": self._at(_FAILS_S + 30), "ended_at": self._at(_ENDS_S)}
            self.directory.exit(2).write_text(json.dumps(record))
            os.close(self._lock)
            self._lock = None

    @property
    def step(self) -> int:
        """The step of the training at this moment."""
        return max(0, int((self.now_s - _FIRST_STEP_S) // _STEP_S) + 1) if self.now_s >= _FIRST_STEP_S else 0

    def tail(self, lines: int) -> str:
        """The newest lines of its output."""
        first = max(1, self.step - lines + 1)
        return "".join(map(self._line, range(first, self.step + 1)))

    def _line(self, step: int) -> str:
        at = self._at(self.now_s - (self.step - step) * _STEP_S)
        loss, norm = 3 - 2 * step / _STEPS, step % 900 + 100
        return f"[{at}] step {step}/{_STEPS} loss {loss:.4f} lr 3.00e-04 grad_norm 0.{norm} {_STEP_S:.1f} s/it\n"

    def _at(self, at_s: float) -> str:
        return (
            datetime.fromtimestamp(self.begun_at_s + at_s, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
        )


@dataclass
class Bill:
    """What a model reads and writes."""

    calls: int = 0
    answers: int = 0
    written: int = 0

    def add(self, name: str, arguments: dict[str, Any], answer: Any) -> None:
        self.calls += 1
        self.written += count(_compact({"name": name, "arguments": arguments}))
        self.answers += count(answer if isinstance(answer, str) else _compact(answer))

    @property
    def tokens(self) -> int:
        return self.answers + self.written


async def measure(sandbox: Sandbox) -> Table:
    """Supervise the same day by tasks, by blocking waits, and by a shell loop."""
    habits: dict[str, Callable[[World, Path], Awaitable[Bill]]] = {"tasks": _by_tasks, "waits": _by_waits}
    bills = {}
    for name, habit in habits.items():
        home = sandbox.root / name
        run_id = f"qwen2-7b-sft-{name}"
        world = World(RunDir(home / "runs" / run_id))
        with _virtual(world, home):
            bills[name] = await habit(world, home)
    world = World(RunDir(sandbox.root / "shell" / "runs" / "qwen2-7b-sft-shell"))
    shell = _by_shell(world)
    rows = (
        measured("by a task: answers and calls", bills["tasks"].tokens, "tokens", baseline=shell.tokens, at_most=1200),
        measured("by blocking waits: answers", bills["waits"].answers, "tokens", baseline=shell.answers, at_most=5000),
        Row(
            "by blocking waits: the calls themselves",
            amount(bills["waits"].written, "tokens"),
            amount(shell.written, "tokens"),
        ),
        Row(
            "times the model is called: task / waits",
            f"{bills['tasks'].calls} / {bills['waits'].calls}",
            amount(shell.calls, "calls"),
        ),
    )
    notes = (
        "One training of 24 h, one failure that the policy retries. "
        f"Baseline: `sleep {_SHELL_S:g} && tail -n {_SHELL_LINES}`.",
        "The blocking waits follow the server's schedule, to 16 min; `until` is `decision`. "
        "Context that a client sends again with each call is not counted.",
    )
    return Table("A supervised day, on virtual time", rows, notes)


async def _by_tasks(world: World, _: Path) -> Bill:
    bill, run_id = Bill(), world.directory.run_id
    async with Client(build(os.environ), extensions=TASKS) as client:
        tasks = TaskClient(client)
        world.move_to(3)
        arguments = {"run_ids": run_id, "until": "decision"}
        created = await tasks.create(**arguments)
        bill.add("wait_run", arguments, created)
        for moment in [*world.moments, _ENDS_S + 1]:
            world.move_to(max(moment, 3))
            task = await tasks.get(created["taskId"])
            if task["status"] == "completed":
                result = task["result"]["structuredContent"]
                bill.answers += count(_compact(result))
                bill.calls += 1  # the model is woken
                if world.now_s < _ENDS_S or result["reason"] != "ended":
                    raise NotMeasured(f"the task ended at {world.now_s:g} s: {result['reason']}")
                return bill
    raise NotMeasured("the task did not end")


async def _by_waits(world: World, _: Path) -> Bill:
    bill, run_id = Bill(), world.directory.run_id
    arguments = {"run_ids": run_id, "until": "decision"}
    async with Client(build(os.environ)) as client:

        async def look() -> dict[str, Any]:
            result = await client.call_tool("wait_run", {**arguments, "timeout_s": 0})
            answer = result.structured_content
            if result.is_error or answer is None:
                raise NotMeasured(f"{result.content}")
            return dict(answer)

        now_s = 3.0
        for limit_s in backoff():
            until_s = now_s + limit_s
            for now_s in [*(each for each in world.moments if now_s < each <= until_s), until_s]:
                world.move_to(now_s)
                answer = await look()
                if answer["reason"] != "heartbeat":
                    break
            bill.add("wait_run", arguments, answer)
            if answer["reason"] == "ended":
                return bill
            if answer["reason"] != "heartbeat":
                raise NotMeasured(f"a wait for decisions ended at {now_s:g} s: {answer['reason']}")
    raise NotMeasured("the run did not end")


def _by_shell(world: World) -> Bill:
    bill = Bill()
    command = f"sleep {_SHELL_S:g} && tail -n {_SHELL_LINES} logs/qwen2-7b-sft.log"
    while world.now_s < _ENDS_S:
        world.now_s += _SHELL_S
        bill.add("Bash", {"command": command}, world.tail(_SHELL_LINES))
    return bill


@contextmanager
def _virtual(world: World, home: Path) -> Iterator[None]:
    """Let the server in this process use ``home``, and see the world's clock."""
    environ = {**os.environ, "RUNWARD_HOME": str(home), "RUNWARD_LEASES": str(home / "leases")}
    with patch.dict(os.environ, environ), patch("time.time", lambda: world.begun_at_s + world.now_s):
        yield


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
