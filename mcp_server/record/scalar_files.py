"""The names of files that hold scalars: one table for those who read, fetch and attribute them. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

# Of Lightning; Stable-Baselines3, Spinning Up and RLlib; Ultralytics; Keras, under the usual names of its log.
TABLES = frozenset(
    {"metrics.csv", "progress.csv", "progress.txt", "results.csv", "log.csv", "history.csv", "training.log"}
)
JSON_LINES = (".jsonl", ".ndjson")
JSON_LINES_TOO = frozenset({"log.txt", "scalars.json"})  # of DETR and its descendants; of MMEngine
TRAINER_STATE = "trainer_state.json"
TRACKER_LOGS = (".wandb", ".swanlab")
DATABASES = (".db", ".sqlite", ".sqlite3")
_NAMED_ALONE = (".csv", ".tsv", ".json")  # read where their names are given, whatever they are

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


def may_be_table(name: str) -> bool:
    """Return whether a file of this name, in any directory, may hold scalars, apart from event files."""
    return name in TABLES | JSON_LINES_TOO or name.endswith((*_NAMED_ALONE, *JSON_LINES, *TRACKER_LOGS, *DATABASES))
