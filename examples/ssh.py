"""`ssh.py HOST`: send this directory to a host of hosts.toml, run there, and read log and curve here."""

import sys
from pathlib import Path

import anyio
from agent import connect

HERE = Path(__file__).resolve().parent


async def main(host: str) -> None:
    async with connect() as call:
        await call("preflight", host=host, command="python3 train.py --out out")
        run = await call(
            "launch_run",
            host=host,
            cwd=str(HERE),
            sync="rsync",  # each content once; or "git": the commit and its uncommitted changes
            command="python3 train.py --out out",
            name="far",
        )
        await call("wait_run", run_ids=run["run_id"], until="end", timeout_s=600)
        await call("read_log", run_id=run["run_id"], tail=3)
        await call("read_tb", run_id=run["run_id"])


match sys.argv[1:]:
    case [name]:
        anyio.run(main, name)
    case _:
        sys.exit(__doc__)
