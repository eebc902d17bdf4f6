"""The texts that programs run as shell commands, those that programs write, and the recipes of Makefiles. Pure."""

from __future__ import annotations

import base64
import binascii
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, zip_longest
from pathlib import PurePath
from typing import NamedTuple

from mcp_server.command.programs import CONTAINERS, SHELLS, TEXT_PROGRAMS, find_entry
from mcp_server.command.ssh_command import parse_ssh
from mcp_server.text.rows import read_patterns, read_words

_RX = read_patterns("command/patterns", "texts")
_OPENS_WINDOW = frozenset(read_words("command/words")["window"])
_OF_WINDOW = frozenset({"-s", "-n", "-t", "-c", "-e", "-x", "-y", "-l", "-F", "-w", "-h"})
_OF_SCREEN = frozenset({"-S", "-t", "-c", "-e", "-s", "-h", "-p"})

_ESCAPE = re.compile(r"\\(n|t|r|\\|0?[0-7]{3}|x[0-9a-fA-F]{1,2})")
_DIRECTIVE = re.compile(r"%%|%[-\d.]*[sbdiqc]")
_NAMES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}
_DECODES = frozenset({"-d", "-D", "--decode", "-di", "-id"})
LONGEST = 64 * 1024  # characters that a program writes
MAKE = frozenset({"make", "gmake"})
_MAKEFILES = ("GNUmakefile", "makefile", "Makefile")
_RULE = re.compile(r"(?P<targets>[^\s:=#][^:=#]*?)\s*::?(?!=)(?P<needs>[^=;#]*)(?:;(?P<recipe>.*))?")
_VARIABLE_OF_MAKE = re.compile(r"\$[({]([A-Za-z_][\w.]*)[)}]")
_OPTIONS_OF_MAKE = frozenset("-C --directory -f --file --makefile -j --jobs -l -o -W -I".split())  # noqa: SIM905


def find_run_texts(name: str, words: Sequence[str], stdin: str | None) -> list[str]:
    """Return the texts that a program runs as commands. ``stdin``: the text that it reads, where that is known."""
    if name == "find":
        return list(_find_actions(words))
    if _RX.scripting.fullmatch(name):
        texts = [match["text"] for word in words[1:] for match in _RX.starts_program.finditer(word)]
        return [*texts, *("kill -9 -1" for word in words[1:] if _RX.kills_all.search(word))]
    if name in TEXT_PROGRAMS or (name in CONTAINERS and "--pid=host" not in words):
        return []  # a container has processes of its own
    texts = _find_shell_texts(words)
    remote = parse_ssh(words)
    if name in _RUN_TEXTS:
        texts += _RUN_TEXTS[name](words)
    elif remote is not None:
        texts.append(remote.text)
    elif words and re.search(r"\s", words[0]):  # env -S TEXT, watch TEXT
        texts.append(" ".join(words))
    reader = remote.words if remote is not None else words
    if stdin is not None and reader and _reads_commands(PurePath(reader[0]).name, reader):
        texts.append(stdin)
    return texts


def _find_by_c(words: Sequence[str]) -> list[str]:
    return [text for option, text in zip(words, words[1:]) if re.fullmatch(r"-[a-z]*c", option)]


def _find_wrapped(words: Sequence[str]) -> list[str]:
    return [
        text.partition("=")[2] or after
        for text, after in zip_longest(words, words[1:], fillvalue="")
        if text.partition("=")[0] == "--wrap"
    ]


def _find_in_window(words: Sequence[str]) -> list[str]:
    return [_skip_options(words[2:], _OF_WINDOW, quoted=False)] if not _OPENS_WINDOW.isdisjoint(words[1:2]) else []


def _find_in_screen(words: Sequence[str]) -> list[str]:
    is_started = any(re.match(r"-[A-Za-z]*dm", word) for word in words)
    return [_skip_options(words[1:], _OF_SCREEN, quoted=True)] if is_started else []


def _reads_commands(name: str, words: Sequence[str]) -> bool:
    entry = find_entry(words)
    return name in ("at", "batch") or (entry is not None and entry.is_shell and entry.kind == "input")


def _find_actions(words: Sequence[str]) -> Iterator[str]:
    for at, word in enumerate(words):
        if word in ("-exec", "-execdir", "-ok", "-okdir"):
            end = next((after for after in range(at, len(words)) if words[after] in (";", "+")), len(words))
            yield shlex.join(words[at + 1 : end])


