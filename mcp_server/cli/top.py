"""`runward top`: the table of runs, live: sparklines, GPUs, a run's screen, and a stop that a person confirms."""

import argparse
import codecs
import contextlib
import io
import math
import os
import re
import signal
import sys
import termios
import textwrap
import time
import tty
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import anyio
from anyio.abc import TaskGroup
from rich.console import Console
from rich.text import Text

from mcp_server.backends.base import backend_of
from mcp_server.cli import kill
from mcp_server.cli.ls import COLOURS, COLUMNS, TREND, ListedRun, describe_row, follow, lay_out, list_directories
from mcp_server.diagnosis.progress.tracker import ProgressTracker
from mcp_server.errors import RunwardError
from mcp_server.gpus.leases import Leases, lease_directory
from mcp_server.gpus.query import GpuSampler
from mcp_server.gpus.snapshot import Gpu
from mcp_server.hosts.environment import list_known_secrets
from mcp_server.record.state import Run, posix
from mcp_server.record.sweeps.sweep_state import Sweep, Watched
from mcp_server.store.run_index import RunQuery
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.system.files import read_end
from mcp_server.text.formatting import printable, rough_duration
from mcp_server.text.log_text import clean_lines
from mcp_server.text.secret_patterns import mask_secrets
from mcp_server.threads import run_in_thread
from mcp_server.views.gpu_report import describe_devices, list_flags
from mcp_server.views.log_excerpt import read_tail
from mcp_server.views.progress_text import describe_progress, first_metrics
from mcp_server.views.run_status import RunStatus, status_of
from mcp_server.views.sweep_status import count_kinds, summarise_sweep

