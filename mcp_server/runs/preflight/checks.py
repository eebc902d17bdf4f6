"""Checks of this machine before a launch, one subject per function. Each problem has a remedy."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import islice
from pathlib import Path

from mcp_server.answer import Answer
from mcp_server.backends.base import load_backend
from mcp_server.command.configs import find_script_configs
from mcp_server.command.inputs import find_inputs
from mcp_server.command.programs import list_assignments
from mcp_server.command.python import find_python
from mcp_server.command.shell import parse
from mcp_server.command.started import find_programs
from mcp_server.errors import BadArgument, GpusNotFree, RunwardError
from mcp_server.gpus.leases import Leases, lease_directory
from mcp_server.gpus.query import query_gpus
from mcp_server.gpus.request import parse_gpus, parse_requirements, takes_several
from mcp_server.hosts.config import Environment, Host, HostsFile
from mcp_server.hosts.environment import find_secrets
from mcp_server.hosts.path_checks import (
    Roots,
    find_config_files,
    find_config_roots,
    find_foreign_lines,
    find_foreign_paths,
    find_missing_data,
    find_missing_inputs,
    is_missing,
    refuse_first,
    suggest_names,
)
from mcp_server.record.handover import base_environment
from mcp_server.record.spec import LaunchRequest, RunSpec, argument
from mcp_server.recovery.changes import describe_halving, find_impossible_changes
from mcp_server.recovery.policy import describe_policy
from mcp_server.runs.launch.arguments import normalize_policy
from mcp_server.runs.launch.gpu_admission import check_admission, check_gpu_arguments, count_cpu_slots
from mcp_server.runs.launch.launch import plan
from mcp_server.runs.launch.launch_site import find_directory
from mcp_server.runs.launch.resolve import apply_host_defaults, find_ray_variables
from mcp_server.runs.warnings.runs_at_risk import find_killers_of, find_risk
from mcp_server.store.attribution import other_trainings
from mcp_server.store.run_index import RunQuery
from mcp_server.store.run_store import RunStore
from mcp_server.system import ports
from mcp_server.system.python_modules import Fault, describe_python
from mcp_server.text.formatting import format_size
from mcp_server.threads import run_in_thread
from mcp_server.views.gpu_report import describe_devices, describe_free

_GPU_QUERY_S = 5.0
_LOW_DISK_BYTES, _GB = 2**30, 10**9
_MOST_LISTED = 8
_CONFIGS = (".yaml", ".yml", ".toml", ".json", ".ini", ".cfg", ".sh", ".env")


@dataclass(frozen=True)
class PreflightRequest(LaunchRequest):
    """The needs of a training run. ``python``, ``paths``, ``cwd`` as on a command line. ``disk_gb`` in 10⁹ bytes."""

    python: str | None = argument("Its interpreter; default: the command's")
    imports: list[str] = argument("Modules or packages it must have", list)
    paths: list[str] = argument("Configs, data, checkpoints", list)
    result_dir: str | None = argument("Where it writes")
    ports: list[int] = argument("To be free", list)
    disk_gb: float | None = argument("To be free there")
    ray: bool = argument("A Ray must answer", False)

    @property
    def launch(self) -> LaunchRequest:
        """The launch that it prepares. One GPU where only its requirements are named."""
        shared = {f.name: getattr(self, f.name) for f in fields(LaunchRequest)}
        if self.gpus is None and self.require and "count" not in self.require:
            shared["gpus"] = 1
        if not self.command and self.blueprint is None:
            shared["command"] = "true"
        return LaunchRequest(**shared)


@dataclass(frozen=True)
class CheckContext:
    """Input of all checks: the request, and what this machine's configuration makes of it."""

    request: PreflightRequest
    store: RunStore
    environ: Mapping[str, str]
    site: HostsFile
    host: Host
    environment: Environment

    @property
    def cwd(self) -> Path:
        """The directory in which the command would run."""
        return Path(self.request.cwd or Path.cwd()).expanduser()

    @property
    def env(self) -> dict[str, str]:
        """The environment that a run would have, without secrets."""
        return {**base_environment(self.environ), **self.request_env}

    @property
    def host_env(self) -> dict[str, str]:
        """The same without the caller's variables, which could name a library to load: for processes of a check."""
        return {**base_environment(self.environ), **self._fill_env({})}

    @property
    def request_env(self) -> dict[str, str]:
        """The variables of the launch itself, those of its host and environment among them."""
        return self._fill_env(self.request.env)

    def _fill_env(self, env: Mapping[str, str]) -> dict[str, str]:
        return apply_host_defaults(LaunchRequest("true", env=dict(env)), self.host, self.environment, self.environ).env


