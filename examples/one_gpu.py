"""Lease one GPU for a run, see its first step and its end, and read its curve."""

import sys
import tempfile
from pathlib import Path

import anyio
from agent import Refused, connect

TRAIN = Path(__file__).with_name("train.py")


async def main() -> None:
    out = tempfile.mkdtemp(prefix="runward-example-")
    async with connect() as call:
        try:
            await call("gpu_check")
            gpus = 1  # nobody else who asks runward gets it meanwhile
        except Refused:  # there is no driver
            gpus = "cpu:1"
        run = await call(
            "launch_run",
            command=[sys.executable, str(TRAIN), "--out", out],
            name="one-gpu",
            gpus=gpus,
            queue=True,  # if none is free, wait in line
            time_limit_s=600,
        )
        await call("wait_run", run_ids=run["run_id"], until="first_step", timeout_s=60)
        await call("wait_run", run_ids=run["run_id"], until="end", timeout_s=600)
        await call("read_tb", run_id=run["run_id"])


anyio.run(main)
