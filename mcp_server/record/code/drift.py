"""Where the code, packages and data of an attempt differ from those of another one, or from those of now."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from mcp_server.command.python import find_python
from mcp_server.record.code import kept_sources
from mcp_server.record.code.code_snapshot import CodeSnapshot, NamedInput
from mcp_server.record.code.code_state import SOURCES, find_change, load_code_state
from mcp_server.record.spec import RunSpec
from mcp_server.system.files import name_below, read_regular_file
from mcp_server.system.git_state import GitState, read_git_state
from mcp_server.system.python_modules import read_packages
from mcp_server.text.formatting import format_size, join_some
from mcp_server.text.secret_patterns import names_a_secret

# Variables by which libraries of training compute otherwise, find other code, or other data.
_TELLING = re.compile(
    r"(?:CUDA|NCCL|(?:PY)?TORCH|TF|XLA|JAX|OMP|MKL|OPENBLAS|NUMBA|NVIDIA|CUBLAS|CUDNN|PYTHON|LD_|HF|TRANSFORMERS|VLLM|TRITON"
    r"|ACCELERATE|DEEPSPEED|MUJOCO|PYOPENGL|GLOO|UCX|HYDRA|CONDA_PREFIX|VIRTUAL_ENV|DATA)"
)
_SET_FOR_EACH = re.compile(r"CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|PYTHONUNBUFFERED|\w+_(?:PORT|ADDR)$")
_MOST_NAMED, _COMMIT_CHARS = 6, 10
_KEPT = 'code="kept" runs it as it was.'


def find_drift(former: CodeSnapshot | None, spec: RunSpec, environ: Mapping[str, str]) -> list[str]:
    """Return in what a run that repeats ``former`` would differ from it on this machine, as ``spec`` starts it now.

    Reads files, and starts git. What was not kept of ``former`` is said to be unknown.
    """
    if former is None:
        return ["What ran was not kept: whether code, packages or data differ is not known."]
    env = {**environ, **spec.env}
    drift = [] if spec.keep_code else list(_compare_files(former, spec, env))
    if drift:
        obstacle = kept_sources.find_obstacle(former)
        drift.append(f"The code as it was cannot be had: {obstacle}." if obstacle else _KEPT)
    python = find_python(spec.command, spec.cwd, env) or former.python
    now = read_packages(python)
    drift += compare_packages(former.read_packages(), now.packages)
    if former.python_version and now.version and former.python_version != now.version:
        drift.append(f"Python {former.python_version} → {now.version}.")
    known = {one.path for one in former.inputs}
    drift += compare_inputs(former.inputs, kept_sources.look_at_inputs(spec.command, spec.params, spec.cwd, known))
    given = {*spec.env, *spec.secrets}
    if former.variables is not None and spec.backend == RunSpec.backend:
        drift += _compare_variables(former.variables, digest_variables(environ, given), given)
    if former.driver and (driver := kept_sources.read_driver()) != former.driver:
        drift.append(f"NVIDIA driver {former.driver} → {driver or 'none'}.")
    return drift


def _compare_files(former: CodeSnapshot, spec: RunSpec, env: Mapping[str, str]) -> Iterator[str]:
    commit, names = find_changed_code(former, spec.cwd, lambda root: read_git_state(root, env)) or ("", [])
    if commit:
        yield f"Code: {commit}."
    own = [name for name in names if not name.startswith("/")]  # else it lies outside the working directory
    if own:
        yield f"Code differs: {join_some(own, _MOST_NAMED)}."
    if others := [name for name in names if name not in own]:
        yield f"Code differs outside its directory: {join_some(others, _MOST_NAMED)}."
    if more := list_changed_named(former, spec.cwd, names):
        yield f"Files that the command names differ: {join_some(more, _MOST_NAMED)}."


def list_changed_named(former: CodeSnapshot, cwd: str, names: Iterable[str]) -> list[str]:
    """Return the files that the command names, configurations too, that are others now and not among ``names``."""
    told = {os.path.abspath(Path(cwd, name)) for name in names}  # noqa: PTH100 - a link is itself
    configs = [one.path for one in former.files if one.sha256 and _digest(one.path) != one.sha256]
    return [name_below(path, cwd) for path in configs if path not in told]


def find_changed_code(
    former: CodeSnapshot, cwd: str, read_git: Callable[[Path], GitState]
) -> tuple[str, list[str]] | None:
    """Return how the commit in ``cwd`` is another one now, and which source files are; None where none was kept.

    No output of a run is among them.
    """
    kept, root, state = former.archive, Path(cwd or "/"), load_code_state(former.directory)
    if not kept.commit:
        names = {str(root / name) for name in kept_sources.list_changed_sources(former, root) if name.endswith(SOURCES)}
        names |= set(find_change(state, ()).changed) if state else set()
        return ("", sorted(name_below(path, cwd) for path in names)) if state or kept.files else None
    git = read_git(root)
    if not git.commit:
        return f"{cwd} is in no git repository any more; it was at {kept.commit[:_COMMIT_CHARS]}", []
    is_other = git.commit != kept.commit
    commit = f"commit {kept.commit[:_COMMIT_CHARS]} → {git.commit[:_COMMIT_CHARS]}" if is_other else ""
    tracked, top = {*former.git.changed, *git.changed}, Path(git.root)
    found = {*kept_sources.list_changed_sources(former, top), *(name for name in kept.deleted if (top / name).exists())}
    committed = kept_sources.list_committed(git.root, kept.commit, git.commit) if is_other else set[str]()
    found |= {*committed, *git.changed, *git.untracked} - {*former.git.changed, *former.git.untracked}
    tracked |= committed
    mine = (name for name in found if name in tracked or (name.endswith(SOURCES) and kept_sources.is_code(top, name)))
    new = {*git.untracked} - {*former.git.untracked, *committed}  # whether the run would use one is not known
    ordered = sorted(mine, key=lambda name: (name in new, name))
    return commit, [f"{name_below(str(top / name), cwd)}{' (new)' if name in new else ''}" for name in ordered]


def digest_variables(env: Mapping[str, str], given: Collection[str] = ()) -> dict[str, str]:
    """Return digests of the variables in ``env`` that training programs read, without ``given`` ones and secrets."""
    return {
        name: hashlib.sha256(value.encode(errors="surrogateescape")).hexdigest()[:12]
        for name, value in env.items()
        if _TELLING.match(name) and name not in given and not (_SET_FOR_EACH.match(name) or names_a_secret(name))
    }


def _compare_variables(former: Mapping[str, str], now: Mapping[str, str], given: Collection[str]) -> Iterator[str]:
    names = sorted(name for name in {*former, *now} - {*given} if former.get(name) != now.get(name))
    if names:
        yield f"Variables that the command inherits differ: {join_some(names, _MOST_NAMED)}."


def compare_packages(former: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return a sentence about the packages that differ, where both are known."""
    if not former or not now:
        return []
    names = sorted(name for name in {*former, *now} if former.get(name) != now.get(name))
    each = [f"{name} {former.get(name, 'none')} → {now.get(name, 'none')}" for name in names]
    return [f"Packages: {join_some(each, _MOST_NAMED)}."] if each else []


def compare_inputs(former: Sequence[NamedInput], now: Sequence[NamedInput]) -> list[str]:
    """Return a sentence for each data file, checkpoint or model of the former that is other now."""
    present = {one.path: one for one in now}
    return [
        f"{one.kind.capitalize()} {one.path}: {_describe_input(one, other)}."
        for one in former
        if (other := present.get(one.path)) is not None and other != one
    ]


def _describe_input(one: NamedInput, other: NamedInput) -> str:
    if other.size_bytes < 0:
        return "gone"
    if one.entries != other.entries:
        return f"{one.entries} entries → {other.entries}"
    if one.size_bytes != other.size_bytes:
        return f"{format_size(one.size_bytes) if one.size_bytes >= 0 else 'none'} → {format_size(other.size_bytes)}"
    return "written since, of the same size"


def _digest(path: str) -> str:
    try:
        return hashlib.sha256(read_regular_file(Path(path))).hexdigest()
    except (OSError, ValueError):
        return "gone"
