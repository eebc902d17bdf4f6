"""The Jobs API of one Ray head: submit, look, stop, and what resources there are. Blocks. Use a thread."""

from __future__ import annotations

import codecs
import contextlib
import http.client
import json
import os
import re
import shlex
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from mcp_server.errors import HostUnreachable, RunwardError
from mcp_server.record.ray.ray_job import MARK
from mcp_server.system.ports import is_loopback
from mcp_server.system.timed_http import TimedResponse, build_timed_opener
from mcp_server.text.formatting import printable

LOOK_S = 2.0  # of a question; a head that is overloaded counts as silent
SUBMIT_S = 30.0  # the first job of a head took 3.3 s: it starts an agent
_MOST_BYTES = 4 * 2**20  # of an answer, but for logs
_PIECE_BYTES = 256 * 2**10
_LOG_S = 300.0  # of one look at a log
_UNAUTHORIZED, _NOT_FOUND = 401, 404
_UNAUTHORIZED_REMEDY = "A person sets RAY_AUTH_TOKEN, the cluster's token, in the environment of the server."
_STATUS_CHARS, _MOST_CODE, _LATEST_MS = 40, 2**16, 2**47  # the year 6429


@dataclass(frozen=True)
class RayJob:
    """A job as its head describes it. Times are POSIX milliseconds."""

    status: str
    message: str = ""
    exit_code: int | None = None
    ended_ms: int | None = None
    error_type: str = ""

    @property
    def gave_up_waiting(self) -> bool:
        """Whether Ray ended the job, which waited for resources for as long as its head lets one: 15 min by default."""
        return self.status == "FAILED" and self.error_type == "JOB_SUPERVISOR_ACTOR_START_TIMEOUT"

    @property
    def lost_its_place(self) -> bool:
        """Whether Ray ended the job as what was to run it died, e.g. with its node, or could not be placed."""
        return self.status == "FAILED" and self.error_type.startswith("JOB_SUPERVISOR_ACTOR_")

    @property
    def ended(self) -> bool:
        """Whether the job is over, as far as Ray says. A status of a newer version is not an end."""
        return self.status in ("SUCCEEDED", "FAILED", "STOPPED")

    @property
    def first_line(self) -> str:
        """The first line of its message: what follows is output."""
        return printable(self.message.strip().partition("\n")[0], "")[:300]


class RayRefused(RunwardError):
    """The head answered, and did not do what it was asked to."""


