"""Where the things that a blueprint names are on this host."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mcp_server.blueprint import Blueprint


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
    if venv is not None and (venv / "bin" / "python").exists():
        venv = venv / "bin" / "python"
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
