"""The runs and addresses that a run needs: waits until each answers, and stops the run when one has ended."""

from __future__ import annotations

import http.client
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from mcp_server.record.events import ENDING
from mcp_server.record.exit_status import StopRequest
from mcp_server.record.ray.ray_job import is_mirrored
from mcp_server.record.run_directory import RunDir, load_json
from mcp_server.record.run_processes import ThisHost, read_run, supervisor_of
from mcp_server.record.service import JOINED, Need, find_service_port, joins_a_ray, parse_need
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Liveness, LivenessReport, Run
from mcp_server.supervisor.control import ControlInputs, ServiceEnded, StoppedBeforeStart
from mcp_server.supervisor.start_command import supervisor_identity
from mcp_server.system.lock_files import is_locked
from mcp_server.system.ports import list_ports_listened_on
from mcp_server.system.timed_http import build_timed_opener

if TYPE_CHECKING:
    from mcp_server.supervisor.services.service_jobs import RayWord, ServiceJobs

_CHECK_S = 0.2
_ANSWER_S = 1.0  # of a service over the network
_FIRST_BYTES = 2**18  # of a log
_SUCCESS, _ERROR = 200, 400


class Services:
    """The runs that a run needs, whose directories are beside its own, and addresses of other hosts."""

    def __init__(self, control: ControlInputs) -> None:
        self._control, self._host = control, ThisHost()
        needs = [parse_need(text) for text in control.spec.needs]
        self._needs = [need for need in needs if need.run]
        self._places = [need for need in needs if need.host]
        self._addresses: ServiceAddresses | None = None
        self._told: set[str] = set()  # services that may have ended, of which that was said
        self._ends: dict[str, str] = {}  # what Ray says of services that it has ended
        self._slurm: ServiceJobs[LivenessReport] | None = None
        self._ray: ServiceJobs[RayWord] | None = None

    def await_answers(self) -> None:
        """Wait until each service answers. As long as one lives and does not, the run is in the queue.

        Raises:
            ServiceEnded: one has ended before it answered.
            StoppedBeforeStart: a stop request came meanwhile.
        """
        reported = ""
        while waiting := list(self._list_silent()):
            text = f"Waiting for {'; '.join(f'{need.label}: {why}' for need, why in waiting)}."
            if text != reported:
                names = [need.label for need, _ in waiting]
                self._control.show(text)
                self._control.events.append("queued", text, needs=names, at_start=supervisor_identity())
                reported = text
            if not self._control.wait(_CHECK_S):
                raise StoppedBeforeStart

    def find_end(self) -> StopRequest | None:
        """Return the request to stop the run where one of its services has ended for certain, else None."""
        for need in self._needs:
            try:
                run = None if self._is_live(need) else self._read(need)
            except OSError:
                continue
            if run is not None and run.ended and not self._goes_on(need, run):
                text = f"{need.run}, which it needs, has ended: {self._describe_end(run)}"
                return StopRequest("killed", "", text, "service")
        if self._places and self._addresses is None:
            self._addresses = ServiceAddresses(self._places, _explain_address)
        if self._addresses is not None and (gone := self._addresses.find_gone()) is not None:
            return StopRequest("killed", "", f"{gone[0]}, which it needs, has ended: {gone[1]}", "service")
        return None

    def _list_silent(self) -> Iterator[tuple[Need, str]]:
        """Yield the services that do not answer yet, and why that is believed."""
        for need in self._needs:
            try:
                run = self._read(need)
                why = "its record cannot be read yet" if run is None else self._explain_silence(need, run)
            except OSError as error:
                why = f"its record cannot be read now ({error.strerror})"
            if why:
                yield need, why
        yield from ((need, why) for need in self._places if (why := _explain_address(need)))

    def _explain_silence(self, need: Need, run: Run) -> str:
        """Return why a service does not answer yet, empty where it does."""
        if run.ended and not self._goes_on(need, run):
            raise ServiceEnded(f"{need.run}, which it needs, ended before it answered: {self._describe_end(run)}")
        if run.started_at is None or run.state in ("queued", "starting", "retrying"):
            return f"it is {run.state}" if run.state != "lost" else "its job has not started"
        if run.spec.first_step_pattern and (need.port is None or is_mirrored(run.spec)):
            return "" if run.stepped else "it has not printed its first_step_pattern yet"
        if is_mirrored(run.spec):
            return "where Ray runs it cannot be seen from here: it needs a first_step_pattern"
        port = need.port or find_service_port(run)
        if port is None and joins_a_ray(run):
            with self._directory(need).log(run.attempt).open("rb") as log:
                return "" if JOINED in log.read(_FIRST_BYTES) else "it has not joined its Ray yet"
        supervisor = supervisor_of(self._directory(need).path, run)
        is_here = run.at_start.get("boot_id") == self._host.boot_id
        if need.path:
            url = f"http://{'127.0.0.1' if is_here else run.at_start.get('host')}:{port}{need.path}"
            return _explain_http(url)
        if is_here and (supervisor is not None or run.ended):
            members = self._host.find_living(run, supervisor)
            listened = list_ports_listened_on(members)
            if port is None:
                return "" if listened else "it listens at no port yet"
            return "" if port in listened else f"it does not listen at port {port} yet"
        if port is None:
            return "its ports cannot be seen from here: name one as RUN@PORT, or give it a first_step_pattern"
        host = "127.0.0.1" if is_here else str(run.at_start.get("host"))
        return "" if _is_open(host, port) else f"{host}:{port} does not answer yet"

    def _goes_on(self, need: Need, run: Run) -> bool:
        """Return whether a service without a written end may live.

        Its processes go on although its supervisor is gone; or it is a job, whose processes may be on other hosts.
        That its supervisor is gone is said once. A job of Slurm has ended where Slurm says so.
        """
        if run.state != "lost" or run.spec.backend == "slurm" or any(event["kind"] in ENDING for event in run.events):
            return False
        was_here = run.at_start.get("boot_id") == self._host.boot_id
        if run.spec.backend == "ray" and (is_mirrored(run.spec) or not was_here):
            return self._job_goes_on(need, run)
        if not self._host.find_leftovers(run):
            return False
        self._report(run, f"The supervisor of {run.run_id}, which it needs, is gone; its processes go on.")
        return True

    def _job_goes_on(self, need: Need, run: Run) -> bool:
        """Return whether a job of Ray may live whose supervisor holds no lock here, as it is gone or elsewhere.

        Ray's word is enough where the job is the command itself. Elsewhere the job is the supervisor, which the command
        may outlive: the service has ended where it does not answer at its port either.
        """
        if self._ray is None:
            from mcp_server.supervisor.services.service_jobs import watch_ray  # noqa: PLC0415 - 10 ms; few services are jobs

            self._ray = watch_ray()
        word = self._ray.report(self._directory(need), run.spec)
        if word is None:  # not asked yet
            return True
        if not word.is_over:
            gone = "its supervisor is gone, and " if is_mirrored(run.spec) else ""
            if gone or word.is_over is None:
                self._report(run, f"{run.run_id}, which it needs: {gone}{word.text}. This run goes on.")
            return True
        by_port = need.port or not run.spec.first_step_pattern
        port = (need.port or find_service_port(run)) if by_port else None
        if is_mirrored(run.spec) or (port is not None and not _is_open(str(run.at_start.get("host")), port)):
            self._ends[run.run_id] = word.text
            return False
        text = f"{word.text}, and it may go on: " + ("it answers" if port else "no port of it is known")
        self._report(run, f"{run.run_id}, which it needs: {text}. This run goes on.")
        return True

    def _report(self, run: Run, text: str) -> None:
        """Say once what is known of a service that may have ended."""
        if run.run_id not in self._told:
            self._told.add(run.run_id)
            self._control.events.append("observer_error", text)

    def _describe_end(self, run: Run) -> str:
        how = run.signal or ("" if run.exit_code is None else f"exit code {run.exit_code}")
        how = how or self._ends.get(run.run_id, "")
        return f"{run.state} ({how})" if how else run.state

    def _directory(self, need: Need) -> RunDir:
        return RunDir(self._control.rundir.path.with_name(need.run))

    def _is_live(self, need: Need) -> bool:
        """Return whether a service lives for certain, by a look that costs little."""
        spec = self._find_spec(need)
        if spec is None or spec.backend != "slurm":
            return is_locked(self._directory(need).lock)
        report = self._ask_slurm(need, spec)  # a shared disk may keep the lock of a dead node
        return report is not None and report.liveness is not Liveness.DEAD

    def _read(self, need: Need) -> Run | None:
        """Return a service as it is now, None where its directory is gone, or Slurm has not answered yet."""
        spec = self._find_spec(need)
        if spec is None or spec.backend != "slurm":
            return None if spec is None else read_run(self._directory(need), self._host)
        report = self._ask_slurm(need, spec)
        return None if report is None else read_run(self._directory(need), self._host, report)

    def _find_spec(self, need: Need) -> RunSpec | None:
        facts = load_json(self._directory(need).spec)
        return None if facts is None else RunSpec.from_facts({**facts, "run_id": need.run})

    def _ask_slurm(self, need: Need, spec: RunSpec) -> LivenessReport | None:
        if self._slurm is None:
            from mcp_server.supervisor.services.service_jobs import watch_slurm  # noqa: PLC0415 - 10 ms; few services are jobs

            self._slurm = watch_slurm(self._control.rundir.path.parents[1])
        return self._slurm.report(self._directory(need), spec)


