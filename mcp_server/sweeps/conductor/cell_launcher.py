"""Launches the cells of a sweep, and notes what became of it. What the machine lacks now fails no cell."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mcp_server import errors
from mcp_server.backends.ssh.ssh_channel import is_known_away
from mcp_server.record.events import EventLog
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run
from mcp_server.record.sweeps.sweep_ranking import find_best
from mcp_server.record.sweeps.sweep_spec import Cell, SweepSpec
from mcp_server.record.sweeps.sweep_state import LIVE, STOPPED, WAITING, CellState, Sweep
from mcp_server.runs.launch.gpu_admission import QuotaReached
from mcp_server.runs.launch.idempotency import has_key, hold_key
from mcp_server.runs.launch.launch import launch, launch_array
from mcp_server.runs.warnings.runs_at_risk import LaunchNotConfirmed, find_risk
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.run_store import RunStore
from mcp_server.sweeps.conductor.decide import count_together, find_array, place_of
from mcp_server.sweeps.conductor.trial_watch import guard_of, prepare_trial
from mcp_server.sweeps.plan.filling import apply_overrides, fill_names, make_request, name_arguments
from mcp_server.sweeps.plan.plan_checks import spell_switches
from mcp_server.sweeps.plan.search import Trial, TrialState, parse_search, propose
from mcp_server.sweeps.trials.trials import find_host_beside, read_trials
from mcp_server.threads import run_in_thread

_RETRY_S, _LONGEST_RETRY_S = 5.0, 60.0  # of launches that this machine refuses
_SETTLED_AT_ONCE = 8
_NOT_NOW = (
    *(errors.ConfigInvalid, errors.SecretNotSet, errors.SecretsFileOpen, errors.SecretsFileUnreadable),
    *(errors.HostUnreachable, errors.LaunchFailed, errors.StateUnusable, errors.TmuxMissing),
)


class HostsBusy(errors.RunwardError):
    """No host of the sweep has the GPUs of a cell free now."""


@dataclass
class _Pause:
    """Until when nothing is launched, monotonic, because a launch was refused. ``cause``: the newest refusal."""

    retry_at_s: float = 0.0
    former_s: float = 0.0
    cause: str = ""

    @property
    def left_s(self) -> float:
        return self.retry_at_s - time.monotonic()


@dataclass
class CellLauncher:
    """Launches cells, each of their runs once: a repeated launch has the same key, and returns the run.

    ``in_doubt``: cells whose launch may have started a run, with the host that knows, "" where nobody has asked yet.
    """

    store: RunStore
    file_watch: FileWatch
    environ: Mapping[str, str]
    events: EventLog
    in_doubt: dict[str, str] = field(default_factory=dict)
    _pauses: dict[str, _Pause] = field(default_factory=dict)  # by place
    _busy: Counter[str] = field(default_factory=Counter)  # launches under way, by place, and by host of several
    _told: dict[str, str] = field(default_factory=dict)  # by host of several, why it took no cell
    _turn: int = 0  # which of several hosts is asked first
    _in_arrays: set[str] = field(default_factory=set)  # cells that were tried in an array of jobs, once

    @property
    def pause_s(self) -> float:
        """When the next pause ends after which refused cells are launched, in seconds from now. Infinite without."""
        return min((pause.left_s for pause in self._pauses.values() if pause.left_s > 0), default=float("inf"))

    def is_held(self, sweep: Sweep, cell: Cell) -> bool:
        """Return whether a cell may not be launched now: its host has refused one, or is busy with others."""
        place = place_of(sweep.spec, cell)
        return self._pauses.get(place, _Pause()).left_s > 0 or self._busy[place] >= count_together(sweep, place)

    def choose(self, sweep: Sweep, due: list[CellState]) -> list[CellState]:
        """Return the first of ``due`` whose hosts are busy with no more launches than each takes at once."""
        chosen, busy = [], self._busy.copy()
        for state in due:
            place = place_of(sweep.spec, state.cell)
            if busy[place] < count_together(sweep, place):
                busy[place] += 1
                chosen.append(state)
        return chosen

    def doubt_former(self, sweep: Sweep) -> None:
        """Put the cells in doubt that a former conductor may have launched when it died.

        Such a cell might not be due any more, e.g. because the sweep is stopped: its run would be nobody's.
        """
        for state in sweep.cells:
            if state.state == WAITING:
                request = make_request(sweep.spec, state.cell, len(state.runs) + 1)
                if has_key(self.store, request.idempotency_key):
                    self.in_doubt[state.cell.name] = ""

    @property
    def has_asked(self) -> bool:
        """Whether the hosts of all cells in doubt were asked, and could not answer."""
        return all(self.in_doubt.values())

    def find_askable(self, sweep: Sweep) -> list[CellState]:
        """Return cells in doubt whose host may know by now what became of their launches."""
        hosts = {host for host in self.in_doubt.values() if host and is_known_away(self.store.home.hosts / host)}
        names = {name for name, host in self.in_doubt.items() if host not in hosts}
        return [state for state in sweep.cells if state.cell.name in names][:_SETTLED_AT_ONCE]

    async def settle(self, sweep: Sweep, state: CellState) -> Run | None:
        """Ask what became of the launch of a cell in doubt. Return its run. Without one, it is launched as any other.

        The doubt stays where the host does not answer.
        """
        cell, run = state.cell, None
        request = make_request(sweep.spec, cell, len(state.runs) + 1)
        try:
            async with hold_key(self.store, request.idempotency_key) as key:
                run = None if key is None else await key.find_run(self.store, self.file_watch)
        except errors.LaunchUnanswered as error:
            self._doubt(cell, error)
            return None
        except (errors.RunwardError, OSError):  # the launch meets it again, and says so
            pass
        self.in_doubt.pop(cell.name, None)
        if run is not None:
            self._note_start(cell, run)
        return run

    def _doubt(self, cell: Cell, error: errors.LaunchUnanswered) -> None:
        if not self.in_doubt.get(cell.name):
            text = f"{cell.name}: {error.cause} It is never started twice, and other cells go on."
            self.events.append("launch_refused", text, what=cell.name, run_id=error.run_id)
        self.in_doubt[cell.name] = error.host

    def _note_start(self, cell: Cell, run: Run) -> None:
        text = f"{cell.name} is launched as {run.run_id}."
        self.events.append("cell_started", text, cell=cell.name, run_id=run.run_id, host=run.spec.host or None)

    async def launch(self, sweep: Sweep, state: CellState) -> Run | None:
        """Launch a cell; return its run, or None where it was refused, for now or for good."""
        cell = state.cell
        place = place_of(sweep.spec, cell)
        self._busy[place] += 1
        try:
            if cell.promote is not None or cell.trial is not None:
                params, inherited = await run_in_thread(self._choose, sweep, state)
                free = {name: value for name, value in inherited.items() if name not in cell.fixed}
                cell = replace(cell, params=params, launch=apply_overrides(cell.launch, free))
                cell = spell_switches(fill_names(cell, sweep.sweep_id))
            number, beside = len(state.runs) + 1, ""
            if sweep.spec.open is not None:
                beside = find_host_beside(read_trials(sweep), cell.name)
                cell = await run_in_thread(prepare_trial, sweep, cell, self.store.sweeps.files_of(sweep), number)
            run = await self._launch_anywhere(sweep.spec, cell, number, beside)
        except errors.LaunchUnanswered as error:
            self._doubt(cell, error)
            return None
        except (errors.RunwardError, OSError) as error:
            self._note_refusal(self._pauses.setdefault(place, _Pause()), cell, error)
            return None
        finally:
            self._busy[place] -= 1
        self._pauses.pop(place, None)
        self._note_start(cell, run)
        return run

    async def launch_array(self, sweep: Sweep) -> dict[str, Run]:
        """Launch the cells that a scheduler takes in one submission; return their runs, by cell.

        Cells that the array leaves out, or all where it is refused, are launched one by one.
        """
        cells = [state.cell for state in find_array(sweep, self._in_arrays | self.in_doubt.keys())]
        if not cells or self.is_held(sweep, cells[0]):
            return {}
        spec = sweep.spec
        self._in_arrays.update(cell.name for cell in cells)
        requests = [make_request(spec, cell, 1) for cell in cells]
        stop = self.store.sweeps.files_of(sweep).stop
        try:
            started = await launch_array(
                requests,
                spec.sweep_id,
                spec.max_parallel,
                self.store,
                self.file_watch,
                self.environ,
                is_called_off=stop.exists,
            )
        except (errors.RunwardError, OSError) as error:
            if stop.exists():
                return {}
            text = f"The array of {len(cells)} cells was refused, so each is handed in by itself: {error}"
            self.events.append("launch_refused", text, what=cells[0].name)
            return {}
        for number, run in started.items():
            self._note_start(cells[number], run)
        return {cells[number].name: run for number, run in started.items()}

    def _choose(self, sweep: Sweep, state: CellState) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return parameters and launch of a cell that depend on others, noted first: they stay for another launch."""
        if state.chosen is not None:
            return state.chosen, state.inherited
        name, (params, inherited, origin) = state.cell.name, choose_params(sweep, state.cell)
        text = f"{name}: {', '.join(f'{each} {value}' for each, value in {**params, **inherited}.items())}"
        facts = {"params": dict(params), "overrides": dict(inherited) or None, "what": origin or None}
        self.events.append("cell_planned", text, cell=name, **facts)
        return params, inherited

    def wake(self) -> None:
        """Let a cell be launched at once: a run has ended, so that its GPUs may be free."""
        self._pauses = {place: pause for place, pause in self._pauses.items() if pause.cause}

    async def _launch_anywhere(self, spec: SweepSpec, cell: Cell, number: int, beside: str = "") -> Run:
        """Launch a cell here, or on the first of the sweep's hosts, taking turns, that has its GPUs free.

        ``beside``: the host of the run that it is compared with; no other one is asked while that is known to answer.
        A host that is known to be away is not waited for while another one answers, and of several hosts each is asked
        for one launch at a time: one that falls silent in the midst of it holds up no other.
        """
        if not spec.hosts:
            return await self._launch_at(spec, cell, number)
        refusals: list[errors.GpusNotFree | errors.HostUnreachable | errors.LaunchFailed] = []
        order = [spec.hosts[(self._turn + turn) % len(spec.hosts)] for turn in range(len(spec.hosts))]
        near = [host for host in order if not is_known_away(self.store.home.hosts / host)]
        near = [beside] if beside in near else near
        left, is_busy = near or order, False
        while (host := next((host for host in left if not self._busy[host]), None)) is not None:
            left.remove(host)
            self._busy[host] += 1
            try:
                run = await self._launch_at(spec, cell, number, host)
            except errors.LaunchUnanswered:
                raise
            except (errors.GpusNotFree, errors.HostUnreachable, errors.LaunchFailed) as error:
                refusals.append(error)
                is_busy = is_busy or (isinstance(error, errors.GpusNotFree) and not error.never)
                if isinstance(error, errors.LaunchFailed):
                    self._tell_failure(host, cell, error)
            else:
                self._turn = spec.hosts.index(host) + 1
                self._told.pop(host, None)
                return run
            finally:
                self._busy[host] -= 1
                self.wake()  # another cell may have found no host but this one
        if is_busy or left:
            raise HostsBusy(f"No host of {', '.join(spec.hosts)} has room for {cell.name} now.")
        raise next((error for error in refusals if not isinstance(error, errors.GpusNotFree)), refusals[0])

    async def _launch_at(self, spec: SweepSpec, cell: Cell, number: int, host: str | None = None) -> Run:
        async def check(run: RunSpec) -> None:
            """Refuse a launch that ends live runs, where its command was not seen as the sweep was started."""
            if spec.approved is not None and (risk := await run_in_thread(find_risk, [run], self.store, spec.approved)):
                raise LaunchNotConfirmed(risk)

        request, guard = make_request(spec, cell, number, host), guard_of(spec)
        return await launch(request, self.store, self.file_watch, self.environ, approve=check, prepare=guard)

    def _tell_failure(self, host: str, cell: Cell, error: errors.LaunchFailed) -> None:
        """Note once that a host of several takes no cell: others may take them all, and nobody would hear of it."""
        if self._told.get(host) != error.cause:
            self._told[host] = error.cause
            self.events.append("launch_refused", f"{host} does not take {cell.name}: {error}", what=cell.name)

    def _note_refusal(self, pause: _Pause, cell: Cell, error: errors.RunwardError | OSError) -> None:
        """Fail the cell, or where its host lacks something that would fail every cell, pause the launches there."""
        is_quota = isinstance(error, QuotaReached) and not error.never
        if is_quota or isinstance(error, HostsBusy):  # until another run has ended
            pause.retry_at_s = time.monotonic() + _RETRY_S
            return
        for_now = not error.never if isinstance(error, errors.GpusNotFree) else isinstance(error, (*_NOT_NOW, OSError))
        if not for_now:
            text = f"{cell.name} cannot be launched: {error}"
            self.events.append("cell_failed", text, cell=cell.name, state="failed")
            return
        if str(error) != pause.cause:
            pause.cause = str(error)
            text = f"{cell.name} cannot be launched now: {error} It is tried again."
            self.events.append("launch_refused", text, what=cell.name)
        pause.former_s = min(_LONGEST_RETRY_S, pause.former_s * 2) or _RETRY_S
        pause.retry_at_s = time.monotonic() + pause.former_s


