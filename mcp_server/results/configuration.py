"""Reads the configuration of a run: its command, parameters, environment, blueprint and YAML files."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from mcp_server.blueprints.parser import Blueprint, parse_blueprint
from mcp_server.command.programs import list_assignments
from mcp_server.command.shell import join_as_written, leave_out_helpers
from mcp_server.command.shell import parse as parse_command
from mcp_server.record.code.code_snapshot import CodeSnapshot
from mcp_server.record.state import Run
from mcp_server.results.run_files import select_own
from mcp_server.store.attribution.attribution import OwnFiles
from mcp_server.system.files import read_regular_file
from mcp_server.text.secret_patterns import mask_value

_MOST_BYTES = 10_000_000  # of one file
_MOST_YAML, _MOST_NODES = 200_000, 20_000  # characters of a text, nodes of its tree
_DOCUMENTS = (".yaml", ".yml", ".toml", ".json", ".ini", ".cfg", ".conf", ".gin", ".jsonnet")
WRITTEN_CONFIGS = (
    *(".hydra/config.yaml", "params/env.yaml", "params/agent.yaml", "config.yaml", "config.json", "args.json"),
    *("args.yaml", "hparams.yaml", "cfg.yaml", "resolved_config.yaml", "train_config.json", "flags.json"),
)
_MOST_DIRECTORIES, _MOST_WRITTEN = 200, 6
_FILES = re.compile(r"[\w./@+~-]+\.(?:ya?ml|toml)\b")
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # the one in C, where it was built


def read_configuration(run: Run, snapshot: CodeSnapshot | None) -> dict[str, str]:
    """Return the settings of a run's newest attempt by name: options, parameters, environment, YAML and JSON files."""
    spec, attempt = run.spec, run.attempt_params
    settings = {name: str(value) for name, value in attempt.filled.items()} | read_options(run.command)
    environment = {**spec.env, **attempt.environment}
    variables = _list_variables(run, environment)
    settings = {name: variables.get(value, value) for name, value in settings.items()}
    settings |= _name_settings(read_config_files(run, snapshot))
    settings |= {f"${name}": value for name, value in environment.items() if not is_search_path(name, value)}
    settings |= {name: str(value) for name, value in attempt.params.items()}
    gpus = [each for each in run.gpus if not each.startswith("cpu-")]
    settings |= {"cwd": spec.cwd, "gpus": str(len(gpus)) if gpus else "", "host": spec.host}
    masked = {name: mask_value(name, value) for name, value in settings.items() if value}
    return dict.fromkeys(settings, "") | masked


