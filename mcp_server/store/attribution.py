"""Which files are a run's: its evidence for each file against that of all other runs.

Evidence, strongest first:

- STATED: a person said so (`finish_blueprint(tensorboard=, results=)`, kept in `attribution.json`).
- WRITTEN: its processes had the file open for writing, and it is as they left it; or the file's name holds the number
  of one of its processes or the run's id; or the output says that it was saved.
- NAMED: it changed while the run ran, in a directory that command, parameters, configuration or launch name.
- BESIDE: the same, in a directory where its processes had a file open for writing.
- BELOW: the same, anywhere below its working directory.

WRITTEN wins over everything weaker. Among the rest the deeper directory wins. What two runs may have written with equal
right is uncertain: it is left out, and named in a note. Records of former supervisors hold no written files: then
more is uncertain.
"""

from __future__ import annotations

import contextlib
import enum
import os
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mcp_server.record.output_directories import configuration_words, find_in_command, find_in_configuration
from mcp_server.record.outputs import Outputs, WrittenFile, read_outputs
from mcp_server.record.run_directory import RunDir, boot_id, read_json
from mcp_server.record.state import Run, posix
from mcp_server.store.run_store import RunStore
from mcp_server.system import processes
from mcp_server.system.files import read_regular_file
from mcp_server.system.open_files import list_written_files

# The names that tensorboardX and TensorFlow 1 give hold no process id.
_EVENT_FILE = re.compile(r"tfevents\.(?P<begun_s>\d{1,12})\.(?:(?:.*\.)?(?P<pid>\d+)\.\d+(?:\D.*)?$)?")
# File names hold whole seconds, a file is created a moment after the run has started, a file server's clock may differ.
SLACK_S = 2.0
_DATABASES = (".db", ".sqlite", ".sqlite3")
_MOST_OTHERS, _MOST_REMEMBERED, _MOST_UNCERTAIN = 300, 2_000, 1_000
_MOST_CONFIG_BYTES = 1_000_000
_NAMED_IN_NOTE = 3


class Rank(enum.IntEnum):
    """How strong the evidence is that a file is a run's, see the module."""

    NONE = 0
    BELOW = 1
    BESIDE = 2
    NAMED = 3
    WRITTEN = 4
    STATED = 5


class Verdict(enum.Enum):
    """Whether a file is a run's."""

    OWN = "own"
    OTHER = "another's, or nobody's"
    UNCERTAIN = "uncertain"


@dataclass(frozen=True)
class FileFacts:
    """What is known of a file. ``begun_s`` and ``pid`` are those in the name of an event file."""

    path: str
    inode: int
    size: int
    changed_ns: int
    begun_s: int | None = None
    pid: int | None = None

    @classmethod
    def of(cls, path: Path | str, status: os.stat_result) -> FileFacts:
        """Return the facts of the file at ``path``."""
        match = _EVENT_FILE.search(str(path).rpartition("/")[2])
        begun_s, pid = (match["begun_s"], match["pid"]) if match else (None, None)
        facts = (str(path), status.st_ino, status.st_size, status.st_mtime_ns)
        return cls(*facts, int(begun_s) if begun_s else None, int(pid) if pid else None)

    @property
    def changed_s(self) -> float:
        """When it changed last, in POSIX time."""
        return self.changed_ns / 1e9


@dataclass(frozen=True)
class Evidence:
    """``directory``: the one that the evidence is about. ``is_sharp``: the time fits without any slack."""

    rank: Rank
    directory: str = ""
    is_sharp: bool = True

    @property
    def depth(self) -> int:
        """How deep the directory is."""
        return self.directory.rstrip("/").count("/")


_NOTHING = Evidence(Rank.NONE)


