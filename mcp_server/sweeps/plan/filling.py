"""From a cell to the launch of its run: its parameters filled in, and its request. Pure."""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any

from mcp_server.command.shell import parse
from mcp_server.errors import BadArgument
from mcp_server.record.script import LONGEST_NAME, takes_arguments
from mcp_server.record.spec import LaunchRequest
from mcp_server.record.sweeps.sweep_spec import Cell, SweepSpec
from mcp_server.runs.launch.gpu_admission import requests_gpus
from mcp_server.sweeps.sources.source import propose_run_name

# What a sweep decides by itself, and what only makes sense for one run.
OF_THE_SWEEP = {
    *("name", "owner", "queue", "idempotency_key", "sweep", "cell", "filled", "params_file", "keep_code", "like"),
    "change",
}
LAUNCH_ARGUMENTS = frozenset(each.name for each in fields(LaunchRequest)) - OF_THE_SWEEP
# Arguments of launch_run in which {name} stands for a parameter.
FILLED = ("command", "cwd", "env", "tensorboard", "params", "resume_args", "first_step_pattern")
ALWAYS_FILLED = ("cell", "sweep", "run_id", "attempt", "gpus", "gpu_indices", "params")
PLACEHOLDER = re.compile(r"(?<![$\w])\{([A-Za-z_]\w*)\}")
_NAME = re.compile(r"(?<!\$)\{([A-Za-z_][\w.\-/]*)\}")  # `${lr}` is a variable of the shell


def name_arguments(launch: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of a launch by the names that they have as settings: ``$NAME`` of a variable, else their own."""
    own = {name: value for name, value in launch.items() if name not in ("env", "params")}
    return {**own, **{f"${name}": value for name, value in (launch.get("env") or {}).items()}}


def apply_overrides(launch: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a launch with what another cell's launch overrides."""
    env = {name[1:]: value for name, value in overrides.items() if name.startswith("$")}
    own = {name: value for name, value in overrides.items() if name in LAUNCH_ARGUMENTS}
    return merge(launch, {**own, **({"env": env} if env else {})})


def merge(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return launch arguments with those of ``own`` instead; variables and parameters are added to the common ones."""
    merged = {**common, **own}
    for name in ("env", "params"):
        if isinstance(common.get(name), Mapping) and isinstance(own.get(name), Mapping):
            merged[name] = {**common[name], **own[name]}
    return merged


def fill_names(cell: Cell, sweep_id: str) -> Cell:
    """Return ``cell`` with its parameters in its launch: where ``{name}`` stands for one, else among ``params``.

    ``{cell}`` and ``{sweep}`` are filled in as well. The supervisor fills in ``{run_id}`` and ``{attempt}``. A program
    that would write beside other runs gets a name of its own (``sources/run_name``).
    """
    params: dict[str, Any] = {**(cell.launch.get("params") or {}), **cell.params}
    names = {"sweep": sweep_id, "cell": cell.name} | {name: as_text(value) for name, value in params.items()}
    used: set[str] = set()

    def replace_name(match: re.Match[str]) -> str:
        used.add(match[1])
        return names.get(match[1], match[0])

    def fill(value: Any) -> Any:
        if isinstance(value, str):
            return _NAME.sub(replace_name, value)
        if isinstance(value, Mapping):
            return {name: fill(inner) for name, inner in value.items()}
        return [fill(inner) for inner in value] if isinstance(value, list) else value

    launch = {name: fill(value) if name in FILLED else value for name, value in cell.launch.items()}
    rest = {**(launch.get("params") or {}), **cell.params}
    filled = {**(launch.get("filled") or {}), **{name: params[name] for name in params if name in used}}
    launch["params"] = {name: value for name, value in rest.items() if name not in filled}
    launch |= {"filled": filled} if filled else {}
    launch["params"] |= _name_run(launch)
    return replace(cell, launch=launch)


def _name_run(launch: Mapping[str, Any]) -> dict[str, str]:
    command = launch.get("command")
    if not isinstance(command, str | list) or not takes_arguments(parse(command)):
        return {}
    proposal = propose_run_name(command, launch["params"], launch.get("param_style") or "--k v")
    name, _, value = (proposal or "").partition("=")
    return {name: value} if proposal else {}


def check_filled(cell: Cell, others: Collection[str]) -> None:
    """Raise BadArgument for a promotion's name in braces that no parameter fills in. ``others``: its program's."""
    known = {*cell.params, *(cell.launch.get("params") or {}), *others, *ALWAYS_FILLED}
    text = json.dumps([cell.launch.get(name) for name in FILLED], default=str)
    if (name := next((each for each in PLACEHOLDER.findall(text) if each not in known), None)) is not None:
        cause = f"nothing fills in {{{name}}}: the promoted run has no parameter {name}."
        raise BadArgument("common", cause, f'Pass it in common.params, e.g. {{"{name}": "…"}}.')


def as_text(value: object) -> str:
    """Return a parameter's value as a command has it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def make_request(spec: SweepSpec, cell: Cell, number: int, host: str | None = None) -> LaunchRequest:
    """Return the request for run ``number``, from 1, of a cell; with ``host`` it waits in no line there.

    The key makes each such run start once, however often a conductor dies and another one launches it again, and on
    whatever host.
    """
    arguments: dict[str, Any] = {
        **cell.launch,
        # The cell's name is whole in the run's id, which has a few letters behind it.
        "name": f"{spec.name[: LONGEST_NAME - 6 - len(cell.name)]}-{cell.name}".strip("-"),
        "owner": spec.owner or None,
        "idempotency_key": f"sweep {spec.sweep_id} {cell.name} {number}",
        "sweep": spec.sweep_id,
        "cell": cell.name,
        "keep_code": cell.launch.get("code") == "kept",
    }
    if host is not None:
        arguments["host"] = host
    request = LaunchRequest.from_arguments(arguments)
    waits = host is None and requests_gpus(request.gpus, request.require)
    return replace(request, queue=True) if waits else request


def with_slots(cell: Cell, max_parallel: int | None) -> Cell:
    """Return ``cell`` with a lease that limits how many run at once: without GPUs and without a limit, a cpu slot."""
    if max_parallel is not None or requests_gpus(cell.launch.get("gpus"), cell.launch.get("require")):
        return cell
    return replace(cell, launch={**cell.launch, "gpus": "cpu"})