def _explain_address(need: Need) -> str:
    """Return why the service at an address does not answer, empty where it does. Blocks for up to two seconds."""
    host, port = need.host.strip("[]"), need.port or 0
    try:
        socket.create_connection((host, port), _ANSWER_S).close()
    except ConnectionRefusedError:
        return f"its host {REFUSED}"
    except OSError as error:
        return f"it cannot be reached ({error.strerror or error})"
    return _explain_http(f"http://{need}") if need.path else ""


def _explain_http(url: str) -> str:
    try:
        with _OPENER.open(url, timeout=_ANSWER_S) as answer:
            status = answer.status
    except urllib.error.HTTPError as error:
        status = error.code
    except (OSError, ValueError, http.client.HTTPException):  # the last: it is not HTTP
        return f"{url} does not answer yet"
    return "" if _SUCCESS <= status < _ERROR else f"{url} answers {status}"


# A proxy of the environment cannot reach a port of this host.
_OPENER = build_timed_opener(urllib.request.ProxyHandler({}))


def _is_open(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), _ANSWER_S).close()
    except OSError:
        return False
    return True


REFUSED = "refuses connections"
_TRY_S = 5.0
# A service that starts again listens sooner. A host that does not answer at all says nothing of its service.
_REFUSED_S = 60.0


class ServiceAddresses:
    """The addresses that a run needs. ``explain`` says why one does not answer, and may block for a second or two."""

    def __init__(self, needs: Sequence[Need], explain: Callable[[Need], str]) -> None:
        self._needs, self._explain = needs, explain
        self._silent_since_s: dict[Need, float] = {}
        self._why: dict[Need, str] = {}
        threading.Thread(target=self._watch, daemon=True).start()

    def find_gone(self) -> tuple[Need, str] | None:
        """Return a service whose host has refused connections for a minute, and the last answer; None without one."""
        before_s = time.monotonic() - _REFUSED_S
        since = list(self._silent_since_s.items())
        return next(((need, self._why[need]) for need, at_s in since if at_s <= before_s), None)

    def look(self) -> None:
        """Try each address once."""
        for need in self._needs:
            why = self._explain(need)
            if REFUSED in why:
                self._why[need] = why
                self._silent_since_s.setdefault(need, time.monotonic())
            else:
                self._silent_since_s.pop(need, None)

    def _watch(self) -> None:
        while True:
            self.look()
            time.sleep(_TRY_S)
