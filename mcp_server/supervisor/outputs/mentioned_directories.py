"""Directories that a command mentions without saying that it writes there: ``python eval.py /data/out``.

Such a directory may be an input. It counts as an output if all of its files are of the attempt's time: then the attempt
filled it. Else what changes in it is uncertain, unless a process had the file open for writing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from mcp_server.supervisor.outputs.seen_files import may_be_listed
from mcp_server.system.directory_scan import DirectoryScan

_MOST = 50
_LOOK_DEPTH, _LOOK_ENTRIES, _LOOK_S = 2, 300, 0.05


class MentionedDirectories:
    """``shared``: those that had files before the attempt began (``begun_ns``), or too many to look at."""

    def __init__(self, cwd: str, begun_ns: int) -> None:
        self.shared: dict[str, None] = {}
        self._cwd, self._begun_ns = cwd.rstrip("/"), begun_ns
        self._undecided: dict[str, None] = {}  # empty, or not there yet
        self._known: set[str] = set()

    def add(self, paths: Iterable[str]) -> None:
        """Note paths that a command mentions."""
        for path in paths:
            if path in self._known or len(self._known) >= _MOST or f"{self._cwd}/".startswith(f"{path.rstrip('/')}/"):
                continue  # above the working directory everybody's files are
            self._known.add(path)
            if may_be_listed(path):
                self._undecided[path] = None

    def decide(self) -> list[str]:
        """Return those that prove to be outputs now."""
        outputs = []
        for path in list(self._undecided):
            scan = DirectoryScan(_LOOK_DEPTH, max_entries=_LOOK_ENTRIES, max_s=_LOOK_S)
            times = [changed_ns for _, found in scan.walk(Path(path), _change_of_file) for changed_ns in found]
            if not times and not scan.cut:
                continue
            del self._undecided[path]
            if scan.cut or min(times) < self._begun_ns:
                self.shared[path] = None
            else:
                outputs.append(path)
        return outputs

    def watchable(self) -> list[str]:
        """Return the directories in which changes are worth a look."""
        return [*self.shared, *self._undecided]


def _change_of_file(entry: os.DirEntry[str]) -> int | None:
    status = entry.stat(follow_symlinks=False)
    return status.st_mtime_ns if stat.S_ISREG(status.st_mode) else None
