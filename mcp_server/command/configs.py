"""The configuration files and scripts that a command names, Hydra's among them.

Only files that exist count. What only a shell can know, such as the result of ``$(…)``, names no file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mcp_server.command.hydra import find_hydra_configs, is_file, read_text
from mcp_server.command.programs import find_entry, list_assignments, unwrap
from mcp_server.command.shell import SimpleCommand, parse
from mcp_server.text.rows import read_patterns

_RX = read_patterns("command/patterns", "configs")

_SUFFIXES = (
    *(".yaml", ".yml", ".toml", ".json", ".jsonnet", ".py", ".sh", ".bash", ".ini", ".cfg", ".conf", ".gin"),
    ".ipynb",  # of papermill or nbconvert
)
_SCRIPTS_DEEP = 2
_UNKNOWN = "\N{REPLACEMENT CHARACTER}"  # a word that names no file
_MOST_FILES, _LONGEST_PATH = 40, 4096


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
