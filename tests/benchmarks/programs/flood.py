"""Prints numbered lines between bits of work, and measures how long that took: `flood.py LINES WORK RESULT`."""

import json
import sys
import time
from pathlib import Path


def line(number: int) -> str:
    """Return line ``number``: 60 bytes with its end."""
    return f"step {number:06d} loss 2.3456 lr 3.0e-05 grad 0.9876 tok/s 512345"


def work(turns: int) -> int:
    """Keep a core busy; the same for every turn."""
    value = 1
    for _ in range(turns):
        value = (value * 31 + 7) & 0xFFFF
    return value


def main() -> None:
    """Work and print, and write what it took, in seconds."""
    lines, turns, result = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    for number in range(lines):
        work(turns)
        print(line(number), flush=True)
    took = {"wall_s": time.perf_counter() - wall_s, "cpu_s": time.process_time() - cpu_s}
    Path(result).write_text(json.dumps(took))


if __name__ == "__main__":
    main()
