"""How an attempt's command is started: its script, its environment, and what tells its processes from all others."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_server.record.command_arguments import with_variables
from mcp_server.record.handover import Handover, StoppedBeforeStart
from mcp_server.record.run_directory import boot_id
from mcp_server.supervisor import terminal
from mcp_server.supervisor.control import Desk
from mcp_server.supervisor.gpu_allocation import Allotment
from mcp_server.system import processes

if TYPE_CHECKING:
    from mcp_server.supervisor.gpu_monitor import GpuWatch


def spawn(
    desk: Desk,
    handover: Handover,
    allotment: Allotment,
    number: int,
    arguments: Sequence[str],
    changed: Mapping[str, str],
) -> terminal.Child:
    """Start attempt ``number``.

    Raises:
        OSError, StoppedBeforeStart: it was not started.
    """
    rundir = desk.rundir
    env = {**handover.env, **handover.secrets, "TERM": os.environ.get("TERM", "xterm-256color")}
    env |= {"RUNWARD_RUN_ID": rundir.run_id, "RUNWARD_RUN_DIR": str(rundir.path)}
    env |= {"RUNWARD_ATTEMPT": str(number), **allotment.environment()}
    size = desk.pane.size() if desk.pane and desk.pane.open else None
    if handover.umask is not None:
        os.umask(handover.umask)
    try:
        if rundir.stop.exists():
            raise StoppedBeforeStart
        argv = [terminal.bash(), str(_script(desk, allotment, number, changed)), *arguments]
        return terminal.spawn(argv, env, str(rundir.path), size)
    finally:
        os.umask(0o077)


def watch_gpus(desk: Desk, number: int, uuids: Sequence[str], env: Mapping[str, str]) -> GpuWatch | NoWatch:
    """Return the watch of an attempt's GPUs; it starts nothing yet."""
    if not uuids:
        return NoWatch()
    from mcp_server.supervisor.gpu_monitor import GpuWatch  # noqa: PLC0415 - takes 10 ms, which most runs need not wait

    return GpuWatch.of(desk, number, uuids, env)


class NoWatch:
    """The watch of an attempt that has no GPUs of its own."""

    fd = pid = due_s = None

    def start(self) -> None:
        """Do nothing, as all of these."""

    def read(self) -> None:
        """See above."""

    def tick(self, now_s: float) -> None:
        """See above."""

    def close(self) -> None:
        """See above."""

    def figures(self) -> dict[str, dict[str, float]]:
        """There are none."""
        return {}

    def idle_s(self) -> float | None:
        """Nobody knows."""
        return None


def _script(desk: Desk, allotment: Allotment, number: int, changed: Mapping[str, str]) -> Path:
    """Return the run's script; one of the attempt's own if it has other variables, or names its GPUs."""
    rundir = desk.rundir
    given = rundir.script.read_text(encoding="utf-8", errors="surrogateescape")
    text = allotment.fill(with_variables(given, desk.spec["cwd"], changed) if changed else given)
    if text == given:
        return rundir.script
    path = rundir.attempt(number) / rundir.script.name
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    return path


def identity(child: terminal.Child) -> dict[str, Any]:
    """Return what tells an attempt's processes apart from all others."""
    command = processes.find_process(child.pid)
    return {
        "pid": child.pid,
        "pid_started": command.started if command else None,
        "guard_pid": child.guard_pid,
        **supervisor(),
    }


def supervisor() -> dict[str, Any]:
    """Return what tells this process apart from all others."""
    myself = processes.find_process(os.getpid())
    return {
        "supervisor_pid": os.getpid(),
        "supervisor_started": myself.started if myself else None,
        "host": socket.gethostname(),
        "boot_id": boot_id(),
    }
