"""The configs that Hydra composes for a command: its options, the decorator in the script, the lists of defaults.

The script is read, never run. What Hydra finds in installed packages is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mcp_server.command.hydra import (
    expand_default,
    list_config_names,
    read_hydra_decorator,
    read_hydra_options,
    read_hydra_overrides,
)
from mcp_server.command.shell import is_literal
from mcp_server.system.files import read_regular_file

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
    """Return the configs of a program with these ``words``, run in ``cwd``. ``script`` is its file, if known."""
    options = {name: value for name, value in read_hydra_options(words).items() if is_literal(value)}
    settings = _read_settings(options, script, cwd)
    if not settings.name or not settings.directories or not (settings.is_hydra or "path" in options):
        return HydraConfigs()
    directories = tuple(directory for directory in settings.directories if directory.is_dir())
    main = _find_config(directories, settings.name)
    if main is None:
        is_certain = bool(directories) and len(directories) == len(settings.directories) and "name" in options
        return HydraConfigs((), directories, settings.name if is_certain else "")
    return HydraConfigs(tuple(_compose(main, directories, read_hydra_overrides(words))), directories)


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the content of a YAML file as texts, lists and dictionaries, or empty where it cannot be read as one."""
    with suppress(OSError, ValueError, RecursionError, yaml.YAMLError):
        data = read_regular_file(path, max_bytes=_MOST_BYTES + 1)
        if len(data) <= _MOST_BYTES:
            document = next(iter(yaml.load_all(data.decode(), Loader=_LOADER)), None)
            return document if isinstance(document, dict) else {}
    return {}


def _read_settings(options: Mapping[str, str], script: Path | None, cwd: Path) -> _Settings:
    main = read_hydra_decorator(read_script_file(script)) if script is not None else None
    config_path = options.get("path") or (main or {}).get("path")
    directories = [cwd / Path(options["dir"]).expanduser()] if "dir" in options else []
    if config_path and is_literal(config_path):  # not `pkg://…`
        path = Path(config_path).expanduser()
        if path.is_absolute():
            directories.append(path)
        elif script is not None:  # relative to the file of the decorator
            directories.append(script.parent / path)
    name = options.get("name") or (main or {}).get("name") or ""
    return _Settings(name, directories, main is not None)


def read_script_file(script: Path) -> str:
    """Return the text of a script, empty where it cannot be read."""
    with suppress(OSError, ValueError):
        return read_regular_file(script, max_bytes=_MOST_BYTES).decode(errors="replace")
    return ""


def _find_config(directories: Sequence[Path], name: str) -> Path | None:
    paths = (directory / each for directory in directories for each in list_config_names(name))
    return next((path for path in paths if path.is_file()), None)


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
        if isinstance(entry, str):
            yield from expand_default(entry, (), group, overrides)
        elif isinstance(entry, dict):
            for key, value in entry.items():
                options = [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]
                yield from expand_default(str(key), options or ["null"], group, overrides)
