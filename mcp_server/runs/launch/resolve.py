"""Resolving a launch: everything that must be read from this machine before a run is made.

The blueprint, hosts.toml, the environment, directories, secrets and the umask are read here, and nowhere else on the
way of a launch. Nothing is written. Reading may block, so ``resolve`` runs in a thread.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from mcp_server.blueprints.apply import apply_blueprint
from mcp_server.blueprints.paths import resolve_paths
from mcp_server.command.configs import takes_settings
from mcp_server.command.outputs import resumes
from mcp_server.command.shell import ReadCommand, parse
from mcp_server.errors import BadArgument
from mcp_server.gpus.leases import lease_directory
from mcp_server.gpus.request import PLACEHOLDERS, find_placeholder, parse_gpus, takes_several
from mcp_server.hosts.config import Environment, Host, Ray
from mcp_server.hosts.environment import find_distinct_secrets, find_secrets, find_targets
from mcp_server.hosts.path_checks import find_foreign_paths, find_foreign_variables, refuse_first
from mcp_server.record.code.code_snapshot import read_code_snapshot
from mcp_server.record.handover import Handover
from mcp_server.record.run_directory import LAYOUT, boot_id, now
from mcp_server.record.script import LONGEST_NAME, name_of
from mcp_server.record.service import find_service_port, parse_need
from mcp_server.record.spec import LaunchRequest, RunSpec
from mcp_server.recovery.changes import LONGEST_RAY_DIRECTORY
from mcp_server.runs.code.code_copy import CodeCopy, FormerCode
from mcp_server.runs.code.code_sync import CodeSync
from mcp_server.runs.launch.arguments import check_arguments, check_no_secret, check_options, check_sizes, check_unicode
from mcp_server.runs.launch.gpu_admission import names_mig, requests_gpus
from mcp_server.runs.launch.launch_site import FarSite, ThisSite, find_site
from mcp_server.runs.launch.params_file import name_for_program, read_params_file
from mcp_server.runs.launch.repeat import find_attempt, name_own_directory, repeat
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import Config, StateHome
from mcp_server.system import processes
from mcp_server.system.ports import find_free_port
from mcp_server.text.formatting import printable

_MOST_NEEDS = 16
# What a service that is a Ray head has of its environment, and its drivers and workers need.
_RAY_VARIABLES = ("RAY_ADDRESS", "RAY_PORT", "RAY_NAMESPACE", "RLINF_NAMESPACE")
_NOT_SEARCHED = frozenset({"cwd", "blueprint", "secrets"})  # for values of secrets
# `ray start`, `["ray", "start"`, and whatever makes a service listen at $RAY_PORT.
_STARTS = re.compile(r"\bray['\"]?[\s,\\]+['\"]?start\b|\bray\.scripts\b|\bRAY_PORT\b")
_LOCAL = "local"  # ray.init() starts a Ray, in $RAY_TMPDIR


class Plan(NamedTuple):
    """A run that could be started: its specification, what is handed over in memory, and the code to send first."""

    spec: RunSpec
    handover: Handover
    code: CodeSync | CodeCopy | None = None


def resolve(request: LaunchRequest, home: StateHome, environ: Mapping[str, str]) -> Plan:
    """Return what a launch would start, without the fields that only its backend knows. RunwardError: it cannot.

    Open fields are filled in by the blueprint first, then by the host; an argument that the caller gave wins. A path of
    another host is refused before anything else. ``environ`` is the server's environment.
    """
    if request.like and not request.command:
        request = repeat(request, RunStore(home))
    check_sizes(request)
    site, request = find_site(_read_params(request), home, environ)
    services = find_services(request.needs, site.mirror, RunStore(home)) if request.needs else ServicesFound()
    refuse_first(find_foreign_paths(request, parse(request.command), site.roots))
    given = request.env
    request, result_dir = _apply_blueprint(request, site)
    command = parse(request.command)
    request = _fill_in(request, command, site)
    check_unicode(asdict(request))
    secrets, others = _find_secrets(request, site.environment, home, environ)
    added = {name: value for name, value in request.env.items() if name not in given}
    refuse_first(find_foreign_variables(added, site.roots))
    if not (request.like and request.keep_code):  # its files lie in the record
        site.check_inputs(request, command)
    name = request.name or printable(name_of(command, request.params), "")[:LONGEST_NAME]
    run_id = home.choose_id(name)
    if result_dir and request.like and not resumes(request.command, request.params):
        result_dir = name_own_directory(result_dir, run_id)
    config, (request, code) = home.read_config(), site.plan_code(request, run_id, _find_former_code(request, home))
    request = replace(
        request,
        name=name,
        tensorboard=request.tensorboard.replace("{run_id}", run_id) if request.tensorboard else None,
        env={**(services.env or _find_own_ray(request, site, run_id)), **request.env},
        needs=services.needs,
        secrets=list(secrets),
        owner=request.owner or home.owner(environ),
    )
    targets = find_targets(config, environ, home.secrets)[0]
    notify = [asdict(target) for target in targets if site.runs_commands or not target.command]
    handover = Handover(site.inherited, secrets, processes.read_umask(), others=others, notify=notify)
    return Plan(_build_spec(request, site, run_id, config, result_dir, code, environ), handover, code)


def _find_former_code(request: LaunchRequest, home: StateHome) -> FormerCode | None:
    if not (request.like and request.keep_code):
        return None
    run, attempt = find_attempt(request.like, store := RunStore(home))
    moved = {} if run.spec.mirror else run.spec.code or {}
    return FormerCode(run.run_id, attempt, read_code_snapshot(store.fetch_record(run), attempt), moved)


def _apply_blueprint(request: LaunchRequest, site: ThisSite | FarSite) -> tuple[LaunchRequest, str | None]:
    if request.blueprint is None:
        return request, None
    path, blueprint = site.read_blueprint(request)
    arguments = (site.host.keyword, site.environ, site.roots, check_options, site.place)
    result_dir = resolve_paths(path, blueprint, site.place, request.cwd).result_dir
    if request.like is None:  # else it has filled in the former run
        request = apply_blueprint(replace(request, blueprint=str(path)), path, blueprint, *arguments)
    return request, str(result_dir)


def _fill_in(request: LaunchRequest, command: ReadCommand, site: ThisSite | FarSite) -> LaunchRequest:
    if request.params_file is not None:
        request = replace(request, params=name_for_program(request.params, request.params_file, command.words))
    request = apply_host_defaults(request, site.host, site.environment, site.environ)
    request = check_arguments(request, command)
    cwd = site.find_directory(request.cwd)
    is_open = request.params and request.param_style == LaunchRequest.param_style
    takes_no_other = is_open and takes_settings(command, request.params, cwd)
    return replace(
        request,
        require=site.host.tighten(request.require, takes_several=takes_several(parse_gpus(request.gpus))),
        cwd=str(cwd),
        param_style="k=v" if takes_no_other else request.param_style,
        tensorboard=str(cwd / Path(request.tensorboard).expanduser()) if request.tensorboard else None,
    )


def _build_spec(
    request: LaunchRequest,
    site: ThisSite | FarSite,
    run_id: str,
    config: Config,
    result_dir: str | None,
    code: CodeSync | CodeCopy | None,
    environ: Mapping[str, str],
) -> RunSpec:
    return RunSpec(
        **{**vars(request), "host": site.hostname},
        mirror=site.mirror,
        code={**code.facts, "to": code.there} if code else None,
        layout=LAYOUT,
        run_id=run_id,
        run_dir=str(site.runs / run_id),
        leases=str(lease_directory(environ)),
        cpu_slots=site.count_cpu_slots(config),
        gpu_sample_s=config.gpu_sample_s,
        gpu_window_s=config.gpu_window_s,
        result_dir=result_dir,
        stop_grace_s=config.stop_grace_s,
        repair_grace_s=config.repair_grace_s,
        created_at=now(),
        boot_id=boot_id(),
    )


def _read_params(request: LaunchRequest) -> LaunchRequest:
    if request.params_file is None:
        return request
    files, params = read_params_file(request.params_file, request.cwd)
    return replace(request, params=params, params_file=files)


def _find_secrets(
    request: LaunchRequest, environment: Environment, home: StateHome, environ: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the secrets of a launch and all others that are known here; none may stand in its arguments."""
    secrets = find_secrets(dict.fromkeys(request.secrets), environ, home.secrets)
    # Directories are left out: one named like a user is not a leak. So are variables that the operator wrote.
    kept = {name: value for name, value in asdict(request).items() if name not in _NOT_SEARCHED}
    kept["env"] = dict(request.env.items() - environment.env.items())
    others = find_distinct_secrets(environ, home.secrets)
    check_no_secret(kept, {**others, **secrets})
    return secrets, others


