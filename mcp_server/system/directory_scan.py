"""A bounded scan of a directory tree: level by level, follows no link to a directory, stops at its limits."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")

MOST_NAMES = 5_000


@dataclass
class DirectoryScan:
    """Limits of one scan. ``cut`` is true afterwards where a limit stopped it before the end of the tree.

    ``max_depth``: levels below the root. ``max_entries_each`` limits one directory, the others the whole scan.
    """

    max_depth: int
    max_directories: int = sys.maxsize
    max_entries: int = sys.maxsize
    max_entries_each: int = sys.maxsize
    max_s: float = math.inf
    cut: bool = False

    def walk(
        self,
        root: Path,
        select: Callable[[os.DirEntry[str]], Item | None],
        *,
        skip: Callable[[str], bool] = lambda _: False,
        enter: Callable[[Path], bool] = lambda _: True,
    ) -> Iterator[tuple[Path, list[Item]]]:
        """Yield ``root`` and each directory below it with what ``select`` returns of its entries, without None.

        An entry whose name ``skip`` accepts is ignored. ``enter`` decides about a directory after its parent was
        yielded. A directory that cannot be listed is empty.
        """
        deadline_s = time.monotonic() + self.max_s
        level, directories_left, entries_left = [root], self.max_directories, self.max_entries
        for _ in range(self.max_depth + 1):
            below: list[Path] = []
            for directory in level:
                if directories_left <= 0 or entries_left <= 0 or time.monotonic() > deadline_s:
                    self.cut = True
                    return
                directories_left -= 1
                items: list[Item] = []
                inner: list[Path] = []
                for entry in _list_entries(directory, min(entries_left, self.max_entries_each)):
                    entries_left -= 1
                    with contextlib.suppress(OSError):
                        is_inner = not skip(entry.name) and entry.is_dir(follow_symlinks=False)
                        inner += [directory / entry.name] if is_inner else []
                        items += [item] if not skip(entry.name) and (item := select(entry)) is not None else []
                yield directory, items
                below += [path for path in inner if enter(path)]
            level = sorted(below)
        self.cut = self.cut or bool(level)


def _list_entries(directory: Path, most: int) -> Iterator[os.DirEntry[str]]:
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for number, entry in enumerate(entries):
            if number >= most:
                return
            yield entry


def list_names(directory: Path) -> list[str]:
    """Return the first 5,000 names in a directory, sorted; none of one that cannot be listed."""
    return sorted(entry.name for entry in _list_entries(directory, MOST_NAMES))
