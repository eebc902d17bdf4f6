"""tb: the scalars of training runs for people, as a table, a picture, or in TensorBoard."""

import argparse
import contextlib
import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mcp_server.cli.tables import draw_table, open_console
from mcp_server.errors import RunNotFound, RunwardError
from mcp_server.scalars.locate import EventFiles
from mcp_server.scalars.picture import draw_picture
from mcp_server.scalars.run_scalars import LATEST, Scalars, location_path, resolve_target
from mcp_server.scalars.summary import SeriesSummary
from mcp_server.scalars.text import format_digits, narrow_shape
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.text.formatting import printable, shorten_middle
from mcp_server.views.scalar_report import DrawableReport, ScalarQuery, build_report

_BARS = str.maketrans("0123456789.", "▁▁▂▃▄▄▅▆▇█ ")
_COLUMNS, _NARROW_COLUMNS = ("LAST", "STEP", "", "PER 1K", "MIN", "MAX", "MEAN", "POINTS"), 3
_WIDE = 120  # width of a terminal with room for all columns
_SHAPES = ((32, _WIDE), (16, 76))  # cells of a shape, and the least width of the terminal
_LONGEST_NAME = 81
_ARROWS = {
    "up": Text("↑", style="green"),
    "down": Text("↓", style="yellow"),
    "flat": Text("~", style="dim"),
    None: Text("?", style="dim"),
}


def run(arguments: argparse.Namespace) -> int:
    """Show the scalars of a run or a directory, or open TensorBoard on them."""
    store = RunStore(StateHome.of(os.environ))
    scalars = Scalars(store.home, store)
    target = _target(arguments.source, store)
    if arguments.serve:
        return _serve(target, scalars, store)
    query = ScalarQuery(
        target=target, tags=tuple(arguments.tags or ()), points=arguments.points or 0, plot=arguments.plot is not None
    )
    report = build_report(query, scalars, store, in_full=True)
    if arguments.plot is not None:
        _save_picture(report, Path(arguments.plot))
    if arguments.json:
        print(json.dumps(report.answer.model_dump(mode="json"), ensure_ascii=False, indent=2))
        return 0
    _print(report, open_console(highlight=False))
    return 0


def _target(argument: str | None, store: RunStore) -> str:
    if argument is None or argument == LATEST:
        return LATEST
    if "/" not in argument and not argument.startswith((".", "~")):
        with contextlib.suppress(RunNotFound):
            return store.find(argument).run_id
        if not Path(argument).exists():
            return argument  # the report refuses it as an unknown run
    return str(Path(argument).expanduser().absolute())


def _save_picture(report: DrawableReport, path: Path) -> None:
    if not report.panels:
        raise RunwardError("There is nothing to draw.", "No picture was written.")
    png = draw_picture(report.panels)
    try:
        path.write_bytes(png)
    except OSError as error:
        raise RunwardError(f"{path}: {error.strerror}.", "No picture was written.") from error
    print(f"Wrote {path}", file=sys.stderr)


def _print(report: DrawableReport, console: Console) -> None:
    answer = report.answer
    console.print(Text(printable(answer.run_id or answer.source), style="bold"))
    for note in answer.notes or ():
        console.print(Text(printable(note), style="yellow"))
    if not report.summaries:
        for choice in answer.runs or ():
            console.print(Text(f"  {printable(choice)}"))
        if answer.next_step:
            console.print(Text(f"{answer.total} in all; runward tb {answer.source}/NAME shows one.", style="dim"))
        return
    console.print(_table(report.summaries, console.width))
    for tag, figures in (answer.values or {}).items():
        if figures.points:
            console.print(Text(_fit_name(tag), style="bold"))
            for step, value in figures.points:
                console.print(Text(f"{step:>12}  {value}"))


def _table(summaries: Mapping[str, Mapping[str, SeriesSummary]], width: int) -> Table:
    several = len(summaries) > 1
    shape = next((cells for cells, least in _SHAPES if width >= least), 0)
    table = draw_table(())
    table.add_column("TAG", overflow="fold", min_width=12)
    if several:
        table.add_column("RUN", overflow="fold")
    if shape:
        table.add_column("SHAPE", no_wrap=True, style="cyan")
    columns = _COLUMNS if width >= _WIDE else _COLUMNS[:_NARROW_COLUMNS]
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("ODD", style="bold red")
    for tag in dict.fromkeys(tag for run_summaries in summaries.values() for tag in run_summaries):
        for name, run_summaries in summaries.items():
            if tag in run_summaries:
                summary = run_summaries[tag]
                table.add_row(
                    Text(_fit_name(tag)),
                    *([Text(_fit_name(name))] if several else []),
                    *([narrow_shape(summary.shape, shape).translate(_BARS)] if shape else []),
                    *_cells(summary)[: len(columns)],
                    _odd(summary),
                )
    return table


def _cells(summary: SeriesSummary) -> list[str | Text]:
    return [
        _number(summary.last),
        str(summary.last_step),
        _ARROWS[summary.trend],
        _number(summary.slope),
        _number(summary.min),
        _number(summary.max),
        _number(summary.mean),
        f"{summary.count:,}",
    ]


def _odd(summary: SeriesSummary) -> str:
    odd = [f"{summary.nan} NaN from {summary.first_nan_step}"] if summary.nan else []
    odd += [f"{summary.inf} Inf from {summary.first_inf_step}"] if summary.inf else []
    return ", ".join(odd)


def _fit_name(name: str) -> str:
    """Return a name without control characters, which would act on the terminal, shortened in its middle."""
    return shorten_middle(printable(name), _LONGEST_NAME, head=_LONGEST_NAME // 2)


def _number(value: float | None) -> str:
    return "" if value is None else format_digits(value)


def _serve(target: str, scalars: Scalars, store: RunStore) -> int:
    """Replace this process by TensorBoard on the directories of ``target``. It prints its address, Ctrl-C ends it."""
    if importlib.util.find_spec("tensorboard") is None:
        remedy = "A person should run: pip install tensorboard"
        raise RunwardError("TensorBoard is not installed.", "Nothing is served.", remedy)
    resolved = resolve_target(target, scalars, store)
    directories = [location_path(each) for each in resolved.locations if isinstance(each, Path | EventFiles)]
    if not directories:
        raise RunwardError(f"{resolved.path} is not a directory of event files:", "TensorBoard cannot show it.")
    logdir = resolved.name if resolved.choices else os.path.commonpath(directories)
    print(f"TensorBoard on {logdir}; to see it from another machine: ssh -L 6006:localhost:6006 …", file=sys.stderr)
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "tensorboard.main", "--logdir", logdir, "--host", "localhost"])
