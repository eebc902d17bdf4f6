"""Requeue: a scheduler starts the supervisor of a run again, after the former one died before the run's end.

The run goes on with a new attempt. These runs are not continued: one with an end in ``events.jsonl``, one whose stop
was carried out after the supervisor died, one whose newest attempt recorded that it finished, timed out, or was killed
other than by the recovery policy or the scheduler, and one with processes that still live, which a new attempt would
meet.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp_server.gpus.request import DEVICE_ORDER, VISIBLE_DEVICES
from mcp_server.record.events import ENDING, read_events, read_record, read_stop
from mcp_server.record.handover import Handover, HandoverError, base_environment, receive_handover
from mcp_server.record.run_directory import RunDir
from mcp_server.record.spec import RunSpec
from mcp_server.system import processes

# The scheduler may still be stopping the former job on this node.
_PROCESSES_PATIENCE_S, _PROCESSES_CHECK_S = 5.0, 0.1
_FINAL_STATES = ("finished", "killed", "timed_out")


@dataclass(frozen=True)
class FormerSupervision:
    """The record of a supervisor that died.

    ``attempt`` is the number of its newest attempt, 0 where it started none. ``params`` and ``environment`` are as its
    newest retry changed them, ``params`` None where there was no retry. ``attempt_ended``: it reported the end of
    that attempt, and died in the pause before the next one.
    """

    attempt: int = 0
    started_at: str = ""
    attempt_ended: bool = False
    params: dict[str, object] | None = None
    environment: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def take_environment(rundir: RunDir, spec: RunSpec) -> tuple[Handover, str]:
        """Return the environment of a requeued run, and a sentence about it that is empty for a launcher's handover.

        Without a launcher the command inherits the environment of this process, as far as a run inherits one.
        """
        if rundir.handover.exists():
            try:
                return receive_handover(rundir.handover, keep=spec.backend == "slurm"), ""
            except HandoverError:
                pass  # the launcher is gone
        secrets = {name: os.environ[name] for name in spec.secrets if name in os.environ}
        text = "No launcher hands over an environment, so the command gets that of this process."
        if missing := [name for name in spec.secrets if name not in secrets]:
            text += f" It lacks these secrets: {', '.join(missing)}."
        return Handover(base_environment(os.environ), secrets, processes.read_umask()), text


def read_former_supervision(rundir: RunDir) -> FormerSupervision | None:
    """Return where a run continues, or None if it must not continue."""
    events = read_events(rundir.events)
    stop = read_stop(rundir.stop) or {}
    number = rundir.newest_attempt()
    record = read_record(rundir.exit(number)) or {}
    if any(event["kind"] in ENDING for event in events) or stop.get("carried_out"):
        return None
    is_final = record.get("state") in _FINAL_STATES and record.get("stopped_by") not in ("policy", "scheduler")
    if is_final or _has_processes(rundir.run_id):
        return None
    starts = [event for event in events if event["kind"] == "started"]
    retries: list[Mapping[str, Any]] = [event for event in events if event["kind"] == "retrying"]
    retry = retries[-1] if retries else {}
    params, environment = retry.get("params"), retry.get("environment")
    variables = environment.items() if isinstance(environment, dict) else ()  # the leases ended with that supervisor
    return FormerSupervision(
        attempt=number,
        started_at=starts[-1].get("at", "") if starts else "",
        attempt_ended=bool(number) and retry.get("attempt") == number,
        params=dict(params) if isinstance(params, dict) else None,
        environment={str(name): str(value) for name, value in variables if name not in (VISIBLE_DEVICES, DEVICE_ORDER)},
    )


def _has_processes(run_id: str) -> bool:
    """Return whether processes of the run live after five seconds of patience."""
    until_s = time.monotonic() + _PROCESSES_PATIENCE_S
    own = processes.ancestors(os.getpid())
    while any(p.pid not in own for p in processes.find_by_variable("RUNWARD_RUN_ID", run_id)):
        if time.monotonic() >= until_s:
            return True
        time.sleep(_PROCESSES_CHECK_S)
    return False
