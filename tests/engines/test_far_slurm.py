"""A real Slurm whose login node is reached by a real sshd: what a user does there, from the preview to each end."""

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engines.slurm_cluster import Cluster, why_not
from tests.support import warm_start
from tests.support.sandbox import Agent, Sandbox, until_async
from tests.support.sshd import NAME, FarHost, needs_sshd

WHY_NOT = why_not() if os.environ.get("RUNWARD_ENGINES") else "make engines runs it"
pytestmark = [pytest.mark.anyio, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT), needs_sshd]

FAR = {"host": NAME, "backend": "slurm"}
EATS = """python3 -c "
import time
eaten = []
while True: eaten.append(bytearray(50_000_000)); time.sleep(0.3)"
"""
TRAINS = """python3 -uc "
import time
from tests.support.scalar_files import *
"
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("slurm"), kill_wait_s=6, min_job_age_s=5)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def lab(cluster: Cluster, sandbox: Sandbox, far_host: FarHost) -> Iterator[Sandbox]:
    """Only the login node has Slurm."""
    warm_start.command()
    conf = cluster.environ["SLURM_CONF"]
    far_host.write_hosts(prepare=f"export SLURM_CONF={conf}")
    yield sandbox
    cluster.run("scancel", "--me", check=False)


async def start(lab: Sandbox, agent: Agent, command: str, **arguments: Any) -> str:
    run_id = await agent.launch(command, cwd=str(lab.path), **FAR, **arguments)
    await until_async(lambda: lab.run(run_id).state == "running", "its start")
    return run_id


async def end(agent: Agent, run_id: str) -> dict[str, Any]:
    while True:
        answer = await agent.call("wait_run", run_ids=run_id, until="end", timeout_s=60)
        if answer["reason"] == "ended":
            status: dict[str, Any] = answer["runs"][0]
            return status


async def test_tour(lab: Sandbox, cluster: Cluster, far_host: FarHost) -> None:
    t0 = time.monotonic()

    def say(*words: Any) -> None:
        print(f"\n[{time.monotonic() - t0:.1f}]", *words, flush=True)

    async with lab.agent_in_process() as agent:
        dry = await agent.call("launch_run", command="echo hi", cwd=str(lab.path), **FAR, gpus=1, dry_run=True)
        say(dry["dry_run_script"])
        try:
            say(
                await agent.refusal(
                    "launch_run", command="echo hi", cwd=str(lab.path), **FAR, backend_options={"partition": "nope"}
                )
            )
        except AssertionError as e:
            say(e)
        held = await agent.launch("echo never", cwd=str(lab.path), **FAR, backend_options={"hold": True})
        say(await agent.call("wait_run", run_ids=held, timeout_s=5))
        far = await start(
            lab,
            agent,
            "echo GPU $CUDA_VISIBLE_DEVICES; for i in $(seq 1 400); do echo step $i/400 loss 0.$i; sleep 1; done",
            gpus=1,
        )
        say(await agent.call("wait_run", run_ids=far, timeout_s=3))
        say(await agent.text("read_log", run_id=far))
        say(await agent.text("capture_pane", run_id=far))
        say(await agent.call("read_tb", run_id=far))
        say(await agent.call("list_runs"))
        job = lab.run(far).job_id
        cluster.run("scancel", str(job))
        say(await end(agent, far))
        cluster.run("scancel", str(lab.run(held).job_id))
        say(await end(agent, held))
        eats = await start(lab, agent, EATS, backend_options={"mem": "200M"})
        limited = await start(lab, agent, "sleep 300", time_limit_s=2)
        say(await end(agent, limited))
        say(await end(agent, eats))
        runs = await start(lab, agent, "trap '' INT TERM; echo ready; while :; do sleep 1; done")
        waits = await agent.launch("touch ran", cwd=str(lab.path), **FAR, backend_options={"hold": True})
        for each in (runs, waits):
            say(await agent.kill(each, reason="enough"))
        goes = await start(lab, agent, "echo one; sleep 15; exit 3")
        far_host.stop()
        await until_async(lambda: lab.run(goes).unreachable, "away")
        say(lab.run(goes).unreachable)
        far_host.start()
        say(await end(agent, goes))
        say(await agent.text("read_log", run_id=goes))
