"""Loads what a supervisor may need later into its starter: what is there before a fork is memory of all."""

from __future__ import annotations

import gc
import time

from mcp_server.diagnosis import log_file  # noqa: F401
from mcp_server.diagnosis.failure.diagnose import RunFacts, diagnose
from mcp_server.diagnosis.live.output_monitor import OutputMonitor
from mcp_server.supervisor import retries  # noqa: F401
from mcp_server.supervisor.code import code_watch, keep_code  # noqa: F401
from mcp_server.supervisor.gpus import gpu_allocation  # noqa: F401
from mcp_server.supervisor.outputs import recorder  # noqa: F401
from mcp_server.text.lines import number_lines

_FAILED_LOG = b"""step 1/2 loss 0.5
Traceback (most recent call last):
  File "train.py", line 1, in <module>
RuntimeError: no such thing
"""


def warm_up() -> None:
    """Compile the patterns too, then let no collection of a supervisor write to what it shares."""
    monitor = OutputMonitor({}, time.monotonic())
    for text in (_FAILED_LOG, b""):
        monitor.read_output(text, time.monotonic())
        diagnose(number_lines(text), 1, None, RunFacts())
    gc.collect()
    gc.freeze()
