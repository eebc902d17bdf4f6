"""The conductor of a sweep: launches cells, notes their ends, and ends the sweep.

It alone writes the events of the sweep. Whatever it was doing when it died, the next one does again without harm: the
events say which runs were launched, and a launch that no event reports is repeated with the same key, which returns the
run that it started.

A launch goes on beside it, so that launches overlap, and a host which falls silent in the midst of one holds up no
other.
"""

import contextlib
import os
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup

from mcp_server.backends.base import backend_of
from mcp_server.errors import RunNotFound, RunUnreadable, RunwardError
from mcp_server.record.events import EventKind, EventLog, RecordEvent, read_stop
from mcp_server.record.run_directory import now
from mcp_server.record.state import Run
from mcp_server.record.sweeps.sweep_ranking import find_best
from mcp_server.record.sweeps.sweep_spec import SweepDir
from mcp_server.record.sweeps.sweep_state import LIVE, STOPPED, CellState, Sweep, fold_sweep
from mcp_server.runs.stop.stop_run import stop_run
from mcp_server.runs.wait.cursors import Cursor
from mcp_server.runs.wait.waiting import find_decisions
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.store.file_watch import FileWatch, Subscription
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.sweeps.conductor.cell_launcher import CellLauncher
from mcp_server.sweeps.conductor.cell_values import CellValues, HalvingWatch
from mcp_server.sweeps.conductor.decide import (
    describe_end,
    find_end,
    find_finished_phases,
    find_next,
    find_started,
    judge_end,
)
from mcp_server.sweeps.conductor.sweep_screen import Screen
from mcp_server.sweeps.conductor.trial_watch import TrialWatch
from mcp_server.sweeps.plan.cell_code import number_code
from mcp_server.sweeps.tables.log import SweepLog
from mcp_server.sweeps.trials.trials import list_resumed, read_trials
from mcp_server.threads import run_in_thread

_TICK_S = 5.0  # between two looks where nothing is announced: output, steps
_LAUNCHED_WITHIN_S = 2.0  # where the loop has to know first what became of a launch: longer ones go on beside it
_SHOWN_EVERY_S = 1.0  # the runs of a sweep change many files in a second
_SHOWN_SHARE = 0.02  # of a processor at most: to show 1,000 cells takes 40 ms
_SHARED_SHARE = 100  # times as long as a look for shared files took passes until the next
_SETTLE_S = 0.05  # a supervisor releases its lock a moment after its last word
# The reason of a stop of processes whose supervisor is dead: a conductor that finds it goes on where another one died.
REAPED = "its supervisor died, and the cell is started again"
_STRAGGLERS_S = 20.0  # whoever asked for the stop stops the runs itself within that time


