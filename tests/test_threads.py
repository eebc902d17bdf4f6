"""Blocking work of one caller holds up no other caller."""

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import anyio
import pytest

from mcp_server import threads
from mcp_server.threads import DirectorySilent, run_in_thread, stop_if_abandoned, use_threads_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def silent() -> Iterator[threading.Event]:
    """A file system that answers only once the test is over."""
    answer = threading.Event()
    yield answer
    answer.set()


async def test_a_caller_whose_calls_all_block_leaves_the_others_theirs(silent: threading.Event) -> None:
    async def block() -> None:
        with use_threads_of("ana"):
            await run_in_thread(silent.wait)

    async with anyio.create_task_group() as tasks:
        for _ in range(100):
            tasks.start_soon(block)
        await anyio.wait_all_tasks_blocked()
        with use_threads_of("bea"), anyio.fail_after(20):
            assert await run_in_thread(max, 3, 4) == 4
        tasks.cancel_scope.cancel()


async def test_a_silent_directory_of_a_caller_leaves_its_other_calls_their_threads(
    silent: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def block(directory: str) -> None:
        with use_threads_of("ana", directory):
            await run_in_thread(silent.wait)

    async with anyio.create_task_group() as tasks:
        for number in range(100):
            tasks.start_soon(block, f"/silent/{number % 4}")
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(20):
            for directory in ("", "/other"):  # the records of its runs, and another directory
                with use_threads_of("ana", directory):
                    assert await run_in_thread(max, 3, 4) == 4
        monkeypatch.setattr(threads, "_PATIENCE_S", 0.01)
        with use_threads_of("ana", "/silent/0"), pytest.raises(DirectorySilent, match="8 calls about /silent/0"):
            await run_in_thread(max, 3, 4)
        tasks.cancel_scope.cancel()
    silent.set()
    while threads._limits[asyncio.get_running_loop()]:  # noqa: ASYNC110 - nothing is kept of what is over
        await anyio.sleep(0.001)


async def test_a_cancelled_call_keeps_its_thread_until_its_work_ends(
    silent: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_THREADS_A_CALLER", 1)
    begun = threading.Event()

    def work() -> None:
        begun.set()
        silent.wait()

    with use_threads_of("cleo"):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_in_thread, work)
            while not begun.is_set():  # noqa: ASYNC110 - a thread sets it
                await anyio.sleep(0.001)
            tasks.cancel_scope.cancel()
        with anyio.move_on_after(0.05) as waiting:
            await run_in_thread(max, 3, 4)
        assert waiting.cancelled_caught
        silent.set()
        with anyio.fail_after(20):
            assert await run_in_thread(max, 3, 4) == 4


async def test_long_work_of_a_cancelled_call_ends_between_its_steps(silent: threading.Event) -> None:
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        try:
            while not silent.is_set():
                begun.set()
                stop_if_abandoned()
        finally:
            ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_in_thread, work)
        while not begun.is_set():  # noqa: ASYNC110 - a thread sets it
            await anyio.sleep(0.001)
        tasks.cancel_scope.cancel()
    with anyio.fail_after(20):
        while not ended.is_set():  # noqa: ASYNC110 - a thread sets it
            await anyio.sleep(0.001)
    assert not silent.is_set()


def test_work_that_nobody_runs_in_a_thread_is_never_abandoned() -> None:
    stop_if_abandoned()


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_THREADS_A_CALLER", 1)


@pytest.mark.usefixtures("one_thread")
async def test_a_call_that_is_cancelled_before_it_begins_takes_no_thread_away() -> None:
    with use_threads_of("dora"):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await run_in_thread(max, 3, 4)
        with anyio.fail_after(20):
            assert await run_in_thread(max, 3, 4) == 4


@pytest.mark.usefixtures("one_thread")
async def test_a_thread_that_cannot_be_started_takes_none_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with use_threads_of("emil"):
        with monkeypatch.context() as shortage:
            shortage.setattr(threading.Thread, "start", start)
            with pytest.raises(RuntimeError):
                await run_in_thread(max, 3, 4)
        with anyio.fail_after(20):
            assert await run_in_thread(max, 3, 4) == 4


async def test_long_work_in_a_thread_pauses_so_that_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    clock = iter([0.0, 10.0, 10.001, 10.0015, 10.1, 10.1001])
    monkeypatch.setattr(threads, "time", SimpleNamespace(sleep=pauses.append, perf_counter=lambda: next(clock)))
    stop_if_abandoned()  # not in a thread: nobody else is held up
    assert not pauses

    def work() -> list[int]:
        threads._resumed.at_s = next(clock)
        counts = []
        for _ in range(2):
            stop_if_abandoned()
            counts.append(len(pauses))
        return counts

    assert await run_in_thread(work) == [1, 1]
    assert pauses == [threads._PAUSE_S]
