"""A launch's request to Ray: the address of the head, the options, and the request that submits the job. Pure."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from mcp_server.errors import BadArgument
from mcp_server.gpus.request import find_placeholder, parse_gpus
from mcp_server.record.spec import LaunchRequest, RunSpec
from mcp_server.text.secret_patterns import holds_a_secret, names_a_secret

ADDRESS, SHARED = "address", "shared_disk"
# Variables that hold an address of the Jobs API. RAY_ADDRESS may also hold one that only Ray's own protocol speaks.
VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
_NUMBERS = frozenset({"entrypoint_num_cpus", "entrypoint_num_gpus", "entrypoint_memory"})
_TABLES = frozenset({"entrypoint_resources", "entrypoint_label_selector", "runtime_env", "metadata"})
OPTIONS = frozenset({ADDRESS, SHARED}) | _NUMBERS | _TABLES
_OURS = {"submission_id": "", "job_id": "", "entrypoint": "command"}
_LOCAL_FILES = frozenset({"working_dir", "py_modules", "py_executable"})
_NAMES = {"entrypoint_num_gpus": "GPU", "entrypoint_num_cpus": "CPU", "entrypoint_memory": "memory"}
_URI = re.compile(r"[a-z][a-z0-9+.-]*://")


def check_request(request: LaunchRequest) -> None:
    """Raise BadArgument for options that no job has, runward sets or an argument contradicts, and for named GPUs."""
    options = request.backend_options
    for name, value in options.items():
        _check_option(name, value)
    gpus = parse_gpus(request.gpus)
    if gpus is not None and gpus.ids:
        raise BadArgument("gpus", "Ray chooses them: pass a count.")
    if request.require:
        raise BadArgument("require", "Ray chooses the GPUs.", 'Pass {"entrypoint_resources": {…}}.')
    if gpus and gpus.count and "entrypoint_num_gpus" in options:
        raise BadArgument("backend_options", "entrypoint_num_gpus and gpus both ask for GPUs.", "Pass one of them.")
    if gpus and gpus.cpu and "entrypoint_num_cpus" in options:
        raise BadArgument("backend_options", "entrypoint_num_cpus and gpus both ask for cpus.", "Pass one of them.")
    words = [request.command] if isinstance(request.command, str) else request.command
    for text in [*words, *request.env.values(), *request.resume_args]:
        if (placeholder := find_placeholder(text)) is not None:
            raise BadArgument("command", f"{placeholder} stands for leased GPUs, and Ray sets CUDA_VISIBLE_DEVICES.")


def _check_option(name: str, value: object) -> None:
    if name in _OURS:
        use = f"Pass {_OURS[name]} to launch_run." if _OURS[name] else ""
        raise BadArgument("backend_options", f"{name} is set by runward.", use)
    if name == ADDRESS:
        parse_address(value)
    elif name == SHARED:
        if not isinstance(value, bool):
            raise BadArgument("backend_options", f"{name} is true or false, not {value!r:.60}.")
    elif name in _NUMBERS:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            raise BadArgument("backend_options", f"{name} is a number from 0 on, not {value!r:.60}.")
    elif name not in _TABLES:
        known = ", ".join(sorted(OPTIONS))
        raise BadArgument("backend_options", f"{name!r:.60} is not an option of a Ray job; there are {known}.")
    elif not isinstance(value, Mapping):
        raise BadArgument("backend_options", f"{name} is a table, not {value!r:.60}.")
    elif name == "runtime_env":
        _check_runtime_env(value)


def _check_runtime_env(environment: Mapping[str, Any]) -> None:
    """Refuse secrets, which Ray shows to everybody, and files that nobody has uploaded."""
    variables = environment.get("env_vars")
    for name, value in variables.items() if isinstance(variables, Mapping) else ():
        if names_a_secret(str(name)) or holds_a_secret(str(name), str(value)):
            raise BadArgument(
                "backend_options",
                f"runtime_env.env_vars.{name!s:.40} looks like a secret, and Ray shows runtime_env to everybody.",
                f'Pass secrets=["{name!s:.40}"].',
            )
    for name in _LOCAL_FILES & environment.keys():
        values = environment[name] if isinstance(environment[name], list) else [environment[name]]
        if not all(isinstance(value, str) and _URI.match(value) for value in values):
            raise BadArgument(
                "backend_options", f"runtime_env.{name} must be a URI: nothing is uploaded.", "The run starts in cwd."
            )


def parse_address(value: object) -> str:
    """Return a Jobs API's address in its normal form, e.g. ``http://127.0.0.1:8265``; another text is a BadArgument."""
    text = str(value).strip()
    text = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(text)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_usable, parts = False, urlsplit("")
    if not is_usable or parts.username or parts.password or parts.query or parts.fragment or not text.isprintable():
        raise BadArgument(
            "backend_options",
            f"address is not that of a Ray dashboard: {text.rpartition('@')[2]!r:.100}.",  # before @ may be a password
            "It is e.g. http://127.0.0.1:8265, and a token is in RAY_AUTH_TOKEN of the server.",
        )
    return text.rstrip("/")


