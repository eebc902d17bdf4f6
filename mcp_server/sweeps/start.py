"""Starting a sweep, or continuing one: what is planned is written, then a conductor starts."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from mcp_server.backends.local import check_program
from mcp_server.errors import BadArgument, RunwardError, StateUnusable
from mcp_server.record.run_directory import write_json
from mcp_server.record.sweeps.sweep_spec import SweepDir, SweepSpec
from mcp_server.record.sweeps.sweep_state import COMPLETE, LIVE, Sweep, fold_sweep
from mcp_server.runs.code.code_copy import keep_sweep_code_state
from mcp_server.runs.launch.arguments import check_name
from mcp_server.runs.launch.idempotency import hold_key
from mcp_server.runs.warnings.runs_at_risk import name_killers
from mcp_server.scalars.curve_questions import parse_ranking
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.run_store import RunStore
from mcp_server.sweeps.conducting import PROGRAM, resume_conductor, start_conductor
from mcp_server.sweeps.conductor.decide import find_started, has_too_many_failures
from mcp_server.sweeps.plan.cell_code import plan_copies
from mcp_server.sweeps.plan.plan import DEFINING, identify
from mcp_server.sweeps.plan.planning import (
    LIMITS,
    PlannedSweep,
    SweepRequest,
    check_limits,
    check_plan,
    list_distinct_runs,
    make_spec,
    plan_sweep,
)
from mcp_server.sweeps.trials.open_plan import OpenPlan, change_open
from mcp_server.sweeps.trials.trials import list_resumed, read_trials
from mcp_server.system.files import whole_directory
from mcp_server.threads import run_in_thread


@dataclass(frozen=True)
class StartedSweep:
    """A sweep under way. ``how``: what this call did."""

    sweep: Sweep
    how: Literal["started", "continued", "repeated", "complete"]
    warnings: tuple[str, ...] = ()
    added: str = ""  # how many cells the call has added to a sweep, and how many were kept


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
    own_key = None if request.idempotency_key is None else f"sweep {request.idempotency_key}"
    async with hold_key(store, f"sweep name {request.name}"), hold_key(store, own_key) as key:
        if key is not None and (sweep_id := key.read()) in await run_in_thread(store.sweeps.list_ids):
            first = await run_in_thread(store.sweeps.observe, sweep_id)
            await _continue_unless_ended(first, store, file_watch, environ)
            first = await run_in_thread(store.sweeps.observe, sweep_id)
            return StartedSweep(first, "repeated" if own_key is not None else "started")
        former = await run_in_thread(_find_former, request, store, environ)
        if former is not None and request.resume != "wipe":
            return await _continue(request, former, store, file_watch, environ, approve)
        if former is not None:
            await run_in_thread(_check_wipe, former)
        planned = await _plan_new(request, store, environ)
        if approve is not None:
            await approve(*list_distinct_runs(planned))
        spec = planned.spec
        if spec.open is not None or spec.searches:
            spec = replace(spec, approved=await run_in_thread(name_killers, list_distinct_runs(planned)))
        await run_in_thread(_keep_code, spec, store)
        directory = await run_in_thread(_create, spec, store)
        if key is not None:
            await run_in_thread(key.remember, planned.spec.sweep_id)
        sweep = await run_in_thread(store.sweeps.observe, directory.sweep_id)
        await start_conductor(directory, sweep, store, file_watch, environ)
        sweep = await run_in_thread(store.sweeps.observe, directory.sweep_id)
        return StartedSweep(sweep, "started", planned.warnings)


async def rehearse_sweep(
    request: SweepRequest, store: RunStore, environ: Mapping[str, str]
) -> tuple[PlannedSweep, Sweep | None]:
    """Return the plan of a sweep that would start; or of the cells that would start in one, which is the second value.

    Raises:
        RunwardError: the sweep cannot be started, or not continued with this plan.
    """
    check_name(request.name)
    former = await run_in_thread(_find_former, request, store, environ)
    if former is None or request.resume == "wipe":
        if former is not None:
            _check_wipe(former)
        return await _plan_new(request, store, environ), None
    if former.spec.open is not None:
        spec, told = _plan_open_change(request, former)
        resumed = tuple(state.cell for state in list_resumed(read_trials(former))) if former.ended else ()
        return PlannedSweep(replace(spec, cells=resumed), {}, told), former
    added = await _find_added(request, former, store, environ)
    new, told = _find_limits(request, former)
    spec = replace(former.spec if added is None else added, **new)  # type: ignore[arg-type]  # all are whole numbers
    longer = fold_sweep(spec, former.events)
    runs_on = () if longer.is_paused else (LIVE,)  # what lives now is not started
    planned = replace(spec, cells=tuple(each.cell for each in find_started(longer) if each.state not in runs_on))
    if added is None:
        return PlannedSweep(planned, {}, told), longer
    checked = await _check_added(added, former, store, environ)
    count = describe_added(longer, former.spec)
    return PlannedSweep(planned, checked.checked, (*told, *checked.warnings), count), longer


async def _plan_new(request: SweepRequest, store: RunStore, environ: Mapping[str, str]) -> PlannedSweep:
    planned = await plan_sweep(request, store, environ)
    await run_in_thread(check_program, PROGRAM)
    warnings = await run_in_thread(lambda: list(_name_kept(planned.spec, store)) if request.resume is None else [])
    return replace(planned, warnings=(*planned.warnings, *warnings))


def _name_kept(spec: SweepSpec, store: RunStore) -> Iterator[str]:
    for former in (store.sweeps.observe(sweep_id) for sweep_id in store.sweeps.list_named(spec.name)[:1]):
        planned = {identify(cell) for cell in spec.cells}
        kept = len(planned.intersection(map(identify, former.spec.cells)))
        if kept == len(former.cells) < len(planned) and former.spec.owner in ("", spec.owner):
            count = "other" if len(planned) - kept == 1 else f"{len(planned) - kept} others"
            yield f'{former.sweep_id} has {kept} of these cells: resume="continue" adds the {count}, and keeps results.'


def _find_former(request: SweepRequest, store: RunStore, environ: Mapping[str, str]) -> Sweep | None:
    """Return the newest sweep of this name or id that a call with this request may mean: one of the same owner."""
    owner = request.owner or store.home.owner(environ)
    if request.name in store.sweeps.list_ids():
        sweep = store.sweeps.observe(request.name)
        if sweep.spec.owner not in ("", owner):
            raise _refuse_foreign(sweep, owner)
        return sweep
    named = [store.sweeps.observe(sweep_id) for sweep_id in store.sweeps.list_named(request.name)]
    newest = next((sweep for sweep in named if sweep.spec.owner in ("", owner)), None)
    has_plan = _has_plan(request)
    if newest is None:
        if not has_plan and named:
            raise _refuse_foreign(named[0], owner)
        if not has_plan and not request.common:
            store.sweeps.find(request.name)  # there is none
        return None
    open_cells = sum(cell.state not in COMPLETE for cell in newest.cells)
    goes_on = request.resume == "continue" and (open_cells or has_plan)
    is_meant = not newest.ended or newest.state == "killed" or has_too_many_failures(newest) or goes_on
    if not has_plan and (request.resume == "wipe" or not is_meant):
        again = f'resume="continue" starts {open_cells} cells again; ' if open_cells and newest.ended else ""
        if newest.spec.open is not None:
            again = 'resume="continue" with a bigger budget in search goes on; '
        cause = f"{newest.sweep_id} is {newest.state}, and this call has no plan for a new sweep."
        remedy = f"{again}a new one needs its plan: grid, cells, search, blueprints, source or phases."
        raise BadArgument("name", cause, remedy)
    return newest if is_meant else None


def _has_plan(request: SweepRequest) -> bool:
    return any(getattr(request, name) for name in (*DEFINING, "phases"))


def _refuse_foreign(sweep: Sweep, caller: str) -> RunwardError:
    return RunwardError(
        f"Sweep {sweep.sweep_id} belongs to {sweep.spec.owner!r}, you are {caller!r};",
        f"it was left alone, still {sweep.state}.",
        f"If its owner agreed, pass owner={sweep.spec.owner!r}, which no token of another name may.",
    )


def _check_wipe(former: Sweep) -> None:
    if not former.ended:
        cause = f"{former.sweep_id} is under way, and a wipe stops no run."
        raise BadArgument("resume", cause, f'Stop it first: kill_run(run_id="{former.sweep_id}").')


async def _continue(
    request: SweepRequest,
    former: Sweep,
    store: RunStore,
    file_watch: FileWatch,
    environ: Mapping[str, str],
    approve: Callable[..., Awaitable[None]] | None,
) -> StartedSweep:
    """Continue a sweep by a plan that contains its own; one under way goes on as it is, with the cells that are new."""
    warnings: tuple[str, ...] = ()
    added = ""
    if former.spec.open is not None:
        warnings = await run_in_thread(_change_open, request, former, store)
        former = await run_in_thread(store.sweeps.observe, former.sweep_id)
        await _continue_unless_ended(former, store, file_watch, environ, reopen=True)
        return StartedSweep(await run_in_thread(store.sweeps.observe, former.sweep_id), "continued", warnings)
    if (extended := await _find_added(request, former, store, environ)) is not None:
        planned = await _check_added(extended, former, store, environ)
        if approve is not None:
            await approve(*list_distinct_runs(planned))
        if extended.approved is not None:
            more = await run_in_thread(name_killers, list_distinct_runs(planned))
            extended = replace(extended, approved=(*extended.approved, *more))
        await run_in_thread(_keep_code, planned.spec, store)
        warnings, added = planned.warnings, describe_added(fold_sweep(extended, former.events), former.spec)
    changed = await run_in_thread(_change_spec, request, former, extended or former.spec, store)
    former = await run_in_thread(store.sweeps.observe, former.sweep_id)
    goes_on = not former.ended or any(cell.state not in COMPLETE for cell in former.cells)
    if goes_on:
        await _continue_unless_ended(former, store, file_watch, environ, reopen=True)
    sweep = await run_in_thread(store.sweeps.observe, former.sweep_id)
    return StartedSweep(sweep, "continued" if goes_on else "complete", (*changed, *warnings), added)


def describe_added(longer: Sweep, former: SweepSpec) -> str:
    """Return how many cells of a sweep are new, how many it had, and which of those start; empty where none is new."""
    count, kept = len(longer.cells) - len(former.cells), longer.cells[: len(former.cells)]
    started = {cell.cell.name for cell in find_started(longer)}
    open_cells = [cell for cell in kept if cell.done and cell.state not in COMPLETE]
    again = sum(cell.cell.name in started for cell in open_cells)
    text = f"{'1 cell' if count == 1 else f'{count} cells'} added, {len(kept)} kept"
    text += f", {again} of these without a result start too" if again else ""
    if left := len(open_cells) - again:
        text += f'; {left} without a result stay: a call with the name alone and resume="continue" starts them'
    return text if count else ""


async def _check_added(extended: SweepSpec, former: Sweep, store: RunStore, environ: Mapping[str, str]) -> PlannedSweep:
    added = extended.cells[len(former.cells) :]
    planned = await check_plan(replace(extended, cells=added), former.spec.goal, store, environ)
    after = former.spec.phases[former.spec.phases.index(added[0].phase) + 1 :]
    runs_on = {state.cell.phase for state in find_started(fold_sweep(extended, former.events))}
    notes = [
        f"Phase {phase} has run, and does not run again for the new cells." for phase in after if phase not in runs_on
    ]
    return replace(planned, warnings=(*planned.warnings, *notes))


def _change_open(request: SweepRequest, former: Sweep, store: RunStore) -> tuple[str, ...]:
    """Give an open sweep the limits that a call names; return which are changed. BadArgument: another plan."""
    spec, told = _plan_open_change(request, former)
    if told:
        write_json(store.sweeps.files_of(former).spec, spec.facts())
    return told


def _plan_open_change(request: SweepRequest, former: Sweep) -> tuple[SweepSpec, tuple[str, ...]]:
    plan = OpenPlan.of(former.spec)
    named = {name for name in (*DEFINING, "phases", "halving") if getattr(request, name)} - {"search"}
    if difference := _name_changed(request, former.spec) or (named and f"it is open, and takes no {min(named)}"):
        raise BadArgument("resume", f"{former.sweep_id} has another plan: {difference}.", "Pass its name and search.")
    changed = change_open(plan, request.search or {}) if request.search else plan
    spec = replace(former.spec, cells=former.spec.cells[: plan.baseline_runs])
    limits, told = _find_limits(request, former)
    if former.state == "finished" and replace(read_trials(former), plan=changed).is_spent(0.0):
        cause = f"the budget of {former.sweep_id} is spent: {changed.budget} trials."
        raise BadArgument("search", cause, 'Pass a bigger one: {"strategy": "open", "budget": …}.')
    spec = replace(spec, open=changed.facts(), **limits)  # type: ignore[arg-type]  # whole numbers
    were, are = vars(plan), vars(changed)
    more = (f"{name} is {are[name]} now, it was {were[name]}." for name in are if are[name] != were[name])
    return spec, (*told, *more)


def _change_spec(request: SweepRequest, former: Sweep, spec: SweepSpec, store: RunStore) -> tuple[str, ...]:
    """Give a sweep the cells of ``spec``, and the limits that a call names; return which limits are changed.

    One file appears whole, and its conductor reads it at its next look: no crash loses a cell, or adds one twice.
    """
    new, told = _find_limits(request, former)
    if new or spec is not former.spec:
        spec = replace(spec, **new)  # type: ignore[arg-type]  # all are whole numbers
        write_json(store.sweeps.files_of(former).spec, spec.facts())
    return told


def _find_limits(request: SweepRequest, former: Sweep) -> tuple[dict[str, int], tuple[str, ...]]:
    limits = {name: getattr(request, name) for name in LIMITS}
    new = {name: most for name, most in limits.items() if most not in (None, getattr(former.spec, name))}
    check_limits(request)
    were = {name: getattr(former.spec, name) for name in new}
    told = (
        f"{name} is {most} now, it was {'not set' if were[name] is None else were[name]}." for name, most in new.items()
    )
    return new, tuple(told)


async def _find_added(
    request: SweepRequest, former: Sweep, store: RunStore, environ: Mapping[str, str]
) -> SweepSpec | None:
    """Return the spec of ``former`` with the cells of a request behind its own; None where it has them all."""
    spec = former.spec
    difference = _name_changed(request, spec)
    if _has_plan(request) and not difference:
        spec = await run_in_thread(make_spec, request, store, environ, spec)
        difference = _name_difference(spec, former.spec)
    elif request.common and not difference:
        difference = "common is of no use without the cells of the plan"
    if difference:
        raise BadArgument(
            "resume",
            f"{former.sweep_id} is {former.state if former.ended else 'under way'} and has another plan: {difference}.",
            "Pass the name alone to go on with its plan, all its values and the new ones to add cells, "
            'resume="wipe" to begin anew (its runs are kept), or another name.',
        )
    planned = {cell.name: cell for cell in spec.cells}
    # Which arguments are settings depends on all cells.
    kept = tuple(replace(cell, overrides=planned[cell.name].overrides) for cell in former.spec.cells)
    added = tuple(cell for cell in spec.cells if cell.name not in former.spec.positions)
    return replace(former.spec, cells=(*kept, *added)) if added else None


async def _continue_unless_ended(
    sweep: Sweep, store: RunStore, file_watch: FileWatch, environ: Mapping[str, str], *, reopen: bool = False
) -> None:
    directory = store.sweeps.files_of(sweep)
    await run_in_thread(resume_conductor, sweep)
    # The conductor of a sweep that has ended is about to exit, also where cells were added since.
    if (sweep.ended and not reopen) or (sweep.conducted and not sweep.is_paused):
        return
    if sweep.is_paused and reopen:
        await run_in_thread(partial(directory.stop.unlink, missing_ok=True))
    await start_conductor(directory, sweep, store, file_watch, environ)


def _name_changed(request: SweepRequest, former: SweepSpec) -> str:
    metric, ranking = (None, "") if request.metric is None else parse_ranking(request.metric)
    own = {"metric": former.ranked_by, "goal": former.goal, "halving": former.halving, "hosts": list(former.hosts)}
    named: dict[str, object] = {"metric": metric and f"{metric} ({ranking})", "goal": request.goal}
    named |= {"halving": request.halving, "hosts": list(request.hosts) or None}
    changed = (name for name, value in named.items() if value not in (None, own[name]))
    return next((f"its {name} is {own[name]}, that of this call {named[name]}" for name in changed), "")


def _name_difference(spec: SweepSpec, former: SweepSpec) -> str:
    if spec.phases != former.phases:
        return f"its phases are {', '.join(former.phases)}, those of this call {', '.join(spec.phases)}"
    if spec.searches != former.searches:
        return "its search is another one"
    planned = {identify(cell) for cell in spec.cells}
    gone = [cell for cell in former.cells if identify(cell) not in planned]
    if not gone:
        return ""
    if len(spec.cells) < len(former.cells):
        return f"{len(former.cells)} cells, this call {len(spec.cells)}"
    is_other = any((cell.phase, cell.params) == (gone[0].phase, gone[0].params) for cell in spec.cells)
    return f"cell {gone[0].name} " + ("has other launch arguments" if is_other else "is not in this call")


def _keep_code(spec: SweepSpec, store: RunStore) -> None:
    """Copy the code that cells with ``code="kept"`` execute, whenever they start; of a copy that is there nothing."""
    for copy in plan_copies(spec, store.home.path):
        copy.send()


def _create(spec: SweepSpec, store: RunStore) -> SweepDir:
    directory = SweepDir(store.home.sweeps / spec.sweep_id)
    try:
        store.home.sweeps.mkdir(mode=0o700, exist_ok=True)
        with whole_directory(directory.path) as path:
            new = SweepDir(path)
            new.requests.mkdir(mode=0o700)
            write_json(new.spec, spec.facts())
            if spec.open is None or not OpenPlan.of(spec).base:  # trials run in worktrees, not where people edit
                keep_sweep_code_state(path, spec)
    except OSError as error:
        raise StateUnusable(store.home.path, str(error.strerror)) from error
    return directory
