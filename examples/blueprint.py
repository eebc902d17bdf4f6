"""Run an experiment that is written down as a document: check it, launch it, and write what was concluded."""

import sys
import tempfile
from pathlib import Path

import anyio
from agent import connect

HERE = Path(__file__).resolve().parent


async def main() -> None:
    scratch = Path(tempfile.mkdtemp(prefix="runward-example-"))
    blueprint = scratch / "larger_step.md"
    facts = {"examples": HERE, "python": sys.executable, "results": scratch / "results"}
    text = (HERE / "blueprint.md").read_text()
    for name, value in facts.items():
        text = text.replace(f"{{{name}}}", str(value))
    blueprint.write_text(text)
    async with connect() as call:
        await call("check_blueprint", path=str(blueprint))
        run = await call("launch_run", blueprint=str(blueprint))
        await call("wait_run", run_ids=run["run_id"], until="end", timeout_s=600)
        await call("finish_blueprint", run_id=run["run_id"], summary="Converges: the held-out loss is below 0.05.")
    print(f"\n{scratch / 'results'} has experiment_log.md, results.md and finish.flag.")


anyio.run(main)
