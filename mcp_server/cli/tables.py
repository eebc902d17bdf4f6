"""Tables of the verbs that print lists."""

import sys
from collections.abc import Collection, Iterable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_PIPE_COLUMNS = 240  # a pipe has no width to keep to


def open_console(**settings: Any) -> Console:
    """Return the console of stdout, as wide as the terminal."""
    return Console(width=None if sys.stdout.isatty() else _PIPE_COLUMNS, **settings)


def draw_table(
    columns: Iterable[str], rows: Iterable[Iterable[str | Text]] = (), whole: Collection[str] = (), **look: Any
) -> Table:
    """Return a table without lines. ``whole``: columns that never wrap. ``look``: of each column, as of rich."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, no_wrap=name in whole, **look)
    for row in rows:
        table.add_row(*row)
    return table
