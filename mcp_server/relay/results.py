"""Requests of a server about the directories with results of runs: the files, contents of small ones, new documents."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mcp_server.errors import LaunchFailed
from mcp_server.record.results.result_directory import EXPERIMENT_LOG, FILE_MODE, make_directory
from mcp_server.system.directory_scan import DirectoryScan
from mcp_server.system.files import open_regular, read_regular_file, write_atomic

_DEEPEST, _MOST_DIRECTORIES, _MOST_ENTRIES, _LONGEST_SCAN_S = 6, 2_000, 20_000, 2.0
_MOST_BYTES = 16 * 2**20  # of one answer
# Whole environments and downloads are stored next to the code; none of them holds results.
_FOREIGN = frozenset({"node_modules", "site-packages", "__pycache__", "venv", "env"})


def list_trees(roots: Sequence[str]) -> dict[str, Any]:
    """Return names, sizes and times of the regular files below ``roots``, by directory. ``cut``: there are more."""
    scan = DirectoryScan(_DEEPEST, max_directories=_MOST_DIRECTORIES, max_entries=_MOST_ENTRIES, max_s=_LONGEST_SCAN_S)
    directories: dict[str, list[list[Any]]] = {}
    for root in map(Path, roots):
        if root not in (Path("/"), Path.home()):  # too many other files are stored there
            for directory, files in scan.walk(root, _describe_entry, skip=_is_foreign):
                directories[str(directory)] = files
    return {"directories": directories, "cut": scan.cut}


def read_files(paths: Sequence[str]) -> tuple[dict[str, Any], bytes]:
    """Return the contents of small files one after the other, compressed, and the size of each; -1: not readable."""
    sizes: list[int] = []
    contents: list[bytes] = []
    left = _MOST_BYTES
    for path in paths:
        try:
            with open_regular(Path(path), follow_links=False) as file:
                content = file.read(left + 1)
        except OSError:
            sizes.append(-1)
            continue
        if len(content) > left:
            break
        left -= len(content)
        sizes.append(len(content))
        contents.append(content)
    return {"sizes": sizes}, zlib.compress(b"".join(contents), 1)


def write_documents(directory: Path, files: Sequence[Sequence[Any]], data: bytes) -> None:
    """Write documents into a result directory, which is created if missing, in this order, each whole or not at all.

    ``files``: name, the SHA-256 of what is there as far as the server knows, empty where nothing is, and the size. To
    the experiment log only what is new is appended, as other runs append to it too.

    Raises:
        LaunchFailed: a file has changed meanwhile; nothing was written after it.
        OSError: it cannot be written.
    """
    make_directory(directory)
    at = 0
    for name, known, size in files:
        content, at = data[at : at + size], at + size
        path = directory / name
        if "/" in name or name in ("", ".", ".."):
            raise OSError(errno.EINVAL, f"{name} is not a name")
        try:
            before = read_regular_file(path, follow_links=False)
        except FileNotFoundError:
            before = b""
        if known != (hashlib.sha256(before).hexdigest() if before or path.exists() else ""):
            raise LaunchFailed(f"{path} has changed meanwhile.", "It was not written.", "Call again.")
        if name == EXPERIMENT_LOG and path.exists() and content.startswith(before):
            with path.open("ab") as file:
                file.write(content[len(before) :])
        else:
            write_atomic(path, content, mode=FILE_MODE)


def _is_foreign(name: str) -> bool:
    return (name[0] == "." and name != ".hydra") or name in _FOREIGN


def _describe_entry(entry: os.DirEntry[str]) -> list[Any] | None:
    status = entry.stat(follow_symlinks=False)
    return [entry.name, status.st_size, status.st_mtime_ns] if stat.S_ISREG(status.st_mode) else None
