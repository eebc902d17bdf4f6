"""The launch of a cell: its arguments, and the key under which it starts once. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mcp_server.record.script import LONGEST_NAME
from mcp_server.record.spec import LaunchRequest
from mcp_server.record.sweeps.sweep_spec import Cell, SweepSpec
from mcp_server.runs.launch.gpu_admission import requests_gpus


def make_request(spec: SweepSpec, cell: Cell, number: int, host: str | None = None) -> LaunchRequest:
    """Return the request for run ``number``, from 1, of a cell; with ``host`` it waits in no line there.

    The key makes each such run start once, however often a conductor dies and another one launches it again, and on
    whatever host.
    """
    arguments: dict[str, Any] = {
        **cell.launch,
        "name": f"{spec.name}-{cell.name}"[:LONGEST_NAME].strip("-"),
        "owner": spec.owner or None,
        "idempotency_key": f"sweep {spec.sweep_id} {cell.name} {number}",
        "sweep": spec.sweep_id,
        "cell": cell.name,
        "keep_code": cell.launch.get("code") == "kept",
    }
    if host is not None:
        arguments["host"] = host
    request = LaunchRequest.from_arguments(arguments)
    waits = host is None and requests_gpus(request.gpus, request.require)
    return replace(request, queue=True) if waits else request


def with_slots(cell: Cell, max_parallel: int | None) -> Cell:
    """Return ``cell`` with a lease that limits how many run at once: without GPUs and without a limit, a cpu slot."""
    if max_parallel is not None or requests_gpus(cell.launch.get("gpus"), cell.launch.get("require")):
        return cell
    return replace(cell, launch={**cell.launch, "gpus": "cpu"})
