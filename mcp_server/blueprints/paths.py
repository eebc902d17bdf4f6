"""Where the things that a blueprint names are on this host, and which are not there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mcp_server.blueprints.parser import Blueprint
from mcp_server.blueprints.sections import Problem
from mcp_server.hosts.path_checks import Roots, suggest_names

_LONGEST_HINT = 200


@dataclass(frozen=True)
class Places:
    """Where a blueprint's things are on this host; None: it needs none, or this host's python."""

    codebase_dir: Path
    result_dir: Path
    venv_exe: Path | None = None
    yaml_path: Path | None = None


def places(path: Path, blueprint: Blueprint) -> Places:
    """Return where everything is: what is relative counts from the code, the code from the blueprint."""
    here = path.parent
    codebase = _absolute(here, blueprint.codebase_dir, {}) or here
    known = {"exp_codebase_dir": str(codebase), "codebase_dir": str(codebase)}
    beside = here / (path.stem if path.suffix else f"{path.name}.results")
    result = _absolute(codebase, blueprint.result_dir, known) or beside
    venv = _absolute(codebase, blueprint.venv_exe, known)
    if venv is not None:
        inside = venv.parent if venv.name.startswith("activate") else venv / "bin"  # `source …/bin/activate`
        venv = inside / "python" if (inside / "python").exists() else venv
    return Places(codebase, result, venv, _absolute(codebase, blueprint.yaml_path, known))


def _absolute(base: Path, written: str | None, known: Mapping[str, str]) -> Path | None:
    """Return the path that a blueprint means; ``~``, ``$HOME`` and ``$USER`` are this host's."""
    if written is None:
        return None
    values = {**known, "HOME": str(Path.home()), "USER": Path.home().name}
    text = re.sub(
        r"\$?\{(\w+)\}|\$(\w+)", lambda match: values.get(match[1] or match[2], match[0]), written.rstrip("/") or "/"
    )
    try:
        path = Path(text).expanduser()
    except RuntimeError:  # no such user
        path = Path(text)
    return Path(os.path.normpath(base / path))


def missing(
    found: Places, blueprint: Blueprint, roots: Roots | None = None, leave_out: Iterable[str] = ()
) -> Iterator[Problem]:
    """Yield what a blueprint names and this host has not: problems of the host, not of the document.

    Of a path that another host has, the problem tells what it is here.
    """
    looks = {
        "codebase_dir": (found.codebase_dir, Path.is_dir, "is no directory"),
        "venv_exe": (found.venv_exe, _is_program, "is no program"),
        "yaml_path": (found.yaml_path, Path.is_file, "is no file"),
        "result_dir": (found.result_dir, _can_be_written, "cannot be made or written"),
    }
    for name, (path, look, cause) in looks.items():
        if path is None or name in leave_out:
            continue
        line = blueprint.lines.get(name, 1)
        if roots is not None and (rewrite := roots.rewrite(str(path))) is not None:
            told = f"Write {rewrite.text}" if rewrite.is_known else "hosts.toml does not say what it is here"
            yield Problem(line, f"[exp_{name}] is a path of another host: {str(path)[:200]}. {told}.", fatal=False)
            continue
        try:
            there = look(path)
        except (OSError, ValueError):
            there = False
        if not there:
            hint = "" if name == "result_dir" else suggest_names(path)[:_LONGEST_HINT]
            text = f"[exp_{name}] {cause} on this host: {str(path)[:200]}. {hint}".rstrip()
            yield Problem(line, text, fatal=False)


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _can_be_written(path: Path) -> bool:
    nearest = next(parent for parent in (path, *path.parents) if parent.exists())
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
