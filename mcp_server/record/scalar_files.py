"""The files that hold scalars: one table for those who read, follow, fetch and attribute them. Pure.

A name is enough for few of them. All others are curves by content: a table with names and numbers, or lines of JSON
objects, in which a column counts steps.
"""

from __future__ import annotations

import csv
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mcp_server.record.curves.tracker_records import flatten
from mcp_server.text.rows import read_words

DATABASES = (".db", ".sqlite", ".sqlite3")
TRAINER_STATE = "trainer_state.json"
HEAD_BYTES = 64 * 2**10  # decide about a file


class ScalarFile(NamedTuple):
    """Files of these names, and who reads them. ``is_sure``: the name says that it is a training's log.

    ``most_bytes``: a larger one is more likely data, and is not fetched from a far host.
    """

    readers: tuple[str, ...]  # that its content chooses from
    endings: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    is_sure: bool = True
    most_bytes: int = 32 * 2**20


# The first that has a file's name counts.
SCALAR_FILES = (
    ScalarFile(("trainer_state",), names=(TRAINER_STATE,)),
    ScalarFile(("wandb",), (".wandb",)),
    ScalarFile(("swanlab",), (".swanlab",)),
    ScalarFile(("database",), DATABASES),
    # Lightning; Stable-Baselines3 and RLlib; Ultralytics; Keras, under the usual names of its log.
    ScalarFile(("csv",), names=("metrics.csv", "progress.csv", "results.csv", "log.csv", "history.csv")),
    ScalarFile(("csv", "jsonl"), names=("progress.txt", "training.log")),  # Spinning Up; Keras
    ScalarFile(("jsonl",), names=("log.txt", "scalars.json")),  # DETR and its descendants; MMEngine
    ScalarFile(("csv",), ("monitor.csv",)),  # Stable-Baselines3, one for each environment
    ScalarFile(("jsonl",), (".jsonl", ".ndjson")),
    ScalarFile(("csv",), (".csv", ".tsv"), is_sure=False),
    ScalarFile(("jsonl", "document"), (".json",), is_sure=False),
    ScalarFile(("csv", "jsonl"), (".log", ".txt", ".out", ".dat"), is_sure=False, most_bytes=4 * 2**20),
)

_EVENT_FILE = re.compile(r"tfevents\.(?P<begun_s>\d{1,12})\.(?P<rest>.*)", re.DOTALL)
_WRITER = re.compile(r"(?=(?:^|\.)(?P<pid>\d{1,10})\.\d)")


class EventName(NamedTuple):
    """The facts in the name of an event file: when it was begun (POSIX), and by which process of which host.

    A suffix may begin with digits, and a host's name be an address: then there are several readings, of which one is
    true. The names that tensorboardX and TensorFlow 1 give hold no process.
    """

    begun_s: int
    writers: tuple[tuple[int, str], ...]  # process id and host


def parse_event_name(name: str) -> EventName | None:
    """Return what the name ``…tfevents.TIME.HOST.PID.N`` with any suffix says, None where it is no such name."""
    match = _EVENT_FILE.search(name)
    if match is None:
        return None
    rest = match["rest"]
    readings = ((int(one["pid"]), rest[: one.start()]) for one in _WRITER.finditer(rest))
    return EventName(int(match["begun_s"]), tuple((pid, host) for pid, host in readings if pid))


def find_scalar_file(name: str) -> ScalarFile | None:
    """Return the row for a file of this name, in any directory, apart from event files."""
    return next((row for row in SCALAR_FILES if name in row.names or name.endswith(row.endings or ("/",))), None)


# --- columns

_NAMES = read_words("record/scalar_names")
STEP_NAMES, EPOCH_NAMES = _NAMES["scalar_step"], _NAMES["scalar_epoch"]
COUNT_WORDS, _COUNTED = frozenset(_NAMES["count"]), frozenset(_NAMES["counted"])
TIME_KEYS = _NAMES["time"]
_CLOCKS = frozenset(_NAMES["clock"]) | {*TIME_KEYS}
_SPLITS, _THINGS = frozenset(_NAMES["split"]), frozenset(_NAMES["thing"])
STEP = "step"
FEWEST_COUNTED, _COUNTED_BYTES = 3, 3072  # rows that tell a counter, and the bytes in which they are looked for
_WORDS = re.compile(r"[^\W_]+")
_SEPARATORS = re.compile(r"[\s-]+")
_DECIMAL_COMMA = re.compile(r"(?<=\d),(?=\d+(?:[eE][-+]?\d+)?\s*(?:;|$))")
_BEFORE_NAMES = re.compile(r"#[#\s]*(?=[^\W\d])")
_MOST_COMMENTS = 64  # above a table
_TRIAL = ("number", "trial")  # counts trials only beside the value of each
_VALUES = frozenset({"value", "values_0", "objective"})
_FIRST_EPOCH = 1000


