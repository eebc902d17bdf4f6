"""Runs a program, with limits of time and of output: it is killed where it prints too much or takes too long."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import BinaryIO, NamedTuple

_PIECE_BYTES = 65_536


class Captured(NamedTuple):
    """The output of a program. ``cut``: it was killed, as it printed more than it may on one of both ways."""

    code: int
    output: bytes
    complaint: str
    cut: bool = False


def run_captured(
    words: Sequence[str], env: Mapping[str, str], *, most_bytes: int, limit_s: float, stdin: BinaryIO | None = None
) -> Captured:
    """Run a program to its end, and return what it printed.

    No limit of the kernel's serves that: a program of Slurm would pass it on to a job.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: it has not ended after ``limit_s``.
    """
    give_up_s = time.monotonic() + limit_s
    with subprocess.Popen(
        words,
        env=env,
        stdin=stdin or subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            output, complaint = _read_output(process, most_bytes, give_up_s)
            if max(len(output), len(complaint)) > most_bytes:
                return Captured(0, bytes(output[:most_bytes]), "", cut=True)
            code = process.wait(max(0.0, give_up_s - time.monotonic()))
            return Captured(code, bytes(output), complaint.decode(errors="replace"))
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _read_output(process: subprocess.Popen[bytes], most_bytes: int, give_up_s: float) -> list[bytearray]:
    """Return what a process prints on both ways, until it closes them, or one is longer than ``most_bytes``."""
    texts = {stream.fileno(): bytearray() for stream in (process.stdout, process.stderr) if stream is not None}
    with selectors.DefaultSelector() as ready:
        for fd in texts:
            ready.register(fd, selectors.EVENT_READ)
        while ready.get_map() and max(map(len, texts.values())) <= most_bytes:
            left_s = give_up_s - time.monotonic()
            if left_s <= 0:
                raise subprocess.TimeoutExpired(process.args, left_s)
            for key, _ in ready.select(left_s):
                data = os.read(key.fd, _PIECE_BYTES)
                texts[key.fd] += data
                if not data:
                    ready.unregister(key.fd)
    return list(texts.values())
