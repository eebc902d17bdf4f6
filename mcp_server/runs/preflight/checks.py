"""What is looked at before a launch, one thing a function: each tells what is wrong, with its remedy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from mcp_server.backends.base import load_backend
from mcp_server.errors import BadArgument, RunwardError
from mcp_server.gpus.leases import lease_directory
from mcp_server.hosts.command_inputs import find_first_program
from mcp_server.hosts.config import Environment, Host, Site
from mcp_server.hosts.defaults import fitted, own_ray
from mcp_server.hosts.environment import secrets_by_name
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
from mcp_server.runs.preflight import python_imports as imports
from mcp_server.runs.preflight.answers import Problem
from mcp_server.store import other_trainings
from mcp_server.store.run_store import RunStore
from mcp_server.system import ports
from mcp_server.text.shell import parse

_RAY_PATIENCE_S, _RAY_PORT = 5.0, 6379
_LOW_DISK_BYTES, _GB = 2**30, 10**9
_MOST_TOLD = 8
_CONFIGS = (".yaml", ".yml", ".toml", ".json", ".ini", ".cfg", ".sh", ".env")


@dataclass(frozen=True)
class Wish:
    """What a training will need. ``python``, ``paths`` and ``cwd`` as on its command line; ``disk_gb`` in 10⁹ bytes."""

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
    host: str | None = None
    environment: str | None = None


@dataclass(frozen=True)
class Ground:
    """What all checks look at: the wish, and what this machine would make of it."""

    wish: Wish
    store: RunStore
    environ: Mapping[str, str]
    site: Site
    host: Host
    environment: Environment

    @property
    def cwd(self) -> Path:
        """Where the command would run."""
        return Path(self.wish.cwd or Path.cwd()).expanduser()

    @property
    def env(self) -> dict[str, str]:
        """The environment that a run would have, without secrets."""
        request = fitted(LaunchRequest("true"), self.host, self.environment, self.environ)
        return {**base_environment(self.environ), **request.env}


def problem_of(what: str, error: RunwardError) -> Problem:
    """Return an error as a problem: its cause and its remedy, without the reassurance that nothing was done."""
    text = error.reason if isinstance(error, BadArgument) and error.argument == what else error.cause
    return Problem(what=what, text=text.rstrip(), remedy=error.remedy or "Fix what it names, then check again.")


def command(ground: Ground) -> Iterator[Problem]:
    """Yield why the command could not run, or nothing could."""
    load_backend("local").check_usable()
    words = ground.wish.command
    if words is None:
        return
    request = LaunchRequest(words, cwd=ground.wish.cwd)
    parsed = parse(words)
    check_foreign_paths(request, parsed, Roots.of(ground.site, ground.host))
    check_inputs(request, parsed, ground.site, ground.host, ground.environment)
    program = find_first_program(parsed)
    if program and "/" not in program and shutil.which(program, path=ground.env.get("PATH")) is None:
        text = f"{program} is on no directory of PATH."
        yield Problem(what="command", text=text, remedy="Write its whole path, or name an environment that has it.")


def files(ground: Ground) -> Iterator[Problem]:
    """Yield what is wrong with the working directory, and with files that were named."""
    roots = Roots.of(ground.site, ground.host)
    if not ground.cwd.is_dir():
        rewrite = roots.rewrite(str(ground.cwd))
        hint = f"Use {rewrite.text}." if rewrite and rewrite.is_known else suggest_names(ground.cwd)
        remedy = hint or "Name another cwd."
        yield Problem(what="cwd", text=f"{ground.cwd} is no directory.", remedy=remedy)
    for word in ground.wish.paths:
        path = ground.cwd / Path(word).expanduser()
        if (rewrite := roots.rewrite(str(path))) is not None:
            text = f"{path} is a path of another host, and this is {ground.host.name}."
            remedy = f"Use {rewrite.text}." if rewrite.is_known else "Ask what it is here."
            yield Problem(what="path", text=text, remedy=remedy)
        elif is_missing(path):
            yield Problem(what="path", text=f"{path} does not exist.", remedy=suggest_names(path) or "Check the path.")
        elif not os.access(path, os.R_OK):
            yield Problem(what="path", text=f"{path} cannot be read.", remedy="Ask its owner, or use a copy.")
        elif path.suffix.lower() in _CONFIGS and path.is_file() and (foreign := find_foreign_line(path, roots)):
            yield Problem(what="path", text=foreign.cause, remedy=foreign.remedy)


def disk(ground: Ground) -> Iterator[Problem]:
    """Yield where too little space is left, or nothing may be written."""
    needed = max(_LOW_DISK_BYTES, (ground.wish.disk_gb or 0) * _GB)
    seen = set()
    for directory in filter(None, (str(ground.cwd), ground.wish.result_dir)):
        path = ground.cwd / Path(directory).expanduser()
        while not path.exists():
            path = path.parent
        device = path.stat().st_dev
        free = shutil.disk_usage(path).free
        if device not in seen and free < needed:
            text = f"{free / _GB:.1f} GB free at {path}, {needed / _GB:.1f} GB wanted."
            yield Problem(what="disk", text=text, remedy="Free space there, or let the results go elsewhere.")
        seen.add(device)
        if directory == ground.wish.result_dir and not os.access(path, os.W_OK):
            yield Problem(what="disk", text=f"{path} cannot be written.", remedy="Let the results go elsewhere.")


def taken_ports(ground: Ground) -> Iterator[Problem]:
    """Yield ports that somebody listens on, and free ones."""
    for port in ground.wish.ports:
        if not 0 < port <= ports.HIGHEST_PORT:
            yield Problem(what="port", text=f"{port} is no port.", remedy=f"Use one from 1024 to {ports.HIGHEST_PORT}.")
            continue
        try:
            if ports.is_port_free(port):
                continue
            text = f"{ports.find_listener(port) or 'Somebody not visible here'} listens on port {port}."
        except PermissionError:
            text = f"This user may not listen on port {port}."
        free = ports.find_free_port(max(port, 1024), min(max(port, 1024) + 1000, ports.HIGHEST_PORT))
        yield Problem(what="port", text=text, remedy=f"Use another, e.g. {free}." if free else "Use another.")


def secrets(ground: Ground) -> Iterator[Problem]:
    """Yield secrets that the server does not have; their values are not told."""
    for name in dict.fromkeys([*ground.wish.secrets, *ground.environment.secrets]):
        try:
            secrets_by_name([name], ground.environ, ground.store.home.secrets)
        except RunwardError as error:
            yield problem_of("secret", error)


async def python(ground: Ground) -> list[Problem]:
    """Return why python cannot be started, or what it cannot import."""
    python = ground.wish.python or ground.environment.python or ground.host.python
    if python is None and not ground.wish.imports:
        return []
    env = ground.env
    found = _which(ground.cwd, [python] if python else ["python", "python3"], env)
    if found is None:
        remedy = suggest_names(ground.cwd / python) if python and "/" in python else ""
        text = f"{python or 'python'} is no program that can be started."
        return [Problem(what="python", text=text, remedy=remedy or "Name another python.")]
    failures = await imports.failures(found, ground.wish.imports, env, ground.cwd)
    return [Problem(what="python", text=each.text, remedy=each.remedy) for each in failures]


def _which(cwd: Path, words: list[str], env: Mapping[str, str]) -> str | None:
    places = (str(cwd / Path(word).expanduser()) if "/" in word else word for word in words)
    return next(filter(None, (shutil.which(place, path=env.get("PATH")) for place in places)), None)


async def gpus(ground: Ground) -> list[Problem]:
    """Return nothing: GPUs can be had as they are wanted.

    Raises:
        GpusNotFree: they cannot be had, and for every GPU why.
        BadArgument: what is wanted cannot be understood.
    """
    wish = ground.wish
    if wish.gpus is None and not wish.require:
        return []
    some = 1 if wish.gpus is None and "count" not in (wish.require or {}) else wish.gpus
    asked = check_gpu_arguments(some, wish.require, {}, queue=False)
    slots = count_cpu_slots(ground.store.home.read_config().cpu_slots)
    require = dict(wish.require) if wish.require else None
    spec = RunSpec(gpus=asked, require=require, leases=str(lease_directory(ground.environ)), cpu_slots=slots)
    await check_admission(spec, ground.env)
    return []


async def ray(ground: Ground) -> list[Problem]:
    """Return why Ray cannot be reached, if it is wanted, or not be started for a run alone."""
    own_ray(ground.environment, "preflight")
    if not ground.wish.ray or ground.environment.ray is not None:
        return []
    address = ground.env.get("RAY_ADDRESS", "")
    if address in ("", "local"):
        remedy = "Set it in env, or in an environment of hosts.toml; a command that starts its own Ray needs none."
        return [Problem(what="ray", text="RAY_ADDRESS names no Ray.", remedy=remedy)]
    place = f"127.0.0.1:{_RAY_PORT}" if address == "auto" else address.rpartition("//")[2].partition("/")[0]
    host, _, port = place.rpartition(":")
    try:
        with anyio.fail_after(_RAY_PATIENCE_S):
            await (await anyio.connect_tcp(host.strip("[]") or "127.0.0.1", int(port))).aclose()
    except (OSError, TimeoutError, ValueError) as error:
        why = "no answer" if isinstance(error, TimeoutError) else f"{error}".partition("\n")[0][:120]
        remedy = "A person or the run itself starts it: ray start --head. Never stop the Ray of others."
        return [Problem(what="ray", text=f"Ray at {address} cannot be reached: {why}.", remedy=remedy)]
    return []


async def running(ground: Ground) -> list[str]:
    """Return who trains here: the runs that live, then what is not runward's."""

    def look() -> list[str]:
        live = [run for run in ground.store.list_runs() if not run.ended]
        ours = [
            f"{run.run_id} {run.state} ({run.spec.owner}{f', {len(run.gpus)} GPUs' if run.gpus else ''})"
            for run in live
        ]
        strangers = [
            f"pid {each.pid} {each.program}, not runward's" for each in other_trainings.list_other_trainings(_MOST_TOLD)
        ]
        more = [f"{len(ours) - _MOST_TOLD} more runs"] if len(ours) > _MOST_TOLD else []
        return [*ours[:_MOST_TOLD], *more, *strangers]

    return await anyio.to_thread.run_sync(look, abandon_on_cancel=True)
