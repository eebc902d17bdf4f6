"""Removes records of ended runs that nobody needs any more: first the plan, then the act. Never a checkpoint unasked.

Removed are the run's directory (record, logs, kept code), its copy of the code, and its screen. What the training wrote
elsewhere stays.
"""

import contextlib
import os
import shutil
import stat
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mcp_server.backends import tmux_client
from mcp_server.errors import BadArgument, RunUnreadable, SweepNotFound
from mcp_server.record.results.notes import NOTES, read_notes
from mcp_server.record.run_directory import RunDir
from mcp_server.record.state import IMPORTED, Run, posix
from mcp_server.record.sweeps.sweep_state import Sweep
from mcp_server.results.checkpoints import find_checkpoints, find_run_checkpoints
from mcp_server.results.figures import choose_goal, measure
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.scalars.tag_names import best_direction, rank_headline
from mcp_server.store.attribution.claim_records import find_last_sign_s
from mcp_server.store.run_index import RunQuery
from mcp_server.store.run_store import RunStore
from mcp_server.system.git_state import read_git
from mcp_server.system.lock_files import is_locked

_CUT_SHORT = frozenset({"failed", "killed", "lost"})
_REMOVED = ".pruned-"  # before the name of what is being removed


@dataclass(frozen=True)
class PruneSelection:
    """The runs that may go: those that are ``named``, else all ended ones for which the rest holds.

    ``keep_best``: so many of each directory, by ``metric`` or the one that most of its runs have.
    """

    named: Sequence[str] = ()
    older_s: float | None = None
    failed: bool = False
    keep_best: int | None = None
    metric: str | None = None
    checkpoints: bool = False


@dataclass
class PrunePlan:
    """The things that go, by path with their bytes; and why runs stay that the selection means, by id."""

    runs: list[Run] = field(default_factory=list)
    sweeps: list[Sweep] = field(default_factory=list)
    paths: dict[Path, int] = field(default_factory=dict)
    checkpoints: list[Path] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)


def plan_prune(selection: PruneSelection, store: RunStore, scalars: Scalars) -> PrunePlan:
    """Return the things that would be removed; changes nothing. BadArgument: nothing is selected, or what lives."""
    plan = PrunePlan()
    if selection.named:
        candidates = _resolve(selection.named, store, plan)
    elif selection.older_s is None and not selection.failed and selection.keep_best is None:
        raise BadArgument("prune", "nothing says which runs go.", "Name runs, or pass --older, --failed, --keep-best.")
    else:
        candidates = [
            run for run in store.list_runs(RunQuery("ended", cut_off=None)) if _is_meant(run, selection, store)
        ]
    best = _find_best(selection, store, scalars) if selection.keep_best else {}
    going = {sweep.sweep_id for sweep in plan.sweeps}
    for run in candidates:
        if why := best.get(run.run_id) or _find_obstacle(run, store, is_named=bool(selection.named), going=going):
            plan.kept[run.run_id] = why
        else:
            plan.runs.append(run)
    _add_paths(plan, store)
    if selection.checkpoints:
        own = {run.run_id: scalars.attribution.of(run) for run in plan.runs if run.spec.imported is None}
        found = [
            one.path for run in plan.runs if run.run_id in own for one in find_run_checkpoints(run, own[run.run_id])
        ]
        plan.checkpoints = list(dict.fromkeys(found))
    return plan


def _resolve(names: Iterable[str], store: RunStore, plan: PrunePlan) -> list[Run]:
    runs: dict[str, Run] = {}
    for name in names:
        found = store.find_any(name)
        if isinstance(found, Sweep):
            if not found.ended:
                raise BadArgument("RUN", f"{found.sweep_id} has not ended.", f"runward kill {found.sweep_id}")
            plan.sweeps.append(found)
            runs |= {run.run_id: run for run in store.list_runs(RunQuery(sweep=found.sweep_id, cut_off=None))}
        elif not found.ended:
            raise BadArgument("RUN", f"{found.run_id} {found.still}.", f"runward kill {found.run_id}")
        else:
            runs[found.run_id] = found
    return list(runs.values())


def _is_meant(run: Run, selection: PruneSelection, store: RunStore) -> bool:
    if run.ended_at or run.state == IMPORTED:
        ended_s = posix(run.ended_at or run.spec.created_at) if run.ended_at or run.spec.created_at else 0.0
    else:
        ended_s = find_last_sign_s(run, store.record_of(run))
    is_old = selection.older_s is None or time.time() - ended_s > selection.older_s
    return is_old and (not selection.failed or run.state in _CUT_SHORT)


