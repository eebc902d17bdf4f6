"""Reads all points of event files, compared with TensorBoard's Python reader and its Rust server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import grpc  # type: ignore[import-untyped, unused-ignore]
import tensorboard_data_server  # type: ignore[import-untyped, unused-ignore]
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.context import RequestContext
from tensorboard.data import grpc_provider
from tensorboard.util import tensor_util

from mcp_server.scalars.reading import ScalarReader
from mcp_server.scalars.series import Points
from mcp_server.scalars.tensorboard.scan import scan
from tests.benchmarks import event_files
from tests.benchmarks.harness import NotMeasured, Sandbox, elapsed_ms
from tests.benchmarks.report import Row, Table, measured, median

_POINTS, _FEW_POINTS, _TAGS = 1_000_000, 100_000, 20
_MEDIA_BYTES_A_POINT = 430
_RUNS, _FEW_RUNS, _POINTS_OF_A_RUN = 200, 20, 36_000
_TIMES = 3
_PEAK = """import os, re, sys
from mcp_server.scalars.tensorboard.scan import scan
file = os.open(sys.argv[1], os.O_RDONLY)
scan(file, 0, os.fstat(file).st_size)
print(int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) / 1024)
"""
_SECOND = """import sys, time
from pathlib import Path
from mcp_server.scalars.reading import ScalarReader
begun_s = time.perf_counter()
ScalarReader(Path(sys.argv[1])).read(Path(sys.argv[2]))
print(1000 * (time.perf_counter() - begun_s))
"""
_EVERYTHING = {"scalars": 0, "tensors": 0, "images": 0, "histograms": 0}


async def measure(sandbox: Sandbox) -> Table:
    """Read files of a million points, and two hundred small runs."""
    root = sandbox.root / "events"
    root.mkdir()
    kinds: dict[str, tuple[Callable[[int], Iterable[bytes]], str]] = {
        "simple": (lambda points: event_files.simple_values(points, _TAGS), "simple values"),
        "tensors": (lambda points: event_files.tensors(points, _TAGS), "tensors"),
        "media": (lambda points: event_files.among_media(points, points * _MEDIA_BYTES_A_POINT, _TAGS), "among media"),
    }
    rows: list[Row] = []
    for name, (records, what) in kinds.items():
        full = _corpus(root / name, [_POINTS], records)
        few = _corpus(root / f"{name}-few", [_FEW_POINTS], records)
        bars = {"ratio_at_most": 0.01} if name == "simple" else {}
        rows += _compared(f"{_POINTS:,} {what}, {_mib(full):,.0f} MiB", full, few, _POINTS, _FEW_POINTS, **bars)
    many = _corpus(root / "many", [1000], lambda tags: event_files.simple_values(_POINTS, tags, shuffled=True))
    rows.append(measured(f"{_POINTS:,} simple values of 1,000 tags in random order", _ours_s(many), "s"))
    runs = _corpus(root / "runs", [_POINTS_OF_A_RUN] * _RUNS, kinds["simple"][0])
    few_runs = _corpus(root / "runs-few", [_POINTS_OF_A_RUN] * _FEW_RUNS, kinds["simple"][0])
    rows += _compared(f"{_RUNS} runs of 2 MiB", runs, few_runs, _RUNS, _FEW_RUNS, ratio_at_most=0.025)
    rows += _followed(root, root / "simple" / "run000")
    rows.append(_peak(f"peak memory, {_POINTS:,} points", _files(root / "simple")[0], 100))
    large = _corpus(root / "large", [50_000], lambda points: event_files.among_media(points, 2**30, _TAGS))
    rows.append(_peak("peak memory, a file of 1 GiB with images", _files(large)[0], 150))
    notes = (
        f"Median of {_TIMES}, page-cached, each with every point. Baseline: EventAccumulator with size guidance 0 on "
        f"{_FEW_POINTS:,} points or {_FEW_RUNS} runs: what a point or run of these costs, times their number, is "
        "the time for all of them. And tensorboard-data-server, from its start until its client has all points.",
    )
    return Table("Scalars", tuple(rows), notes)


def _corpus(directory: Path, sizes: list[int], records: Callable[[int], Iterable[bytes]]) -> Path:
    first: Path | None = None
    for number, size in enumerate(sizes):
        path = directory / f"run{number:03d}" / "events.out.tfevents.1750000000.host.1.0"
        if first is None:
            first = event_files.write(path, records(size))
        else:
            path.parent.mkdir(parents=True)
            path.write_bytes(first.read_bytes())
    return directory


def _files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*/events*"))


def _mib(directory: Path) -> float:
    return sum(path.stat().st_size for path in _files(directory)) / 2**20


def _compared(what: str, full: Path, few: Path, amount_full: int, amount_few: int, **bars: float) -> list[Row]:
    """Return how long reading all of ``full`` takes, compared with the other readers."""
    ours_s, few_s, theirs_s = _ours_s(full), _ours_s(few), _accumulator_s(few)
    share = f"{amount_few:,} of them, as a multiple of EventAccumulator"
    return [
        measured(f"{what}; tensorboard-data-server", ours_s, "s", baseline=_server_s(full), ratio_at_most=1),
        measured("EventAccumulator", ours_s, "s", baseline=theirs_s * amount_full / amount_few, **bars),
        measured(share, few_s, "s", baseline=theirs_s),
    ]


def _ours_s(directory: Path) -> float:
    def read() -> None:
        for path in _files(directory):
            fd = os.open(path, os.O_RDONLY)
            try:
                scan(fd, 0, path.stat().st_size)
            finally:
                os.close(fd)

    return median([_seconds(read) for _ in range(_TIMES)])


def _accumulator_s(directory: Path) -> float:
    def read() -> None:
        for path in _files(directory):
            accumulator = EventAccumulator(str(path.parent), size_guidance=_EVERYTHING).Reload()
            for tag in accumulator.Tags()["scalars"]:
                [event.value for event in accumulator.Scalars(tag)]
            for tag in accumulator.Tags()["tensors"]:
                [tensor_util.make_ndarray(event.tensor_proto).item() for event in accumulator.Tensors(tag)]

    return _seconds(read)


def _server_s(directory: Path) -> float:
    return median([_one_server_s(directory) for _ in range(_TIMES)])


def _one_server_s(directory: Path) -> float:
    """Return the seconds from the start of TensorBoard's Rust server until it has served all points."""
    port_file = directory.parent / "port"
    port_file.unlink(missing_ok=True)
    points = sum(len(part.steps) for path in _files(directory)[:1] for part in _scanned(path)) * len(_files(directory))
    options = ["--port", "0", "--port-file", str(port_file), "--samples-per-plugin", "scalars=all", "--reload", "once"]
    binary = tensorboard_data_server.server_binary()
    begun_s = time.perf_counter()
    server = subprocess.Popen([binary, "--logdir", directory, *options], stderr=subprocess.DEVNULL)
    try:
        while not (port_file.exists() and (port := port_file.read_text().strip())):
            time.sleep(0.002)
        unlimited = [("grpc.max_receive_message_length", -1)]
        with closing(grpc.insecure_channel(f"localhost:{port}", options=unlimited)) as channel:
            provider = grpc_provider.GrpcDataProvider(f"localhost:{port}", grpc_provider.make_stub(channel))
            while time.perf_counter() - begun_s < 60:
                if _has(provider, len(_files(directory))) and _served(provider) == points:
                    return time.perf_counter() - begun_s
                time.sleep(0.02)
    finally:
        server.kill()
        server.wait()
    raise NotMeasured(f"tensorboard-data-server did not serve {points:,} points")


