"""What goes wrong with trainings, for all of these programs: each of the arguments but the first makes one fail."""

# mypy: disable-error-code="import-not-found,import-untyped"
from __future__ import annotations

import argparse
import importlib
import os
import signal
import time
from typing import Any

WIDTH = 8  # of what the models are made for
_STEP_S = 0.03
_MIB = 2**20
_hoard: list[Any] = []


def parser() -> argparse.ArgumentParser:
    """Return a parser that knows the mishaps."""
    found = argparse.ArgumentParser()
    found.add_argument("--steps", type=int, default=60)
    found.add_argument("--width", type=int, default=WIDTH, help=f"of the data; the model is made for {WIDTH}")
    found.add_argument("--data", help="read this file")
    found.add_argument("--lr", type=float)
    found.add_argument("--attention", help="a module to import")
    found.add_argument("--port", type=int, help="meet the other ranks there")
    found.add_argument("--die-at", type=int, help="end by SIGKILL at this step")
    found.add_argument("--hoard", type=int, default=0, help="keep so many MiB more with every step")
    return found


def before(told: argparse.Namespace) -> None:
    """Do what is done before any framework starts."""
    if told.attention:
        importlib.import_module(told.attention)
    if told.port:
        one_rank = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": told.port, "RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1}
        os.environ.update({name: str(value) for name, value in one_rank.items()})


def at(step: int, told: argparse.Namespace) -> None:
    """Take the time that a step takes, and do what is asked of this one."""
    import torch  # noqa: PLC0415  # a wrong argument is told before

    time.sleep(_STEP_S)
    if step == told.die_at:
        os.kill(os.getpid(), signal.SIGKILL)
    if told.hoard:
        _hoard.append(torch.empty(told.hoard * _MIB // 4))
