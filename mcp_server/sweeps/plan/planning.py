"""A planned sweep: its arguments become a spec, and the launches of its cells are rehearsed. Writes nothing."""

import contextlib
import itertools
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mcp_server.backends.local import tmux_socket
from mcp_server.backends.slurm.batch_script import array_backend_of
from mcp_server.errors import BadArgument, RunwardError, SweepNotFound
from mcp_server.gpus.request import ALL, parse_gpus
from mcp_server.hosts.config import find_this_host, read_hosts_file
from mcp_server.hosts.path_checks import MissingInput
from mcp_server.record.handover import base_environment
from mcp_server.record.run_directory import now
from mcp_server.record.script import LONGEST_NAME, command_text
from mcp_server.record.spec import LaunchRequest, RunSpec
from mcp_server.record.state import Run
from mcp_server.record.sweeps.sweep_spec import BEST, Cell, SweepSpec
from mcp_server.record.sweeps.sweep_state import CellState
from mcp_server.results.evaluations.benchmark_table import find_benchmark
from mcp_server.results.figures import ANY_COUNT, RANKINGS, choose_goal
from mcp_server.runs.launch.arguments import check_name
from mcp_server.runs.launch.gpu_admission import count_gpus, find_quota, requests_gpus
from mcp_server.runs.launch.launch import rehearse
from mcp_server.runs.launch.resolve import apply_host_defaults
from mcp_server.runs.warnings.warning_inputs import warn_of_options
from mcp_server.scalars.curve_questions import parse_ranking
from mcp_server.scalars.tag_names import best_direction
from mcp_server.store.run_store import RunStore
from mcp_server.sweeps.plan.cell_code import plan_copies
from mcp_server.sweeps.plan.filling import ALWAYS_FILLED, PLACEHOLDER, as_text, make_request, with_slots
from mcp_server.sweeps.plan.halving import parse_halving
from mcp_server.sweeps.plan.open_cells import list_baseline, plan_open
from mcp_server.sweeps.plan.plan import DEFINING, CellSources, Phase, expand, parse_phases
from mcp_server.sweeps.plan.plan_checks import (
    check_distinct,
    check_grid_values,
    check_multirun,
    find_shared_outputs,
    name_runs,
    spell_switches,
    takes_hydra_settings,
)
from mcp_server.sweeps.plan.search import parse_search
from mcp_server.sweeps.plan.values import SweepRefused, begin_cell, check_values, is_of_first_phase
from mcp_server.sweeps.sources.source import GpuCount, read_source
from mcp_server.sweeps.trials.open_plan import is_open
from mcp_server.threads import run_in_thread

_LONGEST_SWEEP_NAME = 40
_LONGEST_METRIC = 200
LIMITS = ("max_parallel", "max_failures", "cell_failures")  # of a sweep, which may be others where it goes on
_OF_A_RUN = re.compile(r"\{(?:run_id|attempt)\}")
_MOST_REHEARSED = 24  # cells whose launch is checked in full; the others differ from one of these in values alone


@dataclass(frozen=True)
class SweepRequest(CellSources):
    """The arguments of a sweep as the caller gave them."""

    name: str
    common: Mapping[str, Any] = field(default_factory=dict)
    halving: Mapping[str, Any] | None = None
    phases: Sequence[Mapping[str, Any]] | None = None
    hosts: Sequence[str] = ()
    max_parallel: int | None = None
    max_failures: int | None = None
    cell_failures: int | None = None
    metric: str | None = None
    goal: Literal["max", "min"] | None = None
    resume: Literal["continue", "wipe"] | None = None
    owner: str | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True)
class PlannedSweep:
    """A sweep that could be started: its spec, and the run of each cell that was checked in full, by cell.

    ``added``: how many of its cells are new in a sweep that goes on, in words.
    """

    spec: SweepSpec
    checked: Mapping[str, RunSpec]
    warnings: tuple[str, ...] = ()
    added: str = ""


async def plan_sweep(request: SweepRequest, store: RunStore, environ: Mapping[str, str]) -> PlannedSweep:
    """Return the plan of a sweep, or raise a RunwardError that names the cell without a launch. Writes nothing."""
    return await check_plan(await run_in_thread(make_spec, request, store, environ), request.goal, store, environ)


