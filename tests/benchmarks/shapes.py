"""Is the end of a command told exactly, whatever its shape, and never before it happened?"""

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
# Milliseconds are cut off in ``ended_at``, not rounded.
_GRAIN_NS = 1_000_000


@dataclass(frozen=True)
class Place:
    """Where one run of a shape works."""

    directory: Path

    @property
    def stamp(self) -> Path:
        """Written by the command as its very last act."""
        return self.directory / "stamp"

    def argv(self, *words: str) -> list[str]:
        """Return the worker's argv."""
        return program("worker", "--stamp", self.stamp, *words)

    def worker(self, *words: str) -> str:
        """Return the worker as a shell line."""
        return shlex.join(self.argv(*words))

    def script(self, *words: str) -> str:
        """Write a shell script that runs the worker; return its path."""
        path = self.directory / "train.sh"
        path.write_text(f"#!/bin/bash\n{self.worker(*words)}\n")
        path.chmod(0o755)
        return shlex.quote(str(path))


@dataclass(frozen=True)
class Shape:
    """A way to write a command, and how it must end."""

    what: str
    command: Callable[[Place], str | list[str]]
    exit_code: int | None = None
    signal: str | None = None
    stamped: bool = True
    words: tuple[str, ...] = ()
    value: str | None = None
    cwd: str = "."


_QUOTES = ("it's", 'a "b" c', "back\\slash", "$HOME `id` $(id)", "!x;y&z|*?", "")
_UNICODE = ("größe=7", "模型", "naïve—→🙂")
_LISTED = ("two words", "line\nbreak", "tab\there", "--", "  edges  ")

SHAPES = (
    Shape("script file", lambda p: f"bash {p.script('--exit', '3')}", 3),
    Shape("executable script", lambda p: p.script("--exit", "4"), 4),
    Shape("bash -c", lambda p: f"bash -c {shlex.quote(p.worker('--exit', '5'))}", 5),
    Shape("python | tee", lambda p: f"{p.worker('--exit', '6')} 2>&1 | tee {p.directory}/tee.log", 6),
    Shape("exec", lambda p: f"exec {p.worker('--exit', '7')}", 7),
    Shape("setsid", lambda p: f"setsid {p.worker('--exit', '8')}", 8),
    Shape("nohup", lambda p: f"nohup {p.worker('--exit', '9')}", 9),
    Shape("background child", lambda p: f"sleep 30 & {p.worker('--exit', '10')}", 10),
    Shape("instant exit 0", lambda p: "true", 0, stamped=False),
    Shape("instant exit 3", lambda p: "exit 3", 3, stamped=False),
    Shape("own SIGKILL", lambda p: p.worker("--signal", "SIGKILL"), None, "SIGKILL"),
    Shape("own SIGSEGV", lambda p: p.worker("--signal", "SIGSEGV"), None, "SIGSEGV"),
    Shape("own SIGTERM", lambda p: p.worker("--signal", "SIGTERM"), None, "SIGTERM"),
    Shape("SIGKILL told by a shell", lambda p: f"{p.worker('--signal', 'SIGKILL')}; exit $?", 137, "SIGKILL"),
    Shape("quotes", lambda p: p.worker("--exit", "11", "--", *_QUOTES), 11, words=_QUOTES),
    Shape("unicode", lambda p: p.worker("--exit", "12", "--", *_UNICODE), 12, words=_UNICODE, cwd="Versuch №1 ü"),
    Shape("argv list", lambda p: p.argv("--exit", "13", "--", *_LISTED), 13, words=_LISTED),
    Shape("subshell", lambda p: f"( {p.worker('--exit', '14')} )", 14),
    Shape("a && b", lambda p: f"true && {p.worker('--exit', '15')}", 15),
    Shape("environment prefix", lambda p: f"BENCH_VALUE='a b' {p.worker('--exit', '16')}", 16, value="a b"),
    Shape("os.setpgrp()", lambda p: p.worker("--setpgrp", "--exit", "17"), 17),
    Shape("daemon left behind", lambda p: p.worker("--daemon", "--exit", "18"), 18),
    Shape("several lines", lambda p: f"for i in 1 2; do\n  :\ndone\n{p.worker('--exit', '19')}", 19),
)


@dataclass(frozen=True)
class Verdict:
    """What was told of one run: whether exactly, whether too early, and what was wrong."""

    exact: bool
    early: bool
    wrong: str = ""


async def measure(sandbox: Sandbox) -> Table:
    """Run every shape a few times under runward, and in plain tmux panes."""
    ours: list[tuple[Shape, Verdict]] = []
    async with sandbox.server() as server, anyio.create_task_group() as tasks:
        limiter = anyio.CapacityLimiter(_AT_ONCE)

        async def one(shape: Shape, place: Place) -> None:
            async with limiter:
                ours.append((shape, await _judge(server, shape, place)))

        for number in range(_ROUNDS):
            for shape in SHAPES:
                tasks.start_soon(one, shape, _place(sandbox, shape, f"ours-{number}"))
    plain = await _plain(sandbox)
    size, plain_size = len(ours), len(plain)
    exact, early = sum(v.exact for _, v in ours), sum(v.early for _, v in ours)
    plain_exact, plain_early = sum(v.exact for _, v in plain), sum(v.early for _, v in plain)
    rows = (
        Row(
            f"exact end (code or signal, arguments intact): {len(SHAPES)} shapes x {_ROUNDS}",
            f"{exact} of {size} ({exact / size:.0%})",
            f"{plain_exact} of {plain_size} ({plain_exact / plain_size:.0%})",
            bar="100 %",
            ok=exact == size,
        ),
        Row(
            "ended told before the command's last act",
            f"{early} of {size}",
            f"{plain_early} of {plain_size}",
            bar="0",
            ok=not early,
        ),
    )
    return Table("How commands end", rows, (_BASELINE, *_told("runward", ours), *_told("plain tmux", plain)))


