"""The files that an attempt wrote, as its supervisor saw them: `attempts/<n>/outputs.json`.

The file is one JSON object, replaced atomically, at most 1 MiB:

- ``layout``: 1. ``at``: when it was written. ``ended``: whether the attempt's processes had ended by then.
- ``pids``: the processes of the attempt, also by the numbers of their own namespaces.
- ``directories``: where its command, its processes, parameters, Hydra or configuration say that it writes.
- ``mentioned``: directories that its command mentions and that had files before. At the end those in which files
  changed, which may be another's.
- ``files``: ``{path, inode, size, changed_ns, open, append, unsure, listed}``. Its processes had such a file open for
  writing. ``open``: they still have; else size and change time are those after it was closed, when nobody else had
  written it. ``unsure``: another process may have written it meanwhile or since. ``listed``: nothing had it open
  when it was looked for; it changed during the attempt in one of the ``directories`` or beside a file that was open.
- ``outsiders``: ``{pid, started_s, until_s, cwd, directories, files}`` of programs below the attempt's directory that
  no supervisor had started: when each started and was gone (POSIX; 0: not yet), where its command says that it
  writes, and the ``{path, inode}`` of what it had open for writing.
- ``saved``: the paths that the output says were saved. ``cut``: there were more files than are kept here.

Paths are absolute. A file that was open for an instant may be missing: nothing follows from its absence.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mcp_server.record.codec import decode, encode
from mcp_server.record.run_directory import read_json
from mcp_server.system.files import write_atomic

LAYOUT = 1
MOST_FILES = 2_000
_MOST_OTHERS = 2_000  # processes, directories and saved paths, of each
_MOST_BYTES = 2**20


@dataclass(frozen=True)
class WrittenFile:
    """One file, see the module. ``changed_ns``: POSIX time in nanoseconds."""

    path: str
    inode: int
    size: int
    changed_ns: int
    open: bool = False
    append: bool = False
    listed: bool = False
    unsure: bool = False


@dataclass(frozen=True)
class Outsider:
    """A program that wrote, or may have written, where the attempt did, see the module."""

    pid: int
    started_s: float
    until_s: float = 0.0
    cwd: str = ""
    directories: tuple[str, ...] = ()
    files: tuple[tuple[str, int], ...] = ()  # path and inode


@dataclass(frozen=True)
class Outputs:
    """What is known of the files of one attempt, see the module."""

    at: str = ""
    ended: bool = False
    cut: bool = False
    pids: frozenset[int] = frozenset()
    directories: tuple[str, ...] = ()
    files: tuple[WrittenFile, ...] = ()
    saved: tuple[str, ...] = field(default=())
    outsiders: tuple[Outsider, ...] = ()
    mentioned: tuple[str, ...] = ()


def read_outputs(path: Path) -> Outputs | None:
    """Return the record in ``path``, or None where there is none that this version can read."""
    facts = read_json(path)
    if facts is None or facts.get("layout") != LAYOUT:
        return None
    with contextlib.suppress(TypeError, ValueError, KeyError, AttributeError):
        outsiders = [
            {**one, "files": [[each["path"], each["inode"]] for each in one.get("files", ())]}
            for one in facts.get("outsiders", ())
        ]
        return decode(Outputs, {**facts, "outsiders": outsiders}, strict=True)
    return None


def write_outputs(path: Path, outputs: Outputs) -> None:
    """Replace ``path`` atomically. Where there are more files or bytes than are kept, the first are left out."""
    files = [encode(file) for file in outputs.files]
    cut = outputs.cut or len(files) > MOST_FILES
    files = files[-MOST_FILES:]
    facts: dict[str, Any] = {
        "layout": LAYOUT,
        "at": outputs.at,
        "ended": outputs.ended,
        "pids": _newest(sorted(outputs.pids)),
        "directories": _newest(outputs.directories),
        "mentioned": _newest(outputs.mentioned),
        "saved": _newest(outputs.saved),
        "outsiders": [
            {**asdict(one), "files": [{"path": path, "inode": inode} for path, inode in one.files]}
            for one in outputs.outsiders
        ],
        "cut": cut,
        "files": files,
    }
    text = json.dumps(facts, ensure_ascii=False)
    while len(text) > _MOST_BYTES and files:
        files = files[len(files) // 4 + 1 :]
        text = json.dumps({**facts, "cut": True, "files": files}, ensure_ascii=False)
    write_atomic(path, f"{text}\n".encode(errors="replace"), durable=False)


def _newest(values: Iterable[Any]) -> list[Any]:
    return list(values)[-_MOST_OTHERS:]