def _find_best(selection: PruneSelection, store: RunStore, scalars: Scalars) -> dict[str, str]:
    """Return why the best runs of each directory stay: of all that ended, those that are not meant too."""
    groups: dict[str, list[Run]] = defaultdict(list)
    for run in store.list_runs(RunQuery("ended")):
        if run.state not in _CUT_SHORT:
            groups[run.spec.cwd].append(run)
    best: dict[str, str] = {}
    for runs in groups.values():
        counts = Counter(tag for run in runs for tag in run.progress.get("metrics") or {} if best_direction(tag))
        tag = selection.metric or min(counts, key=lambda one: (-counts[one], rank_headline(one)), default=None)
        if tag is None:  # nothing says which are the best
            best |= {run.run_id: "no metric says whether it is among the best" for run in runs}
            continue
        goal = choose_goal(tag)
        values = {run.run_id: _measure_run(run, store, scalars, tag, goal) for run in runs}
        known = {run_id: value for run_id, value in values.items() if value is not None}
        order = sorted(known, key=lambda run_id: known[run_id], reverse=goal == "max")
        best |= {run_id: f"{number + 1}. by {tag}" for number, run_id in enumerate(order[: selection.keep_best])}
    return best


def _measure_run(run: Run, store: RunStore, scalars: Scalars, tag: str, goal: str) -> float | None:
    value, noted = measure(run, store, scalars, tag, goal).value, (run.progress.get("metrics") or {}).get(tag)
    return value if value is not None else noted if isinstance(noted, int | float) else None


def _find_obstacle(run: Run, store: RunStore, *, is_named: bool, going: set[str]) -> str:
    """Return why a run stays; empty where it may go."""
    record = store.record_of(run)
    if run.spec.mirror:
        return f"its record lies on {run.spec.host}: prune there"
    if not run.ended or run.may_go_on or is_locked(record.lock):
        return "its supervisor has not ended"
    if run.spec.sweep and run.spec.sweep not in going:
        with contextlib.suppress(SweepNotFound, RunUnreadable):
            if not store.sweeps.observe(run.spec.sweep).ended:
                return f"{run.spec.sweep} has not ended"
    verdicts = [note["verdict"] for note in read_notes(record.path / NOTES) if "verdict" in note]
    if verdicts[-1:] == ["keep"] and not is_named:
        return "noted as keep"
    return ""


def _add_paths(plan: PrunePlan, store: RunStore) -> None:
    """Add the directories of records, and the copies of code that no other run or sweep has."""
    going = {run.run_id for run in plan.runs}
    paths = [store.record_of(run).path for run in plan.runs] + [store.home.sweeps / one.sweep_id for one in plan.sweeps]
    copies = store.home.path / "code"
    used = {
        copies / Path(run.spec.cwd).relative_to(copies).parts[0]
        for run in plan.runs
        if copies in Path(run.spec.cwd).parents
    }
    staying = {
        copies / Path(cwd).relative_to(copies).parts[0]
        for run_id, cwd in store.ask(lambda index: index.select(RunQuery(cut_off=None), ("run_id", "cwd")))
        if run_id not in going and copies in Path(cwd).parents
    }
    paths += used - staying
    for path in paths:
        if found := find_checkpoints(path):  # a training wrote into its record or its copy
            plan.kept[path.name] = f"{found[0].path} is a checkpoint: move it, or remove it yourself"
        else:
            plan.paths[path] = sum(status.st_size for status in _iter_files(path))
    plan.runs = [run for run in plan.runs if store.record_of(run).path in plan.paths]


def _iter_files(path: Path) -> Iterator[os.stat_result]:
    for directory, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                status = os.lstat(os.path.join(directory, name))  # noqa: PTH118 - plain strings
                if stat.S_ISREG(status.st_mode):
                    yield status


def prune(plan: PrunePlan, store: RunStore) -> list[str]:
    """Remove the things of a plan, and return what could not be removed. A run that lives again meanwhile stays."""
    failures = []
    for run in plan.runs:
        if is_locked(RunDir(store.record_of(run).path).lock):
            failures.append(f"{run.run_id} lives")
            plan.paths.pop(store.record_of(run).path, None)
        elif run.spec.session and run.spec.backend == "tmux":
            with contextlib.suppress(OSError):
                tmux_client.close_session(run.spec.session, socket=run.spec.tmux_socket)
    for path in [*plan.paths, *plan.checkpoints]:
        try:
            _remove(path)
        except OSError as error:
            failures.append(f"{path}: {error.strerror}")
    for root in {code["from"] for run in plan.runs if "of" in (code := run.spec.code or {})}:
        with contextlib.suppress(OSError, subprocess.SubprocessError):  # git forgets the worktrees that are gone
            read_git(Path(root), os.environ, "worktree", "prune")
    for place in (store.home.runs, store.home.sweeps, store.home.path / "code"):
        for left in place.glob(f"{_REMOVED}*"):  # by a process that died meanwhile
            shutil.rmtree(left, ignore_errors=True)
    return failures


def _remove(path: Path) -> None:
    """Remove a file or directory; one of which a part is left has another name. Links are removed, never followed."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    away = path.with_name(f"{_REMOVED}{path.name}")
    shutil.rmtree(away, ignore_errors=True)
    path.rename(away)
    shutil.rmtree(away)
