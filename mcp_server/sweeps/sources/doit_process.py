"""Runs the program that reads a project's dodo.py with the project's Python.

This executes dodo.py, as ``doit list`` does: never in this process, in a process group of its own, with a time limit.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mcp_server.errors import BadArgument
from mcp_server.sweeps.sources.doit_tasks import DoitTask, parse_tasks
from mcp_server.system.files import read_regular_file

_CHILD = str(Path(__file__).with_name("doit_child.py"))
_NO_DOIT = 86  # its exit status
_LIMIT_S = 45.0
_MOST_BYTES, _MOST_CHARS = 10_000_000, 500
_SHEBANG = re.compile(rb"#!\s*(/\S*python[\d.]*)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class DoitProject:
    """The tasks of a project, the directory that doit runs them in, and the Python that loaded dodo.py."""

    tasks: list[DoitTask]
    cwd: str
    python: str


def load_project(
    cwd: Path, python: str | None, environ: Mapping[str, str], patterns: Sequence[str], options: Mapping[str, str]
) -> DoitProject:
    """Return the tasks of ``cwd``. The arguments are those of ``source.read_source`` and of ``doit_child``.

    Raises:
        BadArgument: no Python has doit, or doit cannot load dodo.py; says what it printed.
    """
    pythons = [python] if python else list(dict.fromkeys(_find_pythons(cwd, environ)))
    request = json.dumps({"patterns": list(patterns), "options": dict(options)})
    for each in pythons:
        with tempfile.TemporaryDirectory(prefix="runward-doit-") as scratch:
            status, output = _run([each, _CHILD, request, f"{scratch}/tasks.json"], cwd, environ, scratch)
            if status == _NO_DOIT:
                continue
            if status != 0:
                raise BadArgument("source", f"doit cannot load the tasks of {cwd}: {output}")
            data = json.loads(read_regular_file(Path(scratch) / "tasks.json", max_bytes=_MOST_BYTES))
            return DoitProject(parse_tasks(data["tasks"]), data["cwd"], each)
    remedy = "Install doit for the project's Python, or name the environment that has it."
    raise BadArgument("source", f"no Python with doit: {', '.join(pythons) or 'PATH has no python'}.", remedy)


def _run(command: Sequence[str], cwd: Path, environ: Mapping[str, str], scratch: str) -> tuple[int, str]:
    output = Path(scratch) / "output"
    with output.open("wb") as file:
        try:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        except OSError as error:
            raise BadArgument("source", f"{command[0]} cannot be started: {error.strerror}.") from None
        try:
            status = process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            cause = f"dodo.py of {cwd} was still loading after {_LIMIT_S:.0f} s, and was stopped."
            raise BadArgument("source", cause, "Move slow work out of the module and its task_ functions.") from None
        finally:
            with suppress(ProcessLookupError):  # and what it may have left behind
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    text = " / ".join(read_regular_file(output, max_bytes=_MOST_BYTES).decode(errors="replace").split("\n")).strip(" /")
    text = f"…{text[-_MOST_CHARS:]}" if len(text) > _MOST_CHARS else text
    return status, f"{text or f'exit status {status}'}."


def _find_pythons(cwd: Path, environ: Mapping[str, str]) -> Iterator[str]:
    path = environ.get("PATH") or os.defpath
    if program := shutil.which("doit", path=path):
        with suppress(OSError):
            if match := _SHEBANG.match(read_regular_file(Path(program), max_bytes=4096)):
                yield os.fsdecode(match[1])
    yield from filter(None, (shutil.which(name, path=path) for name in ("python", "python3")))
    yield from (str(each) for name in (".venv", "venv") if (each := cwd / name / "bin" / "python").is_file())