def apply_host_defaults(
    request: LaunchRequest, host: Host, environment: Environment, environ: Mapping[str, str]
) -> LaunchRequest:
    """Return ``request`` with defaults of environment and host, whose python comes first in ``PATH``. Pure."""
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


def _find_own_ray(request: LaunchRequest, site: ThisSite | FarSite, run_id: str) -> dict[str, str]:
    if site.environment.ray is None or request.backend == "ray":
        return {}
    return find_ray_variables(
        site.environment.ray,
        run_id,
        site.find_free_port,
        given_port=request.env.get("RAY_PORT", ""),
        is_started=starts_ray(request.command, site.read_scripts(request)),
    )


def starts_ray(command: str | Sequence[str], scripts: Iterable[str]) -> bool:
    """Return whether a command, or one of the texts of its scripts, may start the Ray that its programs use. Pure."""
    text = command if isinstance(command, str) else " ".join(command)
    return any(_STARTS.search(each) for each in (text, *scripts))


def find_ray_variables(
    ray: Ray,
    run_id: str,
    find_port: Callable[[int, int], int | None] = find_free_port,
    *,
    given_port: str = "",
    is_started: bool = True,
) -> dict[str, str]:
    """Return the variables of the run's own Ray, with the given port or a free one (BadArgument: none is free).

    Where the command does not start it (``is_started``), the address is ``local``: nothing would answer at its port.
    """
    low, high = map(int, ray.ports.split("-"))
    port = int(given_port) if given_port.isdecimal() else find_port(low, high)
    if port is None:
        raise BadArgument("environment", f"no port of {ray.ports} is free for the run's own Ray.")
    room = LONGEST_RAY_DIRECTORY - len(ray.temp_dir.replace("{run_id}", ""))
    short_id = run_id[-max(room, 4) :].lstrip("-")  # the end of an id is unique
    namespace = _fill_template(ray.namespace, port, run_id)
    address = ray.address or ("127.0.0.1:{port}" if is_started else _LOCAL)
    variables = {
        "RAY_ADDRESS": _fill_template(address, port, run_id),
        "RAY_PORT": str(port),
        "RAY_TMPDIR": _fill_template(ray.temp_dir, port, short_id),
        "RAY_NAMESPACE": namespace,
        "RLINF_NAMESPACE": namespace,
    }
    if ray.capacity_threshold is not None:
        variables["RAY_local_fs_capacity_threshold"] = f"{ray.capacity_threshold:g}"
    return variables


