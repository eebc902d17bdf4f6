"""Facts in the configuration files of a command about this host: other hosts' paths, data and models not here."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from mcp_server.command.hydra import HydraConfigs, find_hydra_configs
from mcp_server.command.inputs import find_named_data, find_placed_programs
from mcp_server.command.shell import ReadCommand
from mcp_server.errors import BadArgument
from mcp_server.hosts.path_checks import Roots, find_foreign_lines, is_missing, suggest_names
from mcp_server.record.script import format_arguments
from mcp_server.record.spec import LaunchRequest
from mcp_server.system.files import read_regular_file

_MOST_BYTES, _MOST_FILES, _MOST_VALUES = 1_000_000, 40, 20_000
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # the one in C, where it was built


def find_config_files(request: LaunchRequest, command: ReadCommand, cwd: Path) -> list[Path]:
    """Return the existing configuration files that a launch names, those that Hydra composes among them.

    Raises:
        BadArgument: Hydra has no config of the name that the command gives.
    """
    files: dict[Path, None] = {}
    programs = find_placed_programs(command)
    for number, program in enumerate(programs, 1):
        base = program.find_directory(cwd)
        words = list(program.words)
        if number == len(programs):
            words += format_arguments(request.params, request.param_style)
        files |= {path: None for word in program.configs if (path := base / Path(word).expanduser()).is_file()}
        hydra = find_hydra_configs(words, program.find_file(cwd), base)
        _check_name(hydra)
        files |= dict.fromkeys(hydra.files)
    return list(files)[:_MOST_FILES]


def find_config_roots(files: list[Path], roots: Roots) -> Iterator[BadArgument]:
    """Yield the lines of configuration files that name another host's path."""
    for file in files if roots.foreign else ():
        with suppress(OSError):
            yield from find_foreign_lines(file, roots)


def find_missing_data(
    files: list[Path], command: ReadCommand, params: Mapping[str, Any], cwd: Path
) -> Iterator[BadArgument]:
    """Yield the data files and models that configuration files name and that are not here.

    Values that the command or its parameters set are theirs, not the file's. Outputs of a training are left out.
    """
    evaluates = any(program.evaluates for program in find_placed_programs(command))
    overridden = {*command.split_options()[0], *params}
    overridden = {name.lstrip("+~-") for name in overridden}
    for file in files:
        if file.suffix.lower() not in (".yaml", ".yml", ".json"):
            continue
        # Aliases can repeat a small file without end.
        for key, value in islice(_flatten(_read_yaml(file)), _MOST_VALUES):
            if any(name == key or name.endswith(f".{key}") for name in overridden):
                continue
            for named in find_named_data([f"{key}={value}"], evaluates=evaluates):
                path = cwd / Path(named.path).expanduser()
                if named.may_be_output and path.parent.is_dir():
                    continue
                if named.is_certain and is_missing(path):
                    cause = f"{file}: {key}: there is no {named.kind} {named.path}."
                    yield BadArgument("command", cause, suggest_names(path) or "Correct the path.")


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flatten(value, f"{name}.")
        elif isinstance(value, list):
            yield from ((name, each) for each in value if isinstance(each, str))
        elif isinstance(value, str):
            yield name, value


def _read_yaml(path: Path) -> dict[str, Any]:
    """Return the content of a YAML file as texts, lists and dictionaries, or empty where it cannot be read as one."""
    with suppress(OSError, ValueError, RecursionError, yaml.YAMLError):
        data = read_regular_file(path, max_bytes=_MOST_BYTES + 1)
        if len(data) <= _MOST_BYTES:
            document = next(iter(yaml.load_all(data.decode(), Loader=_LOADER)), None)
            return document if isinstance(document, dict) else {}
    return {}


def _check_name(hydra: HydraConfigs) -> None:
    if not hydra.missing:
        return
    name = hydra.missing if hydra.missing.endswith((".yaml", ".yml")) else f"{hydra.missing}.yaml"
    places = " and ".join(map(str, hydra.directories))
    hints = (suggest_names(directory / name) for directory in hydra.directories)
    raise BadArgument("command", f"there is no Hydra config {name} in {places}.", next(filter(None, hints), ""))