def find_address(spec: RunSpec, environ: Mapping[str, str]) -> str:
    """Return the address of the head: of the options, else of the run's variables, else of the server's.

    Raises:
        BadArgument: there is none, or it is not one of a Jobs API.
    """
    if ADDRESS in spec.backend_options:
        return parse_address(spec.backend_options[ADDRESS])
    for variables in (spec.env, environ):
        for name in VARIABLES:
            if variables.get(name, "").startswith(("http://", "https://")):
                return parse_address(variables[name])
    raise BadArgument(
        "backend",
        "ray needs the address of a dashboard.",
        'Pass backend_options={"address": "http://127.0.0.1:8265"}, or set ray_address of this host in hosts.toml.',
    )


def make_request(spec: RunSpec, supervisor: Sequence[str]) -> dict[str, Any]:
    """Return the request that submits a run's job. It holds neither environment nor secret of the run."""
    options = {name: value for name, value in spec.backend_options.items() if name not in (ADDRESS, SHARED)}
    metadata = {"name": spec.name, "owner": spec.owner, **options.pop("metadata", {})}
    return {
        "submission_id": spec.run_id,
        "entrypoint": f"exec {shlex.join(supervisor)}",
        "metadata": {str(name): str(value) for name, value in metadata.items()},
        **_count_resources(spec),
        **options,
    }


def _count_resources(spec: RunSpec) -> dict[str, int]:
    gpus = parse_gpus(spec.gpus)
    if gpus is None:
        return {}
    return {"entrypoint_num_gpus": gpus.count} if gpus.count else {"entrypoint_num_cpus": gpus.cpu} if gpus.cpu else {}


def describe_wait(spec: RunSpec, resources: Mapping[str, tuple[float, float]]) -> str:
    """Return what the job waits for: what it needs, and what there is, as far as the cluster says."""
    request = make_request(spec, [])
    wanted = {_NAMES[name]: float(request[name]) for name in _NAMES if request.get(name)}
    wanted |= {str(name): float(value) for name, value in (request.get("entrypoint_resources") or {}).items()}
    if not wanted:
        return ""  # Ray needs a second or two for any job
    parts = [f"{_amount(name, value)}" for name, value in wanted.items()]
    free = {name: total - used for name, (used, total) in resources.items()}
    is_free = all(value <= free.get(name, 0.0) for name, value in wanted.items())
    begin = "Ray has not started it yet" if is_free else "Ray waits for resources"
    text = f"{begin}: the job needs {', '.join(parts)}"
    if not resources:
        return f"{text}; what the cluster has is unknown."
    have = [_describe_supply(name, resources.get(name, (0.0, 0.0))) for name in wanted]
    too_few = [name for name, value in wanted.items() if value > resources.get(name, (0.0, 0.0))[1]]
    end = f" It never starts unless {' and '.join(too_few)} are added." if too_few else ""
    return f"{text}; the cluster has {', '.join(have)}.{end}"


def _describe_supply(name: str, supply: tuple[float, float]) -> str:
    used, total = supply
    return f"{_amount(name, total)} ({_number(name, total - used)} free)"


def _amount(name: str, value: float) -> str:
    return f"{_number(name, value)} {'GiB of memory' if name == 'memory' else name}"


def _number(name: str, value: float) -> str:
    return f"{value / 2**30:.1f}" if name == "memory" else f"{value:g}"
