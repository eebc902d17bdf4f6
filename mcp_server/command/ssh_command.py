"""The command that ``ssh`` runs, its host, and whether it runs on a terminal there. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import NamedTuple

_WITH_VALUE = "bBcDEeFIiJLlmOopPQRSWw"
_NOT_A_COMMAND = frozenset("NGVOWQsf")  # tunnels, queries, and what the local end does not wait for
# The programs that copy files start these on the far side.
_TRANSFERS = frozenset({"rsync", "scp", "sftp-server", "git-upload-pack", "git-receive-pack", "borg", "rclone"})


@dataclass(frozen=True)
class SshCommand:
    """A command on another host. ``has_terminal``: the far side has a terminal, whose end hangs up on the command.

    ``login``: what a person types to look at that host: the same ssh with its options, without the command.
    """

    host: str
    words: tuple[str, ...]
    has_terminal: bool
    login: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The command as the far side's shell reads it."""
        return " ".join(self.words)


def parse_ssh(words: Sequence[str]) -> SshCommand | None:
    """Return the command that ``words`` run over ssh, or None. ``-t`` alone gives no terminal: it needs one here."""
    if not words or PurePath(words[0]).name != "ssh":
        return None
    terminals, host, index = 0, "", 1
    while index < len(words):
        word = words[index]
        if word.startswith("-") and word not in ("-", "--"):
            option = _read_option(word, words[index + 1 : index + 2])
            if option is None:
                return None
            terminals += option.terminals
            index += option.words
        elif word == "--" or not host:
            host = host or ("" if word == "--" else word)
            index += 1
        else:
            break
    remote = tuple(words[index:])
    program = " ".join(remote).split()[:1]
    if not host or not program or PurePath(program[0]).name in _TRANSFERS:
        return None
    login = [word for word in words[:index] if not re.fullmatch(r"-t+|--", word)]
    return SshCommand(host, remote, terminals > 1, tuple(login))


class _Option(NamedTuple):
    words: int
    terminals: int = 0


def _read_option(word: str, following: Sequence[str]) -> _Option | None:
    """Read a group of options such as ``-ttp``; None where ssh then runs no command that it waits for."""
    terminals = 0
    for at, letter in enumerate(word[1:], 1):
        if letter in _NOT_A_COMMAND:
            return None
        terminals += letter == "t"
        if letter in _WITH_VALUE:
            value = word[at + 1 :] or "".join(following)
            if letter == "o" and value.replace(" ", "=").lower() == "requesttty=force":
                terminals += 2
            return _Option(1 if word[at + 1 :] else 2, terminals)
    return _Option(1, terminals)
