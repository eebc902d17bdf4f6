"""Starting a sweep, or continuing one: the plan is made, checked and written, then a conductor starts."""

from __future__ import annotations

import re
import secrets as random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from mcp_server.backends.local import tmux_socket
from mcp_server.errors import BadArgument, RunwardError, StateUnusable
from mcp_server.gpus.request import parse_gpus
from mcp_server.hosts.config import find_this_host, read_hosts_file
from mcp_server.record.environment import base_environment
from mcp_server.record.run_directory import now, write_json
from mcp_server.record.script import LONGEST_NAME, command_text, slug
from mcp_server.record.spec import LaunchRequest, RunSpec
from mcp_server.record.state import Run
from mcp_server.record.sweep_directory import SweepDir
from mcp_server.record.sweep_spec import BEST, Cell, SweepSpec
from mcp_server.record.sweep_state import COMPLETE, Sweep
from mcp_server.runs.arguments import check_name
from mcp_server.runs.gpu_admission import requests_gpus
from mcp_server.runs.idempotency import hold_key
from mcp_server.runs.launch import rehearse
from mcp_server.runs.resolve import apply_host_defaults
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.run_store import RunStore
from mcp_server.sweeps.conducting import resume_conductor, start_conductor
from mcp_server.sweeps.halving import parse_halving
from mcp_server.sweeps.plan import DEFINING, Phase, expand, parse_phases
from mcp_server.sweeps.requests import make_request, with_slots
from mcp_server.sweeps.search import parse_search
from mcp_server.sweeps.sources.source import read_source
from mcp_server.sweeps.values import SweepRefused, check_values
from mcp_server.threads import run_in_thread

_ID_LETTERS = "abcdefghjkmnpqrstvwxyz23456789"  # none that a reader confuses
_LONGEST_SWEEP_NAME = 40
_LONGEST_METRIC = 200
_OF_A_RUN = re.compile(r"\{(?:run_id|attempt)\}")
_MOST_REHEARSED = 24  # cells whose launch is checked in full; the others differ from one of these in values alone


@dataclass(frozen=True)
class SweepRequest:
    """The arguments of a sweep as the caller gave them."""

    name: str
    common: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] | None = None
    cells: Sequence[Mapping[str, Any]] | None = None
    blueprints: Sequence[str] | None = None
    source: str | None = None
    promote: str | None = None
    search: Mapping[str, Any] | None = None
    halving: Mapping[str, Any] | None = None
    phases: Sequence[Mapping[str, Any]] | None = None
    hosts: Sequence[str] = ()
    max_parallel: int | None = None
    max_failures: int | None = None
    cell_failures: int = 1
    metric: str | None = None
    goal: Literal["max", "min"] = "max"
    resume: Literal["continue", "wipe"] | None = None
    owner: str | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True)
class PlannedSweep:
    """A sweep that could be started: its spec, and the run of each cell that was checked in full, by cell."""

    spec: SweepSpec
    checked: Mapping[str, RunSpec]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class StartedSweep:
    """A sweep under way. ``how``: what this call did."""

    sweep: Sweep
    how: Literal["started", "continued", "repeated"]
    warnings: tuple[str, ...] = ()


async def plan_sweep(request: SweepRequest, store: RunStore, environ: Mapping[str, str]) -> PlannedSweep:
    """Return the plan of a sweep; checks the launch of its cells, and writes nothing.

    Raises:
        RunwardError: the sweep cannot be started; names the cell.
    """
    spec = await run_in_thread(_make_spec, request, store, environ)
    await run_in_thread(check_values, spec, store.home, environ)
    checked: dict[str, RunSpec] = {}
    for cell in _choose_to_rehearse(spec.cells):
        try:
            for host in spec.hosts or [None]:
                checked[cell.name] = await rehearse(
                    _make_patient(make_request(spec, cell, 1, host)), store.home, environ
                )
        except RunwardError as error:
            raise SweepRefused(cell.name, error) from error
    return PlannedSweep(spec, checked, tuple(_list_warnings(spec.cells)))


def _make_patient(request: LaunchRequest) -> LaunchRequest:
    """Return ``request`` as it is accepted while its GPUs are in use."""
    return replace(request, queue=True) if requests_gpus(request.gpus, request.require) else request


