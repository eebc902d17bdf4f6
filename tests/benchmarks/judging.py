"""Diagnosis of labelled logs (causes of failure, first steps), and the time it takes on large logs and streams."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from mcp_server.diagnosis.live.output_monitor import OutputMonitor
from tests.benchmarks import stalls
from tests.benchmarks.harness import REPOSITORY, NotMeasured, Sandbox, elapsed_ms
from tests.benchmarks.report import Row, Table, amount, measured, median
from tests.benchmarks.scoring import Score, diagnose_by_keywords, diagnose_by_runward
from tests.support.logs import read_labels, whole_log_directories

_MIB = 2**20
_STREAM_BYTES, _PIECE_BYTES, _ROUNDS = 64 * _MIB, 64 * 1024, 3
_LARGE_BYTES = 10**9
_FREE_BYTES = 2 * 10**9  # left free next to the large file
_LINES, _STARTS = 20_000, 9
_MIN_F1, _MIN_PERCENT, _MIN_MB_S = 0.90, 95.0, 100.0


async def measure(sandbox: Sandbox) -> Table:
    """Measure diagnosis on labelled logs, on a stream and on a large file, against what people do without it."""
    rows: list[Row] = []
    notes: list[str] = []
    for directory in whole_log_directories():
        more_rows, more_notes = _labelled_rows(directory)
        rows, notes = rows + more_rows, notes + more_notes
    rows += stalls.rows()
    rows += _stream_rows()
    rows += _large_file_rows(sandbox)
    rows += _import_rows()
    notes += [
        "Baselines of the logs: the last line with one of the usual keywords, which also names the kind; a plain "
        "tqdm, `step` or `iteration` pattern. A kind is right if the label allows it; a line, if one holds the other. "
        "`RUNWARD_LOGS=DIR` adds a directory of labelled logs.",
        "Simulated: steps of 0.01 s to 20 min, pauses of 10 steps, slow-downs, buffered output; baseline: 60 s.",
        f"The stream: {_STREAM_BYTES // _MIB} MiB in pieces of {_PIECE_BYTES // 1024} KiB, fastest of {_ROUNDS} in "
        "turn, of processor time; "
        "baseline: `bytes.splitlines` and one pattern a line. A piece of that length is a flood: all of it is "
        "searched for errors, and only its newest lines are read for steps. Line by line, everything is read.",
        f"The large file: {_LARGE_BYTES / 1e9:g} GB of training lines, a traceback at its end; page cache warm.",
    ]
    return Table("Diagnosis", tuple(rows), tuple(notes))


def _labelled_rows(directory: Path) -> tuple[list[Row], list[str]]:
    """Score the labelled logs of ``directory``; return rows, and notes that name the logs diagnosed wrongly."""
    labels = read_labels(directory)
    ours, grep = Score(), Score()
    for label in labels:
        path = directory / label["file"]
        ours.add(label, diagnose_by_runward(path))
        grep.add(label, diagnose_by_keywords(path.read_text(errors="replace")))
    alarms, healthy = len(ours.wrong.get("alarm", ())), ours.counts["alarm"]
    rows = [
        Row(
            f"{len(labels)} labelled logs ({directory.name}): macro-F1 of kinds",
            f"{ours.f1:.3f}",
            f"{grep.f1:.3f}",
            bar=f"≥ {_MIN_F1:.2f}",
            ok=ours.f1 >= _MIN_F1,
        ),
        Row(
            f"healthy logs called failed, of {healthy}",
            f"{alarms}",
            f"{len(grep.wrong.get('alarm', ()))}",
            bar="0",
            ok=not alarms,
        ),
        _share_row("root line quoted", ours, grep, "line"),
        Row("whether to retry, as labelled", ours.summarise("retryable")),
        _share_row("first step recognised", ours, grep, "step"),
    ]
    wrong = {what: names for what, names in ours.wrong.items() if names}
    return rows, [f"Wrong about the {what}: {', '.join(names)}." for what, names in wrong.items()]


def _share_row(what: str, ours: Score, grep: Score, about: str) -> Row:
    minimum = _MIN_PERCENT
    return Row(
        what, ours.summarise(about), grep.summarise(about), bar=f"≥ {minimum:g} %", ok=ours.percent(about) >= minimum
    )


def ordinary_output(total_bytes: int) -> Iterator[bytes]:
    """Yield the output of a long fine-tuning run, about ``total_bytes``: bars, metrics, messages, warnings."""
    written, step = 0, 0
    while written < total_bytes:
        step += 1
        done_s, loss = step * 2, 0.9 + 1.4 / (1 + step / 500)
        bar = f"{'█' * (step % 40):<40}| {step}/9999999 [{done_s // 60:02}:{done_s % 60:02}<99:59:59,  1.98s/it]"
        text = f"\r  1%|{bar}"
        if step % 2 == 0:
            text += (
                f"\n{{'loss': {loss:.4f}, 'grad_norm': 0.8731, 'learning_rate': 1.99e-05, 'epoch': {step / 9e5:.2f}}}\n"
            )
        if step % 5 == 0:
            text += (
                f"[2026-01-01 12:{step % 60:02}:07,412] [INFO] [logging.py:107:log_dist] [Rank 0] step={step}, "
                f"skipped=3, lr=[1.99e-05], mom=[(0.9, 0.999)], MemAllocated=21.39GB, num_errors=0\n"
            )
        if step % 50 == 0:
            text += (
                f"INFO:trainer:saved checkpoint out/checkpoint-{step} in 1.2 s\n"
                "/opt/venv/lib/python3.11/site-packages/torch/utils/checkpoint.py:61: UserWarning: None of the inputs "
                "have requires_grad=True. Gradients will be None\n  warnings.warn(\n"
            )
        data = text.encode()
        written += len(data)
        yield data


def _stream_rows() -> list[Row]:
    stream = b"".join(ordinary_output(_STREAM_BYTES))
    pieces = [stream[at : at + _PIECE_BYTES] for at in range(0, len(stream), _PIECE_BYTES)]
    lines = stream[: 400 * _LINES].splitlines(keepends=True)[:_LINES]
    ours_s, plain_s = _time_fastest(partial(_monitor_pieces, pieces), partial(_match_pieces, pieces))
    line_s, plain_line_s = _time_fastest(partial(_monitor_pieces, lines), partial(_match_pieces, lines))
    ours, plain = (len(stream) / 1e6 / took_s for took_s in (ours_s, plain_s))
    minimum = _MIN_MB_S
    return [
        Row(
            "an ordinary log monitored as it arrives",
            amount(ours, "MB/s"),
            amount(plain, "MB/s"),
            f"{ours / plain:.2f} x",
            f"≥ {minimum:g} MB/s",
            ours >= minimum,
        ),
        Row(
            "the same line by line, one line",
            f"{line_s / len(lines) * 1e6:.1f} µs",
            f"{plain_line_s / len(lines) * 1e6:.1f} µs",
            f"{line_s / plain_line_s:.3g} x",
        ),
    ]


def _time_fastest(*ways: Callable[[], object]) -> list[float]:
    """Return the shortest processor time of each function, seconds; the functions take turns."""
    took_s = [float("inf")] * len(ways)
    for _ in range(_ROUNDS):
        for number, way in enumerate(ways):
            begun_s = time.process_time()
            way()
            took_s[number] = min(took_s[number], time.process_time() - begun_s)
    return took_s


def _monitor_pieces(pieces: Iterable[bytes]) -> None:
    monitor = OutputMonitor({}, time.perf_counter())
    for piece in pieces:
        monitor.read_output(piece, time.perf_counter())
    if not monitor.progress.first_step_seen or monitor.suspect is not None:
        raise NotMeasured("the ordinary log was not diagnosed as healthy")


def _match_pieces(pieces: Iterable[bytes]) -> int:
    step = re.compile(rb"step\D{0,3}(\d+)")
    return sum(1 for piece in pieces for line in piece.splitlines() if step.search(line))


_EXAMINE = """
import json, re, sys, time
from pathlib import Path
from mcp_server.diagnosis.log_file import examine_log

