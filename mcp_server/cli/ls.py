"""`runward ls`: list runs, newest first. The rows of runs and sweeps, how they fit a terminal, and when they change."""

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import anyio
from rich.cells import cell_len, set_cell_size
from rich.console import Group
from rich.live import Live
from rich.text import Text

from mcp_server.cli.output import print_json
from mcp_server.cli.tables import open_console
from mcp_server.record.events import LIVE_STATES
from mcp_server.record.state import Run, posix
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.freshness import refresh
from mcp_server.store.run_index import RunQuery
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.text.formatting import ago, clock, printable, rough_duration, shorten_middle
from mcp_server.threads import run_in_thread
from mcp_server.views.gpu_report import describe_devices
from mcp_server.views.people_rows import ListedRun, list_run
from mcp_server.views.run_status import RunStatus, status_of
from mcp_server.views.sweep_status import line_of_sweep

COLUMNS = ("RUN", "STATE", "STEP", "LEFT", "METRIC", "GPUS", "WHEN")
COLOURS = {"finished": "green", "failed": "red", "killed": "yellow", "timed_out": "yellow", "lost": "magenta"}
_MORE = ("EXIT", "HOST", "OWNER", "ELAPSED", "LAST OUTPUT", "STARTED")  # where there is room
_CHARS = {"STATE": 9, "STEP": 13, "LEFT": 7, "METRIC": 16, "GPUS": 7, "WHEN": 11, "TREND": 8}  # where there is little
_GIVEN_UP = ("TREND", "GPUS", "LEFT", "WHEN", "METRIC", "STEP")  # in this order, where there is less
TREND = "TREND"  # of the metric, in the live table
_ID_CHARS, _FEWEST_ID_CHARS, _TAIL_CHARS = 28, 10, 5
_MOST_SWEEPS = 20  # looked at
_GATHER_S, _SHARE, _CALM_S = 0.2, 0.01, 10.0  # changes into one look; of a core for looks; without a change
Looked = TypeVar("Looked")


def run(arguments: argparse.Namespace) -> int:
    """Print the runs in the asked state, at most ``arguments.limit``, once or at each change, and return 0."""
    store = RunStore(StateHome.of(os.environ))
    if arguments.watch:
        with contextlib.suppress(KeyboardInterrupt):  # before it is heard
            anyio.run(_watch_until_interrupt, store, arguments)
        return 0
    listed = _look(store, arguments, at_once=True)
    if arguments.json:
        print_json(listed.facts)
    else:
        open_console().print(listed.draw())
    return 0


async def _watch_until_interrupt(store: RunStore, arguments: argparse.Namespace) -> None:
    with anyio.open_signal_receiver(signal.SIGINT) as interrupts:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_watch, store, arguments)
            await anext(interrupts)
            tasks.cancel_scope.cancel()


async def _watch(store: RunStore, arguments: argparse.Namespace) -> None:
    def look() -> tuple[_Listed, list[Path]]:
        listed = _look(store, arguments)
        return listed, list_directories(store, listed.runs)

    console, before = open_console(), None
    with Live(console=console, auto_refresh=False) if console.is_terminal else contextlib.nullcontext() as live:
        async with contextlib.aclosing(follow(look)) as looks:
            async for listed in looks:
                if live is not None and not arguments.json:
                    live.update(listed.draw(), refresh=True)
                elif before is None or before.key != listed.key:
                    print_json(listed.facts) if arguments.json else console.print(listed.draw())
                    before = listed


@dataclass(frozen=True)
class _Listed:
    """The output of the verb. ``key``: its news, where each change is printed below the one before."""

    runs: Sequence[Run]
    rows: Sequence[ListedRun]
    statuses: Sequence[RunStatus]  # for scripts
    total: int
    state: str | None
    sweeps: Sequence[str]

    @property
    def key(self) -> object:
        return [(row.id, row.state, row.unreachable, row.step, row.metric) for row in self.rows], self.sweeps

    @property
    def facts(self) -> dict[str, object]:
        return {"runs": [status.model_dump(mode="json") for status in self.statuses], "total": self.total}

    def draw(self) -> Group:
        if not self.rows:
            return Group("No runs yet." if self.state is None else f"No runs: {self.state}.")
        cells = [draw_cells(row, time.time()) for row in self.rows]
        lines = lay_out(cells, os.get_terminal_size().columns if sys.stdout.isatty() else None)
        for away in {row.unreachable["host"]: row.unreachable for row in self.rows if row.unreachable}.values():
            since = f"{away['host']} cannot be reached since {away['since']} ({away['why']})"
            lines.append(Text(f"{since}: the states of its runs are the last known.", style="yellow"))
        lines += [Text(f"sweep {printable(line)}", style="dim") for line in self.sweeps]
        if self.total > len(self.rows):
            lines.append(Text(f"{self.total - len(self.rows)} older runs: -n {self.total}", style="dim"))
        return Group(*lines)


