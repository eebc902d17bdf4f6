"""Whether this machine has the GPUs that a launch asks for: looked into before anything is made."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from mcp_server.errors import BadArgument, GpusNotFree
from mcp_server.gpus import placement
from mcp_server.gpus.leases import Leases
from mcp_server.gpus.query import ask
from mcp_server.gpus.snapshot import IDLE_MIB, Snapshot
from mcp_server.record.spec import RunSpec

# A process that has just ended may leave its GPU's memory taken for a moment.
_LOOKS, _BETWEEN_S = 4, 0.7
_PINS = "CUDA_VISIBLE_DEVICES"


def checked_gpus(gpus: Any, require: Mapping[str, Any] | None, env: Mapping[str, str], *, queue: bool) -> Any:
    """Return the GPUs that a launch asks for, as it said it, or as many as it requires.

    Raises:
        BadArgument: the words cannot be understood, or contradict each other.
    """
    try:
        demands = placement.require(require)
    except ValueError as error:
        raise BadArgument("require", f"{error}") from error
    asked = demands.count if gpus is None else gpus
    try:
        wanted = placement.wanted(asked)
    except ValueError as error:
        raise BadArgument("gpus", f"{error}") from error
    if not wanted and (queue or require):
        raise BadArgument("queue" if queue else "require", "says how GPUs are to be had, but gpus asks for none.")
    if wanted is not None and _PINS in env and not any(place in env[_PINS] for place in placement.PLACES):
        raise BadArgument("env", f"{_PINS} is set by gpus: leave it out, or write {{gpus}} or {{gpu_indices}} in it.")
    return asked


def cpu_slots(configured: int | None) -> int:
    """Return how many cpu slots this machine has: as configured, else one a core."""
    return configured if configured is not None else os.cpu_count() or 1


async def admit(spec: RunSpec, env: Mapping[str, str]) -> Snapshot | None:
    """Look whether the GPUs of ``spec`` can be had, or waited for; return what was seen, None where nobody asked.

    ``env`` is that of the run: it says where the driver's library is. The supervisor looks again when it takes them.

    Raises:
        GpusNotFree: they cannot be had, and for every GPU why.
    """
    wanted = placement.wanted(spec.gpus)
    if not wanted:
        return None
    leases, require = Leases(Path(spec.leases)), placement.require(spec.require)
    for look in range(_LOOKS):
        if look:
            await anyio.sleep(_BETWEEN_S)
        snapshot = Snapshot()
        if not wanted.cpu:
            snapshot = await anyio.to_thread.run_sync(partial(ask, sys.executable, env, near=True))
        held = {uuid: holder.text for uuid, holder in leases.holders().items()}
        found = placement.offer(snapshot, spec.cpu_slots, held, wanted, require)
        if isinstance(found, placement.Placed) or (spec.queue and not found.never):
            return snapshot
        refusal = GpusNotFree(found.text, never=found.never)
        if found.never or not _may_pass(snapshot):
            break
    raise refusal


def _may_pass(snapshot: Snapshot) -> bool:
    return any((gpu.memory_unseen_mib or 0) > IDLE_MIB for gpu in snapshot.gpus)
