"""Files with scalars, and short functions to read them."""

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mcp_server.scalars.formats.detect import find_sources
from mcp_server.scalars.reading import ScalarReader
from mcp_server.scalars.series import RunScalars

START_S = 1_700_000_000.0
BLOCK_BYTES = 32_768  # of a chunked log


def read(path: Path) -> RunScalars:
    """The scalars of the only source at ``path``."""
    (source,) = find_sources(path)
    return ScalarReader().read(source)


def points(run: RunScalars, tag: str) -> list[tuple[int, float]]:
    series = run.series[tag]
    return list(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def csv_file(directory: Path, text: str | bytes, name: str = "metrics.csv") -> Path:
    path = directory / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def listing(directory: Path) -> list[tuple[str, int, int]]:
    return sorted((p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in directory.iterdir())


@contextmanager
def unchanged(directory: Path) -> Iterator[None]:
    """Nothing in a directory is created, changed or touched."""
    before = listing(directory)
    yield
    assert listing(directory) == before


def field(number: int, content: bytes) -> bytes:
    """Return a field of a protocol buffer."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def chunked_log(header: bytes, *records: bytes) -> bytes:
    """Return a log with ``records`` in LevelDB's format, as wandb and SwanLab write it."""
    data = bytearray(header)
    for record in records:
        left, kind = record, 1
        while True:
            room = BLOCK_BYTES - len(data) % BLOCK_BYTES
            if room < 7:
                data += bytes(room)
                continue
            part, rest = left[: room - 7], left[room - 7 :]
            kind = {(False, False): 1, (False, True): 2, (True, True): 3, (True, False): 4}[
                left is not record, bool(rest)
            ]
            data += struct.pack("<IHB", zlib.crc32(part, zlib.crc32(bytes([kind]))), len(part), kind) + part
            left = rest
            if not left:
                break
    return bytes(data)
