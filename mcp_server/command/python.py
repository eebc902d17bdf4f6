"""The Python that a command runs, by its words and the names of files: nothing is started."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from mcp_server.command.shell import PYTHON_LAUNCHERS, parse
from mcp_server.system.files import read_regular_file
from mcp_server.text.regex import compile_lazily

PYTHON = compile_lazily(r"python(?:\d(?:\.\d+)?)?")
# Programs that lie beside the Python that they run.
_BESIDE = frozenset({*PYTHON_LAUNCHERS, "ray", "vllm", "lightning", "hydra", "doit"})
_WRAPPERS = frozenset({"timeout", "nice", "ionice", "stdbuf", "numactl", "taskset", "unbuffer", "xvfb-run", "chrt"})
# Behind these programs the Python that comes first on PATH is still the same. All others may choose another.
_STARTS_NOTHING = frozenset({"", "export", "set", "unset", "ulimit", "umask", "cd", "mkdir", "echo", "printf", "sleep"})


def find_python(command: str | Sequence[str], cwd: str, env: Mapping[str, str]) -> str:
    """Return the path of the Python that ``command`` runs, empty where its words alone do not show it."""
    search = env.get("PATH", os.defpath)
    for simple in parse(command).commands:
        words = simple.program_words
        name = os.path.basename(words[0]) if words else ""  # noqa: PTH119 - a word of a command
        if name in ("source", ".") and len(words) > 1 and words[1].endswith("/bin/activate"):
            search = f"{Path(cwd) / words[1]}".rpartition("/")[0] + os.pathsep + search
            continue
        if name == "uv" and "run" in words and (Path(cwd) / ".venv" / "bin" / "python").exists():
            return str(Path(cwd) / ".venv" / "bin" / "python")
        words = words[1:] if name in _WRAPPERS else words
        for word in words if name in _WRAPPERS else words[:1]:
            program = os.path.basename(word)  # noqa: PTH119 - as above
            if "$" not in word and (PYTHON.fullmatch(program) or program in _BESIDE):
                return resolve_python(word, program, cwd, search)
        if name not in _STARTS_NOTHING:
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
