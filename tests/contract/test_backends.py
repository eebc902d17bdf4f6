"""What every backend has to do, with real supervisors and real commands."""

import contextlib
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from mcp_server.backends.base import Backend, load_backend
from mcp_server.errors import LaunchFailed, ScreenNotFound
from mcp_server.record.events import read_events
from mcp_server.record.handover import Handover
from mcp_server.record.run_directory import RunDir, now
from mcp_server.record.slurm.queue import Queue
from mcp_server.record.spec import LaunchRequest, RunSpec
from mcp_server.record.state import Liveness, Run
from mcp_server.runs.launch.launch import create_directory, plan
from mcp_server.store.run_store import RunStore
from mcp_server.system import processes
from tests.support import fake_slurm
from tests.support.fake_ray import FakeRay
from tests.support.sandbox import Sandbox, until_async
from tests.support.sshd import NAME, FarHost, needs_sshd

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

STUBBORN = "trap '' HUP INT TERM; echo ready; while :; do sleep 1; done"


@dataclass
class Bench:
    """One backend, and runs that are started on it without a server."""

    backend: Backend
    sandbox: Sandbox
    monkeypatch: pytest.MonkeyPatch
    far: FarHost | None = None  # where its runs are
    name: str = "tmux"
    ray: FakeRay | None = None

    @property
    def has_screens(self) -> bool:
        """Whether a run has a screen of its own, beside its log."""
        return self.name in ("tmux", "ssh")

    @property
    def store(self) -> RunStore:
        return self.sandbox.store

    async def prepare(self, command: str) -> tuple[RunDir, RunSpec, Handover]:
        """Make a run directory as a launch does, and start nothing."""
        home = self.store.home
        home.create()
        (home.path / "config.toml").write_text("stop_grace_s = 0.25\n")
        host, backend = NAME if self.far else None, {"ssh": "tmux", "ssh-slurm": "slurm"}.get(self.name, self.name)
        options = {"address": self.ray.address} if self.ray else {}
        request = LaunchRequest(
            command=command, cwd=str(self.sandbox.path), host=host, backend=backend, backend_options=options
        )
        spec, handover, _ = await plan(request, home, self.sandbox.environ)
        return create_directory(spec, self.store), spec, handover

    async def start(self, command: str) -> RunDir:
        """Start a run and return when its supervisor has written its first event."""
        directory, spec, handover = await self.prepare(command)
        await self.backend.start(directory, spec, handover, lambda: self.first_event(directory))
        await self.first_event(directory)  # a scheduler's backend does not await it
        return directory

    async def first_event(self, directory: RunDir) -> None:
        await until_async(lambda: self.run(directory).events, "an event")

    def ask_slurm(self) -> None:
        """Let the login node hear of Slurm now what it would hear within 30 s."""
        if self.far and self.name == "ssh-slurm":
            Queue(self.far.state).look(0.1)

    def run(self, directory: RunDir) -> Run:
        self.ask_slurm()
        return self.store.observe(directory.run_id)

    def liveness(self, directory: RunDir) -> Liveness:
        self.ask_slurm()
        return self.backend.liveness(directory, self.run(directory).spec).liveness

    async def until_screen_shows(self, directory: RunDir, text: str) -> None:
        spec = self.run(directory).spec
        with anyio.fail_after(30):
            while not any(text in line for line in await self.backend.screen(spec, history=True)):  # noqa: ASYNC110
                await anyio.sleep(0.02)

    async def until_dead(self, directory: RunDir) -> None:
        await until_async(lambda: self.liveness(directory) is Liveness.DEAD, "the supervisor's death")
        pid = self.run(directory).at_start.get("supervisor_pid", 0)
        await until_async(lambda: processes.find_process(pid) is None, "the end of its process")

    def kill_supervisor(self, directory: RunDir, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.sandbox.supervisor(directory.run_id), number)

    def processes_of_runs(self) -> list[str]:
        return [p.command for p in self.sandbox.own_processes() if p.name in ("bash", "sleep")]

    def make_starts_fail(self) -> None:
        """Let the program that starts supervisors refuse."""
        if self.ray:
            self.ray.close()
            return
        tmux = self.sandbox.path / "bin" / ("sbatch" if "slurm" in self.name else "tmux")
        tmux.parent.mkdir(exist_ok=True)
        tmux.write_text("#!/bin/sh\necho no room >&2\nexit 1\n")
        tmux.chmod(0o755)
        self.monkeypatch.setenv("PATH", f"{tmux.parent}:{os.environ['PATH']}")