def choose_params(sweep: Sweep, cell: Cell) -> tuple[Mapping[str, Any], Mapping[str, Any], str]:
    """Return the parameters of a cell that depend on other cells, its launch's settings, and whose they are.

    A promotion takes those of the best run of the setting with the best mean; its own ones, such as a seed, win.
    Blocks for a second.

    Raises:
        BadArgument: no cell is the best one.
    """
    spec = sweep.spec
    if cell.trial is not None:
        others = [each for each in sweep.cells if each.cell.phase == cell.phase and each.cell is not cell]
        history = [_describe_trial(each) for each in others if each.runs or each.chosen is not None]
        return propose(parse_search(spec.searches[cell.phase]), history, cell.trial, spec.goal), {}, ""
    own = name_arguments(cell.launch)
    for other in sweep.cells:  # a phase promotes one setting, whatever its first cells come to
        if other.cell.phase == cell.phase and other.chosen is not None:
            return {**other.chosen, **cell.params}, other.inherited, other.origin or ""
    if (best := find_best(sweep)) is None:
        cause = f"no cell has ended its training with a value of {spec.metric}, so none is the best."
        raise errors.BadArgument("promote", cause)
    inherited = {name: own.get(name) if name in cell.fixed else value for name, value in best.cell.overrides.items()}
    return {**best.cell.params, **cell.params}, inherited, f"promoted: {best.text}"


def _describe_trial(state: CellState) -> Trial:
    states: dict[str, TrialState] = {"finished": "finished", "timed_out": "finished", STOPPED: "stopped", LIVE: "live"}
    if not state.runs:  # its launch is under way
        states[WAITING] = "live"
    if state.state == STOPPED and (last := state.figures.get("last")):  # Optuna takes a report of a stopped one
        return Trial(state.params, "stopped", last[0], last[1])
    step = state.value_step if state.value_step is not None else state.end.get("step")
    return Trial(state.params, states.get(state.state, "failed"), state.value, step)
