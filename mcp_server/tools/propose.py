"""propose: a change for an open sweep to try."""

import contextlib
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from mcp.types import ToolAnnotations
from pydantic import Field, WithJsonSchema

from mcp_server.answer import Answer
from mcp_server.command.configs import read_text
from mcp_server.command.script_options import find_unknown_options
from mcp_server.command.shell import parse
from mcp_server.errors import BadArgument
from mcp_server.hosts.environment import find_distinct_secrets, mask_distinct_secrets
from mcp_server.record.code.kept_sources import run_git
from mcp_server.record.run_directory import now
from mcp_server.record.script import command_text
from mcp_server.record.spec import LaunchRequest, RunSpec
from mcp_server.record.sweeps.sweep_state import Sweep
from mcp_server.runs.launch.arguments import check_no_secret, check_options
from mcp_server.runs.launch.idempotency import hold_key
from mcp_server.store.run_store import RunStore
from mcp_server.sweeps.trials import proposals, protection
from mcp_server.sweeps.trials.open_plan import BASELINE, OpenPlan
from mcp_server.sweeps.trials.proposal_files import add_proposal, find_like, list_proposals
from mcp_server.sweeps.trials.trials import OpenSweep, OpenTrial, judge_baseline, make_trial, read_trials
from mcp_server.system.git_state import describe_git_error
from mcp_server.text.formatting import join_some
from mcp_server.text.secret_patterns import mask_secrets
from mcp_server.threads import run_in_thread
from mcp_server.tools.support.context import Call, ServerContext, identity, revive, server_of
from mcp_server.tools.support.schema import tool
from mcp_server.tools.support.wait_answer import describe_kept_trial, line_of_trial
from mcp_server.views.sweep_status import KeptTrial

_LONGEST_TEXT, _MOST_ANCESTORS, _MOST_LIVE, _MOST_FILES = 200, 1000, 3, 8


class ProposalAnswer(Answer):
    """A proposed trial. ``like``: what was tried before and may be the same; ``live``: others that run now."""

    trial: str | None = None
    state: str
    base: str
    files: list[str] | None = None
    why: str | None = None
    like: list[str] | None = None
    live: list[str] | None = None
    queue: int
    warnings: list[str] | None = None
    kept: KeptTrial
    next_step: str


async def propose(
    ctx: Call,
    sweep: Annotated[str, Field(description="An open one")],
    text: Annotated[str, Field(description="The idea, one line")],
    worktree: Annotated[str | None, Field(description="Its files as they are; stays yours")] = None,
    patch: Annotated[str | None, Field(description="Unified diff")] = None,
    commit: Annotated[str | None, Field(description="In its repository")] = None,
    params: Annotated[
        dict[str, Any] | None, WithJsonSchema({"type": "object"}), Field(description="Arguments instead of code")
    ] = None,
    base: Annotated[str | None, Field(description="A trial. Default: worktree's or commit's, else the best")] = None,
    again: Annotated[bool, Field(description="Also what was tried")] = False,
    dry_run: Annotated[bool, Field(description="Only check, and find tries alike")] = False,
    idempotency_key: Annotated[str | None, Field(description="Repeated: the first trial")] = None,
) -> ProposalAnswer:
    """Propose one change to a sweep of strategy open, from one of worktree, patch, commit, params.

    It runs beside the best, and is kept if better by more than chance. Then wait_run(sweep, until="decision").
    """
    server = server_of(ctx)
    given = {"worktree": worktree, "patch": patch, "commit": commit, "params": params}
    found = await run_in_thread(server.store.sweeps.find, sweep)
    if not dry_run and identity(ctx) is not None:
        server.check_owner(ctx, found)
    if worktree is not None:
        await run_in_thread(server.check_readable, ctx, {"worktree": worktree})
    await run_in_thread(_check_open, found)
    line = await run_in_thread(_check_text, server, text)
    await run_in_thread(_check_launch, server, params, idempotency_key)
    change = await run_in_thread(_capture, found, line, given, base)
    change["diff"] = await run_in_thread(mask_distinct_secrets, change["diff"], server.environ, server.home.secrets)
    change |= {"by": server.actor(ctx), "at": now(), "key": idempotency_key}
    async with hold_key(server.store, None if dry_run else f"trials of {found.sweep_id}"):
        answer = await run_in_thread(_add, server.store, found.sweep_id, change, again, dry_run)
    await revive(server, [await run_in_thread(server.store.sweeps.observe, found.sweep_id)])
    return answer


