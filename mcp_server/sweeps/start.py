"""Starting a sweep, or continuing one: what is planned is written, then a conductor starts."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from mcp_server.errors import BadArgument, RunwardError, StateUnusable
from mcp_server.record.run_directory import write_json
from mcp_server.record.sweep_directory import SweepDir
from mcp_server.record.sweep_spec import SweepSpec
from mcp_server.record.sweep_state import COMPLETE, Sweep
from mcp_server.runs.arguments import check_name
from mcp_server.runs.code_at_launch import keep_sweep_code_state
from mcp_server.runs.idempotency import hold_key
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.run_store import RunStore
from mcp_server.sweeps.conducting import resume_conductor, start_conductor
from mcp_server.sweeps.plan import DEFINING, find_seeds
from mcp_server.sweeps.planning import PlannedSweep, SweepRequest, list_distinct_runs, make_spec, plan_sweep
from mcp_server.threads import run_in_thread


@dataclass(frozen=True)
class StartedSweep:
    """A sweep under way. ``how``: what this call did."""

    sweep: Sweep
    how: Literal["started", "continued", "repeated"]
    warnings: tuple[str, ...] = ()


async def start_sweep(
    request: SweepRequest,
    store: RunStore,
    file_watch: FileWatch,
    environ: Mapping[str, str],
    approve: Callable[..., Awaitable[None]] | None = None,
) -> StartedSweep:
    """Start a sweep; or continue the one of this name, or return the one of this key.

    ``approve`` is asked once, with the specs of a new sweep's cells, before anything of it is written.

    Raises:
        RunwardError: nothing was started.
    """
    check_name(request.name)
    await run_in_thread(store.home.create)
    async with hold_key(store, f"sweep name {request.name}"), hold_key(store, _key_of(request)) as key:
        if key is not None and (first := await run_in_thread(_find_of_key, store, key.read())) is not None:
            await _continue_unless_ended(first, store, file_watch, environ)
            return StartedSweep(await run_in_thread(store.sweeps.observe, first.sweep_id), "repeated")
        former = await run_in_thread(_find_former, request, store, environ)
        if former is not None and request.resume != "wipe":
            return await _continue(request, former, store, file_watch, environ)
        if former is not None:
            await run_in_thread(_check_wipe, former)
        planned = await plan_sweep(request, store, environ)
        if approve is not None:
            await approve(*list_distinct_runs(planned))
        directory = await run_in_thread(_create, planned.spec, store)
        if key is not None:
            await run_in_thread(key.remember, planned.spec.sweep_id)
        sweep = await run_in_thread(store.sweeps.observe, directory.sweep_id)
        await start_conductor(directory, sweep, store, file_watch, environ)
        sweep = await run_in_thread(store.sweeps.observe, directory.sweep_id)
        return StartedSweep(sweep, "started", planned.warnings)


async def rehearse_sweep(
    request: SweepRequest, store: RunStore, environ: Mapping[str, str]
) -> tuple[PlannedSweep, Sweep | None]:
    """Return the plan of a sweep that would start; or, with the sweep that would go on, the plan of its open cells.

    Raises:
        RunwardError: the sweep cannot be started, or not continued with this plan.
    """
    check_name(request.name)
    former = await run_in_thread(_find_former, request, store, environ)
    if former is None or request.resume == "wipe":
        if former is not None:
            _check_wipe(former)
        return await plan_sweep(request, store, environ), None
    await _check_same_plan(request, former, store, environ)
    open_cells = tuple(state.cell for state in former.cells if state.state not in COMPLETE)
    return PlannedSweep(replace(former.spec, cells=open_cells), {}), former


def _key_of(request: SweepRequest) -> str | None:
    return None if request.idempotency_key is None else f"sweep {request.idempotency_key}"


def _find_of_key(store: RunStore, sweep_id: str) -> Sweep | None:
    return store.sweeps.observe(sweep_id) if sweep_id in store.sweeps.list_ids() else None


def _find_former(request: SweepRequest, store: RunStore, environ: Mapping[str, str]) -> Sweep | None:
    """Return the newest sweep of this name or id that a call with this request may mean: one of the same owner.

    Raises:
        BadArgument: the sweep has ended, and the request has no plan for a new one.
        ForeignSweep: the sweep with this id is another owner's.
        SweepNotFound: there is none, and the request has no plan.
    """
    owner = request.owner or store.home.owner(environ)
    if request.name in store.sweeps.list_ids():
        sweep = store.sweeps.observe(request.name)
        if sweep.spec.owner not in ("", owner):
            raise ForeignSweep(sweep, owner)
        return sweep
    named = [store.sweeps.observe(sweep_id) for sweep_id in store.sweeps.list_named(request.name)]
    newest = next((sweep for sweep in named if sweep.spec.owner in ("", owner)), None)
    has_plan = _has_plan(request)
    if newest is None:
        if not has_plan and named:
            raise ForeignSweep(named[0], owner)
        if not has_plan and not request.common:
            store.sweeps.find(request.name)  # there is none
        return None
    open_cells = sum(cell.state not in COMPLETE for cell in newest.cells)
    goes_on = request.resume == "continue" and (open_cells or has_plan)
    is_meant = not newest.ended or newest.state in ("killed", "failed") or goes_on
    if not has_plan and (request.resume == "wipe" or not is_meant):
        again = f'resume="continue" starts {open_cells} cells again; ' if open_cells and newest.ended else ""
        raise BadArgument(
            "name",
            f"{newest.sweep_id} is {newest.state}, and this call has no plan for a new sweep.",
            f"{again}a new one needs its plan: grid, cells, search, blueprints, source or phases.",
        )
    return newest if is_meant else None


def _has_plan(request: SweepRequest) -> bool:
    return any(getattr(request, name) for name in (*DEFINING, "phases"))


class ForeignSweep(RunwardError):
    """The sweep that a call would continue belongs to another owner."""

    def __init__(self, sweep: Sweep, caller: str) -> None:
        owner = sweep.spec.owner
        super().__init__(
            f"Sweep {sweep.sweep_id} belongs to {owner!r}, you are {caller!r};",
            f"it was left alone, still {sweep.state}.",
            f"If its owner agreed, pass owner={owner!r}, which no token of another name may.",
        )


def _check_wipe(former: Sweep) -> None:
    if not former.ended:
        raise BadArgument(
            "resume",
            f"{former.sweep_id} is under way, and a wipe stops no run.",
            f'Stop it first: kill_run(run_id="{former.sweep_id}").',
        )


async def _continue(
    request: SweepRequest, former: Sweep, store: RunStore, file_watch: FileWatch, environ: Mapping[str, str]
) -> StartedSweep:
    """Continue a sweep whose plan is the same; one under way goes on as it is."""
    await _check_same_plan(request, former, store, environ)
    changed = await run_in_thread(_change_limits, request, former, store)
    former = await run_in_thread(store.sweeps.observe, former.sweep_id)
    if not former.ended or any(cell.state not in COMPLETE for cell in former.cells):
        await _continue_unless_ended(former, store, file_watch, environ, reopen=True)
    return StartedSweep(await run_in_thread(store.sweeps.observe, former.sweep_id), "continued", changed)


def _change_limits(request: SweepRequest, former: Sweep, store: RunStore) -> tuple[str, ...]:
    """Give a sweep the limits that a call names; return what is changed. Its conductor reads them at its next look."""
    limits = {"max_parallel": request.max_parallel, "max_failures": request.max_failures}
    new = {name: most for name, most in limits.items() if most not in (None, getattr(former.spec, name))}
    if any(most is not None and most < 1 for most in new.values()):
        raise BadArgument(next(iter(new)), "must be at least 1.")
    if new:
        spec = replace(former.spec, **new)  # type: ignore[arg-type]  # both are whole numbers
        write_json(store.sweeps.files_of(former).spec, spec.facts())
    return tuple(f"{name} is {most} now, it was {getattr(former.spec, name)}." for name, most in new.items())


async def _check_same_plan(request: SweepRequest, former: Sweep, store: RunStore, environ: Mapping[str, str]) -> None:
    """Refuse to continue ``former`` by a request with another plan.

    Raises:
        BadArgument: its plan is another one.
    """
    if _has_plan(request):
        spec = await run_in_thread(make_spec, request, store, environ, former.sweep_id)
        if _outline(spec) != _outline(former.spec):
            raise BadArgument(
                "resume",
                f"{former.sweep_id} is {'unfinished' if former.ended else 'under way'} and has another plan: "
                f"{_name_difference(spec, former.spec)}.",
                "Pass the name alone to go on with its plan, "
                'resume="wipe" to begin anew (its runs are kept), or another name.',
            )


async def _continue_unless_ended(
    sweep: Sweep, store: RunStore, file_watch: FileWatch, environ: Mapping[str, str], *, reopen: bool = False
) -> None:
    directory = store.sweeps.files_of(sweep)
    await run_in_thread(resume_conductor, sweep)
    # The conductor of an ended sweep is about to exit.
    if not reopen if sweep.ended else sweep.conducted:
        return
    if sweep.ended:
        await run_in_thread(partial(directory.stop.unlink, missing_ok=True))
    await start_conductor(directory, sweep, store, file_watch, environ)


def _outline(spec: SweepSpec) -> list[tuple[str, ...]]:
    return [
        (cell.name, cell.phase, repr(sorted(cell.params.items())), f"{cell.variant}{find_seeds(cell) or ''}")
        for cell in spec.cells
    ]


def _name_difference(spec: SweepSpec, former: SweepSpec) -> str:
    if len(spec.cells) != len(former.cells):
        return f"{len(former.cells)} cells, this call {len(spec.cells)}"
    one, other = next((a, b) for a, b in zip(_outline(spec), _outline(former), strict=True) if a != b)
    return f"cell {other[0]} has other " + ("launch arguments" if one[:-1] == other[:-1] else "parameters")


def _create(spec: SweepSpec, store: RunStore) -> SweepDir:
    """Make the sweep's directory appear whole.

    Raises:
        StateUnusable: it cannot be written; nothing is left of it.
    """
    directory = SweepDir(store.home.sweeps / spec.sweep_id)
    new = SweepDir(directory.path.with_name(f".new-{spec.sweep_id}"))
    try:
        store.home.sweeps.mkdir(mode=0o700, exist_ok=True)
        new.path.mkdir(mode=0o700)
        new.requests.mkdir(mode=0o700)
        write_json(new.spec, spec.facts())
        keep_sweep_code_state(new.path, spec)
        new.path.rename(directory.path)
    except OSError as error:
        shutil.rmtree(new.path, ignore_errors=True)
        raise StateUnusable(store.home.path, str(error.strerror)) from error
    return directory
