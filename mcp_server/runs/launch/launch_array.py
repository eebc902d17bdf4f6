"""Starting many runs at once as one array of jobs of Slurm; each is a run like any other from then on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mcp_server.backends.slurm.arrays import Element, are_alike, array_backend_of
from mcp_server.errors import HostUnreachable, LaunchFailed, RunwardError
from mcp_server.record.spec import LaunchRequest, RunSpec
from mcp_server.record.state import Run
from mcp_server.runs.launch.gpu_admission import QuotaReached, hold_quota
from mcp_server.runs.launch.idempotency import hold_key
from mcp_server.runs.launch.launch import create_directory, plan
from mcp_server.store.file_watch import FileWatch
from mcp_server.store.run_store import RunStore
from mcp_server.threads import run_in_thread


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
