"""The cells that a source such as ``doit:train-*`` or ``hydra:conf/train.yaml`` means.

A name of its own for each run, where the program writes beside other runs of the same name. Pure.

Runs the program that reads a project's dodo.py with the project's Python.

This executes dodo.py, as ``doit list`` does: never in this process, in a process group of its own, with a time limit.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath

from mcp_server.command.outputs import RUN_NAMES
from mcp_server.command.shell import ReadCommand, parse
from mcp_server.errors import BadArgument
from mcp_server.hosts.path_checks import suggest_names
from mcp_server.record.script import slug
from mcp_server.sweeps.sources.cell import GpuCount, Scalar, SourceCell, SourceQuery
from mcp_server.sweeps.sources.doit_tasks import (
    Choice,
    DoitTask,
    build_launch,
    choose_tasks,
    list_patterns,
    parse_tasks,
)
from mcp_server.sweeps.sources.hydra_source import read_hydra_source
from mcp_server.system.files import read_regular_file

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
_CHILD = str(Path(__file__).with_name("doit_child.py"))
_NO_DOIT = 86  # its exit status
_LIMIT_S = 45.0
_MOST_BYTES, _MOST_CHARS = 10_000_000, 500
_SHEBANG = re.compile(rb"#!\s*(/\S*python[\d.]*)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class DoitProject:
    """The tasks of a project, the directory that doit runs them in, and the Python that loaded dodo.py."""

    tasks: list[DoitTask]
    cwd: str
    python: str


def load_project(
    cwd: Path, python: str | None, environ: Mapping[str, str], patterns: Sequence[str], options: Mapping[str, str]
) -> DoitProject:
    """Return the tasks of ``cwd``. The arguments are those of ``source.read_source`` and of ``doit_child``.

    Raises:
        BadArgument: no Python has doit, or doit cannot load dodo.py; says what it printed.
    """
    pythons = [python] if python else list(dict.fromkeys(_find_pythons(cwd, environ)))
    request = json.dumps({"patterns": list(patterns), "options": dict(options)})
    for each in pythons:
        with tempfile.TemporaryDirectory(prefix="runward-doit-") as scratch:
            status, output = _run([each, _CHILD, request, f"{scratch}/tasks.json"], cwd, environ, scratch)
            if status == _NO_DOIT:
                continue
            if status != 0:
                raise BadArgument("source", f"doit cannot load the tasks of {cwd}: {output}")
            data = json.loads(read_regular_file(Path(scratch) / "tasks.json", max_bytes=_MOST_BYTES))
            return DoitProject(parse_tasks(data["tasks"]), data["cwd"], each)
    remedy = "Install doit for the project's Python, or name the environment that has it."
    raise BadArgument("source", f"no Python with doit: {', '.join(pythons) or 'PATH has no python'}.", remedy)


def _run(command: Sequence[str], cwd: Path, environ: Mapping[str, str], scratch: str) -> tuple[int, str]:
    output = Path(scratch) / "output"
    with output.open("wb") as file:
        try:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        except OSError as error:
            raise BadArgument("source", f"{command[0]} cannot be started: {error.strerror}.") from None
        try:
            status = process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            cause = f"dodo.py of {cwd} was still loading after {_LIMIT_S:.0f} s, and was stopped."
            raise BadArgument("source", cause, "Move slow work out of the module and its task_ functions.") from None
        finally:
            with suppress(ProcessLookupError):  # and what it may have left behind
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    text = " / ".join(read_regular_file(output, max_bytes=_MOST_BYTES).decode(errors="replace").split("\n")).strip(" /")
    text = f"…{text[-_MOST_CHARS:]}" if len(text) > _MOST_CHARS else text
    return status, f"{text or f'exit status {status}'}."


def _find_pythons(cwd: Path, environ: Mapping[str, str]) -> Iterator[str]:
    path = environ.get("PATH") or os.defpath
    if program := shutil.which("doit", path=path):
        with suppress(OSError):
            if match := _SHEBANG.match(read_regular_file(Path(program), max_bytes=4096)):
                yield os.fsdecode(match[1])
    yield from filter(None, (shutil.which(name, path=path) for name in ("python", "python3")))
    yield from (str(each) for name in (".venv", "venv") if (each := cwd / name / "bin" / "python").is_file())


def read_doit_source(query: SourceQuery) -> list[SourceCell]:
    """Return a cell for each task that the source means, in the order it means them. Executes dodo.py.

    Raises:
        BadArgument: there is no such task, it is not a command, or dodo.py cannot be loaded.
    """
    if query.cwd is None:
        raise BadArgument("cwd", "is not given: it is the directory of the project's dodo.py.")
    cwd = Path(query.cwd).expanduser()
    if not cwd.is_absolute() or not cwd.is_dir():
        raise BadArgument("cwd", f"is not an absolute path of a directory: {query.cwd[:200]!r}.", suggest_names(cwd))
    options = {
        n: str(v).lower() if isinstance(v, bool) else str(v) for n, v in query.overrides.items() if v is not None
    }
    patterns = list_patterns(query.words)
    project = load_project(cwd, query.python, query.environ, patterns, options)
    return list(_build_cells(query, project, choose_tasks(project.tasks, query.words, query.gpus, query.cwd)))


def _build_cells(query: SourceQuery, project: DoitProject, choices: list[Choice]) -> Iterator[SourceCell]:
    names: set[str] = set()
    note = f"dodo.py was executed by {project.python} to read its tasks."
    for choice in choices:
        launch = build_launch(choice.task, project.tasks, project.cwd, query.overrides, query.gpus)
        name = slug(choice.task.name)
        while name in names:  # a:b and a-b
            name = f"{name}-2"
        names.add(name)
        yield SourceCell(name, launch.arguments, launch.params, (*choice.notes, *launch.notes, note))


__all__ = ["GpuCount", "Scalar", "SourceCell", "propose_run_name", "read_source"]

_READERS = {"doit": read_doit_source, "hydra": read_hydra_source, "verl": read_hydra_source}
_LANGUAGE = "A source is doit:TASK, doit:TASK1,TASK2, doit:train-*, hydra:CONFIG.yaml or verl:CONFIG.yaml."


def read_source(
    source: str,
    *,
    cwd: str | None,
    overrides: Mapping[str, Scalar],
    gpus: GpuCount,
    environ: Mapping[str, str],
    python: str | None = None,
) -> list[SourceCell]:
    """Return the cells of ``source`` in its own order, at least one.

    Blocks: ``doit:`` runs the project's dodo.py in a process of its own, for at most 45 s. ``cwd`` is the project's
    directory, ``overrides`` win over settings of the source, ``gpus`` is the count of GPUs of each cell, ``environ``
    the environment of the runs, ``python`` the project's interpreter, by default the one that ``environ`` finds.

    Raises:
        BadArgument: the source cannot be read as one; names what exists.
    """
    kind, colon, rest = source.partition(":")
    reader = _READERS.get(kind.strip()) if colon else None
    if reader is None:
        raise BadArgument("source", f"is not of a known kind: {source[:80]!r}.", _LANGUAGE)
    return reader(SourceQuery(kind.strip(), rest.strip(), cwd, overrides, gpus, environ, python))


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
