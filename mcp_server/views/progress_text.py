"""How far runs are, in a few words: the text of a progress report and of an open task."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mcp_server.record.state import ENDED, Run
from mcp_server.record.sweeps.sweep_state import Sweep, Watched
from mcp_server.text.formatting import join_some, rough_duration

_FIRST_METRICS = ("reward", "loss")
_MOST_CHARS = 100


def first_metrics(metrics: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the metric that says most, for texts with room for one, or empty where there is none."""
    return [(name, metrics[name]) for name in _FIRST_METRICS if name in metrics][:1] or list(metrics.items())[:1]


def describe_progress(runs: Sequence[Watched], now_s: float) -> str:
    """Return e.g. ``step 812/5000, loss 1.93, 2 h left``; of several runs ``3 running, 1 failed, 2 h left``. Pure."""
    if len(runs) == 1 and isinstance(runs[0], Sweep):
        counts = runs[0].count()
        return ", ".join(f"{count} {state}" for state, count in counts.items() if state != "total")
    if len(runs) == 1 and isinstance(runs[0], Run):
        return _join(_describe_run(runs[0], now_s))
    counts = Counter(run.state for run in runs)
    states = sorted(counts, key=lambda state: (state in ENDED, -counts[state], state))
    parts = [f"{counts[state]} {state}" for state in states]
    live = [run for run in runs if isinstance(run, Run) and not run.ended]
    known_s = [left_s for run in live if (left_s := run.left_s(now_s)) is not None]
    if known_s and len(known_s) == len(live):
        parts.append(_left(max(known_s)))
    return _join(parts)


def _join(parts: list[str]) -> str:
    shown = len(parts)
    while len(text := join_some(parts, shown)) > _MOST_CHARS and shown > 1:
        shown -= 1
    return text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS - 1]}…"


def _describe_run(run: Run, now_s: float) -> list[str]:
    progress = run.progress
    parts: list[str] = [] if run.state == "running" else [run.state]
    if run.state == "queued" and run.queue_position is not None:
        parts.append(f"place {run.queue_position}")
    if isinstance(step := progress.get("step"), int | float):
        total = progress.get("total_steps")
        place = f"step {step}/{total}" if total else f"step {step}"
        parts.append(f"round {progress['round']}, {place}" if "round" in progress else place)
        metrics = progress.get("metrics") or {}
        for name, value in first_metrics(metrics) if run.made_a_step else ():
            parts.append(f"{name} {value:.3g}" if isinstance(value, int | float) else f"{name} {value}")
        if (left_s := run.left_s(now_s)) is not None:
            parts.append(_left(left_s))
    elif run.unreachable is None and not run.ended and (elapsed_s := run.elapsed_s(now_s)) is not None:
        parts = [f"{run.state} for {rough_duration(elapsed_s)}", *parts[1:]]
    if run.unreachable:
        parts = [f"{run.unreachable['host']} cannot be reached, last known: {', '.join(parts) or run.state}"]
    return parts or [run.state]


def _left(eta_s: float) -> str:
    return f"{rough_duration(eta_s)} left"
