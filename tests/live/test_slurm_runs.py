"""Runs as jobs of Slurm, whose programs are played at the command line, by the tools that agents use."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import fake_slurm
from tests.support.sandbox import Sandbox, until_async

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def lab(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    fake_slurm.install(sandbox.path / "slurm")
    (sandbox.path / "slurm" / "kill_wait_s").write_text("20")  # what Slurm gives a supervisor to write the end
    sandbox.environ["PATH"] = f"{sandbox.path}/slurm:{sandbox.environ['PATH']}"
    monkeypatch.setattr("mcp_server.record.slurm.queue.QUIET_S", 0.2)
    monkeypatch.setattr("mcp_server.record.slurm.queue.EXPECTED_S", 0.2)
    return sandbox


def slurm(lab: Sandbox, *words: str) -> None:
    subprocess.run([lab.path / "slurm" / words[0], *words[1:]], env=lab.environ, check=True)


async def test_a_job_waits_with_a_reason_starts_and_is_started_again_by_its_policy_at_the_sites_limit(
    lab: Sandbox,
) -> None:
    lab.environ["LAB_TOKEN"] = "t0ken-of-the-lab-1234"
    (lab.path / "slurm" / "full").touch()
    command = (
        'echo "step $RUNWARD_ATTEMPT ${#LAB_TOKEN} GPU $CUDA_VISIBLE_DEVICES"; [ $RUNWARD_ATTEMPT = 2 ] || sleep 300'
    )
    async with lab.agent_in_process() as agent:
        arguments: dict[str, Any] = {
            "command": command,
            "backend": "slurm",
            "gpus": 2,
            "recovery": {"timeout": "retry"},
        }
        dry = await agent.call("launch_run", **arguments, dry_run=True)
        assert "#SBATCH --gres=gpu:2" in dry["dry_run_script"]
        assert "# Slurm: Job 1 to start at 2026-" in dry["dry_run_script"]
        run_id = await agent.launch(**arguments, secrets=["LAB_TOKEN"])
        waiting = (await agent.call("wait_run", run_ids=run_id, timeout_s=1))["runs"][0]
        assert (waiting["state"], waiting["job_id"], waiting["pending_reason"]) == ("queued", "1", "Resources")
        slurm(lab, "scontrol", "release", "1")
        assert (await agent.call("wait_run", run_ids=run_id, timeout_s=60))["reason"] == "started"
        (lab.path / "slurm" / "down").touch()
        await until_async(lambda: lab.run(run_id).unreachable, "a controller that is away")
        assert lab.run(run_id).state == "running"
        (lab.path / "slurm" / "down").unlink()
        slurm(lab, "scontrol", "end", "1", "TIMEOUT")
        end = await agent.end(run_id)
    assert (end["state"], end["attempt"], end["job_id"], end["backend"]) == ("finished", 2, "1", "slurm")
    assert lab.rundir(run_id).log(2).read_text() == "step 2 21 GPU 0,1\n"
    kinds = [event["kind"] for event in lab.run(run_id).events]
    assert [kind for kind in kinds if kind != "first_step"] == [
        *("started", "stopping", "retrying", "requeued", "started", "ended")
    ]
    left = [path for path in lab.path.rglob("*") if path.is_file() and b"t0ken-of" in path.read_bytes()]
    assert left == []


async def test_a_sweep_is_one_array_whose_cells_are_runs_that_are_killed_and_started_again_one_by_one(
    lab: Sandbox,
) -> None:
    """Slurm holds max_parallel; a cell that failed is started again as a job of its own."""
    command = (
        'echo "step 1/1 loss {n}"; [ {n} != 2 ] || [ -e again ] || { touch again; exit 3; }; [ {n} != 0 ] || sleep 300'
    )
    common = {"command": command, "cwd": str(lab.path), "backend": "slurm", "backend_options": {"array": True}}
    plan: dict[str, Any] = {"name": "many", "common": common, "grid": {"n": [0, 1, 2, 3, 4, 5]}, "max_parallel": 2}
    async with lab.agent_in_process() as agent:
        dry = await agent.call("launch_sweep", **plan, dry_run=True)
        assert "#SBATCH --array=0-5%2\n" in dry["plan"][-1]
        refusal = await agent.refusal("launch_run", command="true", backend="slurm", backend_options={"array": True})
        assert "launch_sweep makes arrays" in refusal
        sweep_id = (await agent.call("launch_sweep", **plan, cell_failures=2))["sweep_id"]
        sweeps = lab.store.sweeps
        await until_async(lambda: sweeps.observe(sweep_id).count().get("finished") == 5, "the end of the other cells")
        first = lab.run(str(sweeps.observe(sweep_id).cells[0].run_id))
        assert (first.state, first.job_id) == ("running", "1_0")
        killed = await agent.kill(first.run_id)
        assert (killed["status"], killed["survivors"]) == ("killed", [])
        assert (await agent.call("wait_run", run_ids=sweep_id, until="end", timeout_s=60))["reason"] == "ended"
        assert sweeps.observe(sweep_id).state == "finished"
    assert sorted((str(run.job_id), run.state) for run in lab.store.list_runs()) == [
        *(("1_0", "killed"), ("1_1", "finished"), ("1_2", "failed"), ("1_3", "finished"), ("1_4", "finished")),
        *(("1_5", "finished"), ("2", "finished")),
    ]
    assert not list((lab.path / "state" / "runs").glob("*/handover"))


async def test_a_kill_cancels_a_job_that_waits_and_stops_one_that_runs(lab: Sandbox) -> None:
    async with lab.agent_in_process() as agent:
        runs = await agent.launch("sleep 300", backend="slurm")
        await until_async(lambda: lab.run(runs).state == "running", "its start")
        (lab.path / "slurm" / "full").touch()
        waits = await agent.launch(["touch", str(lab.path / "ran")], backend="slurm")
        for run_id in (waits, runs):
            killed = await agent.kill(run_id)
            assert (killed["status"], killed["state"], killed["survivors"]) == ("killed", "killed", [])
        assert not (lab.path / "ran").exists()
        assert not lab.rundir(waits).handover.exists()
        (lab.path / "slurm" / "full").unlink()
        refusal = await agent.refusal("launch_run", command="true", backend="slurm", host="nowhere")
        assert "nowhere" in refusal
        cancelled = await agent.launch("sleep 300", backend="slurm")
        await until_async(lambda: lab.run(cancelled).state == "running", "its start")
        slurm(lab, "scancel", str(len(list(Path(lab.path / "slurm" / "jobs").iterdir()))))
        end = await agent.end(cancelled)
        assert (end["state"], end["signal"]) == ("killed", "SIGTERM")
        assert "its job was cancelled in Slurm" in end["events"][-1]["text"]


async def test_a_run_that_forges_its_job_and_its_end_changes_neither_its_state_nor_another_run(lab: Sandbox) -> None:
    command = ["bash", "-c", 'cd "$RUNWARD_RUN_DIR"; echo "$0" >job.json; echo "$1" >>events.jsonl; >forged; sleep 300']
    end = '{"seq": 9, "kind": "ended", "state": "finished", "exit_code": 0}'
    async with lab.agent_in_process() as agent:
        other = await agent.launch("sleep 300", backend="slurm")
        theirs = {"job_id": "1", "submitted_s": 1.0, "name": other}
        for forged in (theirs, {"job_id": "999", "submitted_s": 9e12}, {"job_id": "--me"}, {"job_id": "1_0"}, {}):
            run = await agent.launch([*command, json.dumps(forged), end], backend="slurm")
            await until_async((lab.rundir(run).path / "forged").exists, "the forgery")
            seen = lab.run(run)
            assert (seen.state, seen.exit_code) == ("running", None), forged
            killed = await agent.kill(run)
            assert (killed["status"], killed["state"], killed["survivors"]) == ("killed", "killed", []), forged
            assert (lab.run(run).state, lab.run(other).state) == ("killed", "running"), forged


async def test_a_run_stops_with_its_service_where_slurm_says_that_its_job_is_gone_and_not_while_it_starts_again(
    lab: Sandbox,
) -> None:
    where = {"backend": "slurm", "cwd": str(lab.path)}
    async with lab.agent_in_process() as agent:
        service = await agent.launch(
            "echo ready; sleep 600", first_step_pattern="ready", backend_options={"requeue": True}, **where
        )
        user = await agent.launch("echo used; sleep 600", needs=[service], **where)
        await until_async(lambda: lab.run(user).state == "running", "the start of the run")
        slurm(lab, "scontrol", "requeue", str(lab.run(service).job_id))
        await until_async(lambda: lab.run(service).events[-1]["kind"] == "first_step", "its second start")
        assert (lab.run(service).attempt, lab.run(user).state) == (2, "running")
        os.kill(lab.supervisor(service), signal.SIGKILL)
        await until_async(lambda: lab.run(service).state == "lost", "the word of Slurm")
        end = await agent.end(user)
    assert (end["state"], end["stopped_by"]) == ("killed", "service")
    assert f"{service}, which it needs, has ended: lost" in end["events"][-1]["text"]


async def test_a_script_that_was_written_for_sbatch_is_warned_of_with_the_options_to_pass(lab: Sandbox) -> None:
    (lab.path / "job.sh").write_text("#!/bin/bash\n#SBATCH --nodes=2\nsrun true\n")
    arguments: dict[str, Any] = {"command": "bash job.sh", "cwd": str(lab.path), "backend": "slurm", "dry_run": True}
    async with lab.agent_in_process() as agent:
        (warning,) = (await agent.call("launch_run", **arguments))["warnings"]
        assert warning.endswith('pass backend_options={"nodes": "2"}.')
        passed = await agent.call("launch_run", **arguments, backend_options={"nodes": 2})
        assert "warnings" not in passed
        assert "#SBATCH --nodes=2" in passed["dry_run_script"]


async def test_a_cell_that_is_cancelled_in_slurm_by_nobody_known_is_started_again(lab: Sandbox) -> None:
    command = "[ -e enough ] || { touch waits; sleep 300; }; : {n}"
    common = {"command": command, "cwd": str(lab.path), "backend": "slurm"}
    async with lab.agent_in_process() as agent:
        sweep_id = (await agent.call("launch_sweep", name="one", common=common, grid={"n": [1]}))["sweep_id"]
        await until_async((lab.path / "waits").exists, "the cell")
        (lab.path / "enough").touch()
        slurm(lab, "scancel", "1")
        assert (await agent.call("wait_run", run_ids=sweep_id, until="end", timeout_s=60))["reason"] == "ended"
    assert sorted((str(run.job_id), run.state) for run in lab.store.list_runs()) == [("1", "killed"), ("2", "finished")]


async def test_the_jobs_of_an_array_run_the_code_that_was_kept_at_the_start_of_their_sweep(lab: Sandbox) -> None:
    project = lab.path / "project"
    project.mkdir()
    (project / "train.sh").write_text("echo first\n")
    (lab.path / "slurm" / "held").touch()
    common: dict[str, Any] = {"command": "bash train.sh", "cwd": str(project), "backend": "slurm", "code": "kept"}
    common |= {"backend_options": {"array": True}}
    async with lab.agent_in_process() as agent:
        sweep = (await agent.call("launch_sweep", name="s", common=common, grid={"seed": [1, 2]}))["sweep_id"]
        (project / "train.sh").write_text("echo edited\n")
        (lab.path / "slurm" / "held").unlink()
        answer = await agent.call("wait_run", run_ids=sweep, until="end", timeout_s=60)
        assert answer["sweep"]["cells"] == {"total": 2, "finished": 2}
        runs = [run for run in lab.store.list_runs() if run.spec.sweep == sweep]
    assert [lab.log(run.run_id).split() for run in runs] == [["first"]] * 2
    assert {Path(run.spec.cwd).parent for run in runs} == {lab.path / "state" / "code"}
