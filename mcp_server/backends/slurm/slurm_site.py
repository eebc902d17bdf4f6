"""The facts of a Slurm installation: its version, what it remembers, its partitions and nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mcp_server.record.slurm.commands import run_program

_SECONDS = re.compile(r"\d+")


@dataclass(frozen=True)
class Site:
    """A Slurm as a login node sees it.

    ``accounting``: whether sacct may know ended jobs. ``forgets_after_s``: MinJobAge, after which the controller
    forgets them. ``partitions``: those that are up. ``node_hosts``: the names of the hosts that run jobs.
    """

    version: str
    accounting: bool
    forgets_after_s: int | None
    partitions: tuple[str, ...]
    node_hosts: frozenset[str]


def describe_site() -> Site:
    """Return what Slurm says of itself. Three short queries."""
    version = run_program(["sbatch", "--version"]).strip().rpartition(" ")[2]
    config = dict(re.findall(r"^(\w+)\s*=\s*(.*?)\s*$", run_program(["scontrol", "show", "config"]), re.MULTILINE))
    lines = [line.split("|") for line in run_program(["sinfo", "-h", "-N", "-o", "%R|%a|%n"]).splitlines()]
    rows = [(fields[0], fields[1], fields[2]) for fields in lines if len(fields) == 3]  # noqa: PLR2004 - as asked
    seconds = _SECONDS.match(config.get("MinJobAge", ""))
    return Site(
        version=version,
        accounting=config.get("AccountingStorageType", "").endswith("slurmdbd"),
        forgets_after_s=int(seconds[0]) if seconds else None,
        partitions=tuple(dict.fromkeys(name for name, availability, _ in rows if availability == "up")),
        node_hosts=frozenset(host for _, _, host in rows),
    )
