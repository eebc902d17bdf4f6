"""The code of an attempt, as the supervisor kept it when the command started: `attempts/<n>/code/`.

`snapshot.json` is written with the configuration files, and again with what git and Python answer. Beside it are
`git.diff`, `packages.txt`, and the configuration files below `files/`, all with secrets masked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mcp_server.record.codec import decode
from mcp_server.record.run_directory import RunDir, read_json
from mcp_server.system.files import read_regular_file
from mcp_server.system.git_state import GitState

SNAPSHOT, DIFF, PACKAGES, FILES = "snapshot.json", "git.diff", "packages.txt", "files"
SOURCES_ARCHIVE = "sources.tar.gz"


@dataclass(frozen=True)
class KeptFile:
    """A configuration file of an attempt. ``kept``: its copy below the directory, empty where it was too long."""

    path: str = ""
    kept: str = ""
    size_bytes: int = 0
    sha256: str = ""


@dataclass(frozen=True)
class KeptSources:
    """The source files below ``root`` that are in the archive, beside those of ``commit``, which is empty without git.

    ``digest``: the SHA-256 of their names, modes and contents. ``left_out``: names and why. ``deleted``: of the commit.
    See ``record/code/kept_sources``.
    """

    root: str = ""
    commit: str = ""
    files: int = 0
    digest: str = ""
    left_out: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()


@dataclass(frozen=True)
class NamedInput:
    """A file, or a directory of data, that the command names, as it was at the start: of a directory its entries."""

    path: str = ""
    kind: str = ""
    size_bytes: int = 0
    modified_ns: int = 0
    entries: int = 0


@dataclass(frozen=True)
class CodeSnapshot:
    """The code that ran. ``python``: the path of the command's Python, or empty. ``packages``: how many it has.

    ``notes``: what could not be kept, and why. ``git.diff`` is empty: see ``read_diff``.
    ``variables``: digests of those that it inherited and that programs of training read, None where none were kept.
    """

    taken_at: str = ""
    git: GitState = field(default_factory=GitState)
    files: tuple[KeptFile, ...] = ()
    python: str = ""
    python_version: str = ""
    packages: int = 0
    notes: tuple[str, ...] = ()
    archive: KeptSources = field(default_factory=KeptSources)
    inputs: tuple[NamedInput, ...] = ()
    driver: str = ""
    variables: Mapping[str, str] | None = None
    directory: Path = Path()

    def facts(self) -> dict[str, Any]:
        """Return the content of `snapshot.json`."""
        facts = asdict(self)
        del facts["directory"], facts["git"]["diff"]
        return facts

    def read_diff(self) -> str:
        """Return the uncommitted changes."""
        return _read(self.directory / DIFF)

    def read_file(self, file: KeptFile) -> str | None:
        """Return the text of a kept file, None where it was not kept."""
        return _read(self.directory / file.kept) if file.kept else None

    def read_packages(self) -> dict[str, str]:
        """Return the versions of the packages by name."""
        pairs = (line.partition("==") for line in _read(self.directory / PACKAGES).splitlines())
        return {name: version for name, _, version in pairs}


def read_code_snapshot(rundir: RunDir, attempt: int) -> CodeSnapshot | None:
    """Return what ran in an attempt, or None where nothing was kept. Fields of a wrong type are left out."""
    directory = rundir.code(attempt)
    facts = read_json(directory / SNAPSHOT)
    if facts is None:
        return None
    snapshot = decode(CodeSnapshot, facts)
    return replace(snapshot, files=tuple(map(_check, snapshot.files)), directory=directory)


def _check(one: KeptFile) -> KeptFile:
    return replace(one, kept="") if one.kept.startswith("/") or ".." in Path(one.kept).parts else one


def _read(path: Path) -> str:
    try:
        return read_regular_file(path, follow_links=False).decode(errors="replace")
    except OSError:
        return ""
