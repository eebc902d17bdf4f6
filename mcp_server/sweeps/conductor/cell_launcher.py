"""Launches the cells of a sweep, and notes what became of it. What the machine lacks now fails no cell."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mcp_server.backends.ssh_channel import is_known_away
from mcp_server.errors import (
    BadArgument,
    ConfigInvalid,
    GpusNotFree,
    HostUnreachable,
    LaunchFailed,
    RunwardError,
    SecretNotSet,
    SecretsFileOpen,
    SecretsFileUnreadable,
    StateUnusable,
    TmuxMissing,
)
from mcp_server.record.events import EventLog
from mcp_server.record.state import Run
from mcp_server.record.sweep_ranking import find_best
from mcp_server.record.sweep_spec import Cell, SweepSpec
from mcp_server.record.sweep_state import LIVE, STOPPED, WAITING, CellState, Sweep
from mcp_server.runs.idempotency import has_key, hold_key
from mcp_server.runs.launch import launch
from mcp_server.runs.quota import QuotaReached
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.run_store import RunStore
from mcp_server.sweeps.decide import find_array
from mcp_server.sweeps.plan import fill_names
from mcp_server.sweeps.requests import make_request
from mcp_server.sweeps.search import Trial, TrialState, parse_search, propose
from mcp_server.threads import run_in_thread

_RETRY_S, _LONGEST_RETRY_S = 5.0, 60.0  # of launches that this machine refuses
_NOT_NOW = (
    *(ConfigInvalid, SecretNotSet, SecretsFileOpen, SecretsFileUnreadable),
    *(HostUnreachable, LaunchFailed, StateUnusable, TmuxMissing),
)


class HostsBusy(RunwardError):
    """No host of the sweep has the GPUs of a cell free now."""


@dataclass
class CellLauncher:
    """Launches cells, each of their runs once: a repeated launch has the same key, and returns the run."""

    store: RunStore
    file_watch: FileWatch
    environ: Mapping[str, str]
    events: EventLog
    _retry_at_s: float = 0.0
    _former_pause_s: float = 0.0
    _cause: str = ""  # of the newest refusal
    _turn: int = 0  # which of several hosts is asked first
    _in_arrays: set[str] = field(default_factory=set)  # cells that were tried in an array of jobs, once

    @property
    def pause_s(self) -> float:
        """For how long no cell is launched, because this machine refused one; infinite where one may be launched."""
        left_s = self._retry_at_s - time.monotonic()
        return left_s if left_s > 0 else float("inf")

    @property
    def is_ready(self) -> bool:
        """Whether a cell may be launched now."""
        return time.monotonic() >= self._retry_at_s

    async def adopt(self, sweep: Sweep) -> None:
        """Note the runs of waiting cells that a former conductor had launched when it died.

        Such a cell might not be due any more, e.g. because the sweep is stopped: its run would be nobody's.
        """
        for state in sweep.cells:
            if state.state != WAITING:
                continue
            request = make_request(sweep.spec, state.cell, len(state.runs) + 1)
            if not await run_in_thread(has_key, self.store, request.idempotency_key):
                continue
            with contextlib.suppress(RunwardError, OSError):
                async with hold_key(self.store, request.idempotency_key) as key:
                    run = None if key is None else await key.find_run(self.store, self.file_watch)
                if run is not None:
                    self._note_start(state.cell, run)

    def _note_start(self, cell: Cell, run: Run) -> None:
        text = f"{cell.name} is launched as {run.run_id}."
        self.events.append("cell_started", text, cell=cell.name, run_id=run.run_id)

    async def launch(self, sweep: Sweep, state: CellState) -> Run | None:
        """Launch a cell; return its run, or None where it was refused, for now or for good."""
        cell = state.cell
        try:
            if cell.promote is not None or cell.trial is not None:
                params = await run_in_thread(self._choose, sweep, state)
                cell = fill_names(replace(cell, params=params), sweep.sweep_id)
            run = await self._launch_anywhere(sweep.spec, cell, len(state.runs) + 1)
        except (RunwardError, OSError) as error:
            self._note_refusal(cell, error)
            return None
        self._retry_at_s = self._former_pause_s = 0.0
        self._cause = ""
        self._note_start(cell, run)
        return run

    async def launch_array(self, sweep: Sweep) -> dict[str, Run]:
        """Launch the cells that a scheduler takes in one submission; return their runs, by cell.

        Cells that the array leaves out, or all where it is refused, are launched one by one.
        """
        cells = [state.cell for state in find_array(sweep, self._in_arrays)]
        if not cells:
            return {}
        # Few sweeps are arrays.
        from mcp_server.runs.launch_array import launch_array  # noqa: PLC0415 - as above

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
        except (RunwardError, OSError) as error:
            if stop.exists():
                return {}
            text = f"The array of {len(cells)} cells was refused, so each is handed in by itself: {error}"
            self.events.append("launch_refused", text, what=cells[0].name)
            return {}
        for number, run in started.items():
            self._note_start(cells[number], run)
        return {cells[number].name: run for number, run in started.items()}

    def _choose(self, sweep: Sweep, state: CellState) -> Mapping[str, Any]:
        """Return the parameters of a cell that depend on others, noted first: a repeated launch must have the same."""
        if state.chosen is not None:
            return state.chosen
        name, (params, origin) = state.cell.name, choose_params(sweep, state.cell)
        text = f"{name}: {', '.join(f'{each} {value}' for each, value in params.items())}"
        self.events.append("cell_planned", text, cell=name, params=dict(params), what=origin or None)
        return params

    def wake(self) -> None:
        """Let a cell be launched at once: a run has ended, so that its GPUs may be free."""
        if not self._cause:
            self._retry_at_s = 0.0

    async def _launch_anywhere(self, spec: SweepSpec, cell: Cell, number: int) -> Run:
        """Launch a cell here, or on the first of the sweep's hosts, taking turns, that has its GPUs free.

        A host that is known to be away is not waited for while another one answers.

        Raises:
            RunwardError: no host takes it; the error of the host that says most.
        """
        if not spec.hosts:
            return await launch(make_request(spec, cell, number), self.store, self.file_watch, self.environ)
        refusals: list[GpusNotFree | HostUnreachable] = []
        order = [spec.hosts[(self._turn + turn) % len(spec.hosts)] for turn in range(len(spec.hosts))]
        near = [host for host in order if not is_known_away(self.store.home.hosts / host)]
        for turn, host in enumerate(near or order):
            request = make_request(spec, cell, number, host)
            try:
                run = await launch(request, self.store, self.file_watch, self.environ)
            except (GpusNotFree, HostUnreachable) as error:
                refusals.append(error)
            else:
                self._turn += turn + 1
                return run
        busy = next((error for error in refusals if isinstance(error, GpusNotFree) and not error.never), None)
        if busy is not None:
            raise HostsBusy(str(busy))
        raise next((error for error in refusals if isinstance(error, HostUnreachable)), refusals[0])

    def _note_refusal(self, cell: Cell, error: RunwardError | OSError) -> None:
        """Fail the cell, or where this machine lacks something that would fail every cell, pause the launches."""
        is_quota = isinstance(error, QuotaReached) and not error.never
        if is_quota or isinstance(error, HostsBusy):  # until another run has ended
            self._retry_at_s = time.monotonic() + _RETRY_S
            return
        for_now = not error.never if isinstance(error, GpusNotFree) else isinstance(error, (*_NOT_NOW, OSError))
        if not for_now:
            self._fail(cell, str(error))
            return
        if str(error) != self._cause:
            self._cause = str(error)
            text = f"{cell.name} cannot be launched now: {error} It is tried again."
            self.events.append("launch_refused", text, what=cell.name)
        self._former_pause_s = min(_LONGEST_RETRY_S, self._former_pause_s * 2) or _RETRY_S
        self._retry_at_s = time.monotonic() + self._former_pause_s

    def _fail(self, cell: Cell, why: str) -> None:
        self.events.append("cell_failed", f"{cell.name} cannot be launched: {why}", cell=cell.name, state="failed")


def choose_params(sweep: Sweep, cell: Cell) -> tuple[Mapping[str, Any], str]:
    """Return the parameters of a cell that depend on other cells, and whose they are. Blocks for a second.

    A promotion takes those of the best run of the setting with the best mean; its phase's own ones win.

    Raises:
        BadArgument: no cell is the best one.
    """
    spec = sweep.spec
    if cell.trial is not None:
        others = [each for each in sweep.cells if each.cell.phase == cell.phase and each.cell is not cell]
        history = [_describe_trial(each) for each in others if each.runs]
        return propose(parse_search(spec.searches[cell.phase]), history, cell.trial, spec.goal), ""
    if (best := find_best(sweep)) is None:
        raise BadArgument("promote", f"no cell has a value of {spec.metric}, so none is the best.")
    return {**best.cell.params, **cell.params}, f"promoted: {best.text}"


def _describe_trial(state: CellState) -> Trial:
    states: dict[str, TrialState] = {"finished": "finished", "timed_out": "finished", STOPPED: "stopped", LIVE: "live"}
    step = state.value_step if state.value_step is not None else state.end.get("step")
    return Trial(state.params, states.get(state.state, "failed"), state.value, step)
