"""An index of all runs in SQLite, for questions about many of them: made from the records, never a second truth.

Its file holds those runs whose record does not change any more, each with the number of its directory's inode: whoever
finds a directory without a row, a row without its directory, or another directory of that name, mends it. The runs that
may change are looked at for each question and lie in a table of this process alone. So the file may be removed, cut off
or left behind by a SIGKILL at any time, and several servers write it at once. Without a file, the index is in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mcp_server import __version__
from mcp_server.record.claims import SLACK_S
from mcp_server.record.state import IMPORTED, Run, posix
from mcp_server.system.files import is_shared_filesystem

_SCHEMA = 3  # raise it with any table of the file, with what a record means, or with what is remembered of one
_BUSY_S = 1.0
_UNUSED_AFTER_S = 30 * 86_400.0  # of another version


class Row(NamedTuple):
    """The index's entry for a run. ``mark``: what its record must still look like; empty where it cannot change."""

    inode: int
    has_started: bool
    begun_s: float | None
    ended_s: float | None
    is_cut_off: bool
    mark: str
    run_id: str
    created_at: str
    name: str
    state: str
    owner: str
    tags: str  # one JSON string a line, with a line feed before and after each
    sweep: str
    mirror: str
    session: str
    cwd: str
    result_dir: str
    tensorboard: str
    blueprint: str
    stopped_by: str

    @classmethod
    def of(cls, run: Run, inode: int, *, mark: str = "", is_cut_off: bool = False) -> Row:
        """Return the row of a run whose directory has this inode."""
        spec, begun = run.spec, run.started_at or run.spec.created_at
        texts = [run.run_id, spec.created_at, spec.name, run.state, spec.owner, _join_tags(spec.tags), spec.sweep]
        texts += [spec.mirror, spec.session, spec.cwd, spec.result_dir, spec.tensorboard, spec.blueprint]
        return cls(
            inode,
            run.started_at is not None and run.state != IMPORTED,  # which claims no files of others
            posix(begun) if begun else None,
            posix(run.ended_at) if run.ended_at else None,
            is_cut_off,
            mark,
            *(sqlite_text(text or "") for text in (*texts, run.stopped_by)),
        )


@dataclass(frozen=True)
class RunQuery:
    """Which runs are asked for: those for which all holds that is set."""

    state: str | None = None  # a state, ``live`` or ``ended``
    owner: str | None = None
    tags: Sequence[str] | None = None  # all of them
    any_tag: Sequence[str] | None = None
    name: str | None = None
    name_part: str | None = None  # of the name or the id, in any case
    sweep: str | None = None
    mirror: str | None = None  # empty: of this host
    sessions: Sequence[str] | None = None  # one of them
    blueprint: str | None = None  # its path, or the end of it
    cut_off: bool | None = False  # whether its launch was cut off before anything ran, which is no run; None: all
    before: Run | None = None  # launched before it
    after: Run | None = None
    beside: Run | None = None  # others that may have run at its time, and those that share a directory with it

    def conditions(self) -> tuple[str, dict[str, Any]]:
        """Return it as the condition of a SELECT, and the values that it names."""
        asked = {name: value for name in _CONDITIONS if (value := getattr(self, name)) is not None}
        parts = [_CONDITIONS[name] for name in asked]
        if self.state is not None:
            parts.append(_STATES.get(self.state, _STATE))
        for name, tags, join, of_none in (("all", self.tags, " AND ", "1"), ("any", self.any_tag, " OR ", "0")):
            if tags is not None:
                asked |= {f"{name}{number}": _join_tags([tag]) for number, tag in enumerate(tags)}
                parts.append(join.join(f"instr(tags, :{name}{number})" for number in range(len(tags))) or of_none)
        if self.sessions is not None:
            asked["sessions"] = json.dumps(list(self.sessions))
        for side in ("before", "after", "beside"):
            if (run := asked.pop(side, None)) is not None:
                asked |= {f"{side}_{name}": value for name, value in Row.of(run, 0)._asdict().items()}
        return " AND ".join(f"({part})" for part in parts) or "1", asked


