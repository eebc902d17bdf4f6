"""The newest lines of a run's output, as a part of another answer."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_server.record.state import Run
from mcp_server.store.run_store import RunStore
from mcp_server.text.formatting import estimate_tokens
from mcp_server.views.log_excerpt import tail_lines

FAILED_LINES, FAILED_BYTES = 8, 600  # of one failed run among others
_LINE_TOKENS = 1  # of the signs around a line


def share_lines(tails: Sequence[list[str]], tokens: int) -> list[list[str]]:
    """Return of each tail its last lines, as many as have ``tokens`` together: the newest of each, then the next. Pure.

    A tail that has one line too long for the rest gets no older ones, which would be no tail.
    """
    shared: list[list[str]] = [[] for _ in tails]
    open_tails = list(range(len(tails)))
    while open_tails:
        for number in tuple(open_tails):
            tail, taken = tails[number], shared[number]
            cost = estimate_tokens(tail[-1 - len(taken)]) + _LINE_TOKENS if len(taken) < len(tail) else tokens + 1
            if cost > tokens:
                open_tails.remove(number)
                continue
            tokens -= cost
            taken.insert(0, tail[-1 - len(taken)])
    return shared


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
