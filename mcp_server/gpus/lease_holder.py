"""The holder of a lease or a queue ticket: as written in its file, or as far as the kernel reports the process."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mcp_server.record.run_directory import now
from mcp_server.system import lock_files, processes
from mcp_server.system.process_title import supervised_run
from mcp_server.text.regex import compile_lazily

# Names of leases and runs. Any user may have written them.
NAME = compile_lazily(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# The words that a file is quoted for to agents of other users: one word each, which cannot say much.
_WORDS = {
    "run_id": NAME,
    "owner": compile_lazily(r"[\w][\w.@+-]{0,63}"),
    "user": compile_lazily(r"[\w][\w.@+-]{0,63}"),
    "since": compile_lazily(r"\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?Z"),
}
_LARGEST_PID, _MOST_GPUS = 2**22, 1024


@dataclass(frozen=True)
class LeaseHolder:
    """A process that holds a lease or waits for one. ``since`` in ISO 8601 UTC. Unknown values are empty.

    ``index``: of the leased GPU, as the driver numbered it when the lease was taken.
    """

    run_id: str = ""
    owner: str = ""
    user: str = ""
    pid: int | None = None
    since: str = ""
    index: int | None = field(default=None, compare=False)

    @property
    def text(self) -> str:
        """The holder for people: ``cfm-7kqz (mz) since 14:02 UTC``, with the date unless it is today's."""
        name = self.run_id or ("a process not visible here" if self.pid is None else f"process {self.pid}")
        owner = self.owner or self.user
        date, _, time = self.since[:16].partition("T")
        since = f" since {time if now().startswith(date) else f'{date} {time}'} UTC" if time else ""
        return f"{name} ({owner}){since}" if owner else f"{name}{since}"

    def to_json(self, **more: object) -> str:
        """Return the JSON text of a lease's or a ticket's file, with ``more`` facts."""
        facts = {**asdict(self), "since": self.since or now(), "host": os.uname().nodename, **more}
        return json.dumps(facts, ensure_ascii=False)

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> LeaseHolder:
        """Return the holder that a file names. Any user may have written it: only words of the right shape count."""
        words = {name: facts.get(name) for name in _WORDS}
        clean = {name: w for name, w in words.items() if isinstance(w, str) and _WORDS[name].fullmatch(w)}
        pid, index = facts.get("pid"), facts.get("index")
        return cls(
            **clean,
            pid=pid if isinstance(pid, int) and 0 < pid <= _LARGEST_PID else None,
            index=index if type(index) is int and 0 <= index < _MOST_GPUS else None,
        )

    @classmethod
    def of_process(cls, pid: int | None) -> LeaseHolder:
        """Return what is visible of a process: its user, and of a supervisor also the run, which its arguments name."""
        if pid is None:
            return cls()
        run_id = user = ""
        if (uid := _user_of(pid)) is not None:
            user = lock_files.user_name(uid)
        words = processes.command_words(pid)
        run_id = supervised_run(words) or ""
        for program, run_dir in zip(words, words[1:]):
            if Path(program).name == "supervisor" or program.endswith(".pyz"):
                run_id = Path(run_dir).name
        return cls(run_id if NAME.fullmatch(run_id) else "", user=user, pid=pid)

    @classmethod
    def of_lock(cls, fd: int, pids: Mapping[lock_files.LockKey, int]) -> LeaseHolder:
        """Return the holder of an open lock file. ``pids``: the process that holds a lock, as the kernel lists them.

        The text of the file is its last writer's, who may be dead or hostile, so the kernel's list counts first: the
        text is believed where the holder's user alone can have written it. The list still names a process that has
        ended, where a child has inherited the lock.
        """
        pid, writer = pids.get(lock_files.lock_key(fd)), lock_files.writer_of(fd)
        if writer is None:
            return cls.of_process(pid)
        holder = cls.from_json(lock_files.read_facts(fd))
        # Of another process namespace, or of one that has ended: what the owner of the file says.
        if pid is None or (pid == holder.pid and _has_ended(pid)):
            return holder
        return holder if pid == holder.pid and _user_of(pid) == writer else cls.of_process(pid)


def _has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


def _user_of(pid: int) -> int | None:
    """Return the user of a process. The owner of its directory is root where its memory is closed to the user."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{pid}/status").read_text(errors="replace").partition("\nUid:")[2]
        return int(status.split()[1])
    return None
