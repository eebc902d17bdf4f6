"""Reads scalars from CSV, JSON lines, and the trainer_state.json of Hugging Face."""

import csv
import io
import json
import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from mcp_server.record.curves.tracker_records import flatten
from mcp_server.record.scalar_files import (
    STEP,
    is_log,
    is_split,
    name_in_split,
    parse_number,
    read_header,
    read_json_line,
    split_rows,
)
from mcp_server.scalars.formats.appended_file import Parser, WholeSource, open_scalar_file, unreadable_error
from mcp_server.scalars.formats.row_series import NumberColumn, Rows, collect_columns
from mcp_server.scalars.series import RunScalars
from mcp_server.threads import stop_if_abandoned

LONGEST_ROW = 2**20
_MOST_STATE_BYTES = 64 * 2**20
_LOG_HISTORY = re.compile(r'"log_history"\s*:\s*\[')
_SPACE = re.compile(r"[ \t\r\n]*")
_ENTRY_CHARS, _ENTRIES_AT_ONCE = 4096, 1000
_MOST_ENTRIES = 10**6  # real ones take over 64 bytes
_SNIFFED_BYTES = 4096
_TEXT = bytes([0, *b"\t\n\v\f\r\x1b", *range(32, 256)])  # text in any encoding; a file with holes has zeros
_MOST_SPLITS = 16  # of the data; more are no such column


class _LineParser(Parser):
    """Common base of CSV and JSON lines: rows end with a newline, and rows that are too long are skipped."""

    kinds = (_TOO_LONG, _BAD) = ("Rows over 1 MiB", "Damaged rows")
    _inside = False  # a row that is skipped

    @override
    def begin(self, fd: int, size: int) -> int:
        at = super().begin(fd, size)
        self._inside = at > 0
        return at

    @override
    def feed(self, data: bytes, at: int) -> int:
        start = 0
        if self._inside:
            start = data.find(b"\n") + 1
            if not start:
                return len(data)
            self._inside = False
        end = self._end(data, start)
        while len(data) - end > LONGEST_ROW:
            self._parse(data[start:end])
            self.skipped[self._TOO_LONG] += 1
            start = data.find(b"\n", end) + 1
            if not start:
                self._inside = True
                return len(data)
            end = self._end(data, start)
        self._parse(data[start:end])
        return end

    def _end(self, data: bytes, start: int) -> int:
        return max(start, data.rfind(b"\n", start) + 1)

    def _parse(self, data: bytes) -> None:
        raise NotImplementedError


class JsonLines(_LineParser):
    """One JSON object per line; in a log other lines are passed over, and so is the text before an object."""

    @override
    def feed_end(self, data: bytes) -> int:  # a last line without a newline where it is a whole object
        if self._inside or not data.rstrip().endswith(b"}") or len(data) > LONGEST_ROW:
            return 0
        try:
            json.loads(data)
        except (ValueError, RecursionError):
            return 0
        self._parse(data)
        return len(data)

    def _parse(self, data: bytes) -> None:
        records, is_in_log = [], is_log(self.path.name)
        for line in data.replace(b"\0", b"").split(b"\n"):  # a power cut leaves zeros
            if not line or line.isspace():
                continue
            if len(line) > LONGEST_ROW:
                self.skipped[self._TOO_LONG] += 1
            elif (record := read_json_line(line, is_log=is_in_log)) is not None:
                records.append(flatten(record))
            else:
                self.skipped[self._BAD] += not is_in_log
        if self.skipped[self._BAD] and not records and not self.rows.count:
            raise unreadable_error(self.path, "none of its lines is a JSON object")
        self.rows.add(*collect_columns(records))


