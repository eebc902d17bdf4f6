"""Writes what really happens to a run into a file of its own, which the product does not read.

``TRUTH KIND EXIT SECONDS [LOCK]``: one line at each start, one for each signal that arrives, and one just before the
end. ``KIND``: ``plain``; ``deaf`` ignores a hang-up; ``fails_once`` fails in its first attempt; ``stays`` works until
it is stopped. A run with a cpu slot locks a file of that slot, and one with LOCK that file; it notes ``overlap`` where
another run has it.
"""

import fcntl
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Work for SECONDS and exit with EXIT."""
    truth, kind, status, seconds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    attempt = os.environ.get("RUNWARD_ATTEMPT", "?")
    fd = os.open(truth, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(text: str) -> None:
        os.write(fd, f"{attempt} {text}\n".encode())

    def on_signal(number: int, _: Any) -> None:
        note(f"signal {signal.Signals(number).name}")
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)
    if kind == "deaf":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    note(f"start {os.getpid()}")
    slots = [f"slot-{slot}" for slot in filter(None, os.environ.get("RUNWARD_GPUS", "").split(","))]
    for name in [*slots, *sys.argv[5:6]]:
        lock = os.open(truth.parent / name, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note(f"overlap {name}")
    until_s, step = time.monotonic() + seconds, 0
    while kind == "stays" or time.monotonic() < until_s:
        step += 1
        try:
            print(f"step {step}/1000 loss {1 / step:.4f}", flush=True)
        except OSError:  # the terminal is gone
            kind = "stays" if kind == "stays" else "plain"
        time.sleep(0.1)
    if kind == "fails_once" and attempt == "1":
        status = 1
        print("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB", flush=True)
    note(f"exit {status}")
    os._exit(status)


if __name__ == "__main__":
    main()
