"""The process that sends the notices of one run: it reads events from a pipe, and outlives the supervisor.

Each target has a thread, so a service that does not answer delays no other. A notice that does not arrive is tried
again for about 20 minutes, in order; one that cannot arrive is given up. What was accepted, what was sent, and what was
not, are lines of `notices.jsonl` in the run's directory. Notices that wait when the machine goes down are lost, and
readers of that file say so.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mcp_server.record.events import ENDING
from mcp_server.record.handover import Handover
from mcp_server.record.notices.notice import RECORD, Notice, NoticedRun, Target, make_notice, write_line
from mcp_server.record.notices.notice_delivery import DeliveryFailed, deliver
from mcp_server.record.run_directory import RunDir, now
from mcp_server.record.run_processes import ThisHost, read_run
from mcp_server.record.spec import RunSpec
from mcp_server.system.files import read_regular_file, write_atomic
from mcp_server.system.lock_files import take_lock
from mcp_server.text.redaction import Redactor
from mcp_server.text.secret_patterns import mask_secrets

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
