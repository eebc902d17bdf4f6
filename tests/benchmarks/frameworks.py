"""Training runs of real frameworks, healthy and broken: is their progress and their failure reported correctly?

Measured only when named: RUNWARD_FRAMEWORKS_PYTHON is a Python with the frameworks. Their ways of printing and writing,
rebuilt small, need none.
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
from tests.benchmarks.rebuilt import measure_rebuilt
from tests.benchmarks.report import Row, Table
from tests.benchmarks.scoring import Diagnosis, diagnose_by_keywords

LONGEST_S = 900.0
_PYTHON = "RUNWARD_FRAMEWORKS_PYTHON"
_NEEDS = ("torch", "transformers", "accelerate", "lightning", "stable_baselines3", "tqdm")
_RUN_S, _AT_ONCE = 120.0, 2
_MAX_VIRTUAL_KIB = 8_000_000
_ALARMS = ("error_seen", "stalled", "first_step_timeout")
_BROKEN = ("observer_error", "judging_lost")


@dataclass(frozen=True)
class Program:
    """A training program of programs/frameworks, and the steps it counts."""

    module: str
    what: str
    first: range  # its counter at the first reported step: bars are not redrawn at every step
    end: tuple[int, int | None]  # the last step and total that it prints


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong; ``root_line``: its pattern. ``steps``: some are made before."""

    name: str
    what: str
    words: str
    kind: str
    root_line: str
    steps: bool = False
    signal: str | None = None


_PROGRAMS = (
    Program("torch_loop", "plain PyTorch", range(1, 11), (60, 60)),
    Program("hf_trainer", "HF Trainer", range(1, 21), (60, 60)),
    Program("lightning_fit", "Lightning", range(1, 21), (60, 60)),
    Program("sb3_ppo", "stable-baselines3", range(20, 641), (3840, None)),
)
_FAULTS = (
    Fault("shape", "a shape that does not fit", "--width {width}", "python_error", r"^\w+Error: .*(?:shape|range)"),
    Fault("file", "a file that is not there", "--data no/such.npy", "data_error", r"^FileNotFoundError.*such\.npy"),
    Fault("nan", "a learning rate of 1e18", "--lr 1e18", "divergence", r"\b(?:nan|inf)\b", steps=True),
    # No line reports a SIGKILL: the last progress is the most that can be quoted. The status names the signal.
    Fault("kill", "SIGKILL", "--die-at 30", "killed", r"\d", steps=True, signal="SIGKILL"),
    Fault("memory", "too little memory (ulimit -v)", "--hoard 512", "oom_host", r"can't allocate", steps=True),
    Fault("port", "a port that is taken", "--port {port}", "port_conflict", r"EADDRINUSE|[Aa]ddress already in use"),
    Fault("module", "a module that is missing", "--attention flash_attn", "import_error", r"No module.*flash_attn"),
    Fault("argument", "a wrong argument", "--stpes 60", "config_error", r"unrecognized arguments: --stpes"),
)


@dataclass(frozen=True)
class RunReport:
    """What an agent sees of one run, and the diagnosis of its log by keywords."""

    program: Program
    fault: Fault | None
    status: dict[str, Any]
    events: list[dict[str, Any]]
    grep: Diagnosis

    @property
    def name(self) -> str:
        """Program and fault."""
        return f"{self.program.what}, {self.fault.name if self.fault else 'healthy'}"

    @property
    def failure(self) -> dict[str, Any]:
        """The failure; empty if the run did not fail."""
        return dict(self.status.get("failure") or {})

    @property
    def alarms(self) -> list[str]:
        """Kinds of the alarms raised while it ran."""
        return [event["kind"] for event in self.events if event["kind"] in (*_ALARMS, *_BROKEN)]

    @property
    def ended_right(self) -> bool:
        """Whether the state and the signal are as expected."""
        fails = self.fault is not None and self.fault.kind != "divergence"
        signal = self.fault.signal if self.fault else None
        return self.status["state"] == ("failed" if fails else "finished") and self.status.get("signal") == signal

    @property
    def first_step_right(self) -> bool:
        """Whether the first step is reported correctly, or not at all if none was made."""
        steps = [event.get("step") for event in self.events if event["kind"] == "first_step"]
        if self.fault is not None and not self.fault.steps:
            return not steps
        return len(steps) == 1 and steps[0] in self.program.first

    @property
    def last_step_right(self) -> bool:
        """Whether the last step and the total are reported."""
        return (self.status.get("step"), self.status.get("total_steps")) == self.program.end


