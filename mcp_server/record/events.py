"""Events of a run: their kinds, what each kind means to readers, and reading and appending ``events.jsonl``.

A file may have been damaged, or written by another version: fields of a wrong type are dropped on reading. Readers
raise OSError where a file is there and cannot be read now.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict, cast, get_args

from mcp_server.record.run_directory import Facts, load_json, now
from mcp_server.system.files import is_absent, open_regular, read_regular_file
from mcp_server.text.formatting import parse_time

LiveState = Literal["queued", "starting", "running", "stalled", "retrying"]
# Kinds that deserve a decision, the most urgent first.
Noteworthy = Literal[
    "cell_failed",
    "launch_refused",
    "error_seen",
    "stalled",
    "retrying",
    "gpu_deviation",
    "outputs_shared",  # live cells of a sweep write the same files
    "first_step_timeout",
    "judging_lost",  # for a time or for good: a stall or an error may go unseen
    "verdict",  # on a trial of an open sweep
    "budget_spent",  # of an open sweep: its running trials end
    "wants_proposals",  # an open sweep: few proposals wait
    "metric_missing",
    "phase_done",
    "first_step",
]
EventKind = Literal[
    Noteworthy,
    "queued",
    "refused",
    "started",
    "resumed",
    "requeued",
    "stopping",
    "interrupted",
    "limit_near",  # a scheduler ends the job soon
    "ended",
    "screen_lost",
    "log_lost",
    "sampler_lost",
    "observer_error",
    "exception_printed",  # although the exit code is 0
    "code_changed",  # between the launch and the start, or between two attempts
    # Those of a sweep, which its conductor writes.
    "conducting",
    "cell_planned",  # its parameters are chosen
    "cell_started",
    "cell_ended",
    "cell_measured",
    "cell_resumed",  # after a stop: the cell is started again
    "rung_reached",  # of a halving: a live cell has a value that others are compared with
    "proposed",  # a trial of an open sweep
    "cell_added",  # a run of a trial is due
    "tip",  # the trial that others have to beat is another one, once its verdict follows
]


class KindTraits(NamedTuple):
    """The traits of one kind of event.

    ``live_state``: the state of a supervised run whose newest event with such a state this is.
    ``clears_failure``: failures of earlier events no longer hold.
    ``is_trouble``: a first step, or a metric, may never come now.
    """

    live_state: LiveState | None = None
    clears_failure: bool = False
    is_trouble: bool = False
    ends_run: bool = False


TRAITS: Mapping[EventKind, KindTraits] = {
    **dict.fromkeys(get_args(EventKind), KindTraits()),
    "queued": KindTraits(live_state="queued"),
    "refused": KindTraits(ends_run=True),  # the command never started
    "started": KindTraits(live_state="running", clears_failure=True),
    "first_step_timeout": KindTraits(is_trouble=True),
    "stalled": KindTraits(live_state="stalled", is_trouble=True),
    "resumed": KindTraits(live_state="running", clears_failure=True),
    "error_seen": KindTraits(is_trouble=True),
    "gpu_deviation": KindTraits(is_trouble=True),
    "retrying": KindTraits(live_state="retrying", is_trouble=True),
    "requeued": KindTraits(live_state="starting", clears_failure=True),  # another supervisor goes on
    "ended": KindTraits(ends_run=True),
    "conducting": KindTraits(live_state="running"),  # a conductor took over
    "cell_failed": KindTraits(is_trouble=True),
    "launch_refused": KindTraits(is_trouble=True),  # no cell can be launched now; tried again
    "metric_missing": KindTraits(is_trouble=True),  # no run of a sweep has the metric that says what is best
}
# The columns of the table, for readers. Kinds of newer versions are in none of them.
NOTEWORTHY: tuple[Noteworthy, ...] = get_args(Noteworthy)
LIVE_STATES: Mapping[str, LiveState] = {kind: t.live_state for kind, t in TRAITS.items() if t.live_state}
ENDING = frozenset(kind for kind, traits in TRAITS.items() if traits.ends_run)
CLEARING = frozenset(kind for kind, traits in TRAITS.items() if traits.clears_failure)
TROUBLE = frozenset(kind for kind, traits in TRAITS.items() if traits.is_trouble)


class _Numbered(TypedDict):
    seq: int
    kind: EventKind


class RecordEvent(_Numbered, total=False):
    """One line of ``events.jsonl``. Only ``seq`` and ``kind`` are always there.

    A newer version may have written other kinds and other fields: readers pass over those.
    """

    at: str
    text: str
    then: str  # the end of `text`: what happens next, or what to do
    stopped_by: str
    far_side: str
    attempt: int
    state: str
    exit_code: int
    signal: str
    started_at: str
    ended_at: str
    elapsed_s: float
    wait_s: float
    step: int
    position: int
    what: str
    arguments: list[str]
    changed_files: list[str]
    perhaps_changed: list[str]
    params: dict[str, Any]
    environment: dict[str, str]
    at_start: dict[str, Any]
    failure: dict[str, Any]
    gpus: Any  # a list of UUIDs, or by UUID what samples came to
    gpu_indices: list[int]
    leftovers: list[Any]
    survivors: list[Any]
    signals_sent: list[str]
    never: bool
    not_free: str
    stack: str
    cpu_used_s: float
    waits_in: dict[str, str]
    needs: list[str]
    cell: str
    run_id: str
    host: str  # of several that a sweep runs on
    phase: str
    session: str
    pid: int
    value: float
    value_step: int
    figures: dict[str, Any]
    overrides: dict[str, Any]
    bad_end: str
    tries: list[str]
    code: int  # cells of a sweep with one number are not known to have run different code
    why: str
    rung: int
    total: int  # cells that the end of a phase or of a sweep is about
    # Of an open sweep; see sweeps/trials.
    trial: str
    role: str
    against: str  # the trial in whose pair a run of the incumbent is
    pair: int
    seed: int
    by: str
    base: str
    commit: str
    former: str
    tree: str
    patch_id: str
    files: list[str]
    origin: str
    verdict: str
    mean: float
    sd: float
    t: float
    n: int
    gain: float
    curves: str
    metrics: dict[str, Any]
    step_s: float
    peak_mib: float
    fps: float


class EventLog:
    """Appends events. A full disk delays them and never raises: monitoring must not stop a healthy run.

    The numbers of an existing log continue; a torn last line, which a power cut left, is removed. The caller holds
    the run's lock. ``durable``: each event is on the disk before the next step, for readers on other hosts.
    """

    def __init__(self, path: Path, *, durable: bool = False) -> None:
        self._durable = durable
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        weakref.finalize(self, os.close, self._fd).atexit = False
        self._waiting: list[bytes] = []
        self._torn_at: int | None = None  # where a line begins that was not written whole
        self._lock = threading.RLock()  # a conductor's threads append
        self._seq = 0
        self.on_event: Callable[[RecordEvent], None] | None = None  # hears of each event, also where the disk is full
        if size := os.fstat(self._fd).st_size:
            self._seq = max((event["seq"] for event in read_events(path)), default=0)
            os.ftruncate(self._fd, os.pread(self._fd, size, 0).rfind(b"\n") + 1)

    @property
    def behind(self) -> bool:
        """Whether events are waiting for space on the disk."""
        return bool(self._waiting)

    @property
    def is_removed(self) -> bool:
        """Whether somebody has removed the file: what is appended reaches no reader."""
        with contextlib.suppress(OSError):  # a file system that fails for a moment has not removed it
            return os.fstat(self._fd).st_nlink == 0
        return False

    def append(self, kind: EventKind, text: str, **facts: Any) -> None:
        """Add one event. ``facts`` that are None are left out."""
        with self._lock:
            self._seq += 1
            event: RecordEvent = {"seq": self._seq, "kind": kind, "at": now(), "text": text}
            event |= cast(RecordEvent, {name: value for name, value in facts.items() if value is not None})
            self._waiting.append(json.dumps(event, ensure_ascii=False).encode(errors="replace") + b"\n")
            self.flush()
        if self.on_event is not None:
            self.on_event(event)

    def flush(self) -> None:
        """Write the waiting events. A line that did not fit whole is removed again, at the latest before the next."""
        with self._lock, contextlib.suppress(OSError):  # even a size may be unknown for a moment: tried again later
            while self._waiting:
                self._remove_torn_line()
                before, line = os.fstat(self._fd).st_size, self._waiting[0]
                if os.write(self._fd, line) != len(line):
                    self._torn_at = before
                    self._remove_torn_line()
                    return
                del self._waiting[0]
                if self._durable:
                    os.fsync(self._fd)

    def _remove_torn_line(self) -> None:
        if self._torn_at is not None:
            os.ftruncate(self._fd, self._torn_at)
            self._torn_at = None


def read_events(path: Path, after: int = 0) -> list[RecordEvent]:
    """Return the events with ``seq`` above ``after``, oldest first. An incomplete last line is left for later."""
    try:
        data = read_regular_file(path, max_bytes=_MOST_BYTES)
    except OSError as error:
        if is_absent(error):
            return []
        raise
    return [event for event in parse_events(data) if event["seq"] > after]


def parse_events(data: bytes) -> list[RecordEvent]:
    """Return the events in whole lines, oldest first. Damaged lines are passed over."""
    events = []
    for line in data.split(b"\n")[:-1]:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if _is_numbered(event):
            events.append(cast(RecordEvent, _typed(event)))
    return events


def read_record(path: Path) -> Facts | None:
    """Return an attempt's exit record or progress, None if missing. Fields of a wrong type are dropped."""
    record = load_json(path)
    return None if record is None else _typed(record)


