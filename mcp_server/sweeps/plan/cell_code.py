"""Which code the cells of a sweep ran: what was kept of it, and a number for each that is known to differ."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mcp_server.errors import BadArgument
from mcp_server.record.code.code_snapshot import read_code_snapshot
from mcp_server.record.run_directory import RunDir, read_json
from mcp_server.record.sweeps.sweep_spec import SweepSpec
from mcp_server.record.sweeps.sweep_state import CellState
from mcp_server.results.code_differences import CodeOfRun, describe_other_code, read_ran_code
from mcp_server.runs.code.code_copy import CodeCopy, plan_copy
from mcp_server.runs.launch.launch_site import find_directory
from mcp_server.store.state_home import StateHome
from mcp_server.sweeps.plan.filling import make_request

_PLACEHOLDER = re.compile(r"\{[^{}]*\}")


def read_cell_code(cell: CellState, run_id: str | None, home: Path, attempt: int | None = None) -> CodeOfRun:
    """Return what was kept of the code of a cell's run, by default of its last attempt. Reads files below ``home``."""
    found = (each / "runs" / (run_id or "-") for each in (home, *StateHome(home).list_mirrors()))
    path = next((path for path in found if path.is_dir()), None)
    number = attempt or cell.end.get("attempt") or 1
    if path is None:
        return CodeOfRun(cell.cell.name)
    cwd = (read_json(RunDir(path).spec) or cell.cell.launch).get("cwd")  # that of a copy, where the code is kept
    return read_ran_code(cell.cell.name, str(cwd or ""), read_code_snapshot(RunDir(path), number))


def plan_copies(spec: SweepSpec, home: Path) -> list[CodeCopy]:
    """Return the copies that a sweep's cells with ``code="kept"`` execute, one for each directory. Writes nothing.

    Raises:
        BadArgument: a cell's code cannot be kept; says why, and what to do.
    """
    copies: dict[str, CodeCopy] = {}
    for cell in spec.cells:
        launch = cell.launch
        if launch.get("code") != "kept":
            continue
        if not (cwd := launch.get("cwd")) or _PLACEHOLDER.search(cwd):
            cause = f'"kept" copies the code once, at the start, and the cwd of cell {cell.name} is not known then.'
            raise BadArgument("code", cause, "Pass cwd in common, one for all cells.")
        if launch.get("sync") == "git":
            cause = 'sync="git" sends the state of the work tree when a cell starts, not the copy.'
            raise BadArgument("code", cause, "Leave sync out: the copy is sent.")
        if cwd not in copies:
            request = replace(make_request(spec, cell, 1), cwd=str(find_directory(cwd)))
            copies[cwd] = plan_copy(request, "{run_id}", home)
    return list(copies.values())


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
