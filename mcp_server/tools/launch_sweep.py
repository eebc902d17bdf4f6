"""launch_sweep: many runs from one plan, advanced by a conductor."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from mcp.server.mcpserver import Elicit, ElicitationResult, Resolve
from mcp.types import ToolAnnotations
from pydantic import Field, WithJsonSchema

from mcp_server.answer import Answer
from mcp_server.errors import BadArgument
from mcp_server.record.state import RunState
from mcp_server.results.memory.recall import find_tried_cells
from mcp_server.runs.wait.cursors import Cursor
from mcp_server.runs.warnings.runs_at_risk import LaunchNotConfirmed
from mcp_server.sweeps.plan.hours import describe_hours
from mcp_server.sweeps.plan.open_cells import describe_open
from mcp_server.sweeps.plan.plan import DEFINING, Phase, parse_phases
from mcp_server.sweeps.plan.planning import SweepRequest, describe_arrays, describe_plan, list_launches
from mcp_server.sweeps.sources.hydra_source import list_places
from mcp_server.sweeps.start import StartedSweep, rehearse_sweep, start_sweep
from mcp_server.sweeps.tables.log import note_cells
from mcp_server.system import tmux
from mcp_server.text.formatting import counted
from mcp_server.threads import run_in_thread
from mcp_server.tools.support.context import WOKEN, Call, caller, identity, server_of, when_answered
from mcp_server.tools.support.launch_approval import (
    Approval,
    Confirm,
    ask_about_sweep,
    check_launch_places,
    describe_unconfirmed,
    name_launch,
)
from mcp_server.tools.support.schema import takes, tool
from mcp_server.views.brevity import fit

_PLAN_TOKENS = 4_000  # of a dry run's answer
_Objects = Annotated[list[dict[str, Any]] | None, WithJsonSchema({"type": "array", "items": {"type": "object"}})]
_Object = Annotated[dict[str, Any] | None, WithJsonSchema({"type": "object"})]


class StartedSweepAnswer(Answer):
    """A sweep that was started or continued; with dry_run its plan, a line a cell with its command."""

    status: Literal["confirmation_required", "declined"] | None = None
    confirm_token: str | None = None
    runs_at_risk: list[str] | None = None
    sweep_id: str | None = None
    state: RunState | None = None
    cells: dict[str, int]
    metric: str | None = None
    plan: list[str] | None = None
    sweep_log: str | None = None
    session: str | None = None
    attach_command: str | None = None
    warnings: list[str] | None = None
    next_step: str


_PLANNING = ("name", "common", "grid", "cells", "blueprints", "source", "phases")


@takes(dict.fromkeys((*_PLANNING, "owner", "confirm_token", "dry_run"), (Any, None)))
async def _ask_person(ctx: Call, **arguments: Any) -> Confirm | Elicit[Confirm]:
    plan = {name: arguments[name] for name in _PLANNING} | {"common": arguments["common"] or {}}
    owner, token = arguments["owner"], arguments["confirm_token"]
    return await ask_about_sweep(ctx, plan, owner, token, dry_run=arguments["dry_run"])


async def launch_sweep(
    ctx: Call,
    answer: Annotated[ElicitationResult[Confirm], Resolve(_ask_person)],
    name: Annotated[str, Field(description="Short; the same name continues an unfinished sweep")],
    common: Annotated[
        _Object,
        Field(
            description="launch_run arguments of all cells: command, cwd, gpus, recovery, time_limit_s, … {lr} in them "
            "is the parameter; also {cell} {sweep} {run_id} {attempt}. Other parameters become arguments"
        ),
    ] = None,
    grid: Annotated[_Object, Field(description='Cross product: {"lr": [0.001, 0.0001], "seed": [1, 2]}')] = None,
    cells: Annotated[_Objects, Field(description='Parameters each; "launch" overrides common')] = None,
    blueprints: Annotated[list[str] | None, Field(description="Paths")] = None,
    source: Annotated[str | None, Field(description="doit:TASK,TASK2 | hydra:CONFIG.yaml | verl:CONFIG.yaml")] = None,
    phases: Annotated[
        _Objects, Field(description="One after the other: name, and grid, cells, …, promote, common each")
    ] = None,
    search: Annotated[
        _Object,
        Field(
            description='{"budget": 40, "space": {"lr": {"low": 1e-5, "high": 1e-2, "log": true}, '
            '"opt": ["adam", "sgd"]}, "strategy": "random" | "tpe"}. Or {"strategy": "open", "budget": 100, "hours": '
            '8, "protect": ["eval.py"], "measure": "python eval.py"}: then propose'
        ),
    ] = None,
    halving: Annotated[
        _Object, Field(description='Stop the worse half at steps of metric: {"steps": [1000, 4000]}')
    ] = None,
    hosts: Annotated[list[str] | None, Field(description="Each cell where GPUs are free first")] = None,
    max_parallel: Annotated[int | None, Field(description="Default: what leases allow")] = None,
    max_failures: Annotated[int | None, Field(description="Failed cells, then no more start")] = None,
    cell_failures: Annotated[int | None, Field(description="Failed runs, then the cell is failed: 1")] = None,
    metric: Annotated[
        str | None, Field(description="Ranks by its last value, e.g. Train/mean_reward; or best:TAG, mean10%:TAG")
    ] = None,
    goal: Annotated[Literal["max", "min"] | None, Field(description="Default: by the metric's name")] = None,
    promote: Annotated[
        str | None, Field(description="One cell with the parameters of this run, or in a phase of the best cell: best")
    ] = None,
    resume: Annotated[
        Literal["continue", "wipe"] | None,
        Field(description="Where the name exists: go on (cells without result start again), or a new sweep"),
    ] = None,
    why: Annotated[str | None, Field(description="Your reason, as in launch_run")] = None,
    owner: Annotated[str | None, Field(description="Default: the server's")] = None,
    idempotency_key: Annotated[str | None, Field(description="A repeated key returns the first sweep")] = None,
    dry_run: Annotated[bool, Field(description="Only check, and show each cell's command")] = False,
    notes: Annotated[
        dict[str, str] | None,
        WithJsonSchema({"type": "object"}),
        Field(description='Only notes on cells of an existing sweep: {"lr0.1": "keep: …"}'),
    ] = None,
    confirm_token: Annotated[str | None, Field(description="From confirmation_required")] = None,
) -> StartedSweepAnswer:
    """Start many runs over the GPUs from one plan; goes on unattended, whatever happens to agents and servers.

    Each cell is an ordinary run. Then wait_run(sweep_id, until="decision"), compare_runs(sweep=...). Call it with
    dry_run first.
    """
    arguments = {each: value for each, value in locals().items() if each in SweepRequest.__dataclass_fields__}
    server = server_of(ctx)
    if notes is not None:
        plan = (common, grid, cells, blueprints, source, phases, search, halving, promote, resume)
        if dry_run or any(each is not None for each in plan):
            raise BadArgument("notes", "are about cells of an existing sweep.", "Pass name and notes alone.")
        return await run_in_thread(_note_cells, ctx, name, notes)
    owner = server.owner(ctx, owner)
    common = {**({} if why is None else {"why": why}), **(common or {})}
    arguments |= {"common": common, "hosts": tuple(hosts or ()), "owner": owner}
    arguments |= {"idempotency_key": await server.idempotency_key(ctx, idempotency_key, owner)}
    request = SweepRequest(**arguments)
    await run_in_thread(_check_places, ctx, arguments, dry_run)
    if dry_run:
        planned, former = await rehearse_sweep(request, server.store, server.environ)
        lines = describe_plan(planned) if former is None or former.spec.open is None else []
        tried = await run_in_thread(
            find_tried_cells, list_launches(planned), server.store, server.scalars, identity(ctx)
        )
        shown = fit(lines, _PLAN_TOKENS)
        more = [f"… {len(lines) - shown} more cells"] if lines[shown:] else []
        hours = await run_in_thread(describe_hours, planned.spec, planned.checked, server.store, former)
        goes_on = ""
        if former is not None and not former.ended and not planned.added:
            due = counted(len(planned.spec.cells), "more cell")
            goes_on, hours = f"{former.sweep_id} is under way, and starts {due} without this call.", ""
        elif former is not None:
            goes_on = f"{former.sweep_id} would go on with these cells{planned.added and f': {planned.added}'}. "
        if planned.spec.open is not None:
            goes_on, hours = "", describe_open(planned.spec, former, hours)
        return StartedSweepAnswer(
            sweep_id=former.sweep_id if former is not None else None,
            cells={"total": len(planned.spec.cells if former is None else former.cells)}
            | ({} if former is None else {"to_start": len(planned.spec.cells)}),
            plan=[*lines[:shown], *more, *await run_in_thread(lambda: list(describe_arrays(planned)))] or None,
            metric=None if planned.spec.metric is None else f"{planned.spec.ranked_by}, {planned.spec.goal}",
            warnings=[*planned.warnings, *tried] or None,
            next_step=f"{goes_on}{hours} Nothing was started: call launch_sweep without dry_run.",
        )
    approval = Approval(ctx, name_launch(request), answer, confirm_token)
    try:
        started = await start_sweep(request, server.store, server.file_watch, server.environ, approval.check)
    except LaunchNotConfirmed as error:
        refusal = await describe_unconfirmed(ctx, error)
        return StartedSweepAnswer(cells={}, **refusal)
    seen = {started.sweep.sweep_id: Cursor.at(started.sweep)}
    when_answered(ctx, partial(server.cursors.remember, caller(ctx), seen))
    is_woken = await server.is_woken(ctx)
    return _describe(started, server.store.sweeps.files_of(started.sweep).log, is_woken=is_woken)


def _note_cells(ctx: Call, name: str, notes: dict[str, str]) -> StartedSweepAnswer:
    server = server_of(ctx)
    sweep = server.store.sweeps.find(name)
    if identity(ctx) is not None:
        server.check_owner(ctx, sweep)
    directory = server.store.sweeps.files_of(sweep)
    limit = "" if sweep.spec.open is None else "A note decides on a suspect alone. "
    note_cells(sweep, server.store, notes, server.actor(ctx), server.environ)
    return StartedSweepAnswer(
        sweep_id=sweep.sweep_id,
        state=sweep.state,
        cells=sweep.count(),
        sweep_log=str(directory.log),
        next_step=f"Noted: {', '.join(notes)}. {limit}Nothing was started.",
    )


_STARTS = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=True)
TOOL = tool(
    launch_sweep,
    title="Launch sweep",
    annotations=_STARTS,
    search_hint="hyperparameter sweep, grid search, many runs, seeds, ablation, overnight, queue of experiments, doit",
)


def _describe(started: StartedSweep, log: Path, *, is_woken: bool) -> StartedSweepAnswer:
    sweep = started.sweep
    steps = {
        "started": "",
        "continued": f"The sweep of this name goes on{started.added and f': {started.added}'}. ",
        "repeated": "This key started the sweep before. ",
    }
    watch = WOKEN if is_woken else f'Call wait_run("{sweep.sweep_id}", until="decision").'
    complete = f'Nothing was started: all its cells have results. compare_runs(sweep="{sweep.sweep_id}") has the table.'
    return StartedSweepAnswer(
        sweep_id=sweep.sweep_id,
        state=sweep.state,
        cells=sweep.count(),
        sweep_log=str(log),
        session=sweep.session,
        attach_command=tmux.attach_command(sweep.session, sweep.spec.tmux_socket),
        warnings=list(started.warnings) or None,
        next_step=complete if started.how == "complete" else f"{steps.get(started.how)}{watch}",
    )


def _check_places(ctx: Call, arguments: Mapping[str, Any], dry_run: bool) -> None:
    """Refuse files and directories of any phase or cell that a caller with a token may not read."""
    if identity(ctx) is None:
        return
    server, only = server_of(ctx), {name: arguments[name] for name in DEFINING}
    phases: list[Phase] = []
    if arguments["phases"] is not None or any(value is not None for value in only.values()):
        phases = parse_phases(arguments["phases"], only, arguments["common"])
    checked: set[tuple[object, ...]] = set()
    for phase in phases:
        launches = [entry["launch"] for entry in phase.cells or () if isinstance(entry.get("launch"), dict)]
        source = phase.source or ""
        for launch in [phase.common, *({**phase.common, **own} for own in launches)]:
            cwd = launch.get("cwd")
            kind, _, rest = source.partition(":")
            has_files = kind.strip() in ("hydra", "verl")
            places = (source, *(launch.get(name) for name in ("cwd", "tensorboard", "blueprint", "params_file")))
            if places in checked:
                continue
            checked.add(places)
            server.check_readable(ctx, {"cwd": str(cwd or ".") if source else None}, cwd)
            # One after the other: a pattern is expanded only once it may be.
            for place in list_places(rest, Path(cwd or Path.cwd()).expanduser()) if has_files else ():
                server.check_readable(ctx, {"source": str(place)}, cwd)
            blueprints: Sequence[str | None] = phase.blueprints or [launch.get("blueprint")]
            for blueprint in blueprints:
                check_launch_places(ctx, {**launch, "blueprint": blueprint}, dry_run=dry_run)
