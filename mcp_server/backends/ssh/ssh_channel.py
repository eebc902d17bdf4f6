"""One long-lived ssh process to one host, and the relay at its far end.

A thread connects, reads what comes, and connects again with growing pauses when the connection breaks. It never tries
again after a login that was refused: repeated attempts lock accounts. The refusal is kept in a file, for all servers of
this state directory, until a person has looked (`runward hosts`).
"""

import atexit
import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp_server.backends.ssh.far_answers import read_answer, read_error, read_hello, read_report
from mcp_server.backends.ssh.mirror import LAUNCHING, Mirror
from mcp_server.backends.ssh.ssh_bootstrap import read_ssh_settings
from mcp_server.backends.ssh.ssh_link import CONNECTED_WITHIN_S, Awaited, ConnectionFailedError, SilenceWatch, SshLink
from mcp_server.errors import HostUnreachable, RunwardError
from mcp_server.record.relay_channel import REQUESTS, read_frame
from mcp_server.record.run_directory import now, read_json, write_json
from mcp_server.record.state import Liveness, LivenessReport

_FIRST_ANSWER_S = 8.0  # how long the first question after a server's start waits for a connection
_CLOSED_WITHIN_S = 3.0
_AGAIN_WITHIN_S = 15.0  # how long a host that was away may take to be connected to again before it still is
_BACKOFF_S, _LONGEST_BACKOFF_S, _BACKOFF_FACTOR, _FIRST_PAUSE_S = 0.5, 20.0, 1.5, 0.1
_LASTED_S = 1.0
_REFUSED_FILE, _HOST_FILE = "refused.json", "host.json"


@dataclass(frozen=True)
class _Down:
    """Why there is no connection, and since when, in POSIX time. ``refused``: nobody tries again by itself."""

    why: str
    since_s: float
    refused: bool = False


@dataclass(frozen=True)
class _Question:
    """A request without an answer yet. ``asked_s``: monotonic."""

    answer: Future[tuple[object, bytes]]
    asked_s: float
    sent_bytes: int


