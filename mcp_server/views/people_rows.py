"""Rows of runs and sweeps for people, on the page and in terminals, by their records alone."""

import contextlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp_server.record.results.notes import NOTES, read_notes
from mcp_server.record.run_directory import read_json
from mcp_server.record.state import Run, posix
from mcp_server.record.sweeps.sweep_state import Sweep
from mcp_server.store.run_store import RunStore
from mcp_server.system.files import read_end
from mcp_server.text.formatting import format_posix, shorten_facts, shorten_line
from mcp_server.text.log_text import clean_lines
from mcp_server.text.secret_patterns import mask_secrets
from mcp_server.views.progress_text import first_metrics
from mcp_server.views.run_status import RunStatus, status_of
from mcp_server.views.sweep_status import find_kind, summarise_sweep

_LINE_BYTES, _LINE_CHARS, _CAUSE_CHARS = 4096, 240, 240
KINDS = {  # of failures, in words
    "oom_gpu": "out of GPU memory",
    "oom_host": "out of host memory",
    "disk_full": "disk full",
    "cuda_error": "CUDA error",
    "nccl_error": "NCCL error",
    "timed_out": "time limit reached",
}


@dataclass(frozen=True, kw_only=True)
class ListedRun:
    """A run or a sweep in a list; None: not known, or not of its kind. Durations in seconds, times in ISO 8601.

    ``cause``: why it is in its state, in words; ``line`` proves that, or is the newest output. ``eta_s`` is of the
    moment of its step. ``cells``, ``best`` and ``causes`` are a sweep's.
    """

    id: str
    name: str
    state: str
    live: bool
    cause: str | None = None
    kind: str | None = None
    line: str | None = None
    round: int | None = None
    step: int | None = None
    total: int | None = None
    progress: float | None = None
    eta_s: float | None = None
    eta_at: str | None = None
    elapsed_s: float | None = None
    step_s: float | None = None
    metric: Mapping[str, Any] | None = None
    created_at: str
    started_at: str | None = None
    ended_at: str | None = None
    last_output_at: str | None = None
    gpus: Sequence[int | str] | None = None
    host: str | None = None
    unreachable: Mapping[str, str] | None = None
    backend: str | None = None
    job_id: str | None = None
    queue_position: int | None = None
    owner: str | None = None
    project: str | None = None
    tags: Sequence[str] | None = None
    sweep: str | None = None
    cell: str | None = None
    attempt: int | None = None
    earlier: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    verdict: str | None = None
    notes: int | None = None
    seq: int | None = None
    cells: Mapping[str, int] | None = None
    best: Mapping[str, Any] | None = None
    causes: Mapping[str, int] | None = None
    phase: str | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """All that is known, as the page gets it."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @property
    def place(self) -> tuple[int, float]:
        """Its place in a list: those that run, those in line, then those that ended; the newest of each first."""
        at = self.ended_at or self.created_at
        return (1 if self.state == "queued" else 0) if self.live else 2, -posix(at)


def list_run(store: RunStore, run: Run, *, reads_output: bool = True) -> ListedRun:
    """Return the row of a run. Reads its record alone: a row waits for no other disk."""
    status, progress = status_of(store, run, since=run.last_seq, listed=True), run.progress
    step, total = (status.step, status.total_steps) if status.step is not None else (progress.get("step"), None)
    total = total if total is not None else progress.get("total_steps")
    metrics = progress.get("metrics") or {} if run.made_a_step else {}
    noted = progress.get("at")
    eta_at_s = posix(noted) + progress["eta_s"] if isinstance(noted, str) and status.eta_s is not None else None
    output_at_s, notes = store.output_at_s(run), read_notes(store.record_of(run).path / NOTES)
    line = shorten_line(str(run.failure["line"]), _LINE_CHARS) if run.failure and run.failure.get("line") else None
    return ListedRun(
        id=run.run_id,
        name=run.spec.name,
        state=run.state,
        live=not run.ended,
        cause=describe_cause(store, run, status),
        kind=run.failure.get("kind") if run.failure else None,
        line=line or (_find_last_line(store, run) if reads_output else None),
        round=status.round,
        step=step,
        total=total,
        progress=_measure_progress(run, step, total),
        eta_s=status.eta_s,
        eta_at=None if eta_at_s is None else format_posix(eta_at_s),
        elapsed_s=status.elapsed_s,
        step_s=status.step_s,
        metric=next(({"tag": name, "value": value} for name, value in first_metrics(metrics)), None),
        created_at=run.spec.created_at,
        started_at=run.started_at,
        ended_at=run.ended_at,
        last_output_at=None if output_at_s is None else format_posix(output_at_s),
        gpus=list(run.gpu_names) or None,
        host=run.spec.host if run.spec.mirror else None,
        unreachable=status.unreachable.model_dump() if status.unreachable else None,
        backend=status.backend,
        job_id=run.job_id,
        queue_position=run.queue_position,
        owner=run.spec.owner,
        project=Path(run.spec.cwd).name or None,
        tags=list(run.spec.tags) or None,
        sweep=run.spec.sweep,
        cell=run.spec.cell,
        attempt=run.attempt,
        earlier=run.earlier,
        exit_code=run.exit_code,
        signal=run.signal,
        verdict=next((note["verdict"] for note in reversed(notes) if "verdict" in note), None),
        notes=len(notes) or None,
        seq=run.last_seq,
    )


def describe_cause(store: RunStore, run: Run, status: RunStatus) -> str | None:
    """Return why a run is in its state, in words; None where the state says it."""
    end: Mapping[str, Any] = run.events[-1] if run.events else {}
    how = run.signal or ("" if run.exit_code in (None, 0) else f"exit code {run.exit_code}")
    if run.state == "failed" and run.failure:
        kind = str(run.failure.get("kind"))
        return how if how and kind == "other" else name_kind(kind)
    if run.state == "killed" and (stop := read_json(store.record_of(run).stop)) is not None:
        why = f": {stop['reason']}" if stop.get("reason") else ""
        return shorten_facts(mask_secrets(f"stopped by {stop.get('by') or 'unknown'}{why}"), _CAUSE_CHARS)
    if run.ended:
        return status.reason or how or status.note or None
    waits = run.pending_reason or (end.get("text") if run.state in ("queued", "stalled", "retrying") else None)
    return shorten_facts(str(waits), _CAUSE_CHARS) if waits else status.reason


def name_kind(kind: str) -> str:
    """Return a kind of failure in words."""
    return KINDS.get(kind, kind.replace("_", " "))


def _find_last_line(store: RunStore, run: Run) -> str | None:
    """Return the newest line of output, as far as it is on this host."""
    with contextlib.suppress(OSError):
        lines = clean_lines(read_end(store.record_of(run).log(run.attempt), _LINE_BYTES))
        text = next((line.text for line in reversed(lines) if line.text.strip()), "")
        return shorten_line(mask_secrets(text), _LINE_CHARS) or None
    return None


def _measure_progress(run: Run, step: Any, total: Any) -> float | None:
    if run.state == "finished":
        return 1.0
    if isinstance(step, int | float) and isinstance(total, int | float) and total > 0:
        return round(min(1.0, max(0.0, step / total)), 4)
    return None


def list_sweep(sweep: Sweep, live: Mapping[str, Run]) -> ListedRun:
    """Return the row of a sweep, whose live runs are ``live`` by cell."""
    status = summarise_sweep(sweep, live, now_s=time.time())
    best, spec = status.best, sweep.spec
    hosts = {str(cell.cell.launch.get("host")) for cell in sweep.cells if cell.cell.launch.get("host")}
    times = [event.get("at") for event in (*sweep.events[:1], *sweep.events[-1:])] or [None]
    shown = {} if best is None else {"cell": best.cell, "run_id": best.run_id, "n": best.n, "metric": status.metric}
    return ListedRun(
        id=sweep.sweep_id,
        name=spec.name,
        state=sweep.state,
        live=not sweep.ended,
        cause=status.reason,
        cells=status.cells,
        best=None if best is None else {**shown, "value": best.value if best.mean is None else best.mean},
        eta_s=status.eta_s,
        created_at=spec.created_at,
        started_at=times[0],
        ended_at=times[-1] if sweep.ended else None,
        owner=spec.owner,
        host=next(iter(hosts)) if len(hosts) == 1 else None,
        causes=dict(Counter(find_kind(cell) for cell in sweep.failed)) or None,
        phase=status.phase,
    )
