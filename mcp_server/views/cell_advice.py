"""What to do about a failed run that is a cell of a sweep: the next call is the sweep's, not launch_run. Pure."""

from __future__ import annotations

_AGAIN = ", then launch_run again."


def advise_on_cell(advice: str, sweep_id: str) -> str:
    """Return the advice about a run, for a cell of this sweep."""
    return f"{correction(advice)} {restart_advice(sweep_id)}" if advice.endswith(_AGAIN) else correction(advice)


def correction(advice: str) -> str:
    """Return what to correct, without the call that starts the run again."""
    if advice.endswith(_AGAIN):
        return f"{advice.removesuffix(_AGAIN)}."
    advice = advice.replace("launch_run's", "the launch's").replace("before launch_run", "before another launch")
    return advice.replace("launch_run", "launch the cell")


def restart_advice(sweep_id: str, *, ended: bool = False) -> str:
    """Return how cells without result start again after a correction."""
    after = "" if ended else "once the sweep has ended, "
    return f'After a correction, {after}launch_sweep(name="{sweep_id}", resume="continue") starts failed cells again.'
