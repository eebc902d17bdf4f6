"""The files that one run claims to have written, and the decision which run owns a file: while it grows, and later.

Evidence, strongest first:

- STATED: a person said so (`finish_blueprint(tensorboard=, results=)`, kept in `attribution.json`).
- WRITTEN: its processes had the file open for writing, and it is as they, and nobody else, left it; or the file's name
  holds the number of one of its processes or the run's id; or the output says that it was saved.
- NAMED: it changed while the run ran, in a directory that command, parameters, configuration or launch name.
- BESIDE: the same, in a directory where its processes had a file open for writing.
- BELOW: the same, anywhere below its working directory.
- MENTIONED: the same, in a directory outside that its command mentions and that had files before. It is never enough.

WRITTEN wins over everything weaker. Among the rest the deeper directory wins. What two runs may have written with equal
right is uncertain: it is left out, and named in a note. A program that worked where a run did, and that no supervisor
had started, counts as another run. Records of former supervisors hold no written files: then
more is uncertain.
"""

from __future__ import annotations

import contextlib
import enum
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from mcp_server.command.outputs import is_output_place
from mcp_server.record.scalar_files import DATABASES, find_scalar_file, parse_event_name
from mcp_server.record.written_files import Outsider, WrittenFile
from mcp_server.system.files import is_within, parents_of

# File names hold whole seconds, a file is created a moment after the run has started, a file server's clock may differ.
SLACK_S = 2.0
_TICK_S = 0.02  # of the kernel's coarse clock, by which files are dated
_DIGITS = re.compile(r"\d+")


class Rank(enum.IntEnum):
    """How strong the evidence is that a file is a run's, see the module."""

    NONE = 0
    MENTIONED = 1
    BELOW = 2
    BESIDE = 3
    NAMED = 4
    WRITTEN = 5
    STATED = 6


class Verdict(enum.Enum):
    """Whether a file is a run's."""

    OWN = "own"
    OTHER = "another's, or nobody's"
    UNCERTAIN = "uncertain"


@dataclass(frozen=True)
class FileFacts:
    """What is known of a file. ``begun_s`` and ``writers`` are those in the name of an event file."""

    path: str
    inode: int
    size: int
    changed_ns: int
    begun_s: int | None = None
    writers: tuple[tuple[int, str], ...] = ()

    @classmethod
    def of(cls, path: Path | str, status: os.stat_result) -> FileFacts:
        """Return the facts of the file at ``path``."""
        facts = (str(path), status.st_ino, status.st_size, status.st_mtime_ns)
        return cls(*facts, *(parse_event_name(str(path).rpartition("/")[2]) or ()))

    @property
    def changed_s(self) -> float:
        """When it changed last, in POSIX time."""
        return self.changed_ns / 1e9


@dataclass(frozen=True)
class ClaimEvidence:
    """``directory``: the one that the evidence is about. ``is_sharp``: the time fits without any slack."""

    rank: Rank
    directory: str = ""
    is_sharp: bool = True

    @property
    def depth(self) -> int:
        """How deep the directory is."""
        return self.directory.rstrip("/").count("/")


_NOTHING = ClaimEvidence(Rank.NONE)


