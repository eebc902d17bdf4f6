"""Protected files, where trials of an open sweep run: what they are before a run and after it, and what shadows them.

It proves that files changed. A cheat inside the trial's own process it cannot see.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from mcp_server.record.code.kept_sources import run_git
from mcp_server.system.files import open_regular

_MOST_HASHED_BYTES, _MOST_READ = 64 << 20, 500
_PASSED_OVER = frozenset(("__pycache__", ".git"))  # Python writes the first beside what it imports
_STARTUP = frozenset(("sitecustomize", "usercustomize"))  # which every Python imports by itself
MODULE = re.compile(r"(?:(?P<place>.*)/)?(?P<name>(?!__init__)\w+)(?:/__init__)?(?:\.[\w-]+)?\.(?:py|pyc|so)")
_IMPORT = r"^[[:space:]]*(import|from)[[:space:]]+[A-Za-z_]"
_IMPORTED = re.compile(r"^\s*(?:from\s+(\w+)|import\s+(.+))")
_STANDARD = getattr(sys, "stdlib_module_names", sys.builtin_module_names)  # Python 3.9 does not name them all


def find_matches(files: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Return those of ``files`` that a pattern means: a path, all below a directory, a glob."""
    wanted = [(pattern, os.path.normpath(pattern)) for pattern in patterns]
    return [
        name
        for name in files
        if any(name == path or name.startswith(f"{path}/") or fnmatch(name, pattern) for pattern, path in wanted)
    ]


def link_beside(original: Path, directory: Path, names: Iterable[str]) -> None:
    """Link ``names`` into ``directory`` where it lacks them, to what they are in ``original``: protected data.

    So are the virtual environments of ``original``. No other file outside of git is there.
    """
    environments = (file.parent.name for file in original.glob("*/pyvenv.cfg"))
    for name in (*names, *environments):
        source, link = original / name, directory / name
        inside = not Path(name).expanduser().is_absolute() and ".." not in Path(name).parts
        if inside and source.exists() and not os.path.lexists(link):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(source.resolve())


def find_shadows(
    new: Iterable[str], names: Sequence[str], protect: Sequence[str], imported: Iterable[str]
) -> list[str]:
    """Return the modules among ``new`` files that would be imported in the place of others.

    ``names``: the files of the base. A file inside a package of the base shadows nothing.
    """
    guarded = {match["name"] for name in find_matches(names, protect) if (match := MODULE.fullmatch(name))}
    guarded |= {Path(path).stem for path in protect if path.endswith(".py")}
    installed = {*_STANDARD, *_STARTUP, *imported}
    packages = {name.rpartition("/")[0] for name in names if name.endswith("/__init__.py")}
    found = []
    for name in new:
        match = MODULE.fullmatch(name)
        if match and ((match["place"] or "") not in packages or not match["place"]):
            found += [name] if match["name"] in guarded or match["name"] in installed else []
    return found


def digest(repository: Path, base: str, protect: Sequence[str], directory: Path) -> dict[str, str]:
    """Return what each protected file is now, by name: of ``directory``, where a trial runs, and outside of it.

    Its times are in it, so that a file that was written and restored is another. Contents are read up to 64 MiB, the
    smallest files first. Hooks of the repository, and modules that shadow others, are always among them.
    """
    found = dict(list_files(directory, protect))
    common, names, imported = _read_base(repository, base, tuple(protect))
    found |= {f".git/{name}": path for name, path in list_files(Path(common), ["hooks", "info/attributes"])}
    places = {"", *(name.rpartition("/")[0] for name in find_matches(names, protect))}
    beside = (name for place in places for name in _list_modules(directory, place))
    for name in find_shadows(set(beside) - set(names), names, protect, imported):
        found[name] = directory / name
    facts, left_bytes = dict[str, str](), _MOST_HASHED_BYTES
    for name, path in sorted(found.items(), key=lambda item: (getattr(_stat(item[1]), "st_size", 0), item[0])):
        status = _stat(path)
        if status is None:
            facts[name] = "gone"
            continue
        facts[name] = f"{status.st_mode:o} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
        left_bytes -= status.st_size
        if stat.S_ISREG(status.st_mode) and left_bytes >= 0:
            facts[name] += f" {_hash(path)}"
    return facts


