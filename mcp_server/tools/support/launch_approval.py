"""Confirmation of launches that may end live runs, and checks of the places that a caller with a token may use.

Its owner may read what is in a run's directories from then on. So where config.toml has ``read_roots``, all of them
must be below these, or in directories of the owner's runs. Without, a launch may run anywhere, and shows whether
``cwd`` exists, as its command could.

Questions to the person at a client: the form, whether it can be shown, and the policy that only people decide.
"""

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from mcp.server.mcpserver import Elicit, ElicitationResult
from pydantic import BaseModel, Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from mcp_server.blueprints.apply import read_blueprint
from mcp_server.blueprints.paths import resolve_paths
from mcp_server.errors import BadArgument, ConfigInvalid, KillNotConfirmed, RunwardError
from mcp_server.record.spec import LaunchRequest, RunSpec
from mcp_server.runs.launch.idempotency import find_run_of_key
from mcp_server.runs.launch.launch import plan
from mcp_server.runs.launch.params_file import split_files
from mcp_server.runs.warnings.runs_at_risk import LaunchNotConfirmed, Risk, find_killers_of, find_risk
from mcp_server.store.run_index import RunQuery
from mcp_server.sweeps.plan.planning import SweepRequest, list_distinct_runs
from mcp_server.sweeps.start import rehearse_sweep
from mcp_server.text.invisible import escape_unsendable
from mcp_server.threads import run_in_thread
from mcp_server.tools.support.context import Call, ServerContext, caller, identity, server_of

_FOR_PEOPLE = (
    "On this machine only a person may end runs: ask one to type runward kill RUN_ID for each, or leave that part of "
    "the command out."
)


# What a question is about: arguments that the tool and its resolver of questions both have.
_NAMING = (
    *("name", "command", "blueprint", "params", "params_file", "cwd"),
    *("common", "grid", "cells", "phases", "source"),
)


