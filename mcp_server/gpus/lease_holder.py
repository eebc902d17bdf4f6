"""Who holds a lease or waits for one: as the holder wrote it, or as far as the kernel tells of a process."""

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
from mcp_server.system import lock_files

# Names of leases and runs; they come from outside.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LONGEST_WORD = 100


@dataclass(frozen=True)
class Holder:
    """Who holds a lease, or waits for one; ``since`` as ISO 8601 UTC. Empty where it is not known."""

    run_id: str = ""
    owner: str = ""
    user: str = ""
    pid: int | None = None
    since: str = ""

    @property
    def text(self) -> str:
        """Who it is, for people: ``cfm-7kqz (mz) since 14:02 UTC``, with the date unless it is today's."""
        process = "somebody not visible here" if self.pid is None else f"process {self.pid}"
        who = self.run_id or process
        owner = self.owner or self.user
        date, _, time = self.since[:16].partition("T")
        since = f" since {time if now().startswith(date) else f'{date} {time}'} UTC" if time else ""
        return f"{who} ({owner}){since}" if owner else f"{who}{since}"

    def written(self, **more: object) -> str:
        """Return what the holder writes into its file."""
        facts = {**asdict(self), "since": self.since or now(), "host": os.uname().nodename, **more}
        return json.dumps(facts, ensure_ascii=False)

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Holder:
        """Return what a file says, which any user may have written: short words that can be printed."""
        words = {name: facts.get(name) for name in ("run_id", "owner", "user", "since")}
        clean = {n: w[:_LONGEST_WORD] for n, w in words.items() if isinstance(w, str) and w.isprintable()}
        pid = facts.get("pid")
        return cls(**clean, pid=pid if isinstance(pid, int) else None)

    @classmethod
    def process(cls, pid: int | None) -> Holder:
        """Return what can be seen of a process: a supervisor's arguments tell its run."""
        if pid is None:
            return cls()
        run_id = user = ""
        with contextlib.suppress(OSError):
            user = lock_files.user_name(Path(f"/proc/{pid}").stat().st_uid)
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            names = [Path(word).name for word in words]
            if "supervisor" in names[:-1]:
                run_id = names[names.index("supervisor") + 1]
        return cls(run_id if NAME.fullmatch(run_id) else "", user=user, pid=pid)

    @classmethod
    def locking(cls, fd: int, pids: Mapping[lock_files.LockKey, int]) -> Holder:
        """Return who holds an open lock file, which is in ``pids`` if the kernel tells of it.

        The file's text is its last writer's, who may be dead: the kernel knows better.
        """
        pid = pids.get(lock_files.lock_key(fd))
        told = cls.of(lock_files.read_facts(fd))
        return told if pid in (None, told.pid) else cls.process(pid)
