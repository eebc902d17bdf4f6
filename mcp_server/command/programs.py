"""The program that a command starts behind shell words, assignments and wrappers such as ``sudo``. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh", "fish"})
# Their arguments are text, whatever they say.
TEXT_PROGRAMS = frozenset(
    """echo printf grep egrep fgrep rg ag sed awk gawk man which type whereis help cat less head tail tee logger wall
    notify-send git cowsay read test [ [[ export declare local alias unset pip conda apt apt-get yum dnf brew wandb
    ls find cp mv touch mkdir rm chmod vim nano diff wc sort uniq tr cut""".split()  # noqa: SIM905 - a list of words
)
_KEYWORDS = frozenset({"if", "then", "elif", "else", "do", "while", "until", "!", "{", "}", "time", "coproc", "&&"})
_NO_PROGRAM = frozenset({"for", "select", "case", "in", "esac", "done", "fi"})
# By wrapper: its options that take a value, and how many words of its own follow them.
_WRAPPERS: dict[str, tuple[tuple[str, ...], int]] = {
    "nohup": ((), 0),
    "exec": (("-a",), 0),
    "command": ((), 0),
    "builtin": ((), 0),
    "busybox": ((), 0),
    "env": (("-u", "-C", "--unset", "--chdir"), 0),
    "sudo": (("-u", "-g", "-h", "-p", "-C", "-D", "-r", "-t", "-U", "--user", "--group"), 0),
    "doas": (("-u", "-C"), 0),
    "setsid": ((), 0),
    "timeout": (("-s", "-k", "--signal", "--kill-after"), 1),
    "gtimeout": (("-s", "-k", "--signal", "--kill-after"), 1),
    "nice": (("-n", "--adjustment"), 0),
    "ionice": (("-c", "-n", "-p"), 0),
    "stdbuf": (("-i", "-o", "-e"), 0),
    "taskset": ((), 1),
    "numactl": (("-m", "-N", "-C", "-i", "-p"), 0),
    "chrt": ((), 1),
    "time": (("-f", "-o"), 0),
    "unbuffer": ((), 0),
    "xvfb-run": (("-n", "-s", "-e"), 0),
    "catchsegv": ((), 0),
    "xargs": (("-n", "-I", "-P", "-L", "-d", "-a", "-s", "-E"), 0),
    "watch": (("-n", "--interval"), 0),
    "strace": (("-o", "-e", "-s", "-p", "-u", "-E"), 0),
    "ltrace": (("-o", "-e", "-s", "-p", "-u", "-n"), 0),
    "flock": (("-w", "--timeout", "-E", "--conflict-exit-code"), 1),
    "systemd-run": (("-u", "--unit", "-p", "--property", "-E", "--setenv", "--slice", "--description", "--uid"), 0),
    "unshare": ((), 0),
    "runuser": (("-u", "--user", "-g", "--group", "-G"), 0),
    "parallel": (("-j", "--jobs", "-a", "--arg-file", "-N", "--delay", "--joblog", "-S", "--sshlogin"), 0),
}
# These start another program of the same line, after options of their own that are too many to list.
_LAUNCHERS = frozenset({"mpirun", "mpiexec", "srun", "pdsh", "clush", "parallel-ssh", "pssh"})
_RUNNERS = frozenset({"conda", "mamba", "micromamba", "uv", "poetry", "pipenv", "pixi", "hatch", "rye", "pdm"})  # `run`
_STARTED = TEXT_PROGRAMS | SHELLS | frozenset({"python", "python3", "ray", "env", "pkill", "killall", "kill", "fuser"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=")


def unwrap(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Return the program's own words, the assignments in front of it, and whether ``xargs`` appends arguments."""
    rest, variables, by_xargs = list(words), [], False
    while rest:
        word = rest[0]
        name = PurePath(word).name
        if _ASSIGNMENT.match(word):
            variables.append(rest.pop(0))
        elif word in _KEYWORDS and word != "time":
            rest.pop(0)
        elif word == "function":
            rest = rest[2:]
        elif word in _NO_PROGRAM:
            return (), tuple(variables), False
        elif name in _WRAPPERS:
            if name == "command" and rest[1:2] and rest[1] in ("-v", "-V"):
                return ("type", *rest[2:]), tuple(variables), False
            by_xargs = by_xargs or name in ("xargs", "parallel")
            rest = _skip_wrapper(rest, *_WRAPPERS[name])
        elif (name in _LAUNCHERS or (name in _RUNNERS and rest[1:2] == ["run"])) and (at := _find_started(rest)):
            rest = rest[at:]
        else:
            break
    return tuple(rest), tuple(variables), by_xargs


def _find_started(words: Sequence[str]) -> int:
    """Return the index of the program that a launcher starts; 0 where that is not certain."""
    after_option = False
    for at in range(2 if PurePath(words[0]).name in _RUNNERS else 1, len(words)):
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
