"""Hand a run in as a job of Slurm, from a login node: look at the script, wait in line, see the end."""

import shutil
import sys
from pathlib import Path

import anyio
from agent import connect

HERE = Path(__file__).resolve().parent


async def main() -> None:
    out = Path.home() / "runward-example"  # a directory that the nodes share
    job = {
        "backend": "slurm",
        "backend_options": {"time": "10"},  # sbatch's long options: partition, account, mem, ...
        "command": f"python3 {HERE / 'train.py'} --out {out}",
        "name": "job",
        "recovery": "default",
    }
    async with connect() as call:
        await call("launch_run", **job, dry_run=True)
        run = await call("launch_run", **job)
        await call("wait_run", run_ids=run["run_id"], until="end", timeout_s=600)
        await call("read_log", run_id=run["run_id"], tail=3)


if shutil.which("sbatch") is None:
    sys.exit("sbatch is not in PATH: this example needs a login node of Slurm.")
anyio.run(main)
