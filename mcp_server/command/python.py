"""The Python that a command runs. Nothing is started."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from mcp_server.command.programs import PYTHON, PYTHON_LAUNCHERS, RUNNERS, find_main, keeps_path
from mcp_server.command.shell import parse
from mcp_server.system.files import read_regular_file

# Programs that lie beside the Python that they run.
_BESIDE = frozenset({*PYTHON_LAUNCHERS, "ray", "vllm", "lightning", "hydra", "doit"})


def find_python(command: str | Sequence[str], cwd: str, env: Mapping[str, str]) -> str:
    """Return the path of the Python that ``command`` runs, empty where its words alone do not show it."""
    search = env.get("PATH", os.defpath)
    for simple in parse(command).commands:
        words = simple.program_words
        directory = simple.find_directory(cwd) or "/nowhere"
        name = PurePath(simple.program).name
        if name in ("source", ".") and len(words) > 1 and words[1].endswith("/bin/activate"):
            search = f"{Path(directory) / words[1]}".rpartition("/")[0] + os.pathsep + search
            continue
        if name == "uv" and "run" in words and (Path(directory) / ".venv" / "bin" / "python").exists():
            return str(Path(directory) / ".venv" / "bin" / "python")
        main = 0 if name in _BESIDE else None if name in RUNNERS else find_main(words, _BESIDE)
        program = "" if main is None else PurePath(words[main]).name
        if main is not None and "$" not in words[main] and (PYTHON.fullmatch(program) or program in _BESIDE):
            return resolve_python(words[main], program, directory, search)
        if not keeps_path(simple.program, simple.words):
            return ""
    return ""


def resolve_python(word: str, program: str, cwd: str, search: str) -> str:
    """Return the path of the Python that a word of a command starts, found on ``search``; empty if unknown."""
    path = str(Path(cwd) / word) if "/" in word else shutil.which(word, path=search) or ""
    if path and not PYTHON.fullmatch(program):
        path = str(Path(path).parent / "python")
    # A script, such as a shim of pyenv, chooses a Python when it runs.
    return path if os.path.exists(path) and not _begins_as_script(path) else ""  # noqa: PTH110 - it may be no path


def _begins_as_script(path: str) -> bool:
    try:
        return read_regular_file(Path(path), max_bytes=2) == b"#!"
    except OSError:
        return False
