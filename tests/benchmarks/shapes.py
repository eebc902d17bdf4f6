"""Commands of all shapes: is their end reported exactly, and never before it happens?"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import anyio

from tests.benchmarks.harness import Answer, NotMeasured, Sandbox, Server, program, read_number
from tests.benchmarks.report import Row, Table

_ROUNDS, _PLAIN_ROUNDS = 3, 2
_AT_ONCE = 4
_SHELLS = ("bash", "sh", "-bash")
# ``ended_at`` is truncated to milliseconds.
_GRAIN_NS = 1_000_000


@dataclass(frozen=True)
class CaseDirectory:
    """Working directory of one run of a case."""

    path: Path

    @property
    def stamp(self) -> Path:
        """File that the command writes as its last act."""
        return self.path / "stamp"

    def argv(self, *words: str) -> list[str]:
        """Return the worker's argv."""
        return program("worker", "--stamp", self.stamp, *words)

    def worker(self, *words: str) -> str:
        """Return the worker as a shell line."""
        return shlex.join(self.argv(*words))

    def script(self, *words: str) -> str:
        """Write a shell script that runs the worker; return its path."""
        path = self.path / "train.sh"
        path.write_text(f"#!/bin/bash\n{self.worker(*words)}\n")
        path.chmod(0o755)
        return shlex.quote(str(path))


@dataclass(frozen=True)
class CommandCase:
    """A form of command, and its expected end."""

    name: str
    command: Callable[[CaseDirectory], str | list[str]]
    exit_code: int | None = None
    signal: str | None = None
    stamped: bool = True
    words: tuple[str, ...] = ()
    value: str | None = None
    cwd: str = "."


_QUOTES = ("it's", 'a "b" c', "back\\slash", "$HOME `id` $(id)", "!x;y&z|*?", "")
_UNICODE = ("größe=7", "模型", "naïve—→🙂")
_LISTED = ("two words", "line\nbreak", "tab\there", "--", "  edges  ")

CASES = (
    CommandCase("script file", lambda p: f"bash {p.script('--exit', '3')}", 3),
    CommandCase("executable script", lambda p: p.script("--exit", "4"), 4),
    CommandCase("bash -c", lambda p: f"bash -c {shlex.quote(p.worker('--exit', '5'))}", 5),
    CommandCase("python | tee", lambda p: f"{p.worker('--exit', '6')} 2>&1 | tee {p.path}/tee.log", 6),
    CommandCase("exec", lambda p: f"exec {p.worker('--exit', '7')}", 7),
    CommandCase("setsid", lambda p: f"setsid {p.worker('--exit', '8')}", 8),
    CommandCase("nohup", lambda p: f"nohup {p.worker('--exit', '9')}", 9),
    CommandCase("background child", lambda p: f"sleep 30 & {p.worker('--exit', '10')}", 10),
    CommandCase("instant exit 0", lambda p: "true", 0, stamped=False),
    CommandCase("instant exit 3", lambda p: "exit 3", 3, stamped=False),
    CommandCase("own SIGKILL", lambda p: p.worker("--signal", "SIGKILL"), None, "SIGKILL"),
    CommandCase("own SIGSEGV", lambda p: p.worker("--signal", "SIGSEGV"), None, "SIGSEGV"),
    CommandCase("own SIGTERM", lambda p: p.worker("--signal", "SIGTERM"), None, "SIGTERM"),
    CommandCase("SIGKILL reported by a shell", lambda p: f"{p.worker('--signal', 'SIGKILL')}; exit $?", 137),
    CommandCase("quotes", lambda p: p.worker("--exit", "11", "--", *_QUOTES), 11, words=_QUOTES),
    CommandCase("unicode", lambda p: p.worker("--exit", "12", "--", *_UNICODE), 12, words=_UNICODE, cwd="Versuch №1 ü"),
    CommandCase("argv list", lambda p: p.argv("--exit", "13", "--", *_LISTED), 13, words=_LISTED),
    CommandCase("subshell", lambda p: f"( {p.worker('--exit', '14')} )", 14),
    CommandCase("a && b", lambda p: f"true && {p.worker('--exit', '15')}", 15),
    CommandCase("environment prefix", lambda p: f"BENCH_VALUE='a b' {p.worker('--exit', '16')}", 16, value="a b"),
    CommandCase("os.setpgrp()", lambda p: p.worker("--setpgrp", "--exit", "17"), 17),
    CommandCase("daemon left behind", lambda p: p.worker("--daemon", "--exit", "18"), 18),
    CommandCase("several lines", lambda p: f"for i in 1 2; do\n  :\ndone\n{p.worker('--exit', '19')}", 19),
)


@dataclass(frozen=True)
class Outcome:
    """What was reported of one run: whether exactly, whether too early, and the error."""

    exact: bool
    early: bool
    wrong: str = ""


