"""What the tests of real engines do with runs and sweeps: start them, wait for their ends, find their jobs."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator, Mapping
from typing import Any

from tests.engines.slurm_cluster import Cluster
from tests.support.sandbox import Agent, Sandbox, until_async


@contextlib.contextmanager
def running(cluster: Cluster) -> Iterator[Cluster]:
    """Bring ``cluster`` up, and down again in any case."""
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


def job_of(lab: Sandbox, run_id: str) -> str:
    """Return the number of a run's job."""
    return str(json.loads(lab.rundir(run_id).job.read_text())["job_id"])


async def start(lab: Sandbox, agent: Agent, command: str, **arguments: Any) -> str:
    """Launch a job and return its run's id once its command has started."""
    run_id = await agent.launch(command, **({"backend": "slurm"} | arguments))
    await until_async(lambda: lab.run(run_id).state == "running", "its start")
    return run_id


def check_second_attempt(lab: Sandbox, cluster: Cluster, run_id: str, status: Mapping[str, Any]) -> None:
    """Check that a requeued run finished in its second attempt, else say all that is known of it."""
    job = cluster.run("scontrol", "show", "job", job_of(lab, run_id), check=False)
    output = (lab.rundir(run_id).path / "slurm.out").read_text()
    assert (status["state"], status["attempt"]) == ("finished", 2), f"{json.dumps(status)}\n{job}\n{output}"


async def end_conductor(lab: Sandbox, sweep_id: str) -> None:
    """Kill the conductor of a sweep once a cell has finished. The next call about the sweep starts another."""

    def has_finished() -> bool:
        return any(cell.state == "finished" for cell in lab.store.sweeps.observe(sweep_id).cells)

    await until_async(has_finished, "the first cell")
    events = lab.store.sweeps.observe(sweep_id).events
    os.kill(next(event["pid"] for event in reversed(events) if event["kind"] == "conducting"), signal.SIGKILL)


async def end_sweep(agent: Agent, lab: Sandbox, sweep_id: str) -> list[str]:
    """Return the cells of the runs of a sweep that finished, at its end."""
    while (await agent.call("wait_run", run_ids=sweep_id, until="end", timeout_s=60))["reason"] != "ended":
        pass
    cells = [cell for cell in lab.store.sweeps.observe(sweep_id).cells if cell.state != "finished"]
    assert cells == [], [cell.end for cell in cells]
    runs = [run for run in lab.store.list_runs() if run.spec.sweep == sweep_id]
    return [str(run.spec.cell) for run in runs if run.state == "finished"]


async def end(agent: Agent, run_id: str) -> dict[str, Any]:
    """Return the status of a run at its end."""
    while True:
        answer = await agent.call("wait_run", run_ids=run_id, until="end", timeout_s=60)
        if answer["reason"] == "ended":
            status: dict[str, Any] = answer["runs"][0]
            return status
