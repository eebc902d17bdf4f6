"""The frame of `runward top`, and the effect of each key on it: values in, values out."""

import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Literal

from rich.text import Text

from mcp_server.cli.ls import COLOURS, COLUMNS, TREND, draw_cells, lay_out
from mcp_server.gpus.snapshot import Gpu
from mcp_server.record.state import Run
from mcp_server.text.formatting import printable
from mcp_server.views.gpu_report import describe_devices, list_flags
from mcp_server.views.people_rows import ListedRun
from mcp_server.views.progress_text import describe_progress
from mcp_server.views.run_status import RunStatus

_COLUMNS = (*COLUMNS, TREND, "HOST", "OWNER", "EXIT")
_ALWAYS = ("RUN", "STATE", "STEP", "WHEN")  # other columns where a row has something there
_GPU_CELLS, _TREND_CHARS = 38, 8
_BARS = "▁▂▃▄▅▆▇█"
_HELP = {
    "table": "↑ ↓ j move   Enter open   k stop   / filter   q quit",
    "run": "Esc back   k stop   q quit",
    "filter": "Enter keep   Esc clear",
    "stop": "Enter confirm   Esc leave it alone",
}


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
        sweeps = {row.id for row in self.rows if row.cells}
        words = self.wanted.lower().split()
        found = {row.id for row in self.rows if all(word in _searched(row) for word in words)}
        cells: dict[str, list[ListedRun]] = {}
        for row in self.rows:
            if row.sweep in sweeps:
                cells.setdefault(row.sweep, []).append(row)
        shown = []
        for row in sorted(self.rows, key=attrgetter("place")):
            inner = [cell for cell in cells.get(row.id, ()) if cell.id in found or row.id in found]
            if row.sweep in sweeps or not (row.id in found or inner):
                continue
            shown += [row, *(sorted(inner, key=attrgetter("place")) if row.id in self.opened else ())]
        return shown

    @property
    def selected_row(self) -> ListedRun | None:
        """The row that keys act on: the first where the selected one is gone."""
        visible = self.visible
        return next((row for row in visible if row.id == self.selected), visible[0] if visible else None)


def _searched(row: ListedRun) -> str:
    texts = (row.id, row.name, row.state, row.cause, row.line, row.kind, row.owner, row.host, row.sweep, row.verdict)
    return " ".join((*filter(None, texts), *(row.tags or ()))).lower()


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
        return replace(view, selected=row.id), "ask"
    if view.mode == "run":
        return (replace(view, mode="table"), "") if key == "enter" else (view, "")
    if key == "enter" and row.cells:
        return replace(view, selected=row.id, opened=view.opened ^ {row.id}), "open"
    if key == "enter":
        return replace(view, selected=row.id, mode="run", facts=(), output=()), "open"
    steps = {
        "up": -1,
        "down": 1,
        "j": 1,
        "page up": -page,
        "page down": page,
        "home": -len(view.rows),
        "end": len(view.rows),
    }
    keys = [each.id for each in view.visible]
    place = keys.index(row.id) + steps.get(key, 0)
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
        failed = ", ".join(f"{count} {kind}" for kind, count in (row.causes or {}).items())
        about = ": ".join(filter(None, (row.id, row.cause, failed and f"failed: {failed}", row.line)))
        foot.insert(0, Text(printable(about), style=COLOURS.get(row.state, "")))
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
    counts = Counter(f"{row.state}?" if row.unreachable else row.state for row in view.rows if not row.cells)
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
    place = next(number for number, each in enumerate(visible) if each.id == row.id)
    first = min(max(place - (room - 1) // 2, 0), max(len(visible) - (room - 1), 0))
    shown = visible[first : first + room - 1]
    cells = [{**draw_cells(each, now_s), TREND: draw_trend(view.trends.get(each.id, ()))} for each in shown]
    columns = [name for name in _COLUMNS if name in _ALWAYS or any(each[name] for each in cells)]
    lines = lay_out(cells, max(width - 3, 1), columns)
    marks = ["   "]
    for each in shown:
        mark = ("▾" if each.id in view.opened else "▸") if each.cells else "·" if each.sweep else " "
        marks.append(f"{'>' if each.id == row.id else ' '}{mark} ")
    drawn = [Text(mark).append_text(line) for mark, line in zip(marks, lines, strict=True)]
    for line, each in zip(drawn[1:], shown, strict=True):
        if each.id == row.id:
            line.stylize("reverse")
    return drawn


def describe_screen(run: Run, status: RunStatus, now_s: float) -> list[str]:
    """Return what is to say of a run above its output: how far it is, where, why it failed, its newest events. Pure."""
    where = [f"owner {run.spec.owner}", f"host {status.host}" if status.host else "", describe_devices(run.gpu_names)]
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
