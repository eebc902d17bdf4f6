"""The pane of a conductor: the sweep as a person sees it."""

import contextlib
import os
import sys
import time
from collections.abc import Mapping

from mcp_server.record.state import Run
from mcp_server.record.sweeps.sweep_ranking import find_best
from mcp_server.record.sweeps.sweep_state import LIVE, Sweep
from mcp_server.text.formatting import clock, printable, significant

_CLEAR = "\033[H\033[2J\033[3J"
_MOST_ENDED = 8
_LONGEST_LINE = 150


class Screen:
    """The pane of a conductor. A pane that is closed, or takes nothing, costs the sweep nothing."""

    def __init__(self) -> None:
        self._shown = ""
        self._fd: int | None = None
        with contextlib.suppress(OSError):
            # An open file description of its own: O_NONBLOCK must not reach other processes that use the pane.
            path = os.ttyname(sys.stdout.fileno())
            self._fd = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)

    def show(self, sweep: Sweep, live: Mapping[str, Run], obstacle: str = "") -> None:
        """Show the sweep, and what keeps it from going on, where anything has changed."""
        text = render(sweep, live, obstacle)
        if self._fd is None or text == self._shown:
            return
        self._shown = text
        with contextlib.suppress(OSError):
            os.write(self._fd, (_CLEAR + text.replace("\n", "\r\n")).encode(errors="replace"))


def render(sweep: Sweep, live: Mapping[str, Run], obstacle: str = "") -> str:
    """Return what the pane shows: counts, the best cell, live cells, the newest ends."""
    spec, counts = sweep.spec, sweep.count()
    tally = "  ".join(f"{state} {count}" for state, count in counts.items())
    lines = [f"{spec.sweep_id}   {sweep.state}   {tally}"]
    if (best := find_best(sweep)) is not None:
        lines.append(f"best {spec.ranked_by}: {best.text_with_run}")
    lines += [text[:_LONGEST_LINE] for text in (obstacle, sweep.refusal) if text]
    lines.append("")
    for cell in (cell for cell in sweep.cells if cell.state == LIVE):
        run = live.get(cell.cell.name)
        lines.append(_live_line(cell.cell.name, cell.run_id or "", run))
    ended = sorted((c for c in sweep.cells if c.end and c.done), key=lambda c: c.end.get("seq", 0))[-_MOST_ENDED:]
    for cell in reversed(ended):
        value = f" {spec.metric} {significant(cell.value):g}" if cell.value is not None else ""
        lines.append(printable(f"{cell.end.get('text', '')}{value}")[:_LONGEST_LINE])
    lines += ["", f"Detach: Ctrl-b d.   Stop it: runward kill {spec.sweep_id}.   One cell: runward attach RUN"]
    return "\n".join(lines) + "\n"


def _live_line(cell: str, run_id: str, run: Run | None) -> str:
    if run is None:
        return f"{cell:40} {run_id}"
    progress = run.progress
    step = f"{progress['step']}/{progress.get('total_steps', '?')}" if "step" in progress else ""
    eta = "" if (left_s := run.left_s(time.time())) is None else f"eta {clock(left_s)}"
    gpus = ",".join(map(str, run.gpu_names))
    return f"{cell:40} {run_id:32} {run.state:9} {f'GPU {gpus}' if gpus else '':10} {step:>14} {eta}".rstrip()
