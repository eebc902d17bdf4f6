"""The newest lines of a run's output, as a part of another answer."""

from __future__ import annotations

from mcp_server.record.state import Run
from mcp_server.store.run_store import RunStore
from mcp_server.views.log_excerpt import tail_lines


def read_tail(store: RunStore, run: Run, count: int, max_bytes: int) -> list[str]:
    """Return the last ``count`` lines of the newest attempt that fit in ``max_bytes`` together, none without a log."""
    path = store.fetch_log(run)
    if not path.is_file():
        return []
    output = tail_lines(path, count, label=run.run_id, numbered=False).body.splitlines()
    return newest_lines([line for line in output if line], count, max_bytes)


def newest_lines(lines: list[str], count: int, max_bytes: int) -> list[str]:
    """Return the last ``count`` lines that fit in ``max_bytes`` together, long ones shortened in the middle."""
    longest = max_bytes // 2 if count > 1 else max_bytes
    newest: list[str] = []
    for line in reversed(lines[-count:]):
        if len(line.encode()) > longest:
            data = line.encode()
            head, tail = data[: longest * 2 // 3], data[-(longest // 3 - 3) :]
            line = f"{head.decode(errors='ignore')}…{tail.decode(errors='ignore')}"  # noqa: PLW2901
        max_bytes -= len(line.encode())
        if max_bytes < 0:
            break
        newest.append(line)
    return newest[::-1]
