"""Whose a file with curves is while it grows, by the rules of ``record/claims``, which decide about all files later.

Here more is known of the moment, and less of what comes: who else works where the file is; who did so before, since
what they may have written stays in it; and that who wrote a file first may be gone by the time of a look. An event file
is whose process it names.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable

from mcp_server.record.claims import Claims, FileFacts, Rank, Verdict, decide, find_linked
from mcp_server.record.written_files import WrittenFile
from mcp_server.supervisor.outputs.outsiders import OutsiderWatch
from mcp_server.supervisor.outputs.scalar_tails import OWN
from mcp_server.supervisor.outputs.seen_files import SeenFiles
from mcp_server.system import processes
from mcp_server.system.files import parents_of


class CurveOwnership:
    """Judges the files of one attempt of a run in ``cwd`` that began at ``begun_ns`` (POSIX)."""

    def __init__(self, run_id: str, cwd: str, begun_ns: int, files: SeenFiles, outsiders: OutsiderWatch) -> None:
        self._run_id, self._cwd, self._begun_s = run_id, cwd, begun_ns / 1e9
        self._files, self._outsiders = files, outsiders
        self._linked = find_linked(cwd)
        self._of_others: dict[str, tuple[int, str | None]] = {}  # inode and verdict: it stays once they are gone
        self._looked_ns: dict[str, int] = {}  # when one was first seen while nobody else was there

    def judge(
        self, path: str, named: Iterable[str], pids: Collection[int], living: Iterable[processes.Process]
    ) -> str | None:
        """Return OWN, None for a file that is not the attempt's so far, or who else may have written it.

        ``named``: the directories that the attempt names. Raises OSError for a file that is gone.
        """
        path = os.path.realpath(path)
        file = FileFacts.of(path, os.stat(path))  # noqa: PTH116 - hot path
        held = self._files.find_held(path, file.inode)
        own = self._claim(path, named, pids)
        if file.writers:
            return OWN if held or own.is_writer(file.writers) else None
        mine = own.weigh(file)
        is_home = mine.rank > Rank.BESIDE or own.is_at_home(mine.directory)
        least = mine.depth if is_home else path.count("/") - 1 if held else 0
        beside = mine.depth if mine.rank is Rank.BESIDE else None
        rivals = self._outsiders.find_rivals(path, least, living, beside)
        decision = decide(file, own, rivals)
        verdict = {Verdict.OWN: OWN, Verdict.UNCERTAIN: decision.other, Verdict.OTHER: None}[decision.verdict]
        inode, former = self._of_others.get(path, (file.inode, OWN))
        former = former if inode == file.inode else OWN
        if held is not None and (held.is_sure or not rivals):
            return verdict or (former if held.append else None) or OWN
        if any(path in one.written for one in rivals):  # perhaps for an instant
            return None
        verdict = verdict if former == OWN else former
        if rivals and verdict != OWN:
            self._of_others[path] = file.inode, verdict
        is_ours = is_home or held is not None or verdict != OWN
        return verdict if is_ours or self._is_written_again(path, file.changed_ns) else None

    def _claim(self, path: str, named: Iterable[str], pids: Collection[int]) -> Claims:
        """Return the attempt's claims, as far as they are about files beside or above a path."""
        above = {f"{one}/" for one in parents_of(path)}
        held = [one for one in self._files.list_held() if one.path[: one.path.rfind("/") + 1] in above]
        written = [WrittenFile(one.path, one.inode, 0, 0, open=one.is_sure, unsure=not one.is_sure) for one in held]
        return Claims(
            self._run_id,
            self._cwd,
            self._begun_s,
            pids=frozenset(pids),
            written={one.path: one for one in written},
            named=frozenset(map(os.path.realpath, named)) - {self._cwd},
            linked=self._linked,
        )

    def _is_written_again(self, path: str, changed_ns: int) -> bool:
        """Return whether a file where nobody else works changed after a look.

        Who wrote it first may be gone by now; who writes it again would have been seen.
        """
        return changed_ns > self._looked_ns.setdefault(path, time.time_ns())
