"""The state of a sweep, folded from its events: which cells wait, run and have ended. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Union

from mcp_server.command.shell import parse
from mcp_server.record.events import RecordEvent
from mcp_server.record.state import Liveness, Run, RunState, posix
from mcp_server.record.sweeps.sweep_spec import Cell, SweepSpec
from mcp_server.text.formatting import join_some

# Of a cell: waiting (its run is not launched yet), live (its run lives, as far as the conductor has noted), skipped
# (the sweep ended first), stopped (by the sweep, as others were better), else the state in which its last run ended.
WAITING, LIVE, SKIPPED, STOPPED = "waiting", "live", "skipped", "stopped"
INTERRUPTED = ("lost", "interrupted")
WAITED = "waited"  # of a run that never began: neither a failure nor an interruption of its cell
COMPLETE = ("finished", "timed_out", STOPPED)  # not started again when an ended sweep is continued
_SINCE = re.compile(r"since step \d+")  # in the account of a divergence
CUT_SHORT = (STOPPED, "killed", "timed_out")  # ends with a value that is not that of a whole training


@dataclass(frozen=True)
class CellState:
    """One cell: its state, its runs so far, and what came of the last one.

    ``failures`` counts its failed runs, ``interruptions`` those that ended by nobody's wish. ``value`` is the sweep's
    metric by the sweep's ranking, ``figures`` the others: ``{"best": (value, step), …}``. ``bad_end``: "nan" or "inf"
    where the metric ended so, which is no value, or "diverged" where the training did, whatever the metric says.
    ``params``: those of the newest attempt. ``chosen``: of a cell whose
    parameters depend on others, those that were found for it; ``origin`` says where, ``inherited`` which arguments of
    its launch are the origin's. ``rungs``: the steps of the
    halving that its newest run has reached, with the values there, and ``rung_order`` the numbers of the events that
    say so. ``tries``: how each attempt of any of its runs ended that a recovery policy or the sweep tried again; a run
    that somebody continues is no retry.
    """

    cell: Cell
    number: int
    state: str = WAITING
    runs: tuple[str, ...] = ()
    failures: int = 0
    interruptions: int = 0
    params: Mapping[str, Any] = field(default_factory=dict)
    end: Mapping[str, Any] = field(default_factory=dict)
    value: float | None = None
    value_step: int | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)
    bad_end: str | None = None
    chosen: Mapping[str, Any] | None = None
    origin: str | None = None
    inherited: Mapping[str, Any] = field(default_factory=dict)
    curves: str | None = None
    rungs: Mapping[int, Any] = field(default_factory=dict)
    rung_order: Mapping[int, int] = field(default_factory=dict)
    tries: tuple[str, ...] = ()

    @property
    def run_id(self) -> str | None:
        """The newest run."""
        return self.runs[-1] if self.runs else None

    @property
    def has_diverged(self) -> bool:
        """Whether its run came to an end by itself, or at its time limit, after its training had diverged."""
        return self.state in ("finished", "timed_out") and (self.end.get("failure") or {}).get("kind") == "divergence"

    @property
    def is_planned(self) -> bool:
        """Whether its parameters are known."""
        return self.chosen is not None or (self.cell.promote is None and self.cell.trial is None)

    @property
    def done(self) -> bool:
        """Whether nothing more is started for it."""
        return self.state not in (WAITING, LIVE)

    @property
    def overrides(self) -> Mapping[str, Any]:
        """The arguments of its launch that are settings, without those that are not set."""
        known = {**self.inherited, **self.cell.overrides}
        return {name: value for name, value in known.items() if value is not None}

    @property
    def settings(self) -> Mapping[str, Any]:
        """Its difference from other cells, as it ran: parameters, and arguments of its launch."""
        return {**self.params, **{name: self.setting(name) for name in self.overrides}}

    @cached_property
    def _options(self) -> Mapping[str, str]:
        """The options that its command itself holds, without those that a parameter fills in."""
        options, _ = parse(self.cell.launch.get("command") or []).split_options()
        return {name: text for name, text in options.items() if "{" not in text}

    def planned(self, name: str) -> Any:
        """Return the value of a setting that the cell was planned with, its own or that of its launch."""
        common = self.cell.launch.get("params")
        own = self.cell.params if self.chosen is None else self.chosen
        known = {**(common if isinstance(common, Mapping) else {}), **self.overrides, **own}
        return known.get(name)

    def setting(self, name: str) -> Any:
        """Return the value of a setting as the newest attempt had it, also one that the command itself holds."""
        value = self.params.get(name, self.planned(name))
        return self._options.get(name) if value is None else value


@dataclass(frozen=True)
class Sweep:
    """A sweep as its directory proves it. ``conducted``: its conductor lives."""

    spec: SweepSpec
    state: RunState
    cells: tuple[CellState, ...]
    events: tuple[RecordEvent, ...] = ()
    conducted: bool = False
    stop: Mapping[str, Any] | None = None
    reason: str | None = None
    # As those of a run that makes no steps and has no recovery policy.
    attempt: ClassVar[int] = 1
    stepped: ClassVar[bool] = False
    progress: ClassVar[Mapping[str, Any]] = {}
    stop_on: ClassVar[Sequence[str]] = ()

    @property
    def sweep_id(self) -> str:
        """The sweep's id, also the name of its directory."""
        return self.spec.sweep_id

    @property
    def ended(self) -> bool:
        """Whether nothing more is started."""
        return self.state in ("finished", "failed", "killed")

    @property
    def run_id(self) -> str:
        """The sweep's id, by the name that a run's has: waits and stops take both."""
        return self.sweep_id

    @property
    def news(self) -> tuple[RecordEvent, ...]:
        """The events that a wait for it may answer."""
        return tuple(self.round_events)

    @property
    def last_seq(self) -> int:
        """Number of the newest of these events."""
        return int(self.news[-1]["seq"]) if self.news else 0

    def elapsed_s(self, now_s: float) -> float | None:
        """Return the seconds from its start to its end, or to ``now_s`` (POSIX time). None: unknown."""
        ends = [event.get("at") for event in (*self.events[:1], *self.events[-1:])]
        if not ends or ends[0] is None or (self.ended and ends[1] is None):
            return None
        return max(0.0, (posix(ends[1] or "") if self.ended else now_s) - posix(ends[0]))

    @cached_property
    def round_events(self) -> Sequence[RecordEvent]:
        """The events since the sweep was last begun or continued: what an earlier round told is no news of this one."""
        ends = [number for number, event in enumerate(self.events[:-1]) if event["kind"] == "ended"]
        return self.events[ends[-1] + 1 :] if ends else self.events

    @cached_property
    def shared_outputs(self) -> Mapping[str, str]:
        """Where live cells wrote the same files, by directory, as the conductor saw it."""
        events = (event for event in self.events if event["kind"] == "outputs_shared")
        return {str(event.get("what")): str(event.get("text")) for event in events}

    @cached_property
    def phase(self) -> str | None:
        """The first phase that is not done, or None once all are."""
        is_open = {cell.cell.phase for cell in self.cells if not cell.done}
        return next((phase for phase in self.spec.phases if phase in is_open), None)

    @property
    def is_paused(self) -> bool:
        """Whether its last conductor has ended it, and none has begun since: cells may have been added after that."""
        kinds = (event["kind"] for event in reversed(self.events))
        return next((kind for kind in kinds if kind in ("conducting", "ended")), None) == "ended"

    @property
    def failed(self) -> tuple[CellState, ...]:
        """The cells that failed, in the order in which they did."""
        failed = [cell for cell in self.cells if cell.state in ("failed", "lost")]
        return tuple(sorted(failed, key=lambda cell: cell.end.get("seq", 0)))

    @property
    def unmeasured(self) -> list[CellState]:
        """The cells whose run has ended, and whose value is not noted yet."""
        measured = {event.get("run_id") for event in self.events if event["kind"] == "cell_measured"}
        return [cell for cell in self.cells if cell.end and cell.runs and cell.run_id not in measured]

    @property
    def refusal(self) -> str | None:
        """Why no cell can be launched now, as long as that lasts, or why one is in doubt."""
        for event in reversed(self.events):
            if event["kind"] in ("cell_started", "ended"):
                break
            if event["kind"] == "launch_refused":
                return str(event.get("text", "")) or None
        in_doubt: dict[str, str] = {}
        for event in self.events if not self.ended else ():
            if event["kind"] == "launch_refused" and "run_id" in event:
                in_doubt[event.get("what", "")] = event.get("text", "")
            elif event["kind"] == "cell_started":
                in_doubt.pop(event.get("cell", ""), None)
        if in_doubt or not self.is_metric_missing:
            return next(iter(in_doubt.values()), None)
        due = [cell for cell in self.cells if cell.state == WAITING and cell.cell.phase == self.phase]
        told = [event for event in self.round_events if event["kind"] == "metric_missing"]
        return str(told[-1].get("text")) if due and not any(cell.is_planned for cell in due) else None

    @cached_property
    def is_metric_missing(self) -> bool:
        """Whether a whole training had no value of the metric, and no cell has one."""
        told = any(event["kind"] == "metric_missing" for event in self.round_events)
        return told and not any(cell.value is not None for cell in self.cells)

    @property
    def session(self) -> str:
        """The tmux session of its newest conductor."""
        named = [event["session"] for event in self.events if event["kind"] == "conducting" and "session" in event]
        return named[-1] if named else self.sweep_id

    def count(self) -> dict[str, int]:
        """Return how many cells are in each state, ``queued`` for those that wait."""
        counts = Counter(
            "queued" if c.state == WAITING else "running" if c.state == LIVE else c.state for c in self.cells
        )
        return {"total": len(self.cells), **dict(sorted(counts.items()))}


