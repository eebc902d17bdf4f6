"""Directories of sweeps whose conductors never ran."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mcp_server.record.sweeps.sweep_spec import Cell, SweepDir, SweepSpec

AT = "2026-11-21T15:30:00.000Z"


def write_sweep(home: Path, cells: list[Cell], events: list[dict[str, Any]], **spec: Any) -> SweepDir:
    """Write the directory of the sweep night-ab3d, or of ``sweep_id``, with the events after the first one."""
    facts = SweepSpec(**{"sweep_id": "night-ab3d", "name": "night", "created_at": AT, "cells": tuple(cells), **spec})
    directory = SweepDir(home / "sweeps" / facts.sweep_id)
    directory.requests.mkdir(parents=True)
    directory.spec.write_text(json.dumps(facts.facts()))
    numbered = [{"seq": n, "at": AT, **event} for n, event in enumerate([{"kind": "conducting"}, *events], 1)]
    directory.events.write_text("".join(json.dumps(event) + "\n" for event in numbered))
    return directory


def cell_events(cell: str, value: float | None, failure: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return the events of a cell whose run has ended, with this value of the metric."""
    of = {"cell": cell, "run_id": f"night-{cell}-k7qz"}
    state = "failed" if failure else "finished"
    end = {"kind": "cell_failed" if failure else "cell_ended", **of, "state": state, "failure": failure, "step": 3000}
    measured = {"kind": "cell_measured", **of, "value": value, "value_step": 2800 if value is not None else None}
    return [{"kind": "cell_started", **of}, {**end, "elapsed_s": 60.0}, measured]
