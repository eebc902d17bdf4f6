"""How a run used its GPUs, as its supervisor recorded it: of the whole attempt, or of the last while."""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from mcp_server.record.state import Run, posix
from mcp_server.system.files import read_regular_file
from mcp_server.views.gpu_report import Use


def read(run: Run, record: Path, now_s: float, since_s: float | None = None) -> dict[str, Use]:
    """Return the use by UUID; of the last ``since_s`` before ``now_s`` (POSIX time) it is told minute by minute."""
    if since_s is None:
        told = run.progress.get("gpus")
        figures = told.items() if isinstance(told, Mapping) else ()
        return {uuid: _use(each) for uuid, each in figures if isinstance(each, Mapping)}
    minutes: dict[str, list[list[Any]]] = defaultdict(list)
    for facts in _records(record):
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            if posix(facts["at"]) >= now_s - since_s:
                for uuid, figures in facts["gpus"].items():
                    minutes[uuid].append(list(figures))
    return {uuid: _sum(figures) for uuid, figures in minutes.items()}


def _records(path: Path) -> Iterable[dict[str, Any]]:
    with contextlib.suppress(OSError):
        for line in read_regular_file(path).splitlines():
            with contextlib.suppress(ValueError, RecursionError):  # the last may be half written
                facts = json.loads(line)
                if isinstance(facts, dict):
                    yield facts


def _sum(minutes: list[list[Any]]) -> Use:
    columns = [[value for value in column if _is_number(value)] for column in zip(*minutes, strict=False)]
    columns += [[]] * (4 - len(columns))
    mean = [fmean(column) if column else None for column in columns]
    most = [max(column) if column else None for column in columns]
    return Use(mean_util=mean[0], peak_mib=most[1], mean_w=mean[2], max_c=most[3])


def _use(figures: Mapping[str, Any]) -> Use:
    known = {name: figures.get(name) for name in Use.__dataclass_fields__}
    return Use(**{name: value for name, value in known.items() if _is_number(value)})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