def _fill_template(template: str, port: int, run_id: str) -> str:
    return template.replace("{port}", str(port)).replace("{run_id}", run_id)


@dataclass(frozen=True)
class ServicesFound:
    """The needs of a launch by run ids, and the variables by which the run finds the Ray of one of them."""

    needs: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)


def find_services(texts: Sequence[str], mirror: str, store: RunStore) -> ServicesFound:
    """Return the runs that ``texts`` mean. BadArgument, RunNotFound: one has ended, or is not of this ``mirror``."""
    if len(texts) > _MOST_NEEDS:
        raise BadArgument("needs", f"names {len(texts)} runs; at most {_MOST_NEEDS} are taken.")
    needs: list[str] = []
    env: dict[str, str] = {}
    for text in texts:
        try:
            need = parse_need(text)
        except ValueError as error:
            raise BadArgument("needs", str(error), "PORT is where it listens, PATH what it answers by HTTP.") from error
        if need.host:
            needs.append(str(need))
            continue
        run = store.find(need.run)
        if run.ended:
            raise BadArgument("needs", f"{run.run_id} has ended: {run.state}.", "Launch it again, then this run.")
        if run.spec.mirror != mirror:
            cause = f"{run.run_id} is on {run.spec.host or 'this host'}, and this run would not be."
            port = need.port or find_service_port(run) or run.spec.env.get("RAY_PORT", "PORT")
            remedy = (
                f'Across hosts name where it answers: needs=["ADDRESS:{port}{need.path}"] (ADDRESS: of its host, as '
                "reachable from there). kill_run on a list of both ids stops both."
            )
            raise BadArgument("needs", cause, remedy)
        needs.append(str(replace(need, run=run.run_id)))
        if "RAY_PORT" in run.spec.env:
            env |= {name: run.spec.env[name] for name in _RAY_VARIABLES if name in run.spec.env}
    return ServicesFound(list(dict.fromkeys(needs)), env)
