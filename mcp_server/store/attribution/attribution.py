"""Which files are a run's: its claims against those of all other runs (the rules are in `claims`).

Directories in which runs that lived at one time wrote over each other's files, as far as it was seen. Pure.

Event files of two runs in one directory are one curve to TensorBoard. A table to which both append, a database and a
lock are shared on purpose, and so are caches and what lies outside the directories of the runs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from mcp_server.record.claims import SLACK_S, Claims, FileFacts, Rank, Verdict, decide
from mcp_server.record.run_directory import boot_id, read_json
from mcp_server.record.scalar_files import DATABASES, parse_event_name
from mcp_server.record.state import Run, posix
from mcp_server.record.written_files import read_outputs
from mcp_server.store.attribution.claim_records import (
    add_open_files,
    build_claims,
    find_last_sign_s,
    move_outputs,
    move_run,
)
from mcp_server.store.run_index import RunQuery
from mcp_server.store.run_store import RunStore
from mcp_server.system.files import is_within
from mcp_server.text.formatting import join_some

_MOST_OTHERS, _MOST_REMEMBERED, _MOST_UNCERTAIN = 300, 2_000, 1_000
_NAMED_IN_NOTE = 3
_ON_PURPOSE = (*DATABASES, ".lock", ".pid")
_FEW = 2


class OwnFiles:
    """Decides which files are those of one run, and remembers the uncertain ones.

    ``find_others``: returns the claims of others, and whether the run and all that ran beside it have ended. It is
    called at the first file: of 300 other runs that takes 50 ms, and most runs without a metric have no file.
    """

    def __init__(
        self,
        claims: Claims,
        others: Sequence[Claims] = (),
        find_others: Callable[[], tuple[Sequence[Claims], bool]] | None = None,
        *,
        has_ended: bool = False,
    ) -> None:
        self.claims = claims
        self._has_ended = has_ended
        self._find_others = find_others or (lambda: (others, False))
        self._uncertain: dict[str, None] = {}

    @cached_property
    def _found(self) -> tuple[Sequence[Claims], bool]:
        return self._find_others()

    @property
    def _others(self) -> Sequence[Claims]:
        return self._found[0]

    @property
    def is_settled(self) -> bool:
        """Whether the run has ended, and all that ran beside it, where that decides about any file."""
        return self._found[1] if "_found" in vars(self) else self._has_ended

    def judge(self, file: FileFacts, least: Rank = Rank.BELOW) -> tuple[Verdict, Rank]:
        """Return the verdict on a file, and the run's evidence. Evidence below ``least`` is uncertain."""
        verdict, rank, _ = decide(file, self.claims, self._others)
        if verdict is Verdict.OWN and rank < least:
            verdict = Verdict.UNCERTAIN
        if verdict is Verdict.UNCERTAIN:
            self._note_uncertain(file.path)
        return verdict, rank

    def judge_all(self, files: Sequence[FileFacts]) -> tuple[Verdict, Rank]:
        """Return the verdict on a directory whose files belong together, and the strongest evidence of the run.

        It is the run's if none of its files is another's, and it wrote one, or all that changed are its own.
        """
        judged = [decide(file, self.claims, self._others) for file in files]
        rank = max((one.rank for one in judged), default=Rank.NONE)
        verdicts = {one.verdict for one in judged if one.rank is not Rank.NONE}
        unrelated = (file for file, one in zip(files, judged, strict=True) if one.rank is Rank.NONE)
        if Verdict.OTHER in verdicts or rank is Rank.NONE or any(map(self._is_written_by_another, unrelated)):
            return Verdict.OTHER, rank
        is_own = verdicts == {Verdict.OWN} or any(v is Verdict.OWN and r >= Rank.WRITTEN for v, r, _ in judged)
        if is_own and rank >= Rank.BELOW:
            return Verdict.OWN, rank
        self._note_uncertain(os.path.commonpath([file.path for file in files]))
        return Verdict.UNCERTAIN, rank

    def _is_written_by_another(self, file: FileFacts) -> bool:
        return any(other.weigh(file, as_other=True).rank >= Rank.WRITTEN for other in self._others)

    def _note_uncertain(self, path: str) -> None:
        if len(self._uncertain) < _MOST_UNCERTAIN:
            self._uncertain[path] = None

    def roots(self) -> list[Path]:
        """Return the directories that hold, or may hold, files of the run, without those below its working directory.

        Below one such as /tmp, which is not searched, they are among them.
        """
        claims = self.claims
        paths = [*claims.tensorboard, *claims.results, *sorted(claims.named), *sorted(claims.beside)]
        paths += [*sorted(claims.mentioned), *sorted(claims.linked)]
        is_searched = is_root(claims.cwd)
        outside = [
            path for path in dict.fromkeys(paths) if is_root(path) and not (is_searched and is_within(path, claims.cwd))
        ]
        return [Path(path) for path in outside if not any(path != one and is_within(path, one) for one in outside)]

    def describe_places(self) -> str:
        """Return where the run's files are looked for, as the end of a sentence."""
        below = [str(path) for path in (self.claims.cwd, *self.roots()) if str(path) and is_root(str(path))]
        count = len(self.claims.written)
        opened = f" and at {count} file{'s' if count > 1 else ''} that it had open" if count else ""
        return f"looked below {join_some(below, _NAMED_IN_NOTE) or 'no directory'}{opened}"

    def learn(self, files: Iterable[FileFacts]) -> None:
        """Note in which directories the event files are that the names prove to be the run's."""
        proven = [file for file in files if self.claims.weigh(file).rank is Rank.WRITTEN]
        if proven:
            beside = {os.path.dirname(file.path) for file in proven}  # noqa: PTH120 - plain strings
            self.claims = replace(self.claims, beside=self.claims.beside | beside, has_events=True)

    def with_result_directory(self, path: Path) -> OwnFiles:
        """Return the same with another result directory of the run."""
        claims = replace(self.claims, result_dir=str(path), named=self.claims.named | {str(path)})
        return OwnFiles(claims, find_others=lambda: self._found, has_ended=self._has_ended)

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


