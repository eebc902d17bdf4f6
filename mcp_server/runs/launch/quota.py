"""How many GPUs an owner's live runs may hold or wait for at once: the table ``[quotas]`` of config.toml."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from mcp_server.errors import RunwardError
from mcp_server.gpus.request import parse_gpus, parse_requirements
from mcp_server.record.spec import RunSpec
from mcp_server.runs.launch.idempotency import hold_key
from mcp_server.store.run_store import RunStore
from mcp_server.threads import run_in_thread

_OTHERS = "*"


class QuotaReached(RunwardError):
    """The owner's live runs have as many GPUs as the owner may."""

    def __init__(self, owner: str, quota: int, used: int, requested: int) -> None:
        super().__init__(
            f"{owner} may have {quota} GPUs at once, has or awaits {used}, and this launch requests {requested}.",
            "Nothing was started.",
            "Wait until a run of theirs has ended, or let launch_sweep wait. A person sets quotas in config.toml.",
        )
        self.never = requested > quota


def find_quota(quotas: Mapping[str, int], owner: str) -> int | None:
    """Return the quota of ``owner``, or None for no limit."""
    return quotas.get(owner, quotas.get(_OTHERS))


def count_gpus(gpus: Any, require: Mapping[str, Any] | None) -> int:
    """Return how many GPUs a launch requests. Cpu slots do not count."""
    try:
        request = parse_gpus(gpus)
        if request is None:
            return parse_requirements(require).count or 0
    except ValueError:
        return 0
    return 0 if request.cpu else request.count or len(request.ids)


@contextlib.asynccontextmanager
async def hold_quota(spec: RunSpec, store: RunStore) -> AsyncIterator[None]:
    """Check that the owner of ``spec`` may have its GPUs, and let no other launch of theirs pass until the block ends.

    Raises:
        QuotaReached: their live runs have too many.
    """
    quota = find_quota((await run_in_thread(store.home.read_config)).quotas, spec.owner)
    requested = count_gpus(spec.gpus, spec.require)
    if quota is None or not requested:
        yield
        return
    async with hold_key(store, f"quota {spec.owner}"):
        runs = await run_in_thread(store.list_runs)
        live = [run for run in runs if not run.ended and run.spec.owner == spec.owner]
        used = sum(count_gpus(run.spec.gpus, run.spec.require) for run in live)
        if used + requested > quota:
            raise QuotaReached(spec.owner, quota, used, requested)
        yield
