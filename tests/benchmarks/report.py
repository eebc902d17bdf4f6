"""Figures as markdown: one table a group, each figure beside its baseline and its bar."""

from __future__ import annotations

import math
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

_HEAD = ("what", "runward", "baseline", "ratio", "bar", "")
_DECIMALS = {"ms": 1, "s": 2, "%": 2, "MiB": 1, "x": 2}


@dataclass(frozen=True)
class Row:
    """One line of a table; ``ok`` is None where no bar was set."""

    what: str
    runward: str
    baseline: str = ""
    ratio: str = ""
    bar: str = ""
    ok: bool | None = None


@dataclass(frozen=True)
class Table:
    """One group's figures. Notes say how a baseline was taken, and what missed."""

    title: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every bar was reached."""
        return all(row.ok is not False for row in self.rows)

    def markdown(self) -> str:
        """Return the table as text."""
        verdicts = {True: "ok", False: "**MISS**", None: ""}
        lines = [f"### {self.title}", "", line(_HEAD), line(["---"] * len(_HEAD))]
        lines += [line([r.what, r.runward, r.baseline, r.ratio, r.bar, verdicts[r.ok]]) for r in self.rows]
        lines += ["", *(f"- {note}" for note in self.notes)]
        return "\n".join(lines).rstrip() + "\n"


def line(cells: Sequence[str]) -> str:
    """Return a row of a markdown table."""
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def measured(
    what: str,
    value: float,
    unit: str,
    *,
    baseline: float | None = None,
    at_most: float | None = None,
    ratio_at_most: float | None = None,
) -> Row:
    """Return the row of a figure that should be small, itself or as a multiple of its baseline."""
    ratio = value / baseline if baseline else None
    bars = [f"≤ {at_most:,g} {unit}"] if at_most is not None else []
    verdicts = [value <= at_most] if at_most is not None else []
    if ratio_at_most is not None:
        bars.append(f"≤ {ratio_at_most:g} x")
        verdicts.append(ratio is not None and ratio <= ratio_at_most)
    return Row(
        what,
        amount(value, unit),
        "" if baseline is None else amount(baseline, unit),
        "" if ratio is None else f"{ratio:.3g} x",
        ", ".join(bars),
        all(verdicts) if verdicts else None,
    )


def amount(value: float, unit: str) -> str:
    """Return a figure with its unit, e.g. ``12.3 ms``, ``1,234 tokens``."""
    return f"{value:,.{_DECIMALS.get(unit, 0)}f} {unit}".rstrip()


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile; the largest value for 99 of fewer than 100."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def median(values: Sequence[float]) -> float:
    """Return the middle value."""
    return statistics.median(values)


def machine() -> str:
    """Return one line that says where and when the figures were taken."""
    cpus = re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    tmux = subprocess.run(["tmux", "-V"], capture_output=True, text=True, check=False).stdout.strip()
    cores = len(os.sched_getaffinity(0))
    load = f"load {os.getloadavg()[0]:.2f} before"
    if os.sched_getscheduler(0) != os.SCHED_OTHER:  # by chrt: the load is that of others, who wait
        load += " (real-time scheduling)"
    return (
        f"{cpus[0] if cpus else platform.machine()}, {cores} cores, {load}, "
        f"Linux {platform.release()}, {tmux}, Python {platform.python_version()}, "
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    )
