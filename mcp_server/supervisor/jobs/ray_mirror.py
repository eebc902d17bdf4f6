"""Has Ray run a command as a job, prints the job's log as it comes, and ends as the job does.

`python3 -I -S …/supervisor --ray-job RUN_DIR ATTEMPT bash SCRIPT ARGUMENT…` is the command of a run whose job sees
nothing of its directory. A signal stops the job. That the job is over is written down once Ray says so: without that
file its end is unknown.
"""

from __future__ import annotations

import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from mcp_server.errors import HostUnreachable
from mcp_server.record.ray.ray_head import RayHead, RayJob, RayRefused, withdraw
from mcp_server.record.ray.ray_job import proof_file, read_mark, read_request, submission_id
from mcp_server.record.run_directory import RunDir, now, read_json, write_json
from mcp_server.record.spec import RunSpec

_PERIOD_S = 0.3
_LOG_SHARE = 10.0  # Ray sends the whole log each time, so a long one is asked for less often
_SILENT_S = 2.0
_STARTS_S = 5.0  # a job that is PENDING for longer waits for resources; who stops the run has taken it back by then
_ARRIVES_S = 30.0
_LAST_LOG_S = 600.0  # of an ended job
_FORGOTTEN = 69  # EX_UNAVAILABLE of sysexits.h


def main(words: Sequence[str]) -> int:
    """Run the job and return its exit code."""
    rundir, attempt, script, *arguments = RunDir(Path(words[0])), int(words[1]), Path(words[3]), *words[4:]
    return JobMirror(rundir, attempt).run(script.read_text(encoding="utf-8"), arguments)


class _StopRequested(Exception):
    """The job is to be stopped, while its log is read."""


class JobMirror:
    """The job of one attempt."""

    def __init__(self, rundir: RunDir, attempt: int) -> None:
        spec = RunSpec.from_facts(read_json(rundir.spec) or {})
        self._rundir, self._attempt = rundir, attempt
        self._job_id = submission_id(rundir.run_id, attempt)
        self._head, self._mark = RayHead(str(spec.backend_options.get("address"))), read_mark(rundir)
        self._printed, self._log_due_s, self._is_silent = 0, 0.0, False
        self._asks_to_stop = self._has_asked = False
        self._log_until_s = self._withdraw_s = math.inf
        self._arrives_until_s = 0.0  # until then the head may still be busy with the request

    def run(self, script: str, arguments: Sequence[str]) -> int:
        """Submit the job, follow it to its end, and return its exit code."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._request_stop)
        variables = [f"RUNWARD_RUN_ID={self._rundir.run_id}", f"RUNWARD_ATTEMPT={self._attempt}"]
        entrypoint = shlex.join(["env", *variables, "bash", "-c", script, "runward", *arguments])
        self._request = {**read_request(self._rundir), "submission_id": self._job_id, "entrypoint": entrypoint}
        try:
            self._head.submit(self._request)
        except RayRefused as error:
            self._say(f"{error}")
            self._prove(None, "never submitted")
            return 1
        except HostUnreachable as error:
            self._say(f"{error.host}: {error.why}. Whether it has the job is not known yet.")
            self._arrives_until_s = time.monotonic() + _ARRIVES_S
        return self._follow()

    def _follow(self) -> int:
        known = False
        while True:
            try:
                if self._asks_to_stop:
                    self._stop()
                job = self._head.find(self._job_id, self._mark)
                if job is not None:
                    known = True
                    self._print_log(is_last=job.ended)
            except (HostUnreachable, RayRefused) as error:
                self._note_silence(str(error))
                time.sleep(_SILENT_S)
                continue
            self._is_silent = False
            if job is None and not known and time.monotonic() < self._arrives_until_s:
                time.sleep(_PERIOD_S)
                continue
            if job is None:
                # A head keeps the jobs that it has accepted: this one was restarted, or never got the request.
                self._say(f"{self._head.address} does not know the job{', as it was restarted' if known else ''}.")
                if not known:
                    self._prove(None, "never submitted")
                return _FORGOTTEN
            if job.ended:
                if self._asks_to_stop or not job.gave_up_waiting or not self._submit_again():
                    return self._end(job)
                known = False
            time.sleep(_PERIOD_S)

    def _stop(self) -> None:
        """Ask for the end of the job, once, and once more by other means where it waits for resources."""
        if not self._has_asked:
            self._head.stop(self._job_id, self._mark)
            self._has_asked, self._withdraw_s = True, time.monotonic() + _STARTS_S
            self._say("Ray was asked to stop the job.")
        elif time.monotonic() > self._withdraw_s:
            self._withdraw_s = math.inf
            job = self._head.find(self._job_id, self._mark)
            if job is not None and job.status == "PENDING":
                withdraw(self._head, [self._job_id])

    def _submit_again(self) -> bool:
        """Ask anew for a job that Ray ended while it waited for resources, and return whether Ray has it."""
        try:
            self._head.delete(self._job_id)
            self._head.submit(self._request)
        except RayRefused as error:
            self._say(f"{error}")
            return False
        except HostUnreachable:  # the next look shows what became of it
            self._arrives_until_s = time.monotonic() + _ARRIVES_S
        self._say("Ray lets no job wait for so long, and was asked for it again.")
        return True

    def _end(self, job: RayJob) -> int:
        self._prove(job, job.status)
        if job.first_line and job.status != "SUCCEEDED":
            self._say(f"Ray says {job.status}: {job.first_line}")
        if job.status == "SUCCEEDED":
            return 0
        if job.status == "STOPPED":
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        code = job.exit_code
        if code is not None and code < 0:  # it died of a signal
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        return code or 1

    def _print_log(self, *, is_last: bool) -> None:
        """Print what is new in the log. A part that Ray cannot read, or does not send, keeps no job from its end."""
        begun_s = time.monotonic()
        if begun_s < self._log_due_s and not is_last:
            return
        if is_last:
            self._log_until_s = min(self._log_until_s, begun_s + _LAST_LOG_S)
        try:
            count = self._head.read_log(self._job_id, self._print, after=self._printed)
        except _StopRequested:
            return
        except (RayRefused, HostUnreachable) as error:
            if isinstance(error, HostUnreachable) and begun_s < self._log_until_s:
                raise
            if is_last:
                self._say(f"The rest of the log cannot be read: {error.cause}")
            return
        if count < self._printed:  # another file: what it holds is new
            self._printed = 0
            self._head.read_log(self._job_id, self._print)
        self._log_due_s = time.monotonic() + _LOG_SHARE * (time.monotonic() - begun_s)

    def _print(self, text: str) -> None:
        sys.stdout.write(text.encode(errors="replace").decode())
        sys.stdout.flush()
        self._printed += len(text)
        if self._asks_to_stop and not self._has_asked:
            raise _StopRequested

    def _request_stop(self, *_: object) -> None:
        self._asks_to_stop = True

    def _note_silence(self, text: str) -> None:
        if not self._is_silent:
            self._is_silent = True
            self._say(text)

    def _prove(self, job: RayJob | None, status: str) -> None:
        facts = {"status": status, "exit_code": job.exit_code if job else None, "at": now()}
        write_json(proof_file(self._rundir, self._attempt), facts)

    @staticmethod
    def _say(text: str) -> None:
        print(f"[runward] {text}", flush=True)
