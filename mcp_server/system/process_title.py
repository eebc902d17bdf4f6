"""What `ps` shows of runward's own processes.

Trainers and their scripts clean a machine up with `pkill -f python`, `pkill -f train` or `killall python`. A supervisor
that such a pattern matches dies with its run, or with the runs of others. So the command line and the short name hold
neither an interpreter, nor a path, nor the name of a run.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

SUPERVISOR = "runward-supervisor"
GPU_SAMPLER = "runward-gpu"
RELAY = "runward-relay"
_NOTIFIER = "runward-notifier"
_CONDUCTOR = "runward-conductor"
_LEASE_KEEPER = "runward-lease"
_NAME = "runward"  # at most 15 bytes
# The command line of a supervisor that could not change it, and of former versions: this, and then the directory.
_FORMER_SUPERVISOR = "mcp_server/supervisor "
_ARG_START = 45  # fields 48 and 49 of /proc/PID/stat, counted from the state


def supervisor_title(run_id: str) -> list[str]:
    """Return the words that a supervisor shows: its name, and the run id with a dot between any two characters.

    A person can read the id, and no pattern matches a word in it: a run is mostly named after its script.
    """
    return [SUPERVISOR, ".".join(run_id)]


def conductor_title(sweep_id: str) -> list[str]:
    """Return the words that the process shows which advances a sweep."""
    return [_CONDUCTOR, ".".join(sweep_id)]


def notifier_title(run_id: str) -> list[str]:
    """Return the words that the process shows which sends the notices of a run."""
    return [_NOTIFIER, ".".join(run_id)]


def lease_keeper_title(run_id: str) -> list[str]:
    """Return the words that the process shows which keeps the leases of a run's unkillable processes."""
    return [_LEASE_KEEPER, ".".join(run_id)]


def supervised_run(words: Sequence[str]) -> str | None:
    """Return the id of the run that a process with this command line supervises, or empty where it shows none.

    None: it is not a supervisor. Any user can choose such words.
    """
    if words[:1] == [SUPERVISOR]:
        return words[1][::2] if len(words) > 1 else ""
    _, former, directory = " ".join(words).partition(_FORMER_SUPERVISOR)
    return Path(directory).name if former else None


def set_title(words: Sequence[str]) -> None:
    """Show ``words`` as the command line of this process, as far as they fit in the memory of the former one.

    Words that do not fit are left out. Its environment and ``sys.argv`` remain. Where the kernel does not allow it,
    nothing changes.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(_NAME)
    # The memory that the kernel shows is this process's own. Moving it (PR_SET_MM) would need a privilege, writing
    # into it needs none.
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_bytes().rpartition(b") ")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_START + 1])
        title = b""
        for word in words:
            following = title + os.fsencode(word) + b"\0"
            if len(following) > end - start:
                break
            title = following
        if start and title:
            memory = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
            try:
                os.pwrite(memory, title.ljust(end - start, b"\0"), start)
            finally:
                os.close(memory)
