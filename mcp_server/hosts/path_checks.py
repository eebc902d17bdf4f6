"""Checks that the paths of a launch belong to this host and exist. A refusal names the line to use instead.

Only certain mistakes are refused. What a shell expands, what the command can make itself, and outputs pass.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from mcp_server.command import inputs
from mcp_server.command.configs import HydraConfigs, find_hydra_configs
from mcp_server.command.outputs import is_output_place
from mcp_server.command.programs import REMOTE_PROGRAMS
from mcp_server.command.shell import ReadCommand
from mcp_server.command.words import scan_quotes
from mcp_server.errors import BadArgument
from mcp_server.hosts.config import Environment, Host, HostsFile, find_foreign_roots
from mcp_server.record.script import format_arguments
from mcp_server.record.spec import LaunchRequest
from mcp_server.system.directory_scan import MOST_NAMES, DirectoryScan, list_names
from mcp_server.system.files import read_regular_file

_SPECIAL = re.compile(r"[^\w@%+=:,./-]")  # to a shell
_LONGEST_LINE = 4000
LONGEST_CONFIG = 1_000_000
_NEAR, _MOST_NEAR = 0.6, 3  # of difflib: 1.0 is the same name
_TYPO = 0.8
_DEEPEST = 50


class Rewrite(NamedTuple):
    """A text that names another host's path: the first such path, the text as this host writes it, if that is known."""

    path: str
    text: str
    is_known: bool


@dataclass(frozen=True)
class Roots:
    """Prefixes of paths by host. ``foreign``: what each prefix of another host is here, None where that is unknown."""

    foreign: Mapping[str, str | None]
    own: tuple[str, ...]
    host: str

    @classmethod
    def of(cls, site: HostsFile, host: Host, *, is_far: bool = False) -> Roots:
        """Return the roots as ``host`` sees them. A foreign root without a rewrite that exists here is not foreign."""
        roots = find_foreign_roots(site, host)
        foreign = {
            root: here for root, here in roots.items() if is_far or root in host.rewrites or not Path(root).exists()
        }
        return cls(foreign, tuple(host.roots), host.name)

    def rewrite(self, text: str, *, is_command: bool = False) -> Rewrite | None:
        """Return ``text`` with other hosts' paths rewritten for this host, or None where it has none.

        ``is_command``: it is one for a shell. A space that a rewrite brings in is escaped there, outside quotes.
        """
        if not self.foreign:
            return None
        first, is_known = "", True

        def replace_root(match: re.Match[str]) -> str:
            nonlocal first, is_known
            root, path = match["root"], match["root"] + match["rest"]
            if any(len(own) > len(root) and f"{path}/".startswith(f"{own}/") for own in self.own):
                return match[0]
            if match["host"]:
                return match[0]
            here = self.foreign[root]
            first, is_known = first or path, is_known and here is not None
            if here is not None and is_command and not scan_quotes(text[: match.start("root")])[0]:
                here = _SPECIAL.sub(r"\\\g<0>", here)
            return f"{here or root}{match['rest']}"

        rewritten = self._pattern().sub(replace_root, text)
        return Rewrite(first, rewritten, is_known) if first else None

    def move(self, request: LaunchRequest, cwd: str) -> LaunchRequest:
        """Return ``request``, begun in ``cwd``, with all paths that it names rewritten."""

        def move(text: str, *, is_command: bool = False) -> str:
            rewrite = self.rewrite(text, is_command=is_command)
            return rewrite.text if rewrite else text

        command = request.command
        return replace(
            request,
            command=move(command, is_command=True) if isinstance(command, str) else [move(word) for word in command],
            cwd=cwd,
            env={name: move(value) for name, value in request.env.items()},
            params={name: move(value) if isinstance(value, str) else value for name, value in request.params.items()},
            resume_args=[move(word) for word in request.resume_args],
            tensorboard=move(request.tensorboard) if request.tensorboard else None,
        )

    def _pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self.foreign, key=len, reverse=True)
        names = "|".join(map(re.escape, longest_first))
        # Neither the path of another machine (HOST:/path) nor the end of a longer one.
        return re.compile(
            rf"(?P<host>(?<![\w@.:/-])[\w@.-]+:)?(?<![\w.\-/~}}])(?P<root>{names})(?P<rest>(?:/[^\s\"':;,&|<>()]*)?)(?![\w.\-])"
        )