def is_root(path: str) -> bool:
    """Return whether a search below a directory finds the files of few: not below /, /tmp or the home directory."""
    return path not in ("/", "/tmp", "/var/tmp", "/dev/shm", str(Path.home()))  # noqa: S108


class Attribution:
    """Reads the claims of all runs. May be shared by threads."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._claims: dict[str, tuple[object, Claims]] = {}
        self._records: dict[str, tuple[int, tuple[str, ...]]] = {}

    def of(self, run: Run) -> OwnFiles:
        """Return what decides which files are those of ``run``."""
        claims = self.claims_of(run)
        if not run.ended and not run.spec.mirror and run.spec.boot_id in ("", boot_id()):
            claims = add_open_files(run, claims)

        def find_others() -> tuple[list[Claims], bool]:
            beside = self._store.list_runs(RunQuery(beside=run), _MOST_OTHERS)
            others = [self.claims_of(other) for other in beside]
            is_settled = run.ended and all(other.ended or not _overlap(run, other) for other in beside)
            others += [one for one in claims.outsiders if not any(one.pids & other.pids for other in others)]
            return others, is_settled

        return OwnFiles(claims, find_others=find_others, has_ended=run.ended)

    def describe_shared(self, runs: Sequence[Run], others: Iterable[Run] = ()) -> dict[str, str]:
        """Return by directory where any of ``runs`` writes the same files as another, or of ``others``. Reads records.

        Runs of other hosts are left out.
        """
        here = {run.run_id: run for run in (*runs, *others) if not run.spec.mirror}
        texts = describe_shared(list(map(self.claims_of, here.values()))) if len(here) > 1 else {}
        return {directory: text for directory, text in texts.items() if any(run.run_id in text for run in runs)}

    def claims_of(self, run: Run) -> Claims:
        """Return the claims of one run, read again when its record has changed."""
        paths = self._list_records(run)
        key = (run.state, run.attempt, run.ended_at, run.spec.created_at, run.made_a_step, *map(_stamp, paths))
        with self._lock:
            cached = self._claims.get(run.run_id)
            if cached is not None and cached[0] == key:
                return cached[1]
        rundir = self._store.record_of(run)
        records = [read_outputs(Path(path)) for path in paths[1:]]
        if mirror := run.spec.mirror:  # its paths are another host's, and say nothing of files here
            records = [move_outputs(record, mirror) if record else None for record in records]
            run = move_run(run)
        claims = build_claims(run, records, read_json(rundir.attribution) or {}, find_last_sign_s(run, rundir))
        with self._lock:
            while len(self._claims) >= _MOST_REMEMBERED:
                del self._claims[next(iter(self._claims))]
            self._claims[run.run_id] = key, claims
        return claims

    def _list_records(self, run: Run) -> tuple[str, ...]:
        """Return the paths of the files that a run's claims are read from, kept: they are asked about again and again.

        To make those of 300 other runs takes longer than to look at the files.
        """
        attempt, paths = self._records.get(run.run_id, (0, ()))
        if attempt != run.attempt:
            rundir = self._store.record_of(run)
            files = [rundir.attribution, *(rundir.outputs(number) for number in range(1, run.attempt + 1))]
            paths = tuple(map(str, files))
            with self._lock:
                while len(self._records) >= _MOST_REMEMBERED:
                    del self._records[next(iter(self._records))]
                self._records[run.run_id] = run.attempt, paths
        return paths

    def stamp(self, run: Run) -> object:
        """Return a value that changes when a person corrects the attribution of a run."""
        return _stamp(self._list_records(run)[0])


def _overlap(run: Run, other: Run) -> bool:
    """Return whether both ran at one time; of a run without a known end, from its start on."""
    spans = [
        (posix(one.started_at or one.spec.created_at) - SLACK_S, posix(one.ended_at) if one.ended_at else float("inf"))
        for one in (run, other)
        if one.started_at or one.spec.created_at
    ]
    return len(spans) < 2 or (spans[0][0] <= spans[1][1] and spans[1][0] <= spans[0][1])  # noqa: PLR2004 - both


def _stamp(path: str) -> object:
    try:
        status = os.stat(path)  # noqa: PTH116 - hot path
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def describe_shared(claims: Sequence[Claims]) -> dict[str, str]:
    """Return a sentence for each directory in which several runs write the same files, with their ids and a file."""
    writers: dict[str, list[Claims]] = {}
    for one in sorted(claims, key=lambda one: one.run_id):
        for place in _list_places(one):
            writers.setdefault(place, []).append(one)
    shared: dict[str, dict[str, str]] = {}
    for place, runs in sorted(writers.items()):
        directory, _, name = place.rpartition("/")
        for one in runs:
            if any(one is not other and one.begun_s < other.ended_s and other.begun_s < one.ended_s for other in runs):
                shared.setdefault(directory, {}).setdefault(one.run_id, name or "event files")
    return {
        directory: f"{_join(list(names))} write the same files in {directory} "
        f"({next(iter(names.values()))}): what is there may be of any of them. Give each a directory of its own, with "
        "{run_id}."
        for directory, names in shared.items()
    }


def _join(ids: Sequence[str]) -> str:
    return " and ".join(ids) if len(ids) <= _FEW else join_some(ids, _FEW)


def _list_places(claims: Claims) -> Iterator[str]:
    """Yield the files that a run had open for writing; event files as their directory, with a slash at its end."""
    places = dict.fromkeys(
        f"{path.rpartition('/')[0]}/" if parse_event_name(path.rpartition("/")[2]) else path
        for path, file in claims.written.items()
        if not (file.listed or file.append or path.endswith(_ON_PURPOSE))
    )
    for place in places:
        is_own = any(is_within(place, one) for one in (claims.cwd, *claims.named))
        if is_own and not any(part.startswith((".", "__")) or "cache" in part.lower() for part in place.split("/")):
            yield place
