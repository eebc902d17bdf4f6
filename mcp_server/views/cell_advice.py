"""Advice about a failed run that is a cell of a sweep: the next call is the sweep's, not launch_run. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def advise_on_cell(failure: Mapping[str, Any], sweep_id: str) -> str | None:
    """Return the advice about a run, for a cell of this sweep."""
    said = failure.get("correction")
    return f"{said} {restart_advice(sweep_id)}" if said else failure.get("advice")


def restart_advice(sweep_id: str, *, ended: bool = False) -> str:
    """Return how cells without result start again after a correction."""
    after = "" if ended else "once the sweep has ended, "
    return f'After a correction, {after}launch_sweep(name="{sweep_id}", resume="continue") starts failed cells again.'
