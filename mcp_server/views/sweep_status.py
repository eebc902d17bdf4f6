"""Response model for a sweep's status: counts, the best cell, what failed, what is live. 600 tokens for 200 cells."""

import contextlib
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mcp_server.answer import Answer
from mcp_server.errors import RunwardError
from mcp_server.record.attempt_params import count_ends
from mcp_server.record.state import Run, RunState
from mcp_server.record.sweeps.sweep_ranking import Best, find_best, find_changed
from mcp_server.record.sweeps.sweep_state import COMPLETE, LIVE, WAITING, CellState, Sweep
from mcp_server.store.freshness import refresh
from mcp_server.store.run_store import RunStore
from mcp_server.store.sweep_store import find_obstacle
from mcp_server.text.formatting import counted, rough_duration, round_known, shorten_facts, shorten_line, significant
from mcp_server.views.brevity import estimate_answer
from mcp_server.views.log_excerpt import FAILED_BYTES, FAILED_LINES, read_tail, share_lines
from mcp_server.views.run_status import restart_advice
from mcp_server.views.sweep_eta import estimate_rest_s

SWEEP_TOKENS = 600
_FRAME_TOKENS = 30  # of the reason and the times around it, and of the names of the tails
_MOST_FAILED, _MOST_LIVE, _MOST_EVENTS, _MOST_SHARED = 3, 4, 4, 1
_FEW_LIVE = 2  # of an open sweep, whose verdicts say more
_LINE_CHARS, _ADVICE_CHARS, _EVENT_CHARS, _REASON_CHARS = 110, 160, 140, 320
_BEST_CHARS = 400  # of a phase's end: the best, the next, and the test between them; of a verdict with its why
# Of a sweep's events, those that its counts do not show. A refused launch is the reason, as long as it lasts.
_SHOWN = frozenset(
    {"stalled", "error_seen", "retrying", "gpu_deviation", "first_step_timeout", "metric_missing", "phase_done"}
    | {"verdict", "budget_spent"}
)


class BestCell(Answer):
    """The best cell of the setting with the best ``mean`` over ``n`` results. ``value`` and ``step`` are the cell's.

    ``ran``: settings that a retry changed, which its name may not say. ``runner_up``: the next setting, where it is
    equal or inside the deviation, or one that is better with fewer seeds. ``code``: where both ran different code.
    """

    cell: str
    run_id: str | None = None
    params: dict[str, Any] | None = None
    ran: dict[str, str] | None = None
    value: float
    step: int | None = None
    mean: float | None = None
    deviation: float | None = None
    n: int | None = None
    runner_up: str | None = None
    code: str | None = None


class FailedCell(Answer):
    """A cell that is not started again, why, and what to do. ``note``: why there is no failure to show.

    ``earlier``: how often its attempts before had ended so.

    ``tail``: the last lines of its output, once the sweep has ended, as far as they fit.
    """

    cell: str
    run_id: str | None = None
    kind: str | None = None
    earlier: str | None = None
    line: str | None = None
    advice: str | None = None
    note: str | None = None
    tail: list[str] | None = None


class KeptTrial(Answer):
    """The trial of an open sweep that others have to beat: mean and deviation of its ``n`` runs.

    ``params``: it ran with these beside its code.
    """

    trial: str
    commit: str | None = None
    params: dict[str, Any] | None = None
    mean: float | None = None
    sd: float | None = None
    n: int


class TrialsStatus(Answer):
    """The trials of an open sweep: ``counts`` by verdict, the noise of single runs, seconds in which no run lived."""

    counts: dict[str, int]
    kept: KeptTrial
    noise_sd: float | None = None
    note: str | None = None
    no_run_lived_s: float | None = None


class SweepStatus(Answer):
    """The state of a sweep. ``cells`` counts them by state. ``failed``: the newest; ``live``: cell, run and step.

    ``failed_more``: how many failed before those, by kind.
    """

    sweep_id: str
    state: RunState
    reason: str | None = None
    phase: str | None = None
    cells: dict[str, int]
    metric: str | None = None
    best: BestCell | None = None
    trials: TrialsStatus | None = None
    failed: list[FailedCell] | None = None
    failed_more: str | None = None
    live: list[str] | None = None
    eta_s: float | None = None
    events: list[str] | None = None
    warnings: list[str] | None = None
    hint: str | None = None


def describe_sweep(sweep: Sweep, store: RunStore, *, since: int = 0) -> SweepStatus:
    """Return the status of a sweep, with what happened after event ``since``. Reads its live runs: use a thread."""
    status = summarise_sweep(sweep, observe_live_cells(sweep, store), now_s=time.time(), since=since)
    if (obstacle := find_obstacle(sweep, store.sweeps.files_of(sweep))) is not None:
        status = status.model_copy(update={"reason": f"{obstacle.cause} {obstacle.consequence}"})
    return _add_tails(status, store) if sweep.ended and status.failed else status