def _list_variables(run: Run, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a shell reads for ``$N`` and ``${N}``, masked, where the command does not set it in two ways."""
    commands = parse_command(run.command).commands if isinstance(run.spec.command, str) else ()
    pairs = [word.partition("=")[::2] for each in commands for word in list_assignments(each.words) if "=" in word]
    known = {**(environment if commands else {}), **dict(pairs)}
    unsure = {name for name, value in pairs if value != known[name] or set(value) & set("$`")}
    plain = {name: mask_value(name, value) for name, value in known.items() if name not in unsure}
    return {form: value for name, value in plain.items() for form in (f"${name}", f"${{{name}}}")}


def _name_settings(files: Sequence[ConfigFile]) -> dict[str, str]:
    """Return the settings of files as ``config:NAME``, or ``FILE:NAME`` where several files have the name."""
    # JSON is YAML. A value that is cut off would be a false one.
    texts = [
        (file.path.stem, file.text)
        for file in files
        if file.text and file.path.suffix in (".yaml", ".yml", ".json") and len(file.text) <= _MOST_YAML
    ]
    parsed = [(stem, parse_yaml(text)) for stem, text in texts]
    counts = Counter(name for _, settings in parsed for name in settings)
    return {
        f"{'config' if counts[name] == 1 else stem}:{name}": value
        for stem, settings in parsed
        for name, value in settings.items()
    }


def is_search_path(name: str, value: str) -> bool:
    """Return whether a variable is a list of directories, such as PATH: long, and mostly the same everywhere."""
    return name in ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH") or value.count(":/") > 1


def read_options(command: str | list[str]) -> dict[str, str]:
    """Return a command's options by name, and its other words as ``command``, without helpers in the background."""
    options, rest = parse_command(leave_out_helpers(command)).split_tokens()
    return {**options, "command": join_as_written(rest)}


def parse_yaml(text: str) -> dict[str, str]:
    """Return the scalars of a YAML document under dotted names, mappings in lists too; empty where it is none."""
    values: dict[str, str] = {}
    try:
        # BaseLoader makes strings, lists and mappings, and nothing else.
        document = next(iter(yaml.load_all(text, Loader=_LOADER)), None)
    except (yaml.YAMLError, ValueError, RecursionError):
        return values
    nodes: list[tuple[str, Any]] = [("", document)]
    for _ in range(_MOST_NODES):  # aliases can make a small text a large tree
        if not nodes:
            break
        name, node = nodes.pop()
        if isinstance(node, dict):
            nodes += [(f"{name}.{key}" if name else str(key), value) for key, value in reversed(node.items())]
        elif isinstance(node, list) and all(isinstance(item, str) for item in node):
            values[name] = f"[{', '.join(node)}]"
        elif isinstance(node, list):
            nodes += [(name, item) for item in reversed(node)]
        elif node and name:
            values[name] = str(node)
    return values


def read_blueprint(run: Run, snapshot: CodeSnapshot | None = None) -> Blueprint:
    """Return the run's blueprint, or an empty one: as its snapshot kept it, else as it is now."""
    path = run.spec.blueprint
    copy = next((one for one in snapshot.files if one.path == path), None) if snapshot is not None else None
    text = snapshot.read_file(copy) if snapshot and copy else read_text(Path(path)) if path else None
    return parse_blueprint(text) if text else Blueprint()


@dataclass(frozen=True)
class ConfigFile:
    """A configuration file of a run. ``text``: None where it is too long.

    ``origin``: it is as it was at the start (``kept``), as it is (``now``), or the program wrote it (``written``).
    """

    path: Path
    text: str | None
    size_bytes: int
    origin: Literal["kept", "now", "written"] = "now"


def read_config_files(run: Run, snapshot: CodeSnapshot | None) -> list[ConfigFile]:
    """Return the configuration files of a run, as its snapshot kept them. Without a snapshot as they are now."""
    if snapshot is None:
        return [ConfigFile(path, read_text(path), path.stat().st_size) for path in _find_config_files(run)]
    return [
        ConfigFile(Path(one.path), snapshot.read_file(one), one.size_bytes, origin="kept")
        for one in snapshot.files
        if one.path.endswith(_DOCUMENTS)
    ]


def find_written_configs(own: OwnFiles) -> list[ConfigFile]:
    """Return the configurations that the program wrote beside its files: ``params/env.yaml``, ``.hydra``, …."""
    directories = sorted(own.claims.beside | own.claims.named)[:_MOST_DIRECTORIES]
    paths = dict.fromkeys(Path(directory) / name for directory in directories for name in WRITTEN_CONFIGS)
    own_paths = select_own([path for path in paths if _is_file(path) and _is_inside(path)], own)[:_MOST_WRITTEN]
    return [ConfigFile(path, read_text(path), path.stat().st_size, origin="written") for path in own_paths]


def _find_config_files(run: Run) -> list[Path]:
    words = _FILES.findall(run.command)
    if (yaml_path := read_blueprint(run).yaml_path) is not None:
        words.append(yaml_path)
    named = [Path(run.spec.cwd or "/") / word for word in dict.fromkeys(words)]
    return [path for path in dict.fromkeys(named) if _is_file(path)][:5]


def _is_inside(path: Path) -> bool:
    """Return whether a file is where its path says: a link could lead to what the results must not show."""
    return Path(os.path.realpath(path.parent)) / path.name == Path(os.path.realpath(path))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def read_text(path: Path) -> str | None:
    """Return the text of a file, or None where it is not a regular file, or too long."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        return read_regular_file(path).decode("utf-8-sig", errors="replace")
    except (OSError, ValueError):
        return None