@dataclass(frozen=True, eq=False)
class Claims:
    """What one run wrote, or may have written. Times are POSIX; ``ended_s`` is infinite while it lives.

    ``last_sign_s``: a run without a known end wrote nothing later, as far as others are concerned. ``listed``: all
    files that changed in its directories, by path, with size and change time; None where they are not all known.
    ``attempts_s``: when each attempt started.
    """

    run_id: str
    cwd: str = ""
    begun_s: float = 0.0
    ended_s: float = float("inf")
    last_sign_s: float = float("inf")
    attempts_s: Sequence[float] = ()
    pids: frozenset[int] = frozenset()
    written: Mapping[str, WrittenFile] = field(default_factory=dict)
    beside: frozenset[str] = frozenset()  # directories of written files
    named: frozenset[str] = frozenset()
    saved: Sequence[str] = ()
    listed: Mapping[str, tuple[int, int]] | None = None
    result_dir: str | None = None
    tensorboard: Sequence[str] = ()  # stated
    results: Sequence[str] = ()  # stated
    has_events: bool = False  # event files that its processes wrote are known
    has_step: bool = True

    def __post_init__(self) -> None:
        """Index what is asked for each file."""
        inodes = {one.inode: one for one in self.written.values()}
        beside = frozenset(os.path.dirname(path) for path in self.written)  # noqa: PTH120 - hot path
        object.__setattr__(self, "_inodes", inodes)
        object.__setattr__(self, "beside", self.beside | beside)
        above = {above for path in self.written for above in _parents(path)}
        object.__setattr__(self, "_above_written", frozenset(above))

    _inodes: Mapping[int, WrittenFile] = field(init=False, default_factory=dict)
    _above_written: frozenset[str] = field(init=False, default=frozenset())

    def weigh(self, file: FileFacts, *, as_other: bool = False) -> Evidence:
        """Return the evidence that the run wrote ``file``. ``as_other``: against another run's claim."""
        if file.path in self.tensorboard or file.path in self.results:
            return Evidence(Rank.STATED)
        if self._wrote(file):
            return Evidence(Rank.WRITTEN)
        for stated in (*self.tensorboard, *self.results):
            if _is_within(file.path, stated):
                return Evidence(Rank.NAMED if as_other else Rank.STATED, stated)
        at_s = file.changed_s if file.begun_s is None else float(file.begun_s)
        ended_s = self.last_sign_s if as_other else self.ended_s
        # People and agents evaluate a run into its result directory after its end.
        is_result = not as_other and self.result_dir is not None and _is_within(file.path, self.result_dir)
        if not self.begun_s - SLACK_S <= at_s <= (float("inf") if is_result else ended_s + SLACK_S):
            return _NOTHING
        floor_s = self.begun_s if file.begun_s is None else float(int(self.begun_s))
        is_sharp = floor_s <= at_s <= ended_s and file.changed_s >= self.begun_s
        if self._is_identified(file):
            return Evidence(Rank.WRITTEN, is_sharp=is_sharp)
        return self._weigh_directory(file, is_sharp=is_sharp)

    def is_late(self, file: FileFacts) -> bool:
        """Return whether a file changed after the run's end, as results of later evaluations do."""
        return file.changed_s > self.ended_s + SLACK_S

    def places_beside(self, directory: str) -> bool:
        """Return whether the run keeps its files in a directory of its own beside ``directory``."""
        parent = os.path.dirname(directory)  # noqa: PTH120 - hot path
        return any(one != directory and os.path.dirname(one) == parent for one in self.beside | self.named)  # noqa: PTH120

    def attempt_of(self, file: FileFacts) -> int:
        """Return the number of the attempt during which an event file was begun, or another file changed, from 1."""
        at_s = file.changed_s if file.begun_s is None else file.begun_s + 1.0
        return max(1, sum(start_s <= at_s for start_s in self.attempts_s))

    def _wrote(self, file: FileFacts) -> bool:
        one = self.written.get(file.path) or self._inodes.get(file.inode)
        if one is None or one.listed:
            return False
        return one.inode == file.inode if one.open else (one.size, one.changed_ns) == (file.size, file.changed_ns)

    def _is_identified(self, file: FileFacts) -> bool:
        if file.pid is not None and file.pid in self.pids:
            return True
        below = file.path[len(self.cwd) :] if _is_within(file.path, self.cwd) else file.path
        return self.run_id in below or any(_is_saved(file.path, one) for one in self.saved)

    def _weigh_directory(self, file: FileFacts, *, is_sharp: bool) -> Evidence:
        path = file.path
        for directory in (path, *_parents(path)):
            if directory in self.named:
                rank = Rank.NAMED
            elif directory in self.beside or (directory == path and path in self._above_written):
                rank = Rank.BESIDE
            elif directory == self.cwd:
                rank = Rank.BELOW
            else:
                continue
            if rank is not Rank.BELOW and self.listed is not None:
                known = self.listed.get(path)
                if known is not None and directory != self.result_dir and known != (file.size, file.changed_ns):
                    return _NOTHING  # changed after the end
            return Evidence(rank, directory, is_sharp)
        return _NOTHING


