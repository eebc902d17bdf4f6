"""Ask which learning rate is best, with two seeds each. A conductor advances the sweep without any agent or server."""

import sys
import tempfile
from pathlib import Path

import anyio
from agent import connect

TRAIN = Path(__file__).with_name("train.py")


async def main() -> None:
    out = tempfile.mkdtemp(prefix="runward-example-")
    plan = {
        "name": Path(out).name,
        "common": {"command": [sys.executable, str(TRAIN), "--out", f"{out}/{{cell}}"]},
        "grid": {"lr": [0.001, 0.01, 0.05], "seed": [1, 2]},
        "metric": "eval_loss",
        "goal": "min",
        "max_parallel": 2,
    }
    async with connect() as call:
        await call("launch_sweep", **plan, dry_run=True)  # show it to a person first
        sweep = await call("launch_sweep", **plan)
        await call("wait_run", run_ids=sweep["sweep_id"], until="end", timeout_s=600)
        await call("compare_runs", sweep=sweep["sweep_id"])


anyio.run(main)
