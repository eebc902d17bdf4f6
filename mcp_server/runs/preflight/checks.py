"""Checks of this machine before a launch, one subject per function; each problem has a remedy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from mcp_server.backends.base import load_backend
from mcp_server.errors import BadArgument, RunwardError
from mcp_server.gpus.leases import lease_directory
from mcp_server.hosts.command_inputs import find_first_program
from mcp_server.hosts.config import Environment, Host, Site
from mcp_server.hosts.environment import find_secrets
from mcp_server.hosts.path_checks import (
    Roots,
    check_foreign_paths,
    check_inputs,
    find_foreign_line,
    is_missing,
    suggest_names,
)
from mcp_server.record.environment import base_environment
from mcp_server.record.spec import LaunchRequest, RunSpec
from mcp_server.runs.gpu_admission import check_admission, check_gpu_arguments, count_cpu_slots
from mcp_server.runs.preflight.answers import Problem
from mcp_server.runs.preflight.python_imports import find_import_failures
from mcp_server.runs.resolve import apply_host_defaults, find_ray_variables
from mcp_server.store import other_trainings
from mcp_server.store.run_store import RunStore
from mcp_server.system import ports
from mcp_server.text.shell import parse

_RAY_PATIENCE_S, _RAY_PORT = 5.0, 6379
_LOW_DISK_BYTES, _GB = 2**30, 10**9
_MOST_LISTED = 8
_CONFIGS = (".yaml", ".yml", ".toml", ".json", ".ini", ".cfg", ".sh", ".env")


@dataclass(frozen=True)
class PreflightRequest:
    """What a training run will need. ``python``, ``paths``, ``cwd`` as on a command line; ``disk_gb`` in 10⁹ bytes."""

    python: str | None = None
    imports: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    command: str | list[str] | None = None
    cwd: str | None = None
    result_dir: str | None = None
    gpus: int | str | list[int | str] | None = None
    require: Mapping[str, Any] | None = None
    ports: list[int] = field(default_factory=list)
    disk_gb: float | None = None
    ray: bool = False
    secrets: list[str] = field(default_factory=list)
    blueprint: str | None = None
    host: str | None = None
    environment: str | None = None

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> PreflightRequest:
        """Return the request that ``arguments`` hold by name; None is an open field, other names are ignored."""
        return cls(**{f.name: arguments[f.name] for f in fields(cls) if arguments.get(f.name) is not None})


@dataclass(frozen=True)
class CheckContext:
    """Input of all checks: the request, and what this machine's configuration makes of it."""

    request: PreflightRequest
    store: RunStore
    environ: Mapping[str, str]
    site: Site
    host: Host
    environment: Environment

    @property
    def cwd(self) -> Path:
        """The directory in which the command would run."""
        return Path(self.request.cwd or Path.cwd()).expanduser()

    @property
    def env(self) -> dict[str, str]:
        """The environment that a run would have, without secrets."""
        request = apply_host_defaults(LaunchRequest("true"), self.host, self.environment, self.environ)
        return {**base_environment(self.environ), **request.env}


def describe_error(what: str, error: RunwardError) -> Problem:
    """Return an error as a problem: its cause and its remedy. Nothing was to be done, so its state says nothing."""
    text = error.reason if isinstance(error, BadArgument) and error.argument == what else error.cause
    return Problem(what=what, text=text.rstrip(), remedy=error.remedy or "Fix what it names, then check again.")


def check_command(context: CheckContext) -> Iterator[Problem]:
    """Yield why the command cannot run, or why no command can."""
    load_backend("local").check_usable()
    if context.request.command is None:
        return
    command = parse(context.request.command)
    request = LaunchRequest(context.request.command, cwd=context.request.cwd)
    check_foreign_paths(request, command, Roots.of(context.site, context.host))
    check_inputs(request, command, context.site, context.host, context.environment)
    program = find_first_program(command)
    if program and "/" not in program and shutil.which(program, path=context.env.get("PATH")) is None:
        text = f"{program} is on no directory of PATH."
        yield Problem(what="command", text=text, remedy="Write its whole path, or name an environment that has it.")


def check_files(context: CheckContext) -> Iterator[Problem]:
    """Yield what is wrong with the working directory and with the named files."""
    roots = Roots.of(context.site, context.host)
    if not context.cwd.is_dir():
        rewrite = roots.rewrite(str(context.cwd))
        hint = f"Use {rewrite.text}." if rewrite and rewrite.is_known else suggest_names(context.cwd)
        remedy = hint or "Name another cwd."
        yield Problem(what="cwd", text=f"{context.cwd} is not a directory.", remedy=remedy)
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
        elif path.suffix.lower() in _CONFIGS and path.is_file() and (foreign := find_foreign_line(path, roots)):
            yield Problem(what="path", text=foreign.cause, remedy=foreign.remedy)


def check_disk(context: CheckContext) -> Iterator[Problem]:
    """Yield directories with too little free space, or that cannot be written."""
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
        devices.add(device)
        if directory == context.request.result_dir and not os.access(path, os.W_OK):
            remedy = "Write the results to another directory."
            yield Problem(what="disk", text=f"{path} cannot be written.", remedy=remedy)


