"""Queries the state of the GPUs in a separate process, which is abandoned when the driver hangs."""

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
from mcp_server.record.codec import decode
from mcp_server.record.run_directory import now
from mcp_server.system.files import find_archive
from mcp_server.system.processes import wait_channel

PROGRAM = Path(__file__).resolve().parent / "nvml"

_CHUNK = 65536
_EXIT_S = 0.2
_MOST_ERROR_CHARS = 300
_START_S = 0.3  # of Python, before the program counts its own time
# Processes that are killed, and still in a call that does not return: the kernel keeps them and their memory.
_MOST_ABANDONED = 16
# Processes that are not killed, to keep a slow driver started for the next query; they end by themselves.
_MOST_LINGERING = 2
_abandoned: list[subprocess.Popen[bytes]] = []


def query_gpus(
    python: str, env: Mapping[str, str], *, near: bool = False, since_s: float | None = None, within_s: float = 10.0
) -> Snapshot:
    """Return all GPUs now. ``Snapshot.trouble`` says why there are none. Blocks for up to ``within_s``.

    ``near``: query also the links between GPUs. ``since_s``: the greatest age of Xid errors from the kernel's log.
    """
    if len(_reap_abandoned()) >= _MOST_ABANDONED:
        text = (
            f"The NVIDIA driver has not answered {_MOST_ABANDONED} times. A person should look at `dmesg`, and reboot."
        )
        return Snapshot(now(), trouble="hangs", text=text)
    words = ["--within", f"{max(_START_S, within_s - _START_S):g}", *(["--near"] if near else [])]
    words += ["--since", str(since_s)] if since_s is not None else []
    try:
        process = _start(python, env, words, stderr=subprocess.PIPE)
    except OSError as error:
        return Snapshot(now(), trouble="failed", text=f"{python} could not be started: {error.strerror}.")
    assert process.stdout is not None  # noqa: S101 - stdout is a pipe
    line = _read_line(process.stdout.fileno(), time.monotonic() + within_s)
    if line is None:
        # The program itself says what a call into the driver does not return from, unless the kernel holds all of it.
        is_held = wait_channel(process.pid).startswith("D")
        _kill(process)
        if is_held:
            text = (
                f"The NVIDIA driver did not answer within {within_s:g} s. A person should look at `dmesg`, and reboot."
            )
            return Snapshot(now(), trouble="hangs", text=text)
        text = f"The GPUs were not read within {within_s:g} s: this host is busy, or its driver slow. Ask again later."
        return Snapshot(now(), trouble="failed", text=text)
    snapshot = _parse_snapshot(line)
    error_text = "" if snapshot else _describe_crash(process)
    hangs = snapshot and (snapshot.trouble == "hangs" or any(gpu.hangs for gpu in snapshot.gpus))
    if hangs and len(_reap_abandoned()) < _MOST_LINGERING:
        _close_pipes(process)  # it ends by itself
        _abandoned.append(process)
    else:
        _kill(process)
    return snapshot or Snapshot(now(), trouble="failed", text=f"The NVIDIA driver could not be queried: {error_text}")


class GpuSampler:
    """Samples GPUs in one process, and never blocks on it. ``uuids``: the GPUs to sample. Empty: all."""

    def __init__(self, python: str, env: Mapping[str, str], uuids: Sequence[str], every_s: float) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._partial = b""
        with contextlib.suppress(OSError):
            words = ["--every", str(every_s), "--gpus", ",".join(uuids)]
            self._process = _start(python, env, words, stderr=subprocess.DEVNULL)
            if self.fd is not None:
                os.set_blocking(self.fd, False)

    @property
    def alive(self) -> bool:
        """Whether the process may still deliver snapshots."""
        return self._process is not None

    @property
    def fd(self) -> int | None:
        """The descriptor that becomes readable with a snapshot, or None when the process has died."""
        stdout = self._process.stdout if self._process else None
        return stdout.fileno() if stdout else None

    @property
    def pid(self) -> int | None:
        """The process that samples, or None when it has died."""
        return self._process.pid if self._process else None

    def read(self) -> list[Snapshot] | None:
        """Return the snapshots since the last call, without waiting, or None when the process has died."""
        if (fd := self.fd) is None:
            return None
        try:
            while chunk := os.read(fd, _CHUNK):
                self._partial += chunk
            self.close()
        except BlockingIOError:
            pass
        except OSError:
            self.close()
        *lines, self._partial = self._partial.split(b"\n")
        snapshots = [snapshot for line in lines if (snapshot := _parse_snapshot(line)) is not None]
        return snapshots if snapshots or self.alive else None

    def close(self) -> None:
        """Kill the process."""
        if self._process is not None:
            _kill(self._process)
            self._process = None


def _reap_abandoned() -> list[subprocess.Popen[bytes]]:
    _abandoned[:] = [process for process in _abandoned if process.poll() is None]
    return _abandoned


def _program() -> list[str]:
    archive = find_archive()
    return [str(PROGRAM)] if archive is None else [str(archive), "--nvml"]


def _start(python: str, env: Mapping[str, str], words: list[str], *, stderr: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [python, "-I", *_program(), *words],
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,  # so a Ctrl-C in the terminal does not reach it
    )


def _read_line(fd: int, until_s: float) -> bytes | None:
    """Return one line, or the text before the end of the pipe; None at ``until_s`` (monotonic).

    Does not wait for the process to end: one of its threads may hang, and keep the pipe open.
    """
    line = b""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while not line.endswith(b"\n"):
        if not poll.poll(max(0.0, until_s - time.monotonic()) * 1000):
            return None
        chunk = os.read(fd, _CHUNK)
        if not chunk:
            break
        line += chunk
    return line


def _parse_snapshot(line: bytes) -> Snapshot | None:
    with contextlib.suppress(ValueError, RecursionError):
        facts = json.loads(line)
        if isinstance(facts, dict):
            return decode(Snapshot, facts)
    return None


def _describe_crash(process: subprocess.Popen[bytes]) -> str:
    """Return how the process ended; it has closed its output, and has ended or is about to."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_EXIT_S)
    status = process.returncode
    if status is not None and status < 0:
        with contextlib.suppress(ValueError):
            return f"its library crashed with {signal.Signals(-status).name}. A person should reinstall the driver."
    output = b""
    if process.stderr is not None:
        os.set_blocking(process.stderr.fileno(), False)
        with contextlib.suppress(OSError):
            output = os.read(process.stderr.fileno(), _CHUNK)
    last = output.decode(errors="replace").strip().splitlines()[-1:] or [f"exit status {status}"]
    return f"{last[0][:_MOST_ERROR_CHARS]}."


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process; abandon it when a call into the driver keeps it from ending."""
    with contextlib.suppress(OSError):
        process.kill()
    _close_pipes(process)
    try:
        process.wait(_EXIT_S)
    except subprocess.TimeoutExpired:
        _abandoned.append(process)