Watched = Union[Run, Sweep]  # whatever is waited for, stopped and listed by an id


def fold_sweep(
    spec: SweepSpec,
    events: Sequence[RecordEvent],
    liveness: Liveness = Liveness.UNKNOWN,
    stop: Mapping[str, Any] | None = None,
    former: Sweep | None = None,
) -> Sweep:
    """Return the sweep that its spec and events prove.

    ``former``: the same sweep with fewer events. Where these are the first of ``events``, only the others are read.
    """
    state: RunState
    reason: str | None
    if former is None or not begins_with(events, former.events):
        cells, new = [_begin(cell, number) for number, cell in enumerate(spec.cells, 1)], events
        state, reason = "starting", None
    else:
        cells, state, new = list(former.cells), former.state, events[len(former.events) :]
        reason = former.reason if former.ended else None  # else it was about its conductor
        if len(former.cells) > len(spec.cells):  # which events have added
            spec = replace(spec, cells=former.spec.cells)
    spec = _with_added(spec, new)
    positions = spec.positions
    for event in new:
        kind = event["kind"]
        if kind == "cell_added" and positions.get(event.get("cell", "")) == len(cells):
            cells.append(_begin(spec.cells[len(cells)], len(cells) + 1))
        elif kind == "conducting":
            state, reason = "running", None
        elif kind == "ended":
            known = event.get("total", len(cells))  # of cells that are added later nobody has said that they are over
            state, reason = (_end_state(event), event.get("text")) if known >= len(cells) else ("running", None)
            cells = [replace(c, state=SKIPPED) if c.state == WAITING and c.number <= known else c for c in cells]
        elif (position := positions.get(event.get("cell", ""))) is not None:
            cells[position] = _apply(cells[position], event)
    if state == "starting" and liveness is not Liveness.ALIVE:
        reason = "Its conductor has not begun."
    conducted = liveness is Liveness.ALIVE
    if state == "running" and not conducted:
        reason = "Its conductor is gone: the next call about this sweep starts it again. Its live runs go on."
    return Sweep(spec, state, tuple(cells), tuple(events), conducted, stop, reason)