@functools.lru_cache(8)
def _read_base(repository: Path, base: str, protect: Sequence[str]) -> tuple[str, Sequence[str], frozenset[str]]:
    """Return git's directory, and the files and imports of a commit, which never change; three calls of git a run."""
    words = ("rev-parse", "--path-format=absolute", "--git-common-dir")
    names = list_tracked(repository, base)
    common = os.fsdecode(run_git(str(repository), *words)).rstrip("\n")
    return common, names, list_imported(repository, base, names, protect)


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the names of the files that are others in ``after``, gone, or new."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def list_files(directory: Path, patterns: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Yield the files that ``patterns`` mean, by name; those outside of ``directory`` by their whole path."""
    for pattern in patterns:
        path = directory / Path(pattern).expanduser()
        if any(sign in pattern for sign in "*?[") and not path.exists():
            yield from ((name, file) for name, file in _walk("", directory) if fnmatch(name, pattern))
        elif path.is_dir():
            yield from _walk(os.path.normpath(pattern), path)
        elif os.path.lexists(path):
            yield os.path.normpath(pattern), path


def _walk(name: str, path: Path) -> Iterator[tuple[str, Path]]:
    """Yield all files below a directory, through links, each directory once."""
    seen = set()
    for root, directories, files in os.walk(path, followlinks=True):
        status = Path(root).stat()
        directories[:] = sorted({*directories} - _PASSED_OVER) if (status.st_dev, status.st_ino) not in seen else []
        seen.add((status.st_dev, status.st_ino))
        for file in files:
            yield str(Path(name, os.path.relpath(root, path), file)), Path(root, file)


def _list_modules(directory: Path, place: str) -> Iterator[str]:
    """Yield the files of a directory that may be modules, and the packages in it, by their paths from above."""
    for entry in (directory / place).iterdir() if (directory / place).is_dir() else ():
        init = entry / "__init__.py"
        if init.exists() or not entry.is_dir():
            yield str((init if entry.is_dir() else entry).relative_to(directory))


def list_tracked(repository: Path, base: str) -> list[str]:
    """Return the files of a commit below ``repository``, by their path from there."""
    return os.fsdecode(run_git(str(repository), "ls-tree", "-r", "-z", "--name-only", base)).split("\0")[:-1]


def list_imported(repository: Path, base: str, names: Sequence[str], protect: Sequence[str]) -> frozenset[str]:
    """Return the modules that protected Python code of a commit, or code at its top, imports and has no file of."""
    read = {*find_matches(names, protect), *(name for name in names if "/" not in name)}
    words = ("grep", "-h", "-I", "-E", "--no-color", "-e", _IMPORT, base, "--")
    python = [f":(literal){name}" for name in sorted(read) if name.endswith(".py")][:_MOST_READ]
    try:
        lines = os.fsdecode(run_git(str(repository), *words, *python)).splitlines() if python else []
    except subprocess.SubprocessError:  # no line matches
        return frozenset()
    found = set()
    for line in lines:
        if match := _IMPORTED.match(line):
            found |= {re.split(r"[.\s;#]", part.strip())[0] for part in (match[1] or match[2]).split(",")}
    own = {part.partition(".")[0] for name in names for part in name.split("/")}
    return frozenset(found - own)


def _stat(path: Path) -> os.stat_result | None:
    """Return the state of a file, or that of a link that leads nowhere."""
    try:
        return path.stat() if path.exists() else path.lstat()
    except OSError:
        return None


def _hash(path: Path) -> str:
    sha = hashlib.sha256()
    with open_regular(path) as file:
        while data := file.read(1 << 20):
            sha.update(data)
    return sha.hexdigest()
