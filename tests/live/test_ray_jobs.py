"""Runs as Ray jobs, through a client: a head that speaks the Jobs API and starts real processes."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from mcp_server.backends.ray.ray_watch import FILE
from mcp_server.system import processes
from tests.support.fake_ray import FakeRay
from tests.support.sandbox import Sandbox, until_async

pytestmark = pytest.mark.anyio


@pytest.fixture
def ray(sandbox: Sandbox) -> Iterator[FakeRay]:
    head = FakeRay()
    yield head
    sandbox.close()
    head.end()


async def test_a_run_on_ray_is_a_run_like_any_other(sandbox: Sandbox, ray: FakeRay) -> None:
    sandbox.environ |= {"RAY_ADDRESS": ray.address, "HF_TOKEN": "hf_aVerySecretValue12"}
    async with sandbox.agent_in_process() as agent:
        command = 'echo "$RAY_ADDRESS $CUDA_VISIBLE_DEVICES ${#HF_TOKEN} $MODE"; echo step 1; read -r _ < go; exit 3'
        os.mkfifo(sandbox.path / "go")
        answer = await agent.call(
            "launch_run", command=command, name="job", backend="ray", gpus=1, env={"MODE": "fast"}, secrets=["HF_TOKEN"]
        )
        run = answer["run_id"]
        assert answer["job_id"] == run
        await until_async(lambda: sandbox.run(run).state == "running", "the start of the command")
        await until_async(lambda: "step 1" in sandbox.log(run), "its output")
        assert "127.0.0.1:6399 1 21 fast" in sandbox.log(run)
        assert "step 1" in await agent.text("capture_pane", run_id=run)
        (sandbox.path / "go").write_text("\n")
        end = await agent.end(run)
        assert (end["state"], end["exit_code"]) == ("failed", 3)
        service = await agent.launch("echo step 1; sleep 983", backend="ray", first_step_pattern="step")
        user = await agent.launch("sleep 982", needs=[service])
        await until_async(lambda: sandbox.run(user).state == "running", "the start of the run that needs it")
        os.kill(sandbox.supervisor(service), signal.SIGKILL)
        for process in processes.find_by_variable("RUNWARD_RUN_ID", service):
            processes.send_signal(process, signal.SIGKILL)
        stopped = await agent.end(user)
        assert (stopped["state"], stopped["stopped_by"]) == ("killed", "service")
        refusal = await agent.refusal(
            "launch_run", command="true", backend="ray", backend_options={"metadata": {"refuse": 1}}
        )
        assert "no such resource. Nothing was started." in refusal
    assert "SecretValue" not in str(ray.submitted)
    assert [request["entrypoint_num_gpus"] for request in ray.submitted[:1]] == [1]
    files = [path.read_bytes() for path in (sandbox.path / "state").rglob("*") if path.is_file()]
    assert not any(b"SecretValue" in data for data in files)


async def test_kept_code_needs_a_head_that_sees_the_copy(sandbox: Sandbox, ray: FakeRay) -> None:
    project = sandbox.path / "project"
    project.mkdir()
    (project / "train.sh").write_text("echo kept\n")
    arguments: dict[str, Any] = {"command": "bash train.sh", "cwd": str(project), "backend": "ray", "code": "kept"}
    async with sandbox.agent_in_process() as agent:
        apart = {"address": ray.address, "shared_disk": False}
        refusal = await agent.refusal("launch_run", **arguments, backend_options=apart)
        assert "the job would not find the copy" in refusal
        assert not (sandbox.path / "state" / "code").exists()
        run = await agent.launch(**arguments, backend_options={"address": ray.address})
        assert (await agent.end(run))["state"] == "finished"
    assert "kept" in sandbox.log(run)
    assert sandbox.run(run).spec.cwd == str(sandbox.path / "state" / "code" / run)


async def test_a_pending_job_says_what_it_waits_for_and_its_kill_is_verified(sandbox: Sandbox, ray: FakeRay) -> None:
    options: dict[str, Any] = {"address": ray.address}
    async with sandbox.agent_in_process() as agent:
        run = await agent.launch("touch ran", name="big", backend="ray", gpus=8, backend_options=options)
        (status,) = (await agent.call("wait_run", run_ids=run, timeout_s=0))["runs"]
        assert status["state"] == "queued"
        assert status["pending_reason"] == (
            "Ray waits for resources: the job needs 8 GPU; the cluster has 2 GPU (2 free). It never starts unless GPU "
            "are added."
        )
        ray.close()
        await until_async((sandbox.rundir(run).path / FILE).exists, "news of the silent head")
        (status,) = (await agent.call("wait_run", run_ids=run, timeout_s=0))["runs"]
        assert status["unreachable"]["host"] == ray.address
        assert "cannot be reached" in await agent.refusal(
            "launch_run", command="true", backend="ray", backend_options=options
        )
        ray.open()
        ray.can_withdraw = False
        asked = await agent.call("kill_run", run_id=run)
        killed = await agent.call("kill_run", run_id=run, confirm_token=asked["confirm_token"])
        assert (killed["status"], killed["survivors"]) == ("killed", [])
        assert "it stays PENDING there, and ends without its command once it starts" in killed["message"]
        assert ray.release(run).wait(30) != 0
        assert sandbox.run(run).state == "killed"
        assert not (sandbox.path / "ran").exists()


async def test_a_wait_hears_of_a_job_that_ends_without_a_supervisor(sandbox: Sandbox, ray: FakeRay) -> None:
    async with sandbox.agent_in_process() as agent:
        run = await agent.launch("true", name="big", backend="ray", gpus=8, backend_options={"address": ray.address})
        ray.jobs[run] |= {"status": "FAILED", "message": "The runtime environment failed to set up."}
        end = await agent.end(run)
        assert end["state"] == "failed"
        assert end["failure"]["kind"] == "ray_error"
        forgotten = await agent.launch("true", backend="ray", gpus=8, backend_options={"address": ray.address})
        assert sandbox.run(forgotten).state == "queued"
        spec = sandbox.rundir(forgotten).spec
        spec.write_text(spec.read_text().replace(sandbox.run(forgotten).spec.created_at, "2026-01-01T00:00:00.000Z"))
        ray.jobs.clear()  # as a head that was restarted
        await until_async(lambda: sandbox.run(forgotten).state == "lost", "the end of a forgotten job")
        assert "Ray does not know its job" in str(sandbox.run(forgotten).reason)


@pytest.mark.slow
async def test_a_job_that_sees_no_disk_of_this_machine_is_mirrored(sandbox: Sandbox, ray: FakeRay) -> None:
    options = {"address": ray.address, "shared_disk": False}
    sandbox.store.home.create()
    (sandbox.path / "state" / "config.toml").write_text("stop_grace_s = 0.5\n")
    async with sandbox.agent_in_process() as agent:
        command = (
            'echo "$RUNWARD_RUN_ID $RAY_ADDRESS $MODE $1"; while [ ! -e go ]; do sleep 0.02; done; '
            "head -c 5000000 /dev/zero | tr '\\0' Z | fold -w 1000; echo; echo end; exit 3"
        )
        answer = await agent.call(
            "launch_run", command=["bash", "-c", command, "job", "word"], backend="ray", env={"MODE": "fast"},
            backend_options=options,
        )  # fmt: skip
        run = answer["run_id"]
        await until_async(lambda: f"{run} 127.0.0.1:6399 fast word" in sandbox.log(run), "the output")
        assert ray.submitted[0]["submission_id"] == answer["job_id"] == run
        (sandbox.path / "go").touch()
        end = await agent.end(run)
        assert (end["state"], end["exit_code"]) == ("failed", 3)
        assert "\nend\n" in sandbox.log(run)
        assert sandbox.log(run).count("Z") == 5_000_000

        stubborn = await agent.launch("trap '' INT TERM; echo up; sleep 985", backend="ray", backend_options=options)
        await until_async(lambda: "up" in sandbox.log(stubborn), "its output")
        killed = await agent.kill(stubborn)
        assert (killed["status"], killed["survivors"]) == ("killed", [])
        assert ray.jobs[stubborn]["status"] == "STOPPED"

        waits = await agent.launch("true", backend="ray", gpus=8, backend_options=options)
        await until_async(lambda: sandbox.run(waits).pending_reason, "a reason")
        assert "the job needs 8 GPU" in str(sandbox.run(waits).pending_reason)
        ray.give_up(waits)
        await until_async(lambda: ray.jobs.get(waits, {}).get("status") == "PENDING", "that it waits again")
        assert sandbox.run(waits).state == "queued"
        killed = await agent.kill(waits)
        assert (killed["status"], killed["survivors"]) == ("killed", [])
        assert ray.jobs[waits]["status"] == "FAILED"
        ray.can_withdraw = False
        waits = await agent.launch("true", backend="ray", gpus=8, backend_options=options)
        await until_async(lambda: sandbox.run(waits).pending_reason, "a reason")
        killed = await agent.kill(waits)
        assert [one["command"] for one in killed["survivors"]] == [f"the Ray job {waits}"]
        assert "it stays PENDING there, and Ray stops it once it starts" in killed["message"]
        lost = await agent.launch("echo up; sleep 984", backend="ray", backend_options=options)
        await until_async(lambda: "up" in sandbox.log(lost), "its output")
        ray.close()
        await until_async(lambda: sandbox.run(lost).unreachable, "that the head is known to be silent")
        assert sandbox.run(lost).state == "running"
        ray.forget()
        ray.open()
        assert (await agent.end(lost))["state"] == "lost"
        refusal = await agent.refusal(
            "launch_run", command="true", backend="ray", backend_options=options, secrets=["HOME"]
        )
        assert "they cannot reach it" in refusal


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "mirrored"])
async def test_the_job_of_another_under_the_runs_id_is_neither_believed_nor_stopped(
    sandbox: Sandbox, ray: FakeRay, shared: bool
) -> None:
    options = {"address": ray.address, "shared_disk": shared}
    sandbox.store.home.create()
    (sandbox.path / "state" / "config.toml").write_text("stop_grace_s = 0.5\n")
    async with sandbox.agent_in_process() as agent:
        run = await agent.launch("echo up; sleep 985", backend="ray", backend_options=options)
        await until_async(lambda: sandbox.rundir(run).log(1).exists() and "up" in sandbox.log(run), "its output")
        await until_async(lambda: ray.jobs[run]["status"] == "RUNNING", "the job")
        ray.be_another(run)
        end = await agent.end(run)
        assert end["state"] == "lost"
        await until_async(lambda: not processes.find_by_variable("RUNWARD_RUN_ID", run), "the end of its processes")
        asked = await agent.call("kill_run", run_id=run)
        assert asked["status"] == "already_ended"
        assert "theirs" not in sandbox.log(run)
        ray.get(f"/api/jobs/{run}")
        assert ray.jobs[run]["status"] == "RUNNING"