class Confirm(BaseModel):
    """The form that a person fills in."""

    run_id: str = Field(
        default="",
        description="Type the run id, of several runs their number, to stop; anything else leaves them alone",
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the form's schema. Codex shows no form whose schema has a title or a description of its own."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        return {name: value for name, value in schema.items() if name not in ("title", "description")}


def put_question(question: str) -> Elicit[Confirm]:
    """Return a question, as every protocol can carry it."""
    return Elicit(escape_unsendable(question), Confirm)  # older protocols send it as a request, past all middleware


def read_answer(
    answer: ElicitationResult[Confirm], allowed: Collection[str], *, came_at_once: bool
) -> Literal["confirmed", "declined"] | None:
    """Return what the person decided who was to type one of ``allowed``; None where a program cancelled at once."""
    if answer.action == "accept":
        return "confirmed" if answer.data.run_id.strip() in allowed else "declined"
    return None if answer.action == "cancel" and came_at_once else "declined"


def find_people_rule(server: ServerContext) -> str:
    """Return the rule that only people stop runs here, and why; empty where agents may. Blocks."""
    rule = "On this machine only a person may stop runs"
    if server.environ.get("RUNWARD_KILL_POLICY") == "human":
        return rule
    if server.home.read_kill_policy() != "human":
        return ""
    try:
        server.home.read_config()
    except ConfigInvalid as error:
        return f"{rule}, as its settings may say so and cannot be read ({error.cause.rstrip('.')})"
    return rule


def can_ask(ctx: Call) -> bool:
    """Return whether the client declared that it can ask a person."""
    elicitation = ctx.client_capabilities.elicitation if ctx.client_capabilities else None
    if elicitation is None or (elicitation.form is None and elicitation.url is not None):
        return False
    return ctx.protocol_version == "2026-07-28" or bool(ctx.session.can_send_request)


async def ask_about_launch(
    ctx: Call, request: LaunchRequest, confirm_token: str | None, *, dry_run: bool
) -> Confirm | Elicit[Confirm]:
    """Ask the person, where a launch may end live runs and the client can ask. Called once per round: it only reads."""
    if dry_run or confirm_token is not None or not can_ask(ctx):
        return Confirm(run_id="")
    server, key = server_of(ctx), name_launch(request)
    if not ctx.input_responses and await run_in_thread(_has_live_runs, server):
        try:
            is_new = await run_in_thread(find_run_of_key, server.store, request.idempotency_key) is None
            if is_new and await run_in_thread(_may_kill, request):
                spec = (await plan(request, server.home, server.environ)).spec
                await note_question(ctx, key, [spec])
        except RunwardError:
            return Confirm(run_id="")  # the launch says why it is refused
    return ask(ctx, key)


async def ask_about_sweep(
    ctx: Call, arguments: Mapping[str, Any], owner: str | None, confirm_token: str | None, *, dry_run: bool
) -> Confirm | Elicit[Confirm]:
    """Ask the person once, where the cells of a new sweep may end live runs. Called once per round: it only reads."""
    if dry_run or confirm_token is not None or not can_ask(ctx):
        return Confirm(run_id="")
    server = server_of(ctx)
    try:
        request = SweepRequest(**arguments, owner=server.owner(ctx, owner))
        if not ctx.input_responses and await run_in_thread(_has_live_runs, server):
            planned, former = await rehearse_sweep(request, server.store, server.environ)
            if former is None or planned.checked:  # whose cells are new
                await note_question(ctx, name_launch(request), list_distinct_runs(planned))
    except RunwardError:
        return Confirm(run_id="")  # launch_sweep says why it is refused
    return ask(ctx, name_launch(request))


async def note_question(ctx: Call, key: str, specs: Sequence[RunSpec]) -> None:
    """Note what the person is to be asked, if runs of these specs may end live ones."""
    server, name = server_of(ctx), caller(ctx)
    if (risk := await run_in_thread(find_risk, specs, server.store)) is not None:
        count = len(risk.runs)
        what = f"the run's id ({risk.runs[0].run_id})" if count == 1 else f"their number ({count})"
        question = f"Start this command? {risk.text} Type {what} to start it; anything else starts nothing."
        server.launches_at_risk.ask(name, [key], risk.attempts, question)


def ask(ctx: Call, key: str) -> Confirm | Elicit[Confirm]:
    """Put the question that was noted in the first round, whatever has begun or ended since; nothing without one."""
    question = server_of(ctx).launches_at_risk.find_question(caller(ctx), [key])
    return Confirm(run_id="") if question is None else put_question(question)


def name_launch(request: LaunchRequest | SweepRequest) -> str:
    """Return the key under which the question about this launch is found in the next round."""
    facts = {name: getattr(request, name, None) for name in _NAMING}
    return f"launch {hashlib.sha256(json.dumps(facts, default=str, sort_keys=True).encode()).hexdigest()}"


class Approval:
    """The decision about one launch: the answer of a person, or a token."""

    def __init__(self, ctx: Call, key: str, answer: ElicitationResult[Confirm], confirm_token: str | None) -> None:
        self._ctx, self._key, self._answer, self._token = ctx, key, answer, confirm_token

    async def check(self, *specs: RunSpec) -> None:
        """Let launches of these specs pass, if they end nothing or were confirmed; else LaunchNotConfirmed."""
        server = server_of(self._ctx)
        risk = await run_in_thread(find_risk, specs, server.store)
        if risk is None:
            return
        if self._token is not None:
            if await run_in_thread(find_people_rule, server):
                raise KillNotConfirmed("Launch not confirmed:", "nothing was started.", _FOR_PEOPLE)
            confirmed: Mapping[str, int] = server.launches_at_risk.redeem_token(self._token, [risk.command]).attempts
            if risk.attempts.items() <= confirmed.items():
                return
        elif can_ask(self._ctx) and self._is_accepted(server, risk):
            return
        raise LaunchNotConfirmed(risk)

    def _is_accepted(self, server: ServerContext, risk: Risk) -> bool:
        """Return whether a person confirmed these runs, or some that have ended since. Raises _Declined at a no."""
        asked, came_at_once = server.launches_at_risk.answer(caller(self._ctx), [self._key])
        if asked is None:
            return False
        count = len(asked.attempts)
        allowed = {str(count), f"{count} runs"} if count > 1 else {*asked.attempts}
        decision = read_answer(self._answer, allowed, came_at_once=came_at_once)
        if decision == "declined":
            raise _Declined(risk)
        if decision is None:  # a program: no person has seen the question
            return False
        return set(risk.attempts) <= set(asked.attempts)


class _Declined(LaunchNotConfirmed):
    """A person was asked, and said no."""


async def describe_unconfirmed(ctx: Call, error: LaunchNotConfirmed) -> dict[str, Any]:
    """Return the answer's fields of a launch that was not confirmed, with a token where an agent may confirm it."""
    server, risk = server_of(ctx), error.risk
    facts: dict[str, Any] = {"runs_at_risk": list(risk.attempts), "warnings": list(risk.killers)}
    if isinstance(error, _Declined):
        step = "Nothing was started: declined, dismissed, or another answer was typed. Leave that part out."
        return {**facts, "status": "declined", "next_step": step}
    facts["status"] = "confirmation_required"
    about = risk.text.removeprefix(" ".join(risk.killers)).strip()
    if await run_in_thread(find_people_rule, server):
        return {**facts, "next_step": f"Nothing was started. {about} {_FOR_PEOPLE}"}
    token = server.launches_at_risk.grant_token([risk.command], risk.attempts)
    step = (
        f"Nothing was started. {about} Leave that part of the command out; or, if ending them is meant, call again "
        "with the same arguments and confirm_token."
    )
    return {**facts, "next_step": step, "confirm_token": token}


def _may_kill(request: LaunchRequest) -> bool:
    """Return whether the request itself says that it ends processes of others; a blueprint has to be read."""
    if request.blueprint is not None or request.params_file is not None:
        return True
    cwd = str(Path(request.cwd or Path.cwd()).expanduser())
    return bool(find_killers_of(RunSpec(command=request.command, cwd=cwd, params=request.params, env=request.env)))


def _has_live_runs(server: ServerContext) -> bool:
    return bool(server.store.list_ids(RunQuery("live"), 1))


_PARAMETER = re.compile(r"\{(?!(?:run_id|attempt|cell|sweep)\})")  # of a cell of a sweep; those are plain words


def check_launch_places(ctx: Call, arguments: Mapping[str, Any], *, dry_run: bool) -> None:
    """Refuse a launch with places that a caller with a token may not read, without a look at them. Blocks."""
    if identity(ctx) is None:
        return
    server = server_of(ctx)
    cwd, blueprint = arguments.get("cwd"), arguments.get("blueprint")
    server.check_readable(ctx, {"blueprint": blueprint, "params": list_params_files(arguments.get("params_file"))}, cwd)
    has_roots = bool(server.home.read_config().read_roots)
    if not (has_roots or dry_run):
        return
    directory = str(Path.cwd()) if has_roots and cwd is None and blueprint is None else cwd  # the server's
    places = {"cwd": directory, "tensorboard": arguments.get("tensorboard")}
    for argument, place in places.items():
        if isinstance(place, str) and _PARAMETER.search(place):
            raise BadArgument(argument, "holds a parameter, which may lead out of what this token may read.")
    server.check_readable(ctx, places, cwd)
    if blueprint is not None:
        server.check_readable(ctx, {"blueprint": _list_directories(blueprint, cwd)}, cwd)


def list_params_files(params: object) -> list[str] | None:
    """Return the files that ``params`` names, each of which is read; None where it is a table."""
    if not isinstance(params, str):
        return None
    return split_files(params)


def _list_directories(blueprint: str, cwd: str | None) -> list[str]:
    try:
        paths = resolve_paths(*read_blueprint(blueprint, cwd), cwd=cwd)
    except (RunwardError, OSError):
        return []
    own = (None if cwd else paths.codebase_dir, paths.result_dir, paths.tensorboard)
    return [str(path) for path in own if path is not None]
