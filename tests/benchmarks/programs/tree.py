"""Grows a tree of processes that are hard to stop: `tree.py MARK SHAPE`. Each has MARK among its arguments."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

LIFE_S = 120
DEAF = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
CLEAN = ("/usr/bin/env", "-i")


def start(shape: str, *, prefix: tuple[str, ...] = (), own_session: bool = False) -> subprocess.Popen[bytes]:
    """Start another process of this tree."""
    argv = [*prefix, sys.executable, "-S", str(Path(__file__).resolve()), sys.argv[1], shape]
    return subprocess.Popen(argv, start_new_session=own_session)


def three(shape: str, *, prefix: tuple[str, ...] = (), own_session: bool = False) -> None:
    """Start three children."""
    for _ in range(3):
        start(shape, prefix=prefix, own_session=own_session)


def three_daemons(prefix: tuple[str, ...] = ()) -> None:
    """Start three whose parents are gone."""
    for _ in range(3):
        start("fork", prefix=prefix, own_session=True).wait()


def fork() -> None:
    """Start a child and leave it alone."""
    start("deafleaf")
    sys.exit()


def tree(depth: int) -> None:
    """Start two children, and they theirs."""
    if depth == 0:
        ignore(signal.SIGTERM)
    for _ in range(2 if depth else 0):
        start(f"tree-{depth - 1}")


def ignore(*numbers: signal.Signals) -> None:
    """Do not hear these."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def deaf() -> None:
    """Hear nothing, and have children that do not either."""
    ignore(*DEAF)
    three("deafleaf")


SHAPES: dict[str, Callable[[], None]] = {
    "leaf": lambda: ignore(signal.SIGTERM),
    "deafleaf": lambda: ignore(*DEAF),
    "sigterm": lambda: three("leaf"),
    "deaf": deaf,
    "setsid": lambda: three("deafleaf", own_session=True),
    "daemon": three_daemons,
    "clean": lambda: three("deafleaf", prefix=CLEAN),
    "worst": lambda: three_daemons(CLEAN),
    "fork": fork,
    **{f"tree-{depth}": partial(tree, depth) for depth in range(4)},
}

if __name__ == "__main__":
    SHAPES[sys.argv[2]]()
    time.sleep(LIFE_S)
