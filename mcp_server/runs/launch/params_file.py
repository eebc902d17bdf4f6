"""Reads a launch's parameters from YAML or JSON files: nested names become ``section.key``.

Several files, with commas between them, are parts of one configuration: later ones win.

A training YAML in the sections of AgentFly's tutorial (``training``, ``hardware``, ``monitoring``, ``model``,
``rollout``) has the names that its own scripts write for VERL, and those that VERL's config has in one place alone.
Whatever else is refused: a guessed name would train something else.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mcp_server.blueprints.front_matter import YamlFault, compose, to_data
from mcp_server.errors import BadArgument
from mcp_server.hosts.path_checks import suggest_names
from mcp_server.system.files import read_regular_file
from mcp_server.text.formatting import join_some
from mcp_server.text.rows import read_blocks

_ACTOR, _ROLLOUT, _CRITIC = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "critic"
_TOTAL_GPUS = "hardware.n_gpus"  # of all nodes, or of each
_BLOCKS = list(read_blocks("runs/launch/verl"))
_NAMES: Mapping[str, Sequence[str]] = {
    name: tuple(block["verl"].split())
    for block in map(dict, _BLOCKS)
    if "verl" in block
    for name in block["name"].split()
}
_ALONE: Mapping[str, str] = {
    name: f"{part}.{name}" for (key, part), *rows in _BLOCKS if key == "part" for _, row in rows for name in row.split()
}
_MOVED = {"model": "actor_rollout_ref.model", "rollout": _ROLLOUT}  # whole sections, with VERL's own names in them
_OF_RAY = ("hardware.use_ray", "hardware.ray_port", "hardware.num_cpus")  # what `ray start` is given
# What the tutorial's script writes of other settings, where the file does not say otherwise.
_DERIVED: Mapping[str, Sequence[str]] = {
    "agent.model_name_or_path": ("actor_rollout_ref.model.path", f"{_CRITIC}.model.path"),
    "data.train_batch_size": (f"{_ACTOR}.ppo_mini_batch_size", f"{_CRITIC}.ppo_mini_batch_size"),
}
_SECTIONS = frozenset({"training", "hardware", "monitoring", *_MOVED})
_ESTIMATORS = {"ppo": "gae"}  # VERL names an algorithm by its estimator of advantages
_PROGRAM = re.compile(r"(?:verl|agentfly)\.\w[\w.]*|(?:\S*/)?main_ppo\.py")
_MOST_NAMED = 6


class NotOfVerl(ValueError):
    """Settings whose names in VERL's config are not certain."""


def runs_verl(words: Sequence[str]) -> bool:
    """Return whether a command's program is VERL's, or AgentFly's, which passes everything on to it."""
    return any(_PROGRAM.fullmatch(word) for word in words)