class Channel:
    """The connection of this process to one host. All methods may be called by any thread."""

    def __init__(self, mirror: Mirror) -> None:
        self.mirror, self.name = mirror, mirror.path.name
        self.hello: dict[str, Any] = read_json(mirror.path / _HOST_FILE) or {}  # what the host said of itself last
        self._changed = threading.Condition()
        self._is_open = False
        self._down: _Down | None = None
        self._tried = False  # one attempt has been made by this process
        self._trying_s: float | None = None  # since when, monotonic, an attempt is under way
        self._not_before_s = 0.0  # nobody waits for another attempt before that
        self._liveness: dict[str, LivenessReport] = {}
        self._whole_logs: dict[tuple[str, int], int] = {}
        self._waiting: dict[int, _Question] = {}
        self._number = 0
        self._link: SshLink | None = None
        self._silence: SilenceWatch | None = None
        self._thread: threading.Thread | None = None
        self._hurry = threading.Event()
        self._closed = threading.Event()

    def open(self, patience_s: float = CONNECTED_WITHIN_S) -> None:
        """Return once there is a connection, and the mirror is up to date.

        Raises:
            HostUnreachable: there is none within ``patience_s``, or at once where the last attempt has failed not
                longer ago than it took: an answer with many questions to a silent host waits for one of them. So it
                does where the host was away, and an attempt has been under way for 15 s, which may take 45 s.
        """
        self._start()
        self._hurry.set()
        give_up_s = time.monotonic() + patience_s
        with self._changed:
            before = self._down
            if before is not None:
                give_up_s = min(give_up_s, (self._trying_s or time.monotonic()) + _AGAIN_WITHIN_S)
            while not self._is_open:
                failed = self._down is not None and self._down is not before
                is_late = time.monotonic() < self._not_before_s
                if self._down is not None and (self._down.refused or failed or is_late):
                    break
                if not self._changed.wait(max(0.0, give_up_s - time.monotonic())):
                    break
            if self._is_open:
                return
            why = self._down.why if self._down else f"no connection within {patience_s:g} s"
            remedy = "Nothing here tries again before that." if self._down and self._down.refused else ""
        raise HostUnreachable(self.name, why, remedy=remedy)

    def ask(
        self,
        name: str,
        /,
        *,
        timeout_s: float = 30.0,
        patience_s: float = CONNECTED_WITHIN_S,
        data: bytes = b"",
        **words: Any,
    ) -> tuple[dict[str, Any], bytes]:
        """Return the relay's answer to a request, and the bytes that come with it, unpacked. ``data`` goes with it.

        Raises:
            HostUnreachable: there is no connection, it breaks before the answer, the answer does not come in time, or
                it is none to this request.
            RunwardError, OSError: what the relay answered.
        """
        if wrong := words.keys() - REQUESTS[name].words:
            raise TypeError(f"{name} says no {', '.join(wrong)}")
        self.open(patience_s)
        answer: Future[tuple[object, bytes]] = Future()
        with self._changed:
            link, silence = self._link, self._silence
            if link is None or silence is None:
                raise HostUnreachable(self.name, "the connection broke")
            self._number += 1
            number = self._number
            self._waiting[number] = _Question(answer, time.monotonic(), len(data))
        silence.wake()
        try:
            with contextlib.suppress(BrokenPipeError):  # whoever reads the connection says why
                link.writer.write({"id": number, "ask": name, **words}, data)
            return read_answer(self.name, name, words, *answer.result(timeout_s))
        except FutureTimeout:
            raise HostUnreachable(self.name, f"no answer to {name} within {timeout_s:g} s") from None
        finally:
            self._waiting.pop(number, None)

    def report_liveness(self, run_id: str) -> LivenessReport:
        """Return what the host says of a run's supervisor now. ``unreachable`` where nobody can ask it."""
        last = self.mirror.read_report(run_id)
        if last is not None and last.liveness is Liveness.DEAD:
            return last
        self._start()
        with self._changed:
            if not self._tried:
                self._changed.wait_for(lambda: self._tried, _FIRST_ANSWER_S)
            if self._is_open:
                if (report := self._liveness.get(run_id)) is not None:
                    return report
                return LivenessReport(Liveness.PENDING)  # its launch is under way
            down = self._down or _Down("it has not answered yet", self._last_contact_s())
        # A job that waited may still wait.
        waits = last is not None and last.job_id and last.liveness is Liveness.PENDING
        liveness, job_id = Liveness.PENDING if waits else Liveness.UNREACHABLE, last.job_id if last else ""
        reason = f"{_describe(self.name, down)}: this is the last known state."
        return LivenessReport(liveness, reason, self._facts(down), job_id)

    def is_away(self) -> bool:
        """Return whether the host did not answer when last asked. It is asked again soon, for whoever comes later."""
        self._start()
        self._hurry.set()
        with self._changed:
            return self._down is not None and not self._is_open

    def describe_silence(self) -> str:
        """Return since when and why the host does not answer, empty where it does or nobody has asked it."""
        with self._changed:
            return _describe(self.name, self._down) if self._down is not None and not self._is_open else ""

    @property
    def why(self) -> str:
        """Why there is no connection, as far as that is known."""
        with self._changed:
            return self._down.why if self._down else ""

    @property
    def behind_s(self) -> float:
        """How many seconds ago the host was last heard of, or 0 while it pushes what is new."""
        with self._changed:
            return 0.0 if self._is_open else max(0.0, time.time() - self._last_contact_s())

    def close(self) -> None:
        """End the connection."""
        with self._changed:
            self._closed.set()
            link = self._link
        self._hurry.set()
        if link is not None:
            link.kill()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSED_WITHIN_S)

    def _facts(self, down: _Down) -> dict[str, str]:
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(down.since_s))
        return {"host": self.name, "since": since, "why": down.why}

    def _last_contact_s(self) -> float:
        with contextlib.suppress(OSError):
            return (self.mirror.path / _HOST_FILE).stat().st_mtime
        return time.time()

    def _start(self) -> None:
        with self._changed:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name=f"ssh {self.name}", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        pause_s = _BACKOFF_S
        while not self._closed.is_set():
            self._hurry.clear()
            self._trying_s = tried_s = time.monotonic()
            try:
                link, begun_s = self._connect(), time.monotonic()
                try:
                    self._read(link)
                    why = link.describe_end() or "the connection broke"
                finally:
                    link.close()
                    if time.monotonic() - begun_s > _LASTED_S:  # one that broke is made again at once
                        pause_s = _FIRST_PAUSE_S
                self._set_down(_Down(why, time.time() - (time.monotonic() - link.heard_s)))
            except ConnectionFailedError as error:
                self._not_before_s = 2 * time.monotonic() - tried_s
                since_s = self._down.since_s if self._down else self._last_contact_s()
                self._set_down(_Down(error.why, since_s, error.refused))
                if error.refused:
                    self._wait_for_permission()
                    continue
                # Somebody who asks does not wait for the pause, but a host that is away is not asked without end.
                self._closed.wait(min(pause_s, 1.0))
            except Exception as error:
                self._set_down(
                    _Down(f"its relay is not understood ({type(error).__name__}: {error})"[:300], time.time())
                )
            self._hurry.wait(pause_s * random.uniform(0.75, 1.25))  # noqa: S311 - not a secret
            pause_s = min(max(_BACKOFF_S, _BACKOFF_FACTOR * pause_s), _LONGEST_BACKOFF_S)

    def _wait_for_permission(self) -> None:
        """Wait until a person has removed the refusal, by `runward hosts`."""
        while not self._closed.is_set() and (self.mirror.path / _REFUSED_FILE).exists():
            self._closed.wait(1.0)

    def _set_down(self, down: _Down) -> None:
        with self._changed:
            self._is_open, self._tried, self._down, self._trying_s = False, True, down, None
            self._link = self._silence = None
            self._liveness.clear()
            waiting = list(self._waiting.values())
            self._waiting.clear()
            self._changed.notify_all()
        for question in waiting:
            question.answer.set_exception(HostUnreachable(self.name, down.why))

    def _connect(self) -> SshLink:
        refused = self.mirror.path / _REFUSED_FILE
        if (facts := read_json(refused)) is not None:
            raise ConnectionFailedError(str(facts.get("why")), refused=True)
        try:
            self.mirror.create()
            settings = read_ssh_settings(self.mirror.path)
        except OSError as error:
            raise ConnectionFailedError(_explain_unwritable(self.mirror.path, error)) from error
        except RunwardError as error:
            raise ConnectionFailedError(str(error)) from error
        try:
            link = SshLink.open(settings)
        except ConnectionFailedError as error:
            if not error.refused:
                raise
            why = f"{error.why}, then run: runward hosts {self.name}"
            write_json(refused, {"why": why, "at": now()})
            raise ConnectionFailedError(why, refused=True) from error
        try:
            hello = read_hello(self.name, link.hello)
            self._check_state(hello)
        except HostUnreachable as error:
            link.close()
            raise ConnectionFailedError(error.why) from error
        offset_s = float(hello.get("time") or time.time()) - time.time()
        try:
            write_json(self.mirror.path / _HOST_FILE, {**hello, "clock_offset_s": round(offset_s, 1)})
        except OSError as error:
            link.close()
            raise ConnectionFailedError(_explain_unwritable(self.mirror.path, error)) from error
        with self._changed:
            self.hello, self._link = hello, link
        return link

    def _check_state(self, hello: Mapping[str, Any]) -> None:
        """Refuse another state directory than that of runs that may still live: to its relay they would be gone."""
        before = read_json(self.mirror.path / _HOST_FILE) or {}
        known, now_id = before.get("state_id"), hello.get("state_id")
        if not known or not now_id or known == now_id:
            return
        if runs := [*self.mirror.list_known()[0], *self.mirror.list_unanswered_launches()]:
            raise HostUnreachable(self.name, _explain_other_state(before, hello, runs, self.mirror.path))

    def _read(self, link: SshLink) -> None:
        have, dead = self.mirror.list_known()
        begun_s = time.monotonic()
        silence = SilenceWatch(link, lambda: self._find_awaited(begun_s), lambda: self._keep_last_contact(link))
        with self._changed:
            self._silence = silence
        try:
            link.writer.write({"id": 0, "ask": "subscribe", "have": have, "dead": dead})
            while (frame := read_frame(link.stdout)) is not None:
                self._take(*frame)
        except OSError:
            pass
        finally:
            silence.stop()

    def _take(self, message: dict[str, Any], data: bytes) -> None:
        push = message.get("push")
        if push == "run":
            report = read_report(self.name, message["report"]) if "report" in message else None
            self._note_logs(message)  # first: the news wakes who asks for the log
            with contextlib.suppress(OSError):  # a full disk here: what is missing comes with the next connection
                self.mirror.apply(message, data, report)
            if report is not None:
                with self._changed:
                    self._liveness[str(message["run"])] = report
                    self._changed.notify_all()
        elif push == "gone" and self.mirror.is_run_id(str(message["run"])):
            run_id = str(message["run"])
            if (self.mirror.runs / run_id / "spec.json").exists():
                reason = f"Its directory on {self.name} was removed."
                self.mirror.keep_report(run_id, LivenessReport(Liveness.DEAD, reason))
        elif push == "synced":
            with self._changed:
                self._is_open, self._tried, self._down, self._trying_s = True, True, None, None
                self._changed.notify_all()
            threading.Thread(target=self._settle_launches, daemon=True).start()
        elif (question := self._waiting.pop(int(message.get("id") or 0), None)) is not None:
            if "error" in message:
                question.answer.set_exception(read_error(self.name, message["error"]))
            else:
                question.answer.set_result((message.get("ok"), data))

    def _note_logs(self, push: dict[str, Any]) -> None:
        """Note the logs that came whole, with the ends of their attempts."""
        for name, _, count in push["files"]:
            if name.endswith("/output.log"):
                self._whole_logs[str(push["run"]), int(name.split("/")[1])] = int(count)

    def has_whole_log(self, run_id: str, attempt: int, size: int) -> bool:
        """Return whether ``size`` bytes are all that the log of an attempt will ever have, as its host said."""
        return self._whole_logs.get((run_id, attempt)) == size

    def _settle_launches(self) -> None:
        """Look up the launches whose answer was lost: they are there, or are never started."""
        with contextlib.suppress(RunwardError, OSError):
            for run_id in self.mirror.list_unanswered_launches():
                settle_launch(self, run_id)

    def _find_awaited(self, connected_s: float) -> Awaited | None:
        """Return what others wait for: answers, or all that is new after a connection was made at ``connected_s``."""
        with self._changed:
            questions = list(self._waiting.values())
            if not self._is_open:
                return Awaited(connected_s)
        if not questions:
            return None
        return Awaited(min(each.asked_s for each in questions), sum(each.sent_bytes for each in questions))

    def _keep_last_contact(self, link: SshLink) -> None:
        heard_s = time.time() - (time.monotonic() - link.heard_s)
        with contextlib.suppress(OSError):
            os.utime(self.mirror.path / _HOST_FILE, (heard_s, heard_s))


