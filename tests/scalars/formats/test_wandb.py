"""Scalars in the logs of wandb are read as they grow, and around damage, without wandb."""

import math
import struct
from pathlib import Path

import pytest

from mcp_server.scalars.formats.detect import ScalarSource, find_sources
from mcp_server.scalars.reading import ScalarReader
from tests.support.scalar_files import chunked_log, field, points, varint

HEADER = b":W&B\xe1\xbe\x00"
# Of wandb 0.31.0: log({"loss": 1.5, "eval": {"acc": nan}, "note": "7", "ok": True}), log({"loss": -inf}, step=300).
RECORDS = tuple(
    bytes.fromhex(record)
    for record in (
        "0807128b010a0b12055f73746570820101300a0c12046c6f7373820103312e350a1112046576616c12036163638201034e614e0a0c1204"
        "6e6f74658201032237220a0b12026f6b820104747275650a24120a5f74696d657374616d70820115312e37393533383637343436363837"
        "3132652b30390a1812085f72756e74696d6582010b302e3236313739373833381200",
        "080d12690a1212046c6f73738201092d496e66696e6974790a25120a5f74696d657374616d70820116312e373935333836373434373133"
        "30383034652b30390a1812085f72756e74696d6582010b302e3236333830343232370a0d12055f73746570820103333030120308ac02",
    )
)


def item(key: str, value: bytes) -> bytes:
    return field(1, field(1, key.encode()) + value)


def history(step: int, *items: bytes) -> bytes:
    """Return a record without ``_step`` among its items, as wandb wrote it before 0.19."""
    return field(2, b"".join(items) + field(2, b"\x08" + varint(step)))


def test_wandb_runs_are_found_once_and_what_wandb_wrote_is_read(tmp_path: Path) -> None:
    run = tmp_path / "wandb" / "offline-run-20261121_213809-fpjajw8p"
    run.mkdir(parents=True)
    (run / "run-fpjajw8p.wandb").write_bytes(chunked_log(HEADER, *RECORDS))
    (tmp_path / "wandb" / "latest-run").symlink_to(run.name)
    expected = [ScalarSource("wandb", run / "run-fpjajw8p.wandb")]
    assert find_sources(tmp_path) == find_sources(tmp_path / "wandb") == find_sources(run) == expected
    scalars = ScalarReader().read(expected[0])
    assert set(scalars.series) == {"loss", "eval/acc"}  # and not wandb's own clock
    assert points(scalars, "loss") == [(0, 1.5), (300, -math.inf)]
    assert math.isnan(scalars.series["eval/acc"].values[0])
    assert scalars.series["loss"].walls[0] == pytest.approx(1_795_386_744.668712)
    assert scalars.notes == ()


def test_a_growing_log_is_read_to_its_last_whole_record_and_around_damage(tmp_path: Path) -> None:
    records = [history(n, item("loss", field(16, str(n / 8).encode())), item("text", b"x" * 90)) for n in range(600)]
    whole = chunked_log(HEADER, *records, history(1_000, item("big", b"x" * 100_000), item("loss", field(16, b"-1"))))
    part, reader = ScalarSource("wandb", tmp_path / "part.wandb"), ScalarReader()
    for end in (3, 7, 20, 40_000, 40_001, 100_000, len(whole)):
        part.path.write_bytes(whole[:end])
        grown = reader.read(part)
    assert points(grown, "loss") == [*((n, n / 8) for n in range(600)), (1_000, -1.0)]

    part.path.write_bytes(whole[:40_000] + b"\xff" * 500 + whole[40_500:])
    damaged = ScalarReader().read(part)  # a reader that knew the file would not look there again
    assert damaged.notes == ("Damaged places skipped: 1.",)
    assert 300 < len(damaged.series["loss"].steps) < 600
    assert points(damaged, "loss")[-1] == (1_000, -1.0)


def test_values_that_wandb_declares_are_read_and_records_that_are_not_messages_are_counted(tmp_path: Path) -> None:
    values = {
        "whole": b"\x28" + varint(5),  # zigzag: -3
        "double": b"\x31" + struct.pack("<d", 0.25),
        "nested": field(8, b'{"a": {"b": 4}, "c": "d"}'),
        "text": field(7, b"9"),
        "wrong": field(16, b"["),
    }
    record = history(3, *(item(key, value) for key, value in values.items()))
    (tmp_path / "run-a.wandb").write_bytes(chunked_log(HEADER, b"\xff" * 12, field(3, b"summary"), record))
    (source,) = find_sources(tmp_path)
    scalars = ScalarReader().read(source)
    assert {tag: points(scalars, tag) for tag in scalars.series} == {
        "whole": [(3, -3.0)],
        "double": [(3, 0.25)],
        "nested/a/b": [(3, 4.0)],
    }
    assert scalars.notes == ("Damaged places skipped: 1.",)
