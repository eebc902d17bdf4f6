"""From the spawn of a server to its list of tools, and the memory it has taken by then."""

from __future__ import annotations

import os
import time

from mcp.client import Client
from mcp.client.stdio import stdio_client

from tests.benchmarks import processes
from tests.benchmarks.harness import PROGRAMS, Sandbox, elapsed_ms
from tests.benchmarks.report import Row, Table, amount, measured, median, percentile

_PAIRS = 12
_RUNWARD = ["-m", "mcp_server", "serve"]
_BARE = [str(PROGRAMS / "bare_server.py")]


async def measure(sandbox: Sandbox) -> Table:
    """Start runward and a bare SDK server in turn."""
    for arguments in (_RUNWARD, _BARE):
        await _start(sandbox, arguments)  # compiles, and fills the page cache
    pairs = [(await _start(sandbox, _RUNWARD), await _start(sandbox, _BARE)) for _ in range(_PAIRS)]
    ours, bare = [a for a, _ in pairs], [b for _, b in pairs]
    ratio = median([a.ready_ms / b.ready_ms for a, b in pairs])
    ours_ms, bare_ms = [a.ready_ms for a in ours], [b.ready_ms for b in bare]
    rows = (
        Row(
            "spawn → tools listed, median",
            amount(median(ours_ms), "ms"),
            amount(median(bare_ms), "ms"),
            f"{ratio:.2f} x",
            "≤ 1.25 x",
            ratio <= 1.25,
        ),
        Row(
            "spawn → tools listed, slowest",
            amount(percentile(ours_ms, 100), "ms"),
            amount(percentile(bare_ms, 100), "ms"),
        ),
        measured(
            "memory then, RSS",
            median([s.rss_mib for s in ours]),
            "MiB",
            baseline=median([s.rss_mib for s in bare]),
            at_most=80,
        ),
        measured(
            "memory then, PSS", median([s.pss_mib for s in ours]), "MiB", baseline=median([s.pss_mib for s in bare])
        ),
        measured("its parent, PSS", median([s.parent_mib for s in ours]), "MiB", at_most=10),
    )
    note = f"Baseline: a server of the same SDK with one trivial tool; {_PAIRS} pairs in turn; median of their ratios."
    return Table("Server start over stdio", rows, (note,))


class _Start:
    """One start: how long, and the memory of the server; and of its parent, which starts it anew when it dies."""

    def __init__(self, ready_ms: float, child: int) -> None:
        self.ready_ms = ready_ms
        servers = processes.children(child)
        self.rss_mib, self.pss_mib = processes.memory_mib(servers[0] if servers else child)
        self.parent_mib = processes.memory_mib(child)[1] if servers else 0.0


async def _start(sandbox: Sandbox, arguments: list[str]) -> _Start:
    before = set(processes.children(os.getpid()))
    parameters = sandbox.parameters(arguments)
    with (sandbox.root / "server.log").open("a") as log:
        begun_s = time.perf_counter()
        async with Client(stdio_client(parameters, errlog=log)) as client:
            await client.list_tools()
            ready_ms = elapsed_ms(begun_s)
            (child,) = set(processes.children(os.getpid())) - before
            return _Start(ready_ms, child)
