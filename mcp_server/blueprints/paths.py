"""Paths of a blueprint on this host, and which of them cannot be used. Reads no file's content."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mcp_server.blueprints.headings import BlueprintFault
from mcp_server.blueprints.parser import Blueprint
from mcp_server.hosts.path_checks import Roots, suggest_names

_MAX_HINT_CHARS = 200
_VARIABLE = re.compile(r"\$?\{(\w+)\}|\$(\w+)")
_VENVS = ("venv", ".venv")  # where no section names a python


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, a NUL in it
        return False


@dataclass(frozen=True)
class FarPlace:
    """Another host, on which a blueprint of this one runs.

    ``move``: text with the paths of this host as the other has them; ``move_command`` for a shell's. ``look``: what is
    at a path there, as the relay says it: ``directory``, ``file``, ``missing`` or ``unknown``. ``may_write``: whether a
    directory can be made there.
    """

    name: str
    home: str
    move: Callable[[str], str]
    move_command: Callable[[str], str]
    look: Callable[[str], str]
    may_write: Callable[[str], bool]

    def exists(self, path: Path) -> bool:
        """Return whether ``path``, as this host writes it, exists there."""
        return self.look(self.move(str(path))) in ("directory", "file")


@dataclass(frozen=True)
class BlueprintPaths:
    """Absolute paths of a blueprint, of a far host where ``place`` is one.

    No ``venv_exe`` means this host's python, no ``yaml_path`` no configuration.
    """

    codebase_dir: Path
    result_dir: Path
    venv_exe: Path | None = None
    yaml_path: Path | None = None
    tensorboard: Path | None = None
    place: FarPlace | None = field(default=None, compare=False)

    def moved(self, place: FarPlace) -> BlueprintPaths:
        """Return the paths as another host has them."""
        names = ("codebase_dir", "result_dir", "venv_exe", "yaml_path", "tensorboard")
        there = {name: Path(place.move(str(path))) for name in names if (path := getattr(self, name)) is not None}
        return replace(self, **there, place=place)


def resolve_paths(
    file: Path, blueprint: Blueprint, place: FarPlace | None = None, cwd: str | None = None
) -> BlueprintPaths:
    """Return absolute paths: relative ones are beside the blueprint ``file``, else in the directory of the code.

    With ``place`` they are looked up there, and returned as they are there. ``cwd`` replaces the directory of the code.

    A directory of results that exists in neither place is beside the blueprint, unless the command, which runs in the
    code, names it as written.
    """
    directory = file.parent
    exists = place.exists if place else _exists

    home = place.home if place else str(Path.home())
    values = {"HOME": home, "USER": Path(home).name}  # of the host on which it runs

    def _resolve(bases: Sequence[Path], path_text: str | None, default: int = -1) -> Path | None:
        """Return a path below the first of ``bases`` that has it, else the default one."""
        if path_text is None:
            return None
        text = _VARIABLE.sub(lambda name: values.get(name[1] or name[2], name[0]), path_text.rstrip("/") or "/")
        if text == "~" or text.startswith("~/"):
            text = home + text[1:]
        try:
            path = Path(text).expanduser()
        except RuntimeError:  # no such user
            path = Path(text)
        candidates = [Path(os.path.normpath(base / path)) for base in bases]
        return next(filter(exists, candidates), candidates[default])

    codebase = _resolve((directory,), cwd or blueprint.codebase_dir) or directory
    values |= {"exp_codebase_dir": str(codebase), "codebase_dir": str(codebase)}
    bases = (directory, codebase)
    default_result = directory / (file.stem if file.suffix else f"{file.name}.results")
    command = blueprint.launch_command or ""
    in_code = (codebase,) if _names_path(command, blueprint.result_dir) else (directory, codebase)
    result = _resolve(in_code, blueprint.result_dir, default=0) or default_result
    venv = _resolve(bases, blueprint.venv_exe)
    if venv is None and blueprint.seeks_venv:
        places = (base / name / "bin" / "python" for base in bases for name in _VENVS)
        venv = next(filter(exists, places), None)
    elif venv is not None:
        programs = venv.parent if venv.name.startswith("activate") else venv / "bin"  # `source …/bin/activate`
        venv = programs / "python" if exists(programs / "python") else venv
    values |= {"exp_result_dir": str(result), "result_dir": str(result)}
    paths = BlueprintPaths(
        codebase,
        result,
        venv,
        _resolve(bases[::-1] if _names_path(command, blueprint.yaml_path) else bases, blueprint.yaml_path),
        _resolve((codebase,), blueprint.options.tensorboard),  # the command makes it, and runs there
    )
    return paths.moved(place) if place else paths


def _names_path(command: str, path_text: str | None) -> bool:
    """Return whether a command has the path as written: relative to the code then, where it runs."""
    written = re.escape((path_text or "").rstrip("/"))
    return bool(written) and re.search(rf"(?<![\w./-]){written}(?![\w.-])", command) is not None


def find_unusable_paths(
    paths: BlueprintPaths, blueprint: Blueprint, roots: Roots | None = None, excluded: Collection[str] = ()
) -> Iterator[BlueprintFault]:
    """Yield a fault for every path that does not exist here or belongs to another host: not faults of the document.

    ``excluded``: sections that an argument of the launch replaces. The fault of another host's path has this host's.
    """
    checks = {
        "codebase_dir": (paths.codebase_dir, Path.is_dir, "is not a directory"),
        "venv_exe": (paths.venv_exe, lambda path: path.is_file() and os.access(path, os.X_OK), "is not a program"),
        "yaml_path": (paths.yaml_path, Path.is_file, "is not a file"),
        "result_dir": (paths.result_dir, _is_writable_directory, "cannot be created or written"),
    }
    for name, (path, check, cause) in checks.items():
        if path is None or name in excluded:
            continue
        line = blueprint.lines.get(name, 1)
        if roots is not None and (rewrite := roots.rewrite(str(path))) is not None:
            remedy = f"Write {rewrite.text}" if rewrite.is_known else "hosts.toml has no path for it on this host"
            text = f"[exp_{name}] is a path of another host: {str(path)[:200]}. {remedy}."
            yield BlueprintFault(line, text, fatal=False)
            continue
        try:
            is_usable = check(path) if paths.place is None else _is_usable_there(name, path, paths.place)
        except (OSError, ValueError):
            is_usable = False
        if not is_usable:
            hint = "" if name == "result_dir" or paths.place else suggest_names(path)[:_MAX_HINT_CHARS]
            where = paths.place.name if paths.place else "this host"
            text = f"[exp_{name}] {cause} on {where}: {str(path)[:200]}. {hint}".rstrip()
            yield BlueprintFault(line, text, fatal=False)


def _is_usable_there(name: str, path: Path, place: FarPlace) -> bool:
    if name == "result_dir":
        return place.may_write(str(path))
    return place.look(str(path)) in ("directory" if name == "codebase_dir" else "file", "unknown")


def _is_writable_directory(path: Path) -> bool:
    nearest = next(parent for parent in (path, *path.parents) if parent.exists())
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
