"""64 launchers on 8 GPUs, many killed at random moments: no GPU has two holders, and no waiter is overtaken."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import anyio

from mcp_server.gpus.request import GpuRequest, may_compete
from tests.benchmarks.harness import NotMeasured, Sandbox, program
from tests.benchmarks.report import Row, Table, measured, median

_ROUNDS, _HANDOVERS = 1_000, 40
_AT_MOST_MS = 1_000.0
Log = list[dict[str, Any]]


async def measure(sandbox: Sandbox) -> Table:
    """Run launchers with leases, then launchers that check which GPUs are in use and start."""
    ours, free = await _run(sandbox, "storm", _ROUNDS)
    naive, _ = await _run(sandbox, "naive", _ROUNDS)
    times = await _handovers(sandbox)
    doubles, naive_doubles = (sum(line["what"] == "double" for line in log) for log in (ours, naive))
    overtakes = _count_overtakes(ours)
    rows = (
        Row(
            f"GPUs that had two holders, in {_ROUNDS:,} rounds",
            f"{doubles}",
            f"{naive_doubles:,}",
            bar="0",
            ok=doubles == 0,
        ),
        Row("leases taken ahead of an earlier waiter for the same GPUs", f"{overtakes}", bar="0", ok=overtakes == 0),
        Row("all GPUs are free when all launchers have ended or died", "yes" if free else "no", bar="yes", ok=free),
        measured("from a holder's death until its GPUs are free, longest", 1e3 * max(t["free_s"] for t in times), "ms"),
        measured("until the next waiter has them, median", 1e3 * median([t["got_s"] for t in times]), "ms"),
        measured(f"the same, longest of {_HANDOVERS}", 1e3 * max(t["got_s"] for t in times), "ms", at_most=_AT_MOST_MS),
    )
    return Table(
        "GPU leases", rows, (_note(ours), f"Baseline: checks which GPUs are in use, then starts. {_note(naive)}")
    )


async def _run(sandbox: Sandbox, what: str, rounds: int) -> tuple[Log, bool]:
    """Return the log of all launchers, in order, and whether all GPUs are free in the end."""
    directory = sandbox.work / what
    directory.mkdir()
    answer = await _program(what, directory, rounds)
    return [json.loads(line) for line in (directory / "log").read_text().splitlines()], bool(answer["all_free"])


async def _handovers(sandbox: Sandbox) -> list[dict[str, float]]:
    directory = sandbox.work / "handover"
    directory.mkdir()
    times: list[dict[str, float]] = (await _program("handover", directory, _HANDOVERS))["times"]
    return times


async def _program(what: str, directory: Path, rounds: int) -> dict[str, Any]:
    try:
        done = await anyio.run_process(program("leaser", what, directory, rounds))
    except subprocess.CalledProcessError as error:
        raise NotMeasured(f"{what} failed: {error.stderr.decode()[-2000:]}") from error
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _count_overtakes(log: Log) -> int:
    """Count the leases taken while an earlier waiter for the same GPUs waited, and lived to get them later."""
    drawn = {line["number"]: at for at, line in enumerate(log) if line["what"] == "drew"}
    took = [(at, line["number"], _read_request(line)) for at, line in enumerate(log) if line["what"] == "took"]
    overtakes = 0
    for at, number, request in took:
        later = ((n, other) for other_at, n, other in took if n and other_at > at)
        overtakes += any(
            (n < number if number else drawn[n] < at) and may_compete(request, other) for n, other in later
        )
    return overtakes


def _read_request(line: dict[str, Any]) -> GpuRequest:
    return GpuRequest(line["count"], tuple(line["ids"]))


def _note(log: Log) -> str:
    """Return how many launchers got GPUs, were killed, or failed."""
    took = {line["pid"] for line in log if line["what"] == "took"}
    ended = Counter((line["what"], line["who"] in took) for line in log if "who" in line)
    failed = ended["failed", True] + ended["failed", False]
    return (
        f"{len(took):,} got GPUs, of which {ended['killed', True]:,} were killed before they ended; "
        f"{ended['killed', False]:,} were killed before that; {failed} failed on their own."
    )
