"""The spec of an open sweep, and the launch of each of its cells: the code of a trial, in a worktree of its own."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mcp_server.command.shell import parse
from mcp_server.errors import BadArgument
from mcp_server.record.script import PARAMS, slug, takes_arguments
from mcp_server.record.sweeps.sweep_spec import Cell, SweepSpec
from mcp_server.record.sweeps.sweep_state import Sweep
from mcp_server.sweeps.plan.filling import FILLED, fill_names, with_slots
from mcp_server.sweeps.plan.plan import check_common
from mcp_server.sweeps.plan.plan_checks import spell_switches
from mcp_server.sweeps.trials import proposals, protection
from mcp_server.sweeps.trials.ledger import check_ledger
from mcp_server.sweeps.trials.open_plan import BASELINE, NO_GIT, OpenPlan, parse_open
from mcp_server.sweeps.trials.trials import describe_kept, read_trials
from mcp_server.text.formatting import join_some

MEASURED = "--- measured by the command of the sweep ---"  # a line of the log: only what follows gives the metric
# Python would run a compiled module that the training left beside a protected source, with its time and size.
_NO_CACHE = "export PYTHONPYCACHEPREFIX=/dev/null/none"
_BESIDE = ("grid", "cells", "blueprints", "source", "promote", "phases", "halving")
_NOT_OF_TRIALS = ("backend", "blueprint", "code", "needs")


def plan_open(values: Mapping[str, Any], common: Mapping[str, Any], name: str, sweep_id: str = "") -> OpenPlan:
    """Return the plan of an open sweep. ``values``: the arguments of the call. Reads the repository.

    Its refs have its ``name``, or where another sweep's have that, its id.

    Raises:
        BadArgument: names the argument and the remedy.
    """
    if beside := next((each for each in _BESIDE if values.get(each)), None):
        cause = f"strategy open and {beside} exclude each other: its agents propose what is tried."
        raise BadArgument(beside, cause, f"Leave {beside} out, or strategy open.")
    plan = parse_open(values["search"])
    for argument, meant in (("metric", "what better means"), ("goal", "min or max; it has no default here")):
        if values.get(argument) is None:
            raise BadArgument(argument, f"strategy open needs it: {meant}.")
    _check_launch(common, is_far=bool(values.get("hosts") or common.get("host")), has_code=plan.base != NO_GIT)
    repository = Path(str(common["cwd"])).expanduser()
    if not repository.is_absolute() or not repository.is_dir():
        raise BadArgument("cwd", f"{repository} is no directory with an absolute path.")
    base, protect, branch = "", plan.protect, ""
    if plan.base == NO_GIT:
        if plan.protect or plan.paths:
            raise BadArgument(
                "protect", 'base "none" runs in cwd itself: no file is protected.', "Use git, or leave it out."
            )
        plan = replace(plan, ledger="")  # its runs work there, and would seem to have written the table
    else:
        if plan.ledger:
            check_ledger(repository, plan.ledger)
        base = proposals.read_base(repository, plan.base or "HEAD")
        protect = tuple(protection.check_protect(repository, base, plan.protect))
        branch = slug(name) if proposals.is_name_free(repository, slug(name)) else sweep_id
    own: dict[str, Any] = {"base": base, "protect": protect, "repository": str(repository), "branch": branch}
    return replace(plan, **own, common=_join_measure(common, plan.measure))


def _check_launch(common: Mapping[str, Any], *, is_far: bool, has_code: bool) -> None:
    check_common("common", common)
    for argument in (each for each in _NOT_OF_TRIALS if common.get(each)):
        cause = f"strategy open takes no {argument}: a trial is a commit, and starts beside the best when runward says."
        raise BadArgument("common", cause, f"Leave {argument} out; hosts are reached by ssh.")
    wanted = "git" if is_far and has_code else None
    if common.get("sync") != wanted:
        must = 'be "git"' if wanted else "be left out"
        raise BadArgument("common", f"sync must {must} here: a trial reaches another host as a commit, or not at all.")
    if not common.get("cwd") or not common.get("command"):
        raise BadArgument("common", "strategy open needs command and cwd, the project's directory.")


def list_baseline(plan: OpenPlan, sweep_id: str, max_parallel: int | None) -> tuple[Cell, ...]:
    """Return the runs of the base, as they would run in the project's directory."""
    cells = (Cell(f"{BASELINE}.{seed}", "1", {"trial": BASELINE, "seed": seed}) for seed in range(plan.baseline_runs))
    return tuple(fill_trial(plan, cell, {}, sweep_id, max_parallel) for cell in cells)


def fill_trial(
    plan: OpenPlan, cell: Cell, params: Mapping[str, Any], sweep_id: str, max_parallel: int | None, cwd: str = ""
) -> Cell:
    """Return a cell with its launch: in ``cwd``, with the parameters of its trial, and its seed where that is named."""
    common = {**plan.common, "params": {**(plan.common.get("params") or {}), **params}}
    named = json.dumps([common.get(name) for name in FILLED], default=str)
    seed = {"seed": cell.params["seed"]} if "{seed}" in named else {}
    filled = fill_names(Cell(cell.name, cell.phase, {**params, **seed}, common), sweep_id)
    launch = spell_switches(with_slots(filled, max_parallel)).launch
    return replace(cell, launch={**launch, **({"cwd": cwd} if cwd else {})})


def _join_measure(common: Mapping[str, Any], measure: str) -> dict[str, Any]:
    """Return the launch with the command that measures behind the one that trains, which must end well."""
    if not measure:
        return dict(common)
    train, parsed = common["command"], parse(common["command"])
    text = shlex.join(train) if isinstance(train, list) else train
    if common.get("params") and not takes_arguments(parsed):
        raise BadArgument("common", "the command has no place for params.", f"Write {PARAMS} where they belong.")
    text = f"{text} {PARAMS}" if takes_arguments(parsed) and PARAMS not in text else text
    text = text if parsed.is_one_program else f"( {text} )"
    return {**common, "command": f"{text} && echo {shlex.quote(MEASURED)} && ( {_NO_CACHE}; {measure} )"}


def describe_open(spec: SweepSpec, former: Sweep | None, hours: str) -> str:
    """Return what a sweep would do: its base, or where ``former`` goes on the trials so far; then what is proposed.

    ``hours``: how long the cells take that are known.
    """
    plan = OpenPlan.of(spec)
    ends = [f"{plan.budget} trial{'s' * (plan.budget > 1)}"] if plan.budget else []
    ends += [f"{plan.hours:g} h"] if plan.hours else []
    begin = f"The base first: {hours}"
    if former is not None:
        begin = f"{former.sweep_id} would go on. {describe_kept(read_trials(former))}"
        begin += f" {len(spec.cells)} of its runs start again." if spec.cells else ""
    return (
        f"{begin} Then trials as they are proposed, until {' or '.join(ends)}, mostly 1 to {1 + 2 * plan.repeats} "
        f"runs each; protected: {join_some(list(plan.protect), 5) or 'nothing'}."
    )
