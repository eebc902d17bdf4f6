"""Let the supervisor cure an out-of-memory error: half of the batch, until it fits. No agent needs to be awake."""

import sys
import tempfile
from pathlib import Path

import anyio
from agent import connect

TRAIN = Path(__file__).with_name("train.py")


async def main() -> None:
    out = tempfile.mkdtemp(prefix="runward-example-")
    async with connect() as call:
        run = await call(
            "launch_run",
            command=[sys.executable, str(TRAIN), "--out", out, "--room", "64"],
            params={"batch_size": 128},  # what a retry may change
            resume_args=["--resume"],  # what a retry adds
            recovery={"oom_gpu": {"do": "retry", "times": 2, "wait_s": 1, "change": {"batch_size": "halve"}}},
            name="retry",
        )
        await call("wait_run", run_ids=run["run_id"], until="end", timeout_s=600)
        await call("compare_runs", run_ids=[run["run_id"]])


anyio.run(main)