def read_stop(path: Path) -> Facts | None:
    """Return the stop request, None if missing.

    ``carried_out``, and ``killed_paused`` of a stop whose SIGKILL waits until the supervisor is resumed, are dropped
    unless they are records with a time.
    """
    record = load_json(path)
    if record is None:
        return None
    for name in ("carried_out", "killed_paused"):
        result = record.get(name)
        if not isinstance(result, dict) or not is_time(result.get("at")):
            record.pop(name, None)
    return record


def _read_types(annotation: Any) -> tuple[type, ...]:
    """Return the types of JSON that the annotation of a field allows, in its words."""
    words = re.sub(r"\[[^|]*\]", "", annotation.__forward_arg__).split(" | ")
    return tuple(kind for word in words for kind in _PLAIN.get(word, (object,)))


# The types that readers rely on: those of an event's fields, and of the others of an attempt's progress.
_PLAIN: dict[str, tuple[type, ...]] = {
    "float": (int, float),
    **{k.__name__: (k,) for k in (str, int, bool, list, dict)},
}
_TYPES = {name: _read_types(kind) for name, kind in RecordEvent.__annotations__.items()}
_TYPES |= {"gpus": (list, dict), "total_steps": (int,), "round": (int,), "eta_s": (int, float)}
_TIMES = ("at", "started_at", "ended_at")
_FAILURE_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("kind", "line", "action", "advice", "correction", "far_side"), (str,)),
    "line_number": (int,),
    "retryable": (bool,),
    "context": (list,),
}
_MOST_BYTES = 2**28
_LARGEST = 1e18  # larger numbers are damage


