"""A real Slurm whose login node is reached by a real sshd: what a user does there, from the preview to each end."""

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engines import jobs
from tests.engines.jobs import end, running
from tests.engines.slurm_cluster import Cluster, why_not
from tests.support import warm_start
from tests.support.sandbox import Agent, Sandbox, until_async
from tests.support.sshd import NAME, FarHost, needs_sshd

WHY_NOT = why_not() if os.environ.get("RUNWARD_ENGINES") else "make engines runs it"
pytestmark = [pytest.mark.anyio, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT), needs_sshd]

FAR = {"host": NAME, "backend": "slurm"}
TRAINS = "echo GPU $CUDA_VISIBLE_DEVICES; for step in $(seq 9000); do echo step $step/9000 loss 0.5; sleep 0.2; done"
STUBBORN = "trap '' INT TERM; echo ready; while :; do sleep 1; done"
EATS = """python3 -c "
import time
eaten = []
while True: eaten.append(bytearray(50_000_000)); time.sleep(0.3)"
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("slurm"), kill_wait_s=6, min_job_age_s=5)
    with running(cluster):
        yield cluster


@pytest.fixture
def lab(cluster: Cluster, sandbox: Sandbox, far_host: FarHost) -> Iterator[Sandbox]:
    """Only the login node knows the Slurm."""
    warm_start.command()
    far_host.write_hosts(prepare=f"export SLURM_CONF={cluster.environ['SLURM_CONF']}")
    yield sandbox
    cluster.run("scancel", "--me", check=False)


async def start(lab: Sandbox, agent: Agent, command: str, **arguments: Any) -> str:
    return await jobs.start(lab, agent, command, cwd=str(lab.path), **FAR, **arguments)


async def test_a_user_sees_a_job_on_a_login_node_from_its_preview_to_its_end(
    lab: Sandbox, cluster: Cluster, far_host: FarHost
) -> None:
    where = {"cwd": str(lab.path), **FAR}
    async with lab.agent_in_process() as agent:
        dry = await agent.call("launch_run", command=TRAINS, **where, gpus=1, dry_run=True)
        assert f"#SBATCH --chdir={far_host.state}/runs/" in dry["dry_run_script"]
        assert "# Slurm: Job 1 to start at 20" in dry["dry_run_script"]
        refusal = await agent.refusal("launch_run", command="true", **where, backend_options={"partition": "nope"})
        assert "lab: Slurm: sbatch: error: invalid partition specified: nope" in refusal
        waits = await agent.launch("touch ran", **where, backend_options={"hold": True})
        answer = await agent.call("wait_run", run_ids=waits, timeout_s=5)
        assert (answer["runs"][0]["state"], answer["runs"][0]["pending_reason"]) == ("queued", "JobHeldUser")
        trains = await agent.launch(TRAINS, **where, gpus=1)
        await agent.call("wait_run", run_ids=trains, until="first_step", timeout_s=60)
        assert "GPU 0" in await agent.text("read_log", run_id=trains)
        assert "step 1/9000" in await agent.text("capture_pane", run_id=trains)
        assert any(tag.startswith("loss 0.5") for tag in (await agent.call("read_tb", run_id=trains))["tags"])
        listed = {run["run_id"]: run for run in (await agent.call("list_runs"))["runs"]}
        assert [listed[run_id]["state"] for run_id in (waits, trains)] == ["queued", "running"]
        jobs = {run_id: str(listed[run_id]["job_id"]) for run_id in (waits, trains)}
        cluster.run("scancel", *jobs.values())
        status = await end(agent, trains)
        assert (status["state"], status["signal"]) == ("killed", "SIGTERM")
        assert "its job was cancelled in Slurm" in status["events"][-1]["text"]
        status = await end(agent, waits)  # by the jobs' log: the controller has forgotten it
        assert (status["state"], status["reason"]) == (
            "killed",
            f"Slurm: CANCELLED of job {jobs[waits]}. The command never started.",
        )
    assert not (lab.path / "ran").exists()


async def test_kills_limits_memory_and_a_login_node_that_is_away_there(
    lab: Sandbox, cluster: Cluster, far_host: FarHost
) -> None:
    async with lab.agent_in_process() as agent:
        eats = await start(lab, agent, EATS, backend_options={"mem": "200M"})
        limited = await start(lab, agent, "sleep 300", time_limit_s=2)
        status = await end(agent, limited)
        assert (status["state"], status["stopped_by"]) == ("timed_out", "time_limit")
        status = await end(agent, eats)
        assert (status["state"], status["failure"]["kind"]) == ("failed", "oom_host")
        waits = await agent.launch("touch ran", cwd=str(lab.path), **FAR, backend_options={"hold": True})
        runs = await start(lab, agent, STUBBORN)
        for run_id in (waits, runs):
            job_id = str(lab.run(run_id).job_id)
            killed = await agent.kill(run_id, reason="enough")
            assert (killed["status"], killed["state"], killed.get("survivors")) == ("killed", "killed", [])
            state = cluster.run("scontrol", "show", "job", job_id, "-o", check=False)
            assert not any(f"JobState={word}" in state for word in ("RUNNING", "PENDING", "COMPLETING"))
        goes_on = await start(lab, agent, f"echo one; until [ -e {lab.path}/go ]; do sleep 0.1; done; exit 3")
        far_host.stop()
        await until_async(lambda: lab.run(goes_on).unreachable, "a login node that is away")
        assert lab.run(goes_on).state == "running"
        (lab.path / "go").touch()
        await until_async((far_host.state / "runs" / goes_on / "attempts" / "1" / "exit.json").exists, "its end")
        far_host.start()
        status = await end(agent, goes_on)
        assert (status["state"], status["exit_code"]) == ("failed", 3)
        assert "one" in await agent.text("read_log", run_id=goes_on)


@pytest.mark.parametrize(("cells", "array"), [(40, False), (200, True)])
async def test_a_sweep_has_one_success_for_each_cell_there_as_jobs_and_as_one_array(
    lab: Sandbox, cluster: Cluster, cells: int, *, array: bool
) -> None:
    options = {"array": True} if array else {}
    common = {"command": "echo step 1/1 loss {lr} {seed}", "cwd": str(lab.path), **FAR, "backend_options": options}
    grid = {"lr": list(range(cells // 4)), "seed": [1, 2, 3, 4]}
    async with lab.agent() as agent:
        began_s = time.monotonic()
        sweep = await agent.call("launch_sweep", name="many", common=common, grid=grid, max_parallel=8)
        if array:
            waiting = await until_async(lambda: cluster.run("squeue", "-h", "-t", "PD", "-o", "%F %K"), "the array")
            assert "%8" in waiting
        while (await agent.call("wait_run", run_ids=sweep["sweep_id"], until="end", timeout_s=60))["reason"] != "ended":
            pass
        how = ", as an array" if array else ""
        print(f"\n{cells} cells on a login node in {time.monotonic() - began_s:.0f} s{how}")
    runs = [run for run in lab.store.list_runs() if run.spec.sweep == sweep["sweep_id"]]
    finished = [run.spec.cell for run in runs if run.state == "finished"]
    assert (len(runs), len(finished), len(set(finished))) == (cells, cells, cells)
    if array:
        assert len({str(run.job_id).partition("_")[0] for run in runs}) == 1


async def test_an_element_of_an_array_there_is_killed_alone_and_all_with_their_sweep(
    lab: Sandbox, cluster: Cluster
) -> None:
    common = {"command": "sleep 300; : {n}", "cwd": str(lab.path), **FAR, "backend_options": {"array": True}}
    async with lab.agent_in_process() as agent:
        sweep = await agent.call("launch_sweep", name="long", common=common, grid={"n": [1, 2, 3, 4]}, max_parallel=2)

        def states() -> list[str]:
            return sorted(run.state for run in lab.store.list_runs())

        await until_async(lambda: states() == ["queued", "queued", "running", "running"], "two elements that run")
        waits = next(run for run in lab.store.list_runs() if run.state == "queued")
        killed = await agent.kill(waits.run_id, reason="enough")
        assert (killed["status"], killed["state"], killed["survivors"]) == ("killed", "killed", [])
        answer = await agent.kill(sweep["sweep_id"])
        assert (answer["status"], len(answer["runs"]), answer["survivors"]) == ("killed", 3, [])
        assert states() == ["killed"] * 4
    assert cluster.run("squeue", "-h", "-r", "-t", "PD,R", "-o", "%i", check=False).split() == []
