"""The holder of a lease or a queue ticket: as written in its file, or as far as the kernel reports the process."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mcp_server.record.run_directory import now
from mcp_server.system import lock_files, processes

# Names of leases and runs. Any user may have written them.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LONGEST_WORD = 100


@dataclass(frozen=True)
class LeaseHolder:
    """A process that holds a lease or waits for one; ``since`` in ISO 8601 UTC. Unknown values are empty."""

    run_id: str = ""
    owner: str = ""
    user: str = ""
    pid: int | None = None
    since: str = ""

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
        """Return the holder that a file names. Any user may have written it: only short, printable words count."""
        words = {name: facts.get(name) for name in ("run_id", "owner", "user", "since")}
        clean = {n: w[:_LONGEST_WORD] for n, w in words.items() if isinstance(w, str) and w.isprintable()}
        pid = facts.get("pid")
        return cls(**clean, pid=pid if isinstance(pid, int) else None)

    @classmethod
    def of_process(cls, pid: int | None) -> LeaseHolder:
        """Return what is visible of a process: its user, and of a supervisor also the run, which its arguments name."""
        if pid is None:
            return cls()
        run_id = user = ""
        with contextlib.suppress(OSError):
            user = lock_files.user_name(Path(f"/proc/{pid}").stat().st_uid)
        words = processes.command_words(pid)
        for program, run_dir in zip(words, words[1:]):
            if Path(program).name == "supervisor" or program.endswith(".pyz"):
                run_id = Path(run_dir).name
        return cls(run_id if NAME.fullmatch(run_id) else "", user=user, pid=pid)

    @classmethod
    def of_lock(cls, fd: int, pids: Mapping[lock_files.LockKey, int]) -> LeaseHolder:
        """Return the holder of an open lock file; ``pids``: the process that holds a lock, as the kernel lists them.

        The text of the file is its last writer's, who may be dead, so the kernel's list counts first.
        """
        pid = pids.get(lock_files.lock_key(fd))
        holder = cls.from_json(lock_files.read_facts(fd))
        return holder if pid in (None, holder.pid) else cls.of_process(pid)