class RayHead:
    """The head of a cluster. ``address`` begins with http:// or https://.

    Raises:
        HostUnreachable: the head does not answer.
        RayRefused: it answers with an error.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        # A proxy of the environment does not reach a port of this host.
        handlers = (
            [urllib.request.ProxyHandler({})] if is_loopback(urllib.parse.urlsplit(address).hostname or "") else []
        )
        self._opener = build_timed_opener(*handlers)

    def submit(self, request: Mapping[str, Any]) -> None:
        """Submit a job. One that is there already under its submission id is not submitted again.

        Raises:
            HostUnreachable: the head does not answer: whether it took the job is unknown.
            RayRefused: it did not take the job; says why.
        """
        try:
            self._call("POST", "/api/jobs/", request, SUBMIT_S)
        except RayRefused:
            if self.find(str(request["submission_id"]), str(request["metadata"].get(MARK, ""))) is None:
                raise

    def find(self, submission_id: str, mark: str) -> RayJob | None:
        """Return a job, None where the head does not know it, or has another with that id, which lacks the mark.

        ``mark``: see ``record/ray/ray_job``; empty for a job of a former version, which has none.
        """
        facts = self._call("GET", f"/api/jobs/{submission_id}", None, LOOK_S)
        metadata = {} if facts is None else facts.get("metadata")
        if facts is None or (mark and (not isinstance(metadata, dict) or metadata.get(MARK) != mark)):
            return None
        code, ended = facts.get("driver_exit_code"), facts.get("end_time")
        return RayJob(
            str(facts.get("status") or "")[:_STATUS_CHARS],
            str(facts.get("message") or ""),
            code if isinstance(code, int) and abs(code) < _MOST_CODE else None,
            ended if isinstance(ended, int) and 0 < ended < _LATEST_MS else None,
            str(facts.get("error_type") or "")[:_STATUS_CHARS],
        )

    def stop(self, submission_id: str, mark: str) -> None:
        """Ask the head to stop a job; one that it does not know, that is over, or another's, is left alone."""
        if self.find(submission_id, mark) is not None:
            self._call("POST", f"/api/jobs/{submission_id}/stop", {}, SUBMIT_S)

    def delete(self, submission_id: str) -> None:
        """Let the head forget a job that is over, so that another may have its id."""
        self._call("DELETE", f"/api/jobs/{submission_id}", None, LOOK_S)

    def read_log(self, submission_id: str, take: Callable[[str], None], after: int = 0) -> int:
        """Hand over what a job has printed after its first ``after`` characters, and return how many there are.

        The Jobs API always sends all of a log, and its reader holds no more than a piece of it.

        Raises:
            HostUnreachable: the head does not answer, stops within the log, sends it very slowly or without end; what
                came was handed over.
            RayRefused: it answers with an error.
        """
        count, until_s = 0, time.monotonic() + _LOG_S
        with self._open("GET", f"/api/jobs/{submission_id}/logs", None, SUBMIT_S) as answer:
            if answer is None:
                return 0
            for text in read_json_text(_decode(answer), "logs"):
                if new := text[max(0, after - count) :]:
                    take(new)
                count += len(text)
                if time.monotonic() > until_s:
                    raise TimeoutError
        return count

    def read_resources(self) -> dict[str, tuple[float, float]]:
        """Return the cluster's resources by name, such as GPU: how many are in use, and how many there are."""
        value: Any = self._call("GET", "/api/cluster_status", None, LOOK_S) or {}
        for name in ("data", "clusterStatus", "loadMetricsReport", "usage"):
            value = value.get(name) if isinstance(value, dict) else None
        pairs = value.items() if isinstance(value, dict) else ()
        return {
            str(name): (float(pair[0]), float(pair[1]))
            for name, pair in pairs
            if isinstance(pair, list) and len(pair) == 2 and all(map(_is_amount, pair))  # noqa: PLR2004
        }

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> dict[str, Any] | None:
        """Return the answer, None for "not found"."""
        with self._open(method, path, body, timeout_s) as answer:
            if answer is None:
                return None
            facts = json.loads(answer.read(_MOST_BYTES))
            if not isinstance(facts, dict):
                raise ValueError("not an object")  # noqa: TRY004 - as for text that is not JSON
            return facts

    @contextlib.contextmanager
    def _open(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float
    ) -> Iterator[TimedResponse | None]:
        """Give the head's answer, None for "not found". Failures while it is read have the same errors."""
        headers = {"Content-Type": "application/json"}
        if token := os.environ.get("RAY_AUTH_TOKEN"):
            headers["Authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body).encode()
        # The address was checked: it begins with http:// or https://.
        request = urllib.request.Request(self.address + path, data, headers, method=method)  # noqa: S310
        try:
            try:
                with self._opener.open(request, timeout=timeout_s) as answer:
                    yield answer
            except urllib.error.HTTPError as error:
                with error:
                    text = error.read(_MOST_BYTES).decode(errors="replace")
                if error.code != _NOT_FOUND or "does not exist" not in text:
                    cause = f"Ray at {self.address} answers {error.code}: {_last_line(text).rstrip('.')}."
                    remedy = _UNAUTHORIZED_REMEDY if error.code == _UNAUTHORIZED else ""
                    raise RayRefused(cause, remedy=remedy) from error
                yield None
        except (OSError, http.client.HTTPException) as error:
            raise HostUnreachable(self.address, _explain(error)) from error
        except (ValueError, RecursionError) as error:
            raise RayRefused(f"{self.address} does not answer as the Jobs API of Ray does.") from error


def _decode(answer: TimedResponse) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    while data := answer.read(_PIECE_BYTES):
        yield decoder.decode(data)
        answer.reader.renew(SUBMIT_S)
    if answer.length:  # http.client says nothing of an end that comes too soon
        raise http.client.IncompleteRead(b"", answer.length)


def _is_amount(value: object) -> bool:
    return isinstance(value, (int, float)) and abs(value) < 1e18  # noqa: PLR2004 - bytes of memory are less


def _last_line(text: str) -> str:
    """Return what an answer says: of a traceback, its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" .")]
    return (lines[-1] if lines else "nothing")[:300].rstrip(".")


def _explain(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    return str(getattr(reason, "strerror", None) or reason)[:200] or type(reason).__name__


# Whole characters of a JSON string. The two halves of one beyond the basic plane stay together.
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_WHOLE = re.compile(
    rf'(?:[^"\\]+|\\["\\/bfnrt]|{_HIGH}{_LOW}|{_HIGH}(?=[^\\]|\\[^u]|\\u(?![dD][c-fC-F])[0-9a-fA-F]{{4}})'
    rf"|\\u(?![dD][89abAB])[0-9a-fA-F]{{4}})*"
)
_LONGEST_CHARACTER = 12  # two escapes
_LONGEST_HEAD = 4096


def read_json_text(pieces: Iterable[str], name: str) -> Iterator[str]:
    """Yield the parts of the text that the first member of an object, ``name``, holds; nothing where it is null.

    Raises:
        ValueError: the pieces are not such an object, or end within it.
    """
    begin = re.compile(rf'\s*\{{\s*"{re.escape(name)}"\s*:\s*(?P<value>"|null)')
    buffer, is_inside = "", False
    for piece in pieces:
        buffer += piece
        if not is_inside:
            if (match := begin.match(buffer)) is None:
                if len(buffer) > _LONGEST_HEAD:
                    break
                continue
            if match["value"] == "null":
                return
            buffer, is_inside = buffer[match.end() :], True
        whole = _WHOLE.match(buffer)
        end = whole.end() if whole else 0
        if end:
            yield str(json.loads(f'"{buffer[:end]}"', strict=False))
        buffer = buffer[end:]
        if buffer.startswith('"'):
            return
        if len(buffer) >= _LONGEST_CHARACTER:
            break
    raise ValueError(f"not an object with a text {name!r}, or not all of it")


_WITHIN_S = 30.0  # 3.3 s on an idle head of two cores
_LOOK_AGAIN_S = 0.2
_GATHER_S = 0.3  # the cells of a sweep are stopped eight at a time
# The names are Ray's: ray/dashboard/modules/job/common.py.
_KILL = """\
import contextlib, sys, ray
ray.init(log_to_driver=False)
for job_id in sys.argv[1:]:
    with contextlib.suppress(ValueError):  # it has begun and ended
        actor = ray.get_actor("_ray_internal_job_actor_" + job_id, namespace="SUPERVISOR_ACTOR_RAY_NAMESPACE")
        ray.kill(actor)
"""
# The parent of an entrypoint's shell is a Python of Ray, whatever PATH says.
_ENTRYPOINT = """\
lib=$(sed -n 's|.* \\(/.*\\)/ray/_raylet[^/]*\\.so$|\\1|p' /proc/$PPID/maps | head -n 1)
PYTHONPATH=$lib exec "$(readlink /proc/$PPID/exe)" -c {program} {job_ids}
"""


def withdraw(head: RayHead, job_ids: Collection[str]) -> bool:
    """Take jobs back that were PENDING just now, and return whether Ray was told so; it says FAILED a moment later.

    The Jobs API cannot: Ray 2.60 answers a stop of such a job with "stopped", leaves it PENDING, and refuses to delete
    it: an autoscaler goes on to bring up machines for it. The job is an actor that has not begun, though, and every
    driver may kill an actor by its name. The job that does so stays in Ray's list, as SUCCEEDED.
    """
    helper, mark = f"{min(job_ids)}-withdraw-{uuid4().hex[:8]}", uuid4().hex
    entrypoint = _ENTRYPOINT.format(program=shlex.quote(_KILL), job_ids=shlex.join(sorted(job_ids)))
    head.submit({"submission_id": helper, "entrypoint": entrypoint, "metadata": {MARK: mark}})
    until_s = time.monotonic() + _WITHIN_S
    while (job := head.find(helper, mark)) is not None and not job.ended:
        if time.monotonic() > until_s:
            head.stop(helper, mark)
            return False
        time.sleep(_LOOK_AGAIN_S)
    return job is not None and job.status == "SUCCEEDED"


class Withdrawals:
    """The withdrawals of this process from one head: one at a time, as each is a program that the head starts.

    Those that are asked for meanwhile wait, and are one: 20 at once would be 40 processes on the head.
    """

    def __init__(self, head: RayHead) -> None:
        self._head, self._waiting = head, set[str]()
        self._lock, self._turn = threading.Lock(), threading.Lock()

    def withdraw(self, job_id: str) -> bool:
        """Take a job back, as ``withdraw``. True also where another's withdrawal took it along, perhaps in vain."""
        with self._lock:
            self._waiting.add(job_id)
        with self._turn:
            time.sleep(_GATHER_S)
            with self._lock:
                job_ids, self._waiting = self._waiting, set[str]()
            if job_id in job_ids:
                return withdraw(self._head, job_ids)
            with self._lock:
                self._waiting |= job_ids
            return True
