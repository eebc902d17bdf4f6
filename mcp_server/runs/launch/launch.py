"""Starting a run, or an array of runs: a request becomes a spec and a directory, a backend starts its supervisor."""

import contextlib
import math
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from weakref import WeakKeyDictionary

import anyio

from mcp_server.backends.base import backend_of, find_backend, find_far_backend
from mcp_server.backends.slurm.batch_script import Element, are_alike, array_backend_of
from mcp_server.backends.supervisor_copy import remove_unused_copies
from mcp_server.errors import GpusNotFree, HostUnreachable, LaunchFailed, RunwardError
from mcp_server.gpus.request import parse_gpus
from mcp_server.record.codec import encode
from mcp_server.record.handover import Handover
from mcp_server.record.results.experiment_log import append_launch
from mcp_server.record.run_directory import RunDir
from mcp_server.record.spec import LaunchRequest, RunSpec
from mcp_server.record.state import Run
from mcp_server.runs.code.code_copy import keep_code_state
from mcp_server.runs.code.code_sync import CodeSync
from mcp_server.runs.launch.gpu_admission import QuotaReached, check_admission, hold_quota
from mcp_server.runs.launch.idempotency import find_run_of_key, hold_key
from mcp_server.runs.launch.resolve import Plan, resolve
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.run_index import RunQuery
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.system.lock_files import take_lock
from mcp_server.threads import run_in_thread

_CLEANUP_S = 2.0  # a launch does not wait longer for screens that do not close
_ABORTED_AFTER_S, _EVERY_S = 3600.0, 600.0
_SCREENS_EVERY_S = 2.0  # for the cells of a sweep: to list all screens for each of many short ones costs as much again
_cleaned_s: WeakKeyDictionary[RunStore, float] = WeakKeyDictionary()
_closed_s: WeakKeyDictionary[RunStore, float] = WeakKeyDictionary()


async def plan(request: LaunchRequest, home: StateHome, environ: Mapping[str, str]) -> Plan:
    """Return what a launch would start. Writes nothing. RunwardError: the run cannot be started."""
    return await run_in_thread(_plan, request, home, environ)


def _plan(request: LaunchRequest, home: StateHome, environ: Mapping[str, str]) -> Plan:
    backend = find_backend(request.backend)
    resolved = resolve(request, home, environ)
    backend = find_far_backend(request.backend) if resolved.spec.mirror else backend
    backend.check_request(resolved.spec)
    backend.check_usable()
    return resolved._replace(spec=backend.complete_spec(resolved.spec, environ))  # may ask a name server


async def rehearse(request: LaunchRequest, home: StateHome, environ: Mapping[str, str]) -> RunSpec:
    """Return the specification of a run that could be started now. Writes nothing; refuses as ``launch`` would."""
    spec, handover, _ = await plan(request, home, environ)
    await check_admission(spec, handover.env)
    return spec


async def launch(
    request: LaunchRequest,
    store: RunStore,
    file_watch: FileWatch,
    environ: Mapping[str, str],
    approve: Callable[[RunSpec], Awaitable[None]] | None = None,
    prepare: Callable[[CodeSync], None] | None = None,
) -> Run:
    """Start a run and return it once its command runs. With a repeated idempotency key, return the first run.

    What is refused, also by ``approve``, leaves nothing. ``prepare`` gets code that is on another host now.
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
        handover = replace(handover, snapshot=encode(snapshot) if snapshot else None)
        if code is not None:
            await run_in_thread(code.send)
        if prepare is not None and isinstance(code, CodeSync):
            await run_in_thread(prepare, code)
        if spec.result_dir is not None and not spec.mirror:  # a far host writes its own
            await run_in_thread(append_launch, Path(spec.result_dir), spec, handover.masked)
        if key is not None:  # before the directory is there, which would have no key if this server died in between
            try:
                await run_in_thread(key.remember, spec.run_id)
            except OSError as error:  # the disk is full: launched without a key, it could be launched twice
                raise LaunchFailed(f"{store.home.path}: {error.strerror}.", "Nothing was started.") from error
        async with hold_quota(spec, store):
            directory = await run_in_thread(create_directory, spec, store)
        return await _start(directory, spec, handover, store, file_watch)


def create_directory(spec: RunSpec, store: RunStore) -> RunDir:
    """Make the run's directory appear whole. LaunchFailed: it cannot be written; nothing is left of it."""
    runs = Path(spec.mirror) / "runs" if spec.mirror else store.home.runs
    directory = RunDir(runs / spec.run_id)
    try:
        backend_of(spec).create(directory, spec)
    except OSError as error:
        raise LaunchFailed(f"{store.home.path}: {error.strerror}.", "Nothing was started.") from error
    if not spec.mirror and (spec.backend == "slurm" or spec.sweep):
        keep_code_state(directory, spec, store.home)
    return directory