async def measure(sandbox: Sandbox) -> Table:
    """Run every program, healthy and with each fault."""
    title = "Real frameworks"
    python = os.environ.get(_PYTHON)
    rebuilt, misread = await measure_rebuilt(sandbox)
    if why := _missing(python):
        hint = f"{_PYTHON}=PATH names a Python with {', '.join(_NEEDS)}"
        return Table(title, (*rebuilt, Row("not measured", why)), (f"{hint}; CPU builds are enough.", *misread))
    reports = await _run_all(sandbox, str(python))
    healthy = [report for report in reports if report.fault is None]
    with_steps = [report for report in reports if report.fault is None or report.fault.steps]
    without_steps = [report for report in reports if report not in with_steps]
    rows = [_fault_row(fault, [report for report in reports if report.fault is fault]) for fault in _FAULTS]
    rows += [
        _count_row(
            "healthy: no failure, no alarm",
            healthy,
            lambda report: not report.failure and not report.alarms,
            _is_healthy,
        ),
        _count_row("exact end: state and signal", reports, lambda report: report.ended_right),
        _count_row("first step reported correctly", with_steps, lambda report: report.first_step_right, _saw_step),
        _count_row(
            "no first step reported where none was made",
            without_steps,
            lambda report: report.first_step_right,
            _saw_no_step,
        ),
        _count_row("healthy: last step and total", healthy, lambda report: report.last_step_right),
    ]
    notes = [
        f"{', '.join(program.what for program in _PROGRAMS)}, on CPU; launched and waited for by an MCP client. "
        "Baseline: the last line of the same log with one of the usual keywords, which also names the kind.",
        *(f"{report.name}: {_describe_errors(report)}" for report in reports if _describe_errors(report)),
    ]
    return Table(title, (*rebuilt, *rows), (*notes, *misread))


def _missing(python: str | None) -> str:
    """Return why nothing can be measured, or an empty text."""
    if not python:
        return f"{_PYTHON} is not set"
    try:
        done = subprocess.run(
            [python, "-c", f"import {', '.join(_NEEDS)}"], capture_output=True, text=True, check=False
        )
    except OSError as error:
        return str(error)
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""


async def _run_all(sandbox: Sandbox, python: str) -> list[RunReport]:
    reports: list[RunReport] = []
    limit = anyio.CapacityLimiter(_AT_ONCE)

    async def run_one(server: Server, program: Program, fault: Fault | None, port: int) -> None:
        async with limit:
            reports.append(await _run(sandbox, server, program, fault, _command(python, program, fault, port)))

    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        async with sandbox.server() as server, anyio.create_task_group() as tasks:
            for program in _PROGRAMS:
                for fault in (None, *_FAULTS):
                    tasks.start_soon(run_one, server, program, fault, port)
    order = {program.module: number for number, program in enumerate(_PROGRAMS)}
    return sorted(reports, key=lambda report: order[report.program.module])


def _command(python: str, program: Program, fault: Fault | None, port: int) -> str:
    """Return the shell line of a run."""
    words = [python, "-m", f"tests.benchmarks.programs.frameworks.{program.module}"]
    if fault:
        # A model of tokens fails with too many tokens; a model of numbers with one number more.
        width = 16 if program.module == "hf_trainer" else 9
        words += fault.words.format(port=port, width=width).split()
        words += ["--algorithm", "dqn"] if (program.module, fault.name) == ("sb3_ppo", "nan") else []
    line = shlex.join(words)
    return f"ulimit -v {_MAX_VIRTUAL_KIB}; {line}" if fault and fault.name == "memory" else line


