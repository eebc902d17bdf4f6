"""The rows of all runs and sweeps that pages show: one for all pages of a server, computed once for each change."""

import asyncio
import contextlib
import math
import secrets
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from mcp_server.backends.ssh.ssh_channel import channel_of
from mcp_server.errors import RunwardError
from mcp_server.page.exchange import to_json
from mcp_server.page.sessions import Visitor
from mcp_server.record.run_directory import now
from mcp_server.record.state import Run
from mcp_server.record.sweeps.sweep_state import LIVE, Sweep
from mcp_server.store.run_index import RunQuery
from mcp_server.threads import run_in_thread
from mcp_server.tools.support.context import ServerContext
from mcp_server.views.people_rows import list_run, list_sweep

_GATHER_S = 0.1  # of changes, into one delta
_LOOK_S, _ROUND_S = 0.25, 2.5  # progress is in no directory that is watched: all live runs are looked at once a round
_CALM_S = 2.0  # between two looks where nothing lives
_SET_UP_S = 10.0  # for new watches: on a silent disk they are polled then
_MOST_ROWS = 5_000  # kept, beside those of live runs
_MOST_GONE = 1_000
_MOST_SWEEPS = 300
# They change by themselves: a row is sent again for the others.
_VOLATILE = ("elapsed_s", "eta_s", "heard_s")


@dataclass
class _Entry:
    """A row: the ``version`` at which it changed last, and its JSON without the end, which depends on the reader.

    ``directory``: where a change shows. ``output_at_s``: when the run had last written output.
    """

    version: int
    facts: Mapping[str, Any]
    text: str
    source: Run | Sweep
    directory: Path
    output_at_s: float | None = None
    is_final: bool = False

    @property
    def owner(self) -> str:
        return self.source.spec.owner


