"""launch_run, wait_run: starting runs and hearing of them."""

import time
from typing import Annotated, Any, Literal

import anyio.to_thread
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.tools import Tool
from mcp.types import ToolAnnotations
from pydantic import Field

from mcp_server import tmux
from mcp_server.errors import BadArgument
from mcp_server.launch import ParamStyle, Request, launch, plan
from mcp_server.logfile import tail_lines
from mcp_server.run import Run, RunState
from mcp_server.script import render
from mcp_server.status import Answer, RunStatus
from mcp_server.supervisor.rundir import RunDir, now
from mcp_server.tools.toolbox import LOOKS, Toolbox, caller, tool
from mcp_server.watch import Memory, Reason, Until, guess, watch

# Lines and bytes of output in an answer: a failure has 300 tokens, a heartbeat 100.
_TAIL = {"failed": (6, 440), "lost": (6, 440), "finished": (3, 300)}
_HEARTBEAT_TAIL = (1, 80)


class Launched(Answer):
    """A run that was started, or with dry_run the script that would be."""

    run_id: str | None = None
    state: RunState | None = None
    name: str
    session: str | None = None
    attach_command: str | None = None
    log_path: str | None = None
    run_dir: str | None = None
    started_at: str | None = None
    owner: str
    dry_run_script: str | None = None
    next_step: str


class WaitResult(Answer):
    """Why the wait returned, and the runs then."""

    reason: Reason
    runs: list[RunStatus]
    waited_s: float
    next_timeout_s: float


def tools(box: Toolbox) -> list[Tool]:
    """Return the tools that start and watch runs."""

    async def launch_run(
        ctx: Context[Any, Any],
        command: Annotated[
            str | list[str],
            Field(description="Shell command line (bash), or argv list. No trailing &, nohup or tee"),
        ],
        name: Annotated[str | None, Field(description="Short label, part of run_id")] = None,
        cwd: Annotated[str | None, Field(description="Absolute working directory")] = None,
        env: Annotated[dict[str, str] | None, Field(description="Extra environment; no secrets")] = None,
        secrets: Annotated[
            list[str] | None,
            Field(description='Names only, e.g. ["WANDB_API_KEY"]: the server has the values, output masks them'),
        ] = None,
        time_limit_s: Annotated[
            float | None,
            Field(description="Stop the run after so many seconds (state timed_out). Default: none"),
        ] = None,
        first_step_timeout_s: Annotated[
            float | None, Field(description="Tell when no training step was seen by then. Default 1200")
        ] = None,
        first_step_pattern: Annotated[
            str | None, Field(description="Regex of the first step's line; known frameworks need none")
        ] = None,
        stall_timeout_s: Annotated[
            float | None, Field(description="Tell when nothing advances for so long. Default: by the observed pace")
        ] = None,
        recovery: Annotated[
            Literal["none", "default"] | dict[str, Any] | None,
            Field(
                description="none: report and propose. default: retry what a retry can cure, stop what hangs or "
                "diverges. Or a table: "
                '{"oom_gpu": {"do": "retry", "times": 2, "change": {"num_envs": "halve"}}, "max_retries": 3}'
            ),
        ] = None,
        params: Annotated[
            dict[str, str | int | float | bool | None] | None,
            Field(description="Arguments that recovery may change; end of the command, or at {params} in it"),
        ] = None,
        param_style: Annotated[ParamStyle, Field(description="How params are written")] = "--k v",
        resume_args: Annotated[list[str] | None, Field(description="Further arguments of every retry")] = None,
        owner: Annotated[str | None, Field(description="Who answers for the run. Default: the server's owner")] = None,
        tags: Annotated[list[str] | None, Field(description="Free words, kept with the run")] = None,
        idempotency_key: Annotated[
            str | None, Field(description="A repeated key returns the first run instead of starting another")
        ] = None,
        dry_run: Annotated[bool, Field(description="Only check, and show the script")] = False,
    ) -> Launched:
        """Start a training run (or any long command) that outlives this call, this agent and this server.

        Use it instead of tmux, nohup or `&`. Returns as soon as the command runs; then call wait_run.
        The full output is logged, the exit code kept. Refused arguments start nothing.
        """
        request = Request(
            command=command,
            name=name,
            cwd=cwd,
            env=env or {},
            secrets=secrets or [],
            owner=owner,
            tags=tags or [],
            time_limit_s=time_limit_s,
            idempotency_key=idempotency_key,
            first_step_timeout_s=first_step_timeout_s,
            first_step_pattern=first_step_pattern,
            stall_timeout_s=stall_timeout_s,
            recovery=recovery,
            params=params or {},
            param_style=param_style,
            resume_args=resume_args or [],
        )
        if dry_run:
            spec, _ = plan(request, box.home, box.environ)
            step = "Nothing was started: call launch_run without dry_run."
            return Launched(name=spec.name, owner=spec.owner, dry_run_script=render(spec), next_step=step)
        begun_at = now()
        run = await launch(request, box.ledger, box.changes, box.environ)
        _remember(box, ctx, {run.run_id: _knowing(run)})
        return _launched(run, box, repeated=run.spec.created_at < begun_at)

    async def wait_run(
        ctx: Context[Any, Any],
        run_ids: Annotated[str | list[str], Field(description="One run_id or several")],
        timeout_s: Annotated[
            float | None,
            Field(ge=0, le=86400, description="Default: backoff 30 s to 16 min. 0: state now"),
        ] = None,
        until: Annotated[
            Until, Field(description="event: the first news of any run. first_step: all train. end: all have ended")
        ] = "event",
        since: Annotated[
            int | dict[str, int] | None,
            Field(description="Event number (per run) already known. Default: what you were last told"),
        ] = None,
    ) -> WaitResult:
        """Wait until a training run ends, fails, stalls, or makes its first step.

        Prefer this to sleeping and reading logs: one call watches the whole interval and returns at once
        with the reason, a failure's proof and what to do; reason heartbeat means still running, call again.
        Never stops or restarts a run.
        """
        ids = list(dict.fromkeys([run_ids] if isinstance(run_ids, str) else run_ids))
        if not ids:
            raise BadArgument("run_ids", "names no run.")
        known = {run_id: _memory(box, ctx, run_id, since) for run_id in ids}

        async def progress(waited_s: float, limit_s: float) -> None:
            await ctx.report_progress(waited_s, limit_s, f"{', '.join(ids[:3])}: no news for {waited_s:.0f} s")

        with box.changes.of([box.ledger.rundir(run_id).path for run_id in ids]) as ticket:
            outcome = await watch(
                ids, box.ledger.observe, ticket, known, until=until, timeout_s=timeout_s, progress=progress
            )
        runs = [await anyio.to_thread.run_sync(_status, box, run, outcome.since[run.run_id]) for run in outcome.runs]
        _remember(box, ctx, known)
        return WaitResult(
            reason=outcome.reason,
            runs=runs,
            waited_s=round(outcome.waited_s, 1),
            next_timeout_s=outcome.next_timeout_s,
        )

    starts = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=True)
    return [
        tool(launch_run, title="Launch run", annotations=starts),
        tool(wait_run, title="Wait for runs", annotations=LOOKS),
    ]