_LIVE = "state IN ('queued', 'starting', 'running', 'stalled', 'retrying')"
_STATES = {"live": _LIVE, "ended": f"NOT {_LIVE}"}
_STATE = "state = :state OR (:state = 'failed' AND sweep != '' AND stopped_by = 'policy')"  # as such a cell is called
_CONDITIONS = {
    "state": "1",
    "owner": "owner = :owner",
    "name": "name = :name",
    "name_part": "instr(lower(name), lower(:name_part)) OR instr(lower(run_id), lower(:name_part))",
    "sweep": "sweep = :sweep",
    "mirror": "mirror = :mirror",
    "sessions": "session IN (SELECT value FROM json_each(:sessions))",
    "blueprint": "substr('/' || blueprint, -1 - length(:blueprint)) = '/' || :blueprint",
    "cut_off": "is_cut_off = :cut_off",
    "before": "(created_at, run_id) < (:before_created_at, :before_run_id)",
    "after": "(created_at, run_id) > (:after_created_at, :after_run_id)",
    "beside": "has_started AND run_id != :beside_run_id AND (begun_s IS NULL OR :beside_begun_s IS NULL"
    f" OR (begun_s <= coalesce(:beside_ended_s, 9e99) + {SLACK_S}"
    f" AND coalesce(ended_s, 9e99) + {SLACK_S} >= :beside_begun_s)"
    " OR (cwd != '' AND cwd = :beside_cwd) OR (result_dir != '' AND result_dir = :beside_result_dir)"
    " OR (tensorboard != '' AND tensorboard = :beside_tensorboard))",
}


