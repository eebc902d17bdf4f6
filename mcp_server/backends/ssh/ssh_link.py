"""One ssh process: it installs the relay where that is missing, starts it, and is given up once it is silent."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import os
import secrets
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal, cast

from mcp_server.backends.ssh.ssh_bootstrap import SshSettings, render_bootstrap
from mcp_server.backends.supervisor_copy import pack_zipapp
from mcp_server.record.relay_channel import FrameWriter, read_frame
from mcp_server.text.secret_patterns import holds_a_secret

# BatchMode: no question that nobody would answer. ControlMaster=no: a connection that a person has opened is used, and
# ours never becomes one that others depend on. What is forwarded belongs to people's own sessions.
OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ControlMaster=no", "-o", "ClearAllForwardings=yes")
CONNECTED_WITHIN_S = 45.0  # with a slow login shell, and the program sent over a slow line
_ERROR_BYTES = 4096
_ERRORS_WITHIN_S = 2.0  # a daemon of a ProxyJump may keep the pipe open
_BEHIND_JUMP = "UNKNOWN port 65535"
_REFUSALS = ("permission denied", "host key verification failed", "too many authentication failures")


class ConnectionFailedError(Exception):
    """No connection was made. ``refused``: the host, or this side, refused the login."""

    def __init__(self, why: str, *, refused: bool = False) -> None:
        super().__init__(why)
        self.why, self.refused = why, refused


@dataclass
class SshLink:
    """A connection that has been made: the ssh process, and the relay's first words.

    ``heard_s``: when the last byte came. ``silent_s``: how long none had come when it was given up for that.
    """

    process: subprocess.Popen[bytes]
    writer: FrameWriter
    errors: bytearray
    hello: dict[str, Any] = field(default_factory=dict)
    heard_s: float = field(default_factory=time.monotonic)
    silent_s: float = 0.0
    drain: threading.Thread | None = None

    def __post_init__(self) -> None:
        self.stdout = cast("BinaryIO", io.BufferedReader(_HeardPipe(self)))

    @classmethod
    def open(cls, settings: SshSettings) -> SshLink:
        """Connect, install the relay where it is missing, and start it, or raise ConnectionFailedError."""
        mark = f"RUNWARD-{secrets.token_hex(8)}"
        environ = {name: value for name, value in os.environ.items() if not holds_a_secret(name, value)}
        try:
            process = subprocess.Popen(
                ["ssh", "-T", *OPTIONS, "--", settings.alias, "exec /bin/sh"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environ,
                start_new_session=True,  # a Ctrl-C in the terminal does not reach it
            )
        except OSError as error:
            raise ConnectionFailedError(f"ssh could not be started: {error.strerror}", refused=False) from error
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None  # noqa: S101, PT018
        link = cls(process, FrameWriter(process.stdin.fileno()), bytearray())
        link.drain = threading.Thread(target=link._drain_errors, daemon=True)
        link.drain.start()
        timer = threading.Timer(CONNECTED_WITHIN_S, link.kill)
        timer.daemon = True
        timer.start()
        try:
            link._begin(settings, mark)
        except ConnectionFailedError:
            link.close()
            raise
        except (OSError, ValueError) as error:
            link.close()
            raise ConnectionFailedError(link.describe_end() or str(error), refused=link.was_refused) from error
        except BaseException:
            link.close()
            raise
        finally:
            timer.cancel()
        return link

    def _begin(self, settings: SshSettings, mark: str) -> None:
        digest, program = _packed_program()
        stdin = self.process.stdin
        assert stdin is not None  # noqa: S101 - it is a pipe
        stdin.write(render_bootstrap(settings, mark, digest).encode())
        stdin.flush()
        while True:
            line = self.stdout.readline(1 << 20)
            if not line:
                self.process.wait(timeout=CONNECTED_WITHIN_S)
                why = self.describe_end() or "the login shell ended before /bin/sh could start"
                raise ConnectionFailedError(why, refused=self.was_refused)
            _, marker, text = line.decode(errors="replace").partition(mark)
            if not marker or not text.strip().startswith("{"):
                continue
            facts = json.loads(text)
            if facts.get("failed"):
                raise ConnectionFailedError(_explain_failure(facts, settings))
            if facts.get("need"):
                stdin.write(b"%d\n" % len(program) + program)
                stdin.flush()
            if "state" in facts:
                break
        frame = read_frame(self.stdout)
        if frame is None or frame[0].get("push") != "hello":
            raise ConnectionFailedError(self.describe_end() or "the relay did not start")
        if "error" in frame[0]:
            raise ConnectionFailedError(str(frame[0]["error"])[:300])
        self.hello = frame[0]

    @property
    def was_refused(self) -> bool:
        """Whether the host, or this side, refused the login."""
        text = self._read_errors().lower()
        return any(words in text for words in _REFUSALS)

    def describe_end(self) -> str:
        """Return why ssh ended, by its last words, or empty where it said nothing."""
        if self.silent_s:
            return f"it was silent for {self.silent_s:.0f} s"
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=1.0)
        lines = [line.strip() for line in self._read_errors().splitlines() if line.strip()]
        text = " ".join(lines)
        if "REMOTE HOST IDENTIFICATION HAS CHANGED" in text:
            return "its host key has changed, and is not accepted: a person should find out why, then ssh-keygen -R"
        if "Host key verification failed" in text:
            return "its host key is not known here: a person should connect once by hand, and check the key"
        if self.was_refused:
            return f"the login was refused ({lines[-1][:200].rstrip('.')}): a person should log in once by hand"
        if not lines and (self.process.returncode or 0) < 0:
            return f"ssh here was ended by {signal.Signals(-self.process.returncode).name}"
        if lines and _BEHIND_JUMP in lines[-1]:  # the ssh of the ProxyJump says why, before this one sees its end
            lines = [line for line in lines if line.startswith("ssh: ")] or lines
        return lines[-1][:300] if lines else ""

    def _read_errors(self) -> str:
        """Return the last words of ssh, all of them once it has ended."""
        if self.drain is not None and self.process.poll() is not None:
            self.drain.join(_ERRORS_WITHIN_S)
        return self.errors.decode(errors="replace")

    def kill(self) -> None:
        """End the ssh process."""
        with contextlib.suppress(OSError):
            self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=5)

    def close(self) -> None:
        """End the ssh process, and close its pipes. Only the thread that reads them may."""
        self.kill()
        self.writer.close()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _drain_errors(self) -> None:
        """Keep the last words of ssh; a daemon of a ProxyJump may keep the pipe open for ever."""
        assert self.process.stderr is not None  # noqa: S101 - it is a pipe
        with self.process.stderr as pipe, contextlib.suppress(OSError, ValueError):
            while data := os.read(pipe.fileno(), 4096):
                self.errors.extend(data)
                del self.errors[:-_ERROR_BYTES]


class _HeardPipe(io.RawIOBase):
    """The output of ssh. It notes when bytes come: a large frame on a slow line comes for minutes."""

    def __init__(self, link: SshLink) -> None:
        assert link.process.stdout is not None  # noqa: S101 - it is a pipe
        self._link, self._fd = link, link.process.stdout.fileno()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = os.readv(self._fd, [buffer])
        if count:
            self._link.heard_s = time.monotonic()
        return count


@functools.cache
def _packed_program() -> tuple[str, bytes]:
    """Return the name of the relay's content, and the content."""
    program = pack_zipapp()
    return hashlib.sha256(program).hexdigest()[:16], program


