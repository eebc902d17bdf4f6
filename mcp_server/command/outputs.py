"""The directories into which a command says that it writes: its options, parameters and configuration files. Pure.

Only names that mean an output count, such as ``--logdir``, ``--output_dir``, ``hydra.run.dir``, ``default_root_dir``
and ``trainer.default_local_dir``. A directory of checkpoints or models may as well be an input: it does not count.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from mcp_server.command.programs import LOG_VIEWERS, PYTHON, PYTHON_LAUNCHERS, unwrap
from mcp_server.command.shell import REDIRECTS, SimpleCommand, is_literal, parse
from mcp_server.command.words import Word
from mcp_server.text.regex import compile_lazily
from mcp_server.text.rows import read_patterns, read_words

_RX = read_patterns("command/patterns", "outputs")


# Words that say what a file is to a program, by their sort.
OPTION_WORDS = {sort: frozenset(words) for sort, words in read_words("command/options").items()}
_WORDS = compile_lazily(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
# Settings by which programs name an experiment, the most telling first.
RUN_NAMES = ("experiment_name", "exp_name", "run_name")
# Text that a shell, Hydra or a program replaces.
_REPLACED = compile_lazily(r"[$`*?\[\]{}<>|;%]|\\n")
_OF_THE_SYSTEM = ("/usr/", "/bin/", "/lib/", "/lib64/", "/etc/", "/proc/", "/sys/", "/dev/", "/run/", "/snap/")
_CONFIG_FILES = (".yaml", ".yml", ".json", ".toml")
_RESUMES = compile_lazily(r"(?i)resum|--?continue\b|load_checkpoint")
_MOST_CONFIG_CHARS = 200_000
_LONGEST_PATH = 4096  # PATH_MAX
_SEVERAL_WORDS, _LONGEST_INNER = compile_lazily(r"\S\s+\S"), 20_000


def names_an_output(name: str) -> bool:
    """Return whether an option or a key of this name says where a program writes."""
    plain = name.strip("-+~").lower()
    if plain in OPTION_WORDS["alone"]:
        return True
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words or OPTION_WORDS["input"] & set(words):
        return False
    last = words[-1]
    if len(words) == 1 or _RX.joined.fullmatch(last):
        return bool(_RX.joined.fullmatch(last))
    return last in OPTION_WORDS["place"] and bool(OPTION_WORDS["output"] & set(words[:-1]))


def may_name_an_output(option: str, *, writes_checkpoints: bool = True) -> bool:
    """Return whether an option, with its groups, may say that the program writes what it names: ``save.model_path``."""
    parts = option.lstrip("-+").replace("-", "_").lower().split(".")
    is_read = not writes_checkpoints and parts[-1] in OPTION_WORDS["checkpoint"]
    return (not is_read and _RX.output_directory.fullmatch(parts[-1]) is not None) or any(
        not OPTION_WORDS["write"].isdisjoint(part.split("_")) for part in parts
    )


def is_output_place(path: str) -> bool:
    """Return whether a path leads through a directory where programs write: ``/data/me/outputs/run1``."""
    return not OPTION_WORDS["written"].isdisjoint(part.lower() for part in PurePath(path).parts)


def resumes(command: str | Sequence[str], params: Mapping[str, Any]) -> bool:
    """Return whether a command says that it goes on with the files of a former run."""
    return _RESUMES.search(json.dumps([command, params], default=str)) is not None


def names_a_run(setting: str) -> bool:
    """Return whether a setting of this name says where a run writes, or is a name or a tag."""
    return _RX.names_a_run.fullmatch(setting.lower().lstrip("$")) is not None


def says_only_where(setting: str) -> bool:
    """Return whether a setting of this name says where a run writes or what it is called, and nothing that it does."""
    plain = setting.lower().lstrip("-+$")
    is_directory = _RX.output_directory.fullmatch(plain.replace("-", "_").rpartition(".")[2])
    return names_an_output(plain) or bool(is_directory or _RX.labels_a_run.fullmatch(plain))


def is_incidental(setting: str) -> bool:
    """Return whether a setting of this name changes nothing that a run learns: ``log_interval``, ``num_workers``."""
    return _RX.is_incidental.fullmatch(setting.lower().lstrip("-+$").replace("-", "_").rpartition(".")[2]) is not None


def names_a_place(setting: str) -> bool:
    """Return whether a setting of this name is a directory, or names the run."""
    return _RX.names_a_place.fullmatch(setting.lower().lstrip("$")) is not None


def find_in_command(command: str | Sequence[str], cwd: str, params: Mapping[str, Any] | None = None) -> list[str]:
    """Return the directories, as absolute paths, that the options of a command and its parameters say are written."""
    placed = list(_place(command, cwd))
    writers = [(one, base) for one, base in placed if PurePath(one.program).name not in LOG_VIEWERS]
    named = [(pair, base) for one, base in writers for pair in parse(one.words).split_options()[0].items()]
    last = placed[-1][1] if placed else cwd
    named += [((name, str(value)), last) for name, value in (params or {}).items()]
    return list(dict.fromkeys(path for pair, base in named for path in _resolve([pair], base)))


def list_redirected(command: str | Sequence[str], cwd: str) -> Iterator[str]:
    """Yield the files, as absolute paths, into which the output of a program is written by the shell."""
    for simple, base in _place(command, cwd, deep=False) if isinstance(command, str) else ():
        words = [each.target for each in simple.redirections if each.operator in REDIRECTS]
        if simple.program == "tee":
            words += [word for word in simple.program_words[1:] if not word.startswith("-")]
        yield from (path for word in filter(_is_file, words) if (path := _absolute(word, base)))


def _place(
    command: str | Sequence[str], cwd: str | None, *, deep: bool = True
) -> Iterator[tuple[SimpleCommand, str | None]]:
    """Yield each program with its directory, or None. ``deep``: also those in a word, as of ``bash -c TEXT``."""
    parsed = parse(command)
    for simple in [SimpleCommand(tuple(parsed.words))] if parsed.open_quote else parsed.commands:
        base = None if cwd is None else simple.find_directory(cwd or "/")
        yield simple, base
        for word in simple.words if deep else ():
            word = word.partition("(")[2][:-1] if isinstance(word, Word) and word.is_array else word  # noqa: PLW2901
            if _SEVERAL_WORDS.search(word) and len(word) < _LONGEST_INNER:
                yield from _place(word, base, deep=False)


def warn_of_redirection(command: str | Sequence[str]) -> list[str]:
    """Return what to know where the output of every Python program of a command goes to a file."""
    commands = parse(command).commands if isinstance(command, str) else ()
    of_python = [one for one in commands if _runs_python(unwrap(one.words)[0])]
    files = [next(_find_redirected(one), "") for one in of_python]
    if not files or not all(files):
        return []
    return [
        f"The output goes to {files[-1]}: its steps, metrics and errors are not seen while it runs. Leave the "
        "redirection out (read_log has the whole output), or write | tee."
    ]


def _runs_python(words: Sequence[str]) -> bool:
    name = PurePath(words[0]).name if words else ""
    return name in PYTHON_LAUNCHERS or name.endswith(".py") or PYTHON.fullmatch(name) is not None


def _find_redirected(simple: SimpleCommand) -> Iterator[str]:
    for each in simple.redirections:
        if each.operator in REDIRECTS and each.descriptor in ("", "1") and _is_file(each.target):
            yield each.target


def _is_file(word: str) -> bool:
    return is_literal(word) and not word.startswith(("/dev/", "/proc/"))


def find_in_configuration(text: str, cwd: str) -> list[str]:
    """Return the directories that the lines of a YAML, JSON or TOML file say are written, as absolute paths."""
    pairs = ((m["name"], m["value"].strip().strip("\"' ")) for m in _RX.config_line.finditer(text[:_MOST_CONFIG_CHARS]))
    return list(dict.fromkeys(_resolve(pairs, cwd)))


def find_mentioned(command: str | Sequence[str], cwd: str) -> list[str]:
    """Return the absolute paths that the words and option values of a command may mean, ``cwd`` left out."""
    paths: dict[str, None] = {}
    for one, base in _place(command, cwd):
        options, rest = parse(one.words).split_options()
        for word in (*rest[1:], *options.values()):
            if "/" in word and not _REPLACED.search(word) and "://" not in word and len(word) <= _LONGEST_PATH:
                path = _absolute(word, base)
                if path and path != cwd.rstrip("/") and not f"{path}/".startswith(_OF_THE_SYSTEM):
                    paths[path] = None
    return list(paths)


def configuration_words(command: str | Sequence[str]) -> list[str]:
    """Return the words of a command that are configuration files by their ending, also as ``--config=FILE``."""
    words = parse(command if isinstance(command, str) else list(command)).words
    paths = (word.rpartition("=")[2] for word in words)
    return [path for path in dict.fromkeys(paths) if path.endswith(_CONFIG_FILES)]


def _resolve(pairs: Iterable[tuple[str, str]], base: str | None) -> Iterator[str]:
    for name, value in pairs:
        if not value or value in ("true", "false", "null", "None") or len(value) > _LONGEST_PATH or "\0" in value:
            continue
        is_plain = names_an_output(name) and not _REPLACED.search(value) and "://" not in value
        if is_plain and (path := _absolute(value, base)):
            yield path


def _absolute(path: str, base: str | None) -> str:
    """Return a path as seen from ``base``, empty for a relative one without it. ``~NAME`` of an unknown user stays."""
    path = os.path.expanduser(path)  # noqa: PTH111 - a text
    return "" if base is None and not path.startswith("/") else os.path.normpath(os.path.join(base or "/", path))  # noqa: PTH118
