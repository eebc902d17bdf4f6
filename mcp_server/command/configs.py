"""The configuration files and scripts that a command names, Hydra's among them.

Only files that exist count. What only a shell can know, such as the result of ``$(…)``, names no file. Scripts and
configs are read, never run. Configs that Hydra finds in installed packages are left out.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp_server.command.inputs import find_placed_programs
from mcp_server.command.programs import find_entry, list_assignments, unwrap
from mcp_server.command.shell import ReadCommand, SimpleCommand, is_literal, parse
from mcp_server.system.files import read_regular_file
from mcp_server.text.regex import compile_lazily
from mcp_server.text.rows import read_patterns

_RX = read_patterns("command/patterns", "configs")

_SUFFIXES = (
    *(".yaml", ".yml", ".toml", ".json", ".jsonnet", ".py", ".sh", ".bash", ".ini", ".cfg", ".conf", ".gin"),
    ".ipynb",  # of papermill or nbconvert
)
_SCRIPTS_DEEP = 2
_UNKNOWN = "\N{REPLACEMENT CHARACTER}"  # a word that names no file
_MOST_FILES, _LONGEST_PATH = 40, 4096
_MOST_BYTES, _DEEPEST = 1 << 20, 6  # of one file, of defaults that name configs
HYDRA_OPTIONS = {
    "--config-name": "name",
    "-cn": "name",
    "--config-path": "path",
    "-cp": "path",
    "--config-dir": "dir",
    "-cd": "dir",
}
_NO_CONFIG = ("null", "_self_", "")
_DEFAULT = compile_lazily(
    r"""[ \t]*(?:-[ \t]*)?\{?["']?(?P<key>(?:(?:override|optional)[ \t]+)*[\w/.\-]+)(?:@[\w.]*)?["']?"""
    r"""[ \t]*(?P<colon>:[ \t]*(?P<options>\[[^\]]*\]|["']?[\w/.\-]+)?)?"""
)
_PART = compile_lazily(r"""(?:[^,\[\](){}'"]|'[^']*'|"[^"]*"|(?P<open>[\[({])|(?P<close>[\])}]))""", re.DOTALL)
_MOST_UNFOLDED = 1_000


@dataclass(frozen=True)
class HydraConfigs:
    """``files``: the configs that exist. ``missing``: the name that is in none of ``directories``, empty if it is."""

    files: tuple[Path, ...] = ()
    directories: tuple[Path, ...] = ()
    missing: str = ""


def find_hydra_configs(words: Sequence[str], script: Path | None, cwd: Path) -> HydraConfigs:
    """Return the configs of a program with these ``words``, run in ``cwd``. ``script`` is its file, if known."""
    options = {name: value for name, value in read_hydra_options(words).items() if is_literal(value)}
    decorator = read_hydra_decorator(read_text(script)) if script is not None else None
    named = {**(decorator or {}), **options}
    if "name" not in named:
        return HydraConfigs()
    certain = [cwd / Path(named["dir"]).expanduser()] if "dir" in named else []
    possible = []
    path = Path(named["path"]).expanduser() if is_literal(named.get("path", "$")) else None  # not `pkg://…`
    if path is not None and (path.is_absolute() or script is not None):
        certain.append((script.parent if script is not None else cwd) / path)
    if path is not None:
        possible = [cwd / path]
    elif script is not None and "path" not in named:
        possible = [script.parent]
    overrides = read_hydra_overrides(words)
    if files := tuple(_compose(named["name"], [*certain, *possible], overrides)):
        return HydraConfigs(files, tuple(certain))
    is_hydra = decorator is not None or "path" in options
    is_missing = "name" in options and is_hydra and bool(certain) and all(map(Path.is_dir, certain))
    return HydraConfigs((), tuple(certain), named["name"] if is_missing else "")


def _compose(name: str, directories: Sequence[Path], overrides: Mapping[str, str]) -> Iterator[Path]:
    """Yield the config of this name and those that its defaults name, with the options that the command chose."""
    seen: set[Path] = set()
    queue = [(name, "", 0)]
    while queue and len(seen) < _MOST_FILES:
        name, group, depth = queue.pop(0)
        paths = (directory / each for directory in directories for each in list_config_names(name))
        path = next(filter(is_file, paths), None)
        if path is not None and path not in seen:
            seen.add(path)
            yield path
            if depth < _DEEPEST:
                queue += [(each, its, depth + 1) for each, its in read_defaults(read_text(path), group, overrides)]
            if depth == 0:
                queue += [(f"{its}/{each}", its, 1) for its, each in overrides.items()]
        elif depth == 0:
            return


def read_defaults(text: str, group: str, overrides: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield name and group of each config in the list of defaults of a config in ``group``."""
    match = _RX.defaults.search(text.replace("\r", "") + "\n")
    entries: Iterable[str] = ()
    if match is not None:
        entries = re.split(r",(?![^\[]*\])", match["flow"]) if match["flow"] else match["lines"].splitlines()
    for entry in map(_DEFAULT.match, (each.strip() for each in entries)):
        if entry is not None:
            options = re.findall(r"[\w/.\-]+", entry["options"] or "") or ["null"]
            yield from expand_default(entry["key"], options if entry["colon"] else (), group, overrides)


def takes_settings(command: ReadCommand, names: Iterable[str], cwd: Path) -> bool:
    """Return whether the last Python program certainly takes its parameters as ``section.key=value``, as Hydra's do."""
    programs = find_placed_programs(command)
    if not programs or any(name.startswith("-") or f"--{name}" in HYDRA_OPTIONS for name in names):
        return False
    program = programs[-1]
    start = next((at for at, word in enumerate(program.words) if word == "-m" or word.endswith(".py")), 0)
    flags = {word.partition("=")[0] for word in program.words[start + 1 :] if word.startswith("--")}
    if not flags <= {*HYDRA_OPTIONS, "--multirun"}:
        return False
    if _RX.verl.fullmatch(program.module) or any(map(_RX.setting.fullmatch, program.words)):
        return True
    script = program.find_file(cwd)
    text = read_text(script) if script else ""
    return read_hydra_decorator(text) is not None and "argparse" not in text


def is_file(path: Path) -> bool:
    """Return whether a file has this name, also for a name that none can have."""
    try:
        return os.path.isfile(path)  # noqa: PTH113 - does not raise
    except ValueError:
        return False


def read_text(path: Path) -> str:
    """Return the first MiB of a regular file, empty where it cannot be read."""
    try:
        return read_regular_file(path, max_bytes=_MOST_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def read_hydra_options(words: Sequence[str]) -> dict[str, str]:
    """Return the values of ``--config-path``, ``--config-name`` and ``--config-dir`` as ``path``, ``name``, ``dir``."""
    options: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], ""]):
        name, equals, value = word.partition("=")
        value = value if equals else following
        if name in HYDRA_OPTIONS and value:
            options[HYDRA_OPTIONS[name]] = value
    return options


