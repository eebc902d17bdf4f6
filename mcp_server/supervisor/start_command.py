"""Starts the command of an attempt: its script, its environment, and what identifies its processes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mcp_server.gpus.request import VISIBLE_DEVICES
from mcp_server.record.handover import Handover
from mcp_server.record.ray.ray_job import FAR_SIDE, is_mirrored, read_proof
from mcp_server.record.run_directory import RunDir, boot_id, has_expired, load_json
from mcp_server.record.script import AttemptInputs, attempt_arguments, render
from mcp_server.record.spec import RunSpec
from mcp_server.supervisor.control import ControlInputs, StoppedBeforeStart
from mcp_server.supervisor.guard import Work
from mcp_server.supervisor.terminal import pty
from mcp_server.system import processes
from mcp_server.system.files import find_archive, open_private
from mcp_server.system.own_process import supervisor_title


def start_command(
    control: ControlInputs,
    handover: Handover,
    number: int,
    inputs: AttemptInputs,
    gpu_environment: Mapping[str, str],
    lock_fds: Sequence[int],
) -> pty.Child:
    """Start the command as attempt ``number``. Its guard holds the locks of ``lock_fds`` as well.

    Raises:
        OSError, StoppedBeforeStart: it was not started.
    """
    rundir, spec = control.rundir, control.spec
    env = {**handover.env, **handover.secrets, "TERM": os.environ.get("TERM", "xterm-256color")}
    env |= select_job_environment(spec.backend, spec.backend_options, os.environ)
    env |= {"RUNWARD_RUN_ID": rundir.run_id, "RUNWARD_RUN_DIR": str(rundir.path)}
    env |= {"RUNWARD_HOME": str(rundir.path.parents[1])}  # for `runward wait` and `runward watch` in the command
    if spec.tmux_socket != RunSpec.tmux_socket:
        env["RUNWARD_TMUX_SOCKET"] = spec.tmux_socket
    env |= {"RUNWARD_ATTEMPT": str(number), **gpu_environment}
    if gpu_environment and VISIBLE_DEVICES not in gpu_environment:
        env.pop(VISIBLE_DEVICES, None)  # the launcher's would change what the indices in the command mean
    text, script = render(spec, inputs).encode(errors="surrogateescape"), rundir.script
    if number > 1 and not (script.exists() and script.read_bytes() == text):
        script = rundir.attempt(number) / script.name
    with open(script, "wb", opener=open_private) as file:
        file.write(text)
    bash = next((path for path in ("/bin/bash", "/usr/bin/bash") if Path(path).exists()), "bash")  # PATH may lack it
    argv = [bash, str(script), *attempt_arguments(spec, inputs)]
    if is_mirrored(spec):
        argv = make_mirror_command(rundir, number, argv)
    size = control.pane.size() if control.pane and control.pane.is_open else None
    stop = load_json(rundir.stop)
    if stop is not None and not stop.get("carried_out") and not has_expired(stop):
        raise StoppedBeforeStart
    records = str(rundir.exit(number)), str(rundir.guard_exit(number))
    work = Work(argv, env, str(rundir.path), handover.umask, *records, tuple(supervisor_title(rundir.run_id)))
    return pty.spawn(work, size, lock_fds, control.take_spare_guard())


def attempt_identity(child: pty.Child) -> dict[str, Any]:
    """Return the identity of an attempt's processes and its supervisor."""
    command, guard = _find_process(child.pid), _find_process(child.guard_pid)
    return {
        "pid": child.pid,
        "pid_started": command.started if command else None,
        "guard_pid": child.guard_pid,
        "guard_started": guard.started if guard else None,
        **supervisor_identity(),
    }


def supervisor_identity() -> dict[str, Any]:
    """Return the identity of this process."""
    supervisor = _find_process(os.getpid())
    return {
        "supervisor_pid": os.getpid(),
        "supervisor_started": supervisor.started if supervisor else None,
        "host": os.uname().nodename,
        "boot_id": boot_id(),
    }


def _find_process(pid: int) -> processes.Process | None:
    """Return a process; None also when no descriptor is left to look for it: the start is recorded in any case."""
    with contextlib.suppress(OSError):
        return processes.find_process(pid)
    return None


# With RAY_…: the cluster's address, and the job that a driver belongs to.
_DEVICES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "ROCR_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")
# Set by an environment of Ray that has packages of its own.
_RUNTIME_ENV = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYTHONPATH")


def select_job_environment(backend: str, options: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``environ``, that of a job, which the command gets besides what the launcher hands over.

    ``options`` are the ``backend_options`` of the run. Nothing for a run that is not a job of Ray.
    """
    if backend != "ray" or not options.get("shared_disk"):
        return {}
    runtime_env = options.get("runtime_env")
    names = set(_DEVICES)
    if isinstance(runtime_env, Mapping):
        names |= set(_RUNTIME_ENV)
        variables = runtime_env.get("env_vars")
        names |= set(map(str, variables)) if isinstance(variables, Mapping) else set()
    return {name: value for name, value in environ.items() if name in names or name.startswith("RAY_")}


def make_mirror_command(rundir: RunDir, number: int, argv: Sequence[str]) -> list[str]:
    """Return the program that has Ray run ``argv``, a script of bash and its arguments, as attempt ``number``."""
    program = find_archive() or Path(__file__).resolve().parent
    return [sys.executable, "-I", "-S", "-X", "utf8", str(program), "--ray-job", str(rundir.path), str(number), *argv]


def find_unproven_job(rundir: RunDir, spec: RunSpec, number: int) -> str:
    """Return the head whose job may go on, as nobody has heard of its end. Empty for every other run."""
    if not is_mirrored(spec) or read_proof(rundir, number) is not None:
        return ""
    return f"{FAR_SIDE}{spec.backend_options.get('address')}"