def _look(store: RunStore, arguments: argparse.Namespace, *, at_once: bool = False) -> _Listed:
    """Look at the runs; ``at_once``: how far they are now, which supervisors note every few seconds anyway."""
    state = arguments.state
    query = RunQuery(state, cut_off=None if state == "lost" else False)
    with store.one_look():
        runs, total = store.list_runs(query, arguments.limit), sum(store.count_states(query).values())
    runs = refresh(store, runs) if at_once else runs
    told = runs if arguments.json else ()
    statuses = [status_of(store, run, since=run.last_seq, listed=True) for run in told]
    rows = [list_run(store, run, reads_output=False) for run in runs]
    asked = state in (None, "live") and store.home.sweeps.is_dir()
    sweeps = [each for each in store.sweeps.list_sweeps(_MOST_SWEEPS) if not each.ended] if asked else []
    return _Listed(runs, rows, statuses, total, state, [line_of_sweep(sweep, store) for sweep in sweeps])


def list_directories(store: RunStore, runs: Iterable[Run]) -> list[Path]:
    """Return the directories in which new runs, and changes of these, show, as far as they exist."""
    home = store.home
    places = [home.path, home.runs, home.sweeps, *(mirror / "runs" for mirror in home.list_mirrors())]
    for run in runs:
        if not run.ended:
            record = store.record_of(run)
            places += [record.path, record.log(run.attempt).parent]
    return [path for path in places if path.is_dir()]


async def follow(look: Callable[[], tuple[Looked, Iterable[Path]]]) -> AsyncGenerator[Looked, None]:
    """Yield the first result of ``look`` at first, and again after changes in the directories that it returns.

    It is called in a thread, every 10 s without a change, and as seldom as keeps it to a hundredth of a core.
    """

    def measure() -> tuple[Looked, list[Path], float]:
        begun_s = time.thread_time()
        looked, directories = look()
        return looked, list(directories), time.thread_time() - begun_s

    with contextlib.closing(FileWatch()) as file_watch, file_watch.subscribe(()) as subscription:
        while True:
            looked, directories, spent_s = await run_in_thread(measure)
            subscription.leave([path for path in subscription.directories if path not in directories])
            subscription.extend(directories)
            yield looked
            await anyio.sleep(min(max(_GATHER_S, spent_s / _SHARE), _CALM_S))
            with anyio.move_on_after(_CALM_S):
                await subscription.next_change()


def draw_cells(row: ListedRun, now_s: float) -> dict[str, str]:
    """Return the texts of a row by column. Pure."""
    total = f"/{row.total}" if row.total else ""
    step = "" if row.step is None else f"{row.step}{total}" + (f" (round {row.round})" if row.round else "")
    code = row.kind or row.signal or ("" if row.exit_code is None else str(row.exit_code))
    metric: Mapping[str, Any] | None = {"tag": "best", **row.best} if row.best else row.metric
    value = "" if metric is None else metric["value"]
    figure = f"{metric['tag']} {value:.4g}" if metric and isinstance(value, int | float) else str(value)
    if row.cells:
        begun = sum(row.cells.get(state, 0) for state in {*LIVE_STATES.values()})
        step = f"{row.cells['total'] - begun}/{row.cells['total']} cells"
    silent_s = now_s - posix(row.last_output_at) if row.last_output_at and row.live else None
    cells = {
        "RUN": row.id,
        "STATE": f"{row.state}?" if row.unreachable else row.state,
        "STEP": step,
        "LEFT": "" if row.eta_s is None else rough_duration(row.eta_s),
        "METRIC": code if row.state == "failed" else "" if row.state == "lost" else figure,
        "GPUS": describe_devices(row.gpus or ()).removeprefix("GPU ") if row.live else "",
        "WHEN": _tell_time(row, now_s),
        "EXIT": code,
        "HOST": row.host or "",
        "OWNER": row.owner or "",
        "ELAPSED": "" if row.elapsed_s is None else clock(row.elapsed_s),
        "LAST OUTPUT": f"{row.host} is away" if row.unreachable else "" if silent_s is None else ago(silent_s),
        "STARTED": (row.started_at or "")[:16].replace("T", " "),
    }
    return {name: printable(text) for name, text in cells.items()}


