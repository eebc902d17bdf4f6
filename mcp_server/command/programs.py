"""The one table of programs (`programs.rows`): what each does with its arguments, and what it starts. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

from mcp_server.text.regex import compile_lazily
from mcp_server.text.rows import read_blocks

_BLOCKS = [dict(block) for block in read_blocks("command/programs")]
_NAMES = {block["sort"]: tuple(block["names"].split()) for block in _BLOCKS if "sort" in block}
_SORTS = {sort: frozenset(names) for sort, names in _NAMES.items()}

SHELLS, CONTAINERS = _SORTS["shell"], _SORTS["container"]
PYTHON = compile_lazily(r"(?:python|pypy)[\d.]*t?|py")
PYTHON_LAUNCHERS = _NAMES["launcher"]
REMOTE_PROGRAMS, TEXT_PROGRAMS = _SORTS["remote"], _SORTS["text"]
SHELL_BUILTINS, SETS_VARIABLES = _SORTS["builtin"], _SORTS["variable"]
REPORTS, SETTINGS, PAUSES = _SORTS["report"], _SORTS["setting"], _SORTS["pause"]
# They make no file that a later program could read; directories do not count. A pause waits for files of others.
MAKES_NO_FILES = REPORTS | SETTINGS | {"mkdir", "rm", "chmod"}
PREPARES = REPORTS | SETTINGS | PAUSES | _SORTS["prepare"]
LOG_VIEWERS = _SORTS["viewer"]
TASK_RUNNERS = _SORTS["task"]
# By program: the arguments with which it ends processes or jobs of others, each with a blank behind it.
ENDS_OTHERS = {name: block.get("args", "") for block in _BLOCKS for name in block.get("ends", "").split()}


def keeps_path(program: str, words: Sequence[str]) -> bool:
    """Return whether PATH is what it was behind a program with these ``words``, assignments in front included."""
    is_known = not program or program in PREPARES - _SORTS["path"]
    return is_known and not any(word.startswith("PATH") for word in words)


# --- programs that start others of the same line

_KEYWORDS = frozenset({"if", "then", "elif", "else", "do", "while", "until", "!", "{", "}", "time", "coproc", "&&"})
_NO_PROGRAM = frozenset({"for", "select", "case", "in", "esac", "done", "fi"})
# By wrapper: its options that take a value, and how many words of its own follow them.
WRAPPERS = {
    name: (tuple(block.get("value", "").split()), int(block.get("own", 0)))
    for block in _BLOCKS
    for name in block.get("wraps", "").split()
}
RUNNERS = _SORTS["runner"]  # `run`
_STARTED = TEXT_PROGRAMS | SHELLS | frozenset({"python", "python3", "ray", "env", "pkill", "killall", "kill", "fuser"})
ASSIGNMENT = compile_lazily(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=")


def unwrap(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Return the program's own words, the assignments in front of it, and whether ``xargs`` appends arguments."""
    rest, variables, by_xargs = list(words), [], False
    while rest:
        word = rest[0]
        name = PurePath(word).name
        if ASSIGNMENT.match(word):
            variables.append(rest.pop(0))
        elif word in _KEYWORDS and word != "time":
            rest.pop(0)
        elif word == "function":
            rest = rest[2:]
        elif word in _NO_PROGRAM:
            return (), tuple(variables), False
        elif name in WRAPPERS:
            if name == "command" and rest[1:2] and rest[1] in ("-v", "-V"):
                return ("type", *rest[2:]), tuple(variables), False
            by_xargs = by_xargs or name in ("xargs", "parallel")
            rest = _skip_wrapper(rest, *WRAPPERS[name])
        elif (name in _SORTS["cluster"] or (name in RUNNERS and rest[1:2] == ["run"])) and (at := _find_started(rest)):
            rest = rest[at:]
        else:
            break
    return tuple(rest), tuple(variables), by_xargs


