"""The texts that a program runs as shell commands: ``bash -c``, ``eval``, ``trap``, ``find -exec``. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import PurePath

from mcp_server.command.programs import SHELLS, TEXT_PROGRAMS
from mcp_server.command.ssh_command import parse_ssh

_SCRIPTING = re.compile(r"perl|ruby|node|php|lua|[gm]?awk")
# A call that starts a program from another language: system("…"), execSync('…'), `…` is left to chance.
_STARTS_PROGRAM = re.compile(
    r"\b(?:system|exec|execSync|spawn|spawnSync|popen|shell_exec|passthru|os\.execute)\s*\(?\s*(?P<quote>[\"'])"
    r"(?P<text>.*?)(?P=quote)",
    re.DOTALL,
)
# kill 9, -1 of Perl and Ruby, and a kill of what `pgrep` finds.
_KILLS_ALL = re.compile(r"\bkill\b[\s('\":]*\w+['\"]?\s*,\s*-1\b|`\s*(?:pgrep|pidof)\b[^`]*`.*\bkill\b", re.DOTALL)
CONTAINERS = frozenset({"docker", "podman", "nerdctl"})
_OPENS_WINDOW = frozenset(
    """new new-session neww new-window splitw split-window respawnp respawn-pane respawnw respawn-window run
    run-shell send send-keys popup display-popup""".split()  # noqa: SIM905 - a list of words
)
_OF_WINDOW = frozenset({"-s", "-n", "-t", "-c", "-e", "-x", "-y", "-l", "-F", "-w", "-h"})
_OF_SCREEN = frozenset({"-S", "-t", "-c", "-e", "-s", "-h", "-p"})


def find_run_texts(name: str, words: Sequence[str], stdin: str | None) -> list[str]:
    """Return the texts that a program runs as commands. ``stdin``: the text that it reads, where that is known."""
    if name == "find":
        return list(_find_actions(words))
    if _SCRIPTING.fullmatch(name):
        texts = [match["text"] for word in words[1:] for match in _STARTS_PROGRAM.finditer(word)]
        return [*texts, *("kill -9 -1" for word in words[1:] if _KILLS_ALL.search(word))]
    if name in TEXT_PROGRAMS or (name in CONTAINERS and "--pid=host" not in words):
        return []  # a container has processes of its own
    texts = [words[at] for at in _find_shell_texts(words)]
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
    """Return whether a program runs what it reads as commands."""
    if name in ("at", "batch"):
        return True
    script = next((word for word in words[1:] if word == "-" or not word.startswith(("-", "+"))), "-")
    return name in SHELLS and (script in ("-", "/dev/stdin") or "-s" in words)


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


def _find_shell_texts(words: Sequence[str]) -> Iterator[int]:
    """Yield the indices of the texts that ``bash -c`` and its like run, wherever they are in ``words``."""
    for index, word in enumerate(words):
        if PurePath(word).name not in SHELLS:
            continue
        for at in range(index + 1, len(words) - 1):
            if not words[at].startswith(("-", "+")) and words[at - 1] not in ("-o", "+o", "-O"):
                break
            if re.fullmatch(r"-[A-Za-z]*c[A-Za-z]*", words[at]):
                yield at + 1
                return


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