def _list_warnings(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield the notes of all cells, each once, with the cell it is about, or how many they are."""
    names: dict[str, list[str]] = {}
    for cell in cells:
        for note in cell.notes:
            names.setdefault(note, []).append(cell.name)
    for note, concerned in names.items():
        more = f" and {len(concerned) - 1} more" if len(concerned) > 1 else ""
        yield note if len(concerned) == len(cells) else f"{concerned[0]}{more}: {note}"


async def start_sweep(
    request: SweepRequest, store: RunStore, file_watch: FileWatch, environ: Mapping[str, str]
) -> StartedSweep:
    """Start a sweep; or continue the one of this name, or return the one of this key.

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
        directory = await run_in_thread(_create, planned.spec, store)
        if key is not None:
            await run_in_thread(key.remember, planned.spec.sweep_id)
        sweep = await run_in_thread(store.sweeps.observe, directory.sweep_id)
        await start_conductor(directory, sweep, store, file_watch, environ)
        sweep = await run_in_thread(store.sweeps.observe, directory.sweep_id)
        return StartedSweep(sweep, "started", planned.warnings)


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
    is_meant = not newest.ended or newest.state in ("killed", "failed") or (request.resume == "continue" and open_cells)
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
    if _has_plan(request):
        spec = await run_in_thread(_make_spec, request, store, environ, former.sweep_id)
        if _outline(spec) != _outline(former.spec):
            raise BadArgument(
                "resume",
                f"{former.sweep_id} is {'unfinished' if former.ended else 'under way'} and has another plan: "
                f"{_name_difference(spec, former.spec)}.",
                "Pass the name alone to go on with its plan, "
                'resume="wipe" to begin anew (its runs are kept), or another name.',
            )
    await _continue_unless_ended(former, store, file_watch, environ, reopen=True)
    return StartedSweep(await run_in_thread(store.sweeps.observe, former.sweep_id), "continued")


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
    return [(cell.name, cell.phase, repr(sorted(cell.params.items())), cell.variant) for cell in spec.cells]


def _name_difference(spec: SweepSpec, former: SweepSpec) -> str:
    if len(spec.cells) != len(former.cells):
        return f"{len(former.cells)} cells, this call {len(spec.cells)}"
    one, other = next((a, b) for a, b in zip(_outline(spec), _outline(former), strict=True) if a != b)
    return f"cell {other[0]} has other " + ("launch arguments" if one[:-1] == other[:-1] else "parameters")


def _make_spec(
    request: SweepRequest, store: RunStore, environ: Mapping[str, str], sweep_id: str | None = None
) -> SweepSpec:
    """Return the spec of a sweep. Reads its sources: call it in a thread."""
    check_name(request.name)
    _check_numbers(request)
    if sweep_id is None:
        sweep_id = _choose_id(request.name, store)
    only = {name: getattr(request, name) for name in DEFINING}
    phases = [_read(phase, store, environ) for phase in parse_phases(request.phases, only, request.common)]
    if any(phase.promote == BEST for phase in phases) and request.metric is None:
        raise BadArgument("promote", '"best" needs metric: the figure that says which cell is the best.')
    searches = {phase.name: phase.search for phase in phases if phase.search is not None}
    if request.metric is None and (
        request.halving or any(parse_search(each).needs_history for each in searches.values())
    ):
        raise BadArgument("metric", "is needed by halving and by this search: what best means.")
    if request.halving is not None:
        parse_halving(request.halving)
    cells = tuple(with_slots(cell, request.max_parallel) for cell in expand(phases, sweep_id))
    for cell in cells:
        if not cell.launch.get("command") and not cell.launch.get("blueprint"):
            raise BadArgument("common", f"holds no command, and cell {cell.name} brings none.", "Pass common.command.")
    return SweepSpec(
        sweep_id=sweep_id,
        name=request.name,
        owner=request.owner or store.home.owner(environ),
        created_at=now(),
        cells=cells,
        max_parallel=request.max_parallel,
        max_failures=request.max_failures,
        cell_failures=request.cell_failures,
        metric=request.metric,
        goal=request.goal,
        hosts=tuple(request.hosts),
        searches=searches,
        halving=request.halving,
        tmux_socket=tmux_socket(environ),
    )


def _check_numbers(request: SweepRequest) -> None:
    if len(request.name) > _LONGEST_SWEEP_NAME:
        raise BadArgument("name", f"has {len(request.name)} characters; at most {_LONGEST_SWEEP_NAME}.")
    for argument, least in (("max_parallel", 1), ("max_failures", 1), ("cell_failures", 1)):
        value = getattr(request, argument)
        if value is not None and value < least:
            raise BadArgument(argument, f"must be at least {least}.")
    if request.metric is not None and not (request.metric.isprintable() and 0 < len(request.metric) <= _LONGEST_METRIC):
        raise BadArgument("metric", f"must have 1 to {_LONGEST_METRIC} printable characters.")


def _read(phase: Phase, store: RunStore, environ: Mapping[str, str]) -> Phase:
    """Return ``phase`` with its source, or the run that it promotes, read."""
    if phase.promote is not None and phase.promote != BEST:
        run = store.find(phase.promote)
        phase = replace(phase, promoted=_read_params(run))
    if phase.source is None:
        return phase
    common = phase.common
    params = common.get("params")
    cells = read_source(
        phase.source,
        cwd=common.get("cwd"),
        overrides=params if isinstance(params, Mapping) else {},
        gpus=_count_gpus(common.get("gpus")),
        environ=_find_environment(common, store, environ),
    )
    return replace(phase, source_cells=cells)


def _read_params(run: Run) -> dict[str, Any]:
    """Return the parameters of a run's newest attempt; where its id or attempt stood, that of the new run will."""
    planned = {
        name: value for name, value in run.spec.params.items() if isinstance(value, str) and _OF_A_RUN.search(value)
    }
    return {**run.attempt_params.params, **planned}


def _find_environment(common: Mapping[str, Any], store: RunStore, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the runs, without secrets; the python of their environment comes first in PATH."""
    site = read_hosts_file(store.home)
    host = find_this_host(site, common.get("host"))
    env = {str(name): str(value) for name, value in (common.get("env") or {}).items()}
    request = LaunchRequest(env=env)
    filled = apply_host_defaults(request, host, site.environment(common.get("environment"), host), environ)
    return {**base_environment(environ), **filled.env}


def _count_gpus(gpus: Any) -> int | None:
    try:
        request = parse_gpus(gpus)
    except ValueError:
        return None  # refused with the launch
    return request.count if request is not None and not request.cpu else None


def _choose_id(name: str, store: RunStore) -> str:
    label = slug(name)[: LONGEST_NAME - 5]
    while True:
        sweep_id = f"{label}-{''.join(random.choice(_ID_LETTERS) for _ in range(4))}"
        if not (store.home.sweeps / sweep_id).exists() and not (store.home.runs / sweep_id).exists():
            return sweep_id


def _choose_to_rehearse(cells: Sequence[Cell]) -> list[Cell]:
    """Return cells whose launches differ in more than the values of parameters; of equal ones, the first."""
    chosen: dict[str, Cell] = {}
    for cell in cells:
        if cell.promote is not None and "{" in str(cell.launch.get("cwd")):
            continue  # its parameters are not known
        launch = {name: value for name, value in cell.launch.items() if name not in ("command", "params", "env")}
        chosen.setdefault(repr((cell.phase, sorted(launch.items(), key=lambda item: item[0]))), cell)
    return list(chosen.values())[:_MOST_REHEARSED]


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
        new.path.rename(directory.path)
    except OSError as error:
        shutil.rmtree(new.path, ignore_errors=True)
        raise StateUnusable(store.home.path, str(error.strerror)) from error
    return directory


def describe_command(spec: SweepSpec, cell: Cell, checked: Mapping[str, RunSpec]) -> str:
    """Return the exact command of a cell, as the supervisor will run it, but for what is known at its start only."""
    run_spec = checked.get(cell.name)
    if run_spec is None:
        request = make_request(spec, cell, 1)
        arguments = {each: getattr(request, each) for each in LaunchRequest.__dataclass_fields__}
        if not request.command:
            return f"blueprint {request.blueprint}"
        run_spec = RunSpec(**arguments)
    return command_text(run_spec)
