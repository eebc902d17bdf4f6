"""Runs as jobs of a Slurm on another host: a real sshd, and Slurm's programs played at the command line there."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.support import fake_slurm
from tests.support.sandbox import Sandbox, until_async
from tests.support.sshd import NAME, FarHost, needs_sshd

pytestmark = [pytest.mark.anyio, needs_sshd, pytest.mark.slow]

TOKEN = "t0ken-of-the-lab-1234"


@pytest.fixture
def slurm(far_host: FarHost) -> Path:
    """The directory of Slurm's programs, which only the login node has."""
    directory = far_host.path / "slurm"
    fake_slurm.install(directory)
    (directory / "kill_wait_s").write_text("20")  # what Slurm gives a supervisor to write the end
    far_host.write_hosts(prepare=f"export PATH={directory}:$PATH")
    return directory


def act(slurm: Path, *words: str) -> None:
    subprocess.run([slurm / words[0], *words[1:]], env={"PATH": f"{slurm}:{os.environ['PATH']}"}, check=True)


async def test_a_job_on_a_login_node_from_its_preview_to_the_end_of_its_second_attempt(
    sandbox: Sandbox, far_host: FarHost, slurm: Path
) -> None:
    """It waits with a reason, outlives an unreachable login node, and is requeued at the site's limit."""
    sandbox.environ["LAB_TOKEN"] = TOKEN
    (slurm / "full").touch()
    command = 'echo "step $RUNWARD_ATTEMPT ${#LAB_TOKEN} GPU $CUDA_VISIBLE_DEVICES"; '
    command += "[ $RUNWARD_ATTEMPT = 2 ] || sleep 300"
    arguments: dict[str, Any] = {"command": command, "host": NAME, "backend": "slurm", "gpus": 2}
    arguments |= {"cwd": str(sandbox.path), "recovery": {"timeout": "retry"}}
    async with sandbox.agent_in_process() as agent:
        dry = await agent.call("launch_run", **arguments, dry_run=True)
        assert f"#SBATCH --chdir={far_host.state}/runs/" in dry["dry_run_script"]
        assert "#SBATCH --gres=gpu:2" in dry["dry_run_script"]
        assert "# Slurm: Job 1 to start at 2026-" in dry["dry_run_script"]
        assert not any((slurm / "jobs").iterdir())
        refusal = await agent.refusal("launch_run", **arguments, backend_options={"partition": "nope"})
        assert "lab: Slurm: sbatch: error: invalid partition specified: nope" in refusal
        assert "Nothing was started" in refusal
        assert (await agent.call("list_runs"))["total"] == 0
        launched = await agent.call("launch_run", **arguments, secrets=["LAB_TOKEN"])
        run_id = launched["run_id"]
        assert (launched["state"], launched["job_id"]) == ("queued", "1")
        await until_async(lambda: sandbox.run(run_id).pending_reason == "Resources", "Slurm's reason")
        waiting = await agent.call("wait_run", run_ids=run_id, timeout_s=1)
        assert (waiting["runs"][0]["state"], waiting["runs"][0]["pending_reason"]) == ("queued", "Resources")
        far_host.stop()
        await until_async(lambda: sandbox.run(run_id).unreachable, "a login node that is away")
        away = sandbox.run(run_id)
        assert (away.state, away.job_id, (away.unreachable or {})["host"]) == ("queued", "1", NAME)
        act(slurm, "scontrol", "release", "1")
        far_host.start()
        assert (await agent.call("wait_run", run_ids=run_id, timeout_s=60))["reason"] == "started"
        assert sandbox.run(run_id).state == "running"
        assert "step 1 21 GPU 0,1" in await agent.text("capture_pane", run_id=run_id)
        (slurm / "down").touch()
        with (far_host.state / "runs" / run_id / "slurm.out").open("a") as file:
            file.write("a line of Slurm's daemon, which has Slurm asked soon\n")
        await until_async(lambda: sandbox.run(run_id).unreachable, "a controller that is away")
        assert (sandbox.run(run_id).state, sandbox.run(run_id).job_id) == ("running", "1")
        (slurm / "down").unlink()
        act(slurm, "scontrol", "end", "1", "TIMEOUT")
        end = await agent.end(run_id)
        assert (end["state"], end["attempt"], end["job_id"], end["backend"]) == ("finished", 2, "1", "slurm")
        assert "step 2 21 GPU 0,1" in await agent.text("read_log", run_id=run_id)
    kinds = [event["kind"] for event in sandbox.run(run_id).events]
    assert [kind for kind in kinds if kind != "first_step"] == [
        *("started", "stopping", "retrying", "requeued", "started", "ended")
    ]
    assert [p for p in sandbox.path.rglob("*") if p.is_file() and TOKEN.encode() in p.read_bytes()] == []


