"""A real Slurm with accounting, preemption and two nodes: ends by its database, by whom, and jobs that others displace.

The controller forgets an ended job after 5 s, and no file lists jobs.
"""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engines.jobs import check_second_attempt, end, job_of, running, start
from tests.engines.slurm_cluster import ACCOUNTING_PROGRAMS, Cluster, why_not
from tests.support import warm_start
from tests.support.sandbox import Sandbox, until_async

WHY_NOT = why_not(*ACCOUNTING_PROGRAMS, "srun") if os.environ.get("RUNWARD_ENGINES") else "make engines runs it"
pytestmark = [pytest.mark.anyio, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]

STUBBORN = "trap '' INT TERM; echo ready; while :; do sleep 1; done"
TRAINS = "echo attempt $RUNWARD_ATTEMPT; [ $RUNWARD_ATTEMPT = 2 ] || sleep 300"
WHOLE = {"nodes": 2, "ntasks-per-node": 1, "exclusive": True}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(
        tmp_path_factory.mktemp("slurm"),
        kill_wait_s=6,
        min_job_age_s=5,
        has_jobcomp=False,
        has_accounting=True,
        grace_s=5,
    )
    with running(cluster):
        yield cluster


@pytest.fixture
def lab(cluster: Cluster, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    warm_start.command()
    sandbox.environ.update(cluster.environ)
    for name, value in cluster.environ.items():  # this process reads runs too
        monkeypatch.setenv(name, value)
    yield sandbox
    cluster.run("scancel", "--me", check=False)


async def test_ends_that_the_controller_has_forgotten_are_those_of_the_accounting(
    lab: Sandbox, cluster: Cluster
) -> None:
    async with lab.agent() as agent:
        waits = await agent.launch("touch ran", backend="slurm", backend_options={"hold": True})
        dies = await start(lab, agent, "sleep 300")
        jobs = {run_id: job_of(lab, run_id) for run_id in (waits, dies)}
        os.kill(lab.supervisor(dies), signal.SIGKILL)
        cluster.run("scancel", jobs[waits])
        runs = await start(lab, agent, "sleep 300")
        cluster.run("scancel", job_of(lab, runs))
        status = await end(agent, runs)
        assert (status["state"], status["stopped_by"]) == ("killed", "person")
        assert "its job was cancelled in Slurm, by user 0" in status["events"][-1]["text"]

        def has_forgotten() -> bool:
            return not any("JobId" in cluster.run("scontrol", "show", "job", j, check=False) for j in jobs.values())

        await until_async(has_forgotten, "a controller without the jobs")
        status = await end(agent, waits)
        assert (status["state"], status["stopped_by"], status["reason"]) == (
            *("killed", "person"),
            f"Slurm: CANCELLED of job {jobs[waits]} by user 0. The command never started.",
        )
        status = await end(agent, dies)
        assert status["state"] == "lost"
        assert status["reason"].startswith(f"Slurm: FAILED of job {jobs[dies]} on n1 (exit code 0:9); its supervisor")


async def test_a_kill_is_done_when_the_job_has_left_its_node_although_the_accounting_has_its_end(
    lab: Sandbox, cluster: Cluster
) -> None:
    async with lab.agent() as agent:
        runs = await start(lab, agent, STUBBORN)
        os.kill(lab.supervisor(runs), signal.SIGSTOP)
        killed = await agent.kill(runs, reason="enough")
        state = cluster.run("scontrol", "show", "job", job_of(lab, runs), "-o", check=False)
    assert (killed["status"], killed["survivors"]) == ("killed", [])
    assert not any(f"JobState={word}" in state for word in ("RUNNING", "COMPLETING"))


async def test_an_element_that_is_cancelled_while_it_waits_is_killed_although_slurm_keeps_nothing_of_it(
    lab: Sandbox, cluster: Cluster
) -> None:
    common = {"command": "sleep 300; : {n}", "backend": "slurm", "backend_options": {"array": True}}
    async with lab.agent() as agent:
        sweep = await agent.call("launch_sweep", name="long", common=common, grid={"n": [1, 2, 3]}, max_parallel=1)

        def find_waiting() -> dict[str, str]:
            runs = lab.store.list_runs()
            return {r.run_id: str(r.job_id) for r in runs if "TaskLimit" in (r.pending_reason or "")}  # Slurm's word

        waiting = await until_async(lambda: found if len(found := find_waiting()) == 2 else None, "two that wait")
        run_id, job_id = next(iter(waiting.items()))
        cluster.run("scancel", job_id)
        status = await end(agent, run_id)
        print(f"\na cancelled element: {status['state']}: {status['reason']}")
        assert status["state"] == "killed"
        assert job_id in status["reason"]
        await agent.kill(sweep["sweep_id"])


async def test_an_accounting_that_is_away_delays_no_end_and_no_kill(lab: Sandbox, cluster: Cluster) -> None:
    async with lab.agent() as agent:
        runs = await start(lab, agent, STUBBORN)
        dies = await start(lab, agent, "sleep 300")
        cluster.stop_accounting()
        try:
            began_s = time.monotonic()
            failed = await agent.launch("exit 3", backend="slurm")
            status = await end(agent, failed)
            assert (status["state"], status["exit_code"]) == ("failed", 3)
            assert (await agent.kill(runs))["survivors"] == []
            print(f"\nwithout slurmdbd: an end and a kill in {time.monotonic() - began_s:.0f} s")
            os.kill(lab.supervisor(dies), signal.SIGKILL)
            status = await end(agent, dies)
            assert status["state"] == "lost"
        finally:
            cluster.start_accounting()


async def test_preempted_jobs_go_on_or_fail_as_their_partition_says(lab: Sandbox, cluster: Cluster) -> None:
    async with lab.agent() as agent:
        again = await start(
            lab, agent, TRAINS, backend_options={"partition": "requeued", "nodelist": "n1", "gpus": 2, "requeue": True}
        )
        ends = await start(lab, agent, TRAINS, backend_options={"partition": "cancelled", "nodelist": "n2", "gpus": 2})
        urgent = [
            await agent.launch(
                "sleep 300", backend="slurm", backend_options={"partition": "urgent", "nodelist": node, "gpus": 2}
            )
            for node in ("n1", "n2")
        ]
        status = await end(agent, ends)
        assert (status["state"], status["failure"]["kind"], status["failure"]["retryable"]) == (
            "failed",
            "killed",
            True,
        )
        assert status["failure"]["line"] == f"Slurm: PREEMPTED of job {job_of(lab, ends)}"
        await until_async(lambda: lab.run(again).events[-1]["kind"] in ("retrying", "requeued"), "the end of attempt 1")
        for run_id in urgent:
            assert (await agent.kill(run_id))["status"] == "killed"
        await until_async(
            lambda: "JobState=PENDING" in cluster.run("scontrol", "show", "job", job_of(lab, again)), "it waits"
        )
        cluster.run("scontrol", "update", f"jobid={job_of(lab, again)}", "StartTime=now")
        status = await end(agent, again)
        check_second_attempt(lab, cluster, again, status)


async def test_a_policy_has_a_job_requeued_although_its_partition_cancels_what_it_preempts(
    lab: Sandbox, cluster: Cluster
) -> None:
    def options(partition: str) -> dict[str, Any]:
        return {"partition": partition, "nodelist": "n1", "gpus": 2}

    async with lab.agent() as agent:
        run_id = await start(lab, agent, TRAINS, recovery={"killed": "retry"}, backend_options=options("cancelled"))
        urgent = await agent.launch("sleep 300", backend="slurm", backend_options=options("urgent"))
        await until_async(lambda: lab.run(run_id).events[-1]["kind"] == "retrying", "the end of attempt 1")
        assert "a preemption is not a failure" in lab.run(run_id).events[-1]["text"]
        assert (await agent.kill(urgent))["status"] == "killed"
        job_id = job_of(lab, run_id)
        await until_async(lambda: "JobState=PENDING" in cluster.run("scontrol", "show", "job", job_id), "its turn")
        cluster.run("scontrol", "update", f"jobid={job_id}", "StartTime=now")
        status = await end(agent, run_id)
    check_second_attempt(lab, cluster, run_id, status)
    assert "Requeued after attempt 1; attempt 2 follows." in [e["text"] for e in lab.run(run_id).events]


async def test_ranks_on_two_nodes_are_one_log_one_end_and_one_kill(lab: Sandbox, cluster: Cluster) -> None:
    rank = 'echo "rank $SLURM_PROCID on $SLURMD_NODENAME"'
    async with lab.agent() as agent:
        good = await start(lab, agent, f"srun bash -c '{rank}'", backend_options=WHOLE)
        status = await end(agent, good)
        assert (status["state"], status["exit_code"]) == ("finished", 0), await agent.text("read_log", run_id=good)
        assert sorted(lab.log(good).splitlines()) == ["rank 0 on n1", "rank 1 on n2"]
        bad = await start(lab, agent, f"srun bash -c '{rank}; exit $((SLURM_PROCID * 7))'", backend_options=WHOLE)
        status = await end(agent, bad)
        assert (status["state"], status["exit_code"]) == ("failed", 7)
        assert status["failure"]["line"] == "srun: error: n2: task 1: Exited with exit code 7"
        runs = await start(lab, agent, "srun bash -c 'echo up; sleep 300'", backend_options=WHOLE)
        await until_async(lambda: lab.log(runs).count("up") == 2, "both ranks")
        killed = await agent.kill(runs)
        assert (killed["status"], killed["survivors"]) == ("killed", [])
        own = [p.command for p in lab.own_processes() if p.name in ("bash", "sleep", "srun")]
        assert own == []


async def test_a_run_stops_with_a_service_whose_node_dies(lab: Sandbox, cluster: Cluster) -> None:
    async with lab.agent() as agent:
        service = await start(
            lab, agent, "echo ready; sleep 600", first_step_pattern="ready", backend_options={"nodelist": "n2"}
        )
        user = await start(lab, agent, "sleep 600", needs=[service], backend_options={"nodelist": "n1"})
        began_s = time.monotonic()
        cluster.kill_node("n2")
        status = await end(agent, user)
        print(f"\nthe run was stopped {time.monotonic() - began_s:.0f} s after the node of its service died")
        assert (status["state"], status["stopped_by"]) == ("killed", "service")
        assert f"{service}, which it needs, has ended: failed" in status["events"][-1]["text"]
        assert (await end(agent, service))["failure"]["line"].startswith("Slurm: NODE_FAIL of job")
    cluster.start_node("n2")
    await until_async(lambda: set(cluster.run("sinfo", "-h", "-N", "-o", "%T").split()) == {"idle"}, "the node")
