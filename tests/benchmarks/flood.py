"""100,000 lines in 2 s: is every line on disk, what does it cost the training, how long is the answer?"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from pathlib import Path

import anyio
import anyio.to_thread

from tests.benchmarks.harness import NotMeasured, Sandbox, Server, program, shell, until
from tests.benchmarks.programs.flood import line, work
from tests.benchmarks.report import Row, Table, amount, median

_LINES, _SECONDS, _PRINT_S, _ROUNDS = 100_000, 1.9, 2e-6, 5
_MOST_BYTES = 8192
_SLOWED_PERCENT = 8.0
Took = dict[str, float]


async def measure(sandbox: Sandbox) -> Table:
    """Run the same program with its output to a file, under runward, and in a plain pane, in turn."""
    sandbox.start_plain_tmux()
    turns = _calibrate()
    to_file: list[Took] = []
    ours: list[Took] = []
    plain: list[Took] = []
    bare: list[Took] = []
    wrong: list[str] = []
    lost: list[int] = []
    async with sandbox.server() as server:
        for number in range(_ROUNDS):
            to_file.append(await _to_file(sandbox, turns, sandbox.work / f"file-{number}"))
            run_id, took = await _under_runward(server, turns, sandbox.work / f"ours-{number}")
            ours.append(took)
            wrong += _wrong_lines(sandbox.log(run_id))
            took, kept = await _in_pane(sandbox, turns, sandbox.work / f"plain-{number}")
            plain.append(took)
            lost.append(_LINES - kept)
            bare.append(
                await anyio.to_thread.run_sync(_in_bare_terminal, sandbox, turns, sandbox.work / f"bare-{number}")
            )
        answers = await _answers(server, run_id)
    beside_pane = _slowed(ours, plain, "wall_s")
    slowed, busier = _slowed(ours, to_file, "wall_s"), _slowed(ours, to_file, "cpu_s")
    others = {
        what: [f"{_slowed(some, to_file, what):+.1f} %" for some in (plain, bare)] for what in ("wall_s", "cpu_s")
    }
    rows = [
        Row(
            f"lines lost, doubled or displaced, of {_ROUNDS} x {_LINES:,}",
            f"{len(wrong):,}",
            f"{median(lost):,.0f} of {_LINES:,} a round",
            bar="0",
            ok=not wrong,
        ),
        Row(
            "training slowed, against a plain tmux pane",
            f"{beside_pane:+.1f} %",
            bar=f"≤ {_SLOWED_PERCENT:g} %",
            ok=beside_pane <= _SLOWED_PERCENT,
        ),
        Row(
            "the same, against output to a file; pane / bare terminal so",
            f"{slowed:+.1f} %",
            " / ".join(others["wall_s"]),
        ),
        Row("the training's own CPU time, against output to a file", f"{busier:+.1f} %", " / ".join(others["cpu_s"])),
    ]
    rows += [
        Row(
            f"answer of {what}: bytes, with the newest line",
            f"{amount(len(text.encode()), '')}, {'yes' if line(_LINES - 1) in text else 'no'}",
            f"{_LINES * (len(line(0)) + 1):,} (whole log)",
            bar=f"≤ {_MOST_BYTES:,}, yes",
            ok=len(text.encode()) <= _MOST_BYTES and line(_LINES - 1) in text,
        )
        for what, text in answers.items()
    ]
    named = {"file": to_file, "runward": ours, "pane": plain, "bare terminal": bare}
    walls = [f"{who} {', '.join(format(took['wall_s'], '.2f') for took in found)} s" for who, found in named.items()]
    notes = (
        f"{_LINES:,} lines of {len(line(0)) + 1} bytes, each flushed, with work between them; medians of {_ROUNDS} "
        f"rounds in turn. Took: {'; '.join(walls)}.",
        "Baselines of slowing: a plain tmux pane, which keeps 2,000 lines by default / a bare terminal whose other end "
        "a loop reads and throws away: what any terminal costs here.",
    )
    return Table("A flood of output", tuple(rows), (*notes, *wrong[:3]))


def _calibrate() -> int:
    """Return how much work stands between two lines, so that all takes about 2 s on this machine."""
    fastest_s = 1.0
    for _ in range(5):
        begun_s = time.perf_counter()
        work(100_000)
        fastest_s = min(fastest_s, time.perf_counter() - begun_s)
    return round((_SECONDS / _LINES - _PRINT_S) / (fastest_s / 100_000))


def _argv(turns: int, result: Path) -> list[str]:
    return program("flood", _LINES, turns, result)


async def _to_file(sandbox: Sandbox, turns: int, result: Path) -> Took:
    with result.with_suffix(".log").open("wb") as log:
        await anyio.run_process(_argv(turns, result), stdout=log, env=sandbox.environment())
    return _read(result)


async def _under_runward(server: Server, turns: int, result: Path) -> tuple[str, Took]:
    run_id = await server.launch(_argv(turns, result), name="flood")
    await server.wait(run_id)
    return run_id, _read(result)


async def _in_pane(sandbox: Sandbox, turns: int, result: Path) -> tuple[Took, int]:
    """Return what the program took, and how many of its lines tmux still has."""
    log = shell(_argv(turns, result))
    sandbox.tmux("new-session", "-d", "-s", result.name, "-x", "200", "-y", "50", log)
    if not await until(lambda: result.exists() and result.stat().st_size > 0, within_s=60, every_s=0.1):
        raise NotMeasured("the flood in a plain pane did not end within 60 s")
    target = f"={result.name}:"
    await anyio.sleep(0.2)  # tmux reads on after the program has ended
    kept = sandbox.tmux("capture-pane", "-p", "-S", "-", "-t", target).count("loss 2.3456")
    sandbox.tmux("kill-session", "-t", target)
    return _read(result), kept


def _in_bare_terminal(sandbox: Sandbox, turns: int, result: Path) -> Took:
    master, slave = os.openpty()
    try:
        with subprocess.Popen(_argv(turns, result), stdout=slave, env=sandbox.environment()):
            os.close(slave)
            with contextlib.suppress(OSError):  # the program has ended
                while os.read(master, 65536):
                    pass
    finally:
        os.close(master)
    return _read(result)


def _read(result: Path) -> Took:
    took: Took = json.loads(result.read_text())
    return took


def _slowed(some: list[Took], others: list[Took], what: str) -> float:
    """Return by how many percent ``some`` took longer than ``others``: the median over rounds taken in turn."""
    return median([(a[what] / b[what] - 1) * 100 for a, b in zip(some, others, strict=True)])


def _wrong_lines(log: Path) -> list[str]:
    """Return what differs between a log and what was printed."""
    found = log.read_bytes().split(b"\n")
    due = [line(number).encode() for number in range(_LINES)] + [b""]
    wrong = [
        f"line {n:,}: {a[:80]!r}, not {b[:80]!r}" for n, (a, b) in enumerate(zip(found, due, strict=False)) if a != b
    ]
    return wrong + [f"{len(found):,} lines, not {len(due):,}"] * (len(found) != len(due))


async def _answers(server: Server, run_id: str) -> dict[str, str]:
    return {
        "wait_run": (await server.wait(run_id)).text,
        "read_log": (await server.call("read_log", run_id=run_id)).text,
        "read_log, tail=5000": (await server.call("read_log", run_id=run_id, tail=5000)).text,
        "capture_pane": (await server.call("capture_pane", run_id=run_id)).text,
        "capture_pane, whole history": (
            await server.call("capture_pane", run_id=run_id, lines=2000, history=True)
        ).text,
    }
