"""Reads the configuration of a run: its command, parameters, environment, blueprint and YAML files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from mcp_server.blueprints.parser import Blueprint, parse_blueprint
from mcp_server.record.state import Run
from mcp_server.system.files import read_regular_file
from mcp_server.text.secret_patterns import mask_secrets
from mcp_server.text.shell import parse as parse_command

_MOST_BYTES = 10_000_000  # of one file
_MOST_YAML, _MOST_NODES = 200_000, 20_000  # characters of a text, nodes of its tree
_FILES = re.compile(r"[\w./@+~-]+\.(?:ya?ml|toml)\b")
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # the one in C, where it was built


def read_configuration(run: Run) -> dict[str, str]:
    """Return the settings of a run by name: options of its command, parameters, environment, YAML files."""
    spec = run.spec
    settings = read_options(spec.command)
    for path in configuration_files(run):
        if path.suffix != ".toml":
            text = read_text(path) or ""
            if len(text) <= _MOST_YAML:  # a value that is cut off would be a false one
                settings |= {f"{path.stem}:{name}": value for name, value in parse_yaml(text).items()}
    # Of PATH only the python in front differs, which VIRTUAL_ENV states more briefly.
    settings |= {f"${name}": value for name, value in spec.env.items() if name != "PATH"}
    settings |= {name: str(value) for name, value in spec.params.items()}
    settings |= {"cwd": spec.cwd, "gpus": str(len(run.gpus)) if run.gpus else "", "host": spec.host}
    return {
        name: mask_secrets(f"{name}={value}").partition("=")[2] if value else "" for name, value in settings.items()
    }


def read_options(command: str | list[str]) -> dict[str, str]:
    """Return the options of a command by name, with the last value of each, and its other words as ``command``."""
    options, rest = parse_command(command).split_options()
    return {**options, "command": " ".join(rest)}


def parse_yaml(text: str) -> dict[str, str]:
    """Return the scalars of a YAML document as written, under dotted names; empty where it is not YAML. Pure.

    Items of a list that are mappings count as parts of the mapping around it; a list of scalars is one value.
    """
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


def read_blueprint(run: Run) -> Blueprint:
    """Return the run's blueprint as it is now, or an empty one."""
    path = getattr(run.spec, "blueprint", None)
    text = read_text(Path(path)) if path else None
    return parse_blueprint(text) if text else Blueprint()


def configuration_files(run: Run) -> list[Path]:
    """Return the existing configuration files that the command or the blueprint names, at most five."""
    command = run.spec.command
    words = _FILES.findall(command if isinstance(command, str) else " ".join(command))
    if (yaml_path := read_blueprint(run).yaml_path) is not None:
        words.append(yaml_path)
    named = [Path(run.spec.cwd or "/") / word for word in dict.fromkeys(words)]
    return [path for path in dict.fromkeys(named) if _is_file(path)][:5]


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
