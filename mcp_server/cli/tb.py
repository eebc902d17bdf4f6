"""tb: what trainings report, for people: a table, a picture, or TensorBoard itself."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mcp_server.errors import RunNotFound, RunwardError
from mcp_server.scalars.plot import NotDrawn, picture
from mcp_server.scalars.run_scalars import LATEST, Scalars, location_path, resolve_target
from mcp_server.scalars.text import format_digits, narrow_shape
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.views.scalar_report import ReportWithPanels, ScalarQuery, build_report

if TYPE_CHECKING:
    from mcp_server.scalars.summary import SeriesSummary

_BARS = str.maketrans("0123456789.", "▁▁▂▃▄▄▅▆▇█ ")
_FIGURES, _FEW = ("LAST", "STEP", "", "PER 1K", "MIN", "MAX", "MEAN", "POINTS"), 3
_WIDE = 120  # columns of a terminal in which all figures have room
_SHAPES = ((32, _WIDE), (16, 76))  # cells, and from which width on
_LONGEST_NAME = 80
_ARROWS = {"up": Text("↑", style="green"), "down": Text("↓", style="yellow"), "flat": Text("~", style="dim")}


def run(arguments: argparse.Namespace) -> int:
    """Show the scalars of a run or a directory, or open TensorBoard on them."""
    store = RunStore(StateHome.of(os.environ))
    scalars = Scalars(store.home)
    target = _target(arguments.source, store)
    if arguments.serve:
        return _serve(target, scalars, store)
    query = ScalarQuery(
        target=target,
        tags=tuple(arguments.tags or ()),
        points=arguments.points or 0,
        plot=arguments.plot is not None,
    )
    found = build_report(query, scalars, store)
    if arguments.plot is not None:
        _save(found, Path(arguments.plot))
    if arguments.json:
        print(json.dumps(found.answer.model_dump(mode="json"), ensure_ascii=False, indent=2))
        return 0
    _print(found, Console(width=None if sys.stdout.isatty() else 240, highlight=False))
    return 0


def _target(words: str | None, store: RunStore) -> str:
    """Return a run's id as it is, and a path as an absolute one."""
    if words is None or words == LATEST:
        return LATEST
    if "/" not in words and not words.startswith((".", "~")):
        with contextlib.suppress(RunNotFound):
            return store.observe(words).run_id
        if not Path(words).exists():
            return words  # to be told that there is no such run
    return str(Path(words).expanduser().absolute())


def _save(found: ReportWithPanels, path: Path) -> None:
    if not found.panels:
        raise RunwardError("There is nothing to draw. No picture was written.")
    try:
        path.write_bytes(picture(found.panels))
    except NotDrawn as error:
        raise RunwardError(f"No picture was written: {error}.") from error
    except OSError as error:
        raise RunwardError(f"No picture was written: {path}: {error.strerror}.") from error
    print(f"Wrote {path}", file=sys.stderr)


def _print(found: ReportWithPanels, console: Console) -> None:
    answer = found.answer
    console.print(Text(_plain(answer.run_id or answer.source), style="bold"))
    for note in answer.notes or ():
        console.print(Text(_plain(note), style="yellow"))
    if not found.told:
        for run in answer.runs or ():
            console.print(Text(f"  {_plain(run)}"))
        if answer.next_step:
            console.print(Text(f"{answer.total} in all; runward tb {answer.source}/NAME shows one.", style="dim"))
        return
    console.print(_table(found.told, console.width))
    for tag, figures in (answer.values or {}).items():
        if figures.points:
            console.print(Text(_shown(tag), style="bold"))
            for step, value in figures.points:
                console.print(Text(f"{step:>12}  {value}"))


def _table(told: Mapping[str, Mapping[str, SeriesSummary]], width: int) -> Table:
    """Return one row a tag and run; where the terminal is narrow, with fewer figures, but always with tag and last."""
    several = len(told) > 1
    shape = next((cells for cells, least in _SHAPES if width >= least), 0)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("TAG", overflow="fold", min_width=12)
    if several:
        table.add_column("RUN", overflow="fold")
    if shape:
        table.add_column("SHAPE", no_wrap=True, style="cyan")
    figures_shown = _FIGURES if width >= _WIDE else _FIGURES[:_FEW]
    for column in figures_shown:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("ODD", style="bold red")
    for tag in dict.fromkeys(tag for run in told.values() for tag in run):
        for name, figures in told.items():
            if tag in figures:
                table.add_row(
                    Text(_shown(tag)),
                    *([Text(_shown(name))] if several else []),
                    *([narrow_shape(figures[tag].shape, shape).translate(_BARS)] if shape else []),
                    *_row(figures[tag])[: len(figures_shown)],
                    _odd(figures[tag]),
                )
    return table


def _row(figures: SeriesSummary) -> list[str | Text]:
    """Return what ``_FIGURES`` says."""
    return [
        _number(figures.last),
        str(figures.last_step),
        _ARROWS[figures.trend],
        _number(figures.slope),
        _number(figures.min),
        _number(figures.max),
        _number(figures.mean),
        f"{figures.count:,}",
    ]


def _odd(figures: SeriesSummary) -> str:
    odd = [f"{figures.nan} NaN from {figures.first_nan_step}"] if figures.nan else []
    odd += [f"{figures.inf} Inf from {figures.first_inf_step}"] if figures.inf else []
    return ", ".join(odd)


def _shown(name: str) -> str:
    """Shorten a name in its middle."""
    plain = _plain(name)
    return plain if len(plain) <= _LONGEST_NAME else f"{plain[: _LONGEST_NAME // 2]}…{plain[-_LONGEST_NAME // 2 :]}"


def _plain(text: str) -> str:
    """Leave out what would act on the terminal: names are whatever a file says."""
    return "".join(sign if sign.isprintable() else "·" for sign in text)


def _number(value: float | None) -> str:
    return "" if value is None else format_digits(value)


def _serve(target: str, scalars: Scalars, store: RunStore) -> int:
    """Become TensorBoard on the directories of ``target``; it prints its address and ends with Ctrl-C."""
    if importlib.util.find_spec("tensorboard") is None:
        raise RunwardError("TensorBoard is not installed. Nothing is served. A person should: pip install tensorboard")
    found = resolve_target(target, scalars, store)
    directories = [
        path for location in found.locations if (path := location_path(location)) and isinstance(location, Path)
    ]
    if not directories:
        raise RunwardError(f"{found.path} is no directory of event files: TensorBoard cannot show it.")
    logdir = found.name if found.choices else os.path.commonpath(directories)
    print(f"TensorBoard on {logdir}; to see it from another machine: ssh -L 6006:localhost:6006 …", file=sys.stderr)
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "tensorboard.main", "--logdir", logdir, "--host", "localhost"])