@dataclass
class Conductor:
    """One sweep under way."""

    directory: SweepDir
    store: RunStore
    environ: Mapping[str, str]
    events: EventLog
    session: str
    file_watch: FileWatch = field(default_factory=FileWatch)
    live: dict[str, Run] = field(default_factory=dict)  # by cell, as last observed
    _seen: dict[str, Cursor] = field(default_factory=dict)  # by run, whose trouble was noted up to there
    _watched: dict[str, Path] = field(default_factory=dict)  # by run, the directories that announce changes
    _launching: dict[str, bool] = field(default_factory=dict)  # by cell, False once it has ended, and events say how
    _nap: anyio.CancelScope | None = None  # until something changes, or a launch ends
    _shared_due_s: float = 0.0
    _is_stopping: bool = False
    _stopping_since_s: float | None = None

    def __post_init__(self) -> None:
        self.scalars = Scalars(self.store.home, self.store)
        self.values = CellValues(self.store, self.scalars, self.events, self.read)
        self.screen, self.log = Screen(), SweepLog(self.directory, self.values.measure_live)
        self.launcher = CellLauncher(self.store, self.file_watch, self.environ, self.events)
        self.halving: HalvingWatch | None = None
        self.trials: TrialWatch | None = None
        self._newest: Sweep | None = None
        self._show_lock, self._is_display_faulty = threading.Lock(), False

    async def run(self) -> None:
        """Advance the sweep until it has ended."""
        self._showing, self._has_news = anyio.CancelScope(), anyio.Event()
        await run_in_thread(self._begin)
        await run_in_thread(self.launcher.doubt_former, self.read())
        if self.read().spec.open is not None:
            self.trials = TrialWatch(self.directory, self.store, self.scalars, self.events, self.read)
            self.values.trials = self.trials
            await run_in_thread(self.trials.tidy)
        if (facts := self.read().spec.halving) is not None:
            self.halving = HalvingWatch(facts, self.store, self.file_watch, self.scalars, self.events, self.read)
        async with anyio.create_task_group() as group:
            group.start_soon(self._keep_shown)
            await self._advance_until_ended(group)
            self._showing.cancel()
            if self._newest is not None and self._newest.ended:
                await run_in_thread(self._show)

    async def _advance_until_ended(self, group: TaskGroup) -> None:
        with self.file_watch.subscribe([self.directory.requests]) as changes:
            while not self.events.is_removed:  # else another conductor begins a new record, and finds the runs by key
                if not await run_in_thread(self._is_recorded):  # what it does not remember, it would do again
                    await run_in_thread(self._show_silence)
                    await anyio.sleep(_TICK_S)
                    continue
                try:
                    sweep, is_busy = await self._advance(group)
                except (OSError, RunUnreadable):  # a file system that fails for a moment: what was left undone is due
                    await anyio.sleep(_TICK_S)
                    continue
                if sweep.is_paused and not sweep.ended:  # cells were added while it ended
                    if self._is_stopping:  # who continues it starts another, which starts the stopped cells again
                        return
                    self._note("conducting", "Cells were added: it goes on.", session=self.session, pid=os.getpid())
                self._watch_live(changes)
                self._newest = sweep
                self._has_news.set()
                if sweep.ended:
                    return
                if is_busy or not all(self._launching.values()):
                    continue
                with anyio.move_on_after(min(_TICK_S, self.launcher.pause_s)) as self._nap:
                    await changes.next_change()
                    await anyio.sleep(_SETTLE_S)

    async def _keep_shown(self) -> None:
        """Show the sweep after each look at it: at most once a second, and less often where that takes long."""
        is_loaded = False
        with self._showing:
            while True:
                await self._has_news.wait()
                self._has_news = anyio.Event()
                took_s = await run_in_thread(self._show)
                await anyio.sleep(max(_SHOWN_EVERY_S, took_s / _SHOWN_SHARE if is_loaded else 0.0))
                is_loaded = True  # the modules of tables, which take a second

    def _watch_live(self, changes: Subscription) -> None:
        """Hear of changes in the directories of the live runs, and of no others: there may be 1,000."""
        live = {run.run_id for run in self.live.values()}
        changes.leave([self._watched.pop(run_id) for run_id in self._watched.keys() - live])
        self._watched |= {run_id: self.store.directory_of(run_id) for run_id in live - self._watched.keys()}
        changes.extend(self._watched.values())

    def read(self) -> Sweep:
        """Return the sweep as its directory proves it now."""
        return self.store.sweeps.observe(self.directory.sweep_id)

    def _note(self, kind: EventKind, text: str, **facts: Any) -> None:
        self.events.append(kind, text, **facts)

    def _is_recorded(self) -> bool:
        self.events.flush()
        return not self.events.behind

    def _show_silence(self) -> None:
        text = f"{self.store.home.path} takes no writes: nothing is launched until it does. Live runs go on."
        self.screen.show(self.read(), self.live, text)

    def _begin(self) -> None:
        before = self.read()
        for cell in before.unmeasured:
            with contextlib.suppress(RunwardError):
                self.values.due.append((cell, self.store.observe(cell.runs[-1])))
        if before.is_paused and before.stop is None:  # it had ended, and is continued
            # Before the sweep runs again: cut off here, it is still one that has ended, and can be continued.
            for cell in find_started(before) if before.spec.open is None else list_resumed(read_trials(before)):
                again = " again" if cell.runs else ""
                self._note("cell_resumed", f"{cell.cell.name} is started{again}.", cell=cell.cell.name)
        how = "Another conductor takes over." if before.events else "The sweep begins."
        self._note("conducting", how, session=self.session, pid=os.getpid())

    async def _advance(self, group: TaskGroup) -> tuple[Sweep, bool]:
        """Note what has ended, and launch what is due; return the sweep, and whether there is more to do at once."""
        launching = [name for name, is_under_way in self._launching.items() if is_under_way]
        sweep = await run_in_thread(self.read)
        self._launching = {name: self._launching[name] for name in launching}
        if await self._note_ends(sweep):
            self.launcher.wake()
            sweep = await run_in_thread(self.read)
        if await self._settle_doubts(sweep, group):
            return await run_in_thread(self.read), True
        if sweep.stop is not None:
            await self._follow_stop(sweep.stop)
        if self.events.behind:
            return sweep, False
        sweep = await self._advance_trials(sweep)
        # First of all, a GPU that is free gets its next cell; ends between two launches are noted before the second.
        if await self._launch_due(sweep, group):
            await run_in_thread(self.values.measure_next, sweep)
            return await run_in_thread(self.read), True
        if self.halving is not None:
            await self.halving.stop_worse(self.live, group)
        if await run_in_thread(self.values.measure_next, sweep):
            return await run_in_thread(self.read), True
        await run_in_thread(self._note_phases, sweep)
        is_settled = not self._launching and not self.launcher.in_doubt
        if (
            is_settled
            and (end := (find_end if self.trials is None else self.trials.find_end)(sweep)) is not None
            and not sweep.ended
        ):
            await run_in_thread(self._end, sweep, *end)
        return await run_in_thread(self.read), False

    async def _advance_trials(self, sweep: Sweep) -> Sweep:
        """Note what is due in an open sweep, once all that has ended is measured, but where its host is away."""
        if self.trials is None:
            return sweep
        await run_in_thread(self.values.measure_all, sweep)
        await run_in_thread(self.trials.advance, self.live)
        return await run_in_thread(self.read)

    def _end(self, sweep: Sweep, state: str, text: str) -> None:
        total = len(sweep.cells)  # those that are added meanwhile are not over
        event: RecordEvent = {"seq": len(sweep.events) + 1, "kind": "ended", "at": now(), "text": text, "state": state}
        event["total"] = total
        # Before the event that readers wait for.
        self._newest = fold_sweep(sweep.spec, [*sweep.events, event], former=sweep)
        self._show()
        self._note("ended", text, state=state, total=total)

    def _note_phases(self, sweep: Sweep) -> None:
        for phase in find_finished_phases(sweep):
            cells = [cell for cell in sweep.cells if cell.cell.phase == phase]
            failed = sum(cell.state in ("failed", "lost") for cell in cells)
            best = find_best(sweep)
            value = f" Best so far: {best.text}." if best is not None else ""
            done = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
            text = f"Phase {phase}: {done} done, {failed} of them failed.{value}"
            self._note("phase_done", text, phase=phase, total=len(cells))

    async def _note_ends(self, sweep: Sweep) -> bool:
        ended = await self._observe_live(sweep)
        for cell, run in ended:
            is_unwatched = run.state == "lost" or (run.state == "failed" and run.abandoned)
            survivors = await self._stop_leftovers(run) if is_unwatched else False
            await run_in_thread(self._note_end, cell, run, sweep, survivors)
        self.values.due += ended
        return bool(ended)

    async def _observe_live(self, sweep: Sweep) -> list[tuple[CellState, Run]]:
        live = [cell for cell in sweep.cells if cell.state == LIVE and cell.run_id is not None]
        self.live = {cell.cell.name: self.live[cell.cell.name] for cell in live if cell.cell.name in self.live}
        ended: list[tuple[CellState, Run]] = []
        for cell, run in await run_in_thread(self._look_at, live):
            name = cell.cell.name
            if run is None:  # somebody removed its directory
                self._note("cell_failed", "Its run directory is gone.", cell=name, run_id=cell.run_id, state="lost")
                self.live.pop(name, None)
            elif run.ended:
                self.live.pop(name, None)
                ended.append((cell, run))
            else:
                self.live[name] = run
                self._note_trouble(name, run)
        await run_in_thread(self._note_shared, sweep)
        return ended

    def _note_shared(self, sweep: Sweep) -> None:
        """Note where live cells write the same files. Their supervisors see it within seconds."""
        if len(self.live) > 1 and time.monotonic() >= self._shared_due_s:
            begun_s = time.monotonic()
            for directory, text in self.scalars.attribution.describe_shared(list(self.live.values())).items():
                if directory not in sweep.shared_outputs:
                    self._note("outputs_shared", text, what=directory)
            self._shared_due_s = time.monotonic() + max(_TICK_S, _SHARED_SHARE * (time.monotonic() - begun_s))

    def _look_at(self, cells: list[CellState]) -> list[tuple[CellState, Run | None]]:
        """Return the runs of cells, None for one whose directory is gone; none that cannot be read now."""
        found: list[tuple[CellState, Run | None]] = []
        for cell in cells:
            try:
                found.append((cell, self.store.observe(str(cell.run_id))))
            except RunNotFound:
                found.append((cell, None))
            except RunUnreadable:
                continue
        return found

    def _note_trouble(self, cell: str, run: Run) -> None:
        seen = self._seen.get(run.run_id, Cursor())
        events = [event for event in run.events if event["kind"] == "retrying" and event["seq"] > seen.seq]
        events += [next(e for e in reversed(run.events) if e["kind"] == kind) for kind in find_decisions(run, seen)]
        noted = {(e.get("run_id"), e["kind"], e.get("position")) for e in self.read().events} if events else set()
        for event in events:
            if (run.run_id, event["kind"], event["seq"]) not in noted:
                text, kind = event.get("text", event["kind"]), (event.get("failure") or {}).get("kind")
                if event["kind"] == "retrying" and kind:
                    text = f"attempt {event.get('attempt', 1)}: {kind}. {event.get('then', '')}"
                self._note(event["kind"], f"{cell}: {text}", cell=cell, run_id=run.run_id, position=event["seq"])
        self._seen[run.run_id] = Cursor.at(run)

    async def _stop_leftovers(self, run: Run) -> bool:
        """Stop what a run without its supervisor left behind: its cell is started again. Return whether any lives."""
        backend = backend_of(run.spec)
        if not await run_in_thread(backend.find_leftovers, run):
            return False
        with contextlib.suppress(RunwardError, OSError):
            result = await stop_run(run, self.store, self.file_watch, by="its sweep", reason=REAPED, stopped_by="sweep")
            return bool(result.survivors)
        return bool(await run_in_thread(backend.find_leftovers, run))

    def _note_end(self, cell: CellState, run: Run, sweep: Sweep, has_leftovers: bool) -> None:
        stop = read_stop(self.store.run_directory(run.run_id).stop) if run.state == "killed" else None
        why = str((stop or {}).get("reason") or "")
        end = judge_end(
            run,
            cell,
            sweep.spec.cell_failures,
            has_leftovers=has_leftovers,
            stopping=sweep.stop is not None,
            is_reaped=why == REAPED,
        )
        kind, text, facts = describe_end(cell, run, end, why if end.state in (STOPPED, "killed") else "")
        code = None  # of a trial its commit says that
        if sweep.spec.open is None:
            code = number_code(cell, run.run_id, run.attempt, self.read().cells, self.store.home.path)
        self._note(kind, text, **facts, code=code)

    async def _settle_doubts(self, sweep: Sweep, group: TaskGroup) -> bool:
        asked = [state for state in self.launcher.find_askable(sweep) if state.cell.name not in self._launching]
        before = len(self.launcher.in_doubt)
        doubts = {each.cell.name: partial(self.launcher.settle, sweep, each) for each in asked}
        await self._launch(group, doubts, _LAUNCHED_WITHIN_S)
        return len(self.launcher.in_doubt) < before

    async def _launch_due(self, sweep: Sweep, group: TaskGroup) -> bool:
        if together := await self.launcher.launch_array(sweep):
            self.live |= {cell: run for cell, run in together.items() if not run.ended}
            return True
        if self.trials is not None and self.trials.ending is not None:
            return False
        is_held = partial(self.launcher.is_held, sweep)
        due = find_next(sweep, self.live, self._launching, self.launcher.in_doubt.keys() - self._launching, is_held)
        due = self.launcher.choose(sweep, due)
        chooses = any(not state.is_planned for state in due)  # which depends on the cells before it
        if chooses:
            due = [] if self.values.due else due[:1]
        launches = {each.cell.name: partial(self.launcher.launch, sweep, each) for each in due}
        await self._launch(group, launches, _LAUNCHED_WITHIN_S if chooses else 0.0)
        return bool(due)

    async def _launch(
        self, group: TaskGroup, launches: Mapping[str, Callable[[], Awaitable[Run | None]]], within_s: float
    ) -> None:
        """Begin launches, by cell, and await them for ``within_s`` at most: those that take longer go on beside."""

        async def launch(cell: str, end: anyio.Event) -> None:
            try:
                run = await launches[cell]()
                if run is not None and not run.ended:
                    self.live[cell] = run
            finally:
                self._launching[cell] = False
                end.set()
                if self._nap is not None:
                    self._nap.cancel()

        ends = [anyio.Event() for _ in launches]
        for cell, end in zip(launches, ends, strict=True):
            self._launching[cell] = True
            group.start_soon(launch, cell, end)
        with anyio.move_on_after(within_s):
            for end in ends:
                await end.wait()

    async def _follow_stop(self, stop: Mapping[str, Any]) -> None:
        """Note that from now on nothing is launched, once: whoever asked for the stop waits for that.

        Stop the runs that still live some time after the request: its requester may have died.
        """
        if not self._is_stopping and not self._launching and self.launcher.has_asked:
            self._is_stopping = True
            reason = f": {stop['reason']}" if stop.get("reason") else ""
            text = f"Stopped by {stop.get('by', 'somebody')}{reason}."
            await run_in_thread(self._note, "stopping", text)
        now_s = time.monotonic()
        self._stopping_since_s = self._stopping_since_s or now_s
        if now_s - self._stopping_since_s < _STRAGGLERS_S:
            return
        for run in list(self.live.values()):
            with contextlib.suppress(RunwardError):
                await stop_run(
                    run, self.store, self.file_watch, by="its sweep", reason="the sweep was stopped", stopped_by="sweep"
                )

    def _show(self) -> float:
        """Bring log and pane up to date, to what is newest once it is this thread's turn; return its processor time."""
        with self._show_lock:
            begun_s = time.thread_time()
            if self._newest is not None:
                live = dict(self.live)
                try:
                    self.log.write(self._newest, live)
                    self.screen.show(self._newest, live)
                except OSError:
                    pass  # a full disk: the record is what counts
                except Exception as error:  # no fault of a display ends a sweep
                    if not self._is_display_faulty:
                        self._is_display_faulty = True
                        self._note(
                            "observer_error", f"The sweep's log is not up to date: {error!r}. The sweep goes on."
                        )
            return time.thread_time() - begun_s


def conduct(directory: SweepDir, environ: Mapping[str, str], session: str, *, reopens: bool) -> int:
    """Advance the sweep in ``directory`` until it has ended. The caller holds its lock. Return the exit status.

    One that has ended by now goes on only where somebody asked for that (``reopens``): its failed cells start again.
    """
    store = RunStore(StateHome(directory.path.parents[1]))
    if not reopens and store.sweeps.observe(directory.sweep_id).ended:
        return 0
    conductor = Conductor(directory, store, environ, EventLog(directory.events), session)
    anyio.run(conductor.run)
    return 0
