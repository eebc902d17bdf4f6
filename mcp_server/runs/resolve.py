"""Resolving a launch: everything that must be read from this machine before a run is made.

The blueprint, hosts.toml, the environment, directories, secrets and the umask are read here, and nowhere else on the
way of a launch. Nothing is written. Reading may block, so ``resolve`` runs in a thread.
"""

from __future__ import annotations

import os
import secrets as random
import socket
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_server.blueprints.apply import apply_blueprint, read_blueprint
from mcp_server.blueprints.paths import FarPlace, resolve_paths
from mcp_server.command.configs import find_script_configs
from mcp_server.command.hydra import takes_settings
from mcp_server.command.shell import ReadCommand, parse
from mcp_server.errors import BadArgument
from mcp_server.gpus.leases import lease_directory
from mcp_server.gpus.placeholders import PLACEHOLDERS, find_placeholder
from mcp_server.gpus.request import parse_gpus, takes_several
from mcp_server.hosts.config import Environment, Host, find_host, read_hosts_file
from mcp_server.hosts.config_contents import find_config_files, find_config_roots, find_missing_data
from mcp_server.hosts.environment import find_distinct_secrets, find_secrets
from mcp_server.hosts.notice_targets import find_targets
from mcp_server.hosts.path_checks import (
    Roots,
    find_foreign_paths,
    find_foreign_variables,
    find_missing_inputs,
    refuse_first,
    suggest_names,
)
from mcp_server.record.environment import base_environment
from mcp_server.record.handover import Handover
from mcp_server.record.run_directory import boot_id, now
from mcp_server.record.script import LONGEST_NAME, name_of, slug
from mcp_server.record.spec import LaunchRequest
from mcp_server.runs.arguments import check_arguments, check_no_secret, check_options, check_sizes, check_unicode
from mcp_server.runs.gpu_admission import count_cpu_slots, names_mig, requests_gpus
from mcp_server.runs.own_ray import find_ray_variables, starts_ray
from mcp_server.runs.warning_inputs import read_scripts
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import Config, StateHome
from mcp_server.system import processes
from mcp_server.system.ports import find_free_port
from mcp_server.text.formatting import printable

if TYPE_CHECKING:
    from mcp_server.blueprints.parser import Blueprint
    from mcp_server.runs.code_copy import CodeCopy
    from mcp_server.runs.code_sync import CodeSync
    from mcp_server.runs.far_host import FarHost
    from mcp_server.runs.services import ServicesFound

_ID_LETTERS = "abcdefghjkmnpqrstvwxyz23456789"  # none that a reader confuses
_FAR_BACKENDS = (LaunchRequest.backend, "slurm")
_NO_FAR_BACKEND = "Run a server on that host, and pass no host to it."
_NOT_SEARCHED = frozenset({"cwd", "blueprint", "secrets"})  # for values of secrets


@dataclass(frozen=True)
class ResolvedLaunch:
    """A launch with nothing left open. ``request`` is filled in and checked. Its paths are absolute."""

    request: LaunchRequest
    run_id: str
    hostname: str
    boot_id: str
    created_at: str
    config: Config
    cpu_slots: int
    lease_directory: str
    handover: Handover = field(repr=False)  # holds the values of secrets
    result_dir: str | None = None
    mirror: str = ""  # of a run on another host
    run_dir: str = ""
    code: CodeSync | CodeCopy | None = None  # that is sent there, or copied