def _skip_options(words: Sequence[str], with_value: frozenset[str], *, quoted: bool) -> str:
    """Return the command behind options as text; ``quoted``: its words stay words."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in with_value or re.fullmatch(r"-[A-Za-z]+[St]", words[at]) else 1
    return shlex.join(words[at:]) if quoted else " ".join(words[at:])


def _find_shell_texts(words: Sequence[str]) -> list[str]:
    """Return the text that ``bash -c`` and its like run, wherever they are in ``words``."""
    entries = (find_entry(words, at) for at, word in enumerate(words) if PurePath(word).name in SHELLS)
    return [entry.value for entry in entries if entry and entry.kind == "code"][:1]


_RUN_TEXTS: dict[str, Callable[[Sequence[str]], list[str]]] = {
    "eval": lambda words: [" ".join(words[1:])],
    "trap": lambda words: [words[1]] if words[2:] else [],
    "su": _find_by_c,
    "runuser": _find_by_c,
    "script": _find_by_c,
    "-c": _find_by_c,  # what flock leaves
    "sbatch": _find_wrapped,
    "tmux": _find_in_window,
    "screen": _find_in_screen,
}


# --- texts that programs write


def write_literally(words: Sequence[str], stdin: str | None) -> str | None:
    """Return what the program writes, at most 64 Ki characters; None where that is not in its words and ``stdin``."""
    name = words[0].rpartition("/")[2] if words else ""
    text: str | None = None
    if name == "echo":
        text = _echo(words[1:])
    elif name == "printf":
        text = _print_formatted(words[1:])
    elif name == "base64" and not _DECODES.isdisjoint(words[1:]):
        text = _decode(stdin)
    elif name in ("cat", "tee", "tac") and (name == "tee" or set(words[1:]) <= {"-"}):
        text = stdin
    elif name == "rev" and stdin is not None:
        text = "\n".join(line[::-1] for line in stdin.split("\n"))
    return None if text is None else text[:LONGEST]


def _echo(arguments: Sequence[str]) -> str:
    at = 0
    while at < len(arguments) and re.fullmatch(r"-[neE]+", arguments[at]):
        at += 1
    return _resolve(" ".join(arguments[at:])) + "\n"  # sh resolves escapes, bash with -e: the text is run either way


def _print_formatted(arguments: Sequence[str]) -> str | None:
    arguments = arguments[1:] if arguments[:1] == ["--"] else arguments
    if not arguments or arguments[0] == "-v":
        return None
    form, values = _resolve(arguments[0]), list(arguments[1:])
    directives = len(_DIRECTIVE.findall(form.replace("%%", "")))
    rounds = max(1, -(-len(values) // directives)) if directives else 1
    following = cycle(values or [""])
    return _DIRECTIVE.sub(
        lambda match: "%" if match[0] == "%%" else _resolve(next(following)), form * min(rounds, LONGEST)
    )


def _decode(text: str | None) -> str | None:
    try:
        return base64.b64decode("".join((text or "").split()), validate=True).decode()
    except (binascii.Error, ValueError):
        return None


def _resolve(text: str) -> str:
    return _ESCAPE.sub(lambda match: _NAMES.get(match[1]) or _to_character(match[1]), text)


def _to_character(code: str) -> str:
    return chr(int(code[1:], 16) if code.startswith("x") else int(code, 8) & 0xFF)


# --- recipes


class Makefile(NamedTuple):
    """Where the Makefile of a command is: ``names`` in ``directory``, which is empty or ends with ``/``."""

    directory: str
    names: tuple[str, ...]
    targets: tuple[str, ...]


def find_makefile(words: Sequence[str]) -> Makefile:
    """Return the Makefile and the targets that a command ``make …`` names. No targets: the first is made."""
    directory, targets = "", []
    names: tuple[str, ...] = _MAKEFILES
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if option in _OPTIONS_OF_MAKE:
            is_count = option in ("-j", "--jobs", "-l") and not (rest and rest[0].isdecimal())
            value = value if equals or is_count or not rest else rest.pop(0)
            directory = f"{value.rstrip('/')}/" if option in ("-C", "--directory") else directory
            names = (value,) if option in ("-f", "--file", "--makefile") else names
        elif not word.startswith("-") and not equals:
            targets.append(word)
    return Makefile(directory, names, tuple(targets))


def select_recipes(text: str, targets: Sequence[str]) -> str:
    """Return the recipes of ``targets`` and of what they need as shell lines. All other lines are empty."""
    recipes, needs, names = _read_rules(text.split("\n"))
    waiting, seen = list(targets or names[:1]), set()
    while waiting:
        target = waiting.pop()
        if target not in seen:
            seen.add(target)
            waiting += needs.get(target, ())
    lines = {number: line for target in seen for number, line in recipes.get(target, ())}
    return "\n".join(lines.get(number, "") for number in range(text.count("\n") + 1))


def _read_rules(lines: list[str]) -> tuple[dict[str, list[tuple[int, str]]], dict[str, list[str]], list[str]]:
    """Return, by target, its lines with their numbers and what it needs; and the targets in order."""
    recipes: dict[str, list[tuple[int, str]]] = {}
    needs: dict[str, list[str]] = {}
    current: list[str] = []
    for number, line in enumerate(lines):
        if line.startswith("\t"):
            for target in current:
                recipes[target].append((number, _to_shell(line)))
        elif line.strip() and not line.lstrip().startswith("#"):
            rule = _RULE.fullmatch(line.strip())
            current = rule["targets"].split() if rule else []
            for target in current if rule else ():
                recipes.setdefault(target, [])
                needs.setdefault(target, []).extend(rule["needs"].split() if rule else ())
                if rule and rule["recipe"]:
                    recipes[target].append((number, _to_shell(rule["recipe"])))
    return recipes, needs, [target for target in needs if not target.startswith(".")]


def _to_shell(line: str) -> str:
    """Return a line of a recipe as the shell gets it; variables of make become those of the shell."""
    return _VARIABLE_OF_MAKE.sub(r"${\1}", line.strip().lstrip("@-+ ")).replace("$$", "$")