class Board:
    """The rows. ``version`` counts their changes. ``pages``: open streams; without any nothing is watched.

    A page holds the version that it has seen, and hears of whatever is newer: nothing is queued for it.
    """

    def __init__(self, server: ServerContext) -> None:
        self.pages = 0
        self._server, self._epoch, self.version = server, secrets.token_hex(4), 1
        self._runs: dict[str, _Entry] = {}
        self._sweeps: dict[str, _Entry] = {}
        self._present: set[str] = set()
        self._gone: deque[tuple[int, str]] = deque(maxlen=_MOST_GONE)
        self._forgotten = 0  # version of the newest removal that is no longer known
        self._deltas: dict[tuple[int, int, Visitor], str | None] = {}  # most pages ask for the same one
        self._ring: list[str] = []  # of live runs, those that were not looked at in this round
        self._next_round_s, self._share = 0.0, 1
        self._lock = asyncio.Lock()
        self._news = anyio.Event()
        self._task: asyncio.Task[None] | None = None

    def name_place(self, version: int) -> str:
        """Return the cursor of a version: its place in the stream of changes."""
        return f"{self._epoch}-{version}"

    # --- for handlers

    async def list_rows(self, visitor: Visitor, limit: int, before: str | None) -> str:
        """Return the answer with the newest rows, and all live ones, as JSON. RunNotFound: no run ``before``."""
        async with self._lock:
            shown, sweeps, total, older = await run_in_thread(self._load, limit, before)
            cursor = self.name_place(self.version)
        runs = [self._runs[run_id] for run_id in shown if run_id in self._runs]
        listed = [self._sweeps[sweep_id] for sweep_id in sweeps if sweep_id in self._sweeps]
        head = to_json({"cursor": cursor, "now": now(), "total": total, "older": older})
        return f'{head[:-1]},"runs":[{_join(runs, visitor)}],"sweeps":[{_join(listed, visitor)}]}}'

    async def read_row(self, run_id: str, visitor: Visitor) -> dict[str, Any]:
        """Return the row of a run or sweep as it is now. RunNotFound."""
        async with self._lock:
            entry = await run_in_thread(self._read_one, run_id)
        return {**entry.facts, "mine": visitor.controls(entry.owner)}

    async def touch(self, run_id: str) -> None:
        """Look at a run or sweep that has just been changed from here."""
        async with self._lock:
            await run_in_thread(self._read_one, run_id, anew=True)
        self._tell()

    # --- for streams

    @contextlib.contextmanager
    def open_page(self) -> Iterator[None]:
        """Watch the records as long as a page is open."""
        self.pages += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            self.pages -= 1
            if not self.pages and self._task is not None:
                self._task.cancel()
                self._task = None

    def read_cursor(self, cursor: str) -> int | None:
        """Return the version of a cursor; None where what was since is not known: of another server, or too old."""
        epoch, _, version = cursor.rpartition("-")
        if epoch != self._epoch or not version.isascii() or not version.isdigit():
            return None
        return int(version) if self._forgotten <= int(version) <= self.version else None

    def changes_since(self, version: int, visitor: Visitor) -> tuple[int, str | None]:
        """Return the version of now, and what has changed since ``version`` as JSON, None without any change."""
        newest = self.version
        key = version, newest, visitor
        if key not in self._deltas:
            runs, sweeps = ([each for each in list(kept.values()) if each.version > version] for kept in self._kept())
            gone, text = [run_id for at, run_id in self._gone if at > version], None
            if runs or sweeps or gone:
                end = to_json({"gone": gone, "now": now()})
                text = f'{{"runs":[{_join(runs, visitor)}],"sweeps":[{_join(sweeps, visitor)}],{end[1:]}'
            self._deltas = {key: text, **{each: known for each, known in self._deltas.items() if each[1] == newest}}
        return newest, self._deltas[key]

    async def next_change(self, version: int) -> int:
        """Return the version now, once it is newer than ``version``."""
        while self.version <= version:
            await self._news.wait()
        return self.version

    def _kept(self) -> tuple[dict[str, _Entry], dict[str, _Entry]]:
        return self._runs, self._sweeps

    def _tell(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()

    async def _watch(self) -> None:
        home = self._server.home
        mirrors = await run_in_thread(home.list_mirrors)
        parents = [home.runs, home.sweeps, *(mirror / "runs" for mirror in mirrors)]
        told = self.version
        with self._server.file_watch.subscribe(await run_in_thread(_list_existing, parents)) as subscription:
            while True:
                with anyio.move_on_after(_SET_UP_S):
                    await subscription.set_up()
                with anyio.move_on_after(_LOOK_S if self._list_live() else _CALM_S):
                    await subscription.next_change()
                changed = subscription.take_changed()
                for part in (changed, None) if changed else (None,):  # news first, then the round of all
                    async with self._lock:
                        watched = await run_in_thread(self._look, part, parents, set(subscription.directories))
                    if self.version > told:
                        told = self.version
                        self._tell()
                if watched != set(subscription.directories):
                    subscription.leave([path for path in subscription.directories if path not in watched])
                    subscription.extend(path for path in watched if path not in subscription.directories)
                await anyio.sleep(_GATHER_S)

    # --- in threads, one at a time

    def _load(self, limit: int, before: str | None) -> tuple[list[str], list[str], int, bool]:
        store = self._server.store
        query = RunQuery(cut_off=False, before=None if before is None else store.observe(before))
        with store.one_look():
            total = sum(store.count_states(RunQuery(cut_off=False)).values())
            newest = store.list_runs(query, limit)
            others = store.list_runs(RunQuery("live")) if before is None else []
        shown = {run.run_id: run for run in (*newest, *others)}
        for run in shown.values():
            self._put(run, is_news=run.run_id not in self._present)
        self._present |= store.list_present()
        sweeps = [] if before is not None else self._look_at_sweeps(None)
        self._drop_surplus(set(shown))
        return list(shown), sweeps, total, len(newest) == limit

    def _read_one(self, run_id: str, *, anew: bool = False) -> _Entry:
        watched = self._server.store.observe_any(run_id)
        if isinstance(watched, Sweep):
            return self._put_sweep(watched)
        return self._put(watched, anew=anew, is_news=anew or run_id not in self._present)

    def _look(self, changed: Iterable[Path] | None, parents: Iterable[Path], watched: set[Path]) -> set[Path]:
        """Bring the rows of these directories up to date, without any the next of the round; return those to watch.

        One that does not exist is left out: for it, all of them were polled.
        """
        store, names = self._server.store, {path.name for path in changed or ()}
        due: set[str] = {name for name in names if name in self._runs}
        if not self._present or not names.isdisjoint(path.name for path in parents):
            present = store.list_present()
            due |= present - self._present
            for run_id in (self._present | self._runs.keys()) - present:
                self._remove(self._runs, run_id)
            self._present = present
        if changed is None:
            due.update(self._take_from_round())
        for run_id in due:
            try:
                self._put(store.observe(run_id))
            except RunwardError:  # no run's directory, not written yet, or unreadable now: looked at again
                self._present.discard(run_id)
        cells = (entry.facts.get("sweep") for run_id in due if (entry := self._runs.get(run_id)) is not None)
        self._look_at_sweeps(names | {str(sweep_id) for sweep_id in cells})
        self._drop_surplus(due)
        entries = (entry for kept in self._kept() for entry in kept.values())
        places = (*parents, *(entry.directory for entry in entries if not entry.is_final))
        return {*(place for place in places if place in watched), *_list_existing(set(places) - watched)}

    def _take_from_round(self) -> list[str]:
        if not self._ring and time.monotonic() >= self._next_round_s:
            self._ring, self._next_round_s = self._list_live(), time.monotonic() + _ROUND_S
            self._share = max(1, math.ceil(len(self._ring) * (_LOOK_S + _GATHER_S) / _ROUND_S))
        taken, self._ring = self._ring[: self._share], self._ring[self._share :]
        return taken

    def _list_live(self) -> list[str]:
        return [run_id for run_id, entry in self._runs.items() if not entry.is_final]

    def _look_at_sweeps(self, names: set[str] | None) -> list[str]:
        """Bring the rows of sweeps up to date, of all or of those in ``names``; return the ids, newest first."""
        home, store = self._server.home, self._server.store
        if not home.sweeps.is_dir():
            return []
        if names is None or home.sweeps.name in names or not self._sweeps:
            sweeps = store.sweeps.list_sweeps(_MOST_SWEEPS)
            for sweep_id in self._sweeps.keys() - {sweep.sweep_id for sweep in sweeps}:
                self._remove(self._sweeps, sweep_id)
        else:
            sweeps = []
            for sweep_id in names & self._sweeps.keys():
                with contextlib.suppress(RunwardError):
                    sweeps.append(store.sweeps.observe(sweep_id))
        for sweep in sweeps:
            self._put_sweep(sweep)
        return [sweep.sweep_id for sweep in sweeps]

    def _put(self, run: Run, *, anew: bool = False, is_news: bool = True) -> _Entry:
        """Keep the row of a run; a run that was there before is no news to the pages that did not ask for its row."""
        former = self._runs.get(run.run_id)
        is_final = self._server.store.is_final(run)
        if former is not None and former.is_final and not anew and former.source.spec.created_at == run.spec.created_at:
            return former
        output_at_s = self._server.store.output_at_s(run)
        is_steady = not (anew or run.spec.mirror)
        if is_steady and former is not None and former.source is run and former.output_at_s == output_at_s:
            return former  # all that is new of it is its age
        facts = list_run(self._server.store, run).facts
        if run.spec.mirror and not run.ended:
            facts["heard_s"] = round(channel_of(Path(run.spec.mirror)).behind_s, 1)
        directory = self._server.store.record_of(run).path if former is None else former.directory
        entry = _Entry(self.version, facts, "", run, directory, output_at_s, is_final)
        return self._keep(self._runs, entry, former, is_news=is_news)

    def _put_sweep(self, sweep: Sweep) -> _Entry:
        former = self._sweeps.get(sweep.sweep_id)
        if former is not None and former.source is sweep and former.is_final:
            return former
        cells = ((cell.cell.name, self._runs.get(cell.run_id or "")) for cell in sweep.cells if cell.state == LIVE)
        live = {name: entry.source for name, entry in cells if entry is not None and isinstance(entry.source, Run)}
        directory, facts = self._server.home.sweeps / sweep.sweep_id, list_sweep(sweep, live).facts
        entry = _Entry(self.version, facts, "", sweep, directory, is_final=sweep.ended)
        return self._keep(self._sweeps, entry, former)

    def _keep(self, kept: dict[str, _Entry], entry: _Entry, former: _Entry | None, *, is_news: bool = True) -> _Entry:
        if former is not None and _steady(former.facts) == _steady(entry.facts):
            entry.version = former.version
        else:
            entry.version = self.version + 1 if is_news or former is not None else 0
        entry.text = to_json(entry.facts)[:-1]
        kept[entry.source.run_id] = entry
        self.version = max(self.version, entry.version)  # last: who sees a version finds what it stands for
        return entry

    def _remove(self, kept: dict[str, _Entry], run_id: str) -> None:
        if kept.pop(run_id, None) is not None:
            if len(self._gone) == _MOST_GONE:
                self._forgotten = self._gone[0][0]
            self._gone.append((self.version + 1, run_id))
            self.version += 1

    def _drop_surplus(self, used: set[str]) -> None:
        surplus = len(self._runs) - _MOST_ROWS
        for run_id in [each for each, entry in self._runs.items() if entry.is_final and each not in used][:surplus]:
            if surplus > 0:
                del self._runs[run_id]


def _list_existing(places: Iterable[Path]) -> list[Path]:
    return [place for place in places if place.is_dir()]


def _join(entries: Iterable[_Entry], visitor: Visitor) -> str:
    return ",".join(f'{each.text},"mine":{"true" if visitor.controls(each.owner) else "false"}}}' for each in entries)


def _steady(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name not in _VOLATILE}