async def _start(directory: RunDir, spec: RunSpec, handover: Handover, store: RunStore, file_watch: FileWatch) -> Run:
    """Return the run with its first events. LaunchFailed, GpusNotFree (nothing is left): the supervisor refused."""
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


async def clean_up(store: RunStore, spec: RunSpec) -> None:
    """Remove the remains of servers killed during a launch, and close the oldest screens of the kind of ``spec``."""

    def ended(sessions: Sequence[str]) -> list[RunSpec]:
        query = RunQuery("ended", sessions=sessions, cut_off=None)
        return [run.spec for run in store.list_runs(query) if run.state != "lost"]

    if time.monotonic() - _cleaned_s.get(store, -math.inf) > _EVERY_S:
        _cleaned_s[store] = time.monotonic()
        await run_in_thread(_remove_remains, store)
    if spec.sweep and time.monotonic() - _closed_s.get(store, -math.inf) < _SCREENS_EVERY_S:
        return
    _closed_s[store] = time.monotonic()
    keep = (await run_in_thread(store.home.read_config)).keep_sessions
    await backend_of(spec).close_old_screens(spec, keep, ended)


def _remove_remains(store: RunStore) -> None:
    for directory in store.home.runs.glob(".new-*"):
        with contextlib.suppress(OSError):
            if time.time() - directory.stat().st_mtime > _ABORTED_AFTER_S:
                shutil.rmtree(directory, ignore_errors=True)
    for run_id in store.list_ids(RunQuery(mirror="", cut_off=True)):
        with contextlib.suppress(OSError, RunwardError):
            _remove_cut_off_launch(store, store.observe(run_id))
    remove_unused_copies(store.home.path)


def _remove_cut_off_launch(store: RunStore, run: Run) -> None:
    """Remove what a launch left that began over an hour ago, if no supervisor ever came."""
    directory = store.run_directory(run.run_id)
    if not store.is_cut_off_launch(run) or time.time() - directory.handover.stat().st_mtime < _ABORTED_AFTER_S:
        return
    lock = take_lock(directory.lock)  # a supervisor that comes now does not get it, and goes
    if lock is None:
        return
    try:
        if directory.handover.is_fifo() and not directory.events.exists():
            removed = directory.path.with_name(f".new-{run.run_id}")
            directory.path.rename(removed)
            shutil.rmtree(removed, ignore_errors=True)
    finally:
        os.close(lock)


async def launch_array(
    requests: Sequence[LaunchRequest],
    name: str,
    most_at_once: int | None,
    store: RunStore,
    file_watch: FileWatch,
    environ: Mapping[str, str],
    *,
    is_called_off: Callable[[], bool],
) -> dict[int, Run]:
    """Start runs in one submission, and return them by their place in ``requests``. LaunchFailed: nothing is left.

    One that a launch would refuse, that asks another thing of Slurm than the first, that brings a blueprint, or that is
    one too many, is left out: launch it by itself. A key that has a run returns it.
    """
    await run_in_thread(store.home.create)
    started: dict[int, Run] = {}
    elements: dict[int, Element] = {}
    try:
        await _prepare(requests, started, elements, store, file_watch, environ, is_called_off)
    except (RunwardError, OSError):
        for element in elements.values():
            await array_backend_of(element.spec).discard(element.directory, element.spec)
        raise
    if together := list(elements.values()):
        await array_backend_of(together[0].spec).start_array(together, name, most_at_once)
    for number, element in elements.items():
        started[number] = await run_in_thread(store.observe, element.spec.run_id)
    return started


async def _prepare(
    requests: Sequence[LaunchRequest],
    started: dict[int, Run],
    elements: dict[int, Element],
    store: RunStore,
    file_watch: FileWatch,
    environ: Mapping[str, str],
    is_called_off: Callable[[], bool],
) -> None:
    """Make a directory for each run that can be an element, and fill ``elements``, and ``started`` with former runs."""
    for number, request in enumerate(requests):
        if await run_in_thread(is_called_off):
            raise LaunchFailed("The launch was called off.", "Nothing was started.")
        try:
            spec, handover, code = await plan(request, store.home, environ)
        except HostUnreachable:  # so it is for all of them
            raise
        except RunwardError:
            continue
        if not _fits(spec, list(elements.values())):
            continue
        async with hold_key(store, request.idempotency_key) as key:
            if key is not None and (former := await key.find_run(store, file_watch)) is not None:
                started[number] = former
                continue
            if code is not None:
                await run_in_thread(code.send)
            try:
                async with hold_quota(spec, store):
                    directory = await run_in_thread(create_directory, spec, store)
            except QuotaReached:
                break
            if key is not None:
                await run_in_thread(key.remember, spec.run_id)
        elements[number] = Element(directory, spec, handover)


def _fits(spec: RunSpec, elements: Sequence[Element]) -> bool:
    if spec.result_dir or len(elements) >= array_backend_of(spec).most_in_array:
        return False
    return not elements or are_alike(elements[0].spec, spec)
