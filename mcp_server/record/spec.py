"""The arguments of a launch, and the specification of a run made of them: what ``spec.json`` holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from mcp_server.record.codec import decode

_NOT_KEPT = frozenset({"environment", "mirror", "run_dir"})
_Request = TypeVar("_Request", bound="LaunchRequest")


@dataclass(frozen=True)
class LaunchRequest:
    """The arguments of a launch as the caller gave them. A field that the caller left open has its default."""

    command: str | list[str] = ""
    name: str | None = None
    cwd: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)  # names only
    owner: str | None = None
    tags: list[str] = field(default_factory=list)
    time_limit_s: float | None = None
    idempotency_key: str | None = None
    first_step_timeout_s: float | None = None
    first_step_pattern: str | None = None
    stall_timeout_s: float | None = None
    recovery: Any = None  # a policy's name or its table
    params: dict[str, Any] = field(default_factory=dict)
    params_file: str | None = None  # where params are read from, unless they are given
    param_style: str = "--k v"
    resume_args: list[str] = field(default_factory=list)
    gpus: Any = None  # a count, a text or a list; None: the launch does not ask for GPUs
    queue: bool = False
    require: dict[str, Any] | None = None
    tensorboard: str | None = None
    blueprint: str | None = None
    host: str | None = None
    environment: str | None = None
    backend: str = "tmux"
    backend_options: dict[str, Any] = field(default_factory=dict)
    needs: list[str] = field(default_factory=list)  # runs that must answer first, see ``record/service``
    sync: str | None = None  # "git" or "rsync": the code in cwd goes to the host first
    keep_code: bool = False  # the run executes a private copy of the code in cwd, made at the launch
    sweep: str | None = None  # the id of the sweep that launches it as one of its cells
    cell: str | None = None

    @classmethod
    def from_arguments(cls: type[_Request], arguments: Mapping[str, Any]) -> _Request:  # noqa: PYI019 - Python 3.9
        """Return the request that ``arguments`` hold by name. None is an open field, other names are ignored."""
        return cls(**{f.name: arguments[f.name] for f in fields(cls) if arguments.get(f.name) is not None})


@dataclass(frozen=True)
class RunSpec(LaunchRequest):
    """A launch with nothing left open, as ``spec.json`` keeps it. Secrets by name only.

    Every field has a default, so that directories of former layouts stay readable. ``environment`` is not kept: its
    variables are in ``env``.
    """

    # Open in a request, always set here.
    name: str = ""
    cwd: str = ""
    owner: str = ""
    host: str = ""
    recovery: dict[str, Any] | None = None  # the normal form of recovery/policy.py

    layout: int = 0
    run_id: str = ""
    leases: str = ""  # the directory of this machine's leases
    cpu_slots: int = 0
    gpu_sample_s: float = 5.0
    gpu_window_s: float = 120.0
    result_dir: str | None = None
    stop_grace_s: float = 5.0
    repair_grace_s: float = 0.0
    created_at: str = ""
    boot_id: str = ""
    session: str = ""
    tmux_socket: str = "default"
    code: dict[str, str] | None = None  # of code that was sent: sync, from, to, commit, hash
    mirror: str = ""  # of a run on a far host: what this host knows of that host, `hosts/NAME` in the state directory
    run_dir: str = ""  # where this host has its record

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> RunSpec:
        """Return the spec that ``facts`` hold. Fields that are unknown or of a wrong type are left out."""
        return decode(cls, {name: value for name, value in facts.items() if name not in _NOT_KEPT})

    def facts(self) -> dict[str, Any]:
        """Return all kept fields as JSON values."""
        return {name: value for name, value in asdict(self).items() if name not in _NOT_KEPT}
