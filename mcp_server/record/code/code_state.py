"""The source files of a run at one moment: what tells whether its code changed between two moments.

An edit between a launch and the start of a run that queued would be run under the name of the launch. `code.json` in
the directory of a scheduler's job, and of a sweep, holds the state at the launch; other runs that wait are looked at by
their supervisor as it begins to wait.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from mcp_server.record.run_directory import CODE_STATE, Facts, read_json, write_json
from mcp_server.system.directory_scan import DirectoryScan
from mcp_server.system.files import read_regular_file
from mcp_server.text.rows import read_words

CODE_WORDS = read_words("record/code/words")
SOURCES, _SKIPPED = CODE_WORDS["source"], frozenset(CODE_WORDS["skipped"])
_DEEPEST, _MOST_ENTRIES, _MOST_FILES, _WALK_S = 6, 5_000, 2_000, 0.05
_MOST_FILE_BYTES, _MOST_BYTES = 1 << 20, 8 << 20


@dataclass(frozen=True)
class SourceFile:
    """A file as it was. ``sha256``: empty where there was no time to read it."""

    size: int
    changed_ns: int
    sha256: str = ""


@dataclass(frozen=True)
class CodeState:
    """The source files below a run's directories, and the files that its command names, by their absolute paths."""

    files: Mapping[str, SourceFile] = field(default_factory=dict)

    def write(self, directory: Path) -> None:
        """Write it into the directory of a run or a sweep."""
        files = {path: [one.size, one.changed_ns, one.sha256] for path, one in self.files.items()}
        write_json(directory / CODE_STATE, {"layout": 1, "files": files})


@dataclass(frozen=True)
class CodeChange:
    """Paths of files that differ, and of some that may: only their time is known to be another."""

    changed: tuple[str, ...] = ()
    perhaps: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.changed or self.perhaps)


def read_code_state(directories: Iterable[str], named: Iterable[Path]) -> CodeState:
    """Return the state of the ``named`` files and of the source files below ``directories``, without digests.

    Takes some milliseconds, at most 50. A file beyond the limits is not in it: whether it changes is unknown.
    """
    files: dict[str, SourceFile] = {}
    for path in (*map(str, named), *_find_sources(directories)):
        if len(files) >= _MOST_FILES:
            break
        if (file := _look_at(path)) is not None:
            files[os.path.abspath(path)] = file  # noqa: PTH100 - thousands of paths
    return CodeState(files)


def add_digests(state: CodeState) -> CodeState:
    """Return ``state`` with the digests of files that are still as they were in it, the first 8 MiB."""
    files, left = dict(state.files), _MOST_BYTES
    for path, file in state.files.items():
        if file.size > min(_MOST_FILE_BYTES, left) or _look_at(path) != file:
            continue
        left -= file.size
        digest = _digest(path)
        if _look_at(path) == file:  # else it was written meanwhile
            files[path] = replace(file, sha256=digest)
    return CodeState(files)


def _look_at(path: str) -> SourceFile | None:
    with contextlib.suppress(OSError, ValueError):
        status = os.stat(path)  # noqa: PTH116 - thousands of paths
        return SourceFile(status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None
    return None


def _find_sources(directories: Iterable[str]) -> Iterator[str]:
    def select(entry: os.DirEntry[str]) -> str | None:
        return entry.path if entry.name.endswith(SOURCES) and entry.is_file() else None

    def skip(name: str) -> bool:
        return name.startswith(".") or name in _SKIPPED

    def enter(path: Path) -> bool:
        return not os.path.exists(path / "pyvenv.cfg")  # noqa: PTH110 - as below

    for directory in dict.fromkeys(directories):
        scan = DirectoryScan(_DEEPEST, max_entries=_MOST_ENTRIES, max_s=_WALK_S)
        for _, found in scan.walk(Path(directory), select, skip=skip, enter=enter):
            yield from found


def _digest(path: str) -> str:
    try:
        return hashlib.sha256(read_regular_file(Path(path), max_bytes=_MOST_FILE_BYTES + 1)).hexdigest()
    except (OSError, ValueError):
        return ""


def load_code_state(directory: Path) -> CodeState | None:
    """Return the state that the directory of a run or a sweep has of its launch, None where it has none."""
    facts = read_json(directory / CODE_STATE)
    files: object = (facts or {}).get("files")
    if not isinstance(files, dict):
        return None
    return CodeState({path: SourceFile(*one) for path, one in files.items() if _is_file(one)})


def _is_file(one: object) -> bool:
    return isinstance(one, list) and [type(value) for value in one] == [int, int, str]


def find_change(former: CodeState, named: Collection[str]) -> CodeChange:
    """Return which files of ``former`` are others now, or gone.

    Files other than source code count if ``named`` has them: a sweep has the configurations of all its cells.
    """
    changed, perhaps = [], []
    for path, file in former.files.items():
        if not path.endswith(SOURCES) and path not in named:
            continue
        try:
            status = os.stat(path)  # noqa: PTH116 - thousands of paths
        except FileNotFoundError:
            changed.append(path)
            continue
        except OSError:
            continue  # not known now
        if status.st_size != file.size:
            changed.append(path)
        elif status.st_mtime_ns != file.changed_ns and not file.sha256:
            perhaps.append(path)
        elif status.st_mtime_ns != file.changed_ns and _digest(path) not in ("", file.sha256):
            changed.append(path)
    return CodeChange(tuple(changed), tuple(perhaps))


def to_facts(change: CodeChange) -> Facts:
    """Return a change as an event keeps it."""
    return {"changed_files": list(change.changed), "perhaps_changed": list(change.perhaps) or None}