def read_hydra_decorator(script: str) -> dict[str, str] | None:
    """Return ``path`` and ``name`` of ``@hydra.main`` in the text of a script. None where it has no such decorator."""
    match = _RX.decorator.search(script)
    return None if match is None else dict(_RX.decorator_argument.findall(_RX.comment.sub("", match[1])))


def read_hydra_overrides(words: Sequence[str]) -> dict[str, str]:
    """Return the options that a command chooses by group: ``model=large``, ``+experiment=a``."""
    return {match[1]: match[2] for match in map(_RX.override.fullmatch, words) if match}


def list_config_names(name: str) -> list[str]:
    """Return the file names that a config of this name can have."""
    return [name] if name.endswith((".yaml", ".yml")) else [f"{name}.yaml", f"{name}.yml"]


def expand_default(
    key: str, options: Sequence[str], group: str, overrides: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield name and group of each config that one entry of a list of defaults, of a config in ``group``, means."""
    plain = key.replace("override ", "").replace("optional ", "").partition("@")[0].strip()
    if plain == "_self_":
        return
    name = plain[1:] if plain.startswith("/") else f"{group}/{plain}" if group else plain
    if not options:
        yield name, name.rpartition("/")[0]
        return
    for option in [overrides[name]] if name in overrides else options:
        if option not in _NO_CONFIG:
            yield f"{name}/{option}", name


def unfold(text: str) -> list[Any] | None:
    """Return the values that Hydra would sweep over for an override's value, empty where these cannot be listed.

    None where it is one value.
    """
    parts = _split(text)
    if len(parts) > 1:
        return [_read_value(each) for each in parts]
    if (function := _RX.function.fullmatch(text)) is None:
        return None
    arguments = [part for part in _split(function[2]) if not re.match(r"\s*[a-z]+=", part)]
    values = [_read_value(each) for each in arguments]
    if function[1] == "choice":
        return values
    if function[1] == "range" and all(isinstance(each, int) for each in values) and 1 <= len(values) <= 3:  # noqa: PLR2004 - start, stop, step
        with suppress(ValueError):
            return list(range(*values)[:_MOST_UNFOLDED])
    if function[1] in ("shuffle", "sort", "tag"):
        inner = unfold(arguments[-1]) if arguments else []
        return values if inner is None and function[1] != "tag" else inner or []
    return []


def _split(text: str) -> list[str]:
    """Return the parts between commas that stand in no brackets and no quotes."""
    parts, depth, begun, at = [], 0, 0, 0
    while at < len(text):
        found = _PART.match(text, at)
        piece = found[0] if found else text[at]
        depth += 0 if found is None else bool(found["open"]) - bool(found["close"])
        if piece == "," and depth <= 0:
            parts.append(text[begun:at])
            begun = at + 1
        at += len(piece)
    return [*parts, text[begun:]]


def _read_value(text: str) -> Any:
    with suppress(ValueError, SyntaxError):
        value = ast.literal_eval(text.strip())
        return value if isinstance(value, (str, int, float)) else text.strip()
    return text.strip()


def is_function(text: str) -> bool:
    """Return whether an override's value is a function of a sweep: ``range(…)``, ``choice(…)``."""
    return _RX.function.fullmatch(text.strip()) is not None


def find_config_files(
    command: str | Sequence[str], cwd: str, env: Mapping[str, str], arguments: Sequence[str] = ()
) -> list[Path]:
    """Return at most 40 existing files that ``command``, with more ``arguments``, names from ``cwd`` or its ``cd``."""
    return list(_find_in(command, Path(cwd), dict(env), arguments, _SCRIPTS_DEEP))[:_MOST_FILES]


def find_script_configs(command: str | Sequence[str], cwd: Path) -> list[Path]:
    """Return the configs of Hydra that the shell scripts of ``command`` choose: ``bash run_embodiment.sh ppo``."""
    files = _find_in(command, cwd, {}, (), _SCRIPTS_DEEP)
    return [path for path, is_of_script in files.items() if is_of_script][:_MOST_FILES]


def _find_in(
    command: str | Sequence[str], base: Path | None, variables: dict[str, str], arguments: Sequence[str], deep: int
) -> dict[Path, bool]:
    """Return the files that ``command`` and its scripts name, each with whether a script chose it for Hydra."""
    files: dict[Path, bool] = {}
    commands = parse(command).commands
    unsure: set[str] = set()
    for simple in commands:
        _assign(simple, variables, unsure)
        words = [part for word in unwrap(simple.words)[0] for part in _expand_words(word, variables)]
        if simple is commands[-1]:
            words += arguments
        if words[:1] == ["cd"]:
            base = _go_to(base, words)
        elif base is not None:
            named = [word for word in words if word is not None]
            files |= dict.fromkeys(paths := list(_find_named(named, base)), False)
            python = next((path for path in paths if path.suffix == ".py"), None)
            files |= dict.fromkeys(find_hydra_configs(named, python, base).files, deep < _SCRIPTS_DEEP)
            if deep and (script := _find_shell_script(words, base)) is not None:
                files |= _find_in_script(*script, base, variables, deep - 1)
    return files


def _find_in_script(
    path: Path, arguments: Sequence[str | None], base: Path, variables: Mapping[str, str], deep: int
) -> dict[Path, bool]:
    numbered = {str(number): word for number, word in enumerate(arguments, 1) if word is not None}
    missing = {str(number): "" for number in range(len(arguments) + 1, 10)}
    text = _RX.own_directory.sub(lambda _: str(path.parent), read_text(path))
    return _find_in(text, base, {**variables, **missing, **numbered, "0": str(path)}, (), deep)


def _find_shell_script(words: Sequence[str | None], base: Path) -> tuple[Path, list[str | None]] | None:
    """Return the shell script that a program starts or is, and the arguments after it."""
    words = words[1:] if words[:1] == ["eval"] else words
    entry = find_entry([word or "" for word in words])
    at = 0 if entry is None else entry.at
    word = words[at] if words and (entry is None or (entry.is_shell and entry.kind == "script")) else None
    is_script = word is not None and word.endswith((".sh", ".bash")) and is_file(base / word)
    return (base / word, list(words[at + 1 :])) if word is not None and is_script else None


def _assign(simple: SimpleCommand, variables: dict[str, str], unsure: set[str]) -> None:
    """Set the assigned variables. One that is unknown, or differs between branches, stays so; an empty one is none."""
    for match in filter(None, map(_RX.assignment.fullmatch, list_assignments(simple.words))):
        name, value = match[1], _expand_value(match[2], variables)
        is_argument = bool(re.fullmatch(r"\$\{?[1-9]\}?", match[2]))
        if value == "" and name in variables:
            continue
        if value is None or (name in unsure and value != variables.get(name) and not is_argument):
            variables.pop(name, None)
        else:
            variables[name] = value
        unsure.add(name)


def _expand_value(text: str, variables: Mapping[str, str]) -> str | None:
    """Return the value that is assigned; of one with several words, such as a command, those that are known."""
    words = text.split()
    if len(words) <= 1:
        return _expand(text, variables)
    expanded = [_expand(word, variables) for word in words]
    return " ".join(_UNKNOWN if word is None else word for word in expanded)


def _expand_words(word: str, variables: Mapping[str, str]) -> Sequence[str | None]:
    """Return the words that ``word`` becomes: several where it is a variable alone, such as ``$CMD``."""
    text = _expand(word, variables)
    return text.split() if text and _RX.variable.fullmatch(word) else [text]


def _expand(word: str, env: Mapping[str, str]) -> str | None:
    """Return ``word`` with its variables replaced; None where more than that is unknown."""
    if word.startswith("~/"):
        word = env.get("HOME", "~") + word[1:]
    is_known = True

    def replace(match: re.Match[str]) -> str:
        nonlocal is_known
        value = env.get(match["plain"] or match["braced"])
        if match["default"] is not None:
            value = value or match["default"]
        is_known = is_known and value is not None
        return value or ""

    text = _RX.variable.sub(replace, word)
    return text if is_known and not set(text) & set("$`*\0") and len(text) <= _LONGEST_PATH else None


def _go_to(base: Path | None, words: Sequence[str | None]) -> Path | None:
    target = next((word for word in words[1:] if word != "--"), None)
    if target is None or target == "-":
        return None
    return Path(target) if base is None and target.startswith("/") else base / target if base is not None else None


def _find_named(words: Sequence[str], base: Path) -> Iterator[Path]:
    for before, word in zip(["", *words], words):
        value = _value(word)
        path = base / (word.replace(".", "/") + ".py" if before == "-m" else value)
        if (before == "-m" or value.endswith(_SUFFIXES)) and is_file(path):
            yield path


def _value(word: str) -> str:
    match = _RX.named.fullmatch(word)
    return match[1] if match else word