def _check_open(sweep: Sweep) -> None:
    if sweep.spec.open is None:
        cause = f"{sweep.sweep_id} has a plan, and takes no proposals."
        raise BadArgument("sweep", cause, 'launch_sweep(search={"strategy": "open", …}) starts one that does.')
    if sweep.ended or sweep.stop is not None:
        name = sweep.spec.name
        cause = f"{sweep.sweep_id} {'is ' + sweep.state if sweep.ended else 'is being stopped'}. {sweep.reason or ''}"
        remedy = f'launch_sweep(name="{name}", resume="continue", search={{"strategy": "open", "budget": …}}) goes on.'
        if sweep.ended and judge_baseline(read_trials(sweep)) is not None:
            remedy = f'Correct that, then launch_sweep(name="{name}", resume="wipe", …) starts anew.'
        raise BadArgument("sweep", cause.strip(), remedy)


def _check_text(server: ServerContext, text: str) -> str:
    line = text.strip()
    if not line or len(line) > _LONGEST_TEXT or not line.isprintable():
        raise BadArgument("text", f"must be one line of 1 to {_LONGEST_TEXT} printable characters.")
    return mask_secrets(mask_distinct_secrets(line, server.environ, server.home.secrets))


def _check_launch(server: ServerContext, params: dict[str, Any] | None, key: str | None) -> None:
    """Refuse parameters that no launch takes, and a proposal that would keep a key in its files."""
    check_options(LaunchRequest(command="train", params=params or {}, idempotency_key=key))  # theirs may name them
    secrets = find_distinct_secrets(server.environ, server.home.secrets)
    check_no_secret({"params": params, "idempotency_key": key}, secrets)


def _capture(sweep: Sweep, text: str, given: Mapping[str, Any], base: str | None) -> dict[str, Any]:
    """Return the facts of a proposal. Blocks."""
    seen = read_trials(sweep)
    plan, repository = seen.plan, Path(seen.plan.repository)
    source = next((name for name, value in given.items() if value is not None), "worktree")
    if not plan.base and source != "params":
        raise BadArgument(source, "the sweep has no git repository.", "Propose params, or start one in a repository.")
    try:
        parent = _find_base(seen, given, base)
        place = None if given["worktree"] is None else Path(given["worktree"]).expanduser()
        arguments = {**given, "worktree": place, "paths": plan.paths, "protect": plan.protect, "outputs": seen.outputs}
        kept = {seen.trials[name].commit: seen.trials[name] for name in reversed(seen.kept)}
        nearer = [*kept] if place is not None and base is None else ()
        proposal = proposals.capture(repository, parent.commit, **arguments, nearer=nearer, text=text)
        parent = kept[proposal.base] if proposal.base in nearer else parent
        wrong = protection.violations(proposal.files, plan.protect, repository=repository, base=plan.base)
    except (OSError, subprocess.SubprocessError) as error:
        raise BadArgument(source, f"{describe_git_error(error)}.") from error
    facts: dict[str, Any] = {"text": text, "base": parent.name, "commit": proposal.commit, "tree": proposal.tree}
    facts |= {"patch_id": proposal.patch_id, "files": list(proposal.files), "diff": proposal.diff}
    facts |= {"params": {**parent.params, **(given["params"] or {})}}
    told = [f"{join_some(proposal.left_out, 3)} left out: runs write that"] if proposal.left_out else []
    facts |= {"warnings": [*told, *_doubt_options(seen.plan, facts["params"], proposal.commit)]}
    if wrong:
        facts |= {"verdict": "invalid", "why": f"touches what is protected: {', '.join(wrong[:3])}"}
    elif not proposal.files and facts["params"] == dict(parent.params):
        facts |= {"verdict": "no_change", "why": "; ".join([f"nothing differs from {parent.name}", *told])}
    return facts


def _doubt_options(plan: OpenPlan, params: Mapping[str, Any], commit: str) -> Iterator[str]:
    """Yield each of the parameters that the script of a commit has no option for."""
    common, repository = plan.common, Path(plan.repository)
    style = common.get("param_style") or RunSpec.param_style
    own = {**(common.get("params") or {}), **params}
    spec = RunSpec(command=common["command"], params=own, param_style=style)

    def read(path: Path) -> str:
        with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
            name = path.resolve().relative_to(repository.resolve())
            return run_git(str(repository), "show", f"{commit}:./{name}").decode(errors="replace")
        return ""

    cwd = repository / (common.get("cwd") or "")
    yield from find_unknown_options(parse(command_text(spec)), cwd, read if commit else read_text)


