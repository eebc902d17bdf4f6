"""The small parent of a server over stdio: when the server dies, it starts a new one, and the client notices nothing.

It forks the server before much is loaded, and passes messages on by whole lines. What a client has not been answered
is kept, and repeated to the next server, whose requests are marked with the seconds since they came. An end of the
client, a signal to this process, an exit with status 0, or one before the first answer, is an end for good.
While the first server loads, this process may answer in its place: the server is asked all the same, and not heard.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import re
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

REPEATED = "runward/repeated"  # in `_meta` of a repeated request: the seconds since it came
# Of a dead server's questions, and of the first one's, no answer is taken for one to the present server's.
_QUESTIONS = 1_000_000
# Servers that die so soon without a message, one after the other; of a minute in which the client heard nothing; soon
# after one request had come to them.
_MOST_AT_ONCE, _AT_ONCE_S, _PAUSE_S = 10, 2.0, 0.1
_MOST_OF_MINUTE, _MINUTE_S = 30, 60.0
_MOST_DEATHS, _SOON_S = 3, 30.0
_MOST_WAITING, _PIECE = 1 << 20, 1 << 16
_WRITABLE = 4096  # bytes that a pipe or socket takes without a pause once it is said to be writable
_PIPES_BYTES = 1 << 20  # the most that any pipe holds
_PR_SET_PDEATHSIG = 1
_SIGNALLED = 128  # and the signal: the status of a program that it interrupted
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_INTERNAL_ERROR = -32603
_HEAD = re.compile(rb'\{"jsonrpc":"2\.0","id":(-?\d+|"(?:[^"\\]|\\.)*"),"(method|result|error)"')
_LISTENS = b'{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged"'
_SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
_CALLS_OFF = b'{"jsonrpc":"2.0","method":"notifications/cancelled"'


class _Asked(NamedTuple):
    """A request without an answer: the line, when it came, and how many servers died soon after they had it."""

    line: bytes
    came_s: float
    sent_s: float
    deaths: int = 0


def keep_server(find_answer: Callable[[Mapping[str, Any]], Mapping[str, Any] | None]) -> int | None:
    """Return None in a process that is to serve, and in its parent, at the end, the exit status.

    State that a server leaves to the next one is in the file ``kept_fd()``. ``find_answer`` takes a request and
    returns what any server answers to it at once, None for most.
    """
    try:
        for fd in (0, 1):
            os.fstat(fd)
        keeper = _Keeper(find_answer)
    except OSError:  # no client, or no descriptors
        return None
    return keeper.run()


_kept = [-1]


def kept_fd() -> int | None:
    """Return the file that the servers of one client have in common, None where this one has no parent."""
    return None if _kept[0] < 0 else _kept[0]


class _Keeper:
    def __init__(self, find_answer: Callable[[Mapping[str, Any]], Mapping[str, Any] | None]) -> None:
        self._find_answer = find_answer
        if hasattr(os, "memfd_create"):
            _kept[0] = os.memfd_create("runward")
        self._news, self._bell = os.pipe()
        for fd in (self._news, self._bell):
            os.set_blocking(fd, False)
        self._former: dict[int, Any] = {}
        self._signals: list[int] = []  # that were passed on, or would have been
        self._pid = self._generation = self._at_once = 0
        self._deaths_s: deque[float] = deque(maxlen=_MOST_OF_MINUTE)
        self._asked: dict[str, _Asked] = {}
        self._handshake: tuple[str, bytes] | None = None  # the answered request, by its key
        self._initialized = b""
        self._muted: set[str] = set()  # requests that need no further answer
        self._acknowledged: set[str] = set()  # subscriptions
        self._held: list[bytes] | None = None  # until the new server has answered the handshake
        self._questions: set[int] = set()
        self._client = bytearray()  # the begin of a line
        self._server = bytearray()
        self._to_client = bytearray()
        self._to_server: deque[bytes] = deque()
        self._is_over = False  # the client sends no more

    def run(self) -> int | None:
        for number in _PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._former[number] = signal.signal(number, self._pass_on_signal)
        self._former[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._bell, warn_on_full_buffer=False)
        gc.freeze()
        while True:
            if self._start():
                return None
            status = self._serve()
            if (end := self._find_end(status)) is not None:
                return self._end(end)
            self._prepare_repeats()

    # --- processes

    def _start(self) -> bool:
        """Fork a server; True in the child."""
        while True:
            try:
                self._their_in, self._in = os.pipe()
                self._out, their_out = os.pipe()
                # A signal that the child takes before it has its own handlers would be lost.
                signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
                parent, pid = os.getpid(), os.fork()
                break
            except OSError:  # no memory, no process: the client may wait longer than that lasts
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
                time.sleep(_PAUSE_S)
        if not pid:
            _die_with(parent)
            signal.set_wakeup_fd(-1)
            for number, former in self._former.items():
                signal.signal(number, former)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
            os.dup2(self._their_in, 0)
            os.dup2(their_out, 1)
            for fd in (self._their_in, self._in, self._out, their_out, self._news, self._bell):
                os.close(fd)
            return True
        os.close(their_out)  # the other end is kept: after a death it holds the lines that nobody has read
        for fd in (self._in, self._out):
            os.set_blocking(fd, False)
        self._pid, self._began_s, self._has_spoken, self._is_mute = pid, time.monotonic(), False, False
        self._sent, self._written, self._starts = 0, 0, deque[int]()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        return False

    def _pass_on_signal(self, number: int, _: object) -> None:
        self._signals.append(number)
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _serve(self) -> int:
        """Pass messages on until the server has ended; return how, as ``os.waitstatus_to_exitcode`` does."""
        while True:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._pid = 0
                break
            self._pass_on()
        while self._read_server():
            pass
        return os.waitstatus_to_exitcode(status)

    def _find_end(self, status: int) -> int | None:
        """Return with which status to end, negative for a signal; None where a new server is to go on."""
        if self._signals and status == _SIGNALLED + self._signals[-1]:  # it was not ready to die by it
            return -self._signals[-1]
        if self._is_over or status == 0 or (status > 0 and not self._has_spoken):
            return status
        now_s = time.monotonic()
        self._deaths_s.append(now_s)
        is_at_once = not self._has_spoken and now_s - self._began_s < _AT_ONCE_S
        self._at_once = self._at_once + 1 if is_at_once else 0
        are_many = len(self._deaths_s) == _MOST_OF_MINUTE and now_s - self._deaths_s[0] < _MINUTE_S
        if self._at_once < _MOST_AT_ONCE and not are_many:
            time.sleep(_PAUSE_S * self._at_once)
            return -self._signals[-1] if self._signals else None
        count = len(self._deaths_s) if are_many else self._at_once
        why = f"signal {-status}" if status < 0 else f"status {status}"
        reason = f"The server of runward was ended {count} times one after the other ({why})."
        print(f"runward: {reason}", file=sys.stderr, flush=True)
        for key in list(self._asked):
            self._refuse(key, f"{reason} Runs go on. A person should start it anew.")
        return 1

    def _end(self, status: int) -> int:
        with contextlib.suppress(OSError):
            os.set_blocking(1, True)
            while self._to_client:
                del self._to_client[: os.write(1, self._to_client)]
        return status if status >= 0 else _die_by(-status)

    # --- after a death

    def _prepare_repeats(self) -> None:
        """Queue for a new server: the handshake, the open requests, and lines that no server has read."""
        unread, now_s = self._take_unread(), time.monotonic()
        for number in sorted(self._questions):
            self._tell({"method": "notifications/cancelled", "params": {"requestId": number}})
        self._questions.clear()
        self._generation += 1
        self._server.clear()
        known = {self._initialized, *(self._handshake or ())[1:]}
        unread = [line for line in unread if line not in known and _key_of(_load(line)) not in self._muted]
        self._muted.clear()
        new = {key for key in map(_key_of, map(_load, unread)) if key is not None}
        repeats = []
        for key, asked in list(self._asked.items()):
            if key in new:
                continue
            deaths = asked.deaths + (now_s - asked.sent_s < _SOON_S)
            if deaths >= _MOST_DEATHS:
                self._refuse(
                    key,
                    f"The server of runward died {deaths} times while it worked on this call, and was started anew. "
                    "Runs go on: list_runs names them. Ask for less, or for another thing.",
                )
                continue
            self._asked[key] = asked._replace(deaths=deaths, sent_s=now_s)
            repeats.append(_mark(asked.line, now_s - asked.came_s))
        for fd in (self._in, self._their_in, self._out):
            os.close(fd)
        self._held = None
        if self._handshake is not None:
            self._shake_hands(*self._handshake)
        for line in repeats:
            self._send(line)
        for line in unread:
            self._take_client_line(line)

    def _shake_hands(self, key: str, line: bytes) -> None:
        """Ask the server for a handshake that the client has, and hold all else until it has answered."""
        self._handshake = key, line
        self._muted.add(key)
        self._to_server.append(line)
        self._held = []

    def _take_unread(self) -> list[bytes]:
        """Return the whole lines for the dead server that it has not read."""
        data = bytearray()
        os.set_blocking(self._their_in, False)  # not before: the server reads by the same description
        with contextlib.suppress(OSError):
            while piece := os.read(self._their_in, _PIECE):
                data += piece
        first = self._sent - len(data)
        at = next((start - first for start in self._starts if start >= first), len(data))
        lines = bytes(data[at:]).split(b"\n")[:-1]
        unread = [*(line + b"\n" for line in lines), *self._to_server, *(self._held or ())]
        self._to_server.clear()
        return unread

    def _refuse(self, key: str, text: str) -> None:
        self._tell({"id": json.loads(key), "error": {"code": _INTERNAL_ERROR, "message": text}})
        del self._asked[key]

    def _tell(self, message: Mapping[str, Any]) -> None:
        self._to_client += json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"

    # --- messages

    def _pass_on(self) -> None:
        """Wait until something can be read or written, and do it."""
        waiting = _MOST_WAITING if len(self._to_server) > _WRITABLE else sum(map(len, self._to_server))
        acts: dict[int, tuple[int, Callable[[], object]]] = {
            self._news: (select.POLLIN, lambda: os.read(self._news, _PIECE))
        }
        if not self._is_over and waiting < _MOST_WAITING:
            acts[0] = select.POLLIN, self._read_client
        if not self._is_mute and len(self._to_client) < _MOST_WAITING:
            acts[self._out] = select.POLLIN, self._read_server
        if self._to_client:
            acts[1] = select.POLLOUT, self._write_client
        if self._to_server:
            acts[self._in] = select.POLLOUT, self._write_server
        elif self._is_over and self._held is None and self._in >= 0:
            os.close(self._in)
            self._in = -1
        poll = select.poll()
        for fd, (events, _) in acts.items():
            poll.register(fd, events)
        for fd, _ in poll.poll():
            acts[fd][1]()

    def _read_client(self) -> None:
        try:
            data = os.read(0, _PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._is_over = True
            if self._client:
                self._send(bytes(self._client))
            return
        for line in _cut_lines(self._client, data):
            self._take_client_line(line)

    def _take_client_line(self, line: bytes) -> None:
        """Pass a line on to the server, and note what it asks. What cannot be read is the server's to judge."""
        message = _load(line)
        method, key = message.get("method"), _key_of(message)
        if key is not None:
            if key not in self._asked:
                self._acknowledged.discard(key)
            if not (self._generation or self._has_spoken) and self._answer_first(key, message, line):
                return
            now_s = time.monotonic()
            self._asked.setdefault(key, _Asked(line, now_s, now_s))
        elif method == "notifications/initialized":
            self._initialized = line
            if self._held is not None:  # the handshake is repeated with it
                return
        elif method == "notifications/cancelled":
            params = message.get("params")
            self._asked.pop(json.dumps(params.get("requestId") if isinstance(params, dict) else None), None)
        elif method is None and isinstance(message.get("id"), int):
            generation, number = divmod(message["id"], _QUESTIONS)
            if generation != self._generation:
                return  # a dead server has asked
            self._questions.discard(message["id"])
            line = line if not generation else json.dumps({**message, "id": number}).encode() + b"\n"
        self._send(line)

    def _answer_first(self, key: str, message: Mapping[str, Any], line: bytes) -> bool:
        """Answer in the place of the server, as far as that can be done. Return whether the line was passed on."""
        if (answer := self._find_answer(message)) is None:
            return False
        self._tell(answer)
        if "result" not in answer:  # a subscription, which is open
            self._acknowledged.add(key)
            return False
        if message["method"] == "initialize":
            self._shake_hands(key, line)
        else:
            self._muted.add(key)
            self._send(line)
        return True

    def _send(self, line: bytes) -> None:
        if self._held is not None:
            self._held.append(line)
        else:
            self._to_server.append(line)

    def _write_server(self) -> None:
        line = self._to_server[0]
        if not self._written:
            self._starts.append(self._sent)
            while self._starts[0] < self._sent - _PIPES_BYTES:
                self._starts.popleft()
        try:
            written = os.write(self._in, memoryview(line)[self._written :])
        except BlockingIOError:
            return
        except OSError:  # it is about to end
            self._to_server.clear()
            return
        self._sent += written
        self._written += written
        if self._written == len(line):
            self._to_server.popleft()
            self._written = 0

    def _read_server(self) -> bool:
        """Read what the server has written; False where there is no more now."""
        try:
            data = os.read(self._out, _PIECE)
        except BlockingIOError:
            return False
        if not data:
            self._is_mute = True
            return False
        for line in _cut_lines(self._server, data):
            self._take_server_line(line)
        return True

    def _take_server_line(self, line: bytes) -> None:
        self._has_spoken = True
        if (head := _HEAD.match(line)) is None:
            if line.startswith((_LISTENS, _CALLS_OFF)):
                line = self._adapt(line)
            self._to_client += line
            self._deaths_s.clear()
            return
        if head[2] == b"method" and head[1].isdigit():
            number = int(head[1]) + self._generation * _QUESTIONS
            self._questions.add(number)
            self._to_client += line[: head.start(1)] + b"%d" % number + line[head.end(1) :]
            return
        key = json.dumps(json.loads(head[1]))
        asked = self._asked.pop(key, None)
        if key in self._muted:
            self._muted.discard(key)
            if self._held is not None and self._handshake is not None and key == self._handshake[0]:
                held, self._held = self._held, None
                self._to_server.extend([self._initialized, *held] if self._initialized else held)
            return
        if asked is not None and head[2] == b"result" and _load(asked.line).get("method") == "initialize":
            self._handshake = (key, asked.line)
        self._to_client += line
        self._deaths_s.clear()

    def _adapt(self, line: bytes) -> bytes:
        """Return a server's message as the client may have it: a subscription is confirmed once."""
        message = _load(line)
        if line.startswith(_LISTENS):
            key = json.dumps(message["params"]["_meta"].get(_SUBSCRIPTION))
            known = key in self._acknowledged
            self._acknowledged.add(key)
            return b"" if known else line
        number = message["params"]["requestId"]
        if not (self._generation and isinstance(number, int)):
            return line
        message["params"]["requestId"] = number + self._generation * _QUESTIONS
        return json.dumps(message).encode() + b"\n"

    def _write_client(self) -> None:
        try:
            del self._to_client[: os.write(1, self._to_client[:_WRITABLE])]
        except BlockingIOError:
            pass
        except OSError:  # the client reads no more: it has gone
            self._to_client.clear()
            self._is_over, self._held = True, None
            self._to_server.clear()