def read_figure(file, name):
    return int(re.search(rf"{name}:\\s*(\\d+)", Path(f"/proc/self/{file}").read_text())[1])

before, begun_s = read_figure("io", "rchar"), time.perf_counter()
failure = examine_log(Path(sys.argv[1]), 1).failure
took_s = time.perf_counter() - begun_s
read, peak_mib = read_figure("io", "rchar") - before, read_figure("status", "VmHWM") / 1024
facts = {"took_s": took_s, "read": read, "peak_mib": peak_mib}
print(json.dumps({**facts, "kind": failure and failure.kind, "line": failure and failure.line}))
"""
_TRACEBACK = b"""
Traceback (most recent call last):
  File "/data/train.py", line 214, in <module>
    trainer.train()
  File "/data/train.py", line 97, in train
    loss = model(batch)
RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x512 and 768x768)
"""


def _large_file_rows(sandbox: Sandbox) -> list[Row]:
    if shutil.disk_usage(sandbox.work).free < _LARGE_BYTES + _FREE_BYTES:
        return [Row(f"examined: {_LARGE_BYTES / 1e9:g} GB", "not measured: too little disk")]
    path = sandbox.work / "large.log"
    try:
        block = b"".join(ordinary_output(_MIB))
        with path.open("wb") as file:
            for _ in range(_LARGE_BYTES // len(block)):
                file.write(block)
            file.write(_TRACEBACK)
        argv = [sys.executable, "-c", _EXAMINE, str(path)]
        facts = [json.loads(_run(argv)) for _ in range(_ROUNDS)]
        grep_s = []
        for _ in range(_ROUNDS):
            begun_s = time.perf_counter()
            _run(["grep", "-c", "Traceback", str(path)])
            grep_s.append(time.perf_counter() - begun_s)
    finally:
        path.unlink(missing_ok=True)
    right = facts[0]["kind"] == "python_error" and facts[0]["line"].startswith("RuntimeError: mat1")
    size = f"{_LARGE_BYTES / 1e9:g} GB"
    return [
        measured(f"examined: {size}", median([f["took_s"] for f in facts]), "s", baseline=median(grep_s), at_most=1),
        Row("its bytes read", amount(facts[0]["read"] / _MIB, "MiB"), f"{_LARGE_BYTES / _MIB:,.0f} MiB"),
        Row("memory at most", amount(max(f["peak_mib"] for f in facts), "MiB")),
        Row("its root line quoted", "yes" if right else str(facts[0]["line"]), "a count", bar="yes", ok=right),
    ]


def _run(argv: list[str]) -> str:
    return subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout


def _import_rows() -> list[Row]:
    relay = "import mcp_server.supervisor.terminal.output_log"
    diagnosis = f"{relay}, mcp_server.diagnosis.live.output_monitor, mcp_server.diagnosis.log_file"
    took_ms: dict[str, list[float]] = {diagnosis: [], relay: [], "pass": []}
    for _ in range(_STARTS):
        for code, some in took_ms.items():
            begun_s = time.perf_counter()
            _run([sys.executable, "-S", "-c", code])
            some.append(elapsed_ms(begun_s))
    whole, without, bare = (median(some) for some in took_ms.values())
    return [
        measured("a Python that imports the relay and diagnosis, start to end", whole, "ms", baseline=bare),
        Row("the same without diagnosis", amount(without, "ms")),
    ]