def resolve(request: LaunchRequest, home: StateHome, environ: Mapping[str, str]) -> ResolvedLaunch:
    """Return ``request`` with its open fields filled in: by its blueprint first, then by this host.

    ``environ`` is the server's environment. An argument that the caller gave wins.

    Raises:
        BadArgument: an argument cannot be used here. A path of another host is refused before anything else.
        BlueprintUnreadable, BlueprintInvalid: its blueprint cannot be run.
        ConfigInvalid: config.toml or hosts.toml cannot be used.
        SecretNotSet, SecretsFileOpen, SecretsFileUnreadable: a secret has no value.
    """
    check_sizes(request)
    request = _read_params(request)
    site = read_hosts_file(home)
    host, is_far = find_host(site, request.host)
    environment = site.environment(request.environment, host)
    roots = Roots.of(site, host, is_far=is_far)
    if request.sync is not None and request.host is None:
        raise BadArgument("sync", "sends code to another host.", "Pass host too.")
    there = _There()
    if is_far:
        request, there = _reach(request, home, host, roots, environ)
    far, code = there.far, there.code
    services = _find_services(request, str(far.mirror) if far else "", home)
    command = parse(request.command)
    given_variables, result_dir = request.env, None
    roots = replace(roots, own=(*roots.own, code.there)) if code else roots
    refuse_first(find_foreign_paths(request, command, roots))
    variables = far.environ if far else environ
    if request.blueprint is not None:
        path, blueprint = there.document or read_blueprint(request.blueprint, request.cwd)
        arguments = (host.keyword, variables, roots, check_options, there.place)
        request = apply_blueprint(replace(request, blueprint=str(path)), path, blueprint, *arguments)
        result_dir = str(resolve_paths(path, blueprint, there.place).result_dir)
        command = parse(request.command)
    request = apply_host_defaults(_name_params(request, command), host, environment, variables)
    request = check_arguments(request, command)
    several = takes_several(parse_gpus(request.gpus))
    request = replace(request, require=host.tighten(request.require, takes_several=several))
    if code is not None:
        cwd = Path(code.cwd)
    else:
        cwd = Path(far.find_directory(request.cwd)) if far else find_directory(request.cwd)
    request = replace(
        request,
        cwd=str(cwd),
        param_style=_choose_param_style(request, command, cwd),
        tensorboard=str(cwd / Path(request.tensorboard).expanduser()) if request.tensorboard else None,
    )
    check_unicode(asdict(request))
    secrets, others = _find_secrets(request, environment, home, environ)
    added_variables = {name: value for name, value in request.env.items() if name not in given_variables}
    refuse_first(find_foreign_variables(added_variables, roots))
    if far:
        far.check_inputs(request, command, environment, cwd, code)
    else:
        searched = (request.env.get("PATH") or environ.get("PATH") or os.defpath) if request.backend == "tmux" else None
        refuse_first(find_missing_inputs(request, command, site, host, environment, searched))
        config_files = find_config_files(request, command, cwd)
        chosen = find_script_configs(request.command, cwd) if roots.foreign else []
        refuse_first(find_config_roots([*config_files, *chosen], roots))
        refuse_first(find_missing_data(config_files, command, request.params, cwd))
    name = request.name or printable(name_of(command, request.params), "")[:LONGEST_NAME]
    run_id = next(run_id for run_id in _generate_ids(slug(name)) if not _is_taken(home, run_id))
    config, (request, copy) = home.read_config(), _plan_copy(request, run_id, home, is_far=far is not None)
    return ResolvedLaunch(
        request=replace(
            request,
            name=name,
            tensorboard=request.tensorboard.replace("{run_id}", run_id) if request.tensorboard else None,
            env={
                **(services.env or _find_own_ray(request, environment, run_id, far)),
                **request.env,
            },
            needs=services.needs,
            secrets=list(secrets),
            owner=request.owner or home.owner(environ),
        ),
        run_id=run_id,
        hostname=far.hostname if far else socket.gethostname(),
        boot_id=boot_id(),
        created_at=now(),
        config=config,
        cpu_slots=far.cpu_slots if far else count_cpu_slots(config.cpu_slots),
        lease_directory=str(lease_directory(environ)),
        handover=Handover(
            {} if far else base_environment(environ),  # a far run gets that of the login there
            secrets,
            processes.read_umask(),
            others=others,
            notify=[
                target.facts()
                for target in find_targets(config, environ, home.secrets)[0]
                if not (far and target.command)  # a command of this machine
            ],
        ),
        result_dir=result_dir,
        mirror=str(far.mirror) if far else "",
        run_dir=str((far.mirror / "runs" if far else home.runs) / run_id),
        code=code or copy,
    )


