"""64 launchers on 8 GPUs, many killed at random moments: has a GPU ever two holders, is anybody overtaken?"""

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
Told = list[dict[str, Any]]


async def measure(sandbox: Sandbox) -> Table:
    """Let launchers take leases, then let others look at what is in use and start, as is done without leases."""
    ours, free = await _run(sandbox, "storm", _ROUNDS)
    naive, _ = await _run(sandbox, "naive", _ROUNDS)
    times = await _handovers(sandbox)
    doubles, naive_doubles = (sum(line["what"] == "double" for line in told) for told in (ours, naive))
    jumped = _jumped(ours)
    rows = (
        Row(
            f"GPUs that had two holders, in {_ROUNDS:,} rounds",
            f"{doubles}",
            f"{naive_doubles:,}",
            bar="0",
            ok=doubles == 0,
        ),
        Row(
            "leases taken before somebody who had come first and wanted the same", f"{jumped}", bar="0", ok=jumped == 0
        ),
        Row("all GPUs can be had when everybody has ended or died", "yes" if free else "no", bar="yes", ok=free),
        measured("a holder's death to its GPUs being free, longest", 1e3 * max(t["free_s"] for t in times), "ms"),
        measured("to the next one having them, median", 1e3 * median([t["got_s"] for t in times]), "ms"),
        measured(f"the same, longest of {_HANDOVERS}", 1e3 * max(t["got_s"] for t in times), "ms", at_most=_AT_MOST_MS),
    )
    return Table(
        "GPU leases", rows, (_note(ours), f"Baseline: looks which GPUs are in use, then starts. {_note(naive)}")
    )


async def _run(sandbox: Sandbox, what: str, rounds: int) -> tuple[Told, bool]:
    """Return what everybody told, in order, and whether nothing was left held."""
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


def _jumped(told: Told) -> int:
    """Count who took a lease while somebody waited who had come first, wanted the same, and lived to get it later."""
    drawn = {line["number"]: at for at, line in enumerate(told) if line["what"] == "drew"}
    took = [(at, line["number"], _wanted(line)) for at, line in enumerate(told) if line["what"] == "took"]
    jumped = 0
    for at, number, wanted in took:
        later = ((n, other) for other_at, n, other in took if n and other_at > at)
        jumped += any((n < number if number else drawn[n] < at) and may_compete(wanted, other) for n, other in later)
    return jumped


def _wanted(line: dict[str, Any]) -> GpuRequest:
    return GpuRequest(line["count"], tuple(line["ids"]))


def _note(told: Told) -> str:
    """Say what happened to whom."""
    took = {line["pid"] for line in told if line["what"] == "took"}
    ended = Counter((line["what"], line["who"] in took) for line in told if "who" in line)
    failed = ended["failed", True] + ended["failed", False]
    return (
        f"{len(took):,} had GPUs, of whom {ended['killed', True]:,} were killed before they ended; "
        f"{ended['killed', False]:,} were killed before they had any; {failed} failed of themselves."
    )
