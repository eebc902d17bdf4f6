"""Starts what works beside a command: the copy of its code, the record of its files, the monitor of its GPUs."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from mcp_server.record.handover import Handover
from mcp_server.record.script import AttemptInputs
from mcp_server.supervisor.code.code_keeper import CodeKeeper, start_code_keeper
from mcp_server.supervisor.control import ControlInputs
from mcp_server.system import processes

if TYPE_CHECKING:
    from mcp_server.supervisor.gpus.gpu_monitor import GpuMonitor
    from mcp_server.supervisor.outputs.recorder import OutputRecorder


def keep_code_beside(
    control: ControlInputs,
    handover: Handover,
    number: int,
    arguments: list[str],
    changed: Mapping[str, str],
    command_pid: int,
) -> CodeKeeper:
    """Begin to keep what attempt ``number`` runs: a process of its own does, while the command runs."""
    spec, secrets = control.spec, handover.masked
    env = {**handover.env, **spec.env, **changed}

    def keep(on_done: Callable[[], None]) -> None:
        from mcp_server.supervisor.code.keep_code import KeptAttempt, keep_code  # noqa: PLC0415 - only that process

        keep_code(KeptAttempt(control.rundir, spec, number, arguments, env, secrets, command_pid), on_done)

    return start_code_keeper(keep)


def record_outputs_beside(
    control: ControlInputs,
    number: int,
    inputs: AttemptInputs,
    guard_pid: int,
    list_helpers: Callable[[], Collection[int | None]],
) -> OutputRecorder:
    """Begin to record which files attempt ``number`` writes. A thread asks ``list_helpers`` what is not the command's.

    Raises:
        OSError, RuntimeError: neither a descriptor nor a thread is left.
    """
    from mcp_server.supervisor.outputs.recorder import OutputRecorder  # noqa: PLC0415 - the command runs meanwhile

    def list_living() -> list[processes.Process]:
        living = processes.descendants_of_threads(os.getpid(), list_helpers())
        return [p for p in living if p.pid != guard_pid]

    command, cwd = control.spec.command, control.spec.cwd
    filled = inputs.fill(command) if isinstance(command, str) else [inputs.fill(word) for word in command]
    recorder = OutputRecorder(
        control.rundir.outputs(number), list_living, filled, cwd, inputs.params, control.look_for_stop
    )
    recorder.start()
    return recorder


def make_gpu_monitor(
    control: ControlInputs, number: int, uuids: tuple[str, ...], handover: Handover
) -> GpuMonitor | None:
    """Return the monitor of an attempt's GPUs, which is not started yet, or None for an attempt without GPUs."""
    if not uuids:
        return None
    from mcp_server.supervisor.gpus.gpu_monitor import GpuMonitor  # noqa: PLC0415 - 10 ms that most runs need not wait

    return GpuMonitor.for_attempt(control, number, uuids, handover.env)