def list_assignments(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words that set variables of the shell itself, also behind ``export``."""
    rest, variables, _ = unwrap(words)
    return (*variables, *rest[1:]) if not rest or rest[0] in SETS_VARIABLES else ()


def _find_started(words: Sequence[str]) -> int:
    """Return the index of the program that a launcher starts; 0 where that is not certain."""
    after_option = False
    for at in range(2 if PurePath(words[0]).name in RUNNERS else 1, len(words)):
        if words[at].startswith("-"):
            after_option = "=" not in words[at]
        elif not after_option or PurePath(words[at]).name in _STARTED:
            return at
        else:
            after_option = False  # the value of the option, by all signs
    return 0


def _skip_wrapper(words: list[str], with_value: tuple[str, ...], own: int) -> list[str]:
    rest = words[1:]
    while rest and rest[0].startswith("-") and rest[0] != "-":
        option = rest.pop(0)
        if option == "--":
            break
        if option in with_value and rest:
            rest.pop(0)
    return rest[own:]


_VALUE = compile_lazily(r"-.*|[\d.,:+!-]+|all")  # of an option of a wrapper
_DIRECTORY_OPTIONS = ("--directory", "--cwd", "--chdir", "--wdir", "--project", "-C")


def find_main(words: Sequence[str], also: Collection[str] = ()) -> int | None:
    """Return the index of the program that does the work, or None; of a wrapper an interpreter or one of ``also``."""
    if not words or words[0].startswith("-"):
        return None
    first = PurePath(words[0]).name
    if first in REMOTE_PROGRAMS:
        return None
    if first in _SORTS["elsewhere"] or (first not in WRAPPERS and first not in RUNNERS):
        return 0
    at = 2 if first in RUNNERS else len(words) - len(unwrap(words)[0])
    while at < len(words) and (_VALUE.fullmatch(words[at]) or (first in RUNNERS and _is_value(words, at))):
        at += 1
    is_known = at < len(words) and (is_interpreter(words[at]) or PurePath(words[at]).name in also)
    has_directory = any(word.partition("=")[0] in _DIRECTORY_OPTIONS for word in words[:at])
    return at if is_known and not has_directory else None


def _is_value(words: Sequence[str], at: int) -> bool:
    return words[at - 1].startswith("-") and "=" not in words[at - 1] and not is_interpreter(words[at])


def is_wrapper(word: str) -> bool:
    """Return whether a program starts another of the same line, here or elsewhere."""
    return PurePath(word).name in WRAPPERS.keys() | RUNNERS | REMOTE_PROGRAMS


# --- what an interpreter runs


class Entry(NamedTuple):
    """Code for an interpreter: ``kind`` is script, module, code or input. The arguments follow the word ``at``."""

    kind: str
    value: str
    at: int
    is_shell: bool = False


def is_interpreter(word: str) -> bool:
    """Return whether a program runs a script that is its argument: a shell, Python, a launcher of Python."""
    name = PurePath(word).name
    return name in SHELLS or name in PYTHON_LAUNCHERS or PYTHON.fullmatch(name) is not None


def find_entry(words: Sequence[str], main: int = 0) -> Entry | None:
    """Return what the interpreter ``words[main]`` runs; None for other programs, and where that is not certain."""
    name = PurePath(words[main]).name or words[main] if words[main:] else ""
    if name in ("source", "."):
        return Entry("script", words[main + 1], main + 1, True) if words[main + 1 :] else None
    if name in PYTHON_LAUNCHERS:
        return _find_launched(words, main)
    if name in SHELLS:
        entry = _read_options(words, main, {"c": "code", "s": "input"}, "oO", ("--rcfile", "--init-file"))
        return entry._replace(is_shell=True)
    if PYTHON.fullmatch(name):
        return _read_options(words, main, {"c": "code", "m": "module"}, "WX", ("--check-hash-based-pycs",))
    return None


def _find_launched(words: Sequence[str], main: int) -> Entry | None:
    script = next((i for i in range(main + 1, len(words)) if words[i].endswith(".py")), None)
    own = words[main:script]  # behind it they are the script's
    for at, word in enumerate(own[:-1] if script is None else own, main):
        if word in ("-m", "--module"):
            return Entry("module", words[at + 1], at + 1) if words[at + 1 :] else None
    if script is None or not {"--no_python", "--no-python"}.isdisjoint(own):
        return None
    return Entry("script", words[script], script)


def _read_options(
    words: Sequence[str], main: int, kinds: Mapping[str, str], with_value: str, with_values: Sequence[str]
) -> Entry:
    """Return what an interpreter runs: a script, unless an option with a letter of ``kinds`` says otherwise."""
    at = main + 1
    while at < len(words) and words[at][:1] in ("-", "+") and words[at] not in ("-", "--"):
        word, at = words[at], at + 1
        for position, letter in enumerate(word[1:], 1) if not word.startswith("--") else ():
            if letter in with_value:
                at += position == len(word) - 1
                break
            if letter in kinds:
                attached = word[position + 1 :] if "m" in kinds else ""  # of Python; a shell's text is the next word
                if attached or letter == "s":
                    return Entry(kinds[letter], attached, at - 1)
                return Entry(kinds[letter], words[at], at) if words[at:] else Entry("input", "", at - 1)
        at += word in with_values
    at += at < len(words) and words[at] == "--"
    if at >= len(words) or words[at] in ("-", "/dev/stdin"):
        return Entry("input", "", min(at, len(words) - 1))
    return Entry("script", words[at], at)
