"""Regular expressions: the program's own, compiled at first use, those of users, and possessive quantifiers. Pure.

A possessive quantifier (``a*+``) never gives back what it matched, which keeps matching linear. Python has right ones
since 3.11.5 (CPython gh-106052); for older ones ``expand_possessive`` rewrites ``X*+`` to
``(?:(?=(?P<_held1>X*))(?P=_held1))``, which matches exactly the same: a lookahead is never re-entered. Without the
``+`` a third of 300,000 random lines matched something else. Numbers of groups shift: read groups by name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import cache
from operator import itemgetter
from typing import Any, AnyStr, cast

from mcp_server.errors import PatternError

_MAX_PATTERN_CHARS = 1_000
HAS_POSSESSIVE = sys.version_info >= (3, 11, 5)
"""Whether this Python's own possessive quantifiers are right."""

_ESCAPE = r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^}]*\}|[0-3][0-7]{2}|0[0-7]?|[1-9][0-9]?|.)"
_ATOM = re.compile(_ESCAPE + r"|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_GROUP = re.compile(r"\(([^()]*)\)([*+]|\{\d*,\})?")
_SIGNS = ("*+", "++", "?+", "}+", "(?>")  # what possessive quantifiers and atomic groups contain
_ADDED = "_held"  # names of added groups begin with it
_QUANTIFIER = re.compile(r"[*+?]|\{(?:\d+(?:,\d*)?|,\d+)\}")
_OPENING = re.compile(r"\((?:\?(?:P<\w+>|[:=!]|<[=!]|>|[aiLmsux]*(?:-[imsx]+)?:|\(\w+\)))?")
_BACKREFERENCE = re.compile(r"\\[1-9](?![0-7]{2})")
_WHOLE_GROUP = re.compile(r"\(\?(?:P=\w+\)|[aiLmsux]+\)|#[^)]*\))")  # a named backreference, global flags, a comment


class _LazyPattern:
    """Does what ``re.Pattern`` does, and is compiled when the first of its methods is called."""

    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self.pattern = pattern
        self._flags = flags
        self._compiled: re.Pattern[Any] | None = None

    def __getattr__(self, name: str) -> Any:
        """Return what the compiled pattern has under ``name``, and keep it: it is looked up here once."""
        if name.startswith("__"):
            raise AttributeError(name)
        if self._compiled is None:
            self._compiled = compile_pattern(cast("str", self.pattern), self._flags)
        attribute = getattr(self._compiled, name)
        setattr(self, name, attribute)
        return attribute


def compile_lazily(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return a pattern that is compiled when it is first used. It may have possessive quantifiers, as below."""
    return cast("re.Pattern[AnyStr]", _LazyPattern(pattern, flags))


@cache
def compile_once(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """Return a pattern of a table, compiled when it is first used."""
    return compile_pattern(pattern, flags)


def compile_user_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of a user, or raise PatternError where it is none, is too long, or could search for ever."""
    if len(pattern) > _MAX_PATTERN_CHARS:
        raise PatternError(pattern, f"it has more than {_MAX_PATTERN_CHARS:,} characters")
    try:
        regex = compile_pattern(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise PatternError(pattern, str(error)) from None
    flat = _ATOM.sub("x", pattern)
    while group := _GROUP.search(flat):  # the innermost first
        inner = re.search(r"[*+]|\{\d*,\}", group[1])
        if inner and group[2]:
            raise PatternError(pattern, "a repeat within a repeat, as in (a+)+, can take for ever")
        flat = flat[: group.start()] + ("x+" if inner else "x") + (group[2] or "") + flat[group.end() :]
    return regex


def compile_pattern(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Compile a pattern that may have possessive quantifiers; read its groups by name. Raises re.error."""
    return re.compile(pattern if HAS_POSSESSIVE else expand_possessive(pattern), flags)


def find_all(pattern: re.Pattern[str], *names: str) -> Callable[[str], list[tuple[str, ...]]]:
    """Return a function that works as ``pattern.findall`` with exactly the groups ``names``, two or more."""

    @cache
    def pick() -> Callable[[tuple[str, ...]], tuple[str, ...]] | None:  # once, when the pattern is compiled
        numbers = [pattern.groupindex[name] - 1 for name in names]
        return None if numbers == list(range(pattern.groups)) else itemgetter(*numbers)

    def find(text: str) -> list[tuple[str, ...]]:
        found, picked = pattern.findall(text), pick()
        return [picked(groups) for groups in found] if picked and found else found

    return find


def first_group(pattern: re.Pattern[str]) -> int | None:
    """Return the number of the first group that the pattern's author wrote, or None if there is none."""
    added = {number for name, number in pattern.groupindex.items() if name.startswith(_ADDED)}
    return next((number for number in range(1, pattern.groups + 1) if number not in added), None)


def expand_possessive(pattern: AnyStr) -> AnyStr:
    """Return an equivalent without possessive quantifiers and atomic groups; re.error with numbered references too."""
    if isinstance(pattern, bytes):
        return _expand(pattern.decode("latin-1")).encode("latin-1")
    return _expand(pattern)


def _expand(pattern: str) -> str:
    if not any(sign in pattern for sign in _SIGNS):
        return pattern
    groups = 0  # added so far
    levels: list[list[str]] = [[]]  # the atoms of each open group, the innermost last

    def hold(text: str) -> str:
        nonlocal groups
        groups += 1
        return f"(?:(?=(?P<{_ADDED}{groups}>{text}))(?P={_ADDED}{groups}))"

    at = 0
    while at < len(pattern):
        atoms = levels[-1]
        char = pattern[at]
        if atom := _ATOM.match(pattern, at) or _WHOLE_GROUP.match(pattern, at):
            atoms.append(atom[0])
            at = atom.end()
        elif char == "(":
            opening = _OPENING.match(pattern, at)
            assert opening is not None  # noqa: S101 - the pattern's optional part is all but the parenthesis
            levels.append([opening[0]])
            at = opening.end()
        elif char == ")" and len(levels) > 1:
            opening_text, *content = levels.pop()
            whole = "".join(content)
            levels[-1].append(hold(whole) if opening_text == "(?>" else f"{opening_text}{whole})")
            at += 1
        elif atoms and (quantifier := _QUANTIFIER.match(pattern, at)):
            at = quantifier.end()
            repeated = atoms.pop() + quantifier[0]
            following = pattern[at : at + 1]
            at += following in ("+", "?") and bool(following)
            atoms.append(hold(repeated) if following == "+" else repeated + following * (following == "?"))
        else:
            atoms.append(char)
            at += 1
    while len(levels) > 1:  # not a regular expression: left for the compiler to refuse
        levels[-2].extend(levels.pop())
    if groups and _BACKREFERENCE.search(pattern):
        raise re.error("a possessive quantifier and a reference to a numbered group", pattern)
    return "".join(levels[0]) if groups else pattern