def refuse_first(faults: Iterable[BadArgument]) -> None:
    """Raise BadArgument for the first of these, with what to write instead where that is known."""
    for fault in faults:
        raise fault


class MissingInput(BadArgument):
    """An input of a launch does not exist. ``is_made``: a training before it may yet make it."""

    def __init__(self, argument: str, file: inputs.Input, where: str, remedy: str) -> None:
        super().__init__(argument, f"there is no {file.kind} {file.path}{where}.", remedy)
        self.is_made = file.kind in ("checkpoint", "model")


def find_missing_inputs(
    request: LaunchRequest,
    command: ReadCommand,
    site: HostsFile,
    host: Host,
    environment: Environment,
    search_path: str | None = None,
) -> Iterator[BadArgument]:
    """Yield a refusal for each program, script, config, checkpoint, data file or model that certainly does not exist.

    ``search_path``: the PATH of the run, where it is known.
    """
    if environment.python and is_missing(Path(environment.python)):
        reason = f"its python does not exist: {environment.python}."
        yield BadArgument("environment", reason, suggest_names(environment.python))
    cwd = Path(request.cwd or Path.cwd()).expanduser()
    # A root that exists here as well is a hint, too.
    roots = Roots(find_foreign_roots(site, host), (), host.name)
    for argument, file in (
        *(("command", file) for file in inputs.find_inputs(command)),
        *(("params", file) for file in inputs.find_param_inputs(request.params, command)),
    ):
        if (missing := _find_missing(file, cwd)) is not None:
            directory, path = missing
            where = "" if Path(file.path).is_absolute() else f" in {directory}"
            hints = (suggest_names(path), _suggest_rewrite(file, roots))
            yield MissingInput(argument, file, where, " ".join(filter(None, hints)))
    for name in inputs.find_program_names(command) if search_path is not None else ():
        if shutil.which(name, path=search_path) is None:
            yield BadArgument(
                "command", f"{name} is on no directory of PATH.", _suggest_programs(name, search_path or "")
            )


def _suggest_programs(name: str, search_path: str) -> str:
    """Return, as a sentence, programs that a missing one can mean; else how to find it."""
    names = dict.fromkeys(each for directory in search_path.split(os.pathsep) for each in list_names(Path(directory)))
    alike = difflib.get_close_matches(name, names, _MOST_NEAR, _TYPO)
    return f"Near: {', '.join(alike)}." if alike else "Write its whole path, or name an environment that has it."


def find_foreign_command_path(command: ReadCommand, roots: Roots) -> BadArgument | None:
    """Return another host's path that ``command`` names, with the whole command as this host writes it."""
    if not roots.foreign:
        return None
    if not isinstance(command.source, str):
        return _find_foreign_word(command.source, roots)
    local = [each for each in command.commands if Path(each.program).name not in REMOTE_PROGRAMS]
    text = " ; ".join(" ".join((*each.words, *(file.target for file in each.redirections))) for each in local)
    if not command.commands and REMOTE_PROGRAMS.isdisjoint(re.findall(r"[\w-]+", command.source)):
        text = command.source
    if roots.rewrite(text) and (rewrite := roots.rewrite(command.source, is_command=True)):
        return _describe_foreign("command", roots, rewrite)
    return None


def find_foreign_lines(config: Path, roots: Roots, data: bytes | None = None) -> Iterator[BadArgument]:
    """Yield the lines of ``config`` that name another host's path; ``data``: its content, where it is on another host.

    Files over 1 MB are not read.
    """
    data = read_regular_file(config, max_bytes=LONGEST_CONFIG + 1) if data is None else data
    if len(data) > LONGEST_CONFIG:
        return
    for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
        if not line.lstrip().startswith("#") and (rewrite := roots.rewrite(line)) is not None:
            cause = f"{config}, line {number}: {rewrite.path} is a path of another host, and this is {roots.host}."
            remedy = f"Write `{rewrite.text.strip()[:200]}`." if rewrite.is_known else "Write what it is here."
            yield BadArgument("command", cause, remedy)