async def check_plan(spec: SweepSpec, goal: str | None, store: RunStore, environ: Mapping[str, str]) -> PlannedSweep:
    """Raise a RunwardError that names the first cell of ``spec`` without a launch. ``goal``: as the caller said it."""
    await run_in_thread(check_values, spec, store.home, environ)
    await run_in_thread(_check_quota, spec, store)
    await run_in_thread(plan_copies, spec, store.home.path)
    checked: dict[str, RunSpec] = {}
    for cell in _choose_to_rehearse(spec.cells):
        begun = begin_cell(spec, cell)
        try:
            for host in spec.hosts or [None]:
                request = make_request(spec, begun, 1, host)
                run = await rehearse(_make_patient(request), store.home, environ)
                checked[cell.name] = run if begun is cell else _hide_chosen(run, request, cell, spec)
        except RunwardError as error:
            if isinstance(error, MissingInput) and error.is_made and not is_of_first_phase(spec, cell):
                continue  # it is checked once more when its phase begins
            raise SweepRefused(cell.name, error) from error
    has_worktrees = spec.open is not None and bool(spec.open["base"])  # one for each cell
    tighter = _find_tighter_limit(spec, checked.values())
    warnings = (
        *_list_warnings(spec.cells),
        *_name_unfilled(spec.cells),
        *await run_in_thread(_doubt_options, spec.cells, checked),
        *([] if has_worktrees else find_shared_outputs(spec.cells)),
        *tighter,
        *_doubt_metric(spec, goal),
        *_doubt_choice(spec),
    )
    return PlannedSweep(spec, checked, warnings)


def _hide_chosen(run: RunSpec, begun: LaunchRequest, cell: Cell, spec: SweepSpec) -> RunSpec:
    """Return the run of a cell without the values of what is chosen when it begins: other cells may have others."""
    planned = make_request(spec, cell, 1)
    known = {name for name, value in planned.params.items() if begun.params.get(name) == value}
    known -= {name for each in spec.cells for name, value in each.params.items() if planned.params.get(name) != value}
    params = {name: value for name, value in run.params.items() if name in known or name in cell.params}
    command = run.command if begun.command == planned.command else planned.command
    return replace(run, params=params, command=command or run.command)


def _doubt_metric(spec: SweepSpec, goal: str | None) -> Iterator[str]:
    """Yield that the goal is a guess, as nobody said it and the metric's name does not; and a prefix that is none."""
    if spec.metric is not None and (prefix := re.match(r"([A-Za-z]\w*%?):\S", spec.metric)):
        known = ", ".join(f"{ranking}:" for ranking in RANKINGS)
        yield f"{prefix[1]}: is none of {known}; the metric is taken to be named {spec.metric!r}."
    if spec.metric is not None and goal is None and best_direction(spec.metric) is None:
        yield f"Whether more or less of {spec.metric} is better, its name does not say: max is taken. Pass goal."


def _doubt_choice(spec: SweepSpec) -> Iterator[str]:
    if spec.depends_on_metric and (name := find_benchmark([cell.params for cell in spec.cells])) is not None:
        yield (
            f"{name} is the benchmark: what is halved, searched or promoted is chosen by values that are not "
            "comparable. A sweep for each one compares settings."
        )


def _find_tighter_limit(spec: SweepSpec, checked: Iterable[RunSpec]) -> Iterator[str]:
    """Yield that fewer cells run at once than ``max_parallel`` allows, as each holds cpu slots."""
    for run in checked:
        held = request.cpu if (request := parse_gpus(run.gpus)) is not None else 0
        most = run.cpu_slots // held if held and not run.mirror else None
        if most is not None and spec.max_parallel is not None and most < spec.max_parallel:
            slots = f"{run.cpu_slots} cpu slots" + (f", and a cell holds {held}" if held > 1 else "")
            yield f"max_parallel is {spec.max_parallel}, but {most} run at once: this machine has {slots}."
            return


def _check_quota(spec: SweepSpec, store: RunStore) -> None:
    quota = find_quota(store.home.read_config().quotas, spec.owner)
    for cell in spec.cells if quota is not None else ():
        needed = count_gpus(cell.launch.get("gpus"), cell.launch.get("require"))
        if needed > (quota or 0):
            text = f"{spec.owner} may have {quota} GPUs at once, and this cell needs {needed}: it could never start."
            refusal = RunwardError(
                text, "Nothing was started.", "Request fewer, or a person raises the quota in config.toml."
            )
            raise SweepRefused(cell.name, refusal)


def _make_patient(request: LaunchRequest) -> LaunchRequest:
    return replace(request, queue=True) if requests_gpus(request.gpus, request.require) else request


