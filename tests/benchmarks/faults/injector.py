"""Kills and pauses a sandbox's processes: servers, supervisors, guards, commands, tmux; conductors, relays and ssh."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp_server.system import processes
from mcp_server.system.own_process import CONDUCTOR, RELAY, STARTER, supervised_run
from mcp_server.system.processes import Process
from tests.benchmarks.harness import Sandbox

_GROUPS = Path("/sys/fs/cgroup/unified")
# tmux's server is one for all runs: killed as often as the others, no screen would live for a second.
WEIGHTS = {
    "server": 12,
    "supervisor": 30,
    "guard": 24,
    "command": 10,
    "helper": 10,
    "tmux": 8,
    "tmux client": 16,
    "starter": 6,
}
_TITLES = {"starter": STARTER, "relay": RELAY, "conductor": CONDUCTOR, "ssh": "ssh"}
_FROZEN = ("supervisor", "guard", "helper")  # see Freezer
_TMUX_KILLS = 0.25
_LONGEST_PAUSE_S = 2.5
_GUARD = re.compile(rb'"guard_pid": (\d+)')


class Freezer:
    """Pauses processes that SIGSTOP cannot: tmux continues a stopped process of a pane at once."""

    def __init__(self, name: str) -> None:
        groups = _GROUPS if (_GROUPS / "cgroup.procs").exists() else Path("/sys/fs/cgroup")
        self._group, self._home = groups / name, groups
        self._numbers = 0
        try:
            self._group.mkdir()
            self.works = (self._group / "cgroup.freeze").exists()
        except OSError:
            self.works = False

    def freeze(self, pid: int) -> Path:
        """Pause a process; return its group, which ``thaw`` takes."""
        self._numbers += 1
        group = self._group / str(self._numbers)
        group.mkdir()
        try:
            (group / "cgroup.procs").write_text(str(pid))
            (group / "cgroup.freeze").write_text("1")
        except OSError:
            self.thaw(group)
            raise
        return group

    def thaw(self, group: Path) -> None:
        """Let the processes of a group go on, and remove it."""
        (group / "cgroup.freeze").write_text("0")
        for _ in range(100):  # a process of the group may fork meanwhile
            for pid in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    (self._home / "cgroup.procs").write_text(pid)
            with contextlib.suppress(OSError):
                group.rmdir()
                return
            time.sleep(0.01)

    def close(self) -> None:
        """Remove the group."""
        if self.works:
            for group in list(self._group.glob("*/")):
                self.thaw(group)
            self._group.rmdir()


@dataclass
class Injector:
    """Chooses victims at random, and keeps what it did to whom."""

    sandbox: Sandbox
    dice: random.Random
    freezer: Freezer
    weights: Mapping[str, int] = field(default_factory=lambda: WEIGHTS)
    deaths: float = 0.5  # the share of deaths; the others are pauses
    server_pids: set[int] = field(default_factory=set)
    client_pids: set[int] = field(default_factory=set)
    done: Counter[str] = field(default_factory=Counter)
    killed: set[tuple[int, int]] = field(default_factory=set)  # number and start of each process
    journal: list[str] = field(default_factory=list)
    _paused: list[tuple[float, Process, Path | None]] = field(default_factory=list)

    def strike(self) -> None:
        """Kill or pause one process that is not paused already; nothing where there is none of the chosen kind."""
        kind = self.dice.choices(list(self.weights), list(self.weights.values()))[0]
        paused = {process for _, process, _ in self._paused}
        victims = [p for p in self._find(kind) if p not in paused]
        is_death = self.dice.random() < (_TMUX_KILLS if kind == "tmux" else self.deaths)
        pause_s = self.dice.uniform(0.05, _LONGEST_PAUSE_S)
        if not victims:
            return
        victim = self.dice.choice(victims)
        if is_death:
            self._note(f"{kind} killed", victim)
            self.killed.add((victim.pid, victim.started))
            processes.send_signal(victim, signal.SIGKILL)
            return
        group = None
        if kind in _FROZEN:
            if not self.freezer.works:
                return
            try:
                group = self.freezer.freeze(victim.pid)
            except OSError:  # it has just ended
                return
        else:
            processes.send_signal(victim, signal.SIGSTOP)
        self._note(f"{kind} paused", victim)
        self._paused.append((time.monotonic() + pause_s, victim, group))

    def is_paused(self, pid: int) -> bool:
        """Return whether a process is paused."""
        return any(process.pid == pid for _, process, _ in list(self._paused))

    def resume(self, *, everything: bool = False) -> None:
        """Let go on what has been paused for long enough."""
        now_s = time.monotonic()
        for entry in list(self._paused):
            due_s, process, group = entry
            if everything or now_s >= due_s:
                self._paused.remove(entry)
                if group is None:
                    processes.send_signal(process, signal.SIGCONT)
                else:
                    self.freezer.thaw(group)

    def _note(self, what: str, victim: Process) -> None:
        self.done[what] += 1
        self.journal.append(f"{time.monotonic():.3f} {what} {victim.pid}")

    def _find(self, kind: str) -> list[Process]:
        if kind == "server":
            return _living(self.server_pids)
        if kind == "tmux client":
            return _living(self.client_pids)
        if kind == "tmux":
            return find_tmux(self.sandbox)
        if kind in _TITLES:
            return _find_titled(self.sandbox, _TITLES[kind])
        supervisors = find_supervisors(self.sandbox)
        if kind == "supervisor":
            return supervisors
        own = {p.pid for p in supervisors}
        children = [p for p in processes.list_processes() if p.parent in own]
        # A guard leads the session of the command's terminal; helpers lead none, or one without a terminal.
        guards = [p for p in children if p.session == p.pid and _has_terminal(p.pid)]
        if kind == "command":
            leaders = {p.pid for p in guards}
            return [p for p in processes.list_processes() if p.parent in leaders]
        return guards if kind == "guard" else [p for p in children if p not in guards]


def find_supervisors(sandbox: Sandbox) -> list[Process]:
    """Return the living supervisors of the sandbox. A guard shows the same words: it is its child, or recorded."""
    runs = {path.name: path for place in sandbox.run_places for path in place.glob("[!.]*")}
    found = []
    for process in processes.list_processes():
        run = supervised_run(processes.command_words(process.pid))
        if run in runs and process.pid not in _guards(runs[run]):
            found.append(process)
    pids = {process.pid for process in found}
    return [process for process in found if process.parent not in pids]


def _guards(run_dir: Path) -> set[int]:
    with contextlib.suppress(OSError):
        return {int(number) for number in _GUARD.findall((run_dir / "events.jsonl").read_bytes())}
    return set()


def find_tmux(sandbox: Sandbox) -> list[Process]:
    """Return the tmux servers of the runs. They are not asked: they may be paused."""
    return [
        process
        for process in processes.list_processes()
        if process.name == "tmux: server" and not {*sandbox.sockets}.isdisjoint(processes.command_words(process.pid))
    ]


def _find_titled(sandbox: Sandbox, title: str) -> list[Process]:
    """Return the sandbox's processes that show ``title`` as the name of their program."""
    token, found = sandbox.token.encode(), []
    for process in processes.list_processes():
        words = processes.command_words(process.pid)
        if words and Path(words[0]).name == title:
            with contextlib.suppress(OSError):
                known = " ".join(words).encode() + Path(f"/proc/{process.pid}/environ").read_bytes()
                found += [process] if token in known else []
    return found


def _living(pids: set[int]) -> list[Process]:
    return [process for process in map(processes.find_process, sorted(pids)) if process is not None]


def _has_terminal(pid: int) -> bool:
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()[4] != b"0"
    return False


@contextlib.contextmanager
def injector(sandbox: Sandbox, seed: int, **settings: Any) -> Iterator[Injector]:
    """Yield an injector; whatever it has paused goes on afterwards."""
    freezer = Freezer(f"{sandbox.token}-{os.getpid()}")
    found = Injector(sandbox, random.Random(seed), freezer, **settings)
    try:
        yield found
    finally:
        found.resume(everything=True)
        freezer.close()