def find_foreign_paths(request: LaunchRequest, command: ReadCommand, roots: Roots) -> Iterator[BadArgument]:
    """Yield every argument with another host's path in it. ``command`` is that of ``request``."""
    if (foreign := find_foreign_command_path(command, roots)) is not None:
        yield foreign
    for argument, path in (("cwd", request.cwd), ("tensorboard", request.tensorboard)):
        if path and (rewrite := roots.rewrite(path)):
            yield _describe_foreign(argument, roots, rewrite)
    yield from find_foreign_variables(request.env, roots)
    for name, value in request.params.items():
        if isinstance(value, str) and (rewrite := roots.rewrite(value)):
            yield _describe_foreign("params", roots, rewrite, f"{name}={rewrite.text}")
    for word in request.resume_args:
        if rewrite := roots.rewrite(word):
            yield _describe_foreign("resume_args", roots, rewrite)


def find_foreign_variables(env: Mapping[str, str], roots: Roots) -> Iterator[BadArgument]:
    """Yield every variable with another host's path in it."""
    for name, value in env.items():
        if rewrite := roots.rewrite(value):
            yield _describe_foreign("env", roots, rewrite, f"{name}={rewrite.text}")


def _find_foreign_word(words: tuple[str, ...], roots: Roots) -> BadArgument | None:
    if not words or Path(words[0]).name in REMOTE_PROGRAMS:
        return None
    rewrites = [(word, roots.rewrite(word)) for word in words]
    paths = [rewrite.path for _, rewrite in rewrites if rewrite]
    if not paths:
        return None
    line = json.dumps([rewrite.text if rewrite else word for word, rewrite in rewrites], ensure_ascii=False)
    is_known = all(rewrite.is_known for _, rewrite in rewrites if rewrite)
    return _describe_foreign("command", roots, Rewrite(paths[0], line, is_known))


def _describe_foreign(argument: str, roots: Roots, rewrite: Rewrite, line: str | None = None) -> BadArgument:
    """Return what is wrong with an argument; ``line`` is what to write, else the rewritten text."""
    line = line or rewrite.text
    cause = f"{rewrite.path} is a path of another host, and this is {roots.host}."
    if not rewrite.is_known:
        remedy = f"hosts.toml does not say what it is here: a person adds it to roots of {roots.host}, or to rewrites."
        return BadArgument(argument, cause, remedy)
    return BadArgument(argument, cause, f"Use `{line}`." if len(line) <= _LONGEST_LINE else "")


def _find_missing(file: inputs.Input, cwd: Path) -> tuple[Path, Path] | None:
    """Return the directory and the path of an input that certainly does not exist; None where it may exist."""
    base = cwd
    for step in file.base:
        base /= Path(step).expanduser()
    path = base / Path(file.path).expanduser()
    if not is_missing(path) or not base.is_dir():
        return None
    if file.may_be_output and path.parent.is_dir():
        names = list_names(path.parent)
        return (base, path) if difflib.get_close_matches(path.name, names, 1, _TYPO) else None
    if file.kind == "data directory":  # a program may make it, and fill it, below a directory that is there
        return (base, path) if not Path(*path.parts[:2]).exists() else None
    is_certain = file.is_certain or file.kind in ("program", "script") or Path(file.path).expanduser().is_absolute()
    return (base, path) if is_certain or _is_misspelt(Path(file.path), base) or _is_nowhere(file, base) else None


def _is_nowhere(file: inputs.Input, base: Path) -> bool:
    """Return whether a relative config or checkpoint of a script is nowhere below its directory, or that it runs in.

    Other programs have configs of their own; a checkpoint without a directory may be one of a hub.
    """
    path = Path(file.path)
    is_named = file.kind == "config" or (file.kind == "checkpoint" and path.parent != Path())
    may_be_made = is_output_place(file.path) and (file.kind == "config" or file.may_be_output)
    if file.home is None or not is_named or not path.suffix or may_be_made:
        return False
    places = {base, base / Path(file.home).expanduser()}
    return not any(_exists_below(Path(path.name), place) for place in places)


