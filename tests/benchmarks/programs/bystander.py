"""Notes every signal it gets: `bystander.py LOG WORDS…`. The words make it look like somebody else."""

import os
import signal
import sys
import time
from types import FrameType

log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def note(number: int, frame: FrameType | None) -> None:
    """Write the signal's name; nobody sends one by right."""
    os.write(log, f"{signal.Signals(number).name}\n".encode())


for one in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    signal.signal(one, note)
until_s = time.monotonic() + 120
while time.monotonic() < until_s:
    time.sleep(5)