@dataclass(frozen=True)
class _There:
    """The findings of a launch on another host: the host, the code to send, and the blueprint with its place."""

    far: FarHost | None = None
    code: CodeSync | None = None
    document: tuple[Path, Blueprint] | None = None
    place: FarPlace | None = None


def _reach(
    request: LaunchRequest, home: StateHome, host: Host, roots: Roots, environ: Mapping[str, str]
) -> tuple[LaunchRequest, _There]:
    """Return ``request`` with the paths of the code that it sends as they will be on its host, and what is known there.

    Without ``cwd``, the directory of the blueprint's code on this machine is sent.

    Raises:
        RunwardError: the host cannot be reached, or the code cannot be sent.
    """
    from mcp_server.runs.far_host import reach  # noqa: PLC0415 - most launches stay here

    if request.backend not in _FAR_BACKENDS:
        raise BadArgument("backend", f"{request.backend} is not spoken through ssh.", _NO_FAR_BACKEND)
    far, code = reach(home, host), None
    document = read_blueprint(request.blueprint, request.cwd) if request.blueprint is not None else None
    if request.sync is not None:
        from mcp_server.runs.code_sync import plan_sync  # noqa: PLC0415 - few launches send code

        cwd = request.cwd or (str(resolve_paths(*document).codebase_dir) if document else None)
        code = plan_sync(replace(request, cwd=cwd), far.mirror, roots, host.sync_mib, environ)
        request = code.move(request)
    return request, _There(far, code, document, far.make_place(roots, code) if document else None)


def _read_params(request: LaunchRequest) -> LaunchRequest:
    """Return ``request`` with the parameters of its files."""
    if request.params_file is None:
        return request
    from mcp_server.runs.params_file import read_params_file  # noqa: PLC0415 - only some launches have one

    files, params = read_params_file(request.params_file, request.cwd)
    return replace(request, params=params, params_file=files)


def _name_params(request: LaunchRequest, command: ReadCommand) -> LaunchRequest:
    """Return ``request`` with parameters of files under the names of its program."""
    if request.params_file is None:
        return request
    from mcp_server.runs.params_file import name_for_program  # noqa: PLC0415 - only some launches have one

    return replace(request, params=name_for_program(request.params, request.params_file, command.words))


def _plan_copy(
    request: LaunchRequest, run_id: str, home: StateHome, *, is_far: bool
) -> tuple[LaunchRequest, CodeCopy | None]:
    """Return ``request`` with the paths of the private copy that the run executes, and the copy, None without one.

    Raises:
        BadArgument: the code cannot be copied, or the run is elsewhere.
    """
    if not request.keep_code:
        return request, None
    from mcp_server.runs.code_copy import plan_copy  # noqa: PLC0415 - few launches keep their code

    if is_far or request.backend == "ray":
        remedy = 'sync="git" pins what runs on a host.' if is_far else "Ray takes backend_options={'runtime_env': …}."
        raise BadArgument("code", '"kept" is for runs of this machine.', remedy)
    copy = plan_copy(request, run_id, home.path)
    return copy.move(request), copy


