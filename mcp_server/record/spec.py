"""The specification of a run: what ``spec.json`` holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class RunSpec:
    """A launch as ``spec.json`` keeps it; secrets by name only.

    Every field has a default, so that directories of former layouts stay readable.
    """

    layout: int = 0
    run_id: str = ""
    name: str = ""
    command: str | list[str] = ""
    cwd: str = ""
    env: dict[str, str] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)
    owner: str = ""
    tags: list[str] = field(default_factory=list)
    time_limit_s: float | None = None
    first_step_timeout_s: float | None = None
    first_step_pattern: str | None = None
    stall_timeout_s: float | None = None
    recovery: dict[str, Any] | None = None  # the normal form of supervisor/policy.py
    params: dict[str, Any] = field(default_factory=dict)
    param_style: str = "--k v"
    resume_args: list[str] = field(default_factory=list)
    gpus: Any = None  # as asked: a count, a text, a list; None where nobody asked
    queue: bool = False
    require: dict[str, Any] | None = None
    leases: str = ""  # the directory of this machine's leases
    cpu_slots: int = 0
    gpu_sample_s: float = 5.0
    gpu_window_s: float = 120.0
    tensorboard: str | None = None
    blueprint: str | None = None
    result_dir: str | None = None
    stop_grace_s: float = 5.0
    idempotency_key: str | None = None
    created_at: str = ""
    host: str = ""
    boot_id: str = ""
    session: str = ""
    tmux_socket: str = "default"

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> RunSpec:
        """Return the spec that ``facts`` hold; fields that are unknown or of a wrong type are left out."""
        return cls(
            **{f.name: facts[f.name] for f in fields(cls) if f.name in facts and _fits(facts[f.name], str(f.type))}
        )

    def facts(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return asdict(self)


def _fits(value: object, kind: str) -> bool:
    """Return whether a JSON value is of the annotated type ``kind``, e.g. ``str | list[str]``."""
    return any(_fits_one(value, part.strip()) for part in kind.split("|"))


def _fits_one(value: object, kind: str) -> bool:
    name, _, item = kind.rstrip("]").partition("[")
    if name == "float":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if name == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    if name == "list":
        return isinstance(value, list) and all(_fits_one(each, item) for each in value)
    if name == "dict":
        return isinstance(value, dict) and all(
            _fits_one(each, item.rpartition(",")[2].strip()) for each in value.values()
        )
    return name == "Any" or isinstance(value, {"str": str, "bool": bool, "None": type(None)}[name])
