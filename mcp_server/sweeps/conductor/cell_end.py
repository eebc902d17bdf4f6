"""The end of a cell's run in the record of its sweep: all that its log and tables say of it later."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from mcp_server.record.events import EventKind
from mcp_server.record.state import Run
from mcp_server.record.sweeps.sweep_state import CellState
from mcp_server.sweeps.decide import CellEnd
from mcp_server.views.progress_text import first_metrics


def describe_end(
    cell: CellState, run: Run, end: CellEnd, stop_reason: str = ""
) -> tuple[EventKind, str, dict[str, Any]]:
    """Return kind, text and facts of the event about the end of ``run``. ``stop_reason``: why the sweep stopped it."""
    failure = run.failure if end.state != "finished" else None
    why = (
        stop_reason
        or (failure or {}).get("kind")
        or run.signal
        or (f"exit code {run.exit_code}" if run.exit_code else "")
    )
    text = f"{cell.cell.name}: {end.state}{f' ({why})' if why else ''}.{f' {end.why}' if end.why else ''}"
    if end.again:
        text += " It is started again."
    failed = not end.again and end.state in ("failed", "lost")
    metrics = run.progress.get("metrics") or {}
    facts = {
        "cell": cell.cell.name,
        "run_id": run.run_id,
        "state": end.state,
        "then": "again" if end.again else None,
        "attempt": run.attempt,
        "tries": _list_tries(run),
        "why": stop_reason or None,
        "exit_code": run.exit_code,
        "signal": run.signal,
        "stopped_by": run.stopped_by,
        "failure": failure,
        "step": run.progress.get("step"),
        "params": _effective_params(cell, run),
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "elapsed_s": run.elapsed_s(time.time()),
        "step_s": run.progress.get("step_s"),
        "fps": _find_fps(metrics),
        "metrics": dict(first_metrics(metrics)) or None,
        "gpus": list(run.gpu_names) or None,
        "peak_mib": _peak_mib(run),
    }
    return "cell_failed" if failed else "cell_ended", text, facts


def _list_tries(run: Run) -> list[str] | None:
    """Return how each attempt before the last one ended, by its kind of failure; None where there was one alone."""
    failures = [(e.get("failure") or {}).get("kind") for e in run.events if e["kind"] == "retrying"]
    return [str(kind or "unknown") for kind in failures] or None


def _effective_params(cell: CellState, run: Run) -> dict[str, Any] | None:
    """Return the parameters that distinguish the cell, as the newest attempt had them, and those that retries changed.

    None where none was changed.
    """
    effective = run.attempt_params.params
    params = {name: effective.get(name, value) for name, value in cell.params.items()}
    params |= {name: effective[name] for name in run.attempt_params.changed if name in effective}
    return params if params != dict(cell.params) else None


def _find_fps(metrics: Mapping[str, Any]) -> float | None:
    """Return the newest figure that the training calls fps, as reinforcement learning prints it."""
    figures = (value for name, value in metrics.items() if name.lower() == "fps" or name.lower().endswith("/fps"))
    return next((value for value in figures if isinstance(value, int | float)), None)


def _peak_mib(run: Run) -> float | None:
    usages = run.progress.get("gpus")
    peaks = [u.get("peak_mib") for u in (usages or {}).values() if isinstance(u, Mapping)] if usages else []
    return max((peak for peak in peaks if isinstance(peak, int | float)), default=None)
