"""Scalars in the logs of SwanLab are read as they grow, and around damage."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest

from mcp_server.scalars.formats.detect import ScalarSource, find_sources
from mcp_server.scalars.reading import ScalarReader
from mcp_server.scalars.series import ScalarsUnreadable
from tests.support.scalar_files import chunked_log, field, points, read, varint

HEADER = b":SWL\xd6\xe1\x02"
# Of a run of SwanLab 0.10.3: swanlab.log({"train/loss": 1.0, "val/acc": 0.0}, step=0), then 0.5 and 0.1 at step 10.
RECORDS = tuple(
    bytes.fromhex(record)
    for record in (
        "0808120c08eedb8cd80610b8fde5ca026219080110011a0a747261696e2f6c6f73732a05747261696e3003",
        "0809120c08eedb8cd80610e0bde8ca026a270a0a747261696e2f6c6f73731801220c08eedb8cd80610e8bed7c6022a090900"
        "0000000000f03f",
        "080a120c08eedb8cd8061098cfeaca026214080110011a0776616c2f6163632a0376616c3003",
        "080b120c08eedb8cd80610c8bcebca026a1b0a0776616c2f6163631801220c08eedb8cd80610e8bed7c6022a00",
        "080c120c08eedb8cd8061098c9ecca026a290a0a747261696e2f6c6f7373100a1801220c08eedb8cd80610e0e1e8c6022a09"
        "09000000000000e03f",
        "080d120c08eedb8cd80610b0beedca026a260a0776616c2f616363100a1801220c08eedb8cd80610e0e1e8c6022a09099a99"
        "99999999b93f",
    )
)


def scalar(key: str, step: int, value: float) -> bytes:
    """Return a record as SwanLab writes it."""
    time = b"\x08" + varint(1_790_000_000)
    body = field(1, key.encode()) + b"\x10" + varint(step) + b"\x18\x01" + field(4, time)
    return b"\x08\x09" + field(13, body + field(5, b"\x09" + struct.pack("<d", value)))


def test_swanlab_runs_are_found_and_what_it_wrote_is_read(tmp_path: Path) -> None:
    run = tmp_path / "swanlog" / "run-20261122_180117-p4ruwmdd"
    run.mkdir(parents=True)
    (run / "run-p4ruwmdd.swanlab").write_bytes(chunked_log(HEADER, *RECORDS))
    expected = [ScalarSource("swanlab", run / "run-p4ruwmdd.swanlab")]
    assert find_sources(tmp_path) == find_sources(tmp_path / "swanlog") == find_sources(run) == expected
    scalars = ScalarReader().read(expected[0])
    assert points(scalars, "train/loss") == [(0, 1.0), (10, 0.5)]
    assert points(scalars, "val/acc") == [(0, 0.0), (10, 0.1)]
    assert scalars.series["val/acc"].walls[0] == pytest.approx(1_795_370_478.685, abs=1e-3)
    assert scalars.notes == ()


def test_a_growing_log_is_read_to_its_last_whole_record_and_around_damage(tmp_path: Path) -> None:
    records = [record for n in range(2_000) for record in (scalar("loss", n, n / 8), field(12, b"x" * 20))]
    whole = chunked_log(HEADER, *records, scalar("loss", 5_000, math.nan))
    part, reader = ScalarSource("swanlab", tmp_path / "part.swanlab"), ScalarReader()
    for end in (3, 7, 20, 32_770, 40_000, len(whole) - 3, len(whole)):
        part.path.write_bytes(whole[:end])
        grown = reader.read(part)
    assert points(grown, "loss")[:-1] == [(n, n / 8) for n in range(2_000)]
    assert math.isnan(grown.series["loss"].values[-1])

    part.path.write_bytes(whole[:40_000] + b"\xff" * 500 + whole[40_500:])
    damaged = ScalarReader().read(part)
    assert damaged.notes == ("Damaged places skipped: 1.",)
    assert 1_000 < len(damaged.series["loss"].steps) < 2_000


def test_records_that_are_no_scalars_are_skipped_and_broken_ones_are_counted(tmp_path: Path) -> None:
    broken = field(13, field(1, b"loss") + b"\x2a\x7f")  # a value longer than the record
    (tmp_path / "run-a.swanlab").write_bytes(
        chunked_log(HEADER, field(14, b"image"), broken, b"\xff" * 12, scalar("loss", 1, 2.0))
    )
    (source,) = find_sources(tmp_path)
    scalars = ScalarReader().read(source)
    assert points(scalars, "loss") == [(1, 2.0)]
    assert scalars.notes == ("Damaged places skipped: 2.",)


def test_the_json_records_of_older_versions_are_read(tmp_path: Path) -> None:
    texts = (
        '{"model_type": "Header", "data": {"backup_type": "DEFAULT"}}',
        '{"model_type": "Scalar", "data": {"metric": {"index": 10, "data": 0.5, '
        '"create_time": "2026-11-22T18:05:53.483069+00:00"}, "key": "train/loss", "step": 10, "epoch": 2}}',
        '{"model_type": "Scalar", "data": {"metric": {"index": 0, "data": 100.0, '
        '"create_time": "2026-11-22T18:05:54.510070+00:00"}, "key": "__swanlab__.cpu.pct", "step": 0, "epoch": 1}}',
        '{"model_type": "Scalar"}',
    )
    data = chunked_log(HEADER, *(f"{text}\n".encode() for text in texts))
    (tmp_path / "backup.swanlab").write_bytes(data[:6] + b"\x01" + data[7:])
    scalars = ScalarReader().read(ScalarSource("swanlab", tmp_path / "backup.swanlab"))
    assert set(scalars.series) == {"train/loss"}
    assert points(scalars, "train/loss") == [(10, 0.5)]
    assert scalars.series["train/loss"].walls[0] == pytest.approx(1_795_370_753.483, abs=1e-3)
    assert scalars.notes == ("Damaged places skipped: 1.",)


def test_the_log_of_another_program_is_refused_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "backup.swanlab").write_bytes(b":XYZ\xd6\xe1\x01" + bytes(20))
    with pytest.raises(ScalarsUnreadable, match="does not begin like SwanLab"):
        read(tmp_path)