def decide(file: FileFacts, own: Claims, others: Iterable[Claims]) -> tuple[Verdict, Rank]:
    """Return whether ``file`` is the run's, against the claims of ``others``, and its own evidence."""
    mine = own.weigh(file)
    if mine.rank is Rank.NONE:
        return Verdict.OTHER, mine.rank
    verdict = Verdict.UNCERTAIN if _is_begun_by_another(file, own, mine) else Verdict.OWN
    for other in others:
        against = _decide_between(file, own, mine, other)
        if against is Verdict.OTHER:
            return Verdict.OTHER, mine.rank
        if against is Verdict.UNCERTAIN:
            verdict = Verdict.UNCERTAIN
    return verdict, mine.rank


def _is_begun_by_another(file: FileFacts, own: Claims, mine: Evidence) -> bool:
    """Return whether a process began an event file that is not the run's, as far as its processes are known.

    Beside an event file that the run wrote, that may have been a child that lived for a moment, such as an evaluation.
    """
    if file.pid is None or not own.pids or file.pid in own.pids:
        return False
    is_beside = any(parent in own.beside for parent in _parents(file.path))
    return mine.rank is Rank.BELOW or (mine.rank is Rank.NAMED and own.has_events and not is_beside)


def _decide_between(file: FileFacts, own: Claims, mine: Evidence, other: Claims) -> Verdict:
    theirs = other.weigh(file, as_other=True)
    if mine.rank >= Rank.WRITTEN and _is_mixed(file, own, other):
        return Verdict.UNCERTAIN
    if theirs.rank is Rank.NONE:
        is_shared = mine.rank < Rank.WRITTEN and own.is_late(file) and own.result_dir == other.result_dir
        return Verdict.UNCERTAIN if is_shared else Verdict.OWN
    if theirs.rank >= Rank.WRITTEN:
        if mine.rank < Rank.WRITTEN or (mine.rank is Rank.STATED and mine.directory) or theirs.rank > mine.rank:
            return Verdict.OTHER
        return Verdict.OWN if mine.rank > theirs.rank else Verdict.UNCERTAIN
    if mine.rank >= Rank.WRITTEN or (mine.is_sharp and not theirs.is_sharp):
        return Verdict.OWN
    if theirs.is_sharp and not mine.is_sharp:
        return Verdict.OTHER
    if theirs.depth > mine.depth:
        return Verdict.OTHER
    if theirs.depth == mine.depth:
        return Verdict.UNCERTAIN
    if mine.rank is Rank.NAMED or other.places_beside(mine.directory):
        return Verdict.OWN
    return Verdict.UNCERTAIN


def _is_mixed(file: FileFacts, own: Claims, other: Claims) -> bool:
    """Return whether a file holds what both runs wrote: one that is appended to, or a database."""
    theirs = other.written.get(file.path)
    if theirs is None or theirs.listed:
        return False
    mine = own.written.get(file.path)
    return file.path.endswith(_DATABASES) or theirs.open or (mine is not None and mine.append)


