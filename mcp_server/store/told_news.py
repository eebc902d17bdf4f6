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
from mcp_server.system.lock_files import hold_lock, may_be_locked, take_lock

WAKES = "RUNWARD_WAKES"
"""A variable of servers and monitors whose client runs `runward monitor`: each line of it starts a turn.

Its value is the name of a window of that client, or 1.
"""
_CLAUDE_SESSION = "CLAUDE_CODE_SESSION_ID"
_MOST_RUNS = 300


def name_session(environ: Mapping[str, str]) -> str:
    """Return the name of the client's session that a server or monitor belongs to, empty where it is unknown."""
    window = environ.get(WAKES, "")
    return environ.get(_CLAUDE_SESSION, "") if window in ("", "1") else window


class ToldNews:
    """By run or sweep id the number of the last event and the state that the agents of ``project`` know.

    ``project``: its directory, or the name of one conversation. ``session``: that of the agents who note something, and
    of the monitor that tells it. ``monitor_lock``: of the process that wakes a conversation.
    """

    def __init__(self, home: StateHome, project: Path | str, session: str = "") -> None:
        name = str(project.resolve()) if isinstance(project, Path) else f"conversation {project}"
        self.directory = home.path / "wakes"
        self._file = self.directory / f"{_digest(name)}.json"
        self._session = _digest(session) if session else ""
        self._heir: int | None = None
        self.monitor_lock = self._file.with_suffix(".monitor")

    def read_own(self) -> dict[str, tuple[int, str]]:
        """Return what is known of the runs whose news this session's monitor tells; all where the session is unknown.

        They are those that its agents have launched or asked about last. One monitor also tells those of sessions whose
        monitor has gone. Nothing where the file is missing or damaged. OSError: it cannot be read now.
        """
        return {
            run_id: (seq, state)
            for run_id, (seq, state, session) in self._read().items()
            if not self._session or session in ("", self._session) or self._inherits(session)
        }

    def tell_own(self) -> None:
        """Be the monitor of this session until the process ends. OSError: there are no locks."""
        self.note({})  # makes the directory
        if self._session:
            take_lock(self._session_lock(self._session))

    def _inherits(self, session: str) -> bool:
        if may_be_locked(self._session_lock(session)):
            return False
        if self._heir is None:
            self._heir = take_lock(self._file.with_suffix(".heir"))
        return self._heir is not None

    def _session_lock(self, session: str) -> Path:
        return self.directory / f"{session}.session"

    def _read(self) -> dict[str, tuple[int, str, str]]:
        with contextlib.suppress(FileNotFoundError, ValueError, TypeError, AttributeError, RecursionError):
            facts = json.loads(read_regular_file(self._file, follow_links=False))
            return {
                str(run_id): (int(seq), str(state), str(session[0] if session else ""))
                for run_id, (seq, state, *session) in facts.items()
            }
        return {}

    def note(self, seen: Mapping[str, tuple[int, str]]) -> None:
        """Add what the agents know now. It never takes anything back. OSError: it cannot be kept."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with hold_lock(self._file.with_suffix(".lock")):
            known = self._read()
            newer = {
                run_id: (*at, self._session or session)
                for run_id, at in seen.items()
                for seq, _, session in [known.get(run_id, (0, "", ""))]
                if at[0] >= seq
            }
            if all(known.get(run_id) == at for run_id, at in newer.items()):
                return
            for run_id, at in newer.items():
                known.pop(run_id, None)
                known[run_id] = at  # the newest are the last
            kept = dict(list(known.items())[-_MOST_RUNS:])
            write_atomic(self._file, json.dumps(kept).encode())


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:32]