def _explain_failure(facts: dict[str, Any], settings: SshSettings) -> str:
    if facts["failed"] == "prepare":
        problem = "takes longer than 10 s" if facts.get("found") == "slow" else "fails"
        said = f", which says: {facts['said']}" if facts.get("said") else ""
        return f"its prepare line {problem}: {settings.prepare[:200]!r}{said}"
    if facts["failed"] == "python":
        interpreters = str(facts.get("found") or "").rstrip(", ") or "none at all"
        return (
            f"it has no Python 3.9 or newer (found: {interpreters}): "
            f"write python = or prepare = into hosts.{settings.name} "
            "of hosts.toml, or have a person run `uv python install 3.12` there"
        )
    return (
        f"its state directory cannot be used ({facts.get('found')}): a person should make it writable or free space "
        f"there, or write state = into hosts.{settings.name} of hosts.toml"
    )


_PING_S, _SILENT_S = 10.0, 30.0
_ASKED_S, _ANSWERED_WITHIN_S = 2.0, 8.0
_SLOWEST = 64 * 2**10  # bytes a second: what is sent goes before the ping
_LOOK_S = 0.5  # between two looks while somebody waits


@dataclass(frozen=True)
class Awaited:
    """A request that others wait for: since when, in monotonic seconds, and how many bytes their questions have."""

    since_s: float
    sent_bytes: int = 0