def plain_name(name: str) -> str:
    """Return the name of a column in lower case, with underscores for spaces and hyphens."""
    return _SEPARATORS.sub("_", name.strip().lower())


@functools.lru_cache(maxsize=4096)
def rank_step(name: str) -> int | None:
    """Return how well a column of this name serves as the step, 0 best; None for a name that counts nothing."""
    plain = plain_name(name)
    scope, _, last = plain.rpartition("/")
    for first, words in ((0, STEP_NAMES), (_FIRST_EPOCH, EPOCH_NAMES)):
        if plain in words:
            return first + words.index(plain)
        if last in words and _COUNTED.issuperset(_WORDS.findall(scope)):
            return first + len(words) + words.index(last)
    *others, last = _WORDS.findall(plain) or [""]
    return _FIRST_EPOCH // 2 if last in COUNT_WORDS and _COUNTED.issuperset(others) else None


def is_epoch(name: str) -> bool:
    """Return whether a step column counts epochs or the like, which several rows may share."""
    rank = rank_step(name)
    return rank is not None and rank >= _FIRST_EPOCH


def measures_time(name: str) -> bool:
    """Return whether a column of this name is a time or a duration, beside which nothing need be measured."""
    plain = plain_name(name)
    return plain.endswith("time") or not _CLOCKS.isdisjoint(_WORDS.findall(plain))


def is_split(name: str) -> bool:
    """Return whether the texts in such a column say of which part of the data a row is."""
    return plain_name(name) in _SPLITS


def name_in_split(tag: str, scope: str) -> str:
    """Return the tag of a value of one split of the data, as ``val/loss``. Its step and time are those of all."""
    is_shared = not scope or rank_step(tag) is not None or plain_name(tag) in TIME_KEYS
    return tag if is_shared or tag.startswith((scope, scope.replace("/", "_"))) else f"{scope}{tag}"


def parse_number(value: Any) -> float | None:
    """Return a JSON value or a text as a number, NaN and infinities included, or None for booleans and other texts."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def is_curve(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a column of these rows counts steps, and another one is measured."""
    columns: dict[str, list[float]] = {}
    texts: set[str] = set()
    for row in rows:
        for name, value in row.items():
            if (number := parse_number(value)) is not None:
                columns.setdefault(name, []).append(number)
            elif value not in ("", None):
                texts.add(name)
    # Few lines of a log of events have a step.
    steps = [name for name in columns if rank_step(name) is not None and 2 * len(columns[name]) >= len(rows)]
    steps = [name for name in steps if name not in texts]
    has_value = not _VALUES.isdisjoint(map(plain_name, columns))
    rising = [one for one in steps if _rises(columns[one]) and (has_value or plain_name(one) not in _TRIAL)]
    return bool(rising) and any(
        name not in texts and rank_step(name) is None and plain_name(name).rpartition("/")[2] not in _CLOCKS
        for name in columns
    )


def _rises(values: Sequence[float]) -> bool:
    """Return whether more values are larger than the one before than smaller; a single one may rise yet."""
    changes = [later - before for before, later in zip(values, values[1:]) if later != before]
    return len(values) == 1 or (bool(changes) and 2 * sum(change > 0 for change in changes) > len(changes))


# --- the beginnings of files


class Header(NamedTuple):
    """The first line of a table: the names of its columns, their separator, and where it ends in the file.

    ``has_metadata``: a line of JSON in a comment stands above it. ``counter``: the written name of a column that is
    named `step` here, since its numbers alone say that it counts steps.
    """

    names: list[str]
    separator: str
    end: int
    has_metadata: bool
    counter: str = ""

    def read_rows(self, head: bytes) -> list[list[str]]:
        """Return the whole rows below it in the beginning of a file."""
        written = [self.counter if self.counter and name == STEP else name for name in self.names]
        return _read_rows(head[self.end :], self.separator, written)


_BOM = b"\xef\xbb\xbf"


def read_header(head: bytes) -> Header | None:
    """Return the names in the first line that is neither empty nor a comment, None where it has not been written.

    A comment right above numbers has the names of as many columns: `# step  loss`.

    Raises:
        csv.Error: Python's csv module rejects the line.
    """
    at, has_metadata, comments = len(_BOM) if head.startswith(_BOM) else 0, False, [""]
    while (end := head.find(b"\n", at) + 1) and (head[at:end].isspace() or head[at : at + 1] == b"#"):
        has_metadata = has_metadata or head[at : at + 2] == b"#{"
        comments.append(head[at:end].decode("utf-8", "replace").strip("#\r\n "))
        at = end
    if not end:
        return None
    line = head[at:end].decode("utf-8", "replace")
    separator = max(",;\t", key=line.count)
    separator = separator if separator in line or " " not in line.strip() else " "
    names = [name.strip() for name in next(split_rows([line], separator), [])]
    if len(names) > 1 and all(parse_number(name) is not None for name in names):
        rows = ([name.strip() for name in row] for row in split_rows(comments[-_MOST_COMMENTS:], separator))
        names, end = next(((row, at) for row in rows if len(row) == len(names)), (names, end))
    counter = find_counter(names, _read_rows(head[end : end + _COUNTED_BYTES], separator, names))
    return Header([STEP if counter and one == counter else one for one in names], separator, end, has_metadata, counter)