class Csv(_LineParser):
    """A table with a header line, separated by comma, semicolon or tab."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._names: list[str] = []
        self._separator, self._counter = ",", ""

    @override
    def begin(self, fd: int, size: int) -> int:
        super().begin(fd, size)
        head = os.pread(fd, LONGEST_ROW, 0)
        if head[:_SNIFFED_BYTES].translate(None, _TEXT) != b"":
            raise unreadable_error(self.path, "it is not text")
        self._names = []
        try:
            header = read_header(head)
        except csv.Error as error:
            raise unreadable_error(self.path, f"Python's csv module rejects its first line: {error}") from None
        if b"\0" in head[: header.end] if header else b"\0" in head or len(head) == LONGEST_ROW:
            raise unreadable_error(self.path, "it does not begin with a line of text")
        if header is None:
            return 0
        self._separator, self._counter = header.separator, header.counter
        self._set_names(header.names)
        if all(parse_number(name) is not None for name in self._names):
            raise unreadable_error(self.path, "it does not begin with the names of columns")
        return max(header.end, self.left_out)

    def _set_names(self, header: Sequence[str]) -> None:
        self._names = [STEP if self._counter and name.strip() == self._counter else name.strip() for name in header]
        self._split = next((number for number, name in enumerate(self._names) if is_split(name)), None)

    def _end(self, data: bytes, start: int) -> int:
        # An odd number of quotes before the end of a line means that the line ends inside a quoted cell.
        end = super()._end(data, start)
        odd = data.count(b'"', start, end) % 2
        while odd:
            quote = data.rfind(b'"', start, end)
            line = max(start, data.rfind(b"\n", start, quote) + 1)
            odd ^= data.count(b'"', line, end) % 2
            end = line
        return end

    @override
    def feed(self, data: bytes, at: int) -> int:
        return super().feed(data, at) if self._names else 0

    def _parse(self, data: bytes) -> None:
        reader = split_rows(io.StringIO(data.decode("utf-8", "replace"), newline=""), self._separator)
        rows: list[list[str]] = []
        while True:
            try:
                for row in reader:
                    if not row:
                        continue
                    if self._is_header(row):
                        self._add(rows)
                        rows = []
                        self._set_names(row)
                        self.rows.begin_again()
                    else:
                        rows.append(row)
                break
            except csv.Error:
                self.skipped[self._BAD] += 1
        self._add(rows)

    def _is_header(self, row: list[str]) -> bool:
        first = row[0].strip()
        return (
            first != ""
            and first in (self._names[0], self._counter)
            and not any(parse_number(cell) is not None for cell in row)
        )

    def _add(self, rows: Sequence[Sequence[str]]) -> None:
        columns: dict[str, NumberColumn] = {}
        for name, cells in zip(self._names, zip_longest(*rows, fillvalue=""), strict=False):
            if not name:
                continue
            try:
                columns[name] = NumberColumn(
                    np.arange(len(cells)), np.fromiter(map(float, cells), np.float64, len(cells))
                )
            except ValueError:
                filled = np.array([row for row, cell in enumerate(cells) if cell], np.int64)
                for rows_of, values in collect_columns([(name, cells[row])] for row in filled.tolist())[1].values():
                    columns[name] = NumberColumn(filled[rows_of], values)
        if self._split is not None and rows:
            columns = self._divide(columns, [row[self._split] if self._split < len(row) else "" for row in rows])
        self.rows.add(len(rows), columns)

    @staticmethod
    def _divide(columns: dict[str, NumberColumn], split_of: Sequence[str]) -> dict[str, NumberColumn]:
        """Return the columns of each split of the data apart, by the text that says of which a row is."""
        splits, texts = np.array(split_of), sorted(set(split_of))
        if len(texts) > _MOST_SPLITS or any(parse_number(text) is not None for text in texts):
            return columns
        divided: dict[str, NumberColumn] = {}
        for name, column in columns.items():
            for text in texts:
                tag = name_in_split(name, f"{text.strip()}/")
                chosen = splits[column.rows] == text if tag != name else np.ones(len(column.rows), bool)
                if chosen.any():
                    divided[tag] = NumberColumn(column.rows[chosen], column.values[chosen])
        return divided


class TrainerState(WholeSource):
    """The log history in a trainer_state.json, tags as the TensorBoard callback of Hugging Face names them."""

    @override
    def read_whole(self) -> RunScalars:
        with open_scalar_file(self.path) as fd:
            if os.fstat(fd).st_size > _MOST_STATE_BYTES:
                raise unreadable_error(self.path, "it is larger than 64 MiB")
            with os.fdopen(fd, "rb", closefd=False) as file:
                data = file.read(_MOST_STATE_BYTES)
        rows, count = Rows(step_key="step"), 0
        try:
            entries = iter_log_history(data.decode("utf-8", "replace"))
            while block := list(islice(entries, _ENTRIES_AT_ONCE)):
                stop_if_abandoned()
                count += len(block)
                if count > _MOST_ENTRIES:
                    raise unreadable_error(self.path, f"it has more than {_MOST_ENTRIES:,} entries")
                rows.add(*collect_columns(_tagged_values(entry) for entry in block if isinstance(entry, dict)))
        except (ValueError, RecursionError):
            raise unreadable_error(self.path, "it is not a trainer state, or is just being written") from None
        return RunScalars(rows.series(), rows.notes)


def iter_log_history(text: str) -> Iterator[Any]:
    """Yield the entries of the log history in the text of a trainer_state.json, or raise ValueError or RecursionError.

    One after the other: Python's parser lets no other thread run, and its objects take 25 times as much memory as the
    text.
    """
    decoder, begin = json.JSONDecoder(), _LOG_HISTORY.search(text)
    if begin is None:
        raise ValueError("no log_history")
    at, is_first = begin.end(), True
    while text[(at := _SPACE.match(text, at).end()) : at + 1] != "]":  # type: ignore[union-attr] # it always matches
        if not is_first:
            if text[at : at + 1] != ",":
                raise ValueError("neither a comma nor the end")
            at = _SPACE.match(text, at + 1).end()  # type: ignore[union-attr]
        entry, at = _decode_entry(decoder, text, at)
        is_first = False
        yield entry


def _decode_entry(decoder: json.JSONDecoder, text: str, at: int) -> tuple[Any, int]:
    """Return the entry at ``at`` and where it ends. Looks no further than 1 MiB, and mostly 4 KiB."""
    window = _ENTRY_CHARS
    while True:
        part = text[at : at + window]
        is_all = window >= LONGEST_ROW or at + window >= len(text)
        try:
            entry, end = decoder.raw_decode(part)
        except ValueError:
            if is_all:
                raise
        else:
            if end < len(part) or is_all:  # a number may go on behind the window
                return entry, at + end
        window *= 16


def _tagged_values(entry: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the values of a log entry by tag: eval_loss is eval/loss, loss is train/loss."""
    for key, value in flatten(entry):
        part, _, name = key.partition("_")
        if key == "step":
            yield key, value
        elif name and part in {"eval", "test"}:
            yield f"{part}/{name}", value
        else:
            yield f"train/{key}", value
