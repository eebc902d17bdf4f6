"""Looks below a directory, level by level: no links, nothing hidden, and not without end."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mcp_server.record.state import Run, posix

# Whole environments and downloads lie beside the code; none of them holds results.
_FOREIGN = frozenset({"node_modules", "site-packages", "__pycache__", "venv", "env"})
_SLACK_S = 2.0  # clocks of file servers


@dataclass(frozen=True)
class Entry:
    """One thing in a directory; ``changed_s`` is POSIX time."""

    path: Path
    is_dir: bool
    size_bytes: int
    changed_s: float


@dataclass
class Walk:
    """Walks with limits; ``cut`` tells afterwards that one of them was reached."""

    deepest: int = 5
    directories: int = 2_000
    entries: int = 20_000
    patience_s: float = 2.0
    cut: bool = False

    def below(
        self, root: Path, *, enters: Callable[[Path], bool] = lambda _: True
    ) -> Iterator[tuple[Path, list[Entry]]]:
        """Yield ``root`` and the directories below that it ``enters``, each with its regular files and directories."""
        give_up_s = time.monotonic() + self.patience_s
        level, directories, entries = [root], self.directories, self.entries
        for _ in range(self.deepest + 1):
            below: list[Path] = []
            for directory in level:
                if directories <= 0 or entries <= 0 or time.monotonic() > give_up_s:
                    self.cut = True
                    return
                directories -= 1
                found = list(_entries(directory, entries))
                entries -= len(found)
                yield directory, found
                below += [entry.path for entry in found if entry.is_dir and enters(entry.path)]
            level = sorted(below)
        self.cut = self.cut or bool(level)


def _entries(directory: Path, most: int) -> Iterator[Entry]:
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry, _ in zip(entries, range(most), strict=False):
            if entry.name[0] == "." or entry.name in _FOREIGN:
                continue
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode):
                    is_dir = stat.S_ISDIR(status.st_mode)
                    yield Entry(directory / entry.name, is_dir, status.st_size, status.st_mtime)


def run_span(run: Run) -> tuple[float, float]:
    """Return from when to when (POSIX time) what a run writes has been written; without end while it lives."""
    begun = run.started_at or run.spec.created_at
    until_s = posix(run.ended_at) + _SLACK_S if run.ended_at else float("inf")
    return (posix(begun) if begun else 0.0) - _SLACK_S, until_s


def result_roots(run: Run, result_dir: Path | None = None) -> list[Path]:
    """Return where a run leaves things: its result directory, ``result_dir`` if given, and its working directory.

    A home directory, or the root, is no run's.
    """
    places = [result_dir, getattr(run.spec, "result_dir", None), run.spec.cwd]
    found = [Path(place) for place in places if place]
    return [path for path in dict.fromkeys(found) if path not in (Path("/"), Path.home())]
