"""The files of a code directory that are sent to another host, and which stay here. Blocks. Use a thread.

What is not code stays: repositories, environments, caches, checkpoints, data, outputs, and files that hold keys.
`.runwardignore` in the directory names more, one pattern a line.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import BinaryIO

from mcp_server.errors import BadArgument
from mcp_server.record.code.code_state import CODE_WORDS, SOURCES
from mcp_server.system.files import open_regular, read_regular_file
from mcp_server.text.formatting import format_size

IGNORE_FILE = ".runwardignore"
_MOST_IGNORE_BYTES, _DEEPEST_SOURCE, _MOST_SOURCES, _LONGEST_S = 65_536, 20, 2_000, 3.0


def read_ignore_file(root: Path) -> list[str]:
    """Return the patterns of the directory's own ignore file."""
    try:
        text = read_regular_file(root / IGNORE_FILE, max_bytes=_MOST_IGNORE_BYTES).decode(errors="replace")
    except OSError:
        return []
    lines = (line.strip().rstrip("/") for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def stays_behind(root: Path, path: str, ignored: Sequence[str], *, is_directory: bool) -> bool:
    """Return whether what has this path below ``root`` is no code."""
    name = path.rpartition("/")[2]
    if any(fnmatch(name, pattern) or fnmatch(path, pattern) for pattern in ignored):
        return True
    is_key = any(fnmatch(name.lower(), pattern) for pattern in CODE_WORDS["key"])
    if not is_directory:
        is_data = any(fnmatch(name, pattern) for pattern in CODE_WORDS["file"])
        return (is_key or is_data) and not name.endswith((".py", ".example"))
    if name in CODE_WORDS["directory"] or any((root / path / each).exists() for each in ("pyvenv.cfg", "conda-meta")):
        return True
    return (is_key or name in CODE_WORDS["data"]) and not any((root / path).glob("*.py"))


def list_sources(root: Path) -> tuple[list[Path], bool]:
    """Return the source files below ``root`` that a run there could import, and whether there are more than looked at.

    Takes 3 s at most. A link is followed to a file alone; what cannot be read is left out.
    """
    until_s = time.monotonic() + _LONGEST_S
    found: list[Path] = []
    for path in _walk_sources(root, "", read_ignore_file(root)):
        if len(found) >= _MOST_SOURCES or time.monotonic() > until_s:
            return found, True
        if path.endswith(SOURCES):
            found.append(root / path)
    return found, False


def _walk_sources(root: Path, below: str, ignored: Sequence[str]) -> Iterator[str]:
    try:
        with os.scandir(root / below) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in listed:
        path, is_directory = f"{below}{entry.name}", entry.is_dir(follow_symlinks=False)
        if stays_behind(root, path, ignored, is_directory=is_directory):
            continue
        if is_directory and below.count("/") < _DEEPEST_SOURCE:
            yield from _walk_sources(root, f"{path}/", ignored)
        elif not is_directory:
            yield path


_LINK = -1
_MOST_FILES, _MOST_LISTED, _DEEPEST = 20_000, 5, 100
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class CodeFile:
    """A file or link to send. ``digest``: the SHA-256 of its content, the target of a link."""

    path: str
    mode: int
    size: int
    digest: str

    @property
    def facts(self) -> list[str | int]:
        """As the protocol has it."""
        return [self.path, self.mode, self.size, self.digest]


@dataclass(frozen=True)
class CodeDirectory:
    """The code of a directory. ``left_out``: what stays here, by path."""

    root: Path
    files: Sequence[CodeFile]
    left_out: Sequence[str] = ()
    digest: str = field(default="")


def read_code_directory(root: Path, limit_bytes: int) -> CodeDirectory:
    """Return what is sent of ``root``. BadArgument: it is too large (names the largest entries), or unreadable."""
    ignored = read_ignore_file(root)
    left_out: list[str] = []
    paths: list[tuple[str, os.stat_result]] = []
    try:
        for path, status in _walk(root, "", ignored, left_out):
            paths.append((path, status))
            if len(paths) > _MOST_FILES:
                raise BadArgument("sync", f"{root} has more than {_MOST_FILES:,} files.", _remedy(root))
        total = sum(status.st_size for _, status in paths)
        if total > limit_bytes:
            cause = f"{root} has {format_size(total)} to send, and the limit is {format_size(limit_bytes)}."
            raise BadArgument("sync", f"{cause} The largest: {_describe_largest(paths)}.", _remedy(root))
        files = tuple(sorted((_read(root, path, status) for path, status in paths), key=lambda file: file.path))
    except OSError as error:
        raise BadArgument("sync", f"{error.filename or root} cannot be read: {error.strerror}.") from error
    text = json.dumps([file.facts for file in files])
    return CodeDirectory(root, files, tuple(sorted(left_out)), hashlib.sha256(text.encode()).hexdigest())


def _walk(root: Path, below: str, ignored: Sequence[str], left_out: list[str]) -> Iterator[tuple[str, os.stat_result]]:
    if below.count("/") > _DEEPEST:
        raise BadArgument("sync", f"{root} has directories more than {_DEEPEST} deep.", _remedy(root))
    with os.scandir(root / below) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        path = f"{below}{entry.name}"
        status = entry.stat(follow_symlinks=False)
        is_directory = stat.S_ISDIR(status.st_mode)
        if stays_behind(root, path, ignored, is_directory=is_directory) or _leads_out(root, path, status):
            left_out.append(f"{path}/" if is_directory else path)
        elif is_directory:
            yield from _walk(root, f"{path}/", ignored, left_out)
        elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
            yield path, status


def _leads_out(root: Path, path: str, status: os.stat_result) -> bool:
    """Return whether a link leads out of the directory: what it means there is unknown."""
    if not stat.S_ISLNK(status.st_mode):
        return False
    target = os.readlink(root / path)  # noqa: PTH115 - a text, not a path
    inside = os.path.normpath(os.path.join(os.path.dirname(path), target))  # noqa: PTH118, PTH120 - a text
    return target.startswith("/") or inside.startswith("..")


def _read(root: Path, path: str, status: os.stat_result) -> CodeFile:
    if stat.S_ISLNK(status.st_mode):
        return CodeFile(path, _LINK, 0, os.readlink(root / path))  # noqa: PTH115 - a text, not a path
    sha, size = hashlib.sha256(), 0
    with open_below(root, path) as file:
        while data := file.read(_CHUNK_BYTES):
            sha.update(data)
            size += len(data)
            if size > status.st_size:  # it might never end
                raise OSError(errno.EBUSY, "it grows while it is read", path)
    return CodeFile(path, 0o755 if status.st_mode & stat.S_IXUSR else 0o644, size, sha.hexdigest())


def open_below(root: Path, path: str) -> BinaryIO:
    """Return a regular file of ``root``, open to be read. OSError: there is none, or a link leads to it."""
    file = open_regular(root / path, follow_links=False)
    if Path(f"/proc/self/fd/{file.fileno()}").readlink() != root.resolve() / path:
        file.close()
        raise OSError(errno.ELOOP, "it was moved while it was read", path)
    return file


def _describe_largest(paths: Sequence[tuple[str, os.stat_result]]) -> str:
    sizes: dict[str, int] = {}
    for path, status in paths:
        top, slash, _ = path.partition("/")
        sizes[top + slash] = sizes.get(top + slash, 0) + status.st_size
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:_MOST_LISTED]
    return ", ".join(f"{name} {format_size(size)}" for name, size in largest)


def _remedy(root: Path) -> str:
    return f"Name what is not code in {root / IGNORE_FILE}, or have a person raise sync_mib of the host in hosts.toml."
