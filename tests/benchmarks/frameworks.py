"""Real trainings with real frameworks, healthy and broken: what is an agent told of them?

Not among the groups that are measured by default: RUNWARD_FRAMEWORKS_PYTHON names a Python that has the frameworks.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import anyio

from tests.benchmarks.harness import REPOSITORY, Sandbox, Server
from tests.benchmarks.report import Row, Table
from tests.benchmarks.scoring import Verdict, by_keywords

LONGEST_S = 900.0
_PYTHON = "RUNWARD_FRAMEWORKS_PYTHON"
_NEEDS = ("torch", "transformers", "accelerate", "lightning", "stable_baselines3", "tqdm")
_RUN_S, _AT_ONCE = 120.0, 2
_MOST_VIRTUAL_KIB = 8_000_000
_ALARMS = ("error_seen", "stalled", "first_step_timeout")
_BROKEN = "observer_error"


@dataclass(frozen=True)
class Program:
    """One training of programs/frameworks: how it counts its steps."""

    module: str
    what: str
    first: range  # its counter when the first step is told: bars are not redrawn at every step
    end: tuple[int, int | None]  # steps, of how many: the last that it prints


@dataclass(frozen=True)
class Mishap:
    """Something that goes wrong; ``tells``: a pattern for the root line. ``steps``: some are made before."""

    name: str
    what: str
    words: str
    kind: str
    tells: str
    steps: bool = False
    signal: str | None = None


_PROGRAMS = (
    Program("torch_loop", "plain PyTorch", range(1, 11), (60, 60)),
    Program("hf_trainer", "HF Trainer", range(1, 21), (60, 60)),
    Program("lightning_fit", "Lightning", range(1, 21), (60, 60)),
    Program("sb3_ppo", "stable-baselines3", range(20, 641), (3840, None)),
)
_MISHAPS = (
    Mishap("shape", "a shape that does not fit", "--width {width}", "python_error", r"^\w+Error: .*(?:shape|range)"),
    Mishap("file", "a file that is not there", "--data no/such.npy", "data_error", r"^FileNotFoundError.*such\.npy"),
    Mishap("nan", "a learning rate of 1e18", "--lr 1e18", "divergence", r"\b(?:nan|inf)\b", steps=True),
    # No line tells of a SIGKILL: how far it came is the most that can be quoted. The status names the signal.
    Mishap("kill", "SIGKILL", "--die-at 30", "killed", r"\d", steps=True, signal="SIGKILL"),
    Mishap("memory", "too little memory (ulimit -v)", "--hoard 512", "oom_host", r"can't allocate", steps=True),
    Mishap("port", "a port that is taken", "--port {port}", "port_conflict", r"EADDRINUSE|[Aa]ddress already in use"),
    Mishap("module", "a module that is missing", "--attention flash_attn", "import_error", r"No module.*flash_attn"),
    Mishap("argument", "a wrong argument", "--stpes 60", "config_error", r"unrecognized arguments: --stpes"),
)


@dataclass(frozen=True)
class Told:
    """What an agent was told of one run, and what a grep makes of its log."""

    program: Program
    mishap: Mishap | None
    status: dict[str, Any]
    events: list[dict[str, Any]]
    grep: Verdict

    @property
    def name(self) -> str:
        """What was run."""
        return f"{self.program.what}, {self.mishap.name if self.mishap else 'healthy'}"

    @property
    def failure(self) -> dict[str, Any]:
        """Why it failed; empty if it did not."""
        return dict(self.status.get("failure") or {})

    @property
    def alarms(self) -> list[str]:
        """What was told of it that is reason to worry, while it ran."""
        return [event["kind"] for event in self.events if event["kind"] in (*_ALARMS, _BROKEN)]

    @property
    def ended_right(self) -> bool:
        """Whether the state, and the signal if there was one, are as they should be."""
        fails = self.mishap is not None and self.mishap.kind != "divergence"
        signal = self.mishap.signal if self.mishap else None
        return self.status["state"] == ("failed" if fails else "finished") and self.status.get("signal") == signal

    @property
    def first_step_right(self) -> bool:
        """Whether the first step was told as it was, or none where none was made."""
        steps = [event.get("step") for event in self.events if event["kind"] == "first_step"]
        if self.mishap is not None and not self.mishap.steps:
            return not steps
        return len(steps) == 1 and steps[0] in self.program.first

    @property
    def last_step_right(self) -> bool:
        """Whether the last step is told, and of how many."""
        return (self.status.get("step"), self.status.get("total_steps")) == self.program.end


async def measure(sandbox: Sandbox) -> Table:
    """Run every program, healthy and with each mishap."""
    title = "Real frameworks"
    python = os.environ.get(_PYTHON)
    if why := _missing(python):
        hint = f"{_PYTHON}=PATH names a Python with {', '.join(_NEEDS)}"
        return Table(title, (Row("not measured", why),), (f"{hint}; CPU builds are enough.",))
    told = await _run_all(sandbox, str(python))
    healthy = [one for one in told if one.mishap is None]
    stepped = [one for one in told if one.mishap is None or one.mishap.steps]
    stuck = [one for one in told if one not in stepped]
    rows = [_row(mishap, [one for one in told if one.mishap is mishap]) for mishap in _MISHAPS]
    rows += [
        _all("healthy: no failure, no alarm", healthy, lambda one: not one.failure and not one.alarms, _calm),
        _all("exact end: state and signal", told, lambda one: one.ended_right),
        _all("first step told as it was", stepped, lambda one: one.first_step_right, _stepped),
        _all("no first step told where none was made", stuck, lambda one: one.first_step_right, _not_stepped),
        _all("healthy: last step, and of how many", healthy, lambda one: one.last_step_right),
    ]
    notes = [
        f"{', '.join(program.what for program in _PROGRAMS)}, on CPU; launched and waited for by an MCP client. "
        "Baseline: the last line of the same log with one of the usual keywords, which also names the kind.",
        *(f"{one.name}: {_wrong(one)}" for one in told if _wrong(one)),
    ]
    return Table(title, tuple(rows), tuple(notes))


def _missing(python: str | None) -> str:
    """Return why nothing can be run; empty if it can."""
    if not python:
        return f"{_PYTHON} is not set"
    try:
        done = subprocess.run(
            [python, "-c", f"import {', '.join(_NEEDS)}"], capture_output=True, text=True, check=False
        )
    except OSError as error:
        return str(error)
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""


async def _run_all(sandbox: Sandbox, python: str) -> list[Told]:
    told: list[Told] = []
    limit = anyio.CapacityLimiter(_AT_ONCE)

    async def one(server: Server, program: Program, mishap: Mishap | None, port: int) -> None:
        async with limit:
            told.append(await _run(sandbox, server, program, mishap, _command(python, program, mishap, port)))

    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        async with sandbox.server() as server, anyio.create_task_group() as tasks:
            for program in _PROGRAMS:
                for mishap in (None, *_MISHAPS):
                    tasks.start_soon(one, server, program, mishap, port)
    order = {program.module: number for number, program in enumerate(_PROGRAMS)}
    return sorted(told, key=lambda one: order[one.program.module])


def _command(python: str, program: Program, mishap: Mishap | None, port: int) -> str:
    """Return the shell line of a run."""
    words = [python, "-m", f"tests.benchmarks.programs.frameworks.{program.module}"]
    if mishap:
        # A model that reads tokens fails by too many of them; one that reads numbers, by one more.
        width = 16 if program.module == "hf_trainer" else 9
        words += mishap.words.format(port=port, width=width).split()
        words += ["--algorithm", "dqn"] if (program.module, mishap.name) == ("sb3_ppo", "nan") else []
    line = shlex.join(words)
    return f"ulimit -v {_MOST_VIRTUAL_KIB}; {line}" if mishap and mishap.name == "memory" else line


async def _run(sandbox: Sandbox, server: Server, program: Program, mishap: Mishap | None, command: str) -> Told:
    name = f"{program.module}-{mishap.name if mishap else 'healthy'}".replace("_", "-")
    environment = {"PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    run_id = await server.launch(command, name=name, cwd=str(sandbox.work), env=environment)
    answer = await server.wait(run_id, timeout_s=_RUN_S, until="end")
    events = [json.loads(line) for line in (sandbox.run_dir(run_id) / "events.jsonl").read_text().splitlines()]
    grep = by_keywords(sandbox.log(run_id).read_text(errors="replace"))
    return Told(program, mishap, answer.data["runs"][0], events, grep)


def _row(mishap: Mishap, told: list[Told]) -> Row:
    """Return how often the kind and the root line were right."""
    ours = [(one.failure.get("kind"), one.failure.get("line") or "") for one in told]
    greps = [(one.grep.kind, one.grep.line) for one in told]
    kinds, lines = _right(mishap, ours)
    grep_kinds, grep_lines = _right(mishap, greps)
    return Row(
        f"{mishap.what}: {mishap.kind}; its root line",
        f"{kinds} of {len(told)}; {lines}",
        f"{grep_kinds} of {len(told)}; {grep_lines}",
        bar=f"{len(told)}; {len(told)}",
        ok=kinds == lines == len(told),
    )


def _right(mishap: Mishap, verdicts: Iterable[tuple[str | None, str]]) -> tuple[int, int]:
    found = list(verdicts)
    return sum(kind == mishap.kind for kind, _ in found), sum(_tells(mishap, line) for _, line in found)


def _tells(mishap: Mishap, line: str) -> bool:
    return re.search(mishap.tells, line) is not None


def _all(
    what: str, told: list[Told], right: Callable[[Told], bool], grep: Callable[[Verdict], bool] | None = None
) -> Row:
    count = sum(map(right, told))
    baseline = f"{sum(grep(one.grep) for one in told)} of {len(told)}" if grep else ""
    return Row(what, f"{count} of {len(told)}", baseline, bar="all", ok=count == len(told))


def _calm(grep: Verdict) -> bool:
    return grep.kind == "ok"


def _stepped(grep: Verdict) -> bool:
    return grep.first_step_seen


def _not_stepped(grep: Verdict) -> bool:
    return not grep.first_step_seen


def _wrong(one: Told) -> str:
    """Return what was told wrong of a run; empty if nothing was."""
    kind, line = one.failure.get("kind"), one.failure.get("line") or ""
    due = one.mishap.kind if one.mishap else None
    status = one.status
    found = [
        *((True, event["text"]) for event in one.events if event["kind"] == _BROKEN),
        (kind != due, f"kind {kind}"),
        (one.mishap is not None and not _tells(one.mishap, line), f"line {line!r}"),
        (not one.ended_right, f"{status['state']}, exit code {status.get('exit_code')}, signal {status.get('signal')}"),
        (not one.first_step_right, f"first step: {[e.get('step') for e in one.events if e['kind'] == 'first_step']}"),
        (one.mishap is None and bool(one.alarms), f"alarms {one.alarms}"),
        (one.mishap is None and not one.last_step_right, f"step {status.get('step')} of {status.get('total_steps')}"),
    ]
    return "; ".join(text for wrong, text in found if wrong)
