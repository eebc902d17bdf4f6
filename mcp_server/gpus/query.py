"""Asks for the GPUs' state in a process of its own, which is left behind when the driver hangs."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from mcp_server.gpus.snapshot import Snapshot
from mcp_server.record.run_directory import now

PROGRAM = Path(__file__).resolve().parent / "nvml"

_CHUNK = 65536
_GONE_S = 0.2
_SAID_CHARS = 300
_START_S = 0.3  # of Python, before the program counts its own time
# Killed, and still in a call that does not come back: reaped when the kernel lets go of them. They keep their memory.
_MOST_LEFT = 16
# Not killed, since they keep a slow driver started for whoever asks next; they end by themselves.
_MOST_LINGERING = 2
_left: list[subprocess.Popen[bytes]] = []


def ask(
    python: str,
    env: Mapping[str, str],
    *,
    near: bool = False,
    since_s: float | None = None,
    within_s: float = 10.0,
) -> Snapshot:
    """Return all GPUs now; what keeps them from being told is its ``trouble``. Blocks for up to ``within_s``.

    ``near``: also how close they are to each other. ``since_s``: how old Xids in the kernel's log may be.
    """
    if len(_still_left()) >= _MOST_LEFT:
        text = f"The NVIDIA driver has not answered {_MOST_LEFT} times. A person should look at `dmesg`, and reboot."
        return Snapshot(now(), trouble="hangs", text=text)
    words = ["--within", f"{max(_START_S, within_s - _START_S):g}", *(["--near"] if near else [])]
    words += ["--since", str(since_s)] if since_s is not None else []
    try:
        process = _start(python, env, words, stderr=subprocess.PIPE)
    except OSError as error:
        return Snapshot(now(), trouble="failed", text=f"{python} could not be started: {error.strerror}.")
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    told = _line(process.stdout.fileno(), time.monotonic() + within_s)
    if told is None:
        _end(process)
        text = f"The NVIDIA driver did not answer within {within_s:g} s. A person should look at `dmesg`, and reboot."
        return Snapshot(now(), trouble="hangs", text=text)
    snapshot = _parse(told)
    said = "" if snapshot else _crash(process)
    if snapshot and _hangs(snapshot) and len(_still_left()) < _MOST_LINGERING:
        _leave(process)
    else:
        _end(process)
    return snapshot or Snapshot(now(), trouble="failed", text=f"The NVIDIA driver could not be asked: {said}")


class Sampler:
    """Asks again and again, in one process, without ever waiting for it. ``uuids``: of which GPUs, all when empty."""

    def __init__(self, python: str, env: Mapping[str, str], uuids: Sequence[str], every_s: float) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._begun = b""
        with contextlib.suppress(OSError):
            words = ["--every", str(every_s), "--gpus", ",".join(uuids)]
            self._process = _start(python, env, words, stderr=subprocess.DEVNULL)
            if self.fd is not None:
                os.set_blocking(self.fd, False)

    @property
    def alive(self) -> bool:
        """Whether there is something to be read, now or later."""
        return self._process is not None

    @property
    def fd(self) -> int | None:
        """What becomes readable when there is a snapshot; None when it has died."""
        stdout = self._process.stdout if self._process else None
        return stdout.fileno() if stdout else None

    @property
    def pid(self) -> int | None:
        """The process that asks; None when it has died."""
        return self._process.pid if self._process else None

    def read(self) -> list[Snapshot] | None:
        """Return the snapshots that have come since, without waiting; None when it has died."""
        if (fd := self.fd) is None:
            return None
        try:
            while chunk := os.read(fd, _CHUNK):
                self._begun += chunk
            self.close()
        except BlockingIOError:
            pass
        except OSError:
            self.close()
        *lines, self._begun = self._begun.split(b"\n")
        found = [snapshot for line in lines if (snapshot := _parse(line)) is not None]
        return found if found or self.alive else None

    def close(self) -> None:
        """Stop asking."""
        if self._process is not None:
            _end(self._process)
            self._process = None


def _still_left() -> list[subprocess.Popen[bytes]]:
    _left[:] = [process for process in _left if process.poll() is None]
    return _left


def _start(python: str, env: Mapping[str, str], words: list[str], *, stderr: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [python, "-I", str(PROGRAM), *words],
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,  # a Ctrl-C in the terminal is not for it
    )


def _line(fd: int, until_s: float) -> bytes | None:
    """Return one line, or what came before the end; None when nothing has ended by then.

    Not until the process has gone: one thread of it may hang, and keep its pipe open.
    """
    told = b""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while not told.endswith(b"\n"):
        if not poll.poll(max(0.0, until_s - time.monotonic()) * 1000):
            return None
        chunk = os.read(fd, _CHUNK)
        if not chunk:
            break
        told += chunk
    return told


def _parse(line: bytes) -> Snapshot | None:
    with contextlib.suppress(ValueError, RecursionError):
        facts = json.loads(line)
        if isinstance(facts, dict):
            return Snapshot.of(facts)
    return None


def _crash(process: subprocess.Popen[bytes]) -> str:
    """Return how the process ended, which it has, or is about to."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GONE_S)
    status = process.returncode
    if status is not None and status < 0:
        with contextlib.suppress(ValueError):
            return f"its library crashed with {signal.Signals(-status).name}. A person should reinstall the driver."
    said = b""
    if process.stderr is not None:
        os.set_blocking(process.stderr.fileno(), False)
        with contextlib.suppress(OSError):
            said = os.read(process.stderr.fileno(), _CHUNK)
    last = said.decode(errors="replace").strip().splitlines()[-1:] or [f"exit status {status}"]
    return f"{last[0][:_SAID_CHARS]}."


def _hangs(snapshot: Snapshot) -> bool:
    return snapshot.trouble == "hangs" or any(gpu.hangs for gpu in snapshot.gpus)


def _leave(process: subprocess.Popen[bytes]) -> None:
    """Read it no more, and let it end by itself."""
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    _left.append(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill it, and do not wait for what the kernel does not let go."""
    with contextlib.suppress(OSError):
        process.kill()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(_GONE_S)
    except subprocess.TimeoutExpired:
        _left.append(process)