_COLUMNS = (*COLUMNS, TREND, "HOST", "OWNER", "EXIT")
_ALWAYS = ("RUN", "STATE", "STEP", "WHEN")  # other columns where a row has something there
_MOST_RUNS, _MOST_LIVE, _MOST_SWEEPS = 100, 300, 20
_GPU_EVERY_S, _GPU_CELLS = 5.0, 38
_TREND_CHARS, _MOST_POINTS, _BACKFILL_BYTES = 8, 256, 64 * 2**10
_BARS = "▁▂▃▄▅▆▇█"
_SCREEN_LINES, _SCREEN_BYTES, _LINE_CHARS = 100, 32 * 2**10, 1000
_ESCAPE_S, _DRAW_S = 0.03, 0.03  # until the rest of an arrow's sequence is there; between two frames
_HELP = {
    "table": "↑ ↓ j move   Enter open   k stop   / filter   q quit",
    "run": "Esc back   k stop   q quit",
    "filter": "Enter keep   Esc clear",
    "stop": "Enter confirm   Esc leave it alone",
}
_SEQUENCES = {
    "up": ("\x1b[A", "\x1bOA"),
    "down": ("\x1b[B", "\x1bOB"),
    "page up": ("\x1b[5~",),
    "page down": ("\x1b[6~",),
    "home": ("\x1b[H", "\x1bOH", "\x1b[1~"),
    "end": ("\x1b[F", "\x1bOF", "\x1b[4~"),
    "enter": ("\r", "\n"),
    "rubout": ("\x7f", "\b"),
    "escape": ("\x1b",),
}
_NAMES = {sequence: name for name, sequences in _SEQUENCES.items() for sequence in sequences}
_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO.|.", re.DOTALL)
_STOPPING = "Stopping "
_SIGNALS = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J", "\x1b[?7h\x1b[?25h\x1b[?1049l"


@dataclass(frozen=True)
class TopView:
    """All that a frame shows. ``rows``: sweeps and runs. ``trends``: values by key. ``gpus``: with their holders.

    ``typed``: the answer to ``question``, or the filter. ``facts``, ``output``: the screen of the selected run.
    """

    rows: Sequence[ListedRun] = ()
    is_read: bool = True
    trends: Mapping[str, Sequence[float]] = field(default_factory=dict)
    gpus: Sequence[tuple[Gpu, str]] = ()
    opened: frozenset[str] = frozenset()
    selected: str = ""
    mode: Literal["table", "run", "filter", "stop"] = "table"
    behind: Literal["table", "run"] = "table"  # a question
    wanted: str = ""
    typed: str = ""
    question: str = ""
    message: str = ""
    facts: Sequence[str] = ()
    output: Sequence[str] = ()

    @property
    def visible(self) -> list[ListedRun]:
        """The rows of the table: live ones, then the newest ends; the cells of an open sweep are below it."""
        sweeps = {row.key for row in self.rows if row.is_sweep}
        words = self.wanted.lower().split()
        found = {row.key for row in self.rows if all(word in _searched(row) for word in words)}
        cells: dict[str, list[ListedRun]] = {}
        for row in self.rows:
            if row.sweep in sweeps:
                cells.setdefault(row.sweep, []).append(row)
        shown = []
        for row in sorted(self.rows, key=_by_time):
            inner = [cell for cell in cells.get(row.key, ()) if cell.key in found or row.key in found]
            if row.sweep in sweeps or not (row.key in found or inner):
                continue
            shown += [row, *(sorted(inner, key=_by_time) if row.key in self.opened else ())]
        return shown

    @property
    def selected_row(self) -> ListedRun | None:
        """The row that keys act on: the first where the selected one is gone."""
        visible = self.visible
        return next((row for row in visible if row.key == self.selected), visible[0] if visible else None)


def _by_time(row: ListedRun) -> tuple[bool, float]:
    return (False, 0.0) if row.is_live else (True, -(row.since_s or 0.0))


def _searched(row: ListedRun) -> str:
    return " ".join((row.sweep, row.cause, *row.cells.values())).lower()


def press(view: TopView, key: str, page: int = 10) -> tuple[TopView, str]:
    """Return the view after a key, and the action that it asks for: quit, open, ask, stop, refuse, or none. Pure."""
    row = view.selected_row
    if view.mode in ("filter", "stop"):
        return _type(view, key)
    view = replace(view, message="")
    if key == "q":
        return view, "quit"
    if key == "/":
        return replace(view, mode="filter", typed=view.wanted), ""
    if key == "escape":
        return (replace(view, mode="table") if view.mode == "run" else replace(view, wanted="")), ""
    if row is None:
        return view, ""
    if key == "k":
        return replace(view, selected=row.key), "ask"
    if view.mode == "run":
        return (replace(view, mode="table"), "") if key == "enter" else (view, "")
    if key == "enter" and row.is_sweep:
        return replace(view, selected=row.key, opened=view.opened ^ {row.key}), "open"
    if key == "enter":
        return replace(view, selected=row.key, mode="run", facts=(), output=()), "open"
    steps = {
        "up": -1,
        "down": 1,
        "j": 1,
        "page up": -page,
        "page down": page,
        "home": -len(view.rows),
        "end": len(view.rows),
    }
    keys = [each.key for each in view.visible]
    place = keys.index(row.key) + steps.get(key, 0)
    return replace(view, selected=keys[min(max(place, 0), len(keys) - 1)]), ""


def _type(view: TopView, key: str) -> tuple[TopView, str]:
    typed = view.typed[:-1] if key == "rubout" else view.typed
    typed += key if len(key) == 1 and key.isprintable() else ""
    is_filter, action = view.mode == "filter", ""
    if key in ("enter", "escape"):
        typed = "" if is_filter and key == "escape" else typed
        action = "" if is_filter else "stop" if key == "enter" and typed.strip() == view.selected else "refuse"
        view = replace(view, mode="table" if is_filter else view.behind, question="")
    return replace(view, typed=typed, wanted=typed if is_filter else view.wanted), action


def split_keys(text: str) -> tuple[list[str], str]:
    """Return the keys that a terminal sent, by name or character, and the beginning of a sequence at its end. Pure."""
    keys = [_NAMES.get(each, each) for each in _SEQUENCE.findall(text)]
    for length in (2, 1):
        if text[-length:] in ("\x1b[", "\x1bO", "\x1b"):
            return keys[:-length], text[-length:]
    return keys, ""


def draw_trend(values: Sequence[float], chars: int = _TREND_CHARS) -> str:
    """Return a sparkline: each bar is the mean of its share of ``values``, ``!`` where one of them is no number."""
    values, bars = [value / 2 for value in values], min(chars, len(values))  # halves, whose difference is finite
    shares = (values[len(values) * bar // bars : len(values) * (bar + 1) // bars] for bar in range(bars))
    means = [sum(value / len(share) for value in share) for share in shares]
    finite = [mean for mean in means if math.isfinite(mean)]
    low = min(finite, default=0.0)
    span = (max(finite, default=0.0) - low) or 1.0
    places = ((mean - low) / span * (len(_BARS) - 1) for mean in means)
    return "".join(_BARS[round(place)] if math.isfinite(place) else "!" for place in places)


def draw_frame(view: TopView, width: int, height: int, now_s: float) -> list[Text]:
    """Return the lines of a frame, ``height`` of them, each ``width`` cells wide. Pure."""
    row, visible = view.selected_row, view.visible
    foot = [Text(_HELP[view.mode], style="dim")]
    if view.mode == "filter":
        foot.insert(0, Text(f"/{view.typed}█"))
    elif view.mode == "stop":
        asked = [Text(line, style="yellow") for line in textwrap.wrap(view.question, width)[: max(height // 2, 1)]]
        foot = [*asked, Text(f"Type {view.selected} to stop it: {view.typed}█", style="bold"), *foot]
    elif view.message:
        foot[0:0] = [Text(line, style="yellow") for line in textwrap.wrap(view.message, width)[:3]]
    elif row is not None and view.mode == "table":
        about = f"{row.key}: {row.cause}" if row.cause else row.key
        foot.insert(0, Text(about, style=COLOURS.get(row.state, "")))
    foot = foot[-max(height - 3, 1) :]
    room = height - len(foot)
    is_screen = "run" in (view.mode, view.behind if view.mode == "stop" else "")
    lines = [] if is_screen else _draw_head(view, width, height, room)
    room -= len(lines)
    if is_screen:
        told = [part for fact in view.facts for part in textwrap.wrap(fact, width)][: room // 2]
        lines += [Text(line, style="" if number else "bold") for number, line in enumerate(told)]
        lines.append(Text("─" * width, style="dim"))
        lines += [Text(line) for line in view.output[-max(room - len(lines), 1) :]]
    elif not visible:
        lines.append(
            Text(f"No run has {view.wanted!r}." if view.wanted else "No runs yet." if view.is_read else "Reading …")
        )
    elif room > 1 and row is not None:
        lines += _draw_rows(view, visible, row, width, room, now_s)
    lines = [*lines[: height - len(foot)], *([Text()] * (height - len(foot) - len(lines))), *foot][:height]
    for line in lines:
        line.truncate(width)
        line.pad_right(width - line.cell_len)
    return lines


def _draw_head(view: TopView, width: int, height: int, room: int) -> list[Text]:
    counts = Counter(row.cells["STATE"] for row in view.rows if not row.is_sweep)
    told = ", ".join(f"{count} {state}" for state, count in counts.items()) or "no runs"
    lines = [Text(f"runward: {told}" + (f"   /{view.wanted}" if view.wanted else ""), style="bold")]
    aside = max(width // _GPU_CELLS, 1)
    cells = [_draw_gpu(gpu, holder, width // aside) for gpu, holder in view.gpus]
    rows = [Text().join(cells[start : start + aside]) for start in range(0, len(cells), aside)]
    most = min(max(height // 4, 1), max(room - 4, 0))
    return [*lines, *rows[:most]]


def _draw_gpu(gpu: Gpu, holder: str, width: int) -> Text:
    """Return a GPU as a bar of its use, its memory, and its holder."""
    used, memory = gpu.utilisation, gpu.memory_used_mib
    flags = "; ".join(list_flags(gpu))
    full = 0 if used is None else round(min(max(used, 0), 100) / 10)
    gib = "" if memory is None else f" {memory / 1024:.0f}/{(gpu.memory_total_mib or 0) / 1024:.0f}G"
    line = Text(f"{gpu.index:>2} ").append("█" * full, "green").append("░" * (10 - full), "dim")
    line.append(f" {'?' if used is None else used:>3}%{gib} ").append(
        printable("; ".join(filter(None, (holder, flags)))), "red" if flags else ""
    )
    line.truncate(width - 1)
    line.pad_right(width - line.cell_len)
    return line


def _draw_rows(
    view: TopView, visible: Sequence[ListedRun], row: ListedRun, width: int, room: int, now_s: float
) -> list[Text]:
    """Return the header, and as many rows around the selected one as there is room for."""
    place = next(number for number, each in enumerate(visible) if each.key == row.key)
    first = min(max(place - (room - 1) // 2, 0), max(len(visible) - (room - 1), 0))
    shown = [
        each._replace(cells={**each.cells, TREND: draw_trend(view.trends.get(each.key, ()))})
        for each in visible[first : first + room - 1]
    ]
    columns = [name for name in _COLUMNS if name in _ALWAYS or any(each.cells.get(name) for each in shown)]
    lines = lay_out(shown, max(width - 3, 1), now_s, columns)
    marks = ["   "]
    for each in shown:
        mark = ("▾" if each.key in view.opened else "▸") if each.is_sweep else "·" if each.sweep else " "
        marks.append(f"{'>' if each.key == row.key else ' '}{mark} ")
    drawn = [Text(mark).append_text(line) for mark, line in zip(marks, lines, strict=True)]
    for line, each in zip(drawn[1:], shown, strict=True):
        if each.key == row.key:
            line.stylize("reverse")
    return drawn


def describe_screen(run: Run, status: RunStatus, now_s: float) -> list[str]:
    """Return what is to say of a run above its output: how far it is, where, why it failed, its newest events. Pure."""
    where = [f"owner {run.spec.owner}", f"host {status.host}" if status.host else "", describe_devices(run)]
    where += [f"attempt {status.attempt}" if (status.attempt or 1) > 1 else "", status.earlier or ""]
    failure = status.failure
    why = [
        status.reason,
        status.note,
        f"{failure.kind}: {failure.line}" if failure else "",
        failure.advice if failure else "",
    ]
    events = [f"{event.at[11:19]} {event.kind}: {event.text}" for event in status.events or ()]
    progress = describe_progress([run], now_s)
    title = f"{run.run_id}  {progress if progress.startswith(run.state) else f'{run.state}  {progress}'}"
    return [title, "; ".join(filter(None, where)), *(text for text in why if text), *events]


class _Top:
    """The table of one terminal. What blocks runs in threads, and only the event loop changes ``view``."""

    def __init__(self, store: RunStore) -> None:
        self.view, self.store = TopView(is_read=False), store
        self.status = 0
        self._is_over, self._news = False, anyio.Event()
        self._stops: TaskGroup
        self._page = 10
        self._runs: dict[str, Watched] = {}
        self._final: dict[str, tuple[Watched, ListedRun]] = {}  # rows of those that do not change any more
        self._trends: dict[str, deque[float]] = {}
        self._marks: dict[str, tuple[str, object]] = {}  # name and time of the newest value of each
        self._secrets = list_known_secrets(os.environ, store.home.secrets)

    async def run(self) -> int:
        """Draw until a key or a signal ends it, wait for the stops that were confirmed, and return the exit status."""
        async with anyio.create_task_group() as self._stops:
            # Signals first: one that came before would leave the terminal as it is.
            with anyio.open_signal_receiver(*_SIGNALS) as signals, _cbreak() as terminal:
                async with anyio.create_task_group() as tasks:
                    for task in (self._read_keys, self._watch, self._sample_gpus):
                        tasks.start_soon(task)
                    tasks.start_soon(self._hear, signals, terminal)
                    drawn: list[str] = []
                    while not self._is_over:
                        drawn = self._draw(terminal, drawn)
                        await self._news.wait()
                        self._news = anyio.Event()
                        await anyio.sleep(_DRAW_S)
                    tasks.cancel_scope.cancel()
            if self.view.message.startswith(_STOPPING):
                print(f"{self.view.message} Ctrl-C leaves it to its supervisor.", file=sys.stderr)
        return self.status

    def _change(self, **facts: Any) -> None:
        self.view = replace(self.view, **facts)
        self._news.set()

    def _draw(self, terminal: "_Terminal", drawn: list[str]) -> list[str]:
        size = terminal.size
        self._page = max(size.lines - 6, 1)
        console = Console(file=io.StringIO(), force_terminal=True, width=size.columns, height=size.lines)
        lines = []
        for line in draw_frame(self.view, size.columns, size.lines, time.time()):
            with console.capture() as capture:
                console.print(line, end="", no_wrap=True, crop=False, overflow="ignore")
            lines.append(capture.get())
        is_same_size = len(lines) == len(drawn) and not terminal.is_cleared
        terminal.is_cleared = False
        changed = (number for number, line in enumerate(lines) if not is_same_size or drawn[number] != line)
        terminal.write("".join(f"\x1b[{number + 1};1H{lines[number]}" for number in changed))
        return lines

    async def _hear(self, signals: AsyncIterator[signal.Signals], terminal: "_Terminal") -> None:
        async for number in signals:
            if number == signal.SIGTSTP:
                terminal.leave()
                os.kill(os.getpid(), signal.SIGSTOP)  # goes on here with SIGCONT
                terminal.enter()
            elif number == signal.SIGWINCH:
                terminal.clear()
            else:
                self.status = 0 if number == signal.SIGINT else 128 + number
                self._is_over = True
            self._news.set()

    async def _read_keys(self) -> None:
        decoder, rest = codecs.getincrementaldecoder("utf-8")("replace"), ""
        fd = sys.stdin.fileno()
        while not self._is_over:
            data = b""
            with anyio.move_on_after(_ESCAPE_S if rest else math.inf):
                await anyio.wait_readable(fd)
                with contextlib.suppress(OSError):  # the terminal is gone
                    data = os.read(fd, 4096)
                if not data:
                    self._is_over = True
            keys, rest = split_keys(rest + decoder.decode(data)) if data else ([_NAMES.get(rest, rest)], "")
            for key in filter(None, keys):
                self.view, action = press(self.view, key, self._page)
                await self._act(action)
            self._news.set()

    async def _act(self, action: str) -> None:
        run = self._runs.get(self.view.selected)
        if action == "quit":
            self._is_over = True
        elif action == "open":
            await self._look_again()
        elif run is not None and action == "refuse":
            self._change(message=kill.describe_refusal(run))
        elif run is not None and action == "stop":
            self._change(message=f"{_STOPPING}{run.run_id} …")
            self._stops.start_soon(self._stop, run)
        elif run is not None and action == "ask":
            try:
                question = await run_in_thread(kill.describe_stop, run, self.store)
            except (RunwardError, OSError) as error:
                self._change(message=printable(str(error)))
                return
            if question is None:
                self._change(message=kill.describe_end(run))
            else:
                behind = "run" if self.view.mode == "run" else "table"
                self._change(mode="stop", behind=behind, typed="", question=printable(question))

    async def _stop(self, run: Watched) -> None:
        try:
            message, _, troubles = kill.sum_up(await kill.stop(run, self.store, ""))
        except (RunwardError, OSError) as error:
            message, troubles = str(error), []
        self._change(message=printable(" ".join((message, *troubles))))
        if self._is_over:
            print(self.view.message, file=sys.stderr)

    async def _look_again(self) -> None:
        rows, _ = await run_in_thread(self._look)
        await self._show(rows)

    async def _watch(self) -> None:
        async with contextlib.aclosing(follow(self._look)) as looks:
            async for rows in looks:
                await self._show(rows)
                await self._trace()

    async def _show(self, looked: "Sequence[ListedRun] | str") -> None:
        """Show the rows; in place of those that cannot be read now, why."""
        if isinstance(looked, str):
            self._change(message=looked)
        else:
            self._change(rows=looked, is_read=True, trends=self._trends)
            await self._show_screen()

    async def _show_screen(self) -> None:
        """Show the selected run: its facts, and what a person attached to it sees, else the end of its log."""
        run = self._runs.get(self.view.selected)
        if self.view.mode != "run" or not isinstance(run, Run):
            return
        facts, output = await run_in_thread(self._read_screen, run)
        with contextlib.suppress(RunwardError, OSError):
            screen = [] if run.ended else await backend_of(run.spec).screen(run.spec, history=False)
            lines = clean_lines("\n".join(screen).rstrip().encode(errors="replace"))
            output = [line.text for line in lines] or output
        if self.view.mode == "run" and self.view.selected == run.run_id:
            self._change(facts=[*map(self._clean, facts)], output=[*map(self._clean, output)])

    def _clean(self, text: str) -> str:
        return printable(mask_secrets(text[:_LINE_CHARS], self._secrets).expandtabs())

    # --- in threads

    def _look(self) -> tuple[Sequence[ListedRun] | str, list[Path]]:
        store = self.store
        try:
            queries = [(RunQuery("live"), _MOST_LIVE), (RunQuery(), _MOST_RUNS)]
            queries += [(RunQuery(sweep=sweep_id), _MOST_LIVE) for sweep_id in self.view.opened]
            runs = {run.run_id: run for query, most in queries for run in store.list_runs(query, most)}
            sweeps = store.sweeps.list_sweeps(_MOST_SWEEPS) if store.home.sweeps.is_dir() else []
            watched: list[Watched] = [*sweeps, *runs.values()]
            rows = [self._describe(each, runs) for each in watched]
        except (RunwardError, OSError) as error:
            return printable(str(error)), list_directories(store, ())
        self._final = {key: kept for key, kept in self._final.items() if key in self._runs}
        self._runs = {each.run_id: each for each in watched}
        places = list_directories(store, runs.values())
        return rows, [*places, *(store.sweeps.files_of(sweep).path for sweep in sweeps if not sweep.ended)]

    def _describe(self, watched: Watched, runs: Mapping[str, Run]) -> ListedRun:
        known, row = self._final.get(watched.run_id, (None, None))
        if row is not None and known is watched:
            return row
        now_s = time.time()
        if isinstance(watched, Sweep):
            live = {cell.cell.name: runs[cell.run_id or ""] for cell in watched.cells if cell.run_id in runs}
            row, is_final = describe_sweep_row(watched, live, now_s), watched.ended
        else:
            status = status_of(self.store, watched, since=watched.last_seq, listed=True)
            row = describe_row(watched, status, now_s, self.store.output_at_s(watched))
            is_final = self.store.is_final(watched)
        if is_final:
            self._final[watched.run_id] = watched, row
        return row

    async def _trace(self) -> None:
        """Add to the sparklines of the rows that a person sees, the first time what their logs say."""
        visible = [row.key for row in self.view.visible]
        place = visible.index(self.view.selected) if self.view.selected in visible else 0
        for key in visible[max(place - self._page, 0) : place + self._page]:
            run = self._runs.get(key)
            if isinstance(run, Run) and run.made_a_step and await run_in_thread(self._read_trend, run):
                self._change()

    def _read_trend(self, run: Run) -> bool:
        """Add the newest value of a run's metric to its sparkline; return whether there is a new one."""
        name, value = next(iter(first_metrics(run.progress.get("metrics") or {})), ("", None))
        mark = name, run.progress.get("at")
        former, self._marks[run.run_id] = self._marks.get(run.run_id), mark
        if not isinstance(value, int | float) or mark == former:
            return False
        if former is not None and former[0] == name:
            self._trends[run.run_id].append(value)
            return True
        values = self._trends[run.run_id] = deque(maxlen=_MOST_POINTS)
        tracker = ProgressTracker()
        with contextlib.suppress(OSError):
            for line in clean_lines(read_end(self.store.record_of(run).log(run.attempt), _BACKFILL_BYTES)):
                if any(reading.metrics for reading in tracker.read_lines([line.text])) and name in tracker.metrics:
                    values.append(tracker.metrics[name])
        return bool(values)

    def _read_screen(self, run: Run) -> tuple[list[str], list[str]]:
        try:
            facts = describe_screen(run, status_of(self.store, run), time.time())
            return facts, read_tail(self.store, run, _SCREEN_LINES, _SCREEN_BYTES)
        except (RunwardError, OSError) as error:
            return [run.run_id, str(error)], []

    async def _sample_gpus(self) -> None:
        sampler, leases = GpuSampler(sys.executable, os.environ, (), _GPU_EVERY_S), Leases(lease_directory(os.environ))
        with contextlib.closing(sampler):
            while sampler.fd is not None:
                await anyio.wait_readable(sampler.fd)
                for snapshot in (sampler.read() or [])[-1:]:
                    if snapshot.trouble == "no_driver":
                        return
                    held = await run_in_thread(leases.holders)
                    texts = {uuid: holder.text for uuid, holder in held.items()}
                    self._change(gpus=[(gpu, texts.get(gpu.uuid, "")) for gpu in snapshot.gpus])


class _Terminal:
    """The terminal of standard input and output, in cbreak mode and with a screen of its own."""

    def __init__(self) -> None:
        self._fd, self.is_cleared = sys.stdin.fileno(), False
        self._mode = termios.tcgetattr(self._fd)

    @property
    def size(self) -> os.terminal_size:
        with contextlib.suppress(OSError):
            return os.get_terminal_size(sys.stdout.fileno())
        return os.terminal_size((80, 24))

    def enter(self) -> None:
        tty.setcbreak(self._fd)
        self.write(_ENTER)
        self.is_cleared = True

    def clear(self) -> None:
        self.write("\x1b[2J")
        self.is_cleared = True

    def leave(self) -> None:
        self.write(_LEAVE)
        with contextlib.suppress(termios.error):  # it is gone
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._mode)

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            sys.stdout.write(text)
            sys.stdout.flush()


@contextlib.contextmanager
def _cbreak() -> Iterator[_Terminal]:
    terminal = _Terminal()
    try:
        terminal.enter()
        yield terminal
    finally:
        terminal.leave()


def describe_sweep_row(sweep: Sweep, live: Mapping[str, Run], now_s: float) -> ListedRun:
    """Return the row of a sweep, whose live runs are ``live`` by cell. Pure."""
    status = summarise_sweep(sweep, live, now_s=now_s)
    elapsed_s, best = sweep.elapsed_s(now_s), status.best
    ended_at = sweep.events[-1].get("at") if sweep.ended and sweep.events else None
    value = "" if best is None else f"best {best.value if best.mean is None else best.mean:.4g}"
    failed = f"{len(sweep.failed)} failed: {count_kinds(sweep.failed)}" if sweep.failed else ""
    cells = {
        "RUN": sweep.sweep_id,
        "STATE": sweep.state,
        "STEP": f"{sum(cell.done for cell in sweep.cells)}/{len(sweep.cells)} cells",
        "LEFT": "" if status.eta_s is None else rough_duration(status.eta_s),
        "METRIC": value,
        "OWNER": printable(sweep.spec.owner),
    }
    since_s = posix(ended_at) if ended_at else None if elapsed_s is None else now_s - elapsed_s
    cause = printable("; ".join(filter(None, (status.reason, failed))))
    return ListedRun(sweep.sweep_id, sweep.state, not sweep.ended, cells, since_s, is_sweep=True, cause=cause)


def run(arguments: argparse.Namespace) -> int:
    """Show the table until a person leaves it, and return the exit status. RunwardError: there is no terminal."""
    del arguments
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") == "dumb":
        raise RunwardError("runward top needs a terminal.", remedy="Call runward ls, or runward ls --watch.")
    return anyio.run(_Top(RunStore(StateHome.of(os.environ))).run)