def begins_with(events: Sequence[RecordEvent], first: Sequence[RecordEvent]) -> bool:
    """Return whether ``first`` are the first of ``events``, the same objects as a reader of a growing file keeps."""
    return len(events) >= len(first) and (not first or events[len(first) - 1] is first[-1])


def _with_added(spec: SweepSpec, events: Sequence[RecordEvent]) -> SweepSpec:
    """Return a spec with the runs of trials that events add: with the baseline's launch, but for the code they run."""
    found: dict[str, Cell] = {}
    for event in events if spec.open is not None else ():
        first = spec.cells[0]
        name = event.get("cell", "")
        if event["kind"] == "cell_added" and name not in spec.positions:
            seed = event.get("seed", int(name.rpartition(".")[2] or 0))
            params = {"trial": event.get("trial", ""), **(event.get("params") or {}), "seed": seed}
            found.setdefault(name, Cell(name, first.phase, params, first.launch))
    return replace(spec, cells=(*spec.cells, *found.values())) if found else spec


def _begin(cell: Cell, number: int) -> CellState:
    return CellState(cell, number, params=dict(cell.params))


def _end_state(event: RecordEvent) -> RunState:
    state = event.get("state")
    return state if state in ("finished", "failed", "killed") else "finished"  # type: ignore[return-value]


