"""The ``#SBATCH`` lines of a script that a run's command starts: only sbatch reads them, and it gets another. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress

from mcp_server.backends.slurm.batch_script import GPU_OPTIONS, OPTIONS, normalize_options
from mcp_server.gpus.request import parse_gpus
from mcp_server.record.spec import RunSpec

_MARK = "#SBATCH"
_LETTERS = {
    "A": "account",
    "C": "constraint",
    "G": "gpus",
    "N": "nodes",
    "c": "cpus-per-task",
    "n": "ntasks",
    "p": "partition",
    "q": "qos",
    "t": "time",
    "w": "nodelist",
    "x": "exclude",
}


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
