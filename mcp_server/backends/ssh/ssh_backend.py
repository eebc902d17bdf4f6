"""Supervisors on other hosts over ssh: the truth is in the run directories there, and this host keeps a mirror."""

import contextlib
import json
import os
import shlex
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import anyio
import anyio.to_thread
from typing_extensions import override

from mcp_server.backends.base import Backend, GpuState, ListEnded, Record
from mcp_server.backends.ssh import far_files
from mcp_server.backends.ssh.mirror import LAUNCHING
from mcp_server.backends.ssh.ssh_bootstrap import read_ssh_settings
from mcp_server.backends.ssh.ssh_channel import Channel, channel_of, settle_launch
from mcp_server.errors import HostUnreachable, LaunchFailed, LaunchUnanswered, RunNotFound, RunwardError, ScreenNotFound
from mcp_server.record.handover import Handover
from mcp_server.record.relay_channel import MOST_CONTENT_BYTES
from mcp_server.record.run_directory import RunDir, write_json
from mcp_server.record.run_processes import ReapResult, RunProcess
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import LivenessReport, Run
from mcp_server.system.files import whole_directory
from mcp_server.system.lock_files import take_lock
from mcp_server.system.tmux import attach_command as tmux_attach_command

T = TypeVar("T")

_ASK_AGAIN_S = 0.2
_MIRRORED_WITHIN_S = 10.0
_MOST_LOG_BYTES, _END_BYTES = 64 * 2**20, MOST_CONTENT_BYTES  # of a log at once; beyond that, only its end
_LOG_PATIENCE_S, _LOG_AGAIN_S = 10.0, 2.0  # a connection that was found broken is made again at once
_MOST_SIGNALS, _PROGRAM_CHARS = 20, 200  # of what a host says that it stopped


