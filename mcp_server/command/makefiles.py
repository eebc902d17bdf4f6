"""The recipes of a Makefile that a command makes, as a script with the lines of the file. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

MAKE = frozenset({"make", "gmake"})
_NAMES = ("GNUmakefile", "makefile", "Makefile")
_RULE = re.compile(r"(?P<targets>[^\s:=#][^:=#]*?)\s*::?(?!=)(?P<needs>[^=;#]*)(?:;(?P<recipe>.*))?")
_VARIABLE = re.compile(r"\$[({]([A-Za-z_][\w.]*)[)}]")
_WITH_VALUE = frozenset({"-C", "--directory", "-f", "--file", "--makefile", "-j", "--jobs", "-l", "-o", "-W", "-I"})


class Makefile(NamedTuple):
    """Where the Makefile of a command is: ``names`` in ``directory``, which is empty or ends with ``/``."""

    directory: str
    names: tuple[str, ...]
    targets: tuple[str, ...]


def find_makefile(words: Sequence[str]) -> Makefile:
    """Return the Makefile and the targets that a command ``make …`` names. No targets: the first is made."""
    directory, targets = "", []
    names: tuple[str, ...] = _NAMES
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if option in _WITH_VALUE:
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
    return _VARIABLE.sub(r"${\1}", line.strip().lstrip("@-+ ")).replace("$$", "$")
