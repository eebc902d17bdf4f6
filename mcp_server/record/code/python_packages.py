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
from mcp_server.system.python_modules import list_installed, read_path_files, read_venv


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
    prefix, home, settings = Path(python).parent.parent, Path(python).resolve().parent.parent, read_venv(Path(python))
    prefixes = [prefix, home] if settings is None else [prefix]
    settings = settings or {}
    if settings.get("include-system-site-packages", "").lower() == "true":
        prefixes.append(home)
    roots = list(dict.fromkeys(_list_site_directories(prefixes, python)))
    more, _ = read_path_files(roots)
    packages = {name: version for root in reversed([*roots, *more]) for name, version in list_installed(root)}
    version = settings.get("version") or settings.get("version_info") or _find_version(prefix, home)
    return PythonPackages(python, version, packages)


def _find_version(prefix: Path, home: Path) -> str:
    """Return the version of a Python that is not a virtual environment, as far as names of files show it."""
    for record in (prefix / "conda-meta").glob("python-3*.json"):
        return record.name.split("-")[1]
    match = re.search(r"(\d+\.\d+(?:\.\d+)?)$", home.name)  # pyenv, uv
    if match:
        return match[1]
    libraries = sorted(path.name[len("python") :] for path in (prefix / "lib").glob("python3.*"))
    return libraries[0] if len(libraries) == 1 else ""


def _list_site_directories(prefixes: Sequence[Path], python: str) -> Iterator[Path]:
    real = Path(python).resolve().name
    version = real[len("python") :] if re.fullmatch(r"python3\.\d+", real) else "3*"
    for prefix in prefixes:
        for library in ("lib", "lib64", "local/lib"):
            for name in ("site-packages", "dist-packages"):
                yield from sorted((prefix / library).glob(f"python{version}/{name}"))
        yield prefix / "lib" / "python3" / "dist-packages"
