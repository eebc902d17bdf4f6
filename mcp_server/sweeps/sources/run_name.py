"""A name of its own for each run, where the program writes beside other runs of the same name. Pure."""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from mcp_server.command.outputs import RUN_NAMES
from mcp_server.command.shell import ReadCommand, parse
from mcp_server.sweeps.sources.cell import Scalar

# rsl_rl makes a directory of the date, the second and this name; another attempt makes another.
_RSL_RL, _RSL_NAME = "run_name", "{run_id}-{attempt}"
_RSL_SCRIPTS = re.compile(
    r"(?:^|/)(?:rsl_rl|legged_gym/scripts)/train\.py|(?:^|\.)(?:rsl_rl|legged_gym\.scripts)\.train"
)
# VERL makes a directory of the project and this name, in which another attempt finds its checkpoints.
_VERL, _VERL_NAME = "trainer.experiment_name", "{run_id}"
_VERL_MODULE = re.compile(r"verl\.(?:\w+\.)*main_\w+")
_UNIQUE = re.compile(r"\{run_id\}|\{cell\}|RUNWARD_RUN_ID|\$\{now:|\$\(date")
_FLAG = re.compile(r"--([A-Za-z][\w-]*)(?:=.*)?", re.DOTALL)
_LONGEST = 48


def propose_run_name(
    command: str | Sequence[str], params: Mapping[str, Scalar], param_style: str = "--k v"
) -> str | None:
    """Return a parameter as ``NAME=VALUE`` whose value keeps the files of a run apart, or None where none is needed.

    ``params`` are those of the cell. The value holds ``{run_id}``, and where a retry starts afresh ``{attempt}``, which
    launch_run replaces in parameters. A name that the command or the parameters give is kept in front of it. Without
    one, rsl_rl gets ``run_name`` and VERL ``trainer.experiment_name``, with a name of the settings; None for programs
    that may not know such an option, and where ``param_style`` cannot write it.
    """
    parsed = parse(command if isinstance(command, str) else list(command))
    settings = {**parsed.split_options()[0], **{name.lstrip("+~"): value for name, value in params.items()}}
    if not param_style.startswith("--") and (verl := _propose_verl_name(parsed, settings)):
        return verl if verl != _VERL else None
    option = _find_option(parsed, params, param_style)
    is_rsl_rl = any(_RSL_SCRIPTS.search(word) for word in parsed.words)
    if option is None and not (is_rsl_rl and param_style.startswith("--")):
        return None
    option = option or _RSL_RL
    value = settings.get(option)
    if value is not None and _UNIQUE.search(str(value)):
        return None
    unique = _RSL_NAME if option.replace("-", "_") == _RSL_RL else _VERL_NAME
    return f"{option}={_join(value, unique)}"


def name_experiment(params: Mapping[str, Scalar]) -> str:
    """Return a name made of VERL's settings: model, algorithm, batch, learning rate, or empty where none is known."""
    settings = {name.lstrip("+~"): value for name, value in params.items()}

    def find(name: str) -> str:
        value = settings.get(name)
        return "" if value is None else str(value).strip("\"'")

    parts = [
        PurePath(find("actor_rollout_ref.model.path").rstrip("/")).name,
        find("algorithm.adv_estimator"),
        f"bs{size}" if (size := find("data.train_batch_size")) else "",
        f"lr{rate}" if (rate := find("actor_rollout_ref.actor.optim.lr")) else "",
    ]
    words = (re.sub(r"[^\w.-]+", "-", part, flags=re.ASCII).strip("-.") for part in parts)
    return "-".join(filter(None, words))


def _propose_verl_name(parsed: ReadCommand, settings: Mapping[str, object]) -> str | None:
    is_verl = any(_VERL_MODULE.fullmatch(word) for word in parsed.words)
    if not is_verl and not any(name.startswith("actor_rollout_ref.") for name in settings):
        return None
    value = settings.get(_VERL)
    if value is not None and _UNIQUE.search(str(value)):
        return _VERL
    scalars = {
        name: value for name, value in settings.items() if value is None or isinstance(value, str | int | float | bool)
    }
    return f"{_VERL}={_join(value or name_experiment(scalars), _VERL_NAME)}"


def _find_option(parsed: ReadCommand, params: Mapping[str, Scalar], style: str) -> str | None:
    """Return the option of the command, or of the parameters, that names a run, as ``style`` writes it."""
    if style.startswith("--"):
        written = [match[1] for word in parsed.words if (match := _FLAG.fullmatch(word))]
    else:
        names = [word.partition("=")[0] for word in parsed.words if "=" in word and not word.startswith("-")]
        written = [name.lstrip("+~") for name in names]
    options = [*written, *(name.lstrip("+~") for name in params)]
    for name in reversed(RUN_NAMES):
        for option in options:
            last = option.rpartition(".")[2].replace("-", "_")
            # As a flag, `--experiment_name` is a directory of many runs.
            if last == name and (name != "experiment_name" or "." in option):
                return option
    return None


def _join(value: object, unique: str) -> str:
    text = "" if value is None else str(value).strip("\"'")
    return f"{text[:_LONGEST]}-{unique}" if re.fullmatch(r"[\w.{}-]+", text, re.ASCII) else unique
