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


# --- open sweeps

PLAN = {"budget": 100, "base": "b" * 40, "branch": "night", "protect": ["prepare.py"]}
BASELINE = (0.150, 0.153, 0.147, 0.150)


def propose(name: str, text: str, base: str = "t0", by: str = "agent-a") -> dict[str, Any]:
    files = ["train.py", "model/attention.py", "model/blocks.py"]
    return {"kind": "proposed", "trial": name, "text": text, "by": by, "base": base, "commit": "c" * 40, "files": files}


def add_runs(trial: str, values: list[float], role: str = "pair") -> list[dict[str, Any]]:
    events = []
    for number, value in enumerate(values):
        cell = f"{trial}.{number}"
        pair = 0 if number == 0 else number
        kind = "screen" if number == 0 else role
        events += [{"kind": "cell_added", "cell": cell, "trial": trial, "role": kind, "pair": pair}]
        events += cell_events(cell, value)
    return events


def decide(trial: str, verdict: str, why: str, **facts: Any) -> dict[str, Any]:
    return {"kind": "verdict", "trial": trial, "verdict": verdict, "why": why, **facts}


def write_open_sweep(home: Path, events: list[dict[str, Any]], **spec: Any) -> SweepDir:
    """Write the directory of the open sweep night-ab3d, whose base is measured, with the events after that."""
    cells = [Cell(f"t0.{n}", "", {"trial": "t0", "seed": n}, {}) for n in range(len(BASELINE))]
    begun = [event for n, value in enumerate(BASELINE) for event in cell_events(f"t0.{n}", value)]
    return write_sweep(home, cells, [*begun, *events], metric="val_loss", goal="min", open=PLAN, **spec)


TRIALS = [
    propose("t1", "momentum .95 | nesterov"),
    *add_runs("t1", [0.140, 0.141, 0.139]),
    {"kind": "tip", "trial": "t1", "commit": "c" * 40, "former": "b" * 40},
    decide("t1", "kept", "0.14 (n 2) against t0 0.15 (n 4): +4.5 sd", mean=0.14, n=2, gain=0.01),
    propose("t2", "lr .2", "t1", "agent-b"),
    *add_runs("t2", [0.190]),
    decide("t2", "discarded", "its first run is not better", mean=0.19, n=1, gain=-0.05),
    propose("t3", "prints the answer", "t1", "agent-b"),
    *add_runs("t3", [0.001]),
    decide("t3", "suspect", "above 8 sd: too good", mean=0.001, n=1, gain=0.139),
    propose("t4", "deeper", "t1"),
]
