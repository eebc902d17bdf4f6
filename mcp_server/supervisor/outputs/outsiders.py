"""The programs that work where an attempt does although no supervisor started them: what they write is not the run's.

A training that a person started by hand in the same directory writes files which nothing else distinguishes from the
run's. It is looked for by its working directory, which is that of the run or below it, and by what it has open.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from mcp_server.command.outputs import find_in_command, find_mentioned
from mcp_server.command.programs import PYTHON_LAUNCHERS
from mcp_server.record.claims import Claims, claim_outsider
from mcp_server.record.written_files import Outsider
from mcp_server.system import processes
from mcp_server.system.files import is_within
from mcp_server.system.own_process import supervised_run
from mcp_server.system.processes import list_written_files
from mcp_server.text.regex import compile_lazily

_MOST, _MOST_FILES, _MOST_ANCESTORS, _MOST_NEIGHBOURS = 64, 50, 1000, 512
_GONE_S = 15.0  # since a program was seen alive, in which what it wrote last may be found
_JUST_NOW_S = 0.02
_SETTLES_S = 5.0  # a new process may still change its directory and its program
# A program of one of these may train, and open its files for an instant only.
_LAUNCHERS = compile_lazily(rf"^(?:python[\d.]*|{'|'.join(PYTHON_LAUNCHERS)}|mpirun|mpiexec|julia|Rscript)$")
_SCRIPT = compile_lazily(r"^-m$|\.py$|\.jl$|\.R$")
_TOOLS = compile_lazily(
    r"^(?:mcp_server|runward|tensorboard|jupyter.*|ipykernel.*|http\.server|pip|pylsp|pyright|debugpy|ruff|mypy|pytest)$"
)


@dataclass
class _Seen:
    process: processes.Process
    started_s: float
    cwd: str
    directories: tuple[str, ...]
    may_train: bool
    mentioned: tuple[str, ...] = ()
    until_s: float = 0.0
    files: dict[str, int] = field(default_factory=dict)
    run_id: str = ""  # of a neighbour
    seen_s: float = 0.0  # alive

    def told(self, files: Mapping[str, int]) -> Outsider:
        """Return what is known of it, with the inodes of these files."""
        facts = (self.process.pid, self.started_s, self.until_s, self.cwd, self.directories)
        return Outsider(*facts, tuple(files.items()))


class OutsiderWatch:
    """Remembers the outsiders of one attempt in ``cwd``. Their files below ``records`` are not results."""

    def __init__(self, cwd: str, records: str) -> None:
        self._cwd, self._records = os.path.realpath(cwd), os.path.realpath(records)
        self._seen: dict[processes.Process, _Seen] = {}
        self._known: set[tuple[int, int]] = set()  # the numbers of those that are not outsiders
        self._inspected_s = 0.0
        self._young: dict[processes.Process, tuple[str, list[str]]] = {}  # met, with directory and words
        self._neighbours: dict[processes.Process, _Seen] = {}  # of other runs, and of programs that train elsewhere

    def inspect_processes(self, attempt_processes: Iterable[processes.Process], now_s: float) -> None:
        """Inspect all processes at ``now_s`` (POSIX). ``attempt_processes``: those of the attempt."""
        self._inspected_s = now_s
        living = processes.list_numbers()
        supervised = {p.pid for p in attempt_processes}
        self._known.intersection_update(living)
        self._young = {one: met for one, met in self._young.items() if (one.pid, one.started) in living}
        for numbers in living:
            if numbers in self._known or numbers[0] == os.getpid():
                continue
            if (one := processes.find_process(numbers[0])) is None:
                continue
            seen = self._seen.get(one)
            if seen is None and len(self._seen) < _MOST:
                seen = self._meet(one, numbers, supervised)
            if seen is not None:
                self._note_files(seen)
        for seen in self._seen.values():
            if not seen.until_s and processes.find_process(seen.process.pid) != seen.process:
                seen.until_s = now_s

        self._note_living_neighbours(now_s)

    def _note_living_neighbours(self, now_s: float) -> None:
        for one, seen in list(self._neighbours.items()):
            if processes.find_process(one.pid) == one:
                seen.seen_s = now_s
            elif now_s - seen.seen_s > _GONE_S:
                del self._neighbours[one]

    def find_rivals(
        self, path: str, least: int, attempt_processes: Iterable[processes.Process], beside: int | None = None
    ) -> list[Claims]:
        """Return the claims of who works, or did just now, in a directory above ``path`` at least ``least`` deep.

        ``beside``: how deep the directory is which alone speaks for the attempt. A deeper one that the command of a
        neighbour mentions is the neighbour's.
        """
        if time.time() - self._inspected_s > _JUST_NOW_S:  # the files that are due at one time are judged together
            self.inspect_processes(attempt_processes, time.time())
        others = [one for one in self._seen.values() if not one.until_s and (one.files or one.may_train)]
        rivals = []
        for one in [*self._neighbours.values(), *others]:
            deeper = [place for place in one.mentioned if beside is not None and place.count("/") > beside]
            above = [place.count("/") for place in (one.cwd, *one.directories, *deeper) if is_within(path, place)]
            if max(above, default=-1) >= least:
                now = {held: status.st_ino for held, status, _ in list_written_files(one.process.pid) if held == path}
                claims = claim_outsider(one.told({**one.files, **now}), one.run_id)
                rivals.append(replace(claims, named=claims.named.union(deeper)))
        return rivals

    def outsiders(self) -> tuple[Outsider, ...]:
        """Return those that had a file of the directory open for writing, or whose program may train."""
        return tuple(one.told(one.files) for one in self._seen.values() if one.files or one.may_train)

    def _meet(self, one: processes.Process, numbers: tuple[int, int], supervised: set[int]) -> _Seen | None:
        """Return a process that works in the directory, and note any other, so that it is not looked at again."""
        try:
            cwd = os.readlink(f"/proc/{one.pid}/cwd")  # noqa: PTH115 - hot path
        except OSError:  # it is gone, or another user's
            self._known.add(numbers)
            return None
        is_below, words = is_within(cwd, self._cwd), processes.command_words(one.pid)
        known = self._young.get(one)
        self._young[one] = cwd, words
        if known == (cwd, words):
            if time.time() - processes.started_at_s(one) > _SETTLES_S:
                self._known.add(numbers)
                del self._young[one]
            return None
        # A tmux server, whose descriptors are as many as its panes, often works where it was first needed.
        is_outsider = is_below and not processes.is_tmux_server(one) and not _has_supervisor(one, supervised)
        directories = tuple(find_in_command(words, cwd)) if is_below or _may_train(words) else ()
        mentioned = tuple(find_mentioned(words, cwd)) if is_below else ()
        facts = (cwd, directories, _may_train(words), mentioned)
        seen = _Seen(one, processes.started_at_s(one), *facts, seen_s=time.time())
        if is_outsider:
            self._seen[one] = seen
            return seen
        if (is_below or directories) and len(self._neighbours) < _MOST_NEIGHBOURS:
            run_id = _find_other_run(one)
            if run_id is not None and not processes.is_tmux_server(one):
                self._neighbours[one] = seen
                seen.run_id = run_id
        return None

    def _note_files(self, seen: _Seen) -> None:
        with contextlib.suppress(OSError):
            for path, status, _ in list_written_files(seen.process.pid):
                hidden = path.rpartition("/")[2].startswith(".") or is_within(path, self._records)
                if not hidden and len(seen.files) < _MOST_FILES and is_within(path, self._cwd):
                    seen.files[path] = status.st_ino


def _has_supervisor(one: processes.Process, supervised: set[int]) -> bool:
    """Return whether a run, this or another, has started the process, or is its own supervisor.

    ``supervised``: processes of which that is known. Those that are found out are added: most have their children.
    """
    ancestors: list[int] = []
    for _ in range(_MOST_ANCESTORS):
        is_known = one.pid in supervised or one.parent in supervised
        if is_known or supervised_run(processes.command_words(one.pid)) is not None:
            supervised.update(ancestors, (one.pid,))
            return True
        ancestors.append(one.pid)
        parent = processes.find_process(one.parent)
        if parent is None:
            return False
        one = parent
    return False


def _find_other_run(one: processes.Process) -> str | None:
    """Return the id of the run whose process this is, empty without one, None for this run's and for supervisors."""
    above = processes.ancestors(one.pid)
    if os.getpid() in above or supervised_run(processes.command_words(one.pid)) is not None:
        return None
    return next(filter(None, (supervised_run(processes.command_words(pid)) for pid in above)), "")


def _may_train(words: list[str]) -> bool:
    names = [word.rpartition("/")[2] for word in words[:4]]
    if not names or not _LAUNCHERS.match(names[0]) or any(map(_TOOLS.match, names)):
        return False
    return any(map(_SCRIPT.search, words[1:]))
