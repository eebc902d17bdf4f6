"""Sweeps over several machines, one of which is lost in the midst of a launch, over a real sshd."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_server.backends.ssh.ssh_backend import SshBackend
from mcp_server.record.events import EventLog
from mcp_server.record.sweeps.sweep_spec import Cell, SweepDir
from mcp_server.record.sweeps.sweep_state import Sweep
from mcp_server.sweeps.conductor.conductor import Conductor
from tests.support.sandbox import Sandbox, until, until_async
from tests.support.sshd import NAME, FarHost, needs_sshd
from tests.support.sweeps import write_sweep

pytestmark = [pytest.mark.anyio, needs_sshd, pytest.mark.slow]

HERE = socket.gethostname()


def write_cells(sandbox: Sandbox, count: int, **spec: Any) -> SweepDir:
    """Write a sweep whose cells each note where they ran; those of this machine end at once."""
    sandbox.store.home.create()
    gate, places = sandbox.path / "go", sandbox.path / "places"
    places.mkdir()
    command = (
        f'case "$HOME" in */far/home) echo far;; *) echo here;; esac >> {places}/$CELL_NAME; '
        f"until grep here {places}/$CELL_NAME || test -e {gate}; do sleep 0.02; done"
    )
    cells = []
    for n in range(count):
        launch = {"command": command, "cwd": "/", "env": {"CELL_NAME": f"n{n}"}, "gpus": "cpu"}
        cells.append(Cell(f"n{n}", "1", {"n": n}, launch=launch))
    facts: dict[str, Any] = {"hosts": (NAME, HERE), "tmux_socket": sandbox.socket, **spec}
    return write_sweep(sandbox.path / "state", cells, [], **facts)


@contextlib.contextmanager
def environment(sandbox: Sandbox) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(sandbox.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.asynccontextmanager
async def conducted(sandbox: Sandbox, directory: SweepDir) -> AsyncIterator[None]:
    """A conductor in this process, until the block ends."""
    with environment(sandbox):
        conductor = Conductor(directory, sandbox.store, dict(os.environ), EventLog(directory.events), "night-ab3d")
        async with anyio.create_task_group() as group:
            group.start_soon(conductor.run)
            yield
            group.cancel_scope.cancel()
        conductor.file_watch.close()


@contextlib.contextmanager
def held_launches(far_host: FarHost) -> Iterator[None]:
    """Let the other machine hear of launches, and not act yet."""
    far_host.state.mkdir(mode=0o700, exist_ok=True)
    with (far_host.state / "launch.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def has_launch(far_host: FarHost) -> bool:
    """Return whether the relay there has been asked for a launch, which waits for its lock."""
    lock = far_host.state / "launch.lock"
    files = [file for pid in far_host.relays() for file in Path(f"/proc/{pid}/fd").iterdir()]
    return any(os.path.realpath(file) == str(lock) for file in files)


def observe(sandbox: Sandbox) -> Sweep:
    return sandbox.store.sweeps.observe("night-ab3d")


def count(sandbox: Sandbox, state: str) -> int:
    return observe(sandbox).count().get(state, 0)


def find_launches(sandbox: Sandbox) -> list[str]:
    """Return the ids of the runs whose launch has no answer yet."""
    runs = sandbox.path / "state" / "hosts" / NAME / "runs"
    return [marker.parent.name for marker in runs.glob("*/launching")]


def count_starts(sandbox: Sandbox) -> Counter[str]:
    """Return how many commands were started where, each cell's once."""
    places = [file.read_text().split() for file in (sandbox.path / "places").iterdir()]
    assert all(len(words) == 1 for words in places), places
    return Counter(words[0] for words in places)


async def test_a_host_that_falls_silent_in_a_launch_holds_up_no_other_host(sandbox: Sandbox, far_host: FarHost) -> None:
    directory = write_cells(sandbox, 5)
    async with conducted(sandbox, directory):
        with held_launches(far_host):
            await until_async(lambda: has_launch(far_host), "a launch there")
            frozen = far_host.freeze_connections()
            await until_async(lambda: count(sandbox, "finished") == 4, "the other cells, meanwhile")
            assert find_launches(sandbox) != []
            assert count(sandbox, "running") == 0
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
        await until_async(lambda: count(sandbox, "running") == 1, "the cell there")
        (sandbox.path / "go").touch()
        await until_async(lambda: observe(sandbox).ended, "the end of the sweep")
    assert count_starts(sandbox) == {"far": 1, "here": 4}


@pytest.mark.parametrize("arrived", [True, False])
async def test_a_cell_whose_launch_is_in_doubt_is_found_again_once_its_host_answers(
    sandbox: Sandbox, far_host: FarHost, monkeypatch: pytest.MonkeyPatch, arrived: bool
) -> None:
    monkeypatch.setattr(SshBackend, "launched_within_s", 0.5)
    directory = write_cells(sandbox, 5, max_parallel=2)
    async with conducted(sandbox, directory):
        with held_launches(far_host):
            await until_async(lambda: has_launch(far_host), "a launch there")
            (relay,) = far_host.relays()
            if not arrived:
                os.kill(relay, signal.SIGKILL)
            far_host.stop()
            await until_async(lambda: count(sandbox, "finished") == 4, "the other cells")
            await until_async(lambda: observe(sandbox).refusal, "the doubt")
        assert "whether it runs is unknown. It is never started twice, and other cells go on." in str(
            observe(sandbox).refusal
        )
        assert not observe(sandbox).ended
        if arrived:
            until(lambda: list((far_host.state / "runs").glob("*/events.jsonl")), "the run there")
        far_host.start()
        await until_async(lambda: count(sandbox, "running") == 1 or observe(sandbox).ended, "the cell in doubt")
        (sandbox.path / "go").touch()
        await until_async(lambda: observe(sandbox).ended, "the end of the sweep")
    assert observe(sandbox).refusal is None
    assert sum(count_starts(sandbox).values()) == 5


async def test_a_stop_reaches_a_cell_in_doubt_once_its_host_answers(
    sandbox: Sandbox, far_host: FarHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SshBackend, "launched_within_s", 0.5)
    monkeypatch.setattr("mcp_server.sweeps.conductor.conductor._STRAGGLERS_S", 0.0)
    directory = write_cells(sandbox, 1)
    async with conducted(sandbox, directory):
        with held_launches(far_host):
            await until_async(lambda: has_launch(far_host), "a launch there")
            far_host.stop()
            await until_async(lambda: observe(sandbox).refusal, "the doubt")
        (run_id,) = find_launches(sandbox)
        until((far_host.state / "runs" / run_id / "events.jsonl").exists, "the run there")
        directory.stop.write_text('{"by": "ana", "reason": ""}')
        await until_async(lambda: observe(sandbox).events[-1]["kind"] == "stopping", "the stop")
        far_host.start()
        await until_async(lambda: observe(sandbox).ended, "the end of the sweep")
    assert sandbox.run(run_id).state == "killed"