class SshBackend(Backend):
    """Runs supervisors on hosts that hosts.toml reaches by ssh."""

    leases_gpus = True
    launched_within_s, interrupted_within_s, reaped_within_s = 30.0, 30.0, 120.0

    def __init__(self) -> None:
        self._markers: dict[str, int] = {}  # locks of launches that this process has begun, by run id

    @override
    def check_usable(self) -> None:
        if shutil.which("ssh") is None:
            raise RunwardError(
                "ssh is not installed.",
                "Nothing was started.",
                "A person should run: sudo apt-get install openssh-client",
            )

    @override
    def complete_spec(self, spec: RunSpec, environ: Mapping[str, str]) -> RunSpec:
        del environ
        hello = _channel(spec).hello
        session = spec.run_id if hello.get("tmux") else ""
        socket = str(hello.get("tmux_socket") or "default")
        return replace(spec, session=session, tmux_socket=socket, host=Path(spec.mirror).name)

    @override
    def create(self, directory: RunDir, spec: RunSpec) -> None:
        """Make the run known here before its host hears of it, so that a launch whose answer is lost can be found."""
        _channel(spec).mirror.create()
        with whole_directory(directory.path) as new:
            marker = take_lock(new / LAUNCHING)
            write_json(RunDir(new).spec, spec.facts())
        if marker is not None:
            self._markers[spec.run_id] = marker

    @override
    async def start(
        self, directory: RunDir, spec: RunSpec, handover: Handover, first_event: Callable[[], Awaitable[None]]
    ) -> None:
        """Let the host start the supervisor, and await its first event in the mirror.

        Where the connection breaks meanwhile, the launch is asked for again: the host starts a run id at most once.

        Raises:
            LaunchFailed, HostUnreachable: nothing runs.
            LaunchUnanswered: whether it runs is unknown.
        """
        words = {"spec": spec.facts(), "handover": json.loads(handover.encode()), **self.list_launch_words(spec)}
        await self.launch_there(_channel(spec), "launch", [directory], words, self.launched_within_s)
        with anyio.move_on_after(_MIRRORED_WITHIN_S):
            await first_event()

    async def launch_there(
        self, channel: Channel, name: str, directories: Sequence[RunDir], words: Mapping[str, Any], within_s: float
    ) -> None:
        """Ask for the launch of prepared runs by the request ``name``."""
        markers = [self._markers.pop(directory.run_id) for directory in directories]
        try:
            await _in_thread(partial(_launch, channel, name, directories, words, within_s))
            for directory in directories:
                await _in_thread(partial((directory.path / LAUNCHING).unlink, missing_ok=True))
        finally:
            for marker in markers:
                os.close(marker)

    def list_launch_words(self, spec: RunSpec) -> dict[str, Any]:
        """Return what a launch says beside spec and handover."""
        del spec
        return {}

    @override
    async def discard(self, directory: RunDir, spec: RunSpec) -> None:
        if (marker := self._markers.pop(spec.run_id, None)) is not None:  # it was never launched
            os.close(marker)
        with contextlib.suppress(RunwardError, OSError):
            await _ask(spec, "discard", run=spec.run_id)
        await _in_thread(partial(shutil.rmtree, directory.path, ignore_errors=True))

    @override
    async def settle_launch(self, directory: RunDir, spec: RunSpec) -> bool:
        return await _in_thread(partial(settle_launch, _channel(spec), directory.run_id))

    @override
    def open_record(self, directory: RunDir) -> Record:
        channel = channel_of(directory.path.parents[1])
        return Record(directory, channel.behind_s)

    @override
    def liveness(self, directory: RunDir, spec: RunSpec) -> LivenessReport:
        return _channel(spec).report_liveness(directory.run_id)

    @override
    def check_stoppable(self, spec: RunSpec) -> None:
        try:
            _channel(spec).open()
        except HostUnreachable as error:
            raise HostUnreachable(
                error.host, error.why, "Nothing was stopped: what runs there goes on.", error.remedy
            ) from error

    @override
    def put_stop_request(self, directory: RunDir, spec: RunSpec, request: Mapping[str, Any] | None) -> None:
        _channel(spec).ask("stop_request", run=directory.run_id, request=request)

    @override
    async def request_stop(self, directory: RunDir, run: Run) -> bool:
        answer, _ = await _ask(run.spec, "interrupt", timeout_s=self.interrupted_within_s, run=directory.run_id)
        return bool(answer["reached"])

    @override
    async def reap(self, directory: RunDir, run: Run) -> ReapResult:
        answer, _ = await _ask(run.spec, "reap", timeout_s=self.reaped_within_s, run=directory.run_id)
        return ReapResult(
            tuple(answer["signals_sent"][:_MOST_SIGNALS]),
            tuple(RunProcess(pid, program[:_PROGRAM_CHARS]) for pid, program in answer["survivors"]),
            bool(answer["unsupervised"]),
        )

    @override
    def find_leftovers(self, run: Run) -> list[RunProcess]:
        if not run.abandoned or run.started_at is None:
            return []
        with contextlib.suppress(HostUnreachable, RunNotFound):
            answer, _ = _channel(run.spec).ask("leftovers", run=run.run_id)
            return [RunProcess(pid, program) for pid, program in answer["processes"]]
        return []

    @override
    async def screen(self, spec: RunSpec, *, history: bool) -> list[str]:
        try:
            _, data = await _ask(spec, "screen", run=spec.run_id, history=history)
        except RunNotFound as error:
            raise ScreenNotFound(f"{spec.host} has no run {spec.run_id}.") from error
        return data.decode(errors="replace").splitlines()

    @override
    def attach_command(self, spec: RunSpec) -> str:
        alias = shlex.quote(read_ssh_settings(Path(spec.mirror)).alias)
        if not spec.session:
            return f"ssh {alias} {shlex.quote(_follow_command(spec, 1))}"
        return f"ssh -t {alias} {shlex.quote(tmux_attach_command(spec.session, spec.tmux_socket))}"

    @override
    def attach(self, directory: RunDir, run: Run) -> NoReturn:
        del directory
        self.check_usable()
        os.execvp("sh", ["sh", "-c", f"exec {self.show_command(run)}"])

    def show_command(self, run: Run) -> str:
        """Return the command that ``attach`` becomes."""
        spec = run.spec
        show = f"exec {_follow_command(spec, run.attempt)}"
        if spec.session:
            show = f"{tmux_attach_command(spec.session, spec.tmux_socket)} || {show}"
        alias = shlex.quote(read_ssh_settings(Path(spec.mirror)).alias)
        return f"ssh -t {alias} {shlex.quote(f'exec /bin/sh -c {shlex.quote(show)}')}"

    @override
    async def close_old_screens(self, spec: RunSpec, keep: int, ended: ListEnded) -> None:
        answer, _ = await _ask(spec, "sessions", socket=spec.tmux_socket)
        sessions = [str(session) for session in answer["sessions"]]
        if len(sessions) <= keep:
            return
        own = [one.run_id for one in await _in_thread(partial(ended, sessions)) if one.mirror == spec.mirror]
        if own[keep:]:
            await _ask(spec, "close_screens", ended=own[keep:])

    @override
    def query_gpus(self, spec: RunSpec, env: Mapping[str, str], *, near: bool = False, query: bool = True) -> GpuState:
        gpu_env = {name: value for name, value in env.items() if name.startswith(("CUDA_", "NVIDIA_", "LD_LIBRARY"))}
        return query_host_gpus(Path(spec.mirror), env=gpu_env, near=near, query=query)

    @override
    def explain_old_log(self, directory: RunDir, run: Run, attempt: int) -> str:
        return far_files.explain_old_log(directory, attempt)

    @override
    def fetch_record(self, directory: RunDir, run: Run) -> None:
        self.fetch_log(directory, run.spec, run.attempt)
        far_files.fetch_record_files(directory, run.attempt)

    @override
    def fetch_log(self, directory: RunDir, spec: RunSpec, attempt: int) -> Path:
        """Bring the mirrored log up to date, as far as the host answers; only what is new crosses the wire.

        A log that has grown by more than 64 MiB gives only its end, in a file of its own.
        """
        log = directory.log(attempt)
        if (directory.path / LAUNCHING).exists() or _channel(spec).is_away():
            return log
        with contextlib.suppress(OSError):
            for patience_s in (_LOG_PATIENCE_S, _LOG_AGAIN_S):
                with contextlib.suppress(HostUnreachable):
                    return _fetch_log(_channel(spec), directory, attempt, log, patience_s)
        return log