def _add_tails(status: SweepStatus, store: RunStore) -> SweepStatus:
    failed = status.failed or []
    tails = [_read_cell_tail(row.run_id, store) for row in failed]
    shared = share_lines(tails, SWEEP_TOKENS - _FRAME_TOKENS - estimate_answer(status))
    rows = [row.model_copy(update={"tail": lines or None}) for row, lines in zip(failed, shared, strict=True)]
    return status.model_copy(update={"failed": rows})


def _read_cell_tail(run_id: str | None, store: RunStore) -> list[str]:
    with contextlib.suppress(RunwardError, OSError):  # its directory was removed, or its host is away
        if run_id is not None:
            return read_tail(store, store.observe(run_id), FAILED_LINES, FAILED_BYTES)
    return []


def summarise_sweep(sweep: Sweep, live: Mapping[str, Run], *, now_s: float, since: int = 0) -> SweepStatus:
    """Return the status of a sweep, whose live runs are ``live`` by cell. Pure."""
    is_open = sweep.spec.open is not None  # its verdicts say what is best, and what failed
    is_measuring = not sweep.ended and sweep.phase is None and sweep.unmeasured  # the last values, one by one
    best, failed = None if is_measuring else find_best(sweep), () if is_open else sweep.failed
    earlier = failed[:-_MOST_FAILED]
    is_advised = any(cell.end.get("failure") for cell in failed[-_MOST_FAILED:])
    return SweepStatus(
        sweep_id=sweep.sweep_id,
        state=sweep.state,
        reason=_explain(sweep),
        phase=sweep.phase if len(sweep.spec.phases) > 1 else None,
        cells=_count(sweep, live),
        metric=sweep.spec.ranked_by,
        best=None if best is None else describe_best(best),
        failed=[_describe_failed(cell) for cell in failed[-_MOST_FAILED:]] or None,
        failed_more=f"{len(earlier)} before these: {count_kinds(earlier)}" if earlier else None,
        live=_describe_live_cells(live, now_s)[: _FEW_LIVE if is_open else None] or None,
        eta_s=round_known(estimate_rest_s(sweep, live, now_s)),
        events=_describe_events(sweep, since) or None,
        warnings=list(sweep.shared_outputs.values())[:_MOST_SHARED] or None,
        hint=" ".join(_explain_failed(sweep, is_advised=is_advised)) or None,
    )


def _explain_failed(sweep: Sweep, *, is_advised: bool) -> Iterator[str]:
    if is_advised and any(map(_blames_plan, sweep.failed)):
        yield (
            'The plan is corrected by the whole call again: with resume="continue" where right values are added to it '
            '(these alone run), else with resume="wipe" (all cells run again; no run is deleted).'
        )
    elif is_advised:
        yield restart_advice(sweep.sweep_id, ended=sweep.ended)
    if stopped := sum(cell.end.get("stopped_by") == "policy" for cell in sweep.failed):
        yield f"The recovery policy stopped {counted(stopped, 'run')} of the failed cells."


def _blames_plan(cell: CellState) -> bool:
    """Return whether a program does not know an option that the plan gives the cell."""
    failure = cell.end.get("failure") or {}
    words = set(re.split(r"[^\w.-]+", str(failure.get("line")))) if failure.get("kind") == "config_error" else set()
    return any(f"--{name}" in words for name in cell.cell.params)


def line_of_sweep(sweep: Sweep, store: RunStore) -> str:
    """Return a sweep as one line of text: ``night-ab3d running: 6 cells, 2 finished, 4 running; best 25 by lr0.2``."""
    obstacle = find_obstacle(sweep, store.sweeps.files_of(sweep))
    counts = sweep.count()
    tally = ", ".join(f"{count} {state}" for state, count in counts.items() if state != "total")
    best = find_best(sweep)
    value = f"; best {best.text}" if best is not None else ""
    kept = [event["trial"] for event in sweep.events if event["kind"] == "verdict" and event.get("verdict") == "kept"]
    value += f"; {kept[-1]} was kept last" if kept else ""
    value += f"; {obstacle.cause}" if obstacle is not None else ""
    return f"{sweep.sweep_id} {sweep.state}: {counts['total']} cells, {tally}{value}"


def describe_sweep_for_confirmation(sweep: Sweep, store: RunStore) -> str:
    """Return what a stop stops: how many runs, as they are now, and how many cells that will not start."""
    seen = observe_live_cells(sweep, store)
    unseen = sum(cell.state == LIVE and cell.cell.name not in seen for cell in sweep.cells)
    live = unseen + sum(not run.ended or run.abandoned for run in seen.values())
    waiting = sum(cell.state == WAITING for cell in sweep.cells)
    unstarted = f", not started: {waiting} of {counted(len(sweep.cells), 'cell')}" if waiting else ""
    owner = sweep.spec.owner or "unknown"
    return f"{sweep.sweep_id} (sweep, owner {owner}), to stop: {counted(live, 'live run')}{unstarted}"


def describe_continuation(sweep: Sweep) -> str:
    """Return the call that an ended sweep goes on by, or that nothing is left."""
    call = f'launch_sweep(name="{sweep.sweep_id}", resume="continue")'
    if sweep.spec.open is not None:
        return f"{call} goes on: trials that were cut off run, and propose adds others."
    open_cells = sum(cell.state not in COMPLETE for cell in sweep.cells)
    if not open_cells:
        return "All its cells have results: nothing is left to continue."
    return f"{call} starts {counted(open_cells, 'cell')} without result again."