@dataclass(frozen=True)
class CheckOutcome:
    """The outcome of a check: what is wrong, and what was found."""

    problems: list[Problem] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)


def describe_error(what: str, error: RunwardError) -> Problem:
    """Return an error as a problem: its cause and its remedy. Nothing was to be done, so its state says nothing."""
    text = error.reason if isinstance(error, BadArgument) and error.argument == what else error.cause
    return Problem(what=what, text=text.rstrip(), remedy=error.remedy or "Fix what it names, then check again.")


def check_command(context: CheckContext) -> Iterator[Problem | str]:
    """Yield why the command cannot run, or why no command can."""
    load_backend("tmux").check_usable()
    if not context.request.command:
        return
    command = parse(context.request.command)
    request = LaunchRequest(context.request.command, cwd=context.request.cwd, params=dict(context.request.params))
    roots = Roots.of(context.site, context.host)
    refuse_first(find_foreign_paths(request, command, roots))
    search_path = context.env.get("PATH", os.defpath)
    for missing in find_missing_inputs(request, command, context.site, context.host, context.environment, search_path):
        yield describe_error(missing.argument, missing)
    configs = find_config_files(request, command, context.cwd)
    chosen = find_script_configs(request.command, context.cwd)
    faults = list(islice(find_config_roots([*configs, *chosen], roots), _MOST_LISTED))
    missing_data = find_missing_data(configs, command, context.request.params, context.cwd)
    faults = faults or list(islice(missing_data, _MOST_LISTED))
    yield from (Problem(what="command", text=fault.reason, remedy=fault.remedy) for fault in faults)
    named = [file for file in find_inputs(command) if file.kind in ("data file", "model", "checkpoint")]
    yield from _find_killers(context)
    for path in dict.fromkeys([*configs, *chosen, *(context.cwd.joinpath(*file.base, file.path) for file in named)]):
        yield from _describe_size(path.expanduser())


def _find_killers(context: CheckContext) -> Iterator[Problem]:
    request = context.request
    spec = RunSpec(command=request.command, cwd=str(context.cwd), params=dict(request.params))
    risk = find_risk([spec], context.store)
    for killer in find_killers_of(spec):
        named = f" Live here: {', '.join(risk.attempts)}." if risk is not None else ""
        remedy = "Leave that part of the command out: launch_run takes a confirmation for it while runs are at risk."
        yield Problem(what="command", text=f"{killer.text}{named}", remedy=remedy)


def _describe_size(path: Path) -> Iterator[str]:
    with suppress(OSError):
        status = path.stat()
        size = "a directory" if stat.S_ISDIR(status.st_mode) else format_size(status.st_size)
        yield f"{path}: {size}"


def check_files(context: CheckContext) -> Iterator[Problem | str]:
    """Yield what is wrong with the working directory and with the named files, and the sizes of those that are here."""
    roots = Roots.of(context.site, context.host)
    refuse_first(find_foreign_paths(LaunchRequest("true", cwd=context.request.cwd), parse("true"), roots))
    try:
        find_directory(context.request.cwd)
    except BadArgument as error:
        yield describe_error("cwd", error)
    for word in context.request.paths:
        path = context.cwd / Path(word).expanduser()
        if (rewrite := roots.rewrite(str(path))) is not None:
            text = f"{path} is a path of another host, and this is {context.host.name}."
            remedy = f"Use {rewrite.text}." if rewrite.is_known else "Ask what it is here."
            yield Problem(what="path", text=text, remedy=remedy)
        elif is_missing(path):
            yield Problem(what="path", text=f"{path} does not exist.", remedy=suggest_names(path) or "Check the path.")
        elif not os.access(path, os.R_OK):
            yield Problem(what="path", text=f"{path} cannot be read.", remedy="Ask its owner, or use a copy.")
        else:
            yield from _describe_size(path)
            yield from _check_content(path, roots, context)


