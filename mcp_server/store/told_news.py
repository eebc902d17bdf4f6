"""The news that callers know: cursors over many runs, and files of a project or conversation. Nobody hears it twice."""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mcp_server.errors import BadArgument
from mcp_server.store.state_home import StateHome
from mcp_server.system.files import read_regular_file, write_atomic
from mcp_server.system.lock_files import hold_lock, may_be_locked, take_lock

MOST_FILES, _REMOVED_AT_ONCE = 1000, 100
_LETTERS = "abcdefghjkmnpqrstvwxyz23456789"  # none that a reader confuses
_WORD = re.compile(rf"c[{_LETTERS}]{{10}}")
_FILE = re.compile(rf"{_WORD.pattern}\.json")


@dataclass(frozen=True)
class SeenRuns:
    """A caller's cursor: by run id the number of the last event and the state.

    ``left_out``: the ended runs that were of no interest when the cursor was begun as one over all live runs; None
    for other cursors.
    """

    runs: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    left_out: frozenset[str] | None = None


class CursorFiles:
    """Cursors over many runs, each as one word: a file that any server can read. Any number may use it at once.

    A word is a digest of what it stands for, so an equal cursor has an equal word, and an old word stands for the same
    news as before: whoever lost an answer asks again with the word that he has. A file's time of change is when the
    word was last given or used.
    """

    def __init__(self, home: StateHome) -> None:
        self._directory = home.path / "cursors"

    def keep(self, seen: SeenRuns) -> str:
        """Return the word for what was seen."""
        facts = {
            "runs": {run_id: list(position) for run_id, position in sorted(seen.runs.items())},
            "left_out": None if seen.left_out is None else sorted(seen.left_out),
        }
        data = json.dumps(facts, separators=(",", ":")).encode()
        number = int.from_bytes(hashlib.sha256(data).digest(), "big")
        letters = []
        for _ in range(10):
            number, letter = divmod(number, len(_LETTERS))
            letters.append(_LETTERS[letter])
        word = f"c{''.join(letters)}"
        if not self._touch(self._path(word)):
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._make_room()
            write_atomic(self._path(word), data)
        return word

    def read(self, word: str) -> SeenRuns:
        """Return the cursors of ``word``; one that is too old, or not of this state directory, is a BadArgument."""
        try:
            key = word if _WORD.fullmatch(word) else ""
            facts = json.loads(read_regular_file(self._path(key), follow_links=False))
            left_out = facts["left_out"]
            seen = SeenRuns(
                {str(run_id): (int(seq), str(state)) for run_id, (seq, state) in facts["runs"].items()},
                None if left_out is None else frozenset(map(str, left_out)),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise BadArgument(
                "since",
                f"{word[:40]!r} is not a cursor of this machine, or too old.",
                "Leave since out: every end that you may not have seen is answered again.",
            ) from error
        self._touch(self._path(word))
        return seen

    def _path(self, word: str) -> Path:
        return self._directory / f"{word}.json"

    def _touch(self, path: Path) -> bool:
        """Note that a cursor is in use; return whether it is there."""
        try:
            os.utime(path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError:  # a file system that is full or read-only
            return path.exists()
        return True

    def _make_room(self) -> None:
        """Remove the cursors that were not used for longest, where there are too many."""
        paths = [path for path in self._directory.iterdir() if _FILE.fullmatch(path.name)]
        if len(paths) < MOST_FILES:
            return
        used_at_s: dict[Path, float] = {}
        for path in paths:
            with contextlib.suppress(OSError):  # removed meanwhile
                used_at_s[path] = path.lstat().st_mtime
        for path in sorted(used_at_s, key=lambda path: used_at_s[path])[:_REMOVED_AT_ONCE]:
            with contextlib.suppress(OSError):
                path.unlink()


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

    A server notes what it has answered, and whoever wakes an agent notes it too. Only runs that the file names are of
    the project: those that its agents have launched or asked about. A new session goes on with the same file.

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