@dataclass
class Silence:
    """What is known of a connection's silence, in monotonic seconds. Pure.

    ``unanswered_s``: when the first ping was sent after which nothing has come, if that is later than the last word.
    """

    pinged_s: float
    unanswered_s: float = 0.0

    def decide(self, now_s: float, heard_s: float, awaited: Awaited | None) -> Literal["ping", "dead"] | None:
        """Return what is due. ``heard_s``: when the last byte came."""
        allowed_s = awaited.sent_bytes / _SLOWEST if awaited else 0.0
        is_unanswered = self.unanswered_s > heard_s
        if now_s - heard_s > _SILENT_S + allowed_s:
            return "dead"
        if awaited and now_s - max(heard_s, awaited.since_s) >= _ASKED_S:
            if not is_unanswered:
                return "ping"
            if now_s - self.unanswered_s >= _ANSWERED_WITHIN_S + allowed_s:
                return "dead"
        return "ping" if now_s - self.pinged_s >= _PING_S else None

    def note_ping(self, now_s: float, heard_s: float) -> None:
        """Note that a ping is sent."""
        self.pinged_s = now_s
        if self.unanswered_s <= heard_s:
            self.unanswered_s = now_s


class SilenceWatch:
    """Pings a connection, and kills it once it is silent: packets may vanish without a word.

    An idle connection is pinged every 10 s, and given up after 30 s without a word. Where somebody waits for an answer,
    it is pinged as soon as nothing has come for 2 s, and given up 8 s after that. A relay that is busy still answers
    pings, each in a thread of its own, and every byte counts as a word: a host that works long, or a slow line, is not
    silent. Starts a thread, which never waits for the connection.

    ``find_awaited`` says what others wait for. ``on_ping`` is called with each ping.
    """

    def __init__(self, link: SshLink, find_awaited: Callable[[], Awaited | None], on_ping: Callable[[], None]) -> None:
        self._link, self._find_awaited, self._on_ping = link, find_awaited, on_ping
        self._wake, self._stopped = threading.Event(), False
        threading.Thread(target=self._run, daemon=True).start()

    def wake(self) -> None:
        """Call this when somebody begins to wait."""
        self._wake.set()

    def stop(self) -> None:
        """End the watch: the connection has ended."""
        self._stopped = True
        self._wake.set()

    def _run(self) -> None:
        silence = Silence(time.monotonic())
        while not self._stopped:
            awaited, link = self._find_awaited(), self._link
            now_s, heard_s = time.monotonic(), link.heard_s
            due = silence.decide(now_s, heard_s, awaited)
            if due == "dead" and not self._has_unread():
                link.silent_s = now_s - heard_s
                link.kill()
                return
            if due == "ping":
                silence.note_ping(now_s, heard_s)
                link.writer.write_if_free({"id": 0, "ask": "ping"})
                self._on_ping()
            self._wake.wait(_LOOK_S if awaited else max(_LOOK_S, silence.pinged_s + _PING_S - now_s))
            self._wake.clear()

    def _has_unread(self) -> bool:
        """Return whether something has come that is not read yet: this process was suspended, or its disk is slow."""
        poll = select.poll()
        try:
            poll.register(self._link.process.stdout, select.POLLIN)  # type: ignore[arg-type]
        except ValueError:  # it was closed
            return False
        return bool(poll.poll(0))
