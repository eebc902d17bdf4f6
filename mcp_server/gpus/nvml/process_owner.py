"""Who a process on a GPU belongs to: its user, its program, and the run it is part of. Reads /proc only."""

from __future__ import annotations

import contextlib
import itertools
import pwd
import re
from dataclasses import dataclass
from pathlib import Path

from mcp_server.system import processes

_SUPERVISOR = "mcp_server/supervisor "  # of any installation
# Other users choose these words: they are shown to models.
_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,120}")
_UNPRINTABLE, _LONGEST_WORD = re.compile(r"[^\x21-\x7e]+"), 40


@dataclass(frozen=True)
class Owner:
    """What can be seen of a process; ``user`` None: the process is not visible here, as of another container."""

    user: str | None = None
    command: str | None = None
    run_id: str | None = None


def owner(pid: int, *, by_number: bool = False) -> Owner:
    """Return whose process ``pid`` is.

    Asks the directory of users, which may be far away and hang; not so ``by_number``.
    """
    try:
        uid = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return Owner()
    user = str(uid)
    if not by_number:
        with contextlib.suppress(KeyError, OSError):
            user = pwd.getpwuid(uid).pw_name
    return Owner(user, _program(pid), _run_id(pid))


def _program(pid: int) -> str | None:
    """Return the program and its script or module; further arguments may hold secrets."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    shown = [Path(words[0]).name]
    for before, word in itertools.pairwise(words[:4]):
        if before == "-m":
            shown += ["-m", word]
            break
        if word.endswith((".py", ".sh")):
            shown.append(Path(word).name)
            break
    return " ".join(_UNPRINTABLE.sub("_", word)[:_LONGEST_WORD] for word in shown if word) or None


def _run_id(pid: int) -> str | None:
    """Return the run that a process is part of: by its environment, else by a supervisor above it."""
    with contextlib.suppress(OSError):  # another user's
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if entry.startswith(b"RUNWARD_RUN_ID="):
                return _checked(entry.partition(b"=")[2].decode(errors="replace"))
    for above in processes.ancestors(pid):
        found = processes.find_process(above)
        if found is not None and _SUPERVISOR in (command := found.command):
            return _checked(Path(command.partition(_SUPERVISOR)[2]).name)
    return None


def _checked(run_id: str) -> str | None:
    return run_id if _RUN_ID.fullmatch(run_id) else None