def observe_live_cells(sweep: Sweep, store: RunStore) -> dict[str, Run]:
    """Return the live runs of a sweep, by cell. Those that cannot be read now are left out."""
    live = {}
    for cell in sweep.cells:
        if cell.state == LIVE and cell.run_id is not None:
            with contextlib.suppress(RunwardError):
                live[cell.cell.name] = store.observe(cell.run_id)
    return dict(zip(live, refresh(store, list(live.values())), strict=True))


def _count(sweep: Sweep, live: Mapping[str, Run]) -> dict[str, int]:
    """Return how many cells are in each state, live ones by the states of their runs; in line counts as queued."""
    states = [
        "queued" if cell.state == WAITING else live[cell.cell.name].state if cell.cell.name in live else cell.state
        for cell in sweep.cells
    ]
    counts = Counter("running" if state in (LIVE, "starting") else state for state in states)
    return {"total": len(states), **dict(sorted(counts.items()))}


def describe_best(best: Best) -> BestCell:
    """Return the answer for the best cell. Where it is the only result of its setting, it has no mean."""
    cell, group = best.cell, best.group
    several = len(group.results) > 1
    changed = {name: f"{planned}→{cell.setting(name)}" for name, planned in find_changed(cell).items()}
    return BestCell(
        cell=cell.cell.name,
        run_id=cell.run_id,
        params=dict(cell.settings) or None,
        ran=changed or None,
        value=significant(cell.value or 0.0),
        step=cell.value_step,
        mean=significant(group.mean or 0.0) if several else None,
        deviation=significant(group.deviation, 2) if group.deviation is not None else None,
        n=len(group.results) if several else None,
        runner_up=(best.behind_text if best.behind is not None else best.runner_up_text) or None,
        code=best.doubt or None,
    )


def _describe_failed(cell: CellState) -> FailedCell:
    failure: Mapping[str, Any] = cell.end.get("failure") or {}
    line, advice = failure.get("line"), failure.get("correction") or failure.get("advice")
    return FailedCell(
        cell=cell.cell.name,
        run_id=cell.run_id,
        kind=failure.get("kind") or (cell.state if cell.state == "lost" else None),
        earlier=count_ends(cell.end.get("tries") or ()) or None,  # of this run: the table counts those of all
        line=shorten_line(line, _LINE_CHARS) if line else None,
        advice=shorten_facts(advice, _ADVICE_CHARS) if advice else None,
        note=None if failure else shorten_facts(str(cell.end.get("text") or ""), _ADVICE_CHARS) or None,
    )


def find_kind(cell: CellState) -> str:
    """Return the kind of a cell's failure, without any the state in which it ended."""
    return str((cell.end.get("failure") or {}).get("kind") or cell.state)


def count_kinds(failed: Sequence[CellState]) -> str:
    """Return the commonest causes of cells that failed, with their numbers: ``3 oom_gpu, 1 lost``."""
    kinds = Counter(map(find_kind, failed))
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(4))


def _describe_live_cells(live: Mapping[str, Run], now_s: float) -> list[str]:
    """Return a line about each of the first live cells, the first one in line with what it waits for."""
    shown = [(cell, run) for cell, run in live.items() if not run.ended][:_MOST_LIVE]
    lines = [_describe_live(cell, run, now_s) for cell, run in shown]
    for number, (_, run) in enumerate(shown):
        waits = (str(event.get("text", "")) for event in reversed(run.events) if event["kind"] == "queued")
        if run.state == "queued" and (reason := next(waits, "")):
            lines[number] += f": {shorten_facts(reason, _LINE_CHARS)}"
            break
    return lines


def _describe_live(cell: str, run: Run, now_s: float) -> str:
    progress = run.progress
    step = f" step {progress['step']}" if "step" in progress else ""
    total = f"/{progress['total_steps']}" if step and "total_steps" in progress else ""
    away = f" when last heard of: {run.unreachable['host']} cannot be reached" if run.unreachable else ""
    paused_s = run.paused_s(now_s)
    pause = "" if paused_s is None else f", no step for {rough_duration(paused_s)}"
    return f"{cell} {run.run_id} {run.state}{step}{total}{pause}{away}"


def _explain(sweep: Sweep) -> str | None:
    if sweep.state != "running" or not sweep.conducted:
        return sweep.reason
    return shorten_facts(sweep.refusal, _REASON_CHARS) if sweep.refusal is not None else None


def _describe_events(sweep: Sweep, since: int) -> list[str]:
    news = [event for event in sweep.round_events if event["seq"] > since and event["kind"] in _SHOWN]
    newest = sorted(news, key=lambda event: (event["kind"] != "retrying", event["seq"]))[-_MOST_EVENTS:]
    return [
        shorten_facts(
            str(e.get("text", e["kind"])), _BEST_CHARS if e["kind"] in ("phase_done", "verdict") else _EVENT_CHARS
        )
        for e in sorted(newest, key=lambda event: event["seq"])
    ]
