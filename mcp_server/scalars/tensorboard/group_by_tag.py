"""Groups batch-decoded records by their tags: by a hash of the texts, then by comparing the texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mcp_server.scalars.tensorboard.batch_decode import TEXT_BYTES, DecodedBatch, Span
from mcp_server.scalars.tensorboard.records import Bytes, Positions, unaligned

_MIX = np.uint64(0x9E3779B97F4A7C15)
_FIRST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)  # masks of the first bytes of a word


@dataclass(frozen=True, eq=False)
class TagGroups:
    """Records with the same tags.

    ``rows``: group after group, each in the order of the file. ``firsts``: one row of each group.
    """

    rows: Positions
    bounds: list[int]
    firsts: list[int]

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Yield one row of each group, and the begin and end of the group in ``rows``."""
        return zip(self.firsts, self.bounds, self.bounds[1:], strict=False)


def group_records(data: Bytes, batch: DecodedBatch) -> TagGroups:
    """Group the good rows by their tags. Clears ``good`` of the few rows that must be decoded in another walk."""
    rows = np.flatnonzero(batch.good)
    spans = [span for column in batch.columns if column.is_relevant for span in column.texts]
    words = [word for span in spans for word in _words(data, span, rows)]
    mixed = np.zeros(len(rows), np.uint64)
    for word in words:
        mixed ^= word
        mixed *= _MIX
        mixed ^= mixed >> np.uint64(32)
    bucket = (mixed >> np.uint64(48)).view(np.int64)
    table = np.empty(2**16, np.int64)
    every = np.arange(len(rows))
    table[bucket] = every  # the last row of a bucket remains
    first = table[bucket]
    same = np.ones(len(rows), bool)
    for word in words:
        same &= word == word[first]
    firsts = np.flatnonzero(first == every)
    group = np.zeros(len(rows), np.uint16)  # numpy sorts uint16 by radix
    group[firsts] = np.arange(len(firsts), dtype=np.uint16)
    group = group[first]
    if not same.all():  # two tags in one bucket
        batch.good[rows[~same]] = False
        rows, group, firsts = rows[same], group[same], rows[firsts]
    else:
        firsts = rows[firsts]
    order = np.argsort(group, kind="stable")
    bounds = np.concatenate([[0], np.cumsum(np.bincount(group, minlength=len(firsts)))])
    return TagGroups(rows[order], bounds.tolist(), firsts.tolist())


def _words(data: Bytes, span: Span, rows: Positions) -> Iterator[NDArray[np.uint64]]:
    """Yield the length of each text, then its bytes, eight at a time, with zeros after its end."""
    starts, lengths = (
        (span.starts, span.lengths) if len(rows) == len(span.starts) else (span.starts[rows], span.lengths[rows])
    )
    yield lengths.view(np.uint64)
    longest = int(lengths.max(initial=0))
    for begin in range(0, longest, TEXT_BYTES):
        block = unaligned(data, f"V{TEXT_BYTES}")[starts + begin].view("<u8").reshape(-1, TEXT_BYTES // 8)
        for index in range(-(-min(TEXT_BYTES, longest - begin) // 8)):
            yield block[:, index] & _FIRST_BYTES[np.clip(lengths - (begin + index * 8), 0, 8)]