def _suggest_rewrite(file: inputs.Input, roots: Roots) -> str:
    """Return, as a sentence, where a missing file of another host is on this one; empty where it is not here."""
    rewrite = roots.rewrite(file.path)
    return f"Here it is {rewrite.text}." if rewrite and Path(rewrite.text).exists() else ""


def is_missing(path: Path) -> bool:
    """Return whether nothing has this name. A directory that this user may not read can hold it: then false."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        return False
    return False


def _is_misspelt(path: Path, base: Path) -> bool:
    """Return whether a relative path can only mean a file that does not exist.

    Programs search for configs in directories of their own. The path is misspelt if its directory exists and nothing
    below ``base`` ends like it, or if a nearly equal name exists.
    """
    directory = base / path.parent
    if path.parent != Path() and directory.is_dir():
        return not _exists_below(path, base)
    while not directory.is_dir():
        close = difflib.get_close_matches(directory.name, list_names(directory.parent), 1, _TYPO)
        if not close:
            return False
        directory = directory.with_name(close[0])
    names = list_names(directory)
    return path.name in names or (
        bool(difflib.get_close_matches(path.name, names, 1, _TYPO)) and not _exists_below(path, base)
    )


def _exists_below(path: Path, base: Path) -> bool:
    """Return whether ``path`` exists relative to some directory below ``base``, or there are too many to say."""
    names = 0
    scan = DirectoryScan(max_depth=_DEEPEST, max_entries=MOST_NAMES)
    for directory, entries in scan.walk(base, lambda _: True, enter=_can_hold_inputs):
        names += len(entries)
        if names >= MOST_NAMES or (directory / path).exists():
            return True
    return scan.cut


def _can_hold_inputs(directory: Path) -> bool:
    return not directory.name.startswith(".") and directory.name not in ("node_modules", "site-packages")


def suggest_names(path: str | Path) -> str:
    """Return, as a sentence, existing names that a missing path can mean, or empty where none is near."""
    path = Path(path)
    missing, directory = path.name, path.parent
    while not directory.is_dir():
        missing, directory = directory.name, directory.parent
    if directory != path.parent:
        if (directory / missing).exists():
            return f"{directory / missing} is not a directory."
        alike = difflib.get_close_matches(missing, list_names(directory), _MOST_NEAR, _NEAR)
        return f"{directory} has no {missing}" + (f", but {' and '.join(alike)}." if alike else ".")
    names = list_names(directory)
    alike = difflib.get_close_matches(missing, names, _MOST_NEAR, _NEAR)
    if not alike and path.suffix:
        alike = [name for name in names if Path(name).suffix == path.suffix][:_MOST_NEAR]
    return f"Near: {', '.join(str(directory / name) for name in alike)}." if alike else ""


_MOST_BYTES, _MOST_FILES, _MOST_VALUES = 1_000_000, 40, 20_000
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # the one in C, where it was built


def find_config_files(request: LaunchRequest, command: ReadCommand, cwd: Path) -> list[Path]:
    """Return the existing configuration files that a launch names, those that Hydra composes among them.

    Raises:
        BadArgument: Hydra has no config of the name that the command gives.
    """
    files: dict[Path, None] = {}
    programs = inputs.find_placed_programs(command)
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
    evaluates = any(program.evaluates for program in inputs.find_placed_programs(command))
    overridden = {*command.split_options()[0], *params}
    overridden = {name.lstrip("+~-") for name in overridden}
    for file in files:
        if file.suffix.lower() not in (".yaml", ".yml", ".json"):
            continue
        # Aliases can repeat a small file without end.
        for key, value in islice(_flatten(_read_yaml(file)), _MOST_VALUES):
            if any(name == key or name.endswith(f".{key}") for name in overridden):
                continue
            for named in inputs.find_named_data([f"{key}={value}"], evaluates=evaluates):
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