def _parents(path: str) -> list[str]:
    """Return the directories above ``path``, the nearest first."""
    parents = []
    while (parent := os.path.dirname(path)) != path:  # noqa: PTH120 - hot path
        parents.append(parent)
        path = parent
    return parents


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _is_saved(path: str, saved: str) -> bool:
    """Return whether output that names ``saved``, perhaps without the ending, is about ``path``."""
    return path.startswith(saved) and (len(path) == len(saved) or path[len(saved)] in "./")


class OwnFiles:
    """Decides which files are those of one run, and remembers the uncertain ones."""

    def __init__(self, claims: Claims, others: Sequence[Claims] = (), *, is_settled: bool = False) -> None:
        self.claims = claims
        self.is_settled = is_settled  # the run and all that ran beside it have ended
        self._others = others
        self._uncertain: dict[str, None] = {}

    def judge(self, file: FileFacts, least: Rank = Rank.BELOW) -> tuple[Verdict, Rank]:
        """Return the verdict on a file, and the run's evidence. Evidence below ``least`` is uncertain."""
        verdict, rank = decide(file, self.claims, self._others)
        if verdict is Verdict.OWN and rank < least:
            verdict = Verdict.UNCERTAIN
        if verdict is Verdict.UNCERTAIN:
            self._note_uncertain(file.path)
        return verdict, rank

    def judge_all(self, files: Sequence[FileFacts], least: Rank = Rank.BELOW) -> tuple[Verdict, Rank]:
        """Return the verdict on a directory whose files belong together, and the strongest evidence of the run.

        It is the run's if none of its files is another's, and it wrote one, or all that changed are its own.
        """
        judged = [decide(file, self.claims, self._others) for file in files]
        rank = max((rank for _, rank in judged), default=Rank.NONE)
        verdicts = {verdict for verdict, evidence in judged if evidence is not Rank.NONE}
        unrelated = (file for file, (_, evidence) in zip(files, judged, strict=True) if evidence is Rank.NONE)
        if Verdict.OTHER in verdicts or rank is Rank.NONE or any(map(self._is_written_by_another, unrelated)):
            return Verdict.OTHER, rank
        is_own = verdicts == {Verdict.OWN} or any(v is Verdict.OWN and r >= Rank.WRITTEN for v, r in judged)
        if is_own and rank >= least:
            return Verdict.OWN, rank
        self._note_uncertain(os.path.commonpath([file.path for file in files]))
        return Verdict.UNCERTAIN, rank

    def _is_written_by_another(self, file: FileFacts) -> bool:
        return any(other.weigh(file, as_other=True).rank >= Rank.WRITTEN for other in self._others)

    def _note_uncertain(self, path: str) -> None:
        if len(self._uncertain) < _MOST_UNCERTAIN:
            self._uncertain[path] = None

    def roots(self) -> list[Path]:
        """Return the directories outside the working directory that hold, or may hold, files of the run."""
        claims = self.claims
        paths = [*claims.tensorboard, *claims.results, *sorted(claims.named), *sorted(claims.beside)]
        outside = [path for path in dict.fromkeys(paths) if not _is_within(path, claims.cwd) and _is_root(path)]
        return [Path(path) for path in outside if not any(path != one and _is_within(path, one) for one in outside)]

    def learn(self, files: Iterable[FileFacts]) -> None:
        """Note in which directories the event files are that the names prove to be the run's."""
        proven = [file for file in files if self.claims.weigh(file).rank is Rank.WRITTEN]
        if proven:
            beside = {os.path.dirname(file.path) for file in proven}  # noqa: PTH120 - plain strings
            self.claims = replace(self.claims, beside=self.claims.beside | beside, has_events=True)

    def with_result_directory(self, path: Path) -> OwnFiles:
        """Return the same with another result directory of the run."""
        claims = replace(self.claims, result_dir=str(path), named=self.claims.named | {str(path)})
        return OwnFiles(claims, self._others, is_settled=self.is_settled)

    @property
    def uncertain(self) -> tuple[str, ...]:
        """The paths that were left out so far because they are uncertain."""
        return tuple(self._uncertain)


