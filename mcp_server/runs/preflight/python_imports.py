"""Check that a python can import modules, in a process of its own with the environment of the run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process

from mcp_server.runs.preflight.answers import Problem

PATIENCE_S = 60.0
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_PYTHON = re.compile(r"(python|pypy)[\d.]*t?d?")
_LONGEST = 200
# Modules print to stderr. The first line of stdout shows that python runs, then each module has one line.
_PROGRAM = """
import importlib, json, os, sys
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)
answers.write("[]\\n")
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
        error = None
    except BaseException as e:
        error = [type(e).__name__, str(e), getattr(e, "name", None) if isinstance(e, ModuleNotFoundError) else None]
    answers.write(json.dumps([name, error]) + "\\n")
"""
# Distributions whose name differs from the module's.
_DISTRIBUTIONS = {
    "cv2": "opencv-python",
    "PIL": "pillow",
    "yaml": "pyyaml",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "attr": "attrs",
    "git": "GitPython",
    "dotenv": "python-dotenv",
    "flash_attn": "flash-attn",
    "google.protobuf": "protobuf",
}


async def find_import_failures(python: str, modules: Sequence[str], env: Mapping[str, str], cwd: Path) -> list[Problem]:
    """Return what ``python`` cannot import, started in ``cwd``, with ``env``; empty where it imports all."""
    wrong_names = [name for name in modules if not _NAME.fullmatch(name)]
    if wrong_names:
        return [_problem(f"{wrong_names[0][:80]!r} is not a module's name.", "Write it as in an import statement.")]
    if not _PYTHON.fullmatch(Path(python).name):  # a check starts no other program
        return [_problem(f"{python} is not a python by its name.", "Name the python of the training's environment.")]
    quiet = {**env, "PYTHONDONTWRITEBYTECODE": "1"}
    lines: list[str] = []
    late = False
    try:
        process = await anyio.open_process(
            [python, "-c", _PROGRAM, *modules],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=quiet,
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as error:  # also where there is no such directory
        return [_problem(f"{python} cannot be started in {cwd}: {error.strerror}.", "Name another python, or cwd.")]
    try:
        with anyio.move_on_after(PATIENCE_S) as scope:
            await _read_lines(process, lines, 1 + len(modules))
        late = scope.cancelled_caught
    finally:
        with anyio.CancelScope(shield=True):
            if len(lines) <= len(modules) and not late:
                with anyio.move_on_after(1):
                    await process.wait()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.aclose()
    return _parse_answers(python, modules, lines, cwd, "" if late else _describe_end(process.returncode))


async def _read_lines(process: Process, lines: list[str], expected: int) -> None:
    """Append to ``lines`` until there are ``expected`` of them, or the output ends."""
    assert process.stdout is not None  # noqa: S101 - opened with a pipe
    text = b""
    async for part in process.stdout:
        text += part
        *whole, text = text.split(b"\n")
        lines += [line.decode(errors="replace") for line in whole]
        if len(lines) >= expected:
            return


def _describe_end(status: int | None) -> str:
    if status is not None and status < 0:
        return f"python was ended by {signal.Signals(-status).name}"
    return f"python ended with exit code {status}"


def _parse_answers(python: str, modules: Sequence[str], lines: list[str], cwd: Path, ended: str) -> list[Problem]:
    """Return the failures in ``lines``; ``ended`` is how the process ended, empty where it took too long."""
    by_hand = "To see why, run: "
    if not lines:
        why = f"{ended} at once" if ended else f"no answer within {PATIENCE_S:g} s"
        return [_problem(f"{python} does not run: {why}.", f"{by_hand}{python} -c ''")]
    failures = []
    answers: dict[str, Any] = dict(json.loads(line) for line in lines[1:])
    for name in modules:
        if name not in answers:
            why = ended or f"not done within {PATIENCE_S:g} s"
            failures.append(_problem(f"import {name}: {why}.", f"{by_hand}{python} -X faulthandler -c 'import {name}'"))
            break
        if answers[name] is None:
            continue
        kind, text, missing = answers[name]
        first_line = text.strip().partition("\n")[0][:_LONGEST].rstrip(".")
        remedy = _suggest_install(python, missing, cwd) if missing else f"{by_hand}{python} -c 'import {name}'"
        failures.append(_problem(f"import {name}: {kind}: {first_line}.", remedy))
    return failures


def _suggest_install(python: str, missing: str, cwd: Path) -> str:
    top = missing.partition(".")[0]
    for directory in (cwd / "src", cwd.parent):
        if (directory / top).is_dir():
            return f"Put {directory} into PYTHONPATH."
    if missing != top and missing not in _DISTRIBUTIONS:
        return f"Check which version of {top} is installed: {python} -m pip show {top}"
    name = _DISTRIBUTIONS.get(missing, _DISTRIBUTIONS.get(top, top))
    return f"If it is not your own code: {python} -m pip install {name}"


def _problem(text: str, remedy: str) -> Problem:
    return Problem(what="python", text=text, remedy=remedy)
