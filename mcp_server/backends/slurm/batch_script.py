"""A launch's request to Slurm, in the words of sbatch. Pure."""

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from mcp_server.backends.base import backend_of
from mcp_server.errors import BadArgument
from mcp_server.gpus.request import parse_gpus
from mcp_server.record.handover import Handover
from mcp_server.record.run_directory import RunDir
from mcp_server.record.slurm.job import list_place_options, render_script
from mcp_server.record.spec import LaunchRequest, RunSpec
from mcp_server.text.rows import read_blocks

SIGNAL_BEFORE_S = 120
# The site's limit must not come before the run's own: Slurm counts minutes, and signals up to a minute early.
_AFTER_LIMIT_S = SIGNAL_BEFORE_S + 120
_BLOCKS = [dict(block) for block in read_blocks("backends/slurm/sbatch")]
OPTIONS = frozenset(word for one in _BLOCKS for word in one.get("words", "").split())
_OURS, _OF_A_FILE = ({one[key]: one.get("by", "") for one in _BLOCKS if key in one} for key in ("ours", "file"))
_LETTERS = {one["short"]: one["long"] for one in _BLOCKS if "short" in one}
ARRAY = "array"  # a flag, of a sweep's cells alone: they are handed in together
GPU_OPTIONS = frozenset({"gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "gres", "tres-per-task"})
_VALUE = re.compile(r"[^\"\\\x00-\x1f\x7f]{1,500}")


def check_request(request: LaunchRequest) -> None:
    """Raise BadArgument for options that sbatch lacks, runward sets or an argument contradicts, and for named GPUs."""
    options = normalize_options(request.backend_options)
    if ARRAY in request.backend_options and request.sweep is None:
        raise BadArgument("backend_options", f"{ARRAY} is set by runward.", "launch_sweep makes arrays.")
    gpus = parse_gpus(request.gpus)
    if gpus is not None and gpus.ids:
        raise BadArgument("gpus", "Slurm chooses them: pass a count.")
    if request.require:
        raise BadArgument(
            "require", "Slurm chooses the GPUs.", 'Pass what the site calls them, e.g. {"constraint": "a100"}.'
        )
    if gpus and gpus.count and (both := sorted(GPU_OPTIONS & options.keys())):
        raise BadArgument("backend_options", f"{', '.join(both)} and gpus both ask for GPUs.", "Pass one of them.")
    if gpus and gpus.cpu and "cpus-per-task" in options:
        raise BadArgument("backend_options", "cpus-per-task and gpus both ask for cpus.", "Pass one of them.")


def normalize_options(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options of sbatch by their long names, with dashes; a flag is empty. A wrong one is a BadArgument."""
    normal: dict[str, str] = {}
    for given, value in options.items():
        name = given.strip().lstrip("-").replace("_", "-")
        if name == ARRAY and isinstance(value, bool):  # of a sweep
            continue
        if name in _OURS:
            use = f"Pass {_OURS[name]} to launch_run." if _OURS[name] in ("name", "cwd", "env", "command") else ""
            raise BadArgument("backend_options", f"{name} is set by runward.", use)
        if name in _OF_A_FILE:
            raise BadArgument("backend_options", f"{name} reads a file.", f"Pass what is in it by {_OF_A_FILE[name]}.")
        if name not in OPTIONS:
            raise BadArgument(
                "backend_options", f"{given!r:.60} is not a long option of sbatch.", "sbatch --help lists them."
            )
        if value is None or value is False:
            continue
        text = "" if value is True else str(value)
        if isinstance(value, (dict, list)) or (text and not _VALUE.fullmatch(text)):
            raise BadArgument("backend_options", f"{name}: {value!r:.60} cannot stand in a script of sbatch.")
        normal[name] = text
    return normal


def list_options(spec: RunSpec) -> dict[str, str]:
    """Return all options of a run's job."""
    return {**list_place_options(spec.run_id, Path(spec.run_dir)), **list_shared_options(spec)}


def list_shared_options(spec: RunSpec) -> dict[str, str]:
    """Return the options of a run's job but for those that say which run it is, and where its directory is."""
    given = normalize_options(spec.backend_options)
    gpus = parse_gpus(spec.gpus)
    options = {"open-mode": "append", "signal": f"B:USR1@{SIGNAL_BEFORE_S}"}
    if gpus and gpus.count:
        options["gpus" if "nodes" in given else "gres"] = str(gpus.count) if "nodes" in given else f"gpu:{gpus.count}"
    if gpus and gpus.cpu:
        options["cpus-per-task"] = str(gpus.cpu)
    if spec.time_limit_s:
        options["time"] = str(math.ceil((spec.time_limit_s + _AFTER_LIMIT_S) / 60))
    if not given.keys() & {"requeue", "no-requeue"}:
        # Nothing is started again that nobody asked to start again.
        options["requeue" if (spec.recovery or {}).get("rules") else "no-requeue"] = ""
    return {**options, **given}


def render_batch_script(spec: RunSpec, supervisor: Sequence[str]) -> str:
    """Return the batch script of a run, whose process becomes the supervisor."""
    return render_script(list_options(spec), shlex.join(supervisor))


_MARK = "#SBATCH"


def warn_of_directives(spec: RunSpec, scripts: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each script whose directives the job does not have, with the options to pass.

    Directives for what the launch asks for itself are left out. ``scripts``: the texts by the names to show.
    """
    given = set(normalize_options(spec.backend_options))
    if parse_gpus(spec.gpus) is not None:
        given |= GPU_OPTIONS
    if spec.time_limit_s:
        given.add("time")
    for name, text in scripts.items():
        options = {option: value for option, value in read_directives(text).items() if option not in given}
        if options:
            yield (
                f"{name}: only sbatch reads its #SBATCH lines, and this job has none of them: pass "
                f"backend_options={json.dumps(options)}."
            )


def read_directives(text: str) -> dict[str, str | bool]:
    """Return the options of the ``#SBATCH`` lines before the first command that a launch may pass, by long names."""
    options: dict[str, str | bool] = {}
    for line in text.splitlines():
        if line.startswith(_MARK):
            with suppress(ValueError):
                options |= _read_words(shlex.split(line[len(_MARK) :], comments=True))
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return {name: value for name, value in options.items() if name in OPTIONS}


def _read_words(words: list[str]) -> dict[str, str | bool]:
    options: dict[str, str | bool] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            options[name] = value if equals else True
        elif word.startswith("-") and word[1:2] in _LETTERS:
            name = _LETTERS[word[1]]
            options[name] = word[2:].removeprefix("=") or True
        elif name and options.get(name) is True:
            options[name] = word
    return options


@dataclass(frozen=True)
class Element:
    """A run of an array: its directory, its spec, and what is handed over."""

    directory: RunDir
    spec: RunSpec
    handover: Handover


class ArrayBackend(Protocol):
    """A backend that hands runs in to Slurm as one array of jobs."""

    most_in_array: int

    def preview_array(self, spec: RunSpec, name: str, count: int, most_at_once: int | None) -> str:
        """Return the batch script of an array of ``count`` runs like ``spec``. May block for some seconds."""

    async def start_array(self, elements: Sequence[Element], name: str, most_at_once: int | None) -> None:
        """Hand prepared runs in as one array of jobs, of which Slurm starts at most so many at once.

        Raises:
            LaunchFailed: Slurm refused, and nothing is left of the runs; or it did not answer, as in ``start``.
        """

    async def discard(self, directory: RunDir, spec: RunSpec) -> None:
        """Remove a prepared run that was not handed in."""


def array_backend_of(spec: RunSpec) -> ArrayBackend:
    """Return the backend of a run that is a job of Slurm."""
    return cast("ArrayBackend", backend_of(spec))


def are_alike(one: RunSpec, other: RunSpec) -> bool:
    """Return whether two runs ask the same of the same Slurm, so that one script serves both."""
    return one.mirror == other.mirror and list_shared_options(one) == list_shared_options(other)