def use_verl_names(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return flat settings under VERL's names, and notes on what differs. NotOfVerl: a name is not certain."""
    if not _SECTIONS & {name.partition(".")[0] for name in settings}:
        return dict(settings), []
    named: dict[str, Any] = {}
    origin: dict[str, str] = {}
    uncertain, of_ray = [], []
    for name, value in settings.items():
        targets = _find_names(name, settings)
        if name in _OF_RAY:
            of_ray.append(name)
        elif not targets:
            uncertain.append(name)
        for target in targets:
            own = _ESTIMATORS.get(value, value) if target == "algorithm.adv_estimator" else value
            if target in named and named[target] != own:
                raise NotOfVerl(f"{origin[target]} and {name} both mean {target}, with different values")
            named[target], origin[target] = own, name
    if uncertain:
        names = join_some(uncertain, _MOST_NAMED)
        raise NotOfVerl(f"VERL's name of {names} is not certain; write VERL's own names, as trainer.nnodes")
    derived = [
        (source, target)
        for source, targets in _DERIVED.items()
        for target in targets
        if source in named and target not in named
    ]
    named |= {target: named[source] for source, target in derived}
    notes = [f"{', '.join(of_ray)}: of ray start, not of the training."] if of_ray else []
    notes += [f"{', '.join(t for s, t in derived if s == source)}: as {source}." for source in dict(derived)]
    return named, notes


def _find_names(name: str, settings: Mapping[str, Any]) -> Sequence[str]:
    """Return VERL's names of a setting, none where they are not certain. Those of other sections are VERL's own."""
    section, _, rest = name.partition(".")
    if section not in _SECTIONS:
        return (name,)
    if section in _MOVED:
        return (f"{_MOVED[section]}.{rest}",) if rest else ()
    if name == _TOTAL_GPUS and any(
        key != name and settings[key] != 1 and _find_names(key, {}) == ("trainer.nnodes",) for key in settings
    ):
        return ()
    if name in _NAMES:
        return _NAMES[name]
    inside, _, last = rest.rpartition(".")
    target = _ALONE.get(last, "")  # a section in the section may be about another part of the training
    return (target,) if target.startswith("trainer." if inside else "") and target else ()


_ARGUMENT = "params"
_MAX_BYTES = 2_000_000


def split_files(text: str) -> list[str]:
    """Return the files that ``a.yaml,b.yaml`` names, in their order."""
    return [word for word in map(str.strip, text.split(",")) if word] or [text]


def read_params_file(path: str, cwd: str | None) -> tuple[str, dict[str, Any]]:
    """Return the files at ``path``, and their values by flat names. A list, or an empty table, is one JSON value."""
    files, values = [], dict[str, Any]()
    for word in split_files(path):
        file = _find_file(word, cwd)
        own = _read_values(file)
        for name in own:
            if inner := next(
                (other for other in values if name.startswith(f"{other}.") or other.startswith(f"{name}.")), None
            ):
                cause = f"{file} has {name[:200]!r}, and a file before it {inner[:200]!r}: a value and a table."
                raise BadArgument(_ARGUMENT, cause)
        values |= own
        files.append(file)
    return ",".join(map(str, files)), values


def name_for_program(params: Mapping[str, Any], files: str, words: Sequence[str]) -> dict[str, Any]:
    """Return the values of ``files`` by the program's own names. BadArgument: VERL's names are not certain."""
    if not runs_verl(words):
        return dict(params)
    try:
        return use_verl_names(params)[0]
    except NotOfVerl as error:
        raise BadArgument(_ARGUMENT, f"{files}: {error}.") from None


def _find_file(word: str, cwd: str | None) -> Path:
    file = Path(word).expanduser()
    if file.is_absolute():
        return file
    if cwd is None:
        raise BadArgument(_ARGUMENT, f"names the file {word[:200]!r} by a relative path, and cwd is not given.")
    return Path(cwd).expanduser() / file


def _read_values(file: Path) -> dict[str, Any]:
    try:
        text = read_regular_file(file, max_bytes=_MAX_BYTES).decode()
    except UnicodeDecodeError:
        raise BadArgument(_ARGUMENT, f"{file} is not UTF-8 text.") from None
    except OSError as error:
        cause = f"{str(file)[:200]} cannot be read: {error.strerror}. It is a table, or a file of one."
        raise BadArgument(_ARGUMENT, cause, suggest_names(file)) from None
    try:
        table = to_data(compose(text, 1), 1)
    except YamlFault as fault:
        raise BadArgument(_ARGUMENT, f"{file}, line {fault.line}: {fault.text}.") from None
    if not isinstance(table, dict):
        raise BadArgument(_ARGUMENT, f"{file} holds no table of names and values.")
    values: dict[str, Any] = {}
    for name, value in _flatten(table, ""):
        if name in values:
            raise BadArgument(_ARGUMENT, f"{file} has {name[:200]!r} twice: as one name, and as names in names.")
        values[name] = value
    return values


def _flatten(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{name}.")
        elif isinstance(value, dict | list):
            yield name, json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        else:
            yield name, value
