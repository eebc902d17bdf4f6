"""TensorBoard event files for tests and measurements, written byte by byte, a million points in some seconds."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import google_crc32c

_FIRST_WALL_S = 1.75e9
_BLOCK_RECORDS = 10_000


def record(payload: bytes) -> bytes:
    """Return an event as a record of a file: length, checksum, payload, checksum."""
    length = struct.pack("<Q", len(payload))
    return length + _checksum(length) + payload + _checksum(payload)


def simple_values(points: int, tags: int = 20, *, behind: int = 0, shuffled: bool = False) -> Iterator[bytes]:
    """Yield the records of TensorBoard's first format, one float per event, starting after ``behind`` points."""

    def content(value: float, _first: bool) -> bytes:
        return b"\x15" + struct.pack("<f", value)

    return _scalars(range(behind, behind + points), tags, content, shuffled=shuffled)


def tensors(points: int, tags: int = 20) -> Iterator[bytes]:
    """Yield the records of TensorFlow 2: one tensor per event, declared a scalar by the first event of its tag."""

    def content(value: float, first: bool) -> bytes:
        metadata = b"\x4a" + _sized(b"\x0a" + _sized(b"\x0a\x07scalars") + b"\x20\x01")
        return b"\x42\x0a\x08\x01\x12\x00\x2a\x04" + struct.pack("<f", value) + (metadata if first else b"")

    return _scalars(range(points), tags, content)


def among_media(points: int, media_bytes: int, tags: int = 20) -> Iterator[bytes]:
    """Yield simple values with a histogram of 2 KB or an image of 20 to 200 KB between them."""
    chance = random.Random(1)
    noise = chance.randbytes(2**18)
    every = max(1, points * 20_000 // media_bytes)  # 20 KB on average
    for number, scalar in enumerate(simple_values(points, tags)):
        yield scalar
        if number % every == 0:
            if chance.random() < 0.8:
                value = b"\x0a\x0bweights/all\x2a" + _sized(b"\x32" + _sized(noise[:2000]))
            else:
                size = chance.randrange(20_000, 164_000)
                value = b"\x0a\x07samples\x22" + _sized(b"\x08\x40\x10\x40\x18\x03\x22" + _sized(noise[:size]))
            yield record(_event(number // tags, number, value))


def write(path: Path, records: Iterable[bytes]) -> Path:
    """Write an event file: the version first, then ``records``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(record(b"\x09" + struct.pack("<d", _FIRST_WALL_S) + b"\x1a\x0dbrain.Event:2"))
        block: list[bytes] = []
        for item in records:
            block.append(item)
            if len(block) == _BLOCK_RECORDS:
                file.write(b"".join(block))
                block.clear()
        file.write(b"".join(block))
    return path


def _scalars(
    points: range, tags: int, content: Callable[[float, bool], bytes], *, shuffled: bool = False
) -> Iterator[bytes]:
    chance = random.Random(0)
    names = [f"train/{'loss' if tag % 2 else 'accuracy_metric'}_{tag:02d}".encode() for tag in range(tags)]
    for number in points:
        tag = chance.randrange(tags) if shuffled else number % tags
        value = b"\x0a" + _sized(names[tag]) + content(chance.random(), number < tags)
        yield record(_event(number // tags, number, value))


def _event(step: int, number: int, value: bytes) -> bytes:
    head = b"\x09" + struct.pack("<d", _FIRST_WALL_S + number * 1e-3)
    return head + (b"\x10" + _varint(step) if step else b"") + b"\x2a" + _sized(b"\x0a" + _sized(value))


def _sized(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*data, number])


def _checksum(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
