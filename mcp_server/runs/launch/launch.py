"""Starting a run: a request is resolved, becomes a spec and a directory, and a backend starts its supervisor."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from mcp_server.backends.base import backend_of, find_backend, find_far_backend
from mcp_server.errors import GpusNotFree, LaunchFailed, RunwardError
from mcp_server.gpus.request import parse_gpus
from mcp_server.record.handover import Handover
from mcp_server.record.run_directory import RunDir
from mcp_server.record.spec import LaunchRequest, RunSpec
from mcp_server.record.state import Run
from mcp_server.runs.launch.cleanup import clean_up
from mcp_server.runs.launch.gpu_admission import check_admission
from mcp_server.runs.launch.idempotency import find_run_of_key, hold_key
from mcp_server.runs.launch.quota import hold_quota
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.threads import run_in_thread

if TYPE_CHECKING:
    from mcp_server.runs.launch.resolve import Plan

_CLEANUP_S = 2.0  # a launch does not wait longer for screens that do not close


async def plan(request: LaunchRequest, home: StateHome, environ: Mapping[str, str]) -> Plan:
    """Return what a launch would start. Writes nothing.

    Raises:
        BadArgument, BlueprintInvalid, SecretNotSet, SecretsFileOpen, TmuxMissing, …: the run cannot be started.
    """
    # A server starts without blueprints and hosts.
    from mcp_server.runs.launch.resolve import resolve  # noqa: PLC0415 - as above

    backend = find_backend(request.backend)
    resolved: Plan = await run_in_thread(partial(resolve, request, home, environ))
    backend = find_far_backend(request.backend) if resolved.spec.mirror else backend
    backend.check_request(resolved.spec)
    await run_in_thread(backend.check_usable)
    spec = await run_in_thread(backend.complete_spec, resolved.spec, environ)  # may ask a name server
    return resolved._replace(spec=spec)


async def rehearse(request: LaunchRequest, home: StateHome, environ: Mapping[str, str]) -> RunSpec:
    """Return the specification of a run that could be started now. Starts and writes nothing.

    Raises:
        RunwardError: what ``launch`` would raise.
    """
    spec, handover, _ = await plan(request, home, environ)
    await check_admission(spec, handover.env)
    return spec


async def launch(
    request: LaunchRequest,
    store: RunStore,
    file_watch: FileWatch,
    environ: Mapping[str, str],
    approve: Callable[[RunSpec], Awaitable[None]] | None = None,
) -> Run:
    """Start a run and return it once its command runs. With a repeated idempotency key, return the first run.

    ``approve`` is asked before anything is written, and stops the launch by an error.

    Raises:
        RunwardError: the command does not run. A launch that was refused before its directory was made leaves nothing.
    """
    try:
        spec, handover, code = await plan(request, store.home, environ)
    except RunwardError:
        if (first := await run_in_thread(find_run_of_key, store, request.idempotency_key)) is not None:
            return first  # the first run does not depend on what has changed since
        raise
    await run_in_thread(store.home.create)
    with anyio.move_on_after(_CLEANUP_S):
        await clean_up(store, spec)
    async with hold_key(store, request.idempotency_key) as key:
        if key is not None and (first := await key.find_run(store, file_watch)) is not None:
            return first
        if approve is not None:
            await approve(spec)
        snapshot = await check_admission(spec, handover.env)
        handover = replace(handover, snapshot=snapshot.to_json() if snapshot else None)
        if code is not None:
            await run_in_thread(code.send)
        if spec.result_dir is not None and not spec.mirror:  # a far host writes its own
            from mcp_server.record.results.experiment_log import append_launch  # noqa: PLC0415 - only blueprints have one

            await run_in_thread(append_launch, Path(spec.result_dir), spec, handover.masked)
        async with hold_quota(spec, store):
            directory = await run_in_thread(create_directory, spec, store)
        if key is not None:
            try:
                await run_in_thread(key.remember, spec.run_id)
            except OSError as error:  # the disk is full: launched without a key, it could be launched twice
                await backend_of(spec).discard(directory, spec)
                raise LaunchFailed(f"{store.home.path}: {error.strerror}.", "Nothing was started.") from error
        return await _start(directory, spec, handover, store, file_watch)


def create_directory(spec: RunSpec, store: RunStore) -> RunDir:
    """Make the run's directory appear whole.

    Raises:
        LaunchFailed: it cannot be written; nothing is left of it.
    """
    runs = Path(spec.mirror) / "runs" if spec.mirror else store.home.runs
    directory = RunDir(runs / spec.run_id)
    try:
        backend_of(spec).create(directory, spec)
    except OSError as error:
        raise LaunchFailed(f"{store.home.path}: {error.strerror}.", "Nothing was started.") from error
    if not spec.mirror and (spec.backend == "slurm" or spec.sweep):
        from mcp_server.runs.code.code_at_launch import keep_code_state  # noqa: PLC0415 - most runs start at once

        keep_code_state(directory, spec, store.home)
    return directory


async def _start(directory: RunDir, spec: RunSpec, handover: Handover, store: RunStore, file_watch: FileWatch) -> Run:
    """Start the supervisor and return the run with its first events.

    Raises:
        LaunchFailed: the supervisor did not start, or refused.
        GpusNotFree: another run took the GPUs in the meantime; nothing is left of the launch.
    """
    backend = backend_of(spec)
    with file_watch.subscribe([directory.path]) as subscription:

        async def first_event() -> None:
            while not (await run_in_thread(store.observe, spec.run_id)).events:
                await subscription.next_change()

        await backend.start(directory, spec, handover, first_event)
    run = await run_in_thread(store.observe, spec.run_id)
    refusal = next((event for event in run.events if event["kind"] == "refused"), None)
    if refusal is None:
        return run
    if (not_free := refusal.get("not_free")) is None:
        raise LaunchFailed(f"{refusal['text']} See {directory.path}.")
    await backend.discard(directory, spec)
    request = parse_gpus(spec.gpus)
    slots = request is not None and request.cpu > 0
    raise GpusNotFree(str(not_free), never=bool(refusal.get("never")), slots=slots)
