"""Finds the records of an event file and checks their checksums.

A record is the length of its payload (8 bytes), the checksum of these 8 bytes (4), the payload, and the
payload's checksum (4), all little-endian. A checksum is a CRC-32C, mask_crc so that a checksum of data that holds
checksums stays good. ScalarSource: tensorflow/core/lib/io/record_writer.h and tensorflow/core/lib/hash/crc32c.h.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import Literal

import google_crc32c
import numpy as np
from numpy.typing import NDArray

HEADER_BYTES = 12
FRAME_BYTES = 16  # header, and the checksum after the payload
_SMALL = 2**16
_MASK_DELTA = 0xA282EAD8
# The four bytes whose CRC-32C is 0: a checksum of 0 before them is 0 after them.
_NEUTRAL = 0x9BE09BAB
_WINDOW_BYTES = 64 * 2**10

Bytes = NDArray[np.uint8]
Positions = NDArray[np.int64]
_Words = NDArray[np.uint64]


def mask_crc(crc: int) -> int:
    """Return a CRC-32C as it is stored."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def unaligned(data: Bytes, dtype: str) -> NDArray[np.void]:
    """Return a view whose element ``i`` is the value that begins at byte ``i``."""
    item = np.dtype(dtype)
    return np.ndarray((max(0, len(data) - item.itemsize + 1),), item, data.data, 0, (1,))


@lru_cache(maxsize=4096)
def _stored_crc(length: int) -> int:
    return mask_crc(google_crc32c.value(struct.pack("<Q", length)))


def payload_length(header: bytes) -> int | None:
    """Return the payload length in the first 12 bytes of ``header``, or None if its checksum is wrong."""
    length, crc = struct.unpack_from("<QI", header)
    return int(length) if crc == _stored_crc(length) else None


@cache
def _stored_crcs() -> NDArray[np.uint32]:
    """Return the stored checksum of every length under 64 KiB. A CRC is linear, so 512 of them determine all."""

    def crcs(lengths: range) -> NDArray[np.uint32]:
        return np.array([google_crc32c.value(struct.pack("<Q", length)) for length in lengths], np.uint32)

    low, high = crcs(range(256)), crcs(range(0, _SMALL, 256))
    crc = ((high ^ low[0])[:, None] ^ low[None, :]).ravel()
    stored: NDArray[np.uint32] = (crc >> np.uint32(15) | crc << np.uint32(17)) + np.uint32(_MASK_DELTA)
    return stored