_BASELINE = (
    "Baseline: the same commands in plain tmux sessions with remain-on-exit; the end as pane_dead_status and "
    "pane_dead_signal tell it, early when pane_dead or a shell's name as pane_current_command said so too soon."
)


def _told(who: str, verdicts: list[tuple[Shape, Verdict]]) -> list[str]:
    wrong: dict[str, list[str]] = {}
    for shape, verdict in verdicts:
        if verdict.wrong:
            wrong.setdefault(shape.what, []).append(verdict.wrong)
    told = [f"{what} ({len(found)} x: {found[0]})" for what, found in wrong.items()]
    return [f"Wrong with {who}: {'; '.join(told)}."] if told else []


def _place(sandbox: Sandbox, shape: Shape, name: str) -> Place:
    place = Place(sandbox.work / f"{name}-{SHAPES.index(shape)}")
    (place.directory / shape.cwd).mkdir(parents=True, exist_ok=True)
    return place


async def _judge(server: Server, shape: Shape, place: Place) -> Verdict:
    """Run a shape under runward with a wait open until its end."""
    try:
        run_id = await server.launch(shape.command(place), cwd=str(place.directory / shape.cwd), name="shape")
        answer = await server.wait(run_id)
    except NotMeasured as error:
        return Verdict(exact=False, early=False, wrong=str(error))
    return _verdict(shape, place, answer)


def _verdict(shape: Shape, place: Place, answer: Answer) -> Verdict:
    stamp = read_number(place.stamp)
    status = answer.data["runs"][0]
    ended_ns = datetime.fromisoformat(status["ended_at"]).timestamp() * 1e9 if "ended_at" in status else 0
    early = shape.stamped and (stamp is None or ended_ns + _GRAIN_NS < stamp)
    told = (status.get("exit_code"), status.get("signal"), status["state"])
    due = (shape.exit_code, shape.signal, "finished" if shape.exit_code == 0 else "failed")
    wrong = "" if told == due else f"told {told}, not {due}"
    wrong = wrong or _facts(shape, place) or ("told before it happened" if early else "")
    return Verdict(exact=told == due and not _facts(shape, place), early=early, wrong=wrong)


def _facts(shape: Shape, place: Place) -> str:
    """Return what the command received wrongly, if anything."""
    if not shape.stamped:
        return ""
    facts = json.loads(place.stamp.with_name("stamp.facts").read_text())
    cwd = str((place.directory / shape.cwd).resolve())
    due = {"words": list(shape.words), "cwd": cwd, "value": shape.value}
    return "" if facts == due else f"received {facts}"


async def _plain(sandbox: Sandbox) -> list[tuple[Shape, Verdict]]:
    """Run the shapes in tmux as people do, and read of each pane what tmux knows."""
    sandbox.start_plain_tmux()
    verdicts: list[tuple[Shape, Verdict]] = []
    for number in range(_PLAIN_ROUNDS):
        open_now: dict[str, tuple[Shape, Place]] = {}
        for index, shape in enumerate(SHAPES):
            place, name = _place(sandbox, shape, f"plain-{number}"), f"s{number}-{index}"
            command = shape.command(place)
            words = [command] if isinstance(command, str) else command
            sandbox.tmux("new-session", "-d", "-s", name, "-c", str(place.directory / shape.cwd), "--", *words)
            open_now[name] = shape, place
        early: set[str] = set()
        until_s = time.monotonic() + 10
        while open_now and time.monotonic() < until_s:
            for name, dead, status, signal, current in _panes(sandbox):
                if name not in open_now:
                    continue
                shape, place = open_now[name]
                if shape.stamped and (dead or current in _SHELLS) and read_number(place.stamp) is None:
                    early.add(name)
                if dead:
                    del open_now[name]
                    exact = status == str(shape.exit_code) or (bool(signal) and f"SIG{signal}" == shape.signal)
                    told = f"status {status!r}, signal {signal!r}"
                    wrong = "ended too early" if name in early else "" if exact else told
                    verdicts.append((shape, Verdict(exact, name in early, wrong)))
            await anyio.sleep(0.1)
        verdicts += [(shape, Verdict(False, False, "no pane_dead within 10 s")) for shape, _ in open_now.values()]
    return verdicts


def _panes(sandbox: Sandbox) -> list[tuple[str, bool, str, str, str]]:
    form = "#{session_name}:#{pane_dead}:#{pane_dead_status}:#{pane_dead_signal}:#{pane_current_command}"
    found = [line.split(":") for line in sandbox.tmux("list-panes", "-a", "-F", form).splitlines()]
    return [(name, dead == "1", status, signal, command) for name, dead, status, signal, command in found]
