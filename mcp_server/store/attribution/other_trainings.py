"""Training, evaluation and serving processes of this host that no run started: read-only facts.

A process is recognised by what it runs, its program, script or module, and never by its other arguments: an editor with
``train.py`` open trains nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal

from mcp_server.answer import Answer
from mcp_server.command.programs import PYTHON, PYTHON_LAUNCHERS, RUNNERS, find_entry
from mcp_server.system import processes
from mcp_server.system.lock_files import user_name
from mcp_server.system.own_process import supervised_run
from mcp_server.text.rows import read_blocks

Kind = Literal["training", "evaluation", "serving", "ray", "launcher"]

_BLOCKS: list[dict[str, Any]] = [dict(block) for block in read_blocks("store/attribution/trainings")]
_MODULES, _SCRIPTS = (
    [(one["kind"], re.compile(one["line"])) for one in _BLOCKS if one.get("of") == of] for of in ("module", "script")
)
_KINDS, _VERBS = (
    {word: one[key] for one in _BLOCKS if key in one and "words" in one for word in one["words"].split()}
    for key in ("kind", "verb")
)
_PROGRAMS: dict[str, Kind] = {**dict.fromkeys(PYTHON_LAUNCHERS, "launcher"), **_KINDS}
_SUBCOMMANDS = {one["with"]: set(one["words"].split()) for one in _BLOCKS if "with" in one}
# These run code of trainings and train nothing.
_NOT_TRAINING = re.compile(
    r"pip|pytest|unittest|py_compile|venv|ipykernel\w*|jupyter.*|tensorboard.*|http\.server|mcp_server.*|runward"
)
# Titles that workers of Ray and vLLM give themselves.
_TITLES = ("ray::", "VLLM::")


class OtherTraining(Answer):
    """A process that trains, evaluates or serves a model. Arguments are left out: they may hold secrets.

    ``count``: so many processes of the same program and parent, of which ``pid`` is the first.
    """

    pid: int
    kind: Kind
    program: str
    user: str | None = None
    count: int | None = None


@dataclass(frozen=True)
class OtherTrainings:
    """The trainings that were found, and one sentence about the search."""

    processes: list[OtherTraining]
    searched: str


def list_other_trainings(limit: int = 20) -> OtherTrainings:
    """Return the processes visible to this user that train, evaluate or serve and belong to no run of runward."""
    all_processes = processes.list_processes()
    users = {p.pid: _find_user(p.pid) for p in all_processes}
    words = {p.pid: processes.command_words(p.pid) for p in all_processes}
    of_runs = {p.pid for p in all_processes if supervised_run(words[p.pid]) is not None}
    for p in sorted(all_processes, key=lambda p: p.started):
        if p.parent in of_runs:
            of_runs.add(p.pid)
    kinds = {p.pid: classify(words[p.pid]) for p in all_processes if p.pid not in of_runs}
    trainings = [p for p in all_processes if kinds.get(p.pid) and not _belongs_to_run(p.pid)]
    pids = {p.pid for p in trainings}
    groups: dict[tuple[object, ...], list[processes.Process]] = {}
    for p in sorted(trainings, key=lambda p: p.pid):
        kind = kinds[p.pid]
        # The children of a launcher are its workers; those of a Ray belong to different trainings.
        if p.parent not in pids or kinds[p.parent] == "ray":
            name = _name_program(words[p.pid])
            groups.setdefault((kind, name, users[p.pid], p.parent if p.parent != 1 else p.pid), []).append(p)
    others = [
        OtherTraining(
            pid=members[0].pid,
            kind=kind,  # type: ignore[arg-type]  # found processes have one
            program=str(name),
            user=user,  # type: ignore[arg-type]  # as above: the key's third part
            count=len(members) if len(members) > 1 else None,
        )
        for (kind, name, user, _), members in groups.items()
    ]
    return OtherTrainings(others[:limit], _describe_search(users.values(), len(others), limit))


def classify(words: Sequence[str]) -> Kind | None:
    """Return what a process with this command line does, or None where it does none of it. Pure."""
    words = words[0].split() if len(words) == 1 else words  # a process that set its own title
    if not words:
        return None
    if words[0].startswith(_TITLES):
        return "ray" if words[0].startswith("ray::") else "serving"
    name = PurePath(words[0]).name
    if name in RUNNERS:
        index = next((i for i, word in enumerate(words[1:], 1) if _is_program(word)), None)
        return classify(words[index:]) if index is not None else None
    return _classify_python(words) if PYTHON.fullmatch(name) else _classify_program(words)


def _classify_python(words: Sequence[str]) -> Kind | None:
    entry = find_entry(words)
    if entry is None or entry.kind not in ("module", "script"):
        return None
    is_module, script, rest = entry.kind == "module", PurePath(entry.value).name, words[entry.at + 1 :]
    if not is_module and script in _PROGRAMS:
        return _classify_program([script, *rest])
    if script == "default_worker.py":
        return "ray"
    name = entry.value if is_module else script.removesuffix(".py")
    if _NOT_TRAINING.fullmatch(name):
        return None
    patterns = _MODULES if is_module else _SCRIPTS
    by_name = next((kind for kind, pattern in patterns if pattern.fullmatch(name.lower())), None)
    return by_name if is_module else by_name or _VERBS.get(rest[0] if rest else "")


def _is_program(word: str) -> bool:
    name = PurePath(word).name
    return bool(PYTHON.fullmatch(name)) or name in _PROGRAMS


def _classify_program(words: Sequence[str]) -> Kind | None:
    name = PurePath(words[0]).name
    if (kind := _PROGRAMS.get(name)) is None:
        return None
    if (subcommands := _SUBCOMMANDS.get(name)) is not None and subcommands.isdisjoint(words[1:2]):
        return None
    return kind


def _name_program(words: Sequence[str]) -> str:
    words = words[0].split() if len(words) == 1 else words
    if words[0].startswith(_TITLES) or not PYTHON.fullmatch(PurePath(words[0]).name):
        subcommand = _SUBCOMMANDS.get(PurePath(words[0]).name, set()) & set(words[1:2])
        return " ".join([words[0], *subcommand])
    entry = find_entry(words)
    named = {"module": " -m {}", "script": " {}"}.get(entry.kind, "") if entry else ""
    return words[0] + named.format(entry.value if entry else "")


def _belongs_to_run(pid: int) -> bool:
    """Return whether a run started this process, which may have left the run's tree."""
    with contextlib.suppress(OSError):
        return b"\0RUNWARD_RUN_ID=" in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    return False


def _find_user(pid: int) -> str | None:
    try:
        uid = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None
    return user_name(uid)


def _describe_search(users: Iterable[str | None], total: int, limit: int) -> str:
    names = list(users)
    own = _find_user(os.getpid())
    # A kernel that hides the processes of others hides the first one as well.
    hidden = "" if Path("/proc/1/stat").exists() or own == "root" else "; those of other users are hidden"
    who = ", ".join(sorted({name for name in names if name}))
    more = f"; {total - limit} more were found" if total > limit else ""
    return f"{len(names)} processes of {who}{hidden}{more}"