def _name_unfilled(cells: Sequence[Cell]) -> Iterator[str]:
    planned = [cell for cell in cells if cell.promote is None and cell.trial is None]
    texts = dict.fromkeys(json.dumps([cell.launch.get(each) for each in ("command", "env")]) for cell in planned)
    names = dict.fromkeys(name for text in texts for name in PLACEHOLDER.findall(text) if name not in ALWAYS_FILLED)
    if names:
        listed = ", ".join(f"{{{name}}}" for name in names)
        yield f"{listed}: no parameter of this name; the program gets it as it is written."


def _doubt_options(cells: Sequence[Cell], checked: Mapping[str, RunSpec]) -> list[str]:
    """Return which parameters of cells their scripts have no option for."""
    runs = list(checked.values())
    for launch in (cell.launch for cell in cells if cell.launch.get("command") and runs):
        params = launch.get("params") or {}
        runs.append(replace(runs[0], command=launch["command"], params=params, cwd=launch.get("cwd") or runs[0].cwd))
    differing = [*{repr((run.command, run.cwd, sorted(run.params))): run for run in runs}.values()]
    return list(dict.fromkeys(doubt for run in differing[:_MOST_REHEARSED] for doubt in warn_of_options(run)))


def _list_warnings(cells: Sequence[Cell]) -> Iterator[str]:
    names: dict[str, list[str]] = {}
    for cell in cells:
        for note in cell.notes:
            names.setdefault(note, []).append(cell.name)
    for note, concerned in names.items():
        more = f" and {len(concerned) - 1} more" if len(concerned) > 1 else ""
        yield note if len(concerned) == len(cells) else f"{concerned[0]}{more}: {note}"


def make_spec(
    request: SweepRequest, store: RunStore, environ: Mapping[str, str], former: SweepSpec | None = None
) -> SweepSpec:
    """Return the spec of a sweep. Reads its sources: call it in a thread.

    ``former``: the sweep that the request continues. Cells that it has keep their names.
    """
    check_name(request.name)
    _check_numbers(request)
    if former is not None and request.max_parallel is None:
        request = replace(request, max_parallel=former.max_parallel)
    sweep_id = store.home.choose_id(request.name[: LONGEST_NAME - 5]) if former is None else former.sweep_id
    if is_open(request.search):
        return _make_open_spec(request, sweep_id, store, environ)
    only = {name: getattr(request, name) for name in DEFINING}
    phases = [_read(phase, store, environ) for phase in parse_phases(request.phases, only, request.common)]
    if phases[0].promote == BEST:
        raise BadArgument("promote", '"best" is the best cell of a phase before it, and there is none.', "Name a run.")
    if any(phase.promote == BEST for phase in phases) and request.metric is None:
        raise BadArgument("promote", '"best" needs metric: the figure that says which cell is the best.')
    searches = {phase.name: phase.search for phase in phases if phase.search is not None}
    if request.metric is None and (
        request.halving or any(parse_search(each).needs_history for each in searches.values())
    ):
        raise BadArgument("metric", "is needed by halving and by this search: what best means.")
    if request.halving is not None:
        parse_halving(request.halving)
    expanded = expand(phases, sweep_id, former.cells if former is not None else ())
    for phase in phases:
        _check_meaning(phase)
    cells = name_runs([spell_switches(with_slots(cell, request.max_parallel)) for cell in expanded])
    check_distinct(cells)
    for cell in cells:
        if not cell.launch.get("command") and not cell.launch.get("blueprint"):
            raise BadArgument("common", f"holds no command, and cell {cell.name} brings none.", "Pass common.command.")
    metric, ranking = (None, RANKINGS[0]) if request.metric is None else parse_ranking(request.metric)
    return SweepSpec(
        sweep_id=sweep_id,
        name=request.name,
        owner=request.owner or store.home.owner(environ),
        created_at=now(),
        cells=cells,
        max_parallel=request.max_parallel,
        max_failures=request.max_failures,
        cell_failures=request.cell_failures or SweepSpec.cell_failures,
        metric=metric,
        ranking=ranking,
        goal="max" if metric is None else choose_goal(metric, request.goal),
        hosts=tuple(request.hosts),
        searches=searches,
        halving=request.halving,
        tmux_socket=tmux_socket(environ),
    )


