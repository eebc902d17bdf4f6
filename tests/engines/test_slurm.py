"""A real Slurm: every end that it can make of a run is told as it was, with short memory and without accounting.

`make engines` brings it up. Each figure is printed; the bars are asserted.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from mcp_server.text.formatting import parse_time
from tests.benchmarks.shapes import CASES, CaseDirectory
from tests.engines.jobs import check_second_attempt, end, end_conductor, job_of, running, start
from tests.engines.slurm_cluster import Cluster, why_not
from tests.support import warm_start
from tests.support.sandbox import Sandbox, until_async

WHY_NOT = why_not() if os.environ.get("RUNWARD_ENGINES") else "make engines runs it"
pytestmark = [pytest.mark.anyio, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]

ANSWER_S = 1.5
FORGETS_AFTER_S = 5
STUBBORN = "trap '' INT TERM; echo ready; while :; do sleep 1; done"
SAVES = """python3 -uc "
import signal, time
signal.signal(signal.SIGUSR1, lambda *_: print('saved', flush=True))
print('ready', flush=True)
while True: time.sleep(1)"
"""
EATS = """python3 -c "
import time
eaten = []
while True: eaten.append(bytearray(50_000_000)); time.sleep(0.3)"
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Slurm forgets an ended job after 5 s, and has no accounting."""
    cluster = Cluster(tmp_path_factory.mktemp("slurm"), kill_wait_s=6, min_job_age_s=FORGETS_AFTER_S, has_jobcomp=False)
    with running(cluster):
        yield cluster


@pytest.fixture
def lab(cluster: Cluster, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    sandbox.environ.update(cluster.environ)
    counted = sandbox.path / "bin" / "squeue"  # counts the queries
    counted.parent.mkdir()
    counted.write_text(f'#!/bin/sh\necho >>{sandbox.path}/queries\nexec /usr/bin/squeue "$@"\n')
    counted.chmod(0o755)
    sandbox.environ["PATH"] = f"{counted.parent}:{sandbox.environ['PATH']}"
    warm_start.command()  # before the variables by which a sandbox and a cluster know what to end
    for name, value in cluster.environ.items():  # this process reads runs too
        monkeypatch.setenv(name, value)
    yield sandbox
    cluster.run("scancel", "--me", check=False)


def test_the_contract_of_all_backends_holds(cluster: Cluster) -> None:
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/contract/test_backends.py"]
    environ = {**os.environ, "RUNWARD_SLURM_CONF": cluster.environ["SLURM_CONF"]}
    done = subprocess.run([*words, "-k", "slurm"], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]


async def test_all_shapes_of_commands_end_exactly_and_the_answer_comes_soon(lab: Sandbox) -> None:
    delays: list[float] = []
    wrong: dict[str, Any] = {}
    async with lab.agent() as agent, anyio.create_task_group() as tasks:
        limiter = anyio.CapacityLimiter(3)

        async def run_case(number: int) -> None:
            case, directory = CASES[number % len(CASES)], CaseDirectory(lab.path / f"case-{number}")
            (directory.path / case.cwd).mkdir(parents=True)
            async with limiter:
                cwd = str(directory.path / case.cwd)
                run_id = await agent.launch(case.command(directory), backend="slurm", cwd=cwd, name="shape")
                status = await end(agent, run_id)
                delays.append(time.time() - parse_time(status["ended_at"]).timestamp())
            expected = (case.exit_code, case.signal, "finished" if case.exit_code == 0 else "failed")
            if (reported := (status.get("exit_code"), status.get("signal"), status["state"])) != expected:
                wrong[case.name] = reported

        for number in range(4 * len(CASES)):
            tasks.start_soon(run_case, number)
    delays.sort()
    print(f"\n{len(delays)} ends, {len(CASES)} shapes: end -> answer p50 {delays[len(delays) // 2] * 1000:.0f} ms,")
    print(f"p99 {delays[int(len(delays) * 0.99)] * 1000:.0f} ms, longest {delays[-1] * 1000:.0f} ms")
    assert wrong == {}
    assert delays[int(len(delays) * 0.99)] <= ANSWER_S


async def test_a_job_that_somebody_cancels_is_killed_also_one_that_waits_and_one_that_is_stubborn(
    lab: Sandbox, cluster: Cluster
) -> None:
    async with lab.agent() as agent:
        for command, killed_by in (("sleep 300", "SIGTERM"), (STUBBORN, "SIGKILL")):
            run_id = await start(lab, agent, command)
            cluster.run("scancel", job_of(lab, run_id))
            status = await end(agent, run_id)
            assert (status["state"], status["signal"]) == ("killed", killed_by)
            assert "its job was cancelled in Slurm" in status["events"][-1]["text"]
        waits = await agent.launch("touch ran", backend="slurm", backend_options={"hold": True}, secrets=[])
        answer = await agent.call("wait_run", run_ids=waits, timeout_s=4)
        assert (answer["runs"][0]["state"], answer["runs"][0]["pending_reason"]) == ("queued", "JobHeldUser")
        cluster.run("scancel", job_of(lab, waits))
        status = await end(agent, waits)  # Slurm has forgotten it by then
        print("\ncancelled while it waited, and forgotten:", status["state"], status["reason"])
        assert status["state"] in ("killed", "lost")
        assert "The command never started" in status["reason"]
        assert not (lab.path / "ran").exists()
        assert not lab.rundir(waits).handover.exists()


async def test_a_kill_reaches_jobs_that_wait_and_is_done_when_they_are_gone(lab: Sandbox, cluster: Cluster) -> None:
    async with lab.agent() as agent:
        waits = await agent.launch("touch ran", backend="slurm", backend_options={"hold": True})
        runs = await start(lab, agent, STUBBORN)
        for run_id in (waits, runs):
            killed = await agent.kill(run_id, reason="enough")
            assert (killed["status"], killed["state"], killed.get("survivors")) == ("killed", "killed", [])
            state = cluster.run("scontrol", "show", "job", job_of(lab, run_id), "-o", check=False)
            assert "JobState=RUNNING" not in state
            assert "JobState=PENDING" not in state
    assert [p.command for p in lab.own_processes() if p.name in ("bash", "sleep")] == []


async def test_memory_time_and_dead_supervisors_end_runs_as_they_were(lab: Sandbox) -> None:
    async with lab.agent() as agent:
        eats = await start(lab, agent, EATS, backend_options={"mem": "200M"})
        dies = await start(lab, agent, "sleep 300")
        os.kill(lab.supervisor(dies), signal.SIGKILL)
        limited = await start(lab, agent, "sleep 300", time_limit_s=2)
        site = await start(lab, agent, SAVES, backend_options={"time": 3})
        status = await end(agent, limited)
        assert (status["state"], status["stopped_by"]) == ("timed_out", "time_limit")
        status = await end(agent, eats)
        assert (status["state"], status["failure"]["kind"]) == ("failed", "oom_host")
        status = await end(agent, dies)
        assert (status["state"], "exit_code" in status) == ("lost", False)
        status = await end(agent, site)
        assert (status["state"], status["stopped_by"]) == ("timed_out", "scheduler")
        assert status["failure"]["kind"] == "timeout"
        assert "saved" in lab.log(site)


async def test_a_requeued_job_goes_on_as_another_attempt_with_its_secrets(lab: Sandbox, cluster: Cluster) -> None:
    lab.environ["LAB_TOKEN"] = "t0ken-of-the-lab-1234"
    command = 'echo "attempt $RUNWARD_ATTEMPT"; [ ${#LAB_TOKEN} = 21 ] || exit 9; '
    command += "[ $RUNWARD_ATTEMPT = 2 ] || sleep 300"
    async with lab.agent() as agent:
        run_id = await start(lab, agent, command, backend_options={"requeue": True}, secrets=["LAB_TOKEN"])
        cluster.run("scontrol", "requeue", job_of(lab, run_id))
        await until_async(lambda: lab.run(run_id).events[-1]["kind"] == "retrying", "the end of attempt 1")
        job = cluster.run("scontrol", "write", "batch_script", job_of(lab, run_id), "-")
        await until_async(lambda: "COMPLETING" not in cluster.run("scontrol", "show", "job", job_of(lab, run_id)))
        cluster.run("scontrol", "update", f"jobid={job_of(lab, run_id)}", "StartTime=now")
        status = await end(agent, run_id)
    check_second_attempt(lab, cluster, run_id, status)
    assert "t0ken" not in job
    files = [path for path in lab.path.rglob("*") if path.is_file() and b"t0ken-of" in path.read_bytes()]
    assert files == []


async def test_a_controller_that_is_away_changes_no_state_and_a_dead_node_fails_its_runs(
    lab: Sandbox, cluster: Cluster
) -> None:
    async with lab.agent() as agent:
        goes_on = await start(lab, agent, "sleep 25; exit 4")
        waits = await agent.launch("true", backend="slurm", backend_options={"hold": True})
        cluster.stop_controller()
        seen: list[dict[str, Any]] = []
        while not any("unreachable" in status for status in seen):
            answer = await agent.call("wait_run", run_ids=[goes_on, waits], until="end", timeout_s=20)
            seen += [*answer["runs"]]
            assert {status["state"] for status in answer["runs"]} <= {"running", "queued", "failed"}
        status = await end(agent, goes_on)  # by its record alone
        assert (status["state"], status["exit_code"]) == ("failed", 4)
        refusal = await agent.refusal("launch_run", command="true", backend="slurm")
        assert "Slurm" in refusal
        cluster.start_controller()
        await until_async(lambda: "JobHeldUser" in cluster.run("squeue", "-h", "-o", "%r", check=False), "Slurm")
        assert (await agent.kill(waits))["status"] == "killed"
        cluster.remember_jobs(300)  # as sites do: Slurm is asked every 30 s
        dies = await start(lab, agent, "sleep 300", backend_options={"nodelist": "n2"})
        began_s = time.monotonic()
        cluster.kill_node("n2")
        status = await end(agent, dies)
        print(f"\na dead node was reported after {time.monotonic() - began_s:.0f} s: {status['failure']['line']}")
        assert (status["state"], status["failure"]["retryable"]) == ("failed", True)
        assert status["failure"]["line"] == f"Slurm: NODE_FAIL of job {job_of(lab, dies)} on n2"
        cluster.start_node("n2")
        await until_async(lambda: set(cluster.run("sinfo", "-h", "-N", "-o", "%T").split()) == {"idle"}, "the node")
        cluster.remember_jobs(FORGETS_AFTER_S)


async def test_500_jobs_are_watched_by_one_query_in_half_a_minute(lab: Sandbox, cluster: Cluster) -> None:
    options = {"hold": True, "array": True}
    common = {"command": "true {n}", "backend": "slurm", "backend_options": options}
    async with lab.agent() as agent:
        sweep = await agent.call("launch_sweep", name="held", common=common, grid={"n": list(range(500))})

        def count_waiting() -> int:  # a look at the runs from here would be one that the server need not take
            return len(cluster.run("squeue", "-h", "-r", "-t", "PD", "-o", "%i").split())

        await until_async(lambda: count_waiting() == 500, "the jobs")
        await agent.call("wait_run", run_ids=sweep["sweep_id"], until="end", timeout_s=15)
        before, began_s = len((lab.path / "queries").read_text()), time.monotonic()
        await agent.call("wait_run", run_ids=sweep["sweep_id"], until="end", timeout_s=65)
        asked, took_s = len((lab.path / "queries").read_text()) - before, time.monotonic() - began_s
        print(f"\n500 jobs watched for {took_s:.0f} s: {asked} queries")
        assert asked <= took_s / 30 + 1


@pytest.mark.parametrize(("cells", "array"), [(40, False), (200, True)])
async def test_a_sweep_has_one_success_for_each_cell_as_jobs_and_as_one_array(
    lab: Sandbox, cluster: Cluster, cells: int, *, array: bool
) -> None:
    async with lab.agent() as agent:
        began_s = time.monotonic()
        options = {"array": True} if array else {}
        common = {"command": "echo step 1/1 loss {lr} {seed}", "backend": "slurm", "backend_options": options}
        grid = {"lr": list(range(cells // 4)), "seed": [1, 2, 3, 4]}
        sweep = await agent.call("launch_sweep", name="many", common=common, grid=grid, max_parallel=8)
        if array:
            waiting = await until_async(lambda: cluster.run("squeue", "-h", "-t", "PD", "-o", "%F %K"), "the array")
            assert "%8" in waiting
        await end_conductor(lab, sweep["sweep_id"])
        while True:
            answer = await agent.call("wait_run", run_ids=sweep["sweep_id"], until="end", timeout_s=60)
            if answer["reason"] == "ended":
                break
        print(f"\n{cells} cells in {time.monotonic() - began_s:.0f} s{', as an array' if array else ''}")
        runs = [run for run in lab.store.list_runs() if run.spec.sweep == sweep["sweep_id"]]
        finished = [run.spec.cell for run in runs if run.state == "finished"]
        assert (len(runs), len(finished), len(set(finished))) == (cells, cells, cells)
        if array:
            assert len({str(run.job_id).partition("_")[0] for run in runs}) == 1


async def test_an_element_of_an_array_is_killed_alone_and_all_are_killed_with_their_sweep(
    lab: Sandbox, cluster: Cluster
) -> None:
    common = {"command": "sleep 300; : {n}", "backend": "slurm", "backend_options": {"array": True}}
    async with lab.agent() as agent:
        sweep = await agent.call(
            "launch_sweep", name="long", common=common, grid={"n": [1, 2, 3, 4, 5]}, max_parallel=2
        )

        def states() -> list[str]:
            return sorted(run.state for run in lab.store.list_runs())

        await until_async(lambda: states()[-2:] == ["running", "running"], "two elements that run")
        runs = {str(run.job_id).partition("_")[2]: run for run in lab.store.list_runs()}
        assert {runs["3"].state, runs["4"].state} == {"queued"}
        for index in ("0", "4"):  # one that runs, one that waits
            killed = await agent.kill(runs[index].run_id, reason="enough")
            assert (killed["status"], killed["survivors"]) == ("killed", [])
        await until_async(lambda: states() == ["killed", "killed", "queued", "running", "running"], "the next element")
        answer = await agent.kill(sweep["sweep_id"])
        assert (answer["status"], len(answer["runs"]), answer["survivors"]) == ("killed", 3, [])
        assert states() == ["killed"] * 5
        assert cluster.run("squeue", "-h", "-r", "-t", "PD,R", "-o", "%i", check=False).split() == []