def _explain_unwritable(mirror: Path, error: OSError) -> str:
    return f"this machine cannot write what it hears, {mirror}: {error.strerror}; a person should free space here"


def _explain_other_state(before: Mapping[str, Any], hello: Mapping[str, Any], runs: Sequence[str], mirror: Path) -> str:
    """Return what is wrong with a state directory in which ``runs``, which have not ended, are not."""
    more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
    return (
        f"its state directory {hello.get('state')} is not that of {runs[0]}{more}, {before.get('state')}: a "
        f"person mounts its disk, or puts ssh and state in hosts.toml back; where the runs are gone for good, "
        f"removes {mirror}"
    )


def settle_launch(channel: Channel, run_id: str) -> bool:
    """Return whether a launch whose answer was lost has reached its host. If not, it never starts from now on.

    Raises:
        HostUnreachable: nobody knows.
    """
    answer, _ = channel.ask("withdraw", run=run_id)
    if answer["withdrawn"]:
        reason = f"The launch never reached {channel.name}: nothing was started."
        channel.mirror.keep_report(run_id, LivenessReport(Liveness.DEAD, reason))
    (channel.mirror.runs / run_id / LAUNCHING).unlink(missing_ok=True)
    return not answer["withdrawn"]


def _describe(name: str, down: _Down) -> str:
    since = time.strftime("%H:%M:%S", time.gmtime(down.since_s))
    return f"{name} cannot be reached since {since}Z ({down.why})"


_channels: dict[Path, Channel] = {}
_lock = threading.Lock()


def channel_of(mirror: Path) -> Channel:
    """Return this process's channel to the host whose mirror is ``mirror``. It connects at its first use."""
    with _lock:
        if mirror not in _channels:
            _channels[mirror] = Channel(Mirror(mirror))
        return _channels[mirror]


def is_known_away(mirror: Path) -> bool:
    """Return whether this process has asked the host with this mirror, and it does not answer now. Asks nothing."""
    with _lock:
        channel = _channels.get(mirror)
    return channel is not None and channel.is_away()


def forget_refusal(mirror: Path) -> None:
    """Allow connections again to a host that refused a login: a person has looked."""
    (mirror / _REFUSED_FILE).unlink(missing_ok=True)


def close_channels(is_meant: Callable[[Path], bool] = lambda _: True) -> None:
    """End the connections to the hosts that are meant."""
    with _lock:
        paths = [path for path in _channels if is_meant(path)]
        channels = [_channels.pop(path) for path in paths]
    for channel in channels:
        channel.close()


atexit.register(close_channels)
