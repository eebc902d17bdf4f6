"""Log samples under ``tests/data``: how runs fail, what healthy runs print, and whole logs with labels.

- ``logs/<kind>/<name>.log``: the end of one failed run; ``labels.json`` beside it has the line that proves the failure.
- ``logs/ok/<name>.log``: healthy output that looks like a failure.
- ``exceptions/<kind>.txt``: the last line of tracebacks, one exception a line.
- ``whole_logs/labels.jsonl``: whole logs. ``RUNWARD_LOGS`` may name a further directory of the same format.

All samples are written for these tests in the words of the tools; none is copied from a real run.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

DATA = Path(__file__).parents[1] / "data"
_LOGS = DATA / "logs"
_HEALTHY = "ok"

TRACE = """Traceback (most recent call last):
  File "/home/me/train.py", line 9, in <module>
    main()
  File "/home/me/train.py", line 5, in main
    step(batch)
"""
CAUGHT = """Traceback (most recent call last):
  File "/home/me/loader.py", line 12, in fetch
    return read(path)
  File "/home/me/loader.py", line 5, in read
    raise OSError(path)
"""
STEPS = "".join(f"step {n:4d} | loss {9 / n:.4f} | lr 3.0e-04 | tok/s 10,{n:03d}\n" for n in range(1, 400))
FEW_STEPS = "".join(f"step {n} loss {1 / n:.4f}\n" for n in range(1, 9))


class LabelledLog(NamedTuple):
    """The end of a log, the kind of failure and the line that proves it (None: healthy)."""

    name: str
    kind: str
    line: str | None
    text: str


def _read_text(path: Path) -> str:
    """Return a sample with its carriage returns, which ``read_text`` would translate."""
    return path.read_bytes().decode()


def _read_failed_logs() -> list[LabelledLog]:
    logs: list[LabelledLog] = []
    for labels in sorted(_LOGS.glob("*/labels.json")):
        kind = labels.parent.name
        for name, line in json.loads(labels.read_text()).items():
            logs.append(LabelledLog(f"{kind}/{name}", kind, line, _read_text(labels.with_name(f"{name}.log"))))
    return logs


FAILED_LOGS = _read_failed_logs()
HEALTHY_LOGS = [
    LabelledLog(path.stem, _HEALTHY, None, _read_text(path)) for path in sorted((_LOGS / _HEALTHY).glob("*.log"))
]
EXCEPTIONS = [
    (path.stem, line) for path in sorted((DATA / "exceptions").glob("*.txt")) for line in _read_text(path).splitlines()
]
WHOLE_LOGS = DATA / "whole_logs"


def whole_log_directories() -> list[Path]:
    """Return the directories of whole logs with labels: the repository's own, and ``RUNWARD_LOGS`` where it is set."""
    further = os.environ.get("RUNWARD_LOGS")
    return [WHOLE_LOGS, Path(further)] if further else [WHOLE_LOGS]


def read_labels(directory: Path) -> list[dict[str, Any]]:
    """Return the labels of a directory of whole logs, in their order.

    ``class``: the kind, ``ok`` for a healthy run. ``alt``: kinds that are right as well. ``key_line``: the line to
    quote. ``retryable``: None if unknown. ``first_step_seen``: the text shows a finished training step.
    """
    return [json.loads(line) for line in (directory / "labels.jsonl").read_text().splitlines()]
