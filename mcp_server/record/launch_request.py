"""What a launch is asked for: the arguments of launch_run as values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

ParamStyle = Literal["--k v", "k=v"]


@dataclass(frozen=True)
class Request:
    """The arguments of a launch, as the caller gave them."""

    command: str | list[str]
    name: str | None = None
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)
    owner: str | None = None
    tags: list[str] = field(default_factory=list)
    time_limit_s: float | None = None
    idempotency_key: str | None = None
    first_step_timeout_s: float | None = None
    first_step_pattern: str | None = None
    stall_timeout_s: float | None = None
    recovery: str | Mapping[str, Any] | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    param_style: ParamStyle = "--k v"
    resume_args: list[str] = field(default_factory=list)
    gpus: int | str | list[int | str] | None = None
    queue: bool = False
    require: Mapping[str, Any] | None = None
    tensorboard: str | None = None
    blueprint: str | None = None
    host: str | None = None
    environment: str | None = None
