"""The news of its runs that the agents of one project, or one conversation, know: a file, so nobody wakes them twice.

A server notes what it has answered, and whoever wakes an agent notes it too. Only runs that the file names are of the
project: those that its agents have launched or asked about. A new session goes on with the same file.
"""

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from mcp_server.store.state_home import StateHome
from mcp_server.system.files import read_regular_file, write_atomic
from mcp_server.system.lock_files import hold_lock

WAKES = "RUNWARD_WAKES"
"""A variable of servers and monitors whose client runs `runward monitor`: each line of it starts a turn."""
_MOST_RUNS = 300


class ToldNews:
    """By run or sweep id the number of the last event and the state that the agents of ``project`` know.

    ``project``: its directory, or the name of one conversation. ``monitor_lock``: of the process that wakes it.
    """

    def __init__(self, home: StateHome, project: Path | str) -> None:
        name = str(project.resolve()) if isinstance(project, Path) else f"conversation {project}"
        key = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:32]
        self.directory = home.path / "wakes"
        self._file = self.directory / f"{key}.json"
        self.monitor_lock = self._file.with_suffix(".monitor")

    def read(self) -> dict[str, tuple[int, str]]:
        """Return what is known; nothing where the file is missing or damaged. OSError: it cannot be read now."""
        with contextlib.suppress(FileNotFoundError, ValueError, TypeError, AttributeError, RecursionError):
            facts = json.loads(read_regular_file(self._file, follow_links=False))
            return {str(run_id): (int(seq), str(state)) for run_id, (seq, state) in facts.items()}
        return {}

    def note(self, seen: Mapping[str, tuple[int, str]]) -> None:
        """Add what the agents know now. It never takes anything back. OSError: it cannot be kept."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with hold_lock(self._file.with_suffix(".lock")):
            known = self.read()
            newer = {run_id: at for run_id, at in seen.items() if at[0] >= known.get(run_id, (0, ""))[0]}
            if all(known.get(run_id) == at for run_id, at in newer.items()):
                return
            for run_id, at in newer.items():
                known.pop(run_id, None)
                known[run_id] = at  # the newest are the last
            kept = dict(list(known.items())[-_MOST_RUNS:])
            write_atomic(self._file, json.dumps(kept).encode())
