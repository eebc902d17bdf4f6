"""The configs that Hydra composes for a command: its options, the decorator in the script, the lists of defaults.

The script is read, never run. What Hydra finds in installed packages is left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import yaml

from mcp_server.system.files import read_regular_file
from mcp_server.text.shell import is_literal

_OPTIONS = {
    "--config-name": "name",
    "-cn": "name",
    "--config-path": "path",
    "-cp": "path",
    "--config-dir": "dir",
    "-cd": "dir",
}
_MOST_BYTES, _MOST_FILES = 1_000_000, 40
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # the one in C, where it was built


@dataclass(frozen=True)
class HydraConfigs:
    """``files``: the configs that exist. ``missing``: the name that is in none of ``directories``, empty if it is."""

    files: tuple[Path, ...] = ()
    directories: tuple[Path, ...] = ()
    missing: str = ""


@dataclass(frozen=True)
class _Settings:
    """Where Hydra looks, and for what. ``is_hydra``: the script has Hydra's decorator."""

    name: str = ""
    directories: list[Path] = field(default_factory=list)
    is_hydra: bool = False


def find_hydra_configs(words: Sequence[str], script: Path | None, cwd: Path) -> HydraConfigs:
    """Return the configs of a program with these ``words``, run in ``cwd``; ``script`` is its file, if known."""
    options = _read_options(words)
    settings = _read_settings(options, script, cwd)
    if not settings.name or not settings.directories or not (settings.is_hydra or "path" in options):
        return HydraConfigs()
    directories = tuple(directory for directory in settings.directories if directory.is_dir())
    main = _find_config(directories, settings.name)
    if main is None:
        is_certain = bool(directories) and len(directories) == len(settings.directories) and "name" in options
        return HydraConfigs((), directories, settings.name if is_certain else "")
    overrides = dict(word.lstrip("+").split("=", 1) for word in words if "=" in word and not word.startswith("-"))
    return HydraConfigs(tuple(_compose(main, directories, overrides)), directories)


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the content of a YAML file as texts, lists and dictionaries; empty where it cannot be read as one."""
    with suppress(OSError, ValueError, RecursionError, yaml.YAMLError):
        data = read_regular_file(path, max_bytes=_MOST_BYTES + 1)
        if len(data) <= _MOST_BYTES:
            document = next(iter(yaml.load_all(data.decode(), Loader=_LOADER)), None)
            return document if isinstance(document, dict) else {}
    return {}


def _read_options(words: Sequence[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        value = value if equals else following
        if name in _OPTIONS and value and is_literal(value):
            options[_OPTIONS[name]] = value
    return options


def _read_settings(options: Mapping[str, str], script: Path | None, cwd: Path) -> _Settings:
    main = _read_decorator(script) if script is not None else None
    given = options.get("path") or (main or {}).get("config_path")
    directories = [cwd / Path(options["dir"]).expanduser()] if "dir" in options else []
    if given and is_literal(given):  # not `pkg://…`
        path = Path(given).expanduser()
        if path.is_absolute():
            directories.append(path)
        elif script is not None:  # relative to the file of the decorator
            directories.append(script.parent / path)
    name = options.get("name") or (main or {}).get("config_name") or ""
    return _Settings(name, directories, main is not None)


def _read_decorator(script: Path) -> dict[str, str] | None:
    """Return the texts among the arguments of ``@hydra.main`` in a script; None where it has none."""
    with suppress(OSError, SyntaxError, ValueError, RecursionError):
        tree = ast.parse(read_regular_file(script, max_bytes=_MOST_BYTES))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                for call in node.decorator_list:
                    if isinstance(call, ast.Call) and ast.unparse(call.func) in ("hydra.main", "main"):
                        arguments = {each.arg: each.value for each in call.keywords if each.arg}
                        texts = {n: v.value for n, v in arguments.items() if isinstance(v, ast.Constant)}
                        return {n: v for n, v in texts.items() if isinstance(v, str)}
    return None


def _find_config(directories: Sequence[Path], name: str) -> Path | None:
    name = name if PurePath(name).suffix in (".yaml", ".yml") else f"{name}.yaml"
    return next((path for directory in directories if (path := directory / name).is_file()), None)


def _compose(main: Path, directories: Sequence[Path], overrides: Mapping[str, str]) -> Iterator[Path]:
    """Yield ``main`` and the configs that its defaults name, with the options that the command chose."""
    seen: set[Path] = set()
    queue: list[tuple[Path, str]] = [(main, "")]
    while queue and len(seen) < _MOST_FILES:
        path, group = queue.pop(0)
        if path in seen:
            continue
        seen.add(path)
        yield path
        for name, its_group in _list_defaults(read_yaml(path), group, overrides):
            if (default := _find_config(directories, name)) is not None:
                queue.append((default, its_group))


def _list_defaults(config: Mapping[str, Any], group: str, overrides: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the group of each config in a list of defaults."""
    defaults = config.get("defaults")
    for entry in defaults if isinstance(defaults, list) else ():
        if isinstance(entry, str) and entry != "_self_":
            name = _within(group, entry.partition("@")[0])
            yield name, name.rpartition("/")[0]
        elif isinstance(entry, dict):
            for key, value in entry.items():
                words = str(key).replace("override ", "").replace("optional ", "").partition("@")[0].strip()
                of_group = _within(group, words)
                chosen: Any = overrides.get(of_group, value)
                for option in chosen if isinstance(chosen, list) else [chosen]:
                    if isinstance(option, str) and option not in ("null", ""):
                        yield f"{of_group}/{option}", of_group


def _within(group: str, name: str) -> str:
    return name[1:] if name.startswith("/") else f"{group}/{name}" if group else name