def query_host_gpus(
    mirror: Path,
    *,
    env: Mapping[str, str] | None = None,
    near: bool = False,
    query: bool = True,
    since_s: float | None = None,
) -> GpuState:
    """Return the GPUs of the host whose mirror is ``mirror``, and who holds them and its cpu slots."""
    answer, _ = channel_of(mirror).ask("gpus", env=dict(env or {}), near=near, query=query, since_s=since_s)
    return GpuState(answer["snapshot"], answer["holders"])


def _follow_command(spec: RunSpec, attempt: int) -> str:
    state = Path(str(_channel(spec).hello.get("state", "")))
    return f"tail -n 200 -F {shlex.quote(str(RunDir(state / 'runs' / spec.run_id).log(max(1, attempt))))}"


def _channel(spec: RunSpec) -> Channel:
    return channel_of(Path(spec.mirror))


async def _ask(spec: RunSpec, name: str, **words: Any) -> tuple[dict[str, Any], bytes]:
    return await _in_thread(partial(_channel(spec).ask, name, **words))


async def _in_thread(act: Callable[[], T]) -> T:
    """Return ``act()``: it waits for another host, and is left alone where its caller has gone."""
    return await anyio.to_thread.run_sync(act, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))


def _launch(
    channel: Channel, name: str, directories: Sequence[RunDir], words: Mapping[str, Any], within_s: float
) -> None:
    """Ask for a launch by the request ``name``, again where the answer is lost, for ``within_s``."""
    try:
        channel.open()
    except HostUnreachable as error:
        _remove(directories)
        raise HostUnreachable(error.host, error.why, "Nothing was started.", error.remedy) from error
    try:
        give_up_s = time.monotonic() + within_s
        while True:
            try:
                channel.ask(name, timeout_s=within_s, **words)
            except HostUnreachable:
                if time.monotonic() >= give_up_s:
                    raise
                time.sleep(_ASK_AGAIN_S)
            else:
                return
    except HostUnreachable as error:
        raise LaunchUnanswered(channel.name, directories[0].run_id, error.why) from error
    except LaunchFailed as error:
        if "Nothing was started" in error.state:
            _remove(directories)
        raise LaunchFailed(f"{channel.name}: {error.cause}", error.state, error.remedy) from error


def _remove(directories: Sequence[RunDir]) -> None:
    for directory in directories:
        shutil.rmtree(directory.path, ignore_errors=True)


def _fetch_log(channel: Channel, directory: RunDir, attempt: int, log: Path, patience_s: float) -> Path:
    path = f"runs/{directory.run_id}/attempts/{attempt}/output.log"
    ask = partial(channel.ask, "read", patience_s=patience_s, path=path)
    have = log.stat().st_size if log.exists() else 0
    if channel.has_whole_log(directory.run_id, attempt, have):
        return log
    goal: int | None = None  # a log that grows faster than it comes is not followed
    while True:
        answer, data = ask(offset=have, count=MOST_CONTENT_BYTES)
        size, mtime_ns = answer["size"], answer["mtime_ns"]
        if size - have > _MOST_LOG_BYTES:
            end = log.with_name("output.end.log")
            answer, data = ask(offset=-_END_BYTES, count=_END_BYTES)
            end.write_bytes(data.partition(b"\n")[2])
            os.utime(end, ns=(mtime_ns, mtime_ns))
            return end
        channel.mirror.write_log(log, data, have, mtime_ns)
        goal = size if goal is None else goal
        is_short = len(data) < min(MOST_CONTENT_BYTES, size - have)
        have += len(data)
        if is_short or not data or have >= goal:
            return log
