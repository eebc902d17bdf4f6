"""What Slurm says of services that are its jobs, on whatever node they are.

A thread asks: a controller that does not answer holds up no output and no stop.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from mcp_server.record.run_directory import RunDir
from mcp_server.record.slurm.queue import Queue
from mcp_server.record.slurm.watch import JobWatch
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import LivenessReport

_JUDGE_S = 1.0  # between two looks; Slurm itself is asked once in 30 s for all runs of the state directory


class ServiceJobs:
    """The jobs of services, which are runs of the state directory ``home``."""

    def __init__(self, home: Path) -> None:
        self._watch = JobWatch(Queue(home))
        self._reports: dict[str, LivenessReport] = {}
        self._watched: dict[str, tuple[RunDir, RunSpec]] = {}
        self._is_more = threading.Event()
        threading.Thread(target=self._judge_all, daemon=True).start()

    def report(self, directory: RunDir, spec: RunSpec) -> LivenessReport | None:
        """Return what record and Slurm say of a service as of a second ago, None before the first answer."""
        if directory.run_id not in self._watched:
            self._watched[directory.run_id] = (directory, spec)
            self._is_more.set()
        return self._reports.get(directory.run_id)

    def _judge_all(self) -> None:
        while True:
            for run_id, (directory, spec) in list(self._watched.items()):
                with contextlib.suppress(OSError):  # the disk does not answer now
                    self._reports[run_id] = self._watch.liveness(directory, spec)
            self._is_more.wait(_JUDGE_S)
            self._is_more.clear()
