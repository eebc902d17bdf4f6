"""A run of this host as its record proves it, below the store: for the relay, and for supervisors of other runs."""

from __future__ import annotations

import time

from mcp_server.record.event_reader import read_new_events
from mcp_server.record.events import read_record, read_stop
from mcp_server.record.run_directory import RunDir, load_json
from mcp_server.record.run_processes import ThisHost
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Evidence, LivenessReport, Run, attempt_of, fold, posix


def read_run(directory: RunDir, host: ThisHost, supervisor: LivenessReport | None = None) -> Run:
    """Return a run as it is now. ``supervisor``: that of a run whose supervisor is on another host.

    Raises:
        OSError: its record cannot be read now.
    """
    spec = RunSpec.from_facts({**(load_json(directory.spec) or {}), "run_id": directory.run_id})
    if supervisor is None:
        supervisor = host.liveness(directory, spec)
    events = read_new_events(directory.events).events
    attempt = attempt_of(events)
    return fold(
        Evidence(
            spec,
            events,
            read_record(directory.exit(attempt)),
            read_record(directory.progress(attempt)),
            read_stop(directory.stop),
            supervisor,
            time.time() - posix(spec.created_at) if spec.created_at else 0.0,
            read_record(directory.guard_exit(attempt)),
        )
    )