def describe_uncertain(paths: Sequence[str]) -> str | None:
    """Return a sentence that names what was left out because it is uncertain, or None."""
    paths = sorted(dict.fromkeys(paths))
    if not paths:
        return None
    root = os.path.dirname(paths[0]) if len(paths) == 1 else os.path.commonpath(paths)  # noqa: PTH120 - plain strings
    names = ", ".join(os.path.relpath(path, root) for path in paths[:_NAMED_IN_NOTE])
    more = f" and {len(paths) - _NAMED_IN_NOTE} more" if len(paths) > _NAMED_IN_NOTE else ""
    return f"Left out, since it is uncertain which run wrote them: {names}{more} in {root}."


def _is_root(path: str) -> bool:
    return path not in ("/", "/tmp", "/var/tmp", "/dev/shm", str(Path.home()))  # noqa: S108


class Attribution:
    """Reads the claims of all runs. May be shared by threads."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._claims: dict[str, tuple[object, Claims]] = {}

    def of(self, run: Run) -> OwnFiles:
        """Return what decides which files are those of ``run``."""
        claims = self.claims_of(run)
        if not run.ended and run.spec.boot_id in ("", boot_id()):
            claims = add_open_files(run, claims)
        others: list[Claims] = []
        is_settled = run.ended
        for other in self._store.list_runs():
            if other.run_id == run.run_id or other.started_at is None or len(others) >= _MOST_OTHERS:
                continue
            overlaps = _overlap(run, other)
            if overlaps or _share_a_directory(run, other):
                others.append(self.claims_of(other))
                is_settled = is_settled and (other.ended or not overlaps)
        return OwnFiles(claims, others, is_settled=is_settled)

    def claims_of(self, run: Run) -> Claims:
        """Return the claims of one run, read again when its record has changed."""
        rundir = RunDir(self._store.home.runs / run.run_id)
        paths = [rundir.attribution, *(rundir.outputs(number) for number in range(1, run.attempt + 1))]
        key = (run.state, run.attempt, run.ended_at, run.spec.created_at, run.made_a_step, *map(_stamp, paths))
        with self._lock:
            cached = self._claims.get(run.run_id)
            if cached is not None and cached[0] == key:
                return cached[1]
        records = [read_outputs(path) for path in paths[1:]]
        claims = build_claims(run, records, read_json(rundir.attribution) or {}, _last_sign_s(run, rundir))
        with self._lock:
            while len(self._claims) >= _MOST_REMEMBERED:
                del self._claims[next(iter(self._claims))]
            self._claims[run.run_id] = key, claims
        return claims

    def stamp(self, run: Run) -> object:
        """Return a value that changes when a person corrects the attribution of a run."""
        return _stamp(RunDir(self._store.home.runs / run.run_id).attribution)


def _overlap(run: Run, other: Run) -> bool:
    """Return whether both ran at one time; of a run without a known end, from its start on."""
    spans = [
        (posix(one.started_at or one.spec.created_at) - SLACK_S, posix(one.ended_at) if one.ended_at else float("inf"))
        for one in (run, other)
        if one.started_at or one.spec.created_at
    ]
    return len(spans) < 2 or (spans[0][0] <= spans[1][1] and spans[1][0] <= spans[0][1])  # noqa: PLR2004 - both


def _share_a_directory(run: Run, other: Run) -> bool:
    ours, theirs = run.spec, other.spec
    return any(
        one and one == another
        for one, another in (
            (ours.cwd, theirs.cwd),
            (ours.result_dir, theirs.result_dir),
            (ours.tensorboard, theirs.tensorboard),
        )
    )


def build_claims(
    run: Run,
    records: Sequence[Outputs | None] = (),
    correction: Mapping[str, Any] | None = None,
    last_sign_s: float = float("inf"),
) -> Claims:
    """Return the claims of a run, with the record of each attempt that has one."""
    spec, correction = run.spec, correction or {}
    cwd = os.path.normpath(spec.cwd or "/")
    known = [record for record in records if record is not None]
    named = [
        os.path.normpath(Path(cwd) / Path(path).expanduser()) for path in (spec.tensorboard, spec.result_dir) if path
    ]
    named += [path for record in known for path in record.directories]
    if len(known) < len(records) or not records:
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            named += _name_directories(run, cwd)
    complete = bool(known) and len(known) == len(records) and all(one.ended and not one.cut for one in known)
    files = [file for record in known for file in record.files]
    command_pid = run.at_start.get("pid")
    begun_s = posix(run.started_at or spec.created_at) if run.started_at or spec.created_at else 0.0
    ended_s = posix(run.ended_at) if run.ended_at else float("inf")
    return Claims(
        run_id=run.run_id,
        cwd=cwd,
        result_dir=os.path.normpath(spec.result_dir) if spec.result_dir else None,
        begun_s=begun_s,
        ended_s=ended_s,
        last_sign_s=ended_s if run.ended_at else last_sign_s,
        attempts_s=[posix(event["at"]) for event in run.events if event["kind"] == "started" and "at" in event],
        pids=frozenset([pid for record in known for pid in record.pids])
        | ({command_pid} if isinstance(command_pid, int) else set()),
        written={file.path: file for file in files if not file.listed},
        named=frozenset(named),
        saved=[*dict.fromkeys([*(path for record in known for path in record.saved), *_printed_checkpoint(run, cwd)])],
        listed={file.path: (file.size, file.changed_ns) for file in files if file.listed} if complete else None,
        tensorboard=_texts(correction.get("tensorboard")),
        results=_texts(correction.get("results")),
        has_events=any("tfevents" in file.path for file in files if not file.listed),
        has_step=run.made_a_step,
    )


def _printed_checkpoint(run: Run, cwd: str) -> list[str]:
    named = run.progress.get("checkpoint")
    is_path = isinstance(named, str) and named and "\0" not in named
    return [os.path.normpath(Path(cwd) / str(named))] if is_path else []


def _name_directories(run: Run, cwd: str) -> list[str]:
    """Return the directories that the command of a run without a record of its files names."""
    spec = run.spec
    named = find_in_command(spec.command, cwd, spec.params)
    for word in configuration_words(spec.command)[:5]:
        with contextlib.suppress(OSError):
            text = read_regular_file(Path(cwd) / word, max_bytes=_MOST_CONFIG_BYTES)
            named += find_in_configuration(text.decode(errors="replace"), cwd)
    return named


def add_open_files(run: Run, claims: Claims) -> Claims:
    """Return the claims of a live run with the files that its processes have open for writing now."""
    supervisor = run.at_start.get("supervisor_pid")
    if not isinstance(supervisor, int):
        return claims
    written, pids = dict(claims.written), set(claims.pids)
    for process in processes.descendants(supervisor):
        pids.add(process.pid)
        for path, status, append in list_written_files(process.pid):
            written[path] = WrittenFile(path, status.st_ino, status.st_size, status.st_mtime_ns, True, append)
    return replace(claims, written=written, pids=frozenset(pids))


def _last_sign_s(run: Run, rundir: RunDir) -> float:
    """Return when a run that is lost gave its last sign; infinite for a live run."""
    if not run.ended:
        return float("inf")
    signs = [posix(run.events[-1]["at"])] if run.events else []
    for path in (rundir.log(run.attempt), rundir.outputs(run.attempt)):
        with contextlib.suppress(OSError):
            signs.append(path.stat().st_mtime)
    return max(signs, default=float("inf"))


def _stamp(path: Path) -> object:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(one) for one in value) if isinstance(value, list) else ()