def split_rows(lines: Iterable[str], separator: str) -> Iterator[list[str]]:
    """Yield the cells of each line; any number of blanks separates those of a table without another separator.

    A comma in a number of a table that semicolons separate is its decimal sign. Names in a comment are those cells.

    Raises:
        csv.Error: Python's csv module rejects a line.
    """
    is_blank = separator == " "
    lines = (line[found.end() :] if (found := _BEFORE_NAMES.match(line)) else line for line in lines)
    lines = (_DECIMAL_COMMA.sub(".", line) for line in lines) if separator == ";" else lines
    return csv.reader(map(str.strip, lines) if is_blank else lines, delimiter=separator, skipinitialspace=is_blank)


def _read_rows(data: bytes, separator: str, names: Sequence[str]) -> list[list[str]]:
    """Return the whole rows of a table, without the header that a program writes once more as it begins again."""
    lines = data.decode("utf-8", "replace").split("\n")[:-1]
    return [row for row in split_rows(lines, separator) if row and [cell.strip() for cell in row] != names]


def may_count_yet(header: Header, head: bytes) -> bool:
    """Return whether too few rows are there to tell if a column counts steps, and one may."""
    rows = header.read_rows(head)
    return not rows or (len(rows) < FEWEST_COUNTED and find_counter(header.names, rows, fewest=1) != "")


def find_counter(names: Sequence[str], rows: Sequence[Sequence[str]], *, fewest: int = FEWEST_COUNTED) -> str:
    """Return the name of the first column that rises by 1 in each row, empty where a name says what counts steps.

    All other cells are numbers, and one of the others is measured. Behind a column that names things none counts.
    """
    if len(rows) < fewest or names_thing("".join(names[:1])) or any(rank_step(name) is not None for name in names):
        return ""
    columns = [[parse_number(cell) for cell in column] for column in zip(*rows)]
    if any(len(row) != len(names) for row in rows) or any(None in column for column in columns):
        return ""
    for name, column in zip(names, columns):
        start = column[0] or 0.0
        if start >= 0 and start.is_integer() and column == [start + n for n in range(len(column))]:
            is_measured = any(other != name and plain_name(other) not in _CLOCKS for other in names)
            return name if is_measured and _WORDS.search(plain_name(name)) and not names_thing(name) else ""
    return ""


def names_thing(name: str) -> bool:
    """Return whether a column of this name numbers or names things, such as samples."""
    return not _THINGS.isdisjoint(_WORDS.findall(plain_name(name)))


def holds_table(head: bytes, *, is_sure: bool) -> bool:
    """Return whether a file that begins with ``head`` is a table with a curve. ``is_sure``: it needs no steps."""
    try:
        header = read_header(head)
        if header is None or len(header.names) < 2 or any(parse_number(name) is not None for name in header.names):  # noqa: PLR2004
            return False
        rows = header.read_rows(head)
    except csv.Error:
        return False
    if any(len(row) != len(header.names) for row in rows):
        return False
    if is_sure or (header.has_metadata and rows):
        return all(any(parse_number(cell) is not None for cell in row) for row in rows)
    return is_curve([dict(zip(header.names, row)) for row in rows])


def read_json_line(line: bytes, *, is_log: bool) -> dict[str, Any] | None:
    """Return the object in a line; in a log's also one behind other text. None where there is none."""
    at = line.find(b"{") if is_log else 0
    if at < 0 or not line.rstrip().endswith(b"}"):
        return None
    try:
        record = json.loads(line[at:])
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def is_log(name: str) -> bool:
    """Return whether lines that are no JSON may stand between those that are, in a file of this name."""
    return name.endswith((".log", ".txt"))


def holds_json_lines(head: bytes, name: str, *, is_sure: bool) -> bool:
    """Return whether a file that begins with ``head`` has a curve in lines of JSON."""
    *whole, rest = head.split(b"\n")
    records = [read_json_line(line, is_log=is_log(name)) for line in (*whole, *([rest] if is_sure else []))]
    found = [dict(flatten(record)) for record in records if record is not None]
    if is_sure and not is_log(name) and (not found or records[0] is None):
        return False
    if is_sure and found and _is_row(found[0]):
        return True
    # One object in a file is an evaluation, and settings may be printed to a log.
    return len(found) > 1 and is_curve(found)


def _is_row(leaves: Mapping[str, Any]) -> bool:
    """Return whether an object has numbers alone, or one with a step or a time. A data set has neither."""
    numbers = [parse_number(value) is not None for value in leaves.values()]
    has_step = any(rank_step(name) is not None or plain_name(name) in TIME_KEYS for name in leaves)
    return any(numbers) if has_step else bool(numbers) and all(numbers)