def check_ports(context: CheckContext) -> Iterator[Problem]:
    """Yield ports that are in use, each with a free one."""
    for port in context.request.ports:
        if not 0 < port <= ports.HIGHEST_PORT:
            remedy = f"Use one from 1024 to {ports.HIGHEST_PORT}."
            yield Problem(what="port", text=f"{port} is not a port.", remedy=remedy)
            continue
        try:
            if ports.is_port_free(port):
                continue
            text = f"{ports.find_listener(port) or 'A process not visible here'} listens on port {port}."
        except PermissionError:
            text = f"This user may not listen on port {port}."
        free = ports.find_free_port(max(port, 1024), min(max(port, 1024) + 1000, ports.HIGHEST_PORT))
        yield Problem(what="port", text=text, remedy=f"Use another, e.g. {free}." if free else "Use another.")


def check_secrets(context: CheckContext) -> Iterator[Problem]:
    """Yield secrets without a value, by name."""
    for name in dict.fromkeys([*context.request.secrets, *context.environment.secrets]):
        try:
            find_secrets([name], context.environ, context.store.home.secrets)
        except RunwardError as error:
            yield describe_error("secret", error)


async def check_python(context: CheckContext) -> list[Problem]:
    """Return why python cannot be started, or what it cannot import."""
    python = context.request.python or context.environment.python or context.host.python
    if python is None and not context.request.imports:
        return []
    env = context.env
    program = _find_program(context.cwd, [python] if python else ["python", "python3"], env)
    if program is None:
        remedy = suggest_names(context.cwd / python) if python and "/" in python else ""
        text = f"{python or 'python'} is not a program that can be started."
        return [Problem(what="python", text=text, remedy=remedy or "Name another python.")]
    return await find_import_failures(program, context.request.imports, env, context.cwd)


def _find_program(cwd: Path, words: list[str], env: Mapping[str, str]) -> str | None:
    paths = (str(cwd / Path(word).expanduser()) if "/" in word else word for word in words)
    return next(filter(None, (shutil.which(path, path=env.get("PATH")) for path in paths)), None)


async def check_gpus(context: CheckContext) -> list[Problem]:
    """Return nothing where the requested GPUs are free.

    Raises:
        GpusNotFree: they are not; says why for every GPU.
        BadArgument: the request is not understood.
    """
    request = context.request
    if request.gpus is None and not request.require:
        return []
    gpus = 1 if request.gpus is None and "count" not in (request.require or {}) else request.gpus
    gpus = check_gpu_arguments(gpus, request.require, {}, queue=False)
    slots = count_cpu_slots(context.store.home.read_config().cpu_slots)
    require = dict(request.require) if request.require else None
    spec = RunSpec(gpus=gpus, require=require, leases=str(lease_directory(context.environ)), cpu_slots=slots)
    await check_admission(spec, context.env)
    return []


async def check_ray(context: CheckContext) -> list[Problem]:
    """Return why the requested Ray cannot be reached, or why the run's own Ray cannot be started."""
    find_ray_variables(context.environment, "preflight")
    if not context.request.ray or context.environment.ray is not None:
        return []
    address = context.env.get("RAY_ADDRESS", "")
    if address in ("", "local"):
        remedy = "Set it in env, or in an environment of hosts.toml; a command that starts its own Ray needs none."
        return [Problem(what="ray", text="RAY_ADDRESS names no Ray.", remedy=remedy)]
    target = f"127.0.0.1:{_RAY_PORT}" if address == "auto" else address.rpartition("//")[2].partition("/")[0]
    host, _, port = target.rpartition(":")
    try:
        with anyio.fail_after(_RAY_PATIENCE_S):
            await (await anyio.connect_tcp(host.strip("[]") or "127.0.0.1", int(port))).aclose()
    except (OSError, TimeoutError, ValueError) as error:
        why = "no answer" if isinstance(error, TimeoutError) else f"{error}".partition("\n")[0][:120]
        remedy = "A person or the run itself starts it: ray start --head. Never stop the Ray of others."
        return [Problem(what="ray", text=f"Ray at {address} cannot be reached: {why}.", remedy=remedy)]
    return []


async def list_running(context: CheckContext) -> list[str]:
    """Return the live runs, then training processes that are not runward's."""

    def list_all() -> list[str]:
        live = [run for run in context.store.list_runs() if not run.ended]
        runs = [
            f"{run.run_id} {run.state} ({run.spec.owner}{f', {len(run.gpus)} GPUs' if run.gpus else ''})"
            for run in live
        ]
        others = [
            f"pid {each.pid} {each.program}, not runward's"
            for each in other_trainings.list_other_trainings(_MOST_LISTED)
        ]
        more = [f"{len(runs) - _MOST_LISTED} more runs"] if len(runs) > _MOST_LISTED else []
        return [*runs[:_MOST_LISTED], *more, *others]

    return await anyio.to_thread.run_sync(list_all, abandon_on_cancel=True)