def _cut_lines(begun: bytearray, data: bytes) -> list[bytes]:
    """Return the lines that ``data`` completes, and keep the begin of the next one in ``begun``."""
    if b"\n" not in data:
        begun += data
        return []
    *lines, rest = (bytes(begun) + data).split(b"\n")
    begun[:] = rest
    return [line + b"\n" for line in lines]


def _load(line: bytes) -> dict[str, Any]:
    """Return a message, empty where it is none that is understood here."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


def _key_of(message: Mapping[str, Any]) -> str | None:
    """Return the id of a request as JSON; None for other messages."""
    number = message.get("id")
    is_id = isinstance(number, (int, str)) and not isinstance(number, bool)
    return json.dumps(number) if is_id and "method" in message else None


def _mark(line: bytes, waited_s: float) -> bytes:
    message = json.loads(line)
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    if message["method"] == "initialize" or not isinstance(params or {}, dict):
        return line
    meta = {**(meta if isinstance(meta, dict) else {}), REPEATED: round(waited_s, 3)}
    return json.dumps({**message, "params": {**(params or {}), "_meta": meta}}).encode() + b"\n"


def _die_with(parent: int) -> None:
    """Let the end of ``parent`` end this process, its child. Where the kernel does not, the end of its input does."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _die_by(number: int) -> NoReturn:
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)
