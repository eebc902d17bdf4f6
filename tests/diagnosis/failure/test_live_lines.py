"""While a run is live, a cheap test tells which of its lines could be the proof of a failure."""

from __future__ import annotations

import pytest

from mcp_server.diagnosis.failure.diagnose import FATAL_WORDS, may_be_fatal
from mcp_server.diagnosis.failure.log_statements import parse_statement
from tests.support.endings import ENDINGS
from tests.support.wordings import RAISED


@pytest.mark.parametrize("line", [
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
    "[rank3]: ValueError: x",
    "(TaskRunner pid=7) KeyError: 'x'",
    " 3%|#| 3/100 [00:01<00:30, 3.0it/s]RuntimeError: x",
    "KeyboardInterrupt",
    "Segmentation fault (core dumped)",
    "slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2025-01-01T00:00:00 ***",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.",
    "[E ProcessGroupNCCL.cpp:828] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL() ran for 9 ms",
    "terminate called after throwing an instance of 'c10::Error'",
    "t.py: error: unrecognized arguments: -x",
    "Killed",
])  # fmt: skip
def test_a_line_that_could_be_the_proof_is_fatal(line: str) -> None:
    assert may_be_fatal(line)


@pytest.mark.parametrize("line", [
    "wandb: Network error (ReadTimeout), entering retry loop.",
    "[Rank 0] step=8, MemAllocated=11.5GB, MaxMemAllocated=12.5GB",
    "/opt/x.py:3: FutureWarning: this will raise an error in a future version.",
    "WARNING: Error in PredictCost() for the op",
    "MeanSquaredError: 0.02",
    "val_error: 0.3",
    "  File \"/opt/x.py\", line 3, in f",
    "        raise ValueError('x')",
    "        ValueError: if the path is not there",
    "UserWarning: x",
    "NCCL WARN could not close a window",
    "Exception ignored in: <function Pool.__del__ at 0x7f>",
    "step 3 loss 0.2",
    "",
])  # fmt: skip
def test_ordinary_lines_are_not_fatal(line: str) -> None:
    assert not may_be_fatal(line)


def test_every_fatal_line_holds_a_fatal_word() -> None:
    assert len(FATAL_WORDS) <= 12
    lines = [raised for rows in RAISED.values() for raised in rows]
    lines += [line for _, log in ENDINGS for line in log.split("\n")]
    found = [line for line in lines if parse_statement(line) or may_be_fatal(line)]
    assert len(found) > 250
    for line in found:
        assert not may_be_fatal(line) or any(word in line for word in FATAL_WORDS)
