"""Live runs that a launch may end: a command with `pkill`, `ray stop` or the like beside runs of this host."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from mcp_server.command.killers import NAME_CHARS, Killer, find_closed_session, find_killers
from mcp_server.errors import RunwardError
from mcp_server.record.script import format_arguments
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run
from mcp_server.runs.warnings.warning_inputs import read_scripts
from mcp_server.store.run_index import RunQuery
from mcp_server.store.run_store import RunStore
from mcp_server.system import processes

_IDLE = ("queued",)  # nothing of them can be hit yet
_RUN_BY_SHELLS = ("BASH_ENV", "ENV")  # files that a shell reads before its script
_MOST_NAMED = 10


def find_risk(specs: Sequence[RunSpec], store: RunStore, approved: Sequence[str] = ()) -> Risk | None:
    """Return the live runs that runs of these specs may end, or None. Reads files and processes: use a thread.

    ``approved``: killers, by `name_killers`, that count for nothing.
    """
    killers = [(spec, each) for spec in specs for each in find_killers_of(spec, closes_sessions=True)]
    killers = [(spec, killer) for spec, killer in killers if _name(killer) not in approved]
    if not killers:
        return None
    live = [run for run in store.list_runs(RunQuery("live")) if run.state not in _IDLE]
    at_risk = {run.run_id: run for spec, killer in killers for run in live if _may_hit(killer, spec, run)}
    if not at_risk:
        return None
    spec = killers[0][0]
    bound = [[each.command, each.params, each.env, each.cwd, each.mirror] for each, _ in killers]
    digest = hashlib.sha256(json.dumps([spec.backend, bound], default=str, sort_keys=True).encode()).hexdigest()
    texts = tuple(dict.fromkeys(killer.text for _, killer in killers))
    return Risk(f"launch {digest}", texts, tuple(at_risk.values()))


def name_killers(specs: Sequence[RunSpec]) -> tuple[str, ...]:
    """Return what runs of these specs run that ends processes of others, without numbers, which name no program."""
    return tuple({_name(killer): None for spec in specs for killer in find_killers_of(spec, closes_sessions=True)})


def _name(killer: Killer) -> str:
    return re.sub("[0-9]+", "0", killer.text)


def find_killers_of(spec: RunSpec, *, closes_sessions: bool = False) -> list[Killer]:
    """Return what a run's command, scripts, variables and parameters run that ends processes of others."""
    variables = [f". {shlex.quote(value)}" if name in _RUN_BY_SHELLS else value for name, value in spec.env.items()]
    killers = []
    for text in (spec.command, *variables):
        scripts = {} if spec.mirror else read_scripts(text, Path(spec.cwd))
        killers += find_killers(text, scripts, closes_sessions=closes_sessions)
    return killers + (find_killers(["params", *format_arguments(spec.params, spec.param_style)]) if spec.params else [])


def _may_hit(killer: Killer, spec: RunSpec, run: Run) -> bool:
    if run.run_id == spec.run_id or run.spec.mirror != spec.mirror:
        return False
    if session := find_closed_session(killer.program):  # tmux takes the beginning of a name, too
        return f"{run.spec.session}".startswith(session)
    if killer.of_jobs or spec.backend == "slurm" or run.spec.backend == "slurm":
        return killer.of_jobs and run.spec.backend == "slurm"  # a job is on a node of its own
    if spec.mirror:
        return True  # its processes are seen there alone
    found = [(each.name, each.command) for each in processes.find_by_variable("RUNWARD_RUN_ID", run.run_id)]
    # Its command is about to run, where it has just been started.
    words = run.command.split()
    planned = [(PurePath(word).name[:NAME_CHARS], run.command) for word in words or [""]]
    return any(killer.hits(name, command) for name, command in (*found, *planned))


@dataclass(frozen=True)
class Risk:
    """The runs that a launch may end. ``command``: a confirmation is bound to it. No elapsed time is in the text."""

    command: str
    killers: tuple[str, ...]
    runs: tuple[Run, ...]

    @property
    def attempts(self) -> dict[str, int]:
        """The attempt of each run."""
        return {run.run_id: run.attempt for run in self.runs}

    @property
    def text(self) -> str:
        """The killers, and the runs that they may end."""
        named = [f"{run.run_id} ({run.state}, owner {run.spec.owner or 'unknown'})" for run in self.runs[:_MOST_NAMED]]
        more = [f"{len(self.runs) - _MOST_NAMED} more"] if len(self.runs) > _MOST_NAMED else []
        return f"{' '.join(self.killers)} It may end {_count(len(self.runs))}: {'; '.join([*named, *more])}."


class LaunchNotConfirmed(RunwardError):
    """A launch may end live runs of others, and nobody has confirmed it."""

    def __init__(self, risk: Risk) -> None:
        super().__init__(risk.text, "Nothing was started.", "Leave that part of the command out.")
        self.risk = risk


def _count(number: int) -> str:
    return "a live run" if number == 1 else f"{number} live runs"
