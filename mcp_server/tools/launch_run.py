"""launch_run: starting a run."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from mcp.server.mcpserver import Elicit, ElicitationResult, Resolve
from mcp.types import ToolAnnotations
from pydantic import Field, WithJsonSchema

from mcp_server.answer import Answer
from mcp_server.backends.base import backend_of
from mcp_server.errors import RunwardError
from mcp_server.record.code.code_snapshot import read_code_snapshot
from mcp_server.record.code.drift import find_drift
from mcp_server.record.run_directory import now
from mcp_server.record.script import RUN_ID, render
from mcp_server.record.spec import LaunchRequest, RunSpec
from mcp_server.record.state import Run, RunState
from mcp_server.results.memory.recall import find_tried
from mcp_server.runs.code.code_sync import describe_code
from mcp_server.runs.launch.launch import launch, rehearse
from mcp_server.runs.launch.repeat import find_attempt, repeat
from mcp_server.runs.wait.client_calls import waited_before
from mcp_server.runs.wait.cursors import Cursor
from mcp_server.runs.wait.waiting import wait_for_runs
from mcp_server.runs.warnings.runs_at_risk import LaunchNotConfirmed
from mcp_server.runs.warnings.warning_inputs import collect_warnings
from mcp_server.store.page_servers import find_server
from mcp_server.threads import run_in_thread
from mcp_server.tools.support.context import WOKEN, Call, ServerContext, caller, identity, server_of, when_answered
from mcp_server.tools.support.launch_approval import (
    Approval,
    Confirm,
    ask_about_launch,
    check_launch_places,
    describe_unconfirmed,
    name_launch,
)
from mcp_server.tools.support.schema import list_arguments, takes, tool
from mcp_server.views.log_excerpt import read_tail
from mcp_server.views.run_status import Failure, describe_left_behind, status_of

# With wait_s: lines and bytes of output.
_TAIL_LINES, _TAIL_BYTES = 40, 2048
_LONGEST_WAIT_S = 600.0


class Launched(Answer):
    """A run that was started, or with dry_run the script that would be; after wait_s with its end.

    ``status``: not started, since it may end the live ``runs_at_risk``; the same call with ``confirm_token`` does.

    Name, start, paths and how to attach are in verbose answers.
    """

    status: Literal["confirmation_required", "declined"] | None = None
    confirm_token: str | None = None
    runs_at_risk: list[str] | None = None
    run_id: str | None = None
    state: RunState | None = None
    attempt: int | None = None
    earlier: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    stopped_by: str | None = None
    elapsed_s: float | None = None
    step: int | None = None
    total_steps: int | None = None
    metrics: dict[str, float | str] | None = None
    failure: Failure | None = None
    tail: list[str] | None = None
    name: str | None = None
    session: str | None = None
    attach_command: str | None = None
    log_path: str | None = None
    run_dir: str | None = None
    gpus: list[int | str] | None = None
    queue_position: int | None = None
    job_id: str | None = None
    pending_reason: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    owner: str
    dry_run_script: str | None = None
    code: str | None = None
    warnings: list[str] | None = None
    next_step: str


async def _make_request(ctx: Call, arguments: Mapping[str, Any]) -> LaunchRequest:
    server = server_of(ctx)
    owner = server.owner(ctx, arguments["owner"])
    own = {
        "owner": owner,
        "idempotency_key": await server.idempotency_key(ctx, arguments["idempotency_key"], owner),
        "keep_code": arguments.get("code") == "kept",
    }
    if isinstance(arguments["params"], str):
        own |= {"params": None, "params_file": arguments["params"]}
    return await run_in_thread(repeat, LaunchRequest.from_arguments({**arguments, **own}), server.store)


# What the schema of an argument says more than the type of its field.
_FORMS: dict[str, Any] = {
    "recovery": Annotated[
        str | dict[str, Any] | None,
        WithJsonSchema({"anyOf": [{"enum": ["none", "default"], "type": "string"}, {"type": "object"}]}),
    ],
    "params": Annotated[
        dict[str, str | int | float | bool | None] | str | None,
        WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "string"}]}),
    ],
    "change": Annotated[dict[str, Any] | None, WithJsonSchema({"type": "object"})],
    "param_style": Literal["--k v", "k=v"],
    "gpus": int | str | list[int | str] | None,
    "require": Annotated[dict[str, int | float | bool] | None, WithJsonSchema({"type": "object"})],
    "sync": Annotated[Literal["git", "rsync"] | None, WithJsonSchema({"enum": ["git", "rsync"]})],
    "code": Annotated[Literal["now", "kept"] | None, WithJsonSchema({"enum": ["now", "kept"]})],
    "backend": Literal["tmux", "slurm", "ray"],
    "backend_options": Annotated[dict[str, Any] | None, WithJsonSchema({"type": "object"})],
}
_ARGUMENTS = {
    **list_arguments(LaunchRequest, _FORMS),
    "dry_run": (Annotated[bool, Field(description="Only check")], False),
    "wait_s": (
        Annotated[
            float | None,
            WithJsonSchema({"type": "number"}),
            Field(gt=0, le=_LONGEST_WAIT_S, description="Up to 600: its end, if by then"),
        ],
        None,
    ),
    "verbose": (Annotated[bool, Field(description="Paths too")], False),
    "confirm_token": (Annotated[str | None, Field(description="From confirmation_required")], None),
}


@takes(_ARGUMENTS)
async def _ask_person(ctx: Call, **arguments: Any) -> Confirm | Elicit[Confirm]:
    try:
        request = await _make_request(ctx, arguments)
    except RunwardError:
        return Confirm(run_id="")  # launch_run says why it is refused
    return await ask_about_launch(ctx, request, arguments["confirm_token"], dry_run=arguments["dry_run"])


@takes(_ARGUMENTS)
async def launch_run(
    ctx: Call, answer: Annotated[ElicitationResult[Confirm], Resolve(_ask_person)], **arguments: Any
) -> Launched:
    """Start a training run (or any long command) that outlives this call, agent and server.

    Use it instead of tmux, nohup or `&`; then call wait_run.
    """
    dry_run, wait_s = arguments["dry_run"], arguments["wait_s"]
    server = server_of(ctx)
    request = await _make_request(ctx, arguments)
    await run_in_thread(check_launch_places, ctx, vars(request), dry_run=dry_run)
    if dry_run:
        spec = await rehearse(request, server.home, server.environ)
        step = "Nothing was started: call launch_run without dry_run."
        if RUN_ID in render(spec):
            step += f" {RUN_ID} becomes its id at the launch."
        drift = await run_in_thread(_find_drift, request, server)
        warnings = [*drift, *(await _collect_warnings(ctx, spec) or ())] or None
        script = await run_in_thread(backend_of(spec).preview, spec) + render(spec)
        return Launched(
            name=spec.name,
            owner=spec.owner,
            dry_run_script=script,
            code=_describe_code(spec),
            warnings=warnings,
            next_step=step,
        )
    begun_at, drift = now(), await run_in_thread(_find_drift, request, server)
    approval = Approval(ctx, name_launch(request), answer, arguments["confirm_token"])
    try:
        launched = run = await launch(request, server.store, server.file_watch, server.environ, approval.check)
    except LaunchNotConfirmed as error:
        refusal = await describe_unconfirmed(ctx, error)
        return Launched(owner=request.owner or server.home.owner(server.environ), **refusal)
    if wait_s and not run.ended:
        run = await _wait_for_end(ctx, run, wait_s)
    seen = {run.run_id: Cursor.at_launch(run if run.ended else launched)}
    when_answered(ctx, partial(server.cursors.remember, caller(ctx), seen))
    warnings = [*drift, *(await _collect_warnings(ctx, run.spec) or ())]
    repeated = run.spec.created_at < begun_at and request.idempotency_key is not None
    if repeated and request.command is not None and run.spec.command != request.command:
        warnings.insert(0, f"{run.run_id} runs another command than this call's, which was not run: use another key.")
    watch = WOKEN if await server.is_woken(ctx) else "Call wait_run."
    return await run_in_thread(_describe, run, server, warnings, watch, repeated=repeated, verbose=arguments["verbose"])


_STARTS = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=True)
TOOL = tool(
    launch_run,
    title="Launch run",
    annotations=_STARTS,
    search_hint="train model, python train.py, torchrun, start training job, fine-tune, nohup, tmux, sbatch",
    always_loaded=True,
)


def _describe_code(spec: RunSpec) -> str | None:
    if spec.code is None:
        return None
    return describe_code(spec.code, Path(spec.mirror).name)


async def _collect_warnings(ctx: Call, spec: RunSpec) -> list[str] | None:
    server = server_of(ctx)
    if spec.mirror:  # they are about files of this machine
        far = f"{Path(spec.mirror).name} is another host: whether its packages and data are the same is not known."
        return [far] if spec.like else None
    warnings = await run_in_thread(collect_warnings, spec, server.store, server.environ)
    return [*warnings, *await run_in_thread(find_tried, spec, server.store, server.scalars, identity(ctx))] or None


def _find_drift(request: LaunchRequest, server: ServerContext) -> list[str]:
    """Return in what a repetition would differ from the former run, beside what the call changes. Blocks."""
    if request.like is None or request.host is not None:
        return []
    run, attempt = find_attempt(request.like, server.store)
    snapshot = read_code_snapshot(server.store.fetch_record(run), attempt)
    return find_drift(snapshot, RunSpec(**vars(request)), server.environ)


async def _wait_for_end(ctx: Call, run: Run, wait_s: float) -> Run:
    """Return the run at its end, or as it is after ``wait_s``. One that takes longer continues."""
    server = server_of(ctx)

    async def report(waited_s: float, limit_s: float, *_: object) -> None:
        await ctx.report_progress(waited_s, limit_s, f"{run.run_id} runs")

    with server.file_watch.subscribe([server.home.runs / run.run_id]) as subscription:
        outcome = await wait_for_runs(
            [run.run_id],
            lambda ids: run_in_thread(server.store.observe_all, ids),
            subscription,
            {run.run_id: Cursor.at(run)},
            until="end",
            timeout_s=wait_s,
            report=report,
            waited_s=waited_before(),
        )
    (ended,) = outcome.runs
    return ended if isinstance(ended, Run) else run


def _describe(
    run: Run, server: ServerContext, warnings: list[str] | None, watch: str, *, repeated: bool, verbose: bool
) -> Launched:
    rundir, spec = server.store.run_directory(run.run_id), run.spec
    notes = filter(None, (describe_left_behind(run), run.code_change))
    warnings = [*(warnings or ()), *notes] or None
    steps = ["This idempotency key started the run before; nothing was started now."] if repeated else []
    if repeated and run.state == "lost":
        steps.append("How it ended is unknown: look for what it left, then launch it again with another key.")
    steps += ["finish_blueprint writes its figures into results.md."] if run.ended and spec.blueprint else []
    steps.append("read_log has all output." if run.ended else watch)
    if (address := find_server(server.home)) is not None:
        steps.append(f"People see it at http://{address}/?run={run.run_id}.")
    answer = Launched(
        run_id=run.run_id,
        state=run.state,
        session=spec.session or None if spec.backend == RunSpec.backend else None,
        gpus=list(run.gpu_names) or None,
        queue_position=run.queue_position,
        job_id=run.job_id,
        pending_reason=run.pending_reason,
        owner=spec.owner,
        code=_describe_code(spec),
        warnings=warnings,
        next_step=" ".join(steps),
    )
    if run.ended:
        status = status_of(server.store, run, since=run.last_seq)
        tail = read_tail(server.store, run, _TAIL_LINES, _TAIL_BYTES)
        ended_as = ("attempt", "earlier", "exit_code", "signal", "stopped_by", "elapsed_s", "failure")
        end = {name: getattr(status, name) for name in (*ended_as, "step", "total_steps", "metrics")}
        answer = answer.model_copy(update={**end, "tail": tail or None})
    elif run.earlier:
        answer = answer.model_copy(update={"attempt": run.attempt, "earlier": run.earlier})
    if verbose:
        places = {
            "name": spec.name,
            "attach_command": backend_of(spec).attach_command(spec),
            "log_path": str(rundir.log(run.attempt)),
            "run_dir": str(rundir.path),
            "started_at": run.started_at,
            "ended_at": run.ended_at,
        }
        answer = answer.model_copy(update=places)
    return answer
