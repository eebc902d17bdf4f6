"""The Ray of its own that an environment of hosts.toml gives to each run: its variables, and who starts it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from mcp_server.errors import BadArgument
from mcp_server.hosts.config import Ray
from mcp_server.recovery.changes import LONGEST_RAY_DIRECTORY
from mcp_server.system.ports import find_free_port

# `ray start`, `["ray", "start"`, and whatever makes a service listen at $RAY_PORT.
_STARTS = re.compile(r"\bray['\"]?[\s,\\]+['\"]?start\b|\bray\.scripts\b|\bRAY_PORT\b")
_LOCAL = "local"  # ray.init() starts a Ray, in $RAY_TMPDIR


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
    """Return the variables of the run's own Ray, with a free port, or with the one that the launch gives.

    ``is_started``: the command starts this Ray. Where it does not, nothing would answer at its port: the address is
    ``local``, unless the environment has another.

    Raises:
        BadArgument: no port of its range is free.
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