def _check_content(path: Path, roots: Roots, context: CheckContext) -> Iterator[Problem]:
    if path.suffix.lower() not in _CONFIGS or not path.is_file():
        return
    faults = list(islice(find_foreign_lines(path, roots), _MOST_LISTED))
    if not faults:
        command = parse(context.request.command or "true")
        faults = list(islice(find_missing_data([path], command, context.request.params, context.cwd), _MOST_LISTED))
    yield from (Problem(what="path", text=fault.reason, remedy=fault.remedy) for fault in faults)


def check_disk(context: CheckContext) -> Iterator[Problem | str]:
    """Yield directories with too little free space, or that cannot be written, and what is free."""
    needed = max(_LOW_DISK_BYTES, (context.request.disk_gb or 0) * _GB)
    devices = set()
    for directory in filter(None, (str(context.cwd), context.request.result_dir)):
        path = context.cwd / Path(directory).expanduser()
        while not path.exists():
            path = path.parent
        device = path.stat().st_dev
        free = shutil.disk_usage(path).free
        if device not in devices and free < needed:
            text = f"{free / _GB:.1f} GB free at {path}, {needed / _GB:.1f} GB wanted."
            yield Problem(what="disk", text=text, remedy="Free space there, or write the results to another directory.")
        elif device not in devices:
            yield f"{free / _GB:.1f} GB free at {path}"
        devices.add(device)
        if directory == context.request.result_dir and not os.access(path, os.W_OK):
            remedy = "Write the results to another directory."
            yield Problem(what="disk", text=f"{path} cannot be written.", remedy=remedy)


def check_ports(context: CheckContext) -> Iterator[Problem | str]:
    """Yield ports that are in use, each with a free one."""
    for port in context.request.ports:
        if fault := ports.describe_taken(port):
            yield Problem(what="port", text=fault[0], remedy=fault[1])


def check_secrets(context: CheckContext) -> Iterator[Problem | str]:
    """Yield secrets without a value, by name."""
    for name in dict.fromkeys([*context.request.secrets, *context.environment.secrets]):
        try:
            find_secrets([name], context.environ, context.store.home.secrets)
        except RunwardError as error:
            yield describe_error("secret", error)


def check_python(context: CheckContext) -> Iterator[Problem | str]:
    """Yield why the python cannot be started, or what is not installed for it. It is never started."""
    request = context.request
    # One that the command names wins over the first on PATH.
    named = find_python(request.command, str(context.cwd), {"PATH": ""}) if request.imports and request.command else ""
    python = request.python or named or context.environment.python or context.host.python
    if python is None and not request.imports:
        return
    for each in describe_python(python, context.request.imports, context.env, context.cwd, suggest_names):
        yield Problem(what="python", text=each.text, remedy=each.remedy) if isinstance(each, Fault) else each