async def _run(sandbox: Sandbox, server: Server, program: Program, fault: Fault | None, command: str) -> RunReport:
    name = f"{program.module}-{fault.name if fault else 'healthy'}".replace("_", "-")
    environment = {"PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    run_id = await server.launch(command, name=name, cwd=str(sandbox.work), env=environment)
    answer = await server.wait(run_id, timeout_s=_RUN_S, until="end")
    events = [json.loads(line) for line in (sandbox.run_dir(run_id) / "events.jsonl").read_text().splitlines()]
    grep = diagnose_by_keywords(sandbox.log(run_id).read_text(errors="replace"))
    return RunReport(program, fault, answer.data["runs"][0], events, grep)


def _fault_row(fault: Fault, reports: list[RunReport]) -> Row:
    """Return the row of a fault: how often the kind and the root line were right."""
    ours = [(report.failure.get("kind"), report.failure.get("line") or "") for report in reports]
    greps = [(report.grep.kind, report.grep.line) for report in reports]
    kinds, lines = _count_right(fault, ours)
    grep_kinds, grep_lines = _count_right(fault, greps)
    return Row(
        f"{fault.what}: {fault.kind}; its root line",
        f"{kinds} of {len(reports)}; {lines}",
        f"{grep_kinds} of {len(reports)}; {grep_lines}",
        bar=f"{len(reports)}; {len(reports)}",
        ok=kinds == lines == len(reports),
    )


def _count_right(fault: Fault, diagnoses: Iterable[tuple[str | None, str]]) -> tuple[int, int]:
    errors = list(diagnoses)
    return sum(kind == fault.kind for kind, _ in errors), sum(_is_root_line(fault, line) for _, line in errors)


def _is_root_line(fault: Fault, line: str) -> bool:
    return re.search(fault.root_line, line) is not None


def _count_row(
    what: str,
    reports: list[RunReport],
    right: Callable[[RunReport], bool],
    grep: Callable[[Diagnosis], bool] | None = None,
) -> Row:
    count = sum(map(right, reports))
    baseline = f"{sum(grep(report.grep) for report in reports)} of {len(reports)}" if grep else ""
    return Row(what, f"{count} of {len(reports)}", baseline, bar="all", ok=count == len(reports))


def _is_healthy(grep: Diagnosis) -> bool:
    return grep.kind == "ok"


def _saw_step(grep: Diagnosis) -> bool:
    return grep.first_step_seen


def _saw_no_step(grep: Diagnosis) -> bool:
    return not grep.first_step_seen


def _describe_errors(report: RunReport) -> str:
    """Return what was reported wrongly about a run, or an empty text."""
    kind, line = report.failure.get("kind"), report.failure.get("line") or ""
    expected = report.fault.kind if report.fault else None
    status = report.status
    errors = [
        *((True, event["text"]) for event in report.events if event["kind"] in _BROKEN),
        (kind != expected, f"kind {kind}"),
        (report.fault is not None and not _is_root_line(report.fault, line), f"line {line!r}"),
        (
            not report.ended_right,
            f"{status['state']}, exit code {status.get('exit_code')}, signal {status.get('signal')}",
        ),
        (
            not report.first_step_right,
            f"first step: {[e.get('step') for e in report.events if e['kind'] == 'first_step']}",
        ),
        (report.fault is None and bool(report.alarms), f"alarms {report.alarms}"),
        (
            report.fault is None and not report.last_step_right,
            f"step {status.get('step')} of {status.get('total_steps')}",
        ),
    ]
    return "; ".join(text for wrong, text in errors if wrong)
