"""Starts a supervisor on this host for a server elsewhere, at most once for each run id.

Launches raise LaunchFailed where nothing runs, or where that is unknown, which the message says.

A launch whose answer was lost is looked up by its run id: its directory is there, or it is withdrawn for good. Both are
decided under one lock, so that a launch that is still under way cannot come after its withdrawal.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mcp_server.errors import LaunchFailed, RunNotFound
from mcp_server.gpus.leases import lease_directory
from mcp_server.record.codec import decode
from mcp_server.record.events import read_new_events
from mcp_server.record.handover import Handover, base_environment, prepare_directory
from mcp_server.record.results.experiment_log import ResultDirUnusable, append_launch
from mcp_server.record.run_directory import RunDir, boot_id, forbid_launch, path_below
from mcp_server.record.spec import RunSpec
from mcp_server.relay.slurm_jobs import SlurmJobs
from mcp_server.system import processes
from mcp_server.system.files import find_archive
from mcp_server.system.lock_files import hold_lock, may_be_locked
from mcp_server.system.starter_client import start_supervisor
from mcp_server.system.time_bounds import wait_longer

_STARTED_WITHIN_S = 15.0
_POLL_S = 0.005
_F_SETPIPE_SZ = 1031
_SCOPE_CHECK_S = 3.0


def launch(state: State, facts: dict[str, Any], handover: dict[str, Any]) -> dict[str, Any]:
    """Start the run of ``facts``, a spec, unless it was started before, and return whether it was."""
    spec = complete_spec(RunSpec.from_facts(facts))
    directory = RunDir(state.runs / spec.run_id)

    def create() -> None:
        kept = {"backend": facts["backend"]} if "backend" in facts else {}
        try:
            prepare_directory(directory, {**spec.facts(), **kept})
        except OSError as error:
            raise _refuse(state, error) from error

    values = _make_once(state, directory, spec, handover, create)
    if values is not None:
        _start(directory, spec, values)
    return {"existed": values is None}


def launch_job(
    state: State, jobs: SlurmJobs, facts: dict[str, Any], options: dict[str, str], handover: dict[str, Any]
) -> dict[str, Any]:
    """Hand the run of ``facts`` in to Slurm, unless that was done before, and return whether it was."""
    spec = replace(complete_spec(RunSpec.from_facts(facts)), session="")
    directory = RunDir(state.runs / spec.run_id)
    try:
        jobs.check_usable()
    except LaunchFailed:
        if not directory.path.exists():  # else it was handed in before
            raise

    def create() -> None:
        try:
            jobs.prepare(directory, spec.facts(), options)
        except OSError as error:
            raise _refuse(state, error) from error

    while (values := _make_once(state, directory, spec, handover, create)) is None:
        if jobs.await_hand_in(directory, spec):
            return {"existed": True}
    jobs.hand_in(directory, spec, options, values)
    return {"existed": False}


def launch_array(
    state: State,
    jobs: SlurmJobs,
    runs: list[dict[str, Any]],
    options: dict[str, str],
    name: str,
    most_at_once: int | None,
) -> dict[str, Any]:
    """Hand runs in to Slurm as one array, unless that was done before, and return whether it was."""
    specs = [replace(complete_spec(RunSpec.from_facts(each["spec"])), session="") for each in runs]
    directories = [RunDir(state.runs / spec.run_id) for spec in specs]
    try:
        jobs.check_usable()
    except LaunchFailed:
        if not directories[0].path.exists():  # else it was handed in before
            raise
    while not _make_all_once(state, jobs, specs, directories, options):
        if jobs.await_hand_in(directories[0], specs[0]):
            return {"existed": True}
    handovers = [_complete_handover(each["handover"]) for each in runs]
    jobs.hand_in_array(list(zip(directories, handovers)), options, name, most_at_once)
    return {"existed": False}


def _make_all_once(
    state: State, jobs: SlurmJobs, specs: list[RunSpec], directories: list[RunDir], options: dict[str, str]
) -> bool:
    """Make the directories of an array's runs and return whether they were not there."""
    with hold_lock(state.launch_lock):
        if all(directory.path.exists() for directory in directories):
            return False
        # Some of them are of a relay that died here: nothing is handed in before all are made.
        if withdrawn := [spec.run_id for spec in specs if (state.withdrawn / spec.run_id).exists()]:
            raise LaunchFailed(f"{withdrawn[0]} was withdrawn.", "Nothing was started.")
        try:
            for spec, directory in zip(specs, directories):
                shutil.rmtree(directory.path, ignore_errors=True)
                jobs.prepare(directory, spec.facts(), options)
        except OSError as error:
            for directory in directories:
                shutil.rmtree(directory.path, ignore_errors=True)
            raise _refuse(state, error) from error
    return True


def _make_once(
    state: State, directory: RunDir, spec: RunSpec, handover: dict[str, Any], create: Callable[[], None]
) -> Handover | None:
    """Make the directory of a run by ``create`` and return its handover; None where it is there."""
    with hold_lock(state.launch_lock):
        if directory.path.exists():
            return None
        if (state.withdrawn / spec.run_id).exists():
            raise LaunchFailed(f"{spec.run_id} was withdrawn.", "Nothing was started.")
        values = _complete_handover(handover)
        if spec.result_dir is not None:
            try:
                append_launch(Path(spec.result_dir), spec, values.masked)
            except ResultDirUnusable as error:
                raise LaunchFailed(error.cause, error.state, error.remedy) from error
        create()
    return values