def _has(provider: grpc_provider.GrpcDataProvider, runs: int) -> bool:
    """Return whether every tag has reached its last step, at the cost of a listing."""
    series_by_run = provider.list_scalars(RequestContext(), experiment_id="", plugin_name="scalars")
    ends = [series.max_step for tags in series_by_run.values() for series in tags.values()]
    return len(ends) == runs * _TAGS and min(ends) == max(ends)


def _served(provider: grpc_provider.GrpcDataProvider) -> int:
    series_by_run = provider.read_scalars(RequestContext(), experiment_id="", plugin_name="scalars", downsample=10**9)
    return sum(len(series) for tags in series_by_run.values() for series in tags.values())


def _scanned(path: Path) -> list[Points]:
    fd = os.open(path, os.O_RDONLY)
    try:
        return list(scan(fd, 0, path.stat().st_size).points.values())
    finally:
        os.close(fd)


def _followed(root: Path, run: Path) -> list[Row]:
    """Return the cost of a run that was read before: with a thousand more events, and for another process."""
    reader, more = ScalarReader(root / "cache"), event_files.simple_values(1000, _TAGS, behind=_POINTS)
    begun_s = time.perf_counter()
    reader.read(run)
    first_ms = elapsed_ms(begun_s)
    cached_ms = float(subprocess.check_output([sys.executable, "-c", _SECOND, root / "cache", run]))
    with next(run.iterdir()).open("ab") as file:
        file.write(b"".join(more))
    begun_s = time.perf_counter()
    reader.read(run)
    return [
        measured("1,000 events more in a known file of 60 MiB", elapsed_ms(begun_s), "ms", at_most=5),
        measured("that file for another process, from the cache", cached_ms, "ms", baseline=first_ms, at_most=100),
    ]


def _peak(what: str, path: Path, at_most: float) -> Row:
    result = subprocess.run([sys.executable, "-c", _PEAK, path], capture_output=True, text=True, check=True)
    return measured(what, float(result.stdout), "MiB", at_most=at_most)


def _seconds(read: Callable[[], object]) -> float:
    begun_s = time.perf_counter()
    read()
    return time.perf_counter() - begun_s