async def test_kept_code_is_sent_at_the_launch_and_a_job_that_waits_has_it(
    sandbox: Sandbox, far_host: FarHost, slurm: Path
) -> None:
    here = sandbox.path / "cfm"
    here.mkdir()
    (here / "train.sh").write_text("echo first\n")
    (slurm / "full").touch()
    arguments: dict[str, Any] = {"command": "bash train.sh", "cwd": str(here), "host": NAME, "backend": "slurm"}
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(**arguments, code="kept")
        (here / "train.sh").write_text("echo edited\n")
        act(slurm, "scontrol", "release", "1")
        assert (await agent.end(run_id))["state"] == "finished"
        assert "first" in await agent.text("read_log", run_id=run_id)
    assert sandbox.run(run_id).spec.cwd.startswith(f"{far_host.state}/code/")


@pytest.mark.parametrize("relay_dies", [False, True])
async def test_a_submission_that_is_cut_off_is_one_job_which_is_found_and_killed(
    sandbox: Sandbox, far_host: FarHost, slurm: Path, *, relay_dies: bool
) -> None:
    """The connection breaks while sbatch runs, with or without its relay; the launch is asked for again."""
    (slurm / "full").touch()
    (slurm / "held").touch()
    launched: list[str] = []
    async with sandbox.agent_in_process() as agent:

        async def launch() -> None:
            where = {"host": NAME, "backend": "slurm", "cwd": str(sandbox.path)}
            launched.append(await agent.launch(["touch", str(sandbox.path / "ran")], **where))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(launch)
            await until_async((slurm / "submissions").exists, "sbatch")
            (relay,) = far_host.relays()
            if relay_dies:
                os.kill(relay, signal.SIGKILL)
            far_host.cut_connections()
            await until_async(lambda: set(far_host.relays()) - {relay}, "another relay")
            (slurm / "held").unlink()
        (run_id,) = launched
        await until_async(lambda: sandbox.run(run_id).pending_reason == "Resources", "the job")
        assert (sandbox.run(run_id).state, sandbox.run(run_id).job_id) == ("queued", "1")
        assert [job.name for job in (slurm / "jobs").iterdir()] == ["1"]
        killed = await agent.kill(run_id)
        assert (killed["status"], killed["state"], killed["survivors"]) == ("killed", "killed", [])
    assert (slurm / "jobs" / "1" / "state").read_text() == "CANCELLED"
    assert (slurm / "submissions").read_text() == "\n"
    assert not (sandbox.path / "ran").exists()
    assert not (far_host.state / "runs" / run_id / "handover").exists()


@pytest.mark.parametrize("breaks", ["nothing", "the connection", "the relay"])
async def test_a_sweep_is_one_array_on_a_login_node_whatever_becomes_of_the_connection(
    sandbox: Sandbox, far_host: FarHost, slurm: Path, breaks: str
) -> None:
    sandbox.environ["LAB_TOKEN"] = TOKEN
    options = {"array": True, "partition": "a100"}
    common = {"command": 'echo "loss {lr} ${#LAB_TOKEN}"', "cwd": str(sandbox.path), "secrets": ["LAB_TOKEN"]}
    arguments = {
        "name": "lrs",
        "common": {**common, "host": NAME, "backend": "slurm", "backend_options": options},
        "grid": {"lr": [1, 2, 3, 4, 5]},
        "max_parallel": 2,
    }
    async with sandbox.agent() as agent:
        dry = await agent.call("launch_sweep", **arguments, dry_run=True)
        assert "#SBATCH --array=0-4%2" in dry["plan"][-1]
        assert f"#SBATCH --chdir={far_host.state}/slurm/arrays/lrs-" in dry["plan"][-1]
        assert not any((slurm / "jobs").iterdir())
        (slurm / "held").touch()
        sweep = await agent.call("launch_sweep", **arguments)
        await until_async((slurm / "submissions").exists, "sbatch")
        relays = set(far_host.relays())
        if breaks == "the relay":
            for relay in relays:
                os.kill(relay, signal.SIGKILL)
        if breaks != "nothing":
            far_host.cut_connections()
            await until_async(lambda: set(far_host.relays()) - relays, "another relay")
        (slurm / "held").unlink()
        answer = await agent.call("wait_run", run_ids=sweep["sweep_id"], until="end", timeout_s=60)
        assert (answer["reason"], answer["sweep"]["cells"]) == ("ended", {"total": 5, "finished": 5})
        runs = [run for run in sandbox.store.list_runs() if run.spec.sweep == sweep["sweep_id"]]
        elements = {f"1_{index}" for index in range(5)}
        assert {path.name for path in (slurm / "jobs").iterdir()} == {"1", *elements}
        noted = {run.job_id for run in runs} - {None}  # that of a job that ends before it is found is not
        assert noted == elements or (breaks == "the relay" and noted <= elements)
        logs = [await agent.text("read_log", run_id=run.run_id) for run in runs]
    assert sorted(log.splitlines()[-2] for log in logs) == [f"loss {lr} 21" for lr in range(1, 6)]
    assert (slurm / "submissions").read_text() == "\n"
    assert [p for p in sandbox.path.rglob("*") if p.is_file() and TOKEN.encode() in p.read_bytes()] == []
