"""The user, the program and the run of a process that uses a GPU. Reads /proc only."""

from __future__ import annotations

import contextlib
import pwd
from dataclasses import dataclass
from pathlib import Path

from mcp_server.system import processes
from mcp_server.system.process_title import supervised_run
from mcp_server.text.regex import compile_lazily

# Other users choose these words, and models read them.
_RUN_ID = compile_lazily(r"[A-Za-z0-9_-]{1,120}")
_UNPRINTABLE, _LONGEST_WORD = compile_lazily(r"[^\x21-\x7e]+"), 40


@dataclass(frozen=True)
class ProcessOwner:
    """The visible facts of a process. ``user`` None: the process is not visible, e.g. in another container."""

    user: str | None = None
    command: str | None = None
    run_id: str | None = None


def find_owner(pid: int, *, by_number: bool = False) -> ProcessOwner:
    """Return the owner of process ``pid``.

    Looks up the user's name, which may query a remote user directory that hangs; ``by_number`` avoids that.
    """
    try:
        uid = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return ProcessOwner()
    user = str(uid)
    if not by_number:
        with contextlib.suppress(KeyError, OSError):
            user = pwd.getpwuid(uid).pw_name
    return ProcessOwner(user, _describe_program(pid), _find_run_id(pid))


def _describe_program(pid: int) -> str | None:
    """Return the program and its script or module; further arguments may hold secrets."""
    words = processes.command_words(pid)
    if not words:
        return None
    names = [Path(words[0]).name]
    for before, word in zip(words[:3], words[1:4]):
        if before == "-m":
            names += ["-m", word]
            break
        if word.endswith((".py", ".sh")):
            names.append(Path(word).name)
            break
    return " ".join(_UNPRINTABLE.sub("_", name)[:_LONGEST_WORD] for name in names if name) or None


def _find_run_id(pid: int) -> str | None:
    """Return the run of a process: from its environment, else from the supervisor among its ancestors."""
    with contextlib.suppress(OSError):  # a process of another user
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if entry.startswith(b"RUNWARD_RUN_ID="):
                return _check_run_id(entry.partition(b"=")[2].decode(errors="replace"))
    for ancestor in processes.ancestors(pid):
        if (run_id := supervised_run(processes.command_words(ancestor))) is not None:
            return _check_run_id(run_id)
    return None


def _check_run_id(run_id: str) -> str | None:
    return run_id if _RUN_ID.fullmatch(run_id) else None
