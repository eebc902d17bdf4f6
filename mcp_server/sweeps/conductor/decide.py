"""The next step of a sweep: which cells to launch, and what the end of a run means for its cell. Pure."""

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mcp_server.diagnosis.failure.kinds import CRASH_SIGNALS
from mcp_server.record.attempt_params import list_earlier_ends
from mcp_server.record.events import EventKind
from mcp_server.record.spec import LaunchRequest
from mcp_server.record.state import Run
from mcp_server.record.sweeps.sweep_spec import Cell, SweepSpec
from mcp_server.record.sweeps.sweep_state import (
    COMPLETE,
    LIVE,
    SKIPPED,
    STOPPED,
    WAITED,
    WAITING,
    CellState,
    Sweep,
    describe_bad_ends,
)
from mcp_server.system.own_process import name_shell_signal
from mcp_server.views.progress_text import first_metrics

# Runs that wait in line for GPUs beside those that have them: the next one starts at once when a GPU is given back,
# and another agent's launch waits for no more than these.
AHEAD = 2
# Launches on this machine that are under way at once, of cells that wait in no line: one takes about as long as a
# supervisor starts, and short cells would leave most slots empty meanwhile.
TOGETHER = 8
_LAUNCHED_S, _NEWEST = 4.0, 9  # a launch with a worktree, on a machine with much load; ends that say how long runs take
# A scheduler has a line of its own: it gets all cells at once, as far as sites allow so many jobs.
HANDED_IN = 500
MOST_TOGETHER = 1000  # in one array: Slurm's MaxArraySize is 1001 by default
_LOCAL = LaunchRequest.backend
MOST_INTERRUPTIONS = 3  # of one cell: a run that is lost again and again is not started for ever


@dataclass(frozen=True)
class CellEnd:
    """The meaning of a run's end: the state to note, and whether the cell is started again."""

    state: str
    again: bool
    why: str = ""


def judge_end(
    run: Run, cell: CellState, cell_failures: int, *, has_leftovers: bool, stopping: bool, is_reaped: bool = False
) -> CellEnd:
    """Return what the end of ``run``, the newest of ``cell``, means.

    - A run that finished, or ran for its time limit, is a result. So is one that the sweep stopped, as others were
      better, or that a person or an agent stopped.
    - A run that failed, or that its policy stopped, counts as a failure; below ``cell_failures`` the cell starts again.
    - A job that Ray ended while it waited for resources is handed in again, as often as that happens.
    - A run that ended by nobody's wish (lost, killed from outside, also together with its supervisor, preempted,
      dropped by Ray before it began) is started again, at most three times, and never beside processes of it that
      could not be stopped (``has_leftovers``). ``is_reaped``: a conductor that died then had stopped those.
    """
    if run.state in ("finished", "timed_out"):
        return CellEnd(run.state, again=False)
    by_nobody = run.stopped_by in (None, "scheduler")
    kind = (run.failure or {}).get("kind")
    is_dropped = run.state == "failed" and run.stopped_by == "scheduler" and kind == "ray_error"
    if is_dropped and (run.failure or {}).get("retryable") and not stopping:
        return CellEnd(WAITED, again=True)
    # Whatever ends a machine's processes ends a supervisor a moment after its command: nobody judged that end.
    ended_by = run.signal or name_shell_signal(run.exit_code)
    is_unjudged = run.abandoned and kind is None and ended_by is not None and ended_by not in CRASH_SIGNALS
    is_killed = is_dropped or (run.state == "failed" and by_nobody and (kind == "killed" or is_unjudged))
    if (run.state == "failed" and not is_killed) or run.stopped_by == "policy":
        again = cell.failures + 1 < cell_failures and not stopping
        return CellEnd("failed", again)
    is_stopped = run.state == "killed" and (stopping or not is_reaped)
    if is_stopped and run.stopped_by == "sweep" and not stopping:
        return CellEnd(STOPPED, again=False)
    if is_stopped and run.stopped_by in ("person", "agent", "sweep", "time_limit"):
        return CellEnd("killed", again=False)
    if run.state == "lost" and run.stopped_by in ("person", "agent") and not has_leftovers:
        return CellEnd("killed", again=False)  # its supervisor died of the stop, which is not complete yet
    if has_leftovers:
        return CellEnd("lost", again=False, why="Processes of it still live: it is not started beside them.")
    if cell.interruptions + 1 > MOST_INTERRUPTIONS:
        return CellEnd("lost", again=False, why=f"It was interrupted {cell.interruptions + 1} times.")
    return CellEnd("interrupted", again=not stopping)