def _make_open_spec(request: SweepRequest, sweep_id: str, store: RunStore, environ: Mapping[str, str]) -> SweepSpec:
    plan = plan_open(vars(request), request.common, request.name, sweep_id)
    metric, ranking = parse_ranking(request.metric or "")
    return SweepSpec(
        sweep_id=sweep_id,
        name=request.name,
        owner=request.owner or store.home.owner(environ),
        created_at=now(),
        cells=list_baseline(plan, sweep_id, request.max_parallel),
        max_parallel=request.max_parallel,
        metric=metric,
        ranking=ranking,
        goal=request.goal or "min",
        hosts=tuple(request.hosts),
        open=plan.facts(),
        tmux_socket=tmux_socket(environ),
    )


def _check_meaning(phase: Phase) -> None:
    launches = [phase.common, *(each.launch for each in phase.source_cells or ())]
    launches += [own for entry in phase.cells or () if isinstance(own := entry.get("launch"), Mapping)]
    for launch in launches:
        if isinstance(command := launch.get("command"), str | list):
            check_multirun(command, launch.get("params") or {}, is_settings=takes_hydra_settings(launch))
    is_hydra = any(map(takes_hydra_settings, launches))
    listed = {name: [value] for entry in phase.cells or () for name, value in entry.items() if name != "launch"}
    for where, values in (("grid", phase.grid or {}), ("cells", listed)):
        for name, each in values.items():
            check_grid_values(where, name, each, is_settings=is_hydra)
    space = (phase.search or {}).get("space")
    for name, choices in space.items() if isinstance(space, Mapping) else ():
        for value in choices if isinstance(choices, list) else ():
            spell_switches(Cell(name, phase.name, launch={**phase.common, "params": {name: value}}))


def check_limits(request: SweepRequest) -> None:
    """Refuse a limit below 1 (BadArgument)."""
    for name in LIMITS:
        if (value := getattr(request, name)) is not None and value < 1:
            raise BadArgument(name, "must be at least 1.")


def _check_numbers(request: SweepRequest) -> None:
    if len(request.name) > _LONGEST_SWEEP_NAME:
        raise BadArgument("name", f"has {len(request.name)} characters; at most {_LONGEST_SWEEP_NAME}.")
    check_limits(request)
    if request.metric is not None and not (request.metric.isprintable() and 0 < len(request.metric) <= _LONGEST_METRIC):
        raise BadArgument("metric", f"must have 1 to {_LONGEST_METRIC} printable characters.")
    if (request.metric or "").startswith(ANY_COUNT):
        cause = f"{ANY_COUNT} is for compare_runs: a sweep promotes no setting for its fewer seeds."
        raise BadArgument("metric", cause)


def _read(phase: Phase, store: RunStore, environ: Mapping[str, str]) -> Phase:
    if phase.promote is not None and phase.promote != BEST:
        run = store.find(phase.promote)
        former = _find_cell(run, store)
        phase = replace(
            phase,
            promoted={**(_list_filled(former, run) if former is not None else {}), **_read_params(run)},
            inherited=former.overrides if former is not None else {},
            braces=frozenset(PLACEHOLDER.findall(json.dumps([run.spec.command, run.spec.env]))),
            doubts=tuple(_doubt_promoted(run)),
        )
        if phase.source is None and not {"command", "blueprint"} & {*phase.common, *phase.inherited}:
            cause = "holds no command: a promotion takes the run's parameters, and its command from this call."
            text = run.spec.command if isinstance(run.spec.command, str) else shlex.join(run.spec.command)
            raise BadArgument("common", cause, f"That of {run.run_id} was {text!r} in {run.spec.cwd}.")
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


def _find_cell(run: Run, store: RunStore) -> CellState | None:
    """Return the cell of a sweep whose run this is, None where it is none's, or its sweep was removed."""
    with contextlib.suppress(SweepNotFound):
        cells = store.sweeps.observe(run.spec.sweep).cells if run.spec.sweep else ()
        return next((cell for cell in cells if cell.cell.name == run.spec.cell), None)
    return None


def _list_filled(former: CellState, run: Run) -> dict[str, Any]:
    """Return the parameters of a cell that stand in its launch, and are none of its run's."""
    planned = former.cell.params if former.chosen is None else former.chosen
    return {name: value for name, value in planned.items() if name not in run.spec.params}


def _doubt_promoted(run: Run) -> Iterator[str]:
    if run.state == "failed":
        kind = f" ({run.failure['kind']})" if run.failure and run.failure.get("kind") else ""
        step = run.progress.get("step")
        place = "before any step" if step is None else f"at step {step}"
        yield f"{run.run_id} failed{kind} {place} with these parameters"


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


def _count_gpus(gpus: Any) -> GpuCount:
    try:
        request = parse_gpus(gpus)
    except ValueError:
        return None  # refused with the launch
    if request is None or request.cpu:
        return None
    if request.ids:
        return "all" if request.ids == ALL else 1 if request.is_mig else len(request.ids)
    return request.count