def _launched(run: Run, box: Toolbox, *, repeated: bool) -> Launched:
    rundir = RunDir(box.home.runs / run.run_id)
    warning = "This idempotency key has started it before; nothing was started now. " if repeated else ""
    command = run.spec.command
    if isinstance(command, str) and command.rstrip().endswith("&") and not command.rstrip().endswith("&&"):
        warning += "The command ends with &: the run ends with its shell, and what it leaves behind is stopped. "
    return Launched(
        run_id=run.run_id,
        state=run.state,
        name=run.spec.name,
        session=run.spec.session,
        attach_command=tmux.attach_command(run.spec.session, run.spec.tmux_socket),
        log_path=str(rundir.log(run.attempt)),
        run_dir=str(rundir.path),
        started_at=run.started_at,
        owner=run.spec.owner,
        next_step=f"{warning}Call wait_run({run.run_id!r}).",
    )


def _knowing(run: Run) -> Memory:
    return Memory(run.last_seq, run.state)


def _remember(box: Toolbox, ctx: Context[Any, Any], known: dict[str, Memory]) -> None:
    if (name := caller(ctx)) is not None:
        for run_id, memory in known.items():
            box.callers.remember(name, run_id, memory)


def _memory(box: Toolbox, ctx: Context[Any, Any], run_id: str, since: int | dict[str, int] | None) -> Memory:
    name = caller(ctx)
    run = box.ledger.observe(run_id)
    memory = guess(run, time.time()) if name is None else box.callers.recall(name, run_id)
    seq = since.get(run_id) if isinstance(since, dict) else since
    if seq is not None:
        memory.seq, memory.state = seq, run.state if seq >= run.last_seq else ""
    return memory


def _status(box: Toolbox, run: Run, since: int) -> RunStatus:
    # A failure brings its own lines, and a step says more than the line that it was read from.
    told = run.failure is not None or (not run.ended and "step" in run.progress)
    tail = [] if told else _tail(box, run)
    return box.ledger.status(run, since=since, tail=tail, brief=not run.ended)


def _tail(box: Toolbox, run: Run) -> list[str]:
    lines, max_bytes = _TAIL.get(run.state, _HEARTBEAT_TAIL)
    path = RunDir(box.home.runs / run.run_id).log(run.attempt)
    shown = tail_lines(path, lines, label=run.run_id, numbered=False).body.splitlines() if path.is_file() else []
    return newest([line for line in shown if line], lines, max_bytes)


def newest(lines: list[str], count: int, max_bytes: int) -> list[str]:
    """Return the last ``count`` lines that fit in ``max_bytes`` together, long ones cut in the middle."""
    longest = max_bytes // 2 if count > 1 else max_bytes
    kept: list[str] = []
    for line in reversed(lines[-count:]):
        if len(line.encode()) > longest:
            data = line.encode()
            head, tail = data[: longest * 2 // 3], data[-(longest // 3 - 3) :]
            line = f"{head.decode(errors='ignore')}…{tail.decode(errors='ignore')}"  # noqa: PLW2901
        max_bytes -= len(line.encode())
        if max_bytes < 0:
            break
        kept.append(line)
    return kept[::-1]
