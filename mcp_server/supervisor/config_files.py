"""The configuration files and scripts that a command names, Hydra's among them.

Only files that exist count. What only a shell can know, such as the result of ``$(…)``, names no file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mcp_server.system.files import read_regular_file
from mcp_server.text.shell import SimpleCommand, parse

_SUFFIXES = (".yaml", ".yml", ".toml", ".json", ".jsonnet", ".py", ".sh", ".bash", ".ini", ".cfg", ".conf", ".gin")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_NAMED = re.compile(r"[+~]*(?:--?)?[A-Za-z][\w.\-/@]*=(.*)", re.DOTALL)
_MOST_FILES, _SCRIPT_BYTES, _LONGEST_PATH = 40, 1 << 20, 4096
# Hydra: its options by their long names, its decorator in a script, the list of defaults in a config.
_HYDRA_OPTIONS = {
    "--config-path": "path",
    "-cp": "path",
    "--config-name": "name",
    "-cn": "name",
    "--config-dir": "dir",
    "-cd": "dir",
}
_HYDRA_MAIN = re.compile(r"^\s*@hydra\.main\((.{0,500}?)\)", re.MULTILINE | re.DOTALL)
_HYDRA_ARGUMENT = r"""%s\s*=\s*["']([^"']+)["']"""
_DEFAULTS = re.compile(r"^defaults:[ \t]*(?:#.*)?\n((?:[ \t]*(?:-.*|#.*)?\n)+)", re.MULTILINE)
_DEFAULT = re.compile(
    r"""[ \t]*-[ \t]*(?:override[ \t]+)?["']?([\w/.\-]+)(?:@[\w.]*)?["']?[ \t]*(?::[ \t]*["']?([\w/.\-]+)["']?)?"""
)
_OVERRIDE = re.compile(r"\+{0,2}([\w/]+)(?:@[\w.]*)?=([\w/.\-]+)")
_DEEPEST = 6  # of defaults that name other configs


def find_config_files(
    command: str | Sequence[str], cwd: str, env: Mapping[str, str], arguments: Sequence[str] = ()
) -> list[Path]:
    """Return the existing files that ``command`` names, run in ``cwd`` with ``env`` and more ``arguments``; at most 40.

    A relative path counts from the directory that ``cd`` words in front of it lead to.
    """
    parsed = parse(command)
    found: dict[Path, None] = {}
    base: Path | None = Path(cwd)
    variables = dict(env)
    for index, simple in enumerate(parsed.commands):
        variables.update(_assignments(simple, variables))
        words = [_expand(word, variables) for word in simple.program_words]
        if words[:1] == ["cd"]:
            base = _go_to(base, words)
            continue
        if index == len(parsed.commands) - 1:
            words += arguments
        if base is not None:
            found.update(dict.fromkeys(_find_named(words, base)))
    return list(found)[:_MOST_FILES]


def _assignments(simple: SimpleCommand, env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for word in simple.words[1:] if simple.words[:1] == ("export",) else simple.words:
        match = _ASSIGNMENT.fullmatch(word)
        if match is None:
            break
        if (value := _expand(match[2], env)) is not None:
            yield match[1], value


def _expand(word: str, env: Mapping[str, str]) -> str | None:
    """Return ``word`` with its variables replaced; None where more than that is unknown."""
    if word.startswith("~/"):
        word = env.get("HOME", "~") + word[1:]
    unknown = [name for match in _VARIABLE.finditer(word) for name in match.groups() if name and name not in env]
    if unknown:
        return None
    text = _VARIABLE.sub(lambda match: env[match[1] or match[2]], word)
    return None if set(text) & set("$`*\0") or len(text) > _LONGEST_PATH else text


def _go_to(base: Path | None, words: Sequence[str | None]) -> Path | None:
    target = next((word for word in words[1:] if word != "--"), None)
    if target is None or target == "-":
        return None
    return Path(target) if base is None and target.startswith("/") else base / target if base is not None else None


def _find_named(words: Sequence[str | None], base: Path) -> Iterator[Path]:
    """Yield the files that the words of one program name, and those of its Hydra."""
    known = [word for word in words if word is not None]
    script: Path | None = None
    for before, word in zip(["", *known], known):
        value = _value(word)
        path = base / value
        if before == "-m":
            path = base / (word.replace(".", "/") + ".py")
        elif not value.endswith(_SUFFIXES):
            continue
        if _is_file(path):
            script = path if script is None and path.suffix == ".py" else script
            yield path
    yield from _find_hydra(known, base, script)


def _value(word: str) -> str:
    match = _NAMED.fullmatch(word)
    return match[1] if match else word


def _find_hydra(words: Sequence[str], base: Path, script: Path | None) -> Iterator[Path]:
    """Yield the configs that Hydra composes for ``script``, as far as names alone decide."""
    options = _hydra_options(words)
    if script is not None and (main := _HYDRA_MAIN.search(_read(script))):
        for key in ("path", "name"):
            if match := re.search(_HYDRA_ARGUMENT % f"config_{key}", main[1]):
                options.setdefault(key, match[1])
    if "name" not in options:
        return
    directories = _hydra_directories(options, base, script)
    overrides = {match[1]: match[2] for match in map(_OVERRIDE.fullmatch, words) if match}
    seen: set[Path] = set()
    queue = [(options["name"], "", 0), *((f"{group}/{one}", group, 0) for group, one in overrides.items())]
    while queue and len(seen) < _MOST_FILES:
        name, group, depth = queue.pop(0)
        path = _find_config(directories, name)
        if path is None or path in seen:
            continue
        seen.add(path)
        yield path
        if depth < _DEEPEST:
            queue += [(one, within, depth + 1) for one, within in _defaults(_read(path), group, overrides)]


def _hydra_directories(options: Mapping[str, str], base: Path, script: Path | None) -> list[Path]:
    """Return where configs are looked up.

    Hydra takes a relative ``--config-path`` from the file of hydra.main, and ``--config-dir`` from where it runs.
    """
    directories = [base / options["dir"]] if "dir" in options else []
    beside = [script.parent] if script is not None else []
    if "path" in options:
        return [*directories, *(one / options["path"] for one in [*beside, base])]
    return directories + beside


def _hydra_options(words: Sequence[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for word, after in zip(words, [*words[1:], ""]):
        name, equals, value = word.partition("=")
        if name in _HYDRA_OPTIONS and (value or after):
            options[_HYDRA_OPTIONS[name]] = value if equals else after
    return options


def _defaults(text: str, group: str, overrides: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield name and group of each config in the list of defaults, with the options that the command chose."""
    match = _DEFAULTS.search(text + "\n")
    for line in match[1].splitlines() if match else ():
        if (entry := _DEFAULT.match(line)) is None or entry[1] == "_self_":
            continue
        key, option = entry[1], entry[2]
        named = key[1:] if key.startswith("/") else f"{group}/{key}" if group else key
        if option is None:
            yield named, named.rpartition("/")[0]
        elif (chosen := overrides.get(named, option)) not in ("null", "_self_"):
            yield f"{named}/{chosen}", named


def _find_config(directories: Sequence[Path], name: str) -> Path | None:
    names = [name] if name.endswith((".yaml", ".yml")) else [f"{name}.yaml", f"{name}.yml"]
    paths = (directory / one for directory in directories for one in names)
    return next((path for path in paths if _is_file(path)), None)


def _is_file(path: Path) -> bool:
    try:
        return os.path.isfile(path)  # noqa: PTH113 - does not raise for a name that cannot be one
    except ValueError:
        return False


def _read(path: Path) -> str:
    try:
        return read_regular_file(path, max_bytes=_SCRIPT_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return ""