async def check_gpus(context: CheckContext) -> CheckOutcome:
    """Return the GPUs that are here and who has them, and for every GPU why the requested ones are not free."""
    request = context.request.launch
    gpus = check_gpu_arguments(request.gpus, request.require, {}, queue=False)
    gpu_request = parse_gpus(gpus)
    require = context.host.tighten(request.require, takes_several=takes_several(gpu_request))
    slots = count_cpu_slots((await run_in_thread(context.store.home.read_config)).cpu_slots)
    leases = str(lease_directory(context.environ))
    spec = RunSpec(gpus=gpus, require=require, leases=leases, cpu_slots=slots, queue=request.queue)
    facts = [f"{slots} cpu slots"]
    if gpu_request is None or not gpu_request.cpu:
        query = partial(query_gpus, sys.executable, context.host_env, within_s=_GPU_QUERY_S)
        snapshot = await run_in_thread(query)
        holders = await run_in_thread(Leases(Path(leases)).holders)
        required = parse_requirements(require)
        facts = describe_free(snapshot, {uuid: holder.text for uuid, holder in holders.items()}, required)
    try:
        await check_admission(spec, context.host_env)
    except GpusNotFree as error:
        return CheckOutcome([describe_error("gpus", error)], facts)
    return CheckOutcome(facts=facts)


async def check_ray(context: CheckContext) -> CheckOutcome:
    """Return the Ray of this machine, and why the run's Ray, of ``env`` or its environment, could not answer."""
    asks, facts = context.request.ray, list[str]()
    named = _find_assigned("RAY_ADDRESS", context.request.command or "") or context.request_env.get("RAY_ADDRESS")
    address = named or context.env.get("RAY_ADDRESS", "")
    if (own := context.environment.ray) is not None:
        find_ray_variables(own, "preflight")
        address = named or own.address or "local"
        if not named and asks and (address == "local" or "{port}" in address):
            asks, facts = False, [f"a Ray of the run's own, which it starts ({address}): none was asked"]
    answer = await run_in_thread(partial(ports.describe_ray, address, asks=asks))
    problems = [Problem(what="ray", text=text, remedy=remedy) for text, remedy in answer[0]]
    return CheckOutcome(problems, [*facts, *answer[1]])


def _find_assigned(name: str, command: str | Sequence[str]) -> str | None:
    """Return the value that a command itself gives a variable, the last one, or None where none is written out."""
    words = (word for each in find_programs(command) for word in (*each.variables, *list_assignments(each.words)))
    values = [word.removeprefix(f"{name}=") for word in words if word.startswith(f"{name}=")]
    return values[-1] if values and values[-1] and "$" not in values[-1] else None


def check_recovery(context: CheckContext) -> Iterator[Problem | str]:
    """Yield the recovery that the run would have, and changes that no retry could make."""
    policy = normalize_policy(context.request.recovery)
    if policy is None:
        return
    for problem in find_impossible_changes(policy, context.request.params):
        yield Problem(what="recovery", text=problem.text, remedy=problem.remedy)
    halving, _ = describe_halving(policy, context.request.params)
    yield f"recovery: {describe_policy(policy)}{f'; {halving}' if halving else ''}"


async def check_launch(context: CheckContext) -> CheckOutcome:
    """Return nothing where ``launch_run`` with these arguments would start the run; else raise its refusal."""
    spec, handover, _ = await plan(context.request.launch, context.store.home, context.environ)
    await check_admission(spec, handover.env)
    return CheckOutcome()


async def list_running(context: CheckContext) -> list[str]:
    """Return the live runs, then training processes that are not runward's."""

    def list_all() -> list[str]:
        live = context.store.list_runs(RunQuery("live"))
        runs = [
            f"{run.run_id} {run.state} ({', '.join(filter(None, (run.spec.owner, describe_devices(run.gpu_names))))})"
            for run in live
        ]
        others = [
            f"pid {each.pid} {each.program} ({each.kind}), not runward's"
            for each in other_trainings.list_other_trainings(_MOST_LISTED).processes
        ]
        more = [f"{len(runs) - _MOST_LISTED} more runs"] if len(runs) > _MOST_LISTED else []
        return [*runs[:_MOST_LISTED], *more, *others]

    return await run_in_thread(list_all)


class Problem(Answer):
    """One thing that is wrong, and what to do about it."""

    what: str
    text: str
    remedy: str


class Preflight(Answer):
    """The verdict, what is wrong, what is here (free space, sizes, GPUs, Ray), and who trains here already."""

    ok: bool
    problems: list[Problem]
    found: list[str] | None = None
    running: list[str] | None = None
