"""How a far host is reached: the keys of its table in hosts.toml that concern the connection."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp_server.errors import ConfigInvalid
from mcp_server.system.files import read_configuration


@dataclass(frozen=True)
class SshSettings:
    """The connection to one host. ``alias`` is a name of ``~/.ssh/config``, which says all else of the connection.

    ``pythons``: interpreters to try first. ``state``: the state directory there. ``prepare``: a line of sh before
    Python is looked for, such as ``module load python/3.12``.
    """

    name: str
    alias: str
    pythons: tuple[str, ...] = ()
    state: str = ""
    prepare: str = ""


def read_ssh_settings(mirror: Path) -> SshSettings:
    """Return the settings of the host whose mirror is ``mirror``, `hosts/NAME` in the state directory.

    Raises:
        ConfigInvalid: hosts.toml cannot be read, or does not say how this host is reached.
    """
    name, file = mirror.name, mirror.parents[1] / "hosts.toml"
    try:
        tables = tomllib.loads(read_configuration(file).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigInvalid(file, f"{error}.") from error
    host = _table(_table(tables, "hosts"), name)
    alias = host.get("ssh")
    if not isinstance(alias, str) or not alias:
        raise ConfigInvalid(file, f"hosts.{name} has no ssh = ALIAS any more.")
    environment = _table(_table(tables, "environments"), str(host.get("environment")))
    pythons = [host.get("python"), environment.get("python")]
    return SshSettings(
        name,
        alias,
        tuple(python for python in pythons if isinstance(python, str)),
        str(host.get("state") or ""),
        str(host.get("prepare") or ""),
    )


def _table(tables: dict[str, Any], name: str) -> dict[str, Any]:
    table = tables.get(name)
    return table if isinstance(table, dict) else {}