def small_headers(data: Bytes, size: int) -> tuple[Positions, Positions]:
    """Return the positions of headers of payloads of 1 to 65,535 bytes in ``data[:size]``, ascending, and the lengths.

    Bytes inside a payload that look like a header are included: only a chain from a known header is reliable.
    Six bytes of such a length are zero, so two aligned 16-bit words in a row are zero, and the first two of a run of
    zero words are 1, 2 or 3 bytes after the start of the header.
    """
    zero = data[: (size + 1) // 2 * 2].view(np.uint16) == 0
    pair = zero[1:] & zero[:-1]
    pair[1:] &= ~zero[:-2]
    behind = np.flatnonzero(pair) * 2
    behind = behind[behind >= 3]  # noqa: PLR2004 - the first three positions are checked one by one below
    halves = unaligned(data, "V16")[behind - 3].view("<u8").reshape(-1, 2)
    low, high = np.ascontiguousarray(halves[:, 0]), np.ascontiguousarray(halves[:, 1])
    # For a length under 256, the byte before the zero words shows how far they are from the start.
    bits = np.where(low >> np.uint64(16) & np.uint64(0xFF), np.uint64(16), np.uint64(8))
    sizes = _checked_lengths(low, high, bits)
    starts = behind - 3 + (bits >> np.uint64(3)).view(np.int64)
    unknown = np.flatnonzero(sizes == 0)
    low, high = low[unknown], high[unknown]
    for skipped in range(3):
        length = _checked_lengths(low, high, np.uint64(8 * skipped))
        matches = unknown[length > 0]
        sizes[matches], starts[matches] = length[length > 0], behind[matches] - 3 + skipped
    first = {at: payload_length(data[at : at + HEADER_BYTES].tobytes()) or 0 for at in range(3)}
    first = {at: length for at, length in first.items() if 0 < length < _SMALL}
    later = (sizes > 0) & (starts > 2) & (starts <= size - HEADER_BYTES)  # noqa: PLR2004
    return (
        np.concatenate([np.array([*first], np.int64), starts[later]]),
        np.concatenate([np.array([*first.values()], np.int64), sizes[later]]),
    )


@dataclass(frozen=True, eq=False)
class Records:
    """The records of a chunk. All positions count from its beginning.

    ``large``: position and length of records that are not in ``starts``. ``gaps``: positions of a wrong length that is
    followed by another header. ``end``: why the chain stops at ``stop``: the file has "more", the file is "cut" there,
    or the next header is "lost".
    """

    starts: Positions
    lengths: Positions
    large: list[tuple[int, int]]
    gaps: list[int]
    stop: int
    end: Literal["more", "cut", "lost"]


def follow_records(data: Bytes, count: int, room: int, large: int) -> Records:
    """Follow the records from ``data[0]`` on. ``data[:count]``, then zeros, was read of ``room`` bytes of the file."""
    positions, lengths = small_headers(data, count)
    small = lengths <= large
    positions, lengths = positions[small], lengths[small]
    behind = positions + lengths + FRAME_BYTES
    breaks = np.append(np.flatnonzero(behind[:-1] != positions[1:]), len(positions) - 1)
    chains: list[slice] = []
    large_records: list[tuple[int, int]] = []
    gaps: list[int] = []
    at = 0
    end: Literal["more", "cut", "lost"]
    while True:
        index = int(np.searchsorted(positions, at))
        if index < len(positions) and positions[index] == at:
            last = int(breaks[np.searchsorted(breaks, index)])
            if behind[last] <= count:
                chains.append(slice(index, last + 1))
                at = int(behind[last])
                continue
            chains.append(slice(index, last))
            at = int(positions[last])
            end = "cut" if behind[last] > room else "more"
            break
        if at + HEADER_BYTES > count:
            end = "cut" if at < room == count else "more"
            if (
                count < room
                and chains
                and 0 < positions[chains[-1].stop - 1] == at - FRAME_BYTES - lengths[chains[-1].stop - 1]
            ):
                # A record is returned only together with the header that follows it.
                chains[-1] = slice(chains[-1].start, chains[-1].stop - 1)
                at -= int(lengths[chains[-1].stop]) + FRAME_BYTES
            break
        length = payload_length(data[at : at + HEADER_BYTES].tobytes())
        if length is None:
            if (offset := find_header(data[at + 1 : count])) is None:
                end = "lost"
                break
            gaps.append(at)
            at += 1 + offset
        elif at + length + FRAME_BYTES > room:
            end = "cut"
            break
        else:
            if length:
                large_records.append((at, length))
            at += length + FRAME_BYTES
    chosen = (
        np.concatenate([np.arange(chain.start, chain.stop) for chain in chains]) if chains else np.empty(0, np.int64)
    )
    return Records(positions[chosen], lengths[chosen], large_records, gaps, at, end)


def _checked_lengths(low: _Words, high: _Words, bits: _Words | np.uint64) -> Positions:
    """Return the length under 64 KiB that begins at a bit offset within 16 bytes, or 0 where its checksum is wrong."""
    length = (low >> bits & np.uint64(_SMALL - 1)).view(np.int64)
    right = (high >> bits).astype(np.uint32) == _stored_crcs()[length]
    rest = low >> (bits + np.uint64(16)) | high & ((np.uint64(1) << bits) - np.uint64(1))
    lengths: Positions = length * (right & (rest == 0))
    return lengths


def find_header(data: Bytes) -> int | None:
    """Return the position of the first header with a right checksum, for a payload of 1 byte to 4 GiB."""
    for start in range(0, len(data) - HEADER_BYTES + 1, _WINDOW_BYTES):
        window = data[start : start + _WINDOW_BYTES + HEADER_BYTES - 1]
        zero = window == 0
        high = zero[4:-7] & zero[5:-6] & zero[6:-5] & zero[7:-4]
        high &= ~(zero[:-11] & zero[1:-10] & zero[2:-9] & zero[3:-8])
        for at in np.flatnonzero(high).tolist():
            if payload_length(window[at : at + HEADER_BYTES].tobytes()) is not None:
                return start + int(at)
    return None


def find_wrong_payloads(data: Bytes, starts: Positions, lengths: Positions) -> list[int]:
    """Return the indices of the records whose payload does not match its checksum. Overwrites headers and checksums.

    All payloads cost one checksum: headers become neutral bytes, stored checksums themselves unmasked and made neutral,
    so that the running checksum is 0 after every good record. A wrong one is found by halving.
    """
    if not len(starts):
        return []
    payload_ends = starts + HEADER_BYTES + lengths
    words = unaligned(data, "<u4")
    stored = words[payload_ends].view(np.uint32) - np.uint32(_MASK_DELTA)
    words[payload_ends] = (stored >> np.uint32(17) | stored << np.uint32(15)) ^ np.uint32(_NEUTRAL)
    unaligned(data, "V12")[starts] = np.frombuffer(struct.pack("<3I", *[_NEUTRAL] * 3), "V12")[0]
    ends = payload_ends + 4
    breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
    bounds = [0, *breaks.tolist(), len(starts)]
    return [index for low, high in pairwise(bounds) for index in _wrong(data, starts, ends, low, high)]


def _wrong(data: Bytes, starts: Positions, ends: Positions, low: int, high: int) -> Iterator[int]:
    if google_crc32c.value(data[starts[low] : ends[high - 1]]) == 0:
        return
    if high - low == 1:
        yield low
        return
    middle = (low + high) // 2
    yield from _wrong(data, starts, ends, low, middle)
    yield from _wrong(data, starts, ends, middle, high)
