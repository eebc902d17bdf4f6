"""Loads what a supervisor may need later into its starter: what is there before a fork is memory of all."""

from __future__ import annotations

import contextlib
import gc
import sys
import time

from mcp_server.command.outputs import find_in_command, find_mentioned
from mcp_server.diagnosis import log_file  # noqa: F401
from mcp_server.diagnosis.failure.diagnose import RunFacts, diagnose
from mcp_server.diagnosis.live.output_monitor import OutputMonitor
from mcp_server.record.codec import decode
from mcp_server.record.handover import Handover
from mcp_server.record.script import AttemptInputs, name_attempt, render
from mcp_server.record.spec import RunSpec
from mcp_server.supervisor import retries  # noqa: F401
from mcp_server.supervisor.code import code_watch, keep_code  # noqa: F401
from mcp_server.supervisor.gpus import gpu_allocation  # noqa: F401
from mcp_server.supervisor.outputs import recorder  # noqa: F401
from mcp_server.supervisor.outputs.outsiders import OutsiderWatch
from mcp_server.text.lines import number_lines

_FAILED_LOG = b"""step 1/2 loss 0.5
Traceback (most recent call last):
  File "train.py", line 1, in <module>
RuntimeError: no such thing
"""
_COMMAND = "SEED=1 python train.py --num_epochs 3 -v -1 --log-dir=logs lr=1 'two words' > out.txt"
# CPython's allocator of small objects: its pools, their header, the largest object, what an empty `bytes` takes.
_POOL_BYTES, _HEADER_BYTES = 16384 if sys.version_info >= (3, 10) else 4096, 48
_LARGEST, _EMPTY, _MOST_HELD = 512, sys.getsizeof(b""), 1 << 19
_held: list[bytes] = []


def warm_up() -> None:
    """Do once what each supervisor does at its start, then let none of them write to what it shares.

    That is what compiles patterns and fills caches; and no collection of a supervisor looks through it.
    """
    spec = RunSpec.from_facts({"command": _COMMAND, "cwd": "/"})
    decode(Handover, {"env": {}, "secrets": {}})
    render(spec, AttemptInputs({}, placeholders=name_attempt("run", 1)))
    find_in_command(_COMMAND, spec.cwd)
    find_mentioned(_COMMAND, spec.cwd)
    with contextlib.suppress(OSError):
        OutsiderWatch(spec.cwd, spec.cwd).inspect_processes((), time.time())
    monitor = OutputMonitor({"command": _COMMAND}, time.monotonic())
    for text in (_FAILED_LOG, b""):
        monitor.read_output(text, time.monotonic())
        diagnose(number_lines(text), 1, None, RunFacts())
    gc.collect()
    _fill_gaps()
    gc.freeze()


def _fill_gaps() -> None:
    """Take the free places between small objects that stay: each that a fork took would copy a page of all others."""
    for size in range(_EMPTY // 16 * 16 + 16, _LARGEST + 1, 16):
        former, in_a_row = -1, 0
        for _ in range(_MOST_HELD // size):
            _held.append(bytes(size - _EMPTY))
            pool = id(_held[-1]) // _POOL_BYTES
            former, in_a_row = pool, in_a_row + 1 if pool == former else 1
            if in_a_row >= (_POOL_BYTES - _HEADER_BYTES) // size:  # that pool was empty, so no other has a gap
                break