def _typed(facts: Facts) -> Facts:
    typed = {name: value for name, value in facts.items() if _has_type(name, value, _TYPES)}
    if "failure" in typed:
        failure = {name: value for name, value in typed["failure"].items() if _has_type(name, value, _FAILURE_TYPES)}
        typed["failure"] = {"kind": "other", "line": "", **failure}
    if "metrics" in typed:
        typed["metrics"] = {
            name: value for name, value in typed["metrics"].items() if isinstance(value, str) or _is_number(value)
        }
    return typed


def _has_type(name: str, value: object, types: dict[str, tuple[type, ...]]) -> bool:
    if not isinstance(value, types.get(name, object)):
        return False
    if isinstance(value, str):
        return name not in _TIMES or is_time(value)
    return isinstance(value, bool) or not isinstance(value, (int, float)) or _is_number(value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -_LARGEST < value < _LARGEST


def _is_numbered(event: object) -> bool:
    if not isinstance(event, dict) or not isinstance(event.get("kind"), str):
        return False
    seq = event.get("seq")
    return isinstance(seq, int) and 0 < seq < _LARGEST


def is_time(text: object) -> bool:
    """Return whether ``text`` is a time in ISO 8601 with its zone, such as ``now`` writes."""
    try:
        return isinstance(text, str) and parse_time(text).tzinfo is not None
    except ValueError:
        return False


# 4 MiB hold about 15,000 events and take half a second to parse. A supervisor writes far fewer; a command that writes
# to its own record may write any number.
_END_BYTES = 2 * 2**20
_MARK_BYTES = 64  # before the offset: they are other ones if the file was replaced in place


@dataclass(frozen=True)
class EventsRead:
    """The events of a file up to ``offset``. ``kept_bytes``: of the lines that they were read from."""

    events: tuple[RecordEvent, ...] = ()
    inode: int = 0
    offset: int = 0
    mark: bytes = b""
    kept_bytes: int = 0


def read_new_events(path: Path, earlier: EventsRead | None = None, *, end_bytes: int | None = None) -> EventsRead:
    """Return the events of a file as it is now. ``earlier`` is the result of a former call, whose events are kept.

    An incomplete last line is left for later. Where there are more than twice ``end_bytes`` (by default 2 MiB), as
    many at each end are read.
    """
    end_bytes = end_bytes or _END_BYTES
    try:
        file = open_regular(path)
    except OSError as error:
        if is_absent(error):
            return EventsRead()
        raise
    with file:
        fd = file.fileno()
        status = os.fstat(fd)
        size = status.st_size
        if (
            earlier is None
            or earlier.inode != status.st_ino
            or size < earlier.offset
            or earlier.kept_bytes + size - earlier.offset > 3 * end_bytes
            or os.pread(fd, len(earlier.mark), earlier.offset - len(earlier.mark)) != earlier.mark
        ):
            return _read_all(fd, status, end_bytes)
        if size == earlier.offset:
            return earlier
        lines = _whole_lines(os.pread(fd, size - earlier.offset, earlier.offset))
        return _extend(earlier, lines, status.st_ino, earlier.offset + len(lines))


def _read_all(fd: int, status: os.stat_result, end_bytes: int) -> EventsRead:
    size = status.st_size
    if size <= 2 * end_bytes:
        lines = _whole_lines(os.pread(fd, size, 0))
        return _extend(EventsRead(), lines, status.st_ino, len(lines))
    head = _extend(EventsRead(), _whole_lines(os.pread(fd, end_bytes, 0)), status.st_ino, 0)
    tail = _whole_lines(os.pread(fd, end_bytes, size - end_bytes))
    end = size - end_bytes + len(tail)
    return _extend(head, tail.partition(b"\n")[2], status.st_ino, end)


def _extend(earlier: EventsRead, lines: bytes, inode: int, offset: int) -> EventsRead:
    events = (*earlier.events, *parse_events(lines))
    mark = (earlier.mark + lines)[-_MARK_BYTES:]
    return EventsRead(events, inode, offset, mark, earlier.kept_bytes + len(lines))


def _whole_lines(data: bytes) -> bytes:
    return data[: data.rfind(b"\n") + 1]
