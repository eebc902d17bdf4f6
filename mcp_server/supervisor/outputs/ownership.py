"""Whose a file with curves is while it grows: the attempt's, another's, or nobody's for certain.

The evidence, strongest first: a process of the attempt had it open for writing; its name holds the number of one, or
its path the run's id; it is in a directory that the attempt names, or keeps other curves in; it is beside or below.
Another run or program that works above it counts likewise: the deeper directory wins, and an equal one leaves it open,
unless descriptors settle it. What it held before the attempt began is not the attempt's. `store/attribution` decides so
about all files later.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Container, Iterable, Sequence

from mcp_server.record.scalar_files import find_scalar_file, parse_event_name
from mcp_server.supervisor.outputs.outsiders import OutsiderWatch, Rival
from mcp_server.supervisor.outputs.scalar_tails import OWN
from mcp_server.supervisor.outputs.seen_files import SeenFiles
from mcp_server.system import processes
from mcp_server.system.files import parents_of

_TICK_NS = 20 * 10**6  # the kernel's coarse clock dates files


class CurveOwnership:
    """Judges the files of one attempt of a run in ``cwd`` that began at ``begun_ns`` (POSIX)."""

    def __init__(self, run_id: str, cwd: str, begun_ns: int, files: SeenFiles, outsiders: OutsiderWatch) -> None:
        self._run_id, self._cwd, self._begun_ns = run_id, cwd, begun_ns - _TICK_NS
        self._files, self._outsiders = files, outsiders
        self._of_others: dict[str, tuple[int, str | None]] = {}  # inode and verdict: it stays once they are gone
        self._looked_ns: dict[str, int] = {}  # when one was first seen while nobody else was there

    def judge(
        self, path: str, named: Collection[str], pids: Container[int], living: Iterable[processes.Process]
    ) -> str | None:
        """Return OWN, None for a file that is not the attempt's so far, or who else may have written it.

        ``named``: the directories that the attempt names. Raises OSError for a file that is gone.
        """
        path, named = os.path.realpath(path), {os.path.realpath(one) for one in named}
        status = os.stat(path)  # noqa: PTH116 - hot path
        held = self._files.find_held(path, status.st_ino)
        event = parse_event_name(path.rpartition("/")[2])
        if event is not None and event.writers:
            return OWN if held or any(pid in pids for pid, _ in event.writers) else None
        if held is None and status.st_mtime_ns < self._begun_ns:
            return None
        below = path.removeprefix(self._cwd)
        if self._run_id in below:
            return OWN
        above = parents_of(path)
        mine = self._find_depth(above, named)
        rivals = self._outsiders.find_rivals(path, mine if mine or held is None else above[0].count("/"), living)
        former = self._of_others.get(path, (0, OWN))[1] if self._is_known(path, status.st_ino) else OWN
        if held is not None and (held.is_sure or not rivals):
            doubtful = [one.name for one in rivals if one.holds] + [former or ""] * held.append
            return next(filter(None, doubtful), OWN)
        if any(one.holds for one in rivals):  # perhaps for an instant
            return None
        is_theirs = any(one.name in below for one in rivals)
        verdict = None if is_theirs else self._judge_by_directory(mine, rivals) if former == OWN else former
        if rivals and verdict != OWN:
            self._of_others[path] = status.st_ino, verdict
        if verdict == OWN and not mine and held is None and not self._is_written_again(path, status.st_mtime_ns, above):
            return None
        return verdict

    def _is_known(self, path: str, inode: int) -> bool:
        return path in self._of_others and self._of_others[path][0] == inode

    def _find_depth(self, above: Sequence[str], named: Collection[str]) -> int:
        """Return how deep the deepest directory above is that is the attempt's own, 0 where none is known to be."""
        homes = {
            os.path.dirname(path)  # noqa: PTH120 - hot path
            for path in self._files.list_held()
            if "tfevents" in path or ((row := find_scalar_file(path.rpartition("/")[2])) is not None and row.is_sure)
        }
        own = {*named, *homes} - {self._cwd}
        return next((one.count("/") for one in above if one in own), 0)

    def _judge_by_directory(self, mine: int, rivals: Sequence[Rival]) -> str | None:
        own = mine or self._cwd.count("/")
        if any(one.depth > own for one in rivals):
            return None
        return next((one.name for one in rivals if one.depth == own or not mine), OWN)

    def _is_written_again(self, path: str, changed_ns: int, above: Sequence[str]) -> bool:
        """Return whether a file where nobody else works changed after a look.

        Who wrote it first may be gone by now; who writes it again would have been seen.
        """
        if self._cwd not in above and not set(above) & set(self._files.directories()):
            return False
        return changed_ns > self._looked_ns.setdefault(path, time.time_ns())