def _choose_to_rehearse(cells: Sequence[Cell]) -> list[Cell]:
    """Return cells whose launches differ in more than the values of parameters; of equal ones, the first."""
    chosen: dict[str, Cell] = {}
    for cell in cells:
        if cell.promote is not None and "{" in str(cell.launch.get("cwd")):
            continue  # its parameters are not known
        launch = {name: value for name, value in cell.launch.items() if name not in ("command", "params", "env")}
        chosen.setdefault(repr((cell.phase, sorted(launch.items(), key=lambda item: item[0]))), cell)
    return list(chosen.values())[:_MOST_REHEARSED]


def describe_arrays(planned: PlannedSweep) -> Iterator[str]:
    """Yield the batch script of each phase that is handed in to Slurm as an array, for its cells that are alike.

    Asks the login node. Use a thread.
    """
    spec = planned.spec
    for phase in spec.phases if spec.max_failures is None and not spec.hosts else ():
        cells = [cell for cell in spec.cells if cell.phase == phase and cell.wants_array]
        checked = next((planned.checked[cell.name] for cell in cells if cell.name in planned.checked), None)
        if len(cells) > 1 and checked is not None:
            backend = array_backend_of(checked)
            count = min(len(cells), backend.most_in_array)
            yield backend.preview_array(checked, spec.sweep_id, count, spec.max_parallel)


def list_distinct_runs(planned: PlannedSweep) -> list[RunSpec]:
    """Return the runs that were checked, and a run for each other command of a cell: its parameters belong to it."""
    runs = list(planned.checked.values())
    seen = {_name_command(run.command, run.params) for run in runs}
    for launch in [cell.launch for cell in planned.spec.cells if cell.launch.get("command")]:
        command, params = launch["command"], launch.get("params") or {}
        if (text := _name_command(command, params)) not in seen:
            seen.add(text)
            runs.append(replace(runs[0], command=command, params=params, cwd=launch.get("cwd") or runs[0].cwd))
    return runs


def _name_command(command: str | list[str], params: Mapping[str, Any]) -> str:
    """Return a command with what its parameters add, without their numbers, which name no program."""
    words = {name: None if isinstance(value, int | float) else value for name, value in params.items()}
    return json.dumps([command, words | {name: value for name, value in params.items() if value is True}], default=str)


def describe_plan(planned: PlannedSweep) -> list[str]:
    """Return a line a cell with its command; the trials of a search whose lines would be equal share one."""
    lines: list[str] = []
    for (phase, alone), group in itertools.groupby(
        enumerate(planned.spec.cells, 1), lambda each: (each[1].phase, each[1].trial is None and each[0])
    ):
        (first, cell), *_, (last, final) = [*(listed := list(group)), listed[-1]]
        text = _render_command(planned.spec, cell, planned.checked) + _name_open_parameters(planned.spec, cell)
        named = f"{first} {phase} {cell.name}"
        if not alone and last > first:
            named = f"{first}-{last} {phase} {cell.name} to {final.name}"
        lines.append(f"{named}: {text}")
    return lines


def list_launches(planned: PlannedSweep) -> dict[str, tuple[str, str, Mapping[str, str]]]:
    """Return the command, directory and variables of each cell that are known before it begins, by its name."""
    known = [cell for cell in planned.spec.cells if cell.trial is None and cell.promote is None]
    return {
        cell.name: (
            _render_command(planned.spec, cell, planned.checked),
            str(cell.launch.get("cwd") or ""),
            cell.launch.get("env") or {},
        )
        for cell in known
    }


def _name_open_parameters(spec: SweepSpec, cell: Cell) -> str:
    if cell.trial is not None:
        search = parse_search(spec.searches[cell.phase])
        return f" (and {', '.join(search.space)}: chosen by {search.strategy} when it begins)"
    shown = cell.launch.get("params") or {}
    own = "".join(f"{name} {as_text(value)}, " for name, value in cell.params.items() if name not in shown)
    return f" (and {own}the parameters of the best cell so far)" if cell.promote == BEST else ""


def _render_command(spec: SweepSpec, cell: Cell, checked: Mapping[str, RunSpec]) -> str:
    run_spec = checked.get(cell.name)
    if run_spec is None:
        request = make_request(spec, cell, 1)
        if not request.command:
            return f"blueprint {request.blueprint}"
        run_spec = RunSpec(**vars(request))
    return command_text(run_spec)
