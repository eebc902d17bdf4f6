"""Training, evaluation and serving processes of this host that no run started: read-only facts."""

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mcp_server.answer import Answer
from mcp_server.command.trainings import Kind, classify, name_program
from mcp_server.system import processes
from mcp_server.system.lock_files import user_name
from mcp_server.system.own_process import supervised_run


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
            name = name_program(words[p.pid])
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
