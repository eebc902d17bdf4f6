"""The arguments of a launch, and the specification of a run made of them: what ``spec.json`` holds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from mcp_server.record.codec import decode
from mcp_server.system.files import name_below

_NOT_KEPT = frozenset({"mirror", "run_dir"})
_Request = TypeVar("_Request", bound="LaunchRequest")


def argument(text: str, default: Any = None, **names: str) -> Any:
    """Return the field of an argument of a tool, with the text that a model reads; ``name``: another one there."""
    kind = "default_factory" if callable(default) else "default"
    return field(**{kind: default}, metadata={"text": text, **names})


@dataclass(frozen=True)
class LaunchRequest:
    """The arguments of a launch as the caller gave them. A field that the caller left open has its default.

    launch_run and preflight take those with a text, in this order: see ``tools/support/schema``.
    """

    command: str | list[str] = argument("Bash command line or argv list. No & or nohup", "")
    like: str | None = argument("Repeats RUN, or RUN@1: its attempt 1")
    change: dict[str, Any] = argument("There: params, options, arguments", dict)
    blueprint: str | None = argument("Path; fills in what you omit")
    name: str | None = argument("Label, part of run_id")
    cwd: str | None = argument("Absolute directory")
    env: dict[str, str] = argument("Variables; no secrets", dict)
    secrets: list[str] = argument('Names, e.g. ["WANDB_API_KEY"]; the server has the values', list)
    time_limit_s: float | None = argument("Stop it then. Default: never")
    first_step_timeout_s: float | None = argument("Report no step by then. Default 1200")
    first_step_pattern: str | None = argument("Regex of its line")
    stall_timeout_s: float | None = argument("Report a stall then. Default: by pace")
    recovery: Any = argument(
        "none: report. default: retry what a retry can cure, stop what hangs or "
        'diverges. Or a table: {"oom_gpu": {"do": "retry", "times": 2, "change": {"num_envs": "halve"}}}'
    )
    params: dict[str, Any] = argument(
        "Arguments that recovery may change; at the end or {params}. Or a YAML or JSON file", dict
    )
    params_file: str | None = None  # where params are read from, unless they are given
    param_style: str = argument("Form of params", "--k v")
    resume_args: list[str] = argument("Added on retries", list)
    gpus: Any = argument(  # None: the launch does not ask for GPUs
        'Leased for it alone: a count, [4, 5], "4-7", or "cpu" for a cpu slot. '
        "It sees only these, unless it says --device cuda:{gpu_indices}"
    )
    queue: bool = argument("Wait for GPUs; else refused", False)
    require: dict[str, Any] | None = argument(
        "Per GPU: free_memory_mib, power_limit_w and max_sm_clock_mhz at most, no_strangers"
    )
    tensorboard: str | None = argument("Its directory")
    environment: str | None = argument("One of hosts.toml, or none")
    host: str | None = argument("In hosts.toml")
    sync: str | None = argument("Sends cwd")  # "git" or "rsync": the code in cwd goes to the host first
    keep_code: bool = argument("kept: copied now", False, name="code")  # of the code in cwd, which the run executes
    backend: str = argument("How it starts", "tmux")
    backend_options: dict[str, Any] = argument('sbatch\'s: {"partition": "a100"}', dict)
    needs: list[str] = argument("Runs that must answer first", list)  # see ``record/service``
    owner: str | None = argument("Default: the server's")
    tags: list[str] = argument("For tag:WORD", list)
    why: str | None = argument("Your reason; find_runs knows it")
    idempotency_key: str | None = argument("Repeated: the first run")
    sweep: str | None = None  # the id of the sweep that launches it as one of its cells
    cell: str | None = None
    filled: dict[str, Any] = field(default_factory=dict)  # the parameters that stand in the command and the rest by now

    @classmethod
    def from_arguments(cls: type[_Request], arguments: Mapping[str, Any]) -> _Request:  # noqa: PYI019 - Python 3.9
        """Return the request that ``arguments`` hold by name. None is an open field, other names are ignored."""
        return cls(**{f.name: arguments[f.name] for f in fields(cls) if arguments.get(f.name) is not None})


@dataclass(frozen=True)
class RunSpec(LaunchRequest):
    """A launch with nothing left open, as ``spec.json`` keeps it. Secrets by name only.

    Every field has a default, so that directories of former layouts stay readable. The variables of ``environment`` are
    in ``env``. ``like``: RUN@ATTEMPT.
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
    imported: dict[str, Any] | None = None  # of a training that runward did not start: key, locations, seen

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> RunSpec:
        """Return the spec that ``facts`` hold. Fields that are unknown or of a wrong type are left out."""
        return decode(cls, {name: value for name, value in facts.items() if name not in _NOT_KEPT})

    @property
    def project(self) -> str:
        """``cwd`` where its code was sent or copied from; else ``cwd`` itself."""
        code = self.code or {}
        if not (code.get("from") and code.get("to")):
            return self.cwd
        return os.path.normpath(f"{code['from']}/{name_below(self.cwd, code['to'])}")

    def facts(self) -> dict[str, Any]:
        """Return all kept fields as JSON values."""
        return {name: value for name, value in asdict(self).items() if name not in _NOT_KEPT}