def _apply(cell: CellState, event: RecordEvent) -> CellState:
    """Return the cell after an event about it."""
    kind = event["kind"]
    if kind == "cell_started":
        run_id = event.get("run_id", "")
        if run_id not in cell.runs:  # the value was a former run's
            cell = replace(cell, runs=(*cell.runs, run_id), value=None, value_step=None, figures={}, bad_end=None)
            cell = replace(cell, curves=None, rungs={}, rung_order={})
        return replace(cell, state=LIVE, end={}, params=event.get("params") or cell.params)
    if kind == "cell_planned":
        chosen = event.get("params") or {}
        inherited = event.get("overrides") or {}
        return replace(cell, params=chosen, chosen=chosen, origin=event.get("what"), inherited=inherited)
    if kind == "cell_resumed":
        return replace(cell, state=WAITING, end={})
    if kind == "cell_measured" and event.get("run_id", cell.run_id) == cell.run_id:
        return replace(
            cell,
            value=event.get("value"),
            value_step=event.get("value_step"),
            figures=event.get("figures") or {},
            bad_end=event.get("bad_end") or ("diverged" if cell.has_diverged else None),
            curves=event.get("curves"),
        )
    if kind == "rung_reached" and event.get("run_id") == cell.run_id and isinstance(event.get("rung"), int):
        order = {**cell.rung_order, event["rung"]: event["seq"]}
        return replace(cell, rungs={**cell.rungs, event["rung"]: event.get("value")}, rung_order=order)
    return _end(cell, event) if kind in ("cell_ended", "cell_failed") else cell


def _end(cell: CellState, event: RecordEvent) -> CellState:
    """Return the cell after the end of its run."""
    state = str(event.get("state"))
    tries = [*cell.tries, *(event.get("tries") or ())]
    if event.get("then") == "again" and state != WAITED:
        tries.append(str((event.get("failure") or {}).get("kind") or state))
    cell = replace(cell, end=event, params=event.get("params") or cell.params, tries=tuple(tries))
    if state == "failed":
        cell = replace(cell, failures=cell.failures + 1)
    if state in INTERRUPTED:
        cell = replace(cell, interruptions=cell.interruptions + 1)
    if event.get("then") == "again":
        return replace(cell, state=WAITING)
    return replace(cell, state="lost" if state == "interrupted" else state)


_MOST_NAMED = 2  # cells


def describe_cut_short(sweep: Sweep) -> str:
    """Return which cells have no rank because they were killed, or ended at their time limit where others finished."""
    finished = {cell.cell.phase for cell in sweep.cells if cell.state == "finished"}
    found: dict[str, list[str]] = {}
    for cell in sweep.cells:
        why = {"timed_out": "stopped by the time limit", "killed": "killed"}.get(cell.state)
        if why and (cell.state == "killed" or cell.cell.phase in finished):
            at = cell.end.get("step")
            found.setdefault(why, []).append(f"{cell.cell.name} at step {at}" if at is not None else cell.cell.name)
    return "; ".join(
        f"{len(cells)} {why}, without a rank: {join_some(cells, _MOST_NAMED)}" for why, cells in found.items()
    )


def describe_bad_ends(sweep: Sweep) -> str:
    """Return which finished cells have no result, since they diverged or the metric ended as NaN or infinite."""
    found: dict[str, list[str]] = {}
    for cell in sweep.cells:
        if cell.bad_end and cell.state == "finished":
            end = cell.bad_end if cell.bad_end == "diverged" else f"ended with {sweep.spec.metric} {cell.bad_end}"
            context = (cell.end.get("failure") or {}).get("context") or ()
            since = _SINCE.search(" ".join(map(str, context)))
            found.setdefault(end, []).append(f"{cell.cell.name} {since[0]}" if since else cell.cell.name)
    return "; ".join(f"{len(bad)} {end}: {join_some(bad, _MOST_NAMED)}" for end, bad in found.items())
