"""Which code the cells of a sweep ran: what was kept of it, and a number for each that is known to differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mcp_server.record.code.code_snapshot import read_code_snapshot
from mcp_server.record.run_directory import RunDir
from mcp_server.record.sweeps.sweep_state import CellState
from mcp_server.results.code_differences import RanCode, describe_other_code, read_ran_code
from mcp_server.store.state_home import StateHome


def read_cell_code(cell: CellState, run_id: str | None, home: Path, attempt: int | None = None) -> RanCode:
    """Return what was kept of the code of a cell's run, by default of its last attempt. Reads files below ``home``."""
    found = (each / "runs" / (run_id or "-") for each in (home, *StateHome(home).list_mirrors()))
    path = next((path for path in found if path.is_dir()), None)
    number = attempt or cell.end.get("attempt") or 1
    snapshot = read_code_snapshot(RunDir(path), number) if path is not None else None
    return read_ran_code(cell.cell.name, str(cell.cell.launch.get("cwd") or ""), snapshot)


def number_code(cell: CellState, run_id: str, attempt: int, cells: Sequence[CellState], home: Path) -> int | None:
    """Return the number that the code of a run has among ``cells``: equal where no difference is known.

    None where nothing was kept of it. The events of a sweep hold it, so that whoever ranks needs no file.
    """
    code = read_cell_code(cell, run_id, home, attempt)
    if not code.files and not code.commit:
        return None
    first = {number: one for one in reversed(cells) if isinstance(number := one.end.get("code"), int)}
    for number, one in sorted(first.items()):
        if not describe_other_code([read_cell_code(one, one.run_id, home), code]):
            return number
    return max(first, default=0) + 1
