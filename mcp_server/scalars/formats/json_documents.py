"""Reads curves from files that are one JSON value, as `record/curves/json_tables` finds them."""

import functools
import json
import os
import re
from pathlib import Path

from typing_extensions import override

from mcp_server.record.curves.json_tables import Table, find_tables
from mcp_server.scalars.formats.appended_file import WholeSource, file_signature, open_scalar_file, unreadable_error
from mcp_server.scalars.formats.row_series import Rows, collect_columns
from mcp_server.scalars.series import RunScalars, ScalarsUnreadable, Series
from mcp_server.scalars.tag_names import best_direction

_MOST_BYTES = 16 * 2**20
_BEGINNING = re.compile(rb"\s*[\[{]")


class JsonDocument(WholeSource):
    """A file whose one JSON value holds curves."""

    @override
    def read_whole(self) -> RunScalars:
        tables = _read_tables(self.path, file_signature(self.path))
        series: dict[str, Series] = {}
        notes: dict[str, None] = {}
        for table in tables:
            rows = Rows()
            rows.add_whole(*collect_columns(row.items() for row in table))
            series |= rows.series()
            notes |= dict.fromkeys(rows.notes)
        return RunScalars(series, tuple(notes))


def holds_document(path: Path) -> bool:
    """Return whether a file is one JSON value with curves."""
    try:
        return bool(_read_tables(path, file_signature(path)))
    except ScalarsUnreadable:
        return False


@functools.lru_cache(maxsize=64)
def _read_tables(path: Path, signature: tuple[int, ...]) -> tuple[Table, ...]:  # noqa: ARG001 - of the state it was read in
    with open_scalar_file(path) as fd:
        if os.fstat(fd).st_size > _MOST_BYTES:
            raise unreadable_error(path, "it is larger than 16 MiB")
        data = os.pread(fd, _MOST_BYTES, 0)
    try:
        return tuple(find_tables(json.loads(data), best_direction)) if _BEGINNING.match(data) else ()
    except (ValueError, RecursionError):
        raise unreadable_error(path, "it is not JSON, or is just being written") from None
