"""The Python that a process runs, its version and its packages, by the names of files alone: nothing is started."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mcp_server.command.programs import PYTHON
from mcp_server.command.python import resolve_python
from mcp_server.system import processes
from mcp_server.system.files import read_regular_file
from mcp_server.text.regex import compile_lazily

_PACKAGE = compile_lazily(r"(?P<name>[A-Za-z0-9][\w.\-]*?)-(?P<version>\d[\w.+!]*)(?:-py\d[\w.]*)?\.(?:dist|egg)-info")
_VERSION = compile_lazily(r"^version(?:_info)?\s*=\s*(\S+)", re.MULTILINE)
_MOST_PACKAGES, _MOST_PATH_FILES = 5_000, 50


@dataclass(frozen=True)
class PythonPackages:
    """A Python and its packages by name. All empty where it is unknown which Python runs."""

    path: str = ""
    version: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)


def find_running_python(pid: int) -> str:
    """Return the path of the first Python among process ``pid`` and its descendants, empty while there is none."""
    own = processes.find_process(pid)
    for process in [*([own] if own else []), *processes.descendants(pid)]:
        word = next(iter(processes.command_words(process.pid)), "")
        if not PYTHON.fullmatch(os.path.basename(word)):  # noqa: PTH119 - a word of a command
            continue
        try:
            environ = Path(f"/proc/{process.pid}/environ").read_bytes().decode(errors="replace").split("\0")
            directory = os.readlink(f"/proc/{process.pid}/cwd")  # noqa: PTH115 - as the kernel has it
        except OSError:
            continue
        search = next((line[len("PATH=") :] for line in environ if line.startswith("PATH=")), os.defpath)
        if path := resolve_python(word, "python", directory, search):
            return path
    return ""


def read_packages(python: str) -> PythonPackages:
    """Return version and packages of the Python at ``python``, from the names of files in its directories."""
    if not python or not os.path.exists(python):  # noqa: PTH110 - of a word that may not be a path
        return PythonPackages()
    # A virtual environment is where the link is, not where it leads.
    prefix, home = Path(python).parent.parent, Path(python).resolve().parent.parent
    settings = _read(prefix / "pyvenv.cfg")
    prefixes = [prefix] if settings else [prefix, home]
    if re.search(r"^include-system-site-packages\s*=\s*true", settings, re.MULTILINE):
        prefixes.append(home)
    packages: dict[str, str] = {}
    directories = list(dict.fromkeys(_site_directories(prefixes, python)))
    for directory in dict.fromkeys([*directories, *_added_directories(directories)]):
        for name, version in _list_packages(directory):
            packages.setdefault(name, version)
    match = _VERSION.search(settings)
    return PythonPackages(python, match[1] if match else _find_version(prefix, home), packages)


def _find_version(prefix: Path, home: Path) -> str:
    """Return the version of a Python that is not a virtual environment, as far as names of files show it."""
    for record in (prefix / "conda-meta").glob("python-3*.json"):
        return record.name.split("-")[1]
    match = re.search(r"(\d+\.\d+(?:\.\d+)?)$", home.name)  # pyenv, uv
    if match:
        return match[1]
    libraries = sorted(path.name[len("python") :] for path in (prefix / "lib").glob("python3.*"))
    return libraries[0] if len(libraries) == 1 else ""


def _site_directories(prefixes: Sequence[Path], python: str) -> Iterator[Path]:
    real = Path(python).resolve().name
    version = real[len("python") :] if re.fullmatch(r"python3\.\d+", real) else "3*"
    for prefix in prefixes:
        for library in ("lib", "lib64", "local/lib"):
            for name in ("site-packages", "dist-packages"):
                yield from sorted((prefix / library).glob(f"python{version}/{name}"))
        yield prefix / "lib" / "python3" / "dist-packages"


def _added_directories(directories: Sequence[Path]) -> Iterator[Path]:
    """Yield the directories that path files (`*.pth`) add."""
    for directory in directories:
        for path in sorted(directory.glob("*.pth"))[:_MOST_PATH_FILES]:
            lines = (line.strip() for line in _read(path).splitlines())
            yield from (directory / line for line in lines if line and not line.startswith(("#", "import")))


def _list_packages(directory: Path) -> Iterator[tuple[str, str]]:
    try:
        names = sorted(os.listdir(directory))[:_MOST_PACKAGES]  # noqa: PTH208 - names alone
    except OSError:
        return
    for name in names:
        if match := _PACKAGE.fullmatch(name):
            yield match["name"].replace("_", "-").lower(), match["version"]


def _read(path: Path) -> str:
    try:
        return read_regular_file(path, max_bytes=65_536).decode(errors="replace")
    except OSError:
        return ""
