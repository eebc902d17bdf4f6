"""`runward top`: follows the runs, hears keys and signals, draws, and stops what a person confirms.

The modes of the terminal are given back whatever happens.
"""

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
import time
import tty
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup
from rich.console import Console

from mcp_server.backends.base import backend_of
from mcp_server.cli import kill
from mcp_server.cli.ls import follow, list_directories
from mcp_server.cli.top.frame import TopView, describe_screen, draw_frame, press
from mcp_server.diagnosis.progress.tracker import ProgressTracker
from mcp_server.errors import RunwardError
from mcp_server.gpus.leases import Leases, lease_directory
from mcp_server.gpus.query import GpuSampler
from mcp_server.hosts.environment import list_known_secrets
from mcp_server.record.state import Run
from mcp_server.record.sweeps.sweep_state import Sweep, Watched
from mcp_server.store.run_index import RunQuery
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.system.files import read_end
from mcp_server.text.formatting import printable
from mcp_server.text.log_text import clean_lines
from mcp_server.text.secret_patterns import mask_secrets
from mcp_server.threads import run_in_thread
from mcp_server.views.log_excerpt import read_tail
from mcp_server.views.people_rows import ListedRun, list_run, list_sweep
from mcp_server.views.progress_text import first_metrics
from mcp_server.views.run_status import status_of

_MOST_RUNS, _MOST_LIVE, _MOST_SWEEPS = 100, 300, 20
_GPU_EVERY_S = 5.0
_MOST_POINTS, _BACKFILL_BYTES = 256, 64 * 2**10
_SCREEN_LINES, _SCREEN_BYTES, _LINE_CHARS = 100, 32 * 2**10, 1000
_ESCAPE_S, _DRAW_S = 0.03, 0.03  # until the rest of an arrow's sequence is there; between two frames
_STOPPING = "Stopping "
_SIGNALS = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
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
KEY_NAMES = {sequence: name for name, sequences in _SEQUENCES.items() for sequence in sequences}
_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO.|.", re.DOTALL)
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J", "\x1b[?7h\x1b[?25h\x1b[?1049l"


def split_keys(text: str) -> tuple[list[str], str]:
    """Return the keys that a terminal sent, by name or character, and the beginning of a sequence at its end. Pure."""
    keys = [KEY_NAMES.get(each, each) for each in _SEQUENCE.findall(text)]
    for length in (2, 1):
        if text[-length:] in ("\x1b[", "\x1bO", "\x1b"):
            return keys[:-length], text[-length:]
    return keys, ""


class Terminal:
    """The terminal of standard input and output, in cbreak mode and with a screen of its own."""

    def __init__(self) -> None:
        self._fd, self.is_cleared = sys.stdin.fileno(), False
        self._mode = termios.tcgetattr(self._fd)

    @property
    def size(self) -> os.terminal_size:
        """Its columns and lines, 80 x 24 where it says none."""
        with contextlib.suppress(OSError):
            return os.get_terminal_size(sys.stdout.fileno())
        return os.terminal_size((80, 24))

    def enter(self) -> None:
        """Take the screen and the keys."""
        tty.setcbreak(self._fd)
        self.write(_ENTER)
        self.is_cleared = True

    def clear(self) -> None:
        """Draw all lines anew."""
        self.write("\x1b[2J")
        self.is_cleared = True

    def leave(self) -> None:
        """Give the screen and the keys back."""
        self.write(_LEAVE)
        with contextlib.suppress(termios.error):  # it is gone
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._mode)

    def write(self, text: str) -> None:
        """Write ``text``, if the terminal is still there."""
        with contextlib.suppress(OSError):
            sys.stdout.write(text)
            sys.stdout.flush()


@contextlib.contextmanager
def open_terminal() -> Iterator[Terminal]:
    """Have the terminal's screen and keys for the block."""
    terminal = Terminal()
    try:
        terminal.enter()
        yield terminal
    finally:
        terminal.leave()


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
            with anyio.open_signal_receiver(*_SIGNALS) as signals, open_terminal() as terminal:
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

    def _draw(self, terminal: Terminal, drawn: list[str]) -> list[str]:
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

    async def _hear(self, signals: AsyncIterator[signal.Signals], terminal: Terminal) -> None:
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
            keys, rest = split_keys(rest + decoder.decode(data)) if data else ([KEY_NAMES.get(rest, rest)], "")
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
            with store.one_look():
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
        if isinstance(watched, Sweep):
            live = {cell.cell.name: runs[cell.run_id or ""] for cell in watched.cells if cell.run_id in runs}
            row, is_final = list_sweep(watched, live), watched.ended
        else:
            row, is_final = list_run(self.store, watched, reads_output=False), self.store.is_final(watched)
        if is_final:
            self._final[watched.run_id] = watched, row
        return row

    async def _trace(self) -> None:
        """Add to the sparklines of the rows that a person sees, the first time what their logs say."""
        visible = [row.id for row in self.view.visible]
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


def run(arguments: argparse.Namespace) -> int:
    """Show the table until a person leaves it, and return the exit status. RunwardError: there is no terminal."""
    del arguments
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") == "dumb":
        raise RunwardError("runward top needs a terminal.", remedy="Call runward ls, or runward ls --watch.")
    return anyio.run(_Top(RunStore(StateHome.of(os.environ))).run)
