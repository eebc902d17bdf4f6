"""The table of an open sweep's trials in the project, by default `results.tsv`: whole at any moment, ignored by git.

Its first columns are those of the public research loops, so that their notebooks read it.
"""

import contextlib
import os
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp_server.errors import BadArgument
from mcp_server.record.code.kept_sources import run_git
from mcp_server.sweeps.trials.open_plan import BASELINE
from mcp_server.sweeps.trials.trials import OpenSweep, OpenTrial
from mcp_server.system.files import open_regular, read_end, read_regular_file, write_atomic

_LAST = ("trial", "base", "by", "n", "sd", "gain_sd", "steps", "runs")
_STATUS = {"kept": "keep", "discarded": "discard", "timed_out": "crash", "no_metric": "crash", "not_finite": "crash"}
_MOST_HEAD_BYTES = 4096


@dataclass(frozen=True)
class TrialRow:
    """One trial as people read it. ``state``: its verdict, else queued, running or stopped.

    ``mean``, ``sd``, ``n``: of the runs that count. ``gain_sd``: how much better than what it was compared with, in
    units of the noise. None: not measured.
    """

    trial: str
    state: str
    text: str
    commit: str = ""
    base: str = ""
    by: str = ""
    mean: float | None = None
    sd: float | None = None
    n: int = 0
    gain_sd: float | None = None
    memory_gib: float | None = None
    steps: int | None = None
    runs: int = 0
    files: Sequence[str] = ()
    params: str = ""  # that it runs with, beside the sweep's own
    why: str = ""


def list_rows(seen: OpenSweep) -> list[TrialRow]:
    """Return the trials of a sweep, the base first."""
    return [_describe(seen, trial) for trial in seen.trials.values()]


def _describe(seen: OpenSweep, trial: OpenTrial) -> TrialRow:
    counted = seen.list_counted(trial.name)
    ended = [run.cell.end for run in trial.runs if run.end is not None]
    peaks = [float(end["peak_mib"]) / 1024 for end in ended if isinstance(end.get("peak_mib"), int | float)]
    steps = [end["step"] for end in ended if isinstance(end.get("step"), int)]
    mean, noise = trial.mean, trial.sd or seen.noise.sd  # as it was known when it was judged
    return TrialRow(
        trial=trial.name,
        state=trial.state,
        text=trial.text,
        commit=trial.commit,
        base="" if trial.name == BASELINE else trial.base,
        by=trial.by,
        mean=statistics.fmean(counted) if counted else mean,
        sd=statistics.stdev(counted) if len(counted) > 1 else None,
        n=len(counted) or trial.n or 0,
        gain_sd=trial.gain / noise if trial.gain is not None and noise else None,
        memory_gib=max(peaks, default=None),
        steps=round(statistics.median(steps)) if steps else None,
        runs=len(trial.runs),
        files=trial.files,
        params=write_params(trial.params),
        why=trial.why,
    )


def write_params(params: Mapping[str, Any]) -> str:
    """Return parameters in one line: ``lr=0.1 depth=4``."""
    return " ".join(f"{name}={value}" for name, value in params.items())


def check_ledger(repository: Path, name: str) -> None:
    """BadArgument: a sweep may not write this file: it is a person's."""
    path = repository / name
    remedy = 'Pass "ledger": "OTHER.tsv", or false for none.'
    if Path(name).is_absolute() or ".." in Path(name).parts or not path.parent.is_dir() or not name.endswith(".tsv"):
        raise BadArgument("ledger", f"{name[:80]!r} is no .tsv file below {repository}.", remedy)
    if not os.path.lexists(path):
        return
    with contextlib.suppress(OSError, ValueError):
        with open_regular(path, follow_links=False) as file:
            head = file.readline(_MOST_HEAD_BYTES)
        if head.rstrip(b"\n").split(b"\t")[5:] == [column.encode() for column in _LAST]:
            return
    raise BadArgument("ledger", f"{path} is there, and no sweep wrote it.", remedy)


def write_ledger(seen: OpenSweep) -> None:
    """Write the table in one step; have git ignore a new one, in this clone alone. OSError: it cannot be written."""
    plan, metric = seen.plan, seen.sweep.spec.metric or ""
    if not (plan.ledger and plan.repository):
        return
    data, path = render_ledger(metric, list_rows(seen)).encode(errors="replace"), Path(plan.repository, plan.ledger)
    try:
        if read_regular_file(path) == data:
            return
    except OSError:
        _ignore(Path(plan.repository), plan.ledger)
    write_atomic(path, data, mode=0o644, durable=False)


def render_ledger(metric: str, rows: Sequence[TrialRow]) -> str:
    """Return the table as tab-separated text, one trial a line."""
    columns = ("commit", metric, "memory_gb", "status", "description", *_LAST)
    return "".join("\t".join(" ".join(cell.split()) for cell in line) + "\n" for line in (columns, *map(_cells, rows)))


def _cells(row: TrialRow) -> tuple[str, ...]:
    return (
        *(row.commit[:7], _number(row.mean, ".6f"), _number(row.memory_gib, ".1f")),
        *(_STATUS.get(row.state, row.state), f"{row.text} ({row.params})" if row.params else row.text),
        *(row.trial, row.base, row.by, str(row.n), _number(row.sd, ".4g"), _number(row.gain_sd, ".2f")),
        *("" if row.steps is None else str(row.steps), str(row.runs)),
    )


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _ignore(repository: Path, name: str) -> None:
    """Name the file in `info/exclude`, unless git ignores it already or there is no repository."""
    git = str(repository)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        run_git(git, "check-ignore", "--quiet", "--no-index", name)
        return
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        words = ("--path-format=absolute", "--git-path", "info/exclude", "--show-prefix")
        exclude, prefix, *_ = [*os.fsdecode(run_git(git, "rev-parse", *words)).splitlines(), ""]
        Path(exclude).parent.mkdir(exist_ok=True)
        with Path(exclude).open("ab") as file:
            ends = not file.tell() or read_end(Path(exclude), 1) == b"\n"
            file.write(f"{'' if ends else chr(10)}/{prefix}{name}\n".encode())