def lay_out(
    rows: Sequence[Mapping[str, str]], width: int | None, columns: Sequence[str] = (*COLUMNS, *_MORE)
) -> list[Text]:
    """Return the header and the rows as lines of at most ``width`` cells; None: whole, for scripts. Pure.

    A long id is shortened in its middle, to a text that no other row has: then the last columns are left out.
    """
    shown = [name for name in columns if name != "HOST" or any(row.get(name) for row in rows)]
    if width is None:
        gap, ids = 2, [row["RUN"] for row in rows]
    else:
        rows, shown, gap, ids = _fit(rows, shown, width)
    cells = [dict(zip(shown, shown, strict=True)), *({**row, "RUN": name} for row, name in zip(rows, ids, strict=True))]
    widths = {name: max(cell_len(row.get(name, "")) for row in cells) for name in shown}
    lines = []
    for number, row in enumerate(cells):
        line = Text(style="bold" if number == 0 else "")
        for name in shown:
            style = COLOURS.get(row[name].rstrip("?"), "cyan") if number and name == "STATE" else ""
            line.append(set_cell_size(row.get(name, ""), widths[name]), style).append(" " * gap)
        line.rstrip()
        lines.append(line)
    return lines


def _fit(
    cells: Sequence[Mapping[str, str]], columns: Sequence[str], width: int
) -> tuple[list[dict[str, str]], list[str], int, list[str]]:
    """Return the cells, the columns and the gap between them that leave room for the ids, and these."""
    base, more = [name for name in columns if name in COLUMNS], [name for name in columns if name not in COLUMNS]
    whole = [row["RUN"] for row in cells]
    longest = max(map(len, whole), default=0)
    fewest_more = 1 if more[:1] == [TREND] else 0
    plans: list[tuple[list[str], bool, int, int]] = [
        ([*base, *more[:count]], False, 2, _ID_CHARS) for count in range(len(more), fewest_more - 1, -1)
    ]
    kept = [*base, *more[:fewest_more]]
    for given_up in ("", *_GIVEN_UP):
        kept = [name for name in kept if name != given_up]
        plans += [(kept, True, gap, _FEWEST_ID_CHARS) for gap in (2, 1)]
    for names, is_narrow, gap, chars in plans:
        rows = [
            {name: _narrow(name, row.get(name, "")) if is_narrow else row.get(name, "") for name in names}
            for row in cells
        ]
        used = sum(max(len(name), *(cell_len(row[name]) for row in rows), 0) + gap for name in names if name != "RUN")
        ids = shorten_ids(whole, max(width - used, 1))
        room = width - used
        if room >= min(longest, chars) and max(map(len, ids), default=0) <= room:
            break
    return rows, names, gap, ids


def shorten_ids(ids: Sequence[str], chars: int) -> list[str]:
    """Return each id in at most ``chars`` characters, or in as many as it takes to tell all of them apart. Pure."""
    longest = max(map(len, ids), default=0)
    for room in range(max(chars, 3), longest):
        for tail in range(min(_TAIL_CHARS, room - 2), room - 1):
            short = [shorten_middle(each, room, head=room - 1 - tail) for each in ids]
            if len(set(short)) == len(set(ids)):
                return short
    return list(ids)


def _narrow(column: str, text: str) -> str:
    """Return a cell in the width that its column has where there is little room."""
    chars = _CHARS.get(column, cell_len(text))
    if cell_len(text) <= chars:
        return text
    name, _, value = text.rpartition(" ")
    if column == "STEP":
        text = "/".join(map(_thousands, text.split(" ", maxsplit=1)[0].split("/")))
    elif column == "METRIC":
        names = (f"{shorten_middle(name, count)} {value}" for count in range(chars - len(value) - 1, 1, -1))
        text = next((each for each in names if cell_len(each) <= chars), text)
    text = shorten_middle(text, chars)
    return text if cell_len(text) <= chars else set_cell_size(text, chars)


def _thousands(text: str) -> str:
    """Return a long count as ``1.84M``."""
    if not text.isdecimal() or len(text) < len("10000"):
        return text
    power = min((len(text) - 1) // 3, 4)
    return f"{int(text) / 1000**power:.3g}{'kMGT'[power - 1]}"


def _tell_time(row: ListedRun, now_s: float) -> str:
    at = (row.started_at or row.created_at) if row.live else (row.ended_at or row.last_output_at)
    if at is None:
        return ""
    age = rough_duration(now_s - posix(at))
    return f"for {age}" if row.live else f"{age} ago"
