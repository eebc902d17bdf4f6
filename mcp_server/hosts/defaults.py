"""What a host and a named environment give a launch: variables, secrets, defaults, and a Ray of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from mcp_server.errors import BadArgument
from mcp_server.hosts.config import Environment, Host
from mcp_server.record.spec import LaunchRequest
from mcp_server.system.ports import find_free_port

# A Unix socket's path has 107 characters, and Ray puts up to 64 of its own behind the directory.
_LONGEST_RAY_DIRECTORY = 43


def fitted(request: LaunchRequest, host: Host, environment: Environment, environ: Mapping[str, str]) -> LaunchRequest:
    """Return ``request`` with what the environment and the host say where the caller said nothing.

    The python of the environment, else of the host, comes first in ``PATH``; ``environ`` is the server's.
    """
    env = dict(environment.env)
    if python := environment.python or host.python:
        env.setdefault("PATH", os.pathsep.join([str(Path(python).parent), environ.get("PATH") or os.defpath]))
    if environment.pythonpath:
        before = [env["PYTHONPATH"]] if "PYTHONPATH" in env else [environ.get("PYTHONPATH", "")]
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [*environment.pythonpath, *before]))
    secrets = [name for name in environment.secrets if name not in request.env]
    return replace(
        request,
        env={**env, **request.env},
        secrets=list(dict.fromkeys([*request.secrets, *secrets])),
        first_step_timeout_s=request.first_step_timeout_s or host.first_step_timeout_s,
        first_step_pattern=request.first_step_pattern or host.first_step_pattern,
    )


def own_ray(environment: Environment, run_id: str) -> dict[str, str]:
    """Return the variables of a Ray that is the run's own, to be set before Ray starts; none where it has none.

    Raises:
        BadArgument: no port of its range is free.
    """
    ray = environment.ray
    if ray is None:
        return {}
    low, high = map(int, ray.ports.split("-"))
    port = find_free_port(low, high)
    if port is None:
        raise BadArgument("environment", f"no port of {ray.ports} is free for the run's own Ray.")
    room = _LONGEST_RAY_DIRECTORY - len(ray.temp_dir.replace("{run_id}", ""))
    short = run_id[-max(room, 4) :].lstrip("-")  # its end is what no other run has
    namespace = _filled(ray.namespace, port, run_id)
    variables = {
        "RAY_ADDRESS": _filled(ray.address, port, run_id),
        "RAY_PORT": str(port),
        "RAY_TMPDIR": _filled(ray.temp_dir, port, short),
        "RAY_NAMESPACE": namespace,
        "RLINF_NAMESPACE": namespace,
    }
    if ray.capacity_threshold is not None:
        variables["RAY_local_fs_capacity_threshold"] = f"{ray.capacity_threshold:g}"
    return variables


def _filled(template: str, port: int, run_id: str) -> str:
    return template.replace("{port}", str(port)).replace("{run_id}", run_id)
