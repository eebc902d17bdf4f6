"""Runs as jobs of the Slurm that this host is a login node of: handed in at most once, judged, and stopped.

What Slurm says is asked for by a thread of its own, once for all jobs: a controller that does not answer holds up no
news of runs.
"""

from __future__ import annotations

import contextlib
import platform
import shlex
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mcp_server.errors import LaunchFailed
from mcp_server.record.handover import Handover
from mcp_server.record.run_directory import RunDir
from mcp_server.record.run_processes import REAP_STEP_S, Reaping, ReapResult, ThisHost
from mcp_server.record.slurm import job, queue
from mcp_server.record.slurm.commands import SlurmError, find_missing, list_node_hosts
from mcp_server.record.slurm.job_watch import HANDED_IN_WITHIN_S, JobWatch, job_of
from mcp_server.record.slurm.queue import Queue
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Liveness, LivenessReport, Run
from mcp_server.system.files import find_archive, is_shared_filesystem

BACKEND = "slurm"
_JUDGE_S = 1.0  # between two looks at all jobs; Slurm itself is asked less often
_ASKED_LATELY_S = 30.0  # a run that nobody watches any more is not judged
_POLL_S = 0.05
_PROGRAM = "supervisor.pyz"


class SlurmJobs:
    """The jobs of one state directory, which the nodes share. All methods may be called by any thread.

    Raises:
        LaunchFailed: Slurm, or its nodes, refuse or cannot be used, and nothing is left of the run; or Slurm did not
            answer, which the message says.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._watch = JobWatch(Queue(home))
        self._reports: dict[str, LivenessReport] = {}
        self._watched: dict[str, tuple[RunDir, RunSpec, float]] = {}
        self._lock, self._judging = threading.Lock(), threading.Lock()
        self._thread: threading.Thread | None = None
        self._sees_disk = False

    # --- what is known

    def report(self, directory: RunDir, spec: RunSpec) -> LivenessReport:
        """Return what is known of a run's supervisor now, without asking Slurm, which is asked from now on."""
        report = self._watch.judge_by_last_answer(directory, spec) or self._reports.get(directory.run_id)
        if report is None or report.liveness is not Liveness.DEAD:
            self._begin_to_watch(directory, spec)
        if report is not None:
            return report
        if directory.events.exists():
            reason = "Slurm has not been asked yet: this is the last known state."
            return LivenessReport(Liveness.UNKNOWN, reason, job_id=job_of(directory))
        return LivenessReport(Liveness.PENDING, job_id=job_of(directory))

    def refresh(self, directory: RunDir, spec: RunSpec) -> None:
        """Ask Slurm for a run, as far as it answers: something was done to its job."""
        self._watch.queue.look(queue.EXPECTED_S)
        self._judge(directory, spec)

    def _judge(self, directory: RunDir, spec: RunSpec) -> None:
        with self._judging, contextlib.suppress(OSError):
            if directory.path.is_dir():
                self._reports[directory.run_id] = self._watch.liveness(directory, spec)

    def _begin_to_watch(self, directory: RunDir, spec: RunSpec) -> None:
        with self._lock:
            self._watched[directory.run_id] = (directory, spec, time.monotonic())
            if self._thread is None:
                self._thread = threading.Thread(target=self._judge_all, daemon=True)
                self._thread.start()

    def _judge_all(self) -> None:
        while True:
            with self._lock:
                watched = dict(self._watched)
            for run_id, (directory, spec, asked_s) in watched.items():
                self._judge(directory, spec)
                report, is_late = self._reports.get(run_id), time.monotonic() - asked_s > _ASKED_LATELY_S
                if is_late or (report is not None and report.liveness is Liveness.DEAD):
                    with self._lock:
                        self._watched.pop(run_id, None)
            time.sleep(_JUDGE_S)

    # --- launches

    def check_usable(self) -> None:
        """Raise LaunchFailed where Slurm's programs are missing, or its nodes do not see the state directory."""
        if missing := find_missing():
            raise LaunchFailed(
                f"Slurm is not there: {', '.join(missing)} not found.",
                "Nothing was started.",
                "Name a login node as host. If it is one, a person should let prepare of its table in hosts.toml "
                'load them, e.g. prepare = "module load slurm".',
            )
        self._sees_disk = self._sees_disk or is_shared_filesystem(self._home)
        if self._sees_disk:
            return
        with contextlib.suppress(SlurmError):  # a Slurm that does not answer refuses the job itself
            here = platform.node()
            if others := sorted(list_node_hosts() - {here, here.partition(".")[0]}):
                raise LaunchFailed(
                    f"{self._home} is on a disk of {here}, which {others[0]} and other nodes do not see.",
                    "Nothing was started.",
                    "A person should write into its table in hosts.toml: state = a directory that login and compute "
                    "nodes share.",
                )
            self._sees_disk = True

    def preview(self, run_id: str, options: Mapping[str, str]) -> str:
        """Return the batch script of a run, with Slurm's estimate of its start."""
        self.check_usable()
        return job.preview(*self._render(self._home / "runs" / run_id, options))

    def prepare(self, directory: RunDir, facts: Mapping[str, Any], options: Mapping[str, str]) -> None:
        """Make a run's directory appear whole, with its batch script and its program."""
        archive = find_archive()
        script, _ = self._render(directory.path, options)
        job.make_directory(directory, facts, script, {} if archive is None else {_PROGRAM: archive})

    def hand_in(self, directory: RunDir, spec: RunSpec, options: Mapping[str, str], handover: Handover) -> None:
        """Hand a prepared run in."""
        job.hand_in(directory, handover, self._render(directory.path, options)[1])
        self.refresh(directory, spec)

    def preview_array(self, name: str, count: int, options: Mapping[str, str], most_at_once: int | None) -> str:
        """Return the batch script of an array of ``count`` runs."""
        self.check_usable()
        return job.preview_array(self._home, name, count, options, most_at_once, self._find_program)

    def hand_in_array(
        self,
        elements: Sequence[tuple[RunDir, Handover]],
        options: Mapping[str, str],
        name: str,
        most_at_once: int | None,
    ) -> None:
        """Hand prepared runs in as one array of jobs."""

        def find_program(path: Path) -> list[str]:
            if (archive := find_archive()) is not None:
                job.link_or_copy(archive, path / _PROGRAM)
            return self._find_program(path)

        job.hand_in_array(self._home, name, elements, options, most_at_once, find_program)
        self._watch.queue.look(queue.EXPECTED_S)

    def await_hand_in(self, directory: RunDir, spec: RunSpec) -> bool:
        """Return whether a run that another request launches is there, once that is decided, or after a minute.

        Its relay may have died while it handed it in: Slurm knows the job by its name.
        """
        give_up_s = time.monotonic() + HANDED_IN_WITHIN_S
        while directory.path.is_dir():
            if job_of(directory) or directory.stop.exists() or directory.events.exists():
                return True
            if time.monotonic() >= give_up_s:
                return True
            self.refresh(directory, spec)
            time.sleep(_POLL_S)
        return False

    def _render(self, path: Path, options: Mapping[str, str]) -> tuple[str, list[str]]:
        """Return the batch script of a run whose directory is ``path``, and the options that it names."""
        own = {**job.list_place_options(path.name, path), **options}
        return job.render_script(own, shlex.join([*self._find_program(path), str(path)])), list(own)

    def _find_program(self, path: Path) -> list[str]:
        """Return what runs a supervisor, for the directory of a job.

        A job may wait for days: its program is a file of its own there, which an upgrade does not remove.
        """
        source = Path(__file__).resolve().parents[1] / "supervisor"
        program = source if find_archive() is None else path / _PROGRAM
        return [sys.executable, "-I", "-S", "-X", "utf8", str(program)]

    # --- stops

    def interrupt(self, directory: RunDir, run: Run) -> bool:
        """Let Slurm send SIGTERM to the supervisor, and return whether it did, once it is due to be gone."""
        departure = job.begin_stop(directory, run)
        _await(departure)
        self.refresh(directory, run.spec)
        return departure is not None

    def reap(self, directory: RunDir, run: Run, host: ThisHost) -> ReapResult:
        """Cancel the job, also one that waits, and verify that it is gone. Its processes here are stopped too."""
        departure = job.begin_cancel(directory)
        state = _await(departure)
        self._watch.queue.look(0)
        here: ReapResult | None = None
        if job.was_started_in(run, host.boot_id):
            reaping = Reaping(host, directory.path, run)
            while (here := reaping.step()) is None:
                time.sleep(REAP_STEP_S)
        self.refresh(directory, run.spec)
        return job.describe_reap(run, here, departure.job_id if departure else "", state)


def is_job(spec: RunSpec) -> bool:
    """Return whether a run was launched as a job of Slurm."""
    return spec.backend == BACKEND


def _await(departure: job.Departure | None) -> str:
    if departure is None:
        return ""
    while (state := departure.step()) is None:
        time.sleep(job.DEPARTURE_STEP_S)
    return state
