"""Result models of check_blueprint, importable without the reader of blueprints."""

from typing import Any

from mcp_server.answer import Answer


class BlueprintProblem(Answer):
    """A problem and its line."""

    line: int
    text: str


class BlueprintCheck(Answer):
    """Values of a blueprint, with defaults and variables filled in. Paths are absolute; durations in seconds."""

    ok: bool
    purpose: str
    codebase_dir: str | None = None
    venv_exe: str | None = None
    yaml_path: str | None = None
    launch_command: str | None = None
    result_dir: str | None = None
    time_limit_s: float
    first_step_timeout_s: float
    first_step_pattern: str | None = None
    recovery: str | dict[str, Any] | None = None
    params: dict[str, Any] | None = None
    param_style: str | None = None
    resume_args: list[str] | None = None
    tensorboard: str | None = None
    seeds: list[int] | None = None
    defaults_used: list[str]
    notes: str
    problems: list[BlueprintProblem]