class RunIndex:
    """The index of one state directory, of a file or in memory. Not for two threads at once.

    Where a method raises ``sqlite3.Error``, the file is damaged or out of reach.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.writes = 0  # of this process, which ``read_version`` does not tell
        columns = ", ".join(Row._fields)
        self._put = f"INTO {{}} ({columns}) VALUES ({', '.join('?' * len(Row._fields))})"
        # In this process a row that comes again keeps its id. In the file it gets one that no row ever had: what other
        # tables hold of the former row is nobody's.
        self._again = f"ON CONFLICT (run_id) DO UPDATE SET ({columns}) = (excluded.{', excluded.'.join(Row._fields)})"
        self._db = sqlite3.connect(
            path or ":memory:", timeout=_BUSY_S, isolation_level=None, check_same_thread=False, cached_statements=64
        )
        self.close = weakref.finalize(self, self._db.close)  # also without a call, once nobody has the index
        try:
            # A reader never waits for a writer, nor for one that was stopped while it wrote.
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute("PRAGMA cache_size = -1024")
            table = f"(id INTEGER PRIMARY KEY AUTOINCREMENT, {columns.replace('run_id', 'run_id TEXT UNIQUE', 1)})"
            self._db.execute(f"CREATE TABLE IF NOT EXISTS main.final {table}")
            self._db.execute("CREATE INDEX IF NOT EXISTS main.by_time ON final (created_at, run_id)")
            self._db.execute("CREATE INDEX IF NOT EXISTS main.by_state ON final (state, is_cut_off)")
            self._db.execute("PRAGMA temp_store = MEMORY")
            self._db.execute(f"CREATE TEMP TABLE own {table}")
            self._db.execute("CREATE TEMP TABLE hidden (run_id TEXT PRIMARY KEY) WITHOUT ROWID")
            self._db.execute(
                "CREATE TEMP VIEW runs AS SELECT * FROM main.final WHERE run_id NOT IN (SELECT run_id FROM hidden)"
                " UNION ALL SELECT * FROM own"
            )
        except BaseException:
            self.close()
            raise

    def execute(self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement on the tables that another module keeps beside the runs, and return its rows."""
        return self._db.execute(statement, values).fetchall()

    def execute_each(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement on these tables once for each of ``rows``."""
        self._db.executemany(statement, rows)

    def read_known(self) -> dict[str, tuple[int, str]]:
        """Return inode and mark of the runs in the file, by id."""
        return {
            run_id: (inode, mark)
            for run_id, inode, mark in self._db.execute("SELECT run_id, inode, mark FROM main.final")
        }

    def read_version(self) -> int:
        """Return a number that another one follows where another process has written the file."""
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def write(self, rows: Iterable[Row], stale: Iterable[str] = (), keep: Callable[[], None] = lambda: None) -> bool:
        """Put rows into the file, with what ``keep`` writes beside them, and take stale ones out: all or nothing.

        Return False where it cannot be written now.
        """
        self.writes += 1
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.executemany("DELETE FROM main.final WHERE run_id = ?", ((run_id,) for run_id in stale))
                self._db.executemany(f"REPLACE {self._put.format('main.final')}", rows)
                keep()
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.OperationalError:  # another process writes, the disk is full or became read-only
            return False
        return True

    def set_own(self, rows: Iterable[Row], hidden: Iterable[str]) -> None:
        """Say what counts beside the file, in this process alone: ``rows``, and not the file's rows ``hidden``."""
        self.writes += 1
        rows = list(rows)
        kept = json.dumps([row.run_id for row in rows])
        self._db.execute("DELETE FROM own WHERE run_id NOT IN (SELECT value FROM json_each(?))", (kept,))
        self._db.execute("DELETE FROM hidden")
        self._db.executemany(f"INSERT {self._put.format('own')} {self._again}", rows)
        ids = {*hidden, *(row.run_id for row in rows)}
        self._db.executemany("INSERT INTO hidden VALUES (?)", ((run_id,) for run_id in ids))

    def select(self, query: RunQuery, columns: Iterable[str], most: int | None = None) -> list[tuple[Any, ...]]:
        """Return these columns of the runs that are asked for, the newest first."""
        condition, values = query.conditions()
        order = "ORDER BY created_at DESC, run_id DESC LIMIT :most"
        select = f"SELECT {', '.join(columns)} FROM runs WHERE {condition} {order}"  # noqa: S608 - the columns are ours
        return self._db.execute(select, {**values, "most": -1 if most is None else most}).fetchall()

    def count_states(self, query: RunQuery) -> dict[str, int]:
        """Return how many of the runs are in each state, the most frequent first."""
        condition, values = query.conditions()
        count = f"SELECT state, count(*) * {{}} AS number FROM {{}} WHERE ({condition}){{}} GROUP BY 1"  # noqa: S608
        # Not of the view: it looks each of ten thousand rows up among the hidden ones.
        hidden = " AND run_id IN (SELECT run_id FROM hidden)"
        parts = [count.format(1, "main.final", ""), count.format(-1, "main.final", hidden), count.format(1, "own", "")]
        order = "GROUP BY 1 HAVING sum(number) ORDER BY 2 DESC, 1"
        select = f"SELECT state, sum(number) FROM ({' UNION ALL '.join(parts)}) {order}"  # noqa: S608
        return dict(self._db.execute(select, values).fetchall())


def open_index(home: Path) -> RunIndex:
    """Return the index of a state directory: its file, made where it is missing or broken; else one in memory."""
    path = None
    with contextlib.suppress(OSError):
        path = _find_place(home)
    for attempt in range(2 if path is not None else 0):
        try:
            return RunIndex(path)
        except sqlite3.OperationalError:  # cannot be written, or is locked
            break
        except sqlite3.DatabaseError:
            if attempt == 0 and path is not None:
                remove_index(path)
    return RunIndex(None)


def remove_index(path: Path) -> None:
    """Remove the file of an index; processes that have it open keep what they have."""
    for end in ("", "-wal", "-shm"):
        with contextlib.suppress(OSError):
            path.with_name(path.name + end).unlink(missing_ok=True)


def _find_place(home: Path) -> Path | None:
    """Return the path of the index's file: in the state directory, or on this machine, whose locks can be trusted.

    None where no directory of this user can hold it, and before there are runs.
    """
    if not (home / "runs").is_dir():
        return None
    digest = hashlib.sha256(str(home).encode(errors="surrogateescape")).hexdigest()[:12]
    own = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "runward"
    places = [home / "index", own / f"index-{digest}", Path(tempfile.gettempdir()) / f"runward-{os.geteuid()}-{digest}"]
    if home.stat().st_uid != os.geteuid():  # of a run as root, for example, which leaves nothing of its own there
        del places[0]
    for place in places:
        with contextlib.suppress(OSError):
            if is_shared_filesystem(place.parent if place.parent.exists() else place.parent.parent):
                continue
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = place.lstat()
            if status.st_uid == os.geteuid() and not status.st_mode & 0o022 and place.is_dir():
                path = place / f"runs-{__version__}-{_SCHEMA}.sqlite"
                _remove_unused(place, path)
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
                return path
    return None


def _remove_unused(place: Path, own: Path) -> None:
    """Remove the files of other versions that nobody has used for a month."""
    for path in place.glob("runs-*.sqlite"):
        with contextlib.suppress(OSError):
            if path != own and time.time() - path.stat().st_mtime > _UNUSED_AFTER_S:
                remove_index(path)


def sqlite_text(text: str) -> str:
    """Return ``text`` as SQLite takes it: names of files and damaged records may hold lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()


def _join_tags(tags: Iterable[object]) -> str:
    lines = "\n".join(json.dumps(tag) for tag in tags)
    return f"\n{lines}\n" if lines else ""


def split_tags(text: str) -> list[str]:
    """Return the tags of a row."""
    return [json.loads(line) for line in text.strip("\n").split("\n") if line]