def _find_base(seen: OpenSweep, given: Mapping[str, Any], base: str | None) -> OpenTrial:
    """Return the trial that a proposal changes: the named one, the nearest below its source, else the best one."""
    by_commit = {trial.commit: trial for trial in reversed([*seen.trials.values()]) if trial.commit}
    if base is not None:
        if (named := seen.trials.get(base) or by_commit.get(base)) is None:
            raise BadArgument("base", f"{seen.sweep.sweep_id} has no trial {base[:60]!r}.", f"The best is {seen.tip}.")
        return named
    place = given["worktree"] or (seen.plan.repository if given["commit"] else None)
    if place is None:
        return seen.trials[seen.tip]
    word = given["commit"] or "HEAD"
    words = ("rev-list", f"--max-count={_MOST_ANCESTORS}", word, "--")
    try:
        listed = run_git(str(Path(place).expanduser()), *words).decode().split()
    except subprocess.SubprocessError:  # it is none of this repository, and the capture says so
        return seen.trials[seen.tip]
    nearest = next((by_commit[commit] for commit in listed if commit in by_commit), None)
    if nearest is None:
        cause = f"it is not on the base {seen.plan.base[:10]}, nor on a trial of {seen.sweep.sweep_id}."
        raise BadArgument("worktree" if given["worktree"] else "commit", cause, f'Pass base, e.g. "{seen.tip}".')
    return seen.trials[seen.tip] if nearest.commit == seen.trials[seen.tip].commit else nearest


def _add(store: RunStore, sweep_id: str, change: dict[str, Any], again: bool, dry_run: bool) -> ProposalAnswer:
    """Keep a proposal, unless it is one that was made before, or only asks. Blocks."""
    sweep = store.sweeps.observe(sweep_id)
    directory, seen = store.sweeps.files_of(sweep), read_trials(sweep)
    files = list_proposals(directory)
    trials = {**{name: make_trial(name, facts) for name, facts in files.items()}, **seen.trials}
    new = make_trial("", change)
    key = change["key"]
    first = next((name for name, facts in files.items() if key is not None and facts.get("key") == key), None)
    same = next((t for t in trials.values() if (t.tree or None, dict(t.params)) == (new.tree, dict(new.params))), None)
    verdict, diff, warnings = change.get("verdict"), change.pop("diff"), change.pop("warnings")
    if verdict is None and same is not None and not again:
        verdict = "repeat"
        change |= {"verdict": verdict, "why": f"the same as {line_of_trial(same, with_why=same.verdict is not None)}"}
    if first is not None:
        name, verdict = first, trials[first].verdict
    elif dry_run or verdict == "no_change":
        name = None
    else:
        if seen.is_spent(time.time()):
            call = (
                f'launch_sweep(name="{sweep.spec.name}", search={{"strategy": "open", "budget": …}}, resume="continue")'
            )
            raise BadArgument("sweep", f"the budget of {sweep_id} is spent.", f"{call} raises it.")
        name = add_proposal(directory, {each: value for each, value in change.items() if value is not None}, diff)
        if seen.plan.base:
            proposals.save_ref(Path(seen.plan.repository), seen.plan.branch, name, new.commit)
    queue = sum(trial.is_queued for trial in trials.values()) + (name is not None and verdict is None and first is None)
    if verdict == "repeat" and same is not None:
        del trials[same.name]  # its cause names it
    answer = _describe(seen, trials, new, name, verdict, change.get("why"), queue)
    return answer.model_copy(update={"warnings": (verdict is None and warnings) or None})


def _describe(
    seen: OpenSweep,
    trials: Mapping[str, OpenTrial],
    new: OpenTrial,
    name: str | None,
    verdict: str | None,
    why: str | None,
    queue: int,
) -> ProposalAnswer:
    others = [trial for each, trial in trials.items() if each not in (BASELINE, name)]
    live = [line_of_trial(trial) for trial in seen.started if trial.verdict is None and trial.name != name]
    files = [*new.files[:_MOST_FILES], *([f"… {len(new.files) - _MOST_FILES} more"] if new.files[_MOST_FILES:] else [])]
    sweep_id, behind = seen.sweep.sweep_id, new.base != seen.tip
    next_step = f'wait_run("{sweep_id}", until="decision")'
    if verdict is not None:
        next_step = "It does not run: propose another change"
    elif name is None:
        next_step = "Only checked: call propose without dry_run"
    elif queue < seen.plan.ahead:
        next_step = f"Propose another one, or {next_step}"
    if behind and verdict is None:
        next_step += f". The best is {seen.tip} by now: if better than {new.base}, it is merged and measured again"
    return ProposalAnswer(
        trial=name,
        state=verdict or ("checked" if name is None else "queued"),
        base=new.base,
        files=files or None,
        why=why,
        like=[line_of_trial(trial, with_why=True) for trial in find_like(new, others)] or None,
        live=live[:_MOST_LIVE] or None,
        queue=queue,
        kept=describe_kept_trial(seen),
        next_step=f"{next_step}.",
    )


TOOL = tool(
    propose,
    title="Propose a trial",
    annotations=ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=True),
    search_hint="research loop, experiment, change code, keep or discard, autoresearch, improve metric, overnight",
)