FAR = [pytest.param(name, marks=needs_sshd) for name in ("ssh", "ssh-slurm")]


@pytest.fixture(params=["tmux", *FAR, "slurm", "ray"])
def bench(request: pytest.FixtureRequest, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    far = request.getfixturevalue("far_host") if request.param.startswith("ssh") else None
    is_slurm, conf = "slurm" in request.param, os.environ.get("RUNWARD_SLURM_CONF")  # a real one, of `make engines`
    if far is not None:
        slurm = f"; export SLURM_CONF={conf}" if conf else ""
        far.write_hosts(prepare=f"export PATH={sandbox.path}/bin:{sandbox.path}/slurm:$PATH{slurm}")
    if is_slurm and conf:
        sandbox.environ["SLURM_CONF"] = conf
    elif is_slurm:
        fake_slurm.install(sandbox.path / "slurm")
        sandbox.environ["PATH"] = f"{sandbox.path}/slurm:{sandbox.environ['PATH']}"
        monkeypatch.setattr("mcp_server.record.slurm.queue.QUIET_S", 0.1)
        monkeypatch.setattr("mcp_server.record.slurm.queue.EXPECTED_S", 0.1)
    for name, value in sandbox.environ.items():
        monkeypatch.setenv(name, value)
    ray = FakeRay() if request.param == "ray" else None
    yield Bench(load_backend(request.param), sandbox, monkeypatch, far, request.param, ray)
    if ray is not None:
        sandbox.close()
        ray.end()


# --- from start to end


async def test_a_supervisor_is_alive_from_its_start_to_the_end_of_its_run(bench: Bench) -> None:
    directory = await bench.start("echo hello; while [ ! -e go ]; do sleep 0.02; done; exit 3")
    await until_async(lambda: bench.liveness(directory) is Liveness.ALIVE, "its supervisor")  # a far job is seen later
    assert bench.run(directory).state == "running"
    (bench.sandbox.path / "go").touch()
    await bench.until_dead(directory)
    run = bench.run(directory)
    assert (run.state, run.exit_code, run.abandoned) == ("failed", 3, False)
    assert bench.backend.find_leftovers(run) == []


async def test_a_prepared_run_is_pending_and_its_state_is_starting(bench: Bench) -> None:
    directory, _, _ = await bench.prepare("true")
    assert bench.liveness(directory) is Liveness.PENDING
    assert bench.run(directory).state == "starting"


async def test_the_environment_arrives_in_memory_and_leaves_no_file(bench: Bench) -> None:
    directory, spec, handover = await bench.prepare('[ "$GIFT" = s3cret ]')
    long_values = {f"LONG_{n}": "x" * 50_000 for n in range(4)}  # together more than a FIFO holds by default
    handover = Handover({**handover.env, "GIFT": "s3cret", **long_values}, {}, handover.umask)
    await bench.backend.start(directory, spec, handover, lambda: bench.first_event(directory))
    await bench.until_dead(directory)
    assert bench.run(directory).exit_code == 0
    assert not directory.handover.exists()
    files = [path.read_bytes() for path in bench.sandbox.path.rglob("*") if path.is_file()]
    assert not any(b"x" * 1000 in data for data in files)


async def test_a_record_can_be_read_while_the_run_lives_and_after_it(bench: Bench) -> None:
    directory = await bench.start("echo hello; while [ ! -e go ]; do sleep 0.02; done")
    record = bench.backend.open_record(directory)
    assert record.behind_s is None or record.behind_s < 60
    assert [event["kind"] for event in read_events(record.directory.events)] == ["started"]
    spec = bench.run(directory).spec
    await until_async(lambda: b"hello" in bench.backend.fetch_log(record.directory, spec, 1).read_bytes())
    (bench.sandbox.path / "go").touch()
    await bench.until_dead(directory)
    record = bench.backend.open_record(directory)
    assert read_events(record.directory.events)[-1]["kind"] == "ended"
    assert record.directory.exit(1).is_file()


# --- starts that fail


async def test_a_start_that_fails_leaves_nothing(bench: Bench) -> None:
    directory, spec, handover = await bench.prepare("touch ran")
    bench.make_starts_fail()
    with pytest.raises(LaunchFailed, match="Nothing was started"):
        await bench.backend.start(directory, spec, handover, lambda: bench.first_event(directory))
    assert not directory.path.exists()
    assert bench.store.list_runs() == []
    assert bench.processes_of_runs() == []
    assert not (bench.sandbox.path / "ran").exists()


async def test_a_supervisor_that_is_late_finds_a_stop_request(bench: Bench) -> None:
    if bench.name != "tmux":
        pytest.skip("the far host counts the seconds, and a scheduler's job may take days")
    await bench.until_dead(await bench.start("true"))  # now its program is in place, and the screens' server runs
    directory, spec, handover = await bench.prepare("sleep 300")
    bench.monkeypatch.setattr("mcp_server.backends.local._STARTED_WITHIN_S", 0.5)
    with pytest.raises(LaunchFailed, match="If it starts later, it stops at once"):
        await bench.backend.start(directory, spec, handover, anyio.sleep_forever)
    assert directory.stop.is_file()
    if bench.run(directory).at_start:  # it came in time; one that comes later reads the request before it starts
        with contextlib.suppress(ProcessLookupError):  # it has read the request meanwhile
            bench.kill_supervisor(directory, signal.SIGTERM)
    # Not only until it is dead: on a busy machine it has not come yet, or its handover is closed before it reads it.
    await until_async(lambda: bench.run(directory).state in ("killed", "failed"), "the end by a late supervisor")
    await bench.until_dead(directory)
    assert bench.processes_of_runs() == []


async def test_a_refused_launch_is_discarded_without_a_trace(bench: Bench) -> None:
    directory = await bench.start("true")
    spec = bench.run(directory).spec
    await bench.backend.discard(directory, spec)
    assert not directory.path.exists()
    with pytest.raises(ScreenNotFound):
        await bench.backend.screen(spec, history=False)


# --- stops


async def test_a_stop_request_ends_the_run(bench: Bench) -> None:
    directory = await bench.start("sleep 300")
    run = bench.run(directory)
    bench.backend.check_stoppable(run.spec)
    bench.backend.put_stop_request(directory, run.spec, {"by": "a test", "reason": "enough", "at": now()})
    reached = await bench.backend.request_stop(directory, run)
    assert reached or bench.liveness(directory) is Liveness.DEAD  # one that begins reads the request by itself
    await bench.until_dead(directory)
    ended = bench.run(directory)
    assert (ended.state, ended.abandoned) == ("killed", False)
    assert "enough" in ended.events[-1]["text"]
    assert bench.processes_of_runs() == []


async def test_a_stop_request_without_a_supervisor_reaches_nobody(bench: Bench) -> None:
    directory = await bench.start("true")
    await bench.until_dead(directory)
    assert not await bench.backend.request_stop(directory, bench.run(directory))


async def test_what_a_killed_supervisor_left_is_found_and_reaped_without_survivors(bench: Bench) -> None:
    directory = await bench.start(STUBBORN)
    await bench.until_screen_shows(directory, "ready")
    bench.kill_supervisor(directory)
    await bench.until_dead(directory)
    run = bench.run(directory)
    assert (run.state, run.abandoned) == ("lost", True)
    assert any(process.program for process in bench.backend.find_leftovers(run))
    result = await bench.backend.reap(directory, run)
    assert result.survivors == ()
    assert result.signals_sent == ("SIGINT", "SIGTERM", "SIGKILL")
    assert result.unsupervised
    assert bench.backend.find_leftovers(run) == []
    assert bench.processes_of_runs() == []


async def test_a_stuck_supervisor_is_reaped_with_its_run(bench: Bench) -> None:
    directory = await bench.start(STUBBORN)
    await bench.until_screen_shows(directory, "ready")
    bench.kill_supervisor(directory, signal.SIGSTOP)
    result = await bench.backend.reap(directory, bench.run(directory))
    assert (result.survivors, result.unsupervised) == ((), False)
    assert bench.liveness(directory) is Liveness.DEAD
    assert bench.processes_of_runs() == []


async def test_a_run_without_processes_is_reaped_without_a_signal(bench: Bench) -> None:
    directory = await bench.start("true")
    await bench.until_dead(directory)
    result = await bench.backend.reap(directory, bench.run(directory))
    assert (result.signals_sent, result.survivors) == ((), ())


async def test_a_reap_leaves_another_run_alone(bench: Bench) -> None:
    other = await bench.start("sleep 300")
    directory = await bench.start("sleep 300")
    bench.kill_supervisor(directory)
    await bench.until_dead(directory)
    await bench.backend.reap(directory, bench.run(directory))
    assert bench.liveness(other) is Liveness.ALIVE
    assert bench.run(other).state == "running"
    assert len([command for command in bench.processes_of_runs() if command == "sleep 300"]) == 1


# --- screens


async def test_a_screen_shows_the_output_also_of_an_ended_run(bench: Bench) -> None:
    directory = await bench.start("for i in $(seq 1 80); do echo line $i; done; while [ ! -e go ]; do sleep 0.02; done")
    await bench.until_screen_shows(directory, "line 80")
    spec = bench.run(directory).spec
    assert "line 1" in await bench.backend.screen(spec, history=True)
    assert "line 1" not in await bench.backend.screen(spec, history=False)
    (bench.sandbox.path / "go").touch()
    await bench.until_dead(directory)
    await bench.until_screen_shows(directory, "finished")


async def test_the_attach_command_shows_a_person_the_screen(bench: Bench) -> None:
    directory = await bench.start("echo hello; sleep 300")
    command = bench.backend.attach_command(bench.run(directory).spec)
    ours, theirs = pty.openpty()
    environ = {**bench.sandbox.environ, "TERM": "xterm"}
    client = subprocess.Popen(["bash", "-c", command], env=environ, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        shown, give_up_s = b"", time.monotonic() + 30
        while b"hello" not in shown and time.monotonic() < give_up_s:
            if select.select([ours], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):
                    shown += os.read(ours, 65536)
        assert b"hello" in shown
    finally:
        client.kill()
        client.wait()
        os.close(ours)


async def test_the_screens_of_the_oldest_ended_runs_are_closed(bench: Bench) -> None:
    if not bench.has_screens:
        pytest.skip("nothing is closed")
    directories = [await bench.start("true") for _ in range(3)]
    for directory in directories:
        await bench.until_dead(directory)
    specs = [bench.run(directory).spec for directory in directories]
    newest_first = specs[::-1]
    await bench.backend.close_old_screens(specs[0], 1, lambda _: newest_first)
    await bench.backend.screen(specs[2], history=False)
    for spec in specs[:2]:
        with pytest.raises(ScreenNotFound):
            await bench.backend.screen(spec, history=False)


async def test_where_few_screens_are_open_the_runs_are_not_read(bench: Bench) -> None:
    directory = await bench.start("true")

    def read_runs(_: Sequence[str]) -> list[RunSpec]:
        raise AssertionError("the runs were read")

    await bench.backend.close_old_screens(bench.run(directory).spec, 50, read_runs)


def test_the_program_that_a_backend_needs_is_named_where_it_is_missing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench.backend.check_usable()
    if bench.ray:
        pytest.skip("it needs no program")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Exception, match="A person should run"):
        bench.backend.check_usable()
