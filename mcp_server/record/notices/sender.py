"""The process that sends the notices of one run: it reads events from a pipe, and outlives the supervisor.

Each target has a thread, so a service that does not answer delays no other. A notice that does not arrive is tried
again for about 20 minutes, in order; one that cannot arrive is given up. What was accepted, what was sent, and what was
not, are lines of `notices.jsonl` in the run's directory. Notices that wait when the machine goes down are lost, and
readers of that file say so.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import json
import os
import queue
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from mcp_server.record.events import ENDING
from mcp_server.record.handover import Handover
from mcp_server.record.notices.notice import RECORD, Notice, NoticedRun, Target, make_notice, write_line
from mcp_server.record.run_directory import RunDir, now
from mcp_server.record.run_processes import ThisHost, read_run
from mcp_server.record.spec import RunSpec
from mcp_server.system import processes
from mcp_server.system.files import read_regular_file, write_atomic
from mcp_server.system.lock_files import take_lock
from mcp_server.system.timed_http import build_timed_opener
from mcp_server.text.redaction import Redactor
from mcp_server.text.secret_patterns import mask_secrets

_ESCAPES = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"))
_SUCCESS_TAG, _URGENT_TAG = "white_check_mark", "warning"


@dataclass(frozen=True)
class Request:
    """An HTTP POST of JSON."""

    url: str
    body: bytes
    headers: dict[str, str]


def make_request(target: Target, notice: Notice, unix_s: int) -> Request:
    """Return the request that brings ``notice`` to ``target`` at the time ``unix_s``."""
    url = target.url
    if target.service == "ntfy":
        url, body = _make_ntfy(target, notice)
    elif target.service == "slack":
        text = f"*{_escape(notice.title)}*\n{_escape(notice.text)}"
        body = {"text": text}
    elif target.service == "feishu":
        body = {"msg_type": "text", "content": {"text": f"{notice.title}\n{notice.text}"}}
        if target.sign_secret:
            key = f"{unix_s}\n{target.sign_secret}".encode()
            sign = base64.b64encode(hmac.new(key, b"", hashlib.sha256).digest()).decode()
            body |= {"timestamp": str(unix_s), "sign": sign}
    else:
        body = dict(notice.facts)
    headers = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "runward"}
    if target.token:
        headers["Authorization"] = f"Bearer {target.token}"
    return Request(url, json.dumps(body, ensure_ascii=False).encode(errors="replace"), headers)


def find_refusal(target: Target, answer: bytes) -> str:
    """Return why a service refused a notice although its HTTP status is 200, or empty where it accepted."""
    if target.service != "feishu":
        return ""
    try:
        facts = json.loads(answer)
        code = facts.get("code", facts.get("StatusCode", 0))
        return "" if code == 0 else f"code {code}: {facts.get('msg', '')}"
    except (ValueError, AttributeError):
        return "the answer is not of Feishu"


def _make_ntfy(target: Target, notice: Notice) -> tuple[str, dict[str, Any]]:
    parts = urlsplit(target.url)
    prefix, _, topic = parts.path.rstrip("/").rpartition("/")
    body: dict[str, Any] = {"topic": unquote(topic), "title": notice.title, "message": notice.text}
    if notice.is_urgent:
        body |= {"priority": 4, "tags": [_URGENT_TAG]}
    elif notice.is_success:
        body |= {"tags": [_SUCCESS_TAG]}
    return urlunsplit(parts._replace(path=f"{prefix}/")), body


def _escape(text: str) -> str:
    for sign, escape in _ESCAPES:
        text = text.replace(sign, escape)
    return text


_TIMEOUT_S = 15.0
_COMMAND_S = 30.0
_END_WITHIN_S, _LOOK_S = 5.0, 0.01
_MARK = "RUNWARD_NOTICE_COMMAND"
# The pids of the commands of all threads, and of the children that this process had before the first of them.
_under_way, _strangers, _starting = set[int](), list[int](), threading.Lock()
_ANSWER_BYTES = 65_536
_MAY_PASS = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class DeliveryFailed(Exception):
    """A notice did not arrive. ``may_pass``: another try may succeed, after ``wait_s`` where the service says so."""

    cause: str
    may_pass: bool = True
    wait_s: float = 0.0

    def __str__(self) -> str:
        """Return the cause."""
        return self.cause


def deliver(target: Target, notice: Notice, env: Mapping[str, str]) -> None:
    """Bring ``notice`` to ``target`` once. ``env``: the environment of a command."""
    if target.command:
        _run_command(target, notice, env)
    else:
        _post(target, notice)


def _post(target: Target, notice: Notice) -> None:
    request = make_request(target, notice, int(time.time()))
    try:
        opener = build_timed_opener()
        post = urllib.request.Request(request.url, request.body, request.headers, method="POST")  # noqa: S310 - checked
        with opener.open(post, timeout=_TIMEOUT_S) as answer:
            refusal = find_refusal(target, answer.read(_ANSWER_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            wait_s = _retry_after_s(error.headers.get("Retry-After", ""))
            raise DeliveryFailed(f"HTTP {error.code}", error.code in _MAY_PASS, wait_s) from None
    except (OSError, http.client.HTTPException) as error:
        cause = getattr(error, "reason", error)
        raise DeliveryFailed(_without_secrets(f"{type(cause).__name__}: {cause}", target)) from None
    except ValueError:  # of an address that cannot be used; its text may hold the address
        raise DeliveryFailed("the address cannot be used", may_pass=False) from None
    if refusal:
        raise DeliveryFailed(_without_secrets(refusal, target), may_pass=False)


def _run_command(target: Target, notice: Notice, env: Mapping[str, str]) -> None:
    """Run the command with the facts as JSON on its input, and title and text in its environment."""
    facts = notice.facts
    named = {"RUNWARD_NOTICE_TITLE": notice.title, "RUNWARD_NOTICE_TEXT": notice.text}
    named |= {
        f"RUNWARD_NOTICE_{name.upper()}": str(facts[name]) for name in ("run_id", "kind", "state") if name in facts
    }
    mark = f"{os.getpid()}-{threading.get_native_id()}"
    with contextlib.suppress(OSError, AttributeError):  # not Linux: what leaves its session is not found
        processes.become_subreaper()
    try:
        with _starting:
            if not _under_way:
                _strangers[:] = processes.children_of_threads(os.getpid())
            process = subprocess.Popen(
                target.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**env, **named, _MARK: mark},
                cwd="/",
                start_new_session=True,
            )
            _under_way.add(process.pid)
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or "it cannot be used"
        raise DeliveryFailed(f"{target.command[0]}: {cause}", may_pass=False) from None
    try:
        process.communicate(json.dumps(dict(facts), ensure_ascii=False).encode(errors="replace"), _COMMAND_S)
    except subprocess.TimeoutExpired:
        raise DeliveryFailed(f"the command took more than {_COMMAND_S:g} s", may_pass=False) from None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            _end_all_of(process, mark)
        _under_way.discard(process.pid)
    if process.returncode:
        raise DeliveryFailed(f"the command ended with {process.returncode}")


def _end_all_of(process: subprocess.Popen[bytes], mark: str) -> None:
    """End a command with all that it has started, also in sessions of their own, and collect them.

    Orphans become children of this process. Beside another command only those are its own that have its mark: the last
    command ends the others.
    """
    give_up_s = time.monotonic() + _END_WITHIN_S
    while True:
        with _starting:
            others = _under_way - {process.pid}
            living = processes.descendants(os.getpid(), without=others.union(_strangers))
            processes.reap_children(without=_under_way.union(_strangers))
        if others:
            own = {process.pid, *(each.pid for each in processes.descendants(process.pid))}
            own |= {each.pid for each in processes.find_by_variable(_MARK, mark)}
            living = [each for each in living if each.pid in own]
        for each in living:
            processes.send_signal(each, signal.SIGKILL)
        if (process.poll() is not None and not living) or time.monotonic() > give_up_s:
            return
        time.sleep(_LOOK_S)


def _retry_after_s(header: str) -> float:
    try:
        return min(max(float(header), 0.0), 3600.0)
    except ValueError:
        return 0.0


def _without_secrets(text: str, target: Target) -> str:
    for value in target.secrets:
        text = text.replace(value, "***")
    return text


_HOUR_S = 3600.0
_PATIENCE_S = 5.0  # with the lock, which is held for milliseconds


class Allowance:
    """Counts the notices to one target in the last hour. ``directory`` may be missing."""

    def __init__(self, directory: Path, target: Target) -> None:
        key = hashlib.sha256(f"{target.url}\0{target.command}".encode()).hexdigest()[:16]
        self._file, self._limit = directory / f"{key}.json", target.max_per_hour

    def take(self, unix_s: float) -> tuple[bool, int]:
        """Return whether a notice may be sent now, and how many were left out since the last one that was sent.

        Where the count cannot be kept, as on a full disk or while another process holds its lock, the notice is sent.
        """
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = take_lock(self._file.with_suffix(".lock"), _PATIENCE_S)
            if lock is None:
                return True, 0
            try:
                return self._take(unix_s)
            finally:
                os.close(lock)
        return True, 0

    def _take(self, unix_s: float) -> tuple[bool, int]:
        sent, left_out = self._read()
        sent = [at_s for at_s in sent if unix_s - _HOUR_S < at_s <= unix_s]
        may_send = len(sent) < self._limit
        facts = {"sent": [*sent, unix_s], "left_out": 0} if may_send else {"sent": sent, "left_out": left_out + 1}
        write_atomic(self._file, json.dumps(facts).encode(), mode=0o600)
        return may_send, left_out if may_send else left_out + 1

    def _read(self) -> tuple[list[float], int]:
        try:
            facts = json.loads(read_regular_file(self._file, follow_links=False))
            return [float(at_s) for at_s in facts["sent"]][-self._limit :], int(facts["left_out"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return [], 0


RETRIES_S = (2.0, 10.0, 60.0, 240.0, 900.0)
_MOST_WAITING = 200
_STOP_S = 3.0
_LOST = {
    "kind": "ended",
    "state": "lost",
    "text": "Its supervisor died without a record of the end; processes of the run may go on.",
}


class Sender:
    """The notices of one run. ``wait`` sleeps, and tests replace it."""

    def __init__(
        self,
        targets: Sequence[Target],
        run: NoticedRun,
        directory: Path,
        mask: Redactor,
        *,
        env: Mapping[str, str],
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._run, self._record, self._mask = run, directory / RECORD, mask
        self._counts = directory.parent.parent / "notices"  # of the state directory
        self._env, self._wait, self._ended = env, wait, False
        self._lock = threading.Lock()
        self._record_fd: int | None = None
        self._queues: list[tuple[Target, queue.Queue[Notice | None]]] = [
            (each, queue.Queue(_MOST_WAITING)) for each in targets
        ]
        self._threads = [threading.Thread(target=self._serve, args=each) for each in self._queues]
        for thread in self._threads:
            thread.start()

    def add(self, event: Mapping[str, Any]) -> None:
        """Send the notice of ``event`` to each target that wants it."""
        kind, state = str(event.get("kind", "")), str(event.get("state", ""))
        self._ended = self._ended or kind in ENDING
        notice = make_notice(event, self._run, self._mask_text)
        for target, waiting in self._queues:
            if target.accepts(kind, state):
                self._write_line(target, notice, accepted=True)
                try:
                    waiting.put_nowait(notice)
                except queue.Full:
                    self._note(target, notice, "too many notices wait")

    def close(self) -> None:
        """Report a run whose supervisor died, and return once every notice was sent or given up."""
        if not self._ended:
            self.add({**(self._find_recorded_end() or _LOST), "at": now()})
        for _, waiting in self._queues:
            waiting.put(None)
        for thread in self._threads:
            thread.join()

    def _find_recorded_end(self) -> dict[str, Any] | None:
        """Return the end that the run's record proves, although its supervisor died before it said so; else None."""
        directory = RunDir(self._record.parent)
        for wait_s in (_STOP_S, None):
            with contextlib.suppress(OSError, ValueError):
                run = read_run(directory, ThisHost())
                if run.ended and run.state != "lost":
                    how = "" if run.exit_code is None else f" with exit code {run.exit_code}"
                    text = f"The run is {run.state}{how}. {run.reason or ''}".strip()
                    facts = {"exit_code": run.exit_code, "signal": run.signal, "attempt": run.attempt}
                    return {"kind": "ended", "state": run.state, "text": text, **facts}
            if wait_s is None or not directory.stop.exists():
                break
            self._wait(wait_s)  # whoever stopped it and its supervisor is about to write that
        return None

    def _serve(self, target: Target, waiting: queue.Queue[Notice | None]) -> None:
        allowance = Allowance(self._counts, target)
        while (notice := waiting.get()) is not None:
            may_send, left_out = allowance.take(time.time())
            if not may_send:
                self._note(target, notice, f"more than {target.max_per_hour} in an hour", left_out=True)
                continue
            if left_out:
                notice = notice.add(
                    f"{left_out} other notices were left out: more than {target.max_per_hour} in an hour."
                )
            self._note(target, notice, self._deliver(target, notice))

    def _deliver(self, target: Target, notice: Notice) -> str:
        """Bring a notice to a target, trying again; return why it did not arrive, or an empty string."""
        for retry_s in (*RETRIES_S, None):
            failure = self._try(target, notice)
            if failure is None or retry_s is None or not failure.may_pass:
                return failure.cause if failure else ""
            self._wait(max(retry_s, failure.wait_s))
        return ""

    def _try(self, target: Target, notice: Notice) -> DeliveryFailed | None:
        try:
            deliver(target, notice, self._env)
        except DeliveryFailed as failure:
            return failure
        except Exception as error:
            return DeliveryFailed(type(error).__name__, may_pass=False)
        return None

    def _mask_text(self, text: str) -> str:
        """Return ``text`` without the run's secrets, nor what looks like one: notices leave the machine."""
        return mask_secrets(self._mask.text(text))

    def _note(self, target: Target, notice: Notice, cause: str, *, left_out: bool = False) -> None:
        facts = {"sent": not cause} | ({"cause": self._mask_text(cause)} if cause else {})
        self._write_line(target, notice, **facts, **({"left_out": True} if left_out else {}))

    def _write_line(self, target: Target, notice: Notice, **facts: object) -> None:
        about = {"at": now(), "target": target.name, "kind": notice.facts.get("kind"), "seq": notice.facts.get("seq")}
        with self._lock:
            self._record_fd = write_line(self._record, {**about, **facts}, self._record_fd)


def send_from_pipe(fd: int, targets: Sequence[Target], rundir: RunDir, spec: RunSpec, handover: Handover) -> None:
    """Send a notice for each line of JSON on ``fd`` until its end, then the rest."""
    run = NoticedRun(spec.run_id, spec.name, spec.owner, spec.host)
    sender = Sender(targets, run, rundir.path, Redactor(handover.masked), env=dict(handover.env))
    with os.fdopen(fd, "rb") as lines:
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                sender.add(event)
    sender.close()