def _find_secrets(
    request: LaunchRequest, environment: Environment, home: StateHome, environ: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the secrets of a launch and all others that are known here; none may stand in its arguments.

    Raises:
        BadArgument, SecretNotSet, SecretsFileOpen, SecretsFileUnreadable: one does, or has no value.
    """
    secrets = find_secrets(dict.fromkeys(request.secrets), environ, home.secrets)
    # Directories are left out: one named like a user is not a leak. So are variables that the operator wrote.
    kept = {name: value for name, value in asdict(request).items() if name not in _NOT_SEARCHED}
    kept["env"] = dict(request.env.items() - environment.env.items())
    others = find_distinct_secrets(environ, home.secrets)
    check_no_secret(kept, {**others, **secrets})
    return secrets, others


def _find_services(request: LaunchRequest, mirror: str, home: StateHome) -> ServicesFound:
    """Return the runs that the launch needs. See ``runs/services``."""
    from mcp_server.runs.services import ServicesFound, find_services  # noqa: PLC0415 - few launches need others

    return find_services(request.needs, mirror, RunStore(home)) if request.needs else ServicesFound()


def apply_host_defaults(
    request: LaunchRequest, host: Host, environment: Environment, environ: Mapping[str, str]
) -> LaunchRequest:
    """Return ``request`` with what the environment and the host define where the caller left it open. Pure.

    A variable with a placeholder for GPUs is left out where the launch requests none.
    The python of the environment, else of the host, comes first in ``PATH``; ``environ`` is the server's environment.
    """
    asks = requests_gpus(request.gpus, request.require)
    # Written for runs on GPUs: without GPUs there is nothing to put in, and MIG instances have no indices.
    unfilled = ("{gpu_indices}",) if asks and names_mig(request.gpus) else () if asks else PLACEHOLDERS
    env = {name: value for name, value in environment.env.items() if find_placeholder(value) not in unfilled}
    if python := environment.python or host.python:
        env.setdefault("PATH", os.pathsep.join([str(Path(python).parent), environ.get("PATH") or os.defpath]))
    if environment.pythonpath:
        inherited = [env["PYTHONPATH"]] if "PYTHONPATH" in env else [environ.get("PYTHONPATH", "")]
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [*environment.pythonpath, *inherited]))
    secrets = [name for name in environment.secrets if name not in request.env]
    env |= request.env
    options = request.backend_options
    if request.backend == "ray" and host.ray_address and not any(_names_dashboard(*pair) for pair in env.items()):
        options = {"address": host.ray_address, **options}
    return replace(
        request,
        backend_options=options,
        env=env,
        secrets=list(dict.fromkeys([*request.secrets, *secrets])),
        first_step_timeout_s=request.first_step_timeout_s or host.first_step_timeout_s,
        first_step_pattern=request.first_step_pattern or host.first_step_pattern,
    )


def _names_dashboard(name: str, value: str) -> bool:
    return name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS") and value.startswith(("http://", "https://"))


def _choose_param_style(request: LaunchRequest, command: ReadCommand, cwd: Path) -> str:
    """Return the style of the request; ``k=v`` in place of the default where the program takes no other."""
    is_open = request.params and request.param_style == LaunchRequest.param_style
    return "k=v" if is_open and takes_settings(command, request.params, cwd) else request.param_style


def _find_own_ray(request: LaunchRequest, environment: Environment, run_id: str, far: FarHost | None) -> dict[str, str]:
    """Return the variables of the run's own Ray. A job of a Ray has that one."""
    if environment.ray is None or request.backend == "ray":
        return {}
    texts = [] if far else read_scripts(request.command, Path(request.cwd or "")).values()
    return find_ray_variables(
        environment.ray,
        run_id,
        far.find_free_port if far else find_free_port,
        given_port=request.env.get("RAY_PORT", ""),
        is_started=starts_ray(request.command, texts),
    )


def find_directory(cwd: str | None) -> Path:
    """Return the directory to run in. Without ``cwd`` the server's.

    Raises:
        BadArgument: it is relative, missing, or cannot be read.
    """
    try:
        path = Path(cwd or Path.cwd()).expanduser()
        if not path.is_absolute():
            raise BadArgument("cwd", f"must be an absolute path, not {cwd!r}.")
        if not path.is_dir():
            raise BadArgument("cwd", f"is not a directory: {str(path)[:200]!r}.", suggest_names(path))
    except (OSError, RuntimeError) as error:  # too long, not readable, or no such user
        raise BadArgument("cwd", f"cannot be used: {str(error)[:200]}.") from error
    return path


def _is_taken(home: StateHome, run_id: str) -> bool:
    return any((runs / run_id).exists() for runs in (home.runs, *(path / "runs" for path in home.list_mirrors())))


def _generate_ids(label: str) -> Iterator[str]:
    while True:
        yield f"{label}-{''.join(random.choice(_ID_LETTERS) for _ in range(4))}"