@dataclass(frozen=True, eq=False)
class Claims:
    """The files that one run wrote, or may have written. Times are POSIX. ``ended_s`` is infinite while it lives.

    ``last_sign_s``: a run without a known end wrote nothing later, as far as others are concerned. ``listed``: all
    files that changed in its directories, by path, with size and change time; None where they are not all known.
    ``attempts_s``: when each attempt started. ``attempt_pids``: the processes of each, as far as they are recorded.
    """

    run_id: str
    cwd: str = ""
    begun_s: float = 0.0
    ended_s: float = float("inf")
    last_sign_s: float = float("inf")
    attempts_s: Sequence[float] = ()
    attempt_pids: Sequence[frozenset[int]] = ()
    pids: frozenset[int] = frozenset()
    host: str = ""  # the name of its machine
    written: Mapping[str, WrittenFile] = field(default_factory=dict)
    beside: frozenset[str] = frozenset()  # directories of written files
    named: frozenset[str] = frozenset()
    mentioned: frozenset[str] = frozenset()
    linked: frozenset[str] = frozenset()  # see ``find_linked``: what is there counts as below ``cwd``
    saved: Sequence[str] = ()
    listed: Mapping[str, tuple[int, int]] | None = None
    result_dir: str | None = None
    tensorboard: Sequence[str] = ()  # stated
    results: Sequence[str] = ()  # stated
    has_events: bool = False  # event files that its processes wrote are known
    has_step: bool = True
    outsiders: Sequence[Claims] = ()  # programs that worked where it did and do not belong to a run
    is_outsider: bool = False  # these are the claims of one

    def __post_init__(self) -> None:
        """Index what is asked for each file."""
        inodes = {one.inode: one for one in self.written.values()}
        beside = frozenset(os.path.dirname(path) for path in self.written)  # noqa: PTH120 - hot path
        object.__setattr__(self, "_inodes", inodes)
        kinds: dict[str, set[str]] = {}
        for path in self.written:
            directory, _, name = path.rpartition("/")
            kinds.setdefault(directory, set()).add(_DIGITS.sub("#", name))
        object.__setattr__(self, "_kinds", kinds)
        object.__setattr__(self, "_homes", frozenset(filter(None, map(self._find_home, self.written.values()))))
        object.__setattr__(self, "beside", self.beside | beside)
        above = {above for path in self.written for above in parents_of(path)}
        object.__setattr__(self, "_above_written", frozenset(above))

    _inodes: Mapping[int, WrittenFile] = field(init=False, default_factory=dict)
    _above_written: frozenset[str] = field(init=False, default=frozenset())
    _homes: frozenset[str] = field(init=False, default=frozenset())
    _kinds: Mapping[str, set[str]] = field(init=False, default_factory=dict)  # of names, by directory

    def weigh(self, file: FileFacts, *, as_other: bool = False) -> ClaimEvidence:
        """Return the evidence that the run wrote ``file``. ``as_other``: against another run's claim."""
        if file.path in self.tensorboard or file.path in self.results:
            return ClaimEvidence(Rank.STATED)
        if self.left(file):
            return ClaimEvidence(Rank.WRITTEN)
        for stated in (*self.tensorboard, *self.results):
            if is_within(file.path, stated):
                return ClaimEvidence(Rank.NAMED if as_other else Rank.STATED, stated)
        at_s = file.changed_s if file.begun_s is None else float(file.begun_s)
        ended_s = self.last_sign_s if as_other else self.ended_s
        # People and agents evaluate a run into its result directory after its end.
        is_result = not as_other and self.result_dir is not None and is_within(file.path, self.result_dir)
        if not self.begun_s - SLACK_S <= at_s <= (float("inf") if is_result else ended_s + SLACK_S):
            return _NOTHING
        floor_s = self.begun_s if file.begun_s is None else float(int(self.begun_s))
        is_sharp = floor_s <= at_s <= ended_s and file.changed_s >= self.begun_s
        if self._is_identified(file):
            return ClaimEvidence(Rank.WRITTEN, is_sharp=is_sharp)
        if at_s < floor_s - _TICK_S:
            return _NOTHING  # a command begins after its start was noted: nothing but a name can say that it wrote it
        return self._weigh_directory(file, is_sharp=is_sharp)

    def is_late(self, file: FileFacts) -> bool:
        """Return whether a file changed after the run's end, as results of later evaluations do."""
        return file.changed_s > self.ended_s + SLACK_S

    def places_apart(self, directory: str, other: Claims) -> bool:
        """Return whether the run keeps such files as ``other`` has in ``directory`` in another one, equally deep.

        Directories whose files differ in kind, such as `checkpoints` and `evals`, may both be shared.
        """
        kinds, depth = other._kinds.get(directory), directory.count("/")
        if not kinds:
            return False
        return any(
            one != directory and one.count("/") == depth and not kinds.isdisjoint(mine)
            for one, mine in self._kinds.items()
        )

    def is_at_home(self, directory: str) -> bool:
        """Return whether a directory is at or below one with scalars of the run, and not its working directory.

        A framework keeps one run's scalars there, and its other files with them. Another run that did the same would
        have event files of its own there, or have overwritten the table.
        """
        return any(one in self._homes for one in (directory, *parents_of(directory)))

    def _find_home(self, file: WrittenFile) -> str | None:
        directory, _, name = file.path.rpartition("/")
        if directory == self.cwd or not is_within(directory, self.cwd):
            return None
        event = parse_event_name(name)
        is_own = self.is_writer(event.writers) if event and event.writers else not file.unsure and not file.append
        row = find_scalar_file(name) if is_own and not event else None
        return directory if is_own and (event or (row is not None and row.is_sure)) else None

    def is_writer(self, writers: Sequence[tuple[int, str]]) -> bool:
        """Return whether a reading of an event file's name is a process of the run, perhaps of another host."""
        return any(pid in self.pids for pid, _ in writers)

    def attempt_of(self, file: FileFacts) -> int:
        """Return the number, from 1, of the attempt that began an event file, or during which another file changed."""
        pids = {pid for pid, _ in file.writers}
        if len(known := [n for n, one in enumerate(self.attempt_pids, 1) if not pids.isdisjoint(one)]) == 1:
            return known[0]
        at_s = file.changed_s if file.begun_s is None else file.begun_s + 1.0
        return max(1, sum(start_s <= at_s for start_s in self.attempts_s))

    def left(self, file: FileFacts) -> bool:
        """Return whether the file is as its processes left it, or they alone have it open."""
        one = self.written.get(file.path) or self._inodes.get(file.inode)
        if one is None or one.listed or one.unsure:
            return False
        return one.inode == file.inode if one.open else (one.size, one.changed_ns) == (file.size, file.changed_ns)

    def _is_identified(self, file: FileFacts) -> bool:
        if any(pid in self.pids and _is_same_host(host, self.host) for pid, host in file.writers):
            return True
        below = file.path[len(self.cwd) :] if is_within(file.path, self.cwd) else file.path
        if self.run_id in below:
            return True
        # That it was saved does not say who has written it since.
        seen = self.written.get(file.path)
        return not (seen is not None and seen.unsure) and any(_is_saved(file.path, one) for one in self.saved)

    def _weigh_directory(self, file: FileFacts, *, is_sharp: bool) -> ClaimEvidence:
        path = file.path
        for directory in (path, *parents_of(path)):
            place = directory
            if directory in self.named:
                rank = Rank.NAMED
            elif directory in self.beside or (directory == path and path in self._above_written):
                rank = Rank.BESIDE
            elif directory == self.cwd:
                rank = Rank.BELOW
            elif directory in self.linked:  # no deeper than for a run that works there without a link
                rank, place = Rank.BELOW, os.path.dirname(directory)  # noqa: PTH120 - hot path
            elif directory in self.mentioned:
                rank = Rank.MENTIONED
            else:
                continue
            if rank is not Rank.BELOW and self.listed is not None:
                known = self.listed.get(path)
                if known is not None and directory != self.result_dir and known != (file.size, file.changed_ns):
                    return _NOTHING  # changed after the end
            return ClaimEvidence(rank, place, is_sharp)
        return _NOTHING


