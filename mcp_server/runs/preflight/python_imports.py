"""Whether a python has what a training imports: asked in a process of its own, with the environment of the run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process

PATIENCE_S = 60.0
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_PYTHON = re.compile(r"(python|pypy)[\d.]*t?d?")
_LONGEST = 200
# What modules print goes elsewhere; a line tells that python runs, then one for every module.
_PROGRAM = """
import importlib, json, os, sys
told = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)
told.write("[]\\n")
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
        error = None
    except BaseException as e:
        error = [type(e).__name__, str(e), getattr(e, "name", None) if isinstance(e, ModuleNotFoundError) else None]
    told.write(json.dumps([name, error]) + "\\n")
"""
# Distributions that are not called like what they bring.
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


@dataclass(frozen=True)
class Failure:
    """What keeps a python from starting, or from importing a module."""

    text: str
    remedy: str


async def failures(python: str, modules: Sequence[str], env: Mapping[str, str], cwd: Path) -> list[Failure]:
    """Return what ``python`` cannot import, started in ``cwd``, with ``env``; empty where all is well."""
    bad = [name for name in modules if not _NAME.fullmatch(name)]
    if bad:
        return [Failure(f"{bad[0][:80]!r} is no module's name.", "Write it as in an import statement.")]
    if not _PYTHON.fullmatch(Path(python).name):  # this only looks: it runs nothing else that somebody names
        return [Failure(f"{python} is no python by its name.", "Name the python of the training's environment.")]
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
        return [Failure(f"{python} cannot be started in {cwd}: {error.strerror}.", "Name another python, or cwd.")]
    try:
        with anyio.move_on_after(PATIENCE_S) as scope:
            await _read(process, lines, 1 + len(modules))
        late = scope.cancelled_caught
    finally:
        with anyio.CancelScope(shield=True):
            if len(lines) <= len(modules) and not late:
                with anyio.move_on_after(1):
                    await process.wait()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.aclose()
    return _failures(python, modules, lines, cwd, "" if late else _ended(process.returncode))


async def _read(process: Process, lines: list[str], expected: int) -> None:
    """Read ``lines`` until there are as many as ``expected``, or the process says no more."""
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    text = b""
    async for part in process.stdout:
        text += part
        *whole, text = text.split(b"\n")
        lines += [line.decode(errors="replace") for line in whole]
        if len(lines) >= expected:
            return


def _ended(status: int | None) -> str:
    if status is not None and status < 0:
        return f"python was ended by {signal.Signals(-status).name}"
    return f"python ended with exit code {status}"


def _failures(python: str, modules: Sequence[str], lines: list[str], cwd: Path, ended: str) -> list[Failure]:
    """Return what ``lines`` tell; ``ended`` is how the process went, empty where it took too long."""
    by_hand = "To see why, run: "
    if not lines:
        why = f"{ended} at once" if ended else f"no answer within {PATIENCE_S:g} s"
        return [Failure(f"{python} does not run: {why}.", f"{by_hand}{python} -c ''")]
    found = []
    told: dict[str, Any] = dict(json.loads(line) for line in lines[1:])
    for name in modules:
        if name not in told:
            why = ended or f"not done within {PATIENCE_S:g} s"
            found.append(Failure(f"import {name}: {why}.", f"{by_hand}{python} -X faulthandler -c 'import {name}'"))
            break
        if told[name] is None:
            continue
        kind, text, missing = told[name]
        first_line = text.strip().partition("\n")[0][:_LONGEST].rstrip(".")
        remedy = _remedy(python, missing, cwd) if missing else f"{by_hand}{python} -c 'import {name}'"
        found.append(Failure(f"import {name}: {kind}: {first_line}.", remedy))
    return found


def _remedy(python: str, missing: str, cwd: Path) -> str:
    top = missing.partition(".")[0]
    for directory in (cwd / "src", cwd.parent):
        if (directory / top).is_dir():
            return f"Put {directory} into PYTHONPATH."
    if missing != top and missing not in _DISTRIBUTIONS:
        return f"Look which version of {top} is installed: {python} -m pip show {top}"
    name = _DISTRIBUTIONS.get(missing, _DISTRIBUTIONS.get(top, top))
    return f"If it is not code of yours: {python} -m pip install {name}"