def find_next(
    sweep: Sweep,
    live: Mapping[str, Run],
    launching: Collection[str] = (),
    in_doubt: Collection[str] = (),
    is_held: Callable[[Cell], bool] = lambda _: False,
) -> list[CellState]:
    """Return the cells to launch now, in order. ``live`` holds the runs of live cells, by cell.

    Only cells of the first phase that is not done. At most ``max_parallel`` live at once; without it, as many as get
    GPUs, and a few that wait in line for them on each host. A scheduler gets all of them.

    ``launching``, ``in_doubt``: the names of other cells whose launch is under way, or may have started a run.
    ``is_held``: cells whose host takes none now.
    """
    if sweep.stop is not None or has_too_many_failures(sweep):
        return []
    phase = sweep.phase
    waiting = [cell for cell in sweep.cells if cell.state == WAITING and cell.cell.phase == phase]
    waiting = [each for each in waiting if each.cell.name not in launching and each.cell.name not in in_doubt]
    # What failed before stands behind, so that a ceiling of failures is not reached by the same cells again.
    waiting.sort(key=lambda each: each.failures > 0)
    if sweep.is_metric_missing:  # what depends on it waits for somebody's decision
        waiting = [each for each in waiting if each.is_planned]
    limit = sweep.spec.max_parallel
    if limit is None and any(cell.cell.launch.get("backend", _LOCAL) != _LOCAL for cell in waiting):
        limit = HANDED_IN
    waiting = [each for each in waiting if not is_held(each.cell)]
    if limit is not None:
        return waiting[: max(0, limit - count_live(sweep) - len(in_doubt) - len(launching))]
    in_line = {name for name, run in live.items() if run.state in ("queued", "starting")}.union(launching)
    lines = Counter(place_of(sweep.spec, each.cell) for each in sweep.cells if each.cell.name in in_line)
    due, ahead = [], count_ahead(sweep, sum(run.state == "running" for run in live.values()))
    for each in waiting:
        place = place_of(sweep.spec, each.cell)
        if lines[place] < ahead:
            lines[place] += 1
            due.append(each)
    return due


def find_started(sweep: Sweep) -> list[CellState]:
    """Return the cells that start where a sweep goes on, in order: all without a result, which failed ones are.

    Where it is under way, or cells were added to one that had finished, those start that have not run, and no others.
    """
    end: Mapping[str, Any] = next((e for e in reversed(sweep.events) if e["kind"] == "ended"), {})
    is_longer = end.get("state") == "finished" and end.get("total", len(sweep.cells)) < len(sweep.cells)
    states = {cell.state for cell in sweep.cells} - {*COMPLETE}
    if not sweep.is_paused or is_longer:
        states &= {WAITING, LIVE, SKIPPED}
    return sorted((cell for cell in sweep.cells if cell.state in states), key=lambda cell: cell.failures > 0)


def place_of(spec: SweepSpec, cell: Cell) -> str:
    """Return the host that a cell waits for: its own, or "" for this machine, or for whichever of the sweep's hosts."""
    return "" if spec.hosts else str(cell.launch.get("host") or "")


def count_ahead(sweep: Sweep, running: int = 0) -> int:
    """Return how many cells of one place may be launched, or wait in line, at once. Each of several hosts takes one.

    A trial of an open sweep needs a worktree first: as many wait in line as end while some are launched.
    """
    ends = [cell.end["elapsed_s"] for cell in sweep.cells if cell.end.get("elapsed_s")] if sweep.spec.open else []
    ending = math.ceil(running * _LAUNCHED_S / statistics.median(ends[-_NEWEST:])) if ends else 0
    return len(sweep.spec.hosts) or max(AHEAD, min(running, ending))


def count_together(sweep: Sweep, place: str) -> int:
    """Return how many launches may be under way at ``place`` at once: a far host is not asked for many."""
    is_here = not place and not sweep.spec.hosts
    return TOGETHER if is_here and (sweep.spec.max_parallel or sweep.spec.open) else count_ahead(sweep)


def find_array(sweep: Sweep, tried: Collection[str]) -> list[CellState]:
    """Return cells to hand in to Slurm as one array of jobs, empty where there are not two. ``tried``: cells by name.

    They ask for it by ``backend_options={"array": true}``, are of the first phase that is not done, and never ran:
    a cell that starts again is a job of its own. With ``max_parallel`` Slurm holds that limit for all live cells, so
    none lives yet. With ``max_failures`` the conductor must be able to start no further cell.
    """
    spec = sweep.spec
    is_full = spec.max_parallel is not None and count_live(sweep) > 0
    if sweep.stop is not None or spec.max_failures is not None or spec.hosts or is_full:
        return []
    cells = [state for state in sweep.cells if state.state == WAITING and state.is_planned and not state.runs]
    cells = [state for state in cells if state.cell.wants_array and state.cell.name not in tried]
    cells = [state for state in cells if state.cell.phase == sweep.phase]
    room = MOST_TOGETHER - count_live(sweep)
    return cells[:room] if len(cells) > 1 and room > 1 else []