def withdraw(state: State, run_id: str) -> bool:
    """Make sure that a run which is not there is never started and return whether it is not there."""
    with hold_lock(state.launch_lock):
        if (state.runs / run_id).exists():
            return False
        (state.withdrawn / run_id).touch(mode=0o600)
        return True


def complete_spec(spec: RunSpec) -> RunSpec:
    """Return ``spec`` with what only this host knows."""
    has_tmux = shutil.which("tmux") is not None
    return replace(
        spec,
        host=os.uname().nodename,
        boot_id=boot_id(),
        leases=str(lease_directory(os.environ)),
        cpu_slots=spec.cpu_slots or os.cpu_count() or 1,
        session=spec.run_id if has_tmux else "",
        tmux_socket=os.environ.get("RUNWARD_TMUX_SOCKET") or "default",
    )


def _refuse(state: State, error: OSError) -> LaunchFailed:
    remedy = "Have a person free space there, or name another directory as state of this host in hosts.toml."
    return LaunchFailed(f"{state.path}: {error.strerror}.", "Nothing was started.", remedy)


def _complete_handover(values: dict[str, Any]) -> Handover:
    """Return the handover with the environment of this host below what the server sends."""
    handover = decode(Handover, values)
    return replace(handover, env={**base_environment(os.environ), **handover.env}, umask=processes.read_umask())


def _start(directory: RunDir, spec: RunSpec, handover: Handover) -> None:
    fifo = os.open(directory.handover, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        argv = [sys.executable, "-I", "-S", "-X", "utf8", str(_program()), str(directory.path)]
        try:
            if spec.session:
                start_supervisor(spec.session, argv, server=spec.tmux_socket)
            else:
                _start_without_tmux(argv)
        except (LaunchFailed, OSError) as error:
            if not may_be_locked(directory.lock):
                shutil.rmtree(directory.path, ignore_errors=True)
                raise LaunchFailed(str(getattr(error, "cause", error)), "Nothing was started.") from error
        within_s = wait_longer(_STARTED_WITHIN_S)
        give_up_s = time.monotonic() + within_s
        _write_handover(fifo, handover.encode(), give_up_s)
        while time.monotonic() < give_up_s:
            if read_new_events(directory.events).events:
                return
            time.sleep(_POLL_S)
        with contextlib.suppress(OSError):
            forbid_launch(directory, "it did not start in time")
    finally:
        os.close(fifo)
    raise LaunchFailed(
        f"The supervisor of {spec.run_id} did not start its command within {within_s:.0f} s.",
        "If it starts later, it stops at once.",
        "Try again; runward doctor says what is wrong.",
    )


def _program() -> Path:
    """Return what a supervisor runs from: the archive that this process runs from."""
    return find_archive() or Path(__file__).resolve().parents[1] / "supervisor"


def _start_without_tmux(argv: list[str]) -> None:
    """Start a process that outlives this login: in a scope of the user's systemd where there is one."""
    scope = ["systemd-run", "--user", "--scope", "--quiet", "--"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        devnull = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        if subprocess.run([*scope, "true"], check=False, timeout=_SCOPE_CHECK_S, **devnull).returncode == 0:  # type: ignore[call-overload]
            argv = [*scope, *argv]
    supervisor = subprocess.Popen(
        argv,
        env={**base_environment(os.environ), "TERM": "xterm-256color"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    threading.Thread(target=supervisor.wait, daemon=True).start()  # no process remains as a zombie


def _write_handover(fifo: int, data: bytes, give_up_s: float) -> None:
    """Write ``data`` into the FIFO, which holds 64 KiB unless its size is raised."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(fifo, _F_SETPIPE_SZ, max(65536, len(data)))
    while data and time.monotonic() < give_up_s:
        try:
            data = data[os.write(fifo, data) :]
        except OSError as error:  # noqa: PERF203 - a full FIFO is tried again
            if error.errno != errno.EAGAIN:
                raise
            time.sleep(_POLL_S)


@dataclass(frozen=True)
class State:
    """The state directory."""

    path: Path

    runs = path_below("runs")  # one directory per run
    launch_lock = path_below("launch.lock")  # held while it is decided whether a run is launched or withdrawn
    withdrawn = path_below("withdrawn")  # one empty file for each run that is never started

    def create(self) -> None:
        """Create the directories, with access for their owner alone."""
        for path in (self.path, self.runs, self.withdrawn):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.chmod(0o700)

    def read_id(self) -> str:
        """Return what distinguishes this directory from every other, also from one at its path; empty if unknown."""
        file, part = self.path / "id", self.path / f".id.{os.getpid()}"
        with contextlib.suppress(OSError):
            if not file.exists():
                part.write_text(os.urandom(8).hex())
                with contextlib.suppress(FileExistsError):  # another relay was faster
                    os.link(part, file)
        with contextlib.suppress(OSError):
            part.unlink()
        with contextlib.suppress(OSError, ValueError):
            return file.read_text(encoding="ascii")[:32]
        return ""

    def directory(self, run_id: str) -> RunDir:
        """Return the directory of a run, or raise RunNotFound."""
        directory = RunDir(self.runs / run_id)
        if "/" in run_id or not directory.spec.is_file():
            raise RunNotFound(run_id, [])
        return directory