def find_linked(cwd: str) -> frozenset[str]:
    """Return the directories of outputs to which links in a working directory lead, as in a copy of kept code."""
    with contextlib.suppress(OSError), os.scandir(cwd) as entries:
        links = [one for one in entries if one.is_symlink() and is_output_place(one.name)]
        return frozenset(os.path.realpath(one.path) for one in links if one.is_dir())
    return frozenset()


def claim_outsider(one: Outsider, run_id: str = "") -> Claims:
    """Return the claims of a program that works where a run does: of another run, else of nobody's."""
    until_s = one.until_s or float("inf")
    return Claims(
        run_id=run_id or f"process {one.pid}",
        cwd=one.cwd,
        begun_s=one.started_s,
        ended_s=until_s,
        last_sign_s=until_s,
        pids=frozenset({one.pid}),
        written={path: WrittenFile(path, inode, 0, 0, open=True) for path, inode in one.files},
        named=frozenset(one.directories),
        is_outsider=not run_id,
    )


class Decision(NamedTuple):
    """The verdict on a file, and the run's own evidence; of an uncertain one, who else may have written it."""

    verdict: Verdict
    rank: Rank
    other: str = ""


def decide(file: FileFacts, own: Claims, others: Iterable[Claims]) -> Decision:
    """Return whether ``file`` is the run's, against the claims of ``others``."""
    mine = own.weigh(file)
    if mine.rank is Rank.NONE:
        return Decision(Verdict.OTHER, mine.rank)
    verdict, who = Verdict.UNCERTAIN if _is_begun_by_another(file, own, mine) else Verdict.OWN, ""
    for other in others:
        against = _decide_between(file, own, mine, other)
        if against is Verdict.OTHER:
            return Decision(Verdict.OTHER, mine.rank)
        if against is Verdict.UNCERTAIN:
            verdict, who = Verdict.UNCERTAIN, who or other.run_id
    return Decision(verdict, mine.rank, who)


