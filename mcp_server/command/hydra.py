"""A command as Hydra reads it: its options and overrides, the decorator of its script, the configs that it composes.

Scripts and configs are read, never run. Configs that Hydra finds in installed packages are left out.
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
from mcp_server.command.shell import ReadCommand, is_literal
from mcp_server.system.files import read_regular_file
from mcp_server.text.regex import compile_lazily
from mcp_server.text.rows import read_patterns

_RX = read_patterns("command/patterns", "hydra")


_MOST_BYTES, _MOST_FILES, _DEEPEST = 1 << 20, 40, 6  # of one file, of one command, of defaults that name configs
OPTIONS = {
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
    if not programs or any(name.startswith("-") or f"--{name}" in OPTIONS for name in names):
        return False
    program = programs[-1]
    start = next((at for at, word in enumerate(program.words) if word == "-m" or word.endswith(".py")), 0)
    flags = {word.partition("=")[0] for word in program.words[start + 1 :] if word.startswith("--")}
    if not flags <= {*OPTIONS, "--multirun"}:
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
        if name in OPTIONS and value:
            options[OPTIONS[name]] = value
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
