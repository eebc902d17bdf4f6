"""Checks before a launch: whether this machine has the requested GPUs, and whether the owner may. Creates nothing."""

import contextlib
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import anyio

from mcp_server.backends.base import backend_of
from mcp_server.errors import BadArgument, GpusNotFree, RunwardError
from mcp_server.gpus.placement import Placement, choose_devices
from mcp_server.gpus.request import PLACEHOLDERS, VISIBLE_DEVICES, find_placeholder, parse_gpus, parse_requirements
from mcp_server.gpus.snapshot import IDLE_MIB, Snapshot
from mcp_server.record.spec import RunSpec
from mcp_server.runs.launch.idempotency import hold_key
from mcp_server.store.run_store import RunStore
from mcp_server.threads import run_in_thread

_INDICES = PLACEHOLDERS[1]
# The memory of a process that has just ended may stay in use for a moment.
_ATTEMPTS, _BETWEEN_S = 4, 0.7
_OTHERS = "*"


def check_gpu_arguments(gpus: Any, require: Mapping[str, Any] | None, env: Mapping[str, str], *, queue: bool) -> Any:
    """Return ``gpus`` of a launch as written, else the count of ``require``. BadArgument: one cannot be used."""
    try:
        requirements = parse_requirements(require)
    except ValueError as error:
        raise BadArgument("require", f"{error}") from error
    requested = requirements.count if gpus is None else gpus
    try:
        request = parse_gpus(requested)
    except ValueError as error:
        raise BadArgument("gpus", f"{error}") from error
    if not request and (queue or require):
        raise BadArgument("queue" if queue else "require", "`queue` and `require` need `gpus`.")
    if (
        request is not None
        and VISIBLE_DEVICES in env
        and not any(word in env[VISIBLE_DEVICES] for word in PLACEHOLDERS)
    ):
        text = f"{VISIBLE_DEVICES} is set by gpus: leave it out, or write {{gpus}} or {{gpu_indices}} in it."
        raise BadArgument("env", text)
    return requested


def requests_gpus(gpus: Any, require: Mapping[str, Any] | None) -> bool:
    """Return whether a launch requests GPUs or cpu slots. True for words that ``check_gpu_arguments`` will refuse."""
    try:
        return bool(parse_gpus(gpus) if gpus is not None else parse_requirements(require).count)
    except ValueError:
        return True


def names_mig(gpus: Any) -> bool:
    """Return whether a launch names MIG instances. False for words that ``check_gpu_arguments`` will refuse."""
    try:
        return (request := parse_gpus(gpus)) is not None and request.is_mig
    except ValueError:
        return False


def check_placeholders(gpus: Any, words: Mapping[str, Iterable[str]]) -> None:
    """Refuse placeholders for GPUs in the ``words`` of a launch, by argument, that requests none."""
    request = parse_gpus(gpus)
    if request and not request.is_mig:
        return
    for argument, texts in words.items():
        for text in texts:
            if request and _INDICES in text:
                remedy = f"Write {PLACEHOLDERS[0]}, which their UUIDs replace."
                raise BadArgument(argument, f"{_INDICES} stands for indices, and MIG instances have none.", remedy)
            if request or (placeholder := find_placeholder(text)) is None:
                continue
            remedy = "Pass gpus, e.g. gpus=1, or leave it out."
            raise BadArgument(argument, f"{placeholder} stands for leased GPUs, and gpus requests none.", remedy)


def count_cpu_slots(configured: int | None) -> int:
    """Return how many cpu slots this machine has: as configured, else one per core."""
    return configured if configured is not None else os.cpu_count() or 1


async def check_admission(spec: RunSpec, env: Mapping[str, str]) -> Snapshot | None:
    """Return the snapshot, None without a request for GPUs. GpusNotFree: says for every GPU why; no waiting helps.

    ``env``: the run's, which may name the driver's library. The supervisor checks again when it leases the GPUs.
    """
    request, backend = parse_gpus(spec.gpus), backend_of(spec)
    if not request or not backend.leases_gpus:
        return None
    requirements = parse_requirements(spec.require)
    for attempt in range(_ATTEMPTS):
        if attempt:
            await anyio.sleep(_BETWEEN_S)
        state = await run_in_thread(backend.query_gpus, spec, env, near=True, query=not request.cpu)
        snapshot = state.snapshot
        choice = choose_devices(snapshot, spec.cpu_slots, state.holders, request, requirements)
        if isinstance(choice, Placement) or (spec.queue and not choice.never and not choice.remedy):
            return snapshot
        refusal = GpusNotFree(choice.text, never=choice.never, remedy=choice.remedy, slots=bool(request.cpu))
        may_become_free = any((gpu.memory_unattributed_mib or 0) > IDLE_MIB for gpu in snapshot.gpus)
        if choice.never or choice.remedy or not may_become_free:
            break
    raise refusal


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
    """Let no other launch of this owner pass until the block ends. QuotaReached: their runs have too many GPUs."""
    requested = count_gpus(spec.gpus, spec.require)
    quota = find_quota((await run_in_thread(store.home.read_config)).quotas, spec.owner) if requested else None
    if quota is None:
        yield
        return
    async with hold_key(store, f"quota {spec.owner}"):
        runs = await run_in_thread(store.list_runs)
        live = [run for run in runs if not run.ended and run.spec.owner == spec.owner]
        used = sum(count_gpus(run.spec.gpus, run.spec.require) for run in live)
        if used + requested > quota:
            raise QuotaReached(spec.owner, quota, used, requested)
        yield