def has_too_many_failures(sweep: Sweep) -> bool:
    """Return whether the ceiling of failed cells is reached."""
    return sweep.spec.max_failures is not None and len(sweep.failed) >= sweep.spec.max_failures


def count_live(sweep: Sweep) -> int:
    """Return how many cells have a live run."""
    return sum(cell.state == LIVE for cell in sweep.cells)


def find_end(sweep: Sweep) -> tuple[Literal["finished", "failed", "killed"], str] | None:
    """Return the state in which the sweep ends now, and the reason, or None while anything is left to do."""
    if count_live(sweep):
        return None
    done = sum(cell.done for cell in sweep.cells)
    stopped = sum(cell.state == STOPPED for cell in sweep.cells)
    more = [describe_bad_ends(sweep), f"halving stopped {stopped or 'none'}" if sweep.spec.halving else ""]
    tally = ", ".join(filter(None, (f"{done} of {len(sweep.cells)} cells are done, {len(sweep.failed)} failed", *more)))
    tally = f"{tally}."
    if sweep.stop is not None and (done < len(sweep.cells) or any(cell.state == "killed" for cell in sweep.cells)):
        return "killed", f"Stopped by {sweep.stop.get('by', 'somebody')}: {tally}"
    if has_too_many_failures(sweep):  # also where every cell had been started before: the ceiling says what failed is
        return "failed", f"Its ceiling of {sweep.spec.max_failures} failed cells is reached: {tally}"
    if done == len(sweep.cells) == len(sweep.failed):
        return "failed", f"No cell has a result: {tally}"
    return ("finished", tally) if done == len(sweep.cells) else None


def find_finished_phases(sweep: Sweep) -> Sequence[str]:
    """Return the phases whose cells are all done and that no event has reported, but for the last."""
    if not (phases := sweep.spec.phases[:-1]):
        return []
    told = [event for event in sweep.events if event["kind"] == "phase_done"]
    sizes = Counter(cell.cell.phase for cell in sweep.cells)  # a phase that got more cells is reported again
    reported = {event.get("phase") for event in told if event.get("total") in (None, sizes[str(event.get("phase"))])}
    return [p for p in phases if p not in reported and all(c.done for c in sweep.cells if c.cell.phase == p)]


def describe_end(
    cell: CellState, run: Run, end: CellEnd, stop_reason: str = ""
) -> tuple[EventKind, str, dict[str, Any]]:
    """Return kind, text and facts of the event about the end of ``run``. ``stop_reason``: why the sweep stopped it."""
    failure = run.failure  # of a finished run too, whose metrics diverged
    exit_text = f"exit code {run.exit_code}" if run.exit_code else ""
    why = stop_reason or (failure or {}).get("kind") or run.signal or exit_text
    text = f"{cell.cell.name}: {end.state}{f' ({why})' if why else ''}.{f' {end.why}' if end.why else ''}"
    if end.again:
        text += " It is started again."
    failed = not end.again and end.state in ("failed", "lost")
    metrics = run.progress.get("metrics") or {}
    facts = {
        "cell": cell.cell.name,
        "run_id": run.run_id,
        "state": end.state,
        "then": "again" if end.again else None,
        "attempt": run.attempt,
        "tries": [why for _, why in list_earlier_ends(run.events)] or None,
        "why": stop_reason or None,
        "exit_code": run.exit_code,
        "signal": run.signal,
        "stopped_by": run.stopped_by,
        "failure": failure,
        "step": run.progress.get("step"),
        "params": _effective_params(cell, run),
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "elapsed_s": run.elapsed_s(time.time()),
        "attempts_s": [round(each, 3) for each in run.attempts_s(time.time())] if run.attempt > 1 else None,
        "step_s": run.progress.get("step_s"),
        "fps": _find_fps(metrics),
        "metrics": dict(first_metrics(metrics)) or None,
        "gpus": list(run.gpu_names) or None,
        "peak_mib": _peak_mib(run),
    }
    return "cell_failed" if failed else "cell_ended", text, facts


def _effective_params(cell: CellState, run: Run) -> dict[str, Any] | None:
    """Return the cell's own parameters as the newest attempt had them, and those that retries changed, if any."""
    effective = run.attempt_params.params
    params = {name: effective.get(name, value) for name, value in cell.params.items()}
    params |= {name: effective[name] for name in run.attempt_params.changed if name in effective}
    return params if params != dict(cell.params) else None


def _find_fps(metrics: Mapping[str, Any]) -> float | None:
    figures = (value for name, value in metrics.items() if name.lower() == "fps" or name.lower().endswith("/fps"))
    return next((value for value in figures if isinstance(value, int | float)), None)


def _peak_mib(run: Run) -> float | None:
    usages = run.progress.get("gpus")
    peaks = [u.get("peak_mib") for u in (usages or {}).values() if isinstance(u, Mapping)] if usages else []
    return max((peak for peak in peaks if isinstance(peak, int | float)), default=None)
