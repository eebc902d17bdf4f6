"""list_runs: the runs of this machine, and those on other machines that were started from it."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from mcp_server.answer import Answer
from mcp_server.backends.local import list_sessions, tmux_socket
from mcp_server.backends.ssh.ssh_channel import channel_of
from mcp_server.hosts.config import find_mirror
from mcp_server.record.state import Run, RunState
from mcp_server.store.attribution.other_trainings import OtherTraining, list_other_trainings
from mcp_server.store.freshness import refresh
from mcp_server.store.run_index import RunQuery
from mcp_server.threads import run_in_thread
from mcp_server.tools.support.context import Call, ServerContext, identity, server_of
from mcp_server.tools.support.schema import READ_ONLY, tool
from mcp_server.tools.support.wait_answer import describe_shared
from mcp_server.views.brevity import MANY_TOKENS, fit, row_of
from mcp_server.views.run_status import RunStatus, add_command, status_of
from mcp_server.views.sweep_status import line_of_sweep

_POLICY_NOTE = "Runs that their recovery policy stopped are killed; in their sweep these cells count as failed."
_COMMAND_CHARS = 300  # of the one run that has a name
_MOST_IN_DETAIL = 10  # of more runs, each is a short row
_MOST_SWEEPS, _MOST_READ_SWEEPS = 4, 20  # named in an answer, and looked at for it


class Others(Answer):
    """tmux sessions and training processes of this host that are not runward's. They are only listed.

    ``searched``: where they were looked for, so that an empty list can be judged.
    """

    searched: str
    tmux_sessions: list[str]
    processes: list[OtherTraining]


class RunList(Answer):
    """Runs, newest first. ``states`` counts all that match; ``more`` is the call for those that did not fit.

    ``sweeps``: those of the listed runs, and those under way, by state and cells; of others the newest, by id.
    """

    runs: list[RunStatus]
    total: int
    states: dict[str, int] | None = None
    more: str | None = None
    sweeps: list[str] | None = None
    others: Others | None = None
    note: str | None = None
    warnings: list[str] | None = None
    unreadable: list[str] | None = None  # runs whose state is unknown now


async def list_runs(
    ctx: Call,
    state: Annotated[RunState | Literal["live", "ended"] | None, Field(description="A state, or live / ended")] = None,
    owner: Annotated[str | None, Field(description="Exactly this owner")] = None,
    tag: Annotated[str | None, Field(description="Launched with this tag")] = None,
    sweep: Annotated[str | None, Field(description="Cells of this sweep (id or name)")] = None,
    name: Annotated[str | None, Field(description="Part of the name or run_id")] = None,
    host: Annotated[str | None, Field(description="Runs there")] = None,
    before: Annotated[str | None, Field(description="Launched before this run: the next page")] = None,
    limit: Annotated[int, Field(ge=1, le=500, description="At most so many")] = 20,
    others: Annotated[
        bool, Field(description="Also tmux sessions, trainings, evaluations, vLLM, Ray that are not ours")
    ] = False,
) -> RunList:
    """List runs, newest first; use it when you lost a run_id or to see what is going on."""
    server = server_of(ctx)

    shows_owner = identity(ctx) is not None

    def list_matching() -> RunList:
        sweep_id = None if sweep is None else server.store.sweeps.find(sweep).sweep_id
        mirror = _reach_mirror(server, host) if host is not None else None
        query = RunQuery(
            state,
            owner,
            None if tag is None else [tag],
            name_part=name,
            sweep=sweep_id,
            mirror=mirror,
            cut_off=None if state == "lost" or name is not None else False,
        )
        is_narrow = any(each is not None for each in (owner, tag, name, host, before)) or state not in (None, "live")
        states = server.store.count_states(query)
        older = query if before is None else replace(query, before=server.store.find(before))
        page = server.store.list_runs(older, limit)
        rows = [_brief(server, run, shows_owner=shows_owner) for run in refresh(server.store, page)]
        if name is not None and len(rows) == 1:
            rows = [add_command(rows[0], page[0], _COMMAND_CHARS)]
        if len(rows) > _MOST_IN_DETAIL:
            rows = [row_of(row, dated=True) for row in rows]
        rows = rows[: fit(rows, MANY_TOKENS, least=1)]
        total = sum(states.values())
        left = (total if older is query else sum(server.store.count_states(older).values())) - len(rows)
        return RunList(
            runs=rows,
            total=total,
            states=states if total > len(rows) else None,
            more=f"{left} older: list_runs(before={rows[-1].run_id!r}) with the same filters"
            if left and rows
            else None,
            sweeps=_list_sweeps(server, {row.sweep for row in rows}, state, is_narrow) if sweep is None else None,
            warnings=describe_shared(server, page) or None,
            note=_POLICY_NOTE if any(row.cell and row.stopped_by == "policy" for row in rows) else None,
            unreadable=list(server.store.unreadable) or None,
        )

    def list_at_once() -> RunList:
        with server.store.one_look():
            return list_matching()

    answer = await run_in_thread(list_at_once)
    return answer.model_copy(update={"others": await _list_others(ctx)}) if others else answer


TOOL = tool(
    list_runs,
    title="List runs",
    annotations=READ_ONLY,
    search_hint="monitor a job, a training job, a Slurm job, squeue, running experiments, status, lost run id",
    drawn=True,
)


def _reach_mirror(server: ServerContext, host: str) -> str:
    """Return the mirror of a host, with runs that this server never heard of; empty for this machine."""
    mirror = find_mirror(server.home, host)
    if mirror:
        channel_of(Path(mirror)).open()
    return mirror


def _brief(server: ServerContext, run: Run, *, shows_owner: bool) -> RunStatus:
    status = status_of(server.store, run, since=run.last_seq, listed=True)
    return status.model_copy(update={"owner": run.spec.owner}) if shows_owner else status


def _list_sweep_sessions(server: ServerContext) -> set[str]:
    if not server.home.sweeps.is_dir():
        return set()
    events = [event for sweep in server.store.sweeps.list_sweeps() for event in sweep.events]
    return {str(event["session"]) for event in events if "session" in event}


def _list_sweeps(
    server: ServerContext, listed: set[str | None], state: str | None, is_narrow: bool
) -> list[str] | None:
    """Return the newest sweeps: live ones and those of ``listed`` runs whole, others by their ids but of live runs.

    ``is_narrow``: only some runs are asked for, and so are the sweeps of those that are listed.
    """
    if not server.home.sweeps.is_dir():
        return None
    newest = server.store.sweeps.list_sweeps(_MOST_READ_SWEEPS)
    if is_narrow:
        newest = [one for one in newest if one.sweep_id in listed]
    sweeps = sorted(newest, key=lambda one: one.ended and one.sweep_id not in listed)
    shown = [one for one in sweeps[:_MOST_SWEEPS] if not one.ended or one.sweep_id in listed]
    lines = [line_of_sweep(sweep, server.store) for sweep in shown]
    left = [sweep.sweep_id for sweep in sweeps[len(shown) :]]
    if state == "live" or is_narrow:
        return lines or None
    count = max(len(left), len(server.store.sweeps.list_ids()) - len(shown))
    named = ", ".join(left[:_MOST_SWEEPS]) + (" and others" if count > _MOST_SWEEPS else "")
    return [*lines, *([f"{count} {'more' if lines else 'ended'}: {named}"] if left else [])] or None


async def _list_others(ctx: Call) -> Others:
    server = server_of(ctx)
    sessions = await list_sessions(server.environ)
    own = await run_in_thread(lambda: server.store.list_sessions(sessions) | _list_sweep_sessions(server))
    sessions = [session for session in sessions if session not in own]
    sessions = await run_in_thread(server.visible_sessions, ctx, sessions)
    others = await run_in_thread(list_other_trainings)
    kinds = "for trainings, evaluations, vLLM and other servers, Ray, and launchers"
    searched = f"tmux sessions of this user on tmux server {tmux_socket(server.environ)!r}; {others.searched}, {kinds}"
    return Others(searched=searched, tmux_sessions=sessions, processes=others.processes)