async def measure(sandbox: Sandbox) -> Table:
    """Run every case a few times under runward and in plain tmux panes."""
    ours: list[tuple[CommandCase, Outcome]] = []
    async with sandbox.server() as server, anyio.create_task_group() as tasks:
        limiter = anyio.CapacityLimiter(_AT_ONCE)

        async def run_case(case: CommandCase, directory: CaseDirectory) -> None:
            async with limiter:
                ours.append((case, await _measure_runward(server, case, directory)))

        for number in range(_ROUNDS):
            for case in CASES:
                tasks.start_soon(run_case, case, _make_directory(sandbox, case, f"ours-{number}"))
    plain = await _measure_plain_tmux(sandbox)
    size, plain_size = len(ours), len(plain)
    exact, early = sum(v.exact for _, v in ours), sum(v.early for _, v in ours)
    plain_exact, plain_early = sum(v.exact for _, v in plain), sum(v.early for _, v in plain)
    rows = (
        Row(
            f"exact end (code or signal, arguments intact): {len(CASES)} shapes x {_ROUNDS}",
            f"{exact} of {size} ({exact / size:.0%})",
            f"{plain_exact} of {plain_size} ({plain_exact / plain_size:.0%})",
            bar="100 %",
            ok=exact == size,
        ),
        Row(
            "end reported before the command's last act",
            f"{early} of {size}",
            f"{plain_early} of {plain_size}",
            bar="0",
            ok=not early,
        ),
    )
    return Table(
        "How commands end", rows, (_BASELINE, *_list_errors("runward", ours), *_list_errors("plain tmux", plain))
    )


_BASELINE = (
    "Baseline: the same commands in plain tmux sessions with remain-on-exit; the end from pane_dead_status and "
    "pane_dead_signal, early when pane_dead, or a shell as pane_current_command, appeared too soon."
)


def _list_errors(subject: str, outcomes: list[tuple[CommandCase, Outcome]]) -> list[str]:
    wrong: dict[str, list[str]] = {}
    for case, outcome in outcomes:
        if outcome.wrong:
            wrong.setdefault(case.name, []).append(outcome.wrong)
    reported = [f"{name} ({len(errors)} x: {errors[0]})" for name, errors in wrong.items()]
    return [f"Wrong with {subject}: {'; '.join(reported)}."] if reported else []


def _make_directory(sandbox: Sandbox, case: CommandCase, name: str) -> CaseDirectory:
    directory = CaseDirectory(sandbox.work / f"{name}-{CASES.index(case)}")
    (directory.path / case.cwd).mkdir(parents=True, exist_ok=True)
    return directory


async def _measure_runward(server: Server, case: CommandCase, directory: CaseDirectory) -> Outcome:
    """Run a case under runward with a wait open until its end."""
    try:
        run_id = await server.launch(case.command(directory), cwd=str(directory.path / case.cwd), name="shape")
        answer = await server.wait(run_id)
    except NotMeasured as error:
        return Outcome(exact=False, early=False, wrong=str(error))
    return _compare(case, directory, answer)


def _compare(case: CommandCase, directory: CaseDirectory, answer: Answer) -> Outcome:
    stamp = read_number(directory.stamp)
    status = answer.data["runs"][0]
    ended_ns = datetime.fromisoformat(status["ended_at"]).timestamp() * 1e9 if "ended_at" in status else 0
    early = case.stamped and (stamp is None or ended_ns + _GRAIN_NS < stamp)
    reported = (status.get("exit_code"), status.get("signal"), status["state"])
    expected = (case.exit_code, case.signal, "finished" if case.exit_code == 0 else "failed")
    wrong = "" if reported == expected else f"reported {reported}, not {expected}"
    wrong = wrong or _check_received(case, directory) or ("reported before it happened" if early else "")
    return Outcome(exact=reported == expected and not _check_received(case, directory), early=early, wrong=wrong)


def _check_received(case: CommandCase, directory: CaseDirectory) -> str:
    """Return what the command received wrongly, or an empty text."""
    if not case.stamped:
        return ""
    facts = json.loads(directory.stamp.with_name("stamp.facts").read_text())
    cwd = str((directory.path / case.cwd).resolve())
    expected = {"words": list(case.words), "cwd": cwd, "value": case.value}
    return "" if facts == expected else f"received {facts}"


async def _measure_plain_tmux(sandbox: Sandbox) -> list[tuple[CommandCase, Outcome]]:
    """Run the cases in plain tmux, and read the formats of each pane."""
    sandbox.start_plain_tmux()
    outcomes: list[tuple[CommandCase, Outcome]] = []
    for number in range(_PLAIN_ROUNDS):
        open_now: dict[str, tuple[CommandCase, CaseDirectory]] = {}
        for index, case in enumerate(CASES):
            directory, name = _make_directory(sandbox, case, f"plain-{number}"), f"s{number}-{index}"
            command = case.command(directory)
            words = [command] if isinstance(command, str) else command
            sandbox.tmux("new-session", "-d", "-s", name, "-c", str(directory.path / case.cwd), "--", *words)
            open_now[name] = case, directory
        early: set[str] = set()
        until_s = time.monotonic() + 10
        while open_now and time.monotonic() < until_s:
            for name, dead, status, signal, current in _list_panes(sandbox):
                if name not in open_now:
                    continue
                case, directory = open_now[name]
                if case.stamped and (dead or current in _SHELLS) and read_number(directory.stamp) is None:
                    early.add(name)
                if dead:
                    del open_now[name]
                    exact = status == str(case.exit_code) or (bool(signal) and f"SIG{signal}" == case.signal)
                    reported = f"status {status!r}, signal {signal!r}"
                    wrong = "ended too early" if name in early else "" if exact else reported
                    outcomes.append((case, Outcome(exact, name in early, wrong)))
            await anyio.sleep(0.1)
        outcomes += [(case, Outcome(False, False, "no pane_dead within 10 s")) for case, _ in open_now.values()]
    return outcomes


def _list_panes(sandbox: Sandbox) -> list[tuple[str, bool, str, str, str]]:
    form = "#{session_name}:#{pane_dead}:#{pane_dead_status}:#{pane_dead_signal}:#{pane_current_command}"
    panes = [line.split(":") for line in sandbox.tmux("list-panes", "-a", "-F", form).splitlines()]
    return [(name, dead == "1", status, signal, command) for name, dead, status, signal, command in panes]