def _is_begun_by_another(file: FileFacts, own: Claims, mine: ClaimEvidence) -> bool:
    """Return whether a process began an event file that is not the run's, as far as its processes are known.

    Beside an event file that the run wrote, that may have been a child that lived for a moment, such as an evaluation.
    """
    if not file.writers or not own.pids or own.is_writer(file.writers):
        return False
    is_beside = any(parent in own.beside for parent in parents_of(file.path))
    return mine.rank <= Rank.BELOW or (mine.rank is Rank.NAMED and own.has_events and not is_beside)


def _decide_between(file: FileFacts, own: Claims, mine: ClaimEvidence, other: Claims) -> Verdict:
    theirs = other.weigh(file, as_other=True)
    if mine.rank >= Rank.WRITTEN and _is_mixed(file, own, other):
        return Verdict.UNCERTAIN
    if theirs.rank is Rank.NONE:
        is_shared = mine.rank < Rank.WRITTEN and own.is_late(file) and own.result_dir == other.result_dir
        return Verdict.UNCERTAIN if is_shared else Verdict.OWN
    if theirs.rank >= Rank.WRITTEN:
        if mine.rank is Rank.STATED and other.is_outsider:
            return Verdict.OWN  # a person knows what no record says
        if mine.rank < Rank.WRITTEN or (mine.rank is Rank.STATED and mine.directory) or theirs.rank > mine.rank:
            return Verdict.OTHER
        return Verdict.OWN if mine.rank > theirs.rank else Verdict.UNCERTAIN
    if mine.rank >= Rank.WRITTEN:
        return Verdict.OWN
    if theirs.rank is Rank.MENTIONED:
        return Verdict.UNCERTAIN
    return _decide_by_directory(own, mine, other, theirs)


def _decide_by_directory(own: Claims, mine: ClaimEvidence, other: Claims, theirs: ClaimEvidence) -> Verdict:
    if mine.is_sharp and not theirs.is_sharp:
        return Verdict.OWN
    if theirs.is_sharp and not mine.is_sharp:
        return Verdict.OTHER
    if theirs.depth > mine.depth:
        return Verdict.OTHER
    if theirs.depth == mine.depth:
        return Verdict.UNCERTAIN
    if mine.rank is Rank.NAMED or other.places_apart(mine.directory, own) or own.is_at_home(mine.directory):
        return Verdict.OWN
    return Verdict.UNCERTAIN


def _is_mixed(file: FileFacts, own: Claims, other: Claims) -> bool:
    """Return whether a file may hold what both runs wrote: an appended one, a database, one that the output names."""
    theirs = other.written.get(file.path)
    if theirs is None or theirs.listed:
        return False
    mine = own.written.get(file.path)
    if not file.writers and not own.left(file) and own.weigh(file).rank is Rank.WRITTEN:
        return True  # the run's output says that it saved it, at some time
    return file.path.endswith(DATABASES) or theirs.open or (mine is not None and mine.append)


def _is_same_host(one: str, other: str) -> bool:
    """Return whether two host names, whole or up to their first dots, may be one machine's."""
    return not one or not other or one.partition(".")[0].casefold() == other.partition(".")[0].casefold()


def _is_saved(path: str, saved: str) -> bool:
    """Return whether output that names ``saved``, perhaps without the ending, is about ``path``."""
    return path.startswith(saved) and (len(path) == len(saved) or path[len(saved)] in "./")
