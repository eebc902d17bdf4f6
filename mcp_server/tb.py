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
from mcp_server.home import Home
from mcp_server.ledger import Ledger
from mcp_server.metrics import LATEST, Scalars, find, path_of
from mcp_server.plot import NotDrawn, picture
from mcp_server.scalar_report import Asked, Report, report
from mcp_server.scalars.text import digits

if TYPE_CHECKING:
    from mcp_server.scalars.summary import Figures

_BARS = str.maketrans("0123456789.", "▁▁▂▃▄▄▅▆▇█ ")
_ARROWS = {"up": Text("↑", style="green"), "down": Text("↓", style="yellow"), "flat": Text("~", style="dim")}


def tb(arguments: argparse.Namespace) -> int:
    """Show the scalars of a run or a directory, or open TensorBoard on them."""
    ledger = Ledger(Home.of(os.environ))
    scalars = Scalars(ledger.home)
    target = _target(arguments.source, ledger)
    if arguments.serve:
        return _serve(target, scalars, ledger)
    asked = Asked(
        target=target,
        tags=tuple(arguments.tags or ()),
        points=arguments.points or 0,
        plot=arguments.plot is not None,
    )
    found = report(asked, scalars, ledger)
    if arguments.plot is not None:
        _save(found, Path(arguments.plot))
    if arguments.json:
        print(json.dumps(found.answer.model_dump(mode="json"), ensure_ascii=False, indent=2))
        return 0
    _print(found, Console(width=None if sys.stdout.isatty() else 240, highlight=False))
    return 0


def _target(words: str | None, ledger: Ledger) -> str:
    """Return a run's id as it is, and a path as an absolute one."""
    if words is None or words == LATEST:
        return LATEST
    if "/" not in words and not words.startswith((".", "~")):
        with contextlib.suppress(RunNotFound):
            return ledger.observe(words).run_id
        if not Path(words).exists():
            return words  # to be told that there is no such run
    return str(Path(words).expanduser().absolute())


def _save(found: Report, path: Path) -> None:
    if not found.panels:
        raise RunwardError("There is nothing to draw. No picture was written.")
    try:
        path.write_bytes(picture(found.panels))
    except NotDrawn as error:
        raise RunwardError(f"No picture was written: {error}.") from error
    except OSError as error:
        raise RunwardError(f"No picture was written: {path}: {error.strerror}.") from error
    print(f"Wrote {path}", file=sys.stderr)


def _print(found: Report, console: Console) -> None:
    answer = found.answer
    console.print(Text(answer.run_id or answer.source, style="bold"))
    for note in answer.notes or ():
        console.print(Text(note, style="yellow"))
    if not found.told:
        for run in answer.runs or ():
            console.print(Text(f"  {run}"))
        if answer.next_step:
            console.print(Text(f"{answer.total} in all; runward tb {answer.source}/NAME shows one.", style="dim"))
        return
    console.print(_table(found.told))
    for tag, figures in (answer.values or {}).items():
        if figures.points:
            console.print(Text(tag, style="bold"))
            for step, value in figures.points:
                console.print(Text(f"{step:>12}  {value}"))


def _table(told: Mapping[str, Mapping[str, Figures]]) -> Table:
    several = len(told) > 1
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("TAG", *(["RUN"] if several else []), "SHAPE"):
        table.add_column(column, no_wrap=column == "SHAPE")
    for column in ("LAST", "STEP", "", "PER 1K", "MIN", "MAX", "MEAN", "POINTS"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("ODD", style="bold red")
    for tag in dict.fromkeys(tag for run in told.values() for tag in run):
        for name, figures in told.items():
            if tag in figures:
                table.add_row(Text(tag), *([Text(name)] if several else []), *_row(figures[tag]))
    return table


def _row(figures: Figures) -> list[str | Text]:
    odd = [f"{figures.nan} NaN from {figures.first_nan_step}"] if figures.nan else []
    odd += [f"{figures.inf} Inf from {figures.first_inf_step}"] if figures.inf else []
    return [
        Text(figures.shape.translate(_BARS), style="cyan"),
        _number(figures.last),
        str(figures.last_step),
        _ARROWS[figures.trend],
        _number(figures.slope),
        _number(figures.min),
        _number(figures.max),
        _number(figures.mean),
        f"{figures.count:,}",
        ", ".join(odd),
    ]


def _number(value: float | None) -> str:
    return "" if value is None else digits(value)


def _serve(target: str, scalars: Scalars, ledger: Ledger) -> int:
    """Become TensorBoard on the directories of ``target``; it prints its address and ends with Ctrl-C."""
    if importlib.util.find_spec("tensorboard") is None:
        raise RunwardError("TensorBoard is not installed. Nothing is served. A person should: pip install tensorboard")
    found = find(target, scalars, ledger)
    directories = [path for place in found.places if (path := path_of(place)) and isinstance(place, Path)]
    if not directories:
        raise RunwardError(f"{found.path} is no directory of event files: TensorBoard cannot show it.")
    logdir = found.name if found.choices else os.path.commonpath(directories)
    print(f"TensorBoard on {logdir}; to see it from another machine: ssh -L 6006:localhost:6006 …", file=sys.stderr)
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "tensorboard.main", "--logdir", logdir, "--host", "localhost"])
