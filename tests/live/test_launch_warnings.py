"""launch_run and its dry run show the same warnings, also of scripts that the command names."""

from __future__ import annotations

import pytest

from tests.support.fake_nvml import Machine, machine
from tests.support.sandbox import Sandbox

pytestmark = pytest.mark.anyio


@pytest.fixture
def gpus(sandbox: Sandbox) -> Machine:
    fake = machine(sandbox.path)
    sandbox.environ |= fake.environ
    return fake


async def test_a_script_with_a_killer_is_warned_of_before_and_after_the_start(sandbox: Sandbox) -> None:
    (sandbox.path / "job").mkdir()
    (sandbox.path / "job" / "run.sh").write_text("#!/bin/bash\n[ -e never ] && bash clean.sh\nexit 0\n")
    (sandbox.path / "job" / "clean.sh").write_text("# Ends what is left\nray stop --force\n")
    arguments = {"command": "cd job && bash run.sh", "cwd": str(sandbox.path)}
    async with sandbox.agent_in_process() as agent:
        dry = await agent.call("launch_run", **arguments, dry_run=True)
        assert "warnings" not in await agent.call("launch_run", command="true", dry_run=True)
        run = await agent.call("launch_run", **arguments)
        assert dry["warnings"] == run["warnings"] == [dry["warnings"][0]]
        assert "ray stop --force` (clean.sh line 2)" in dry["warnings"][0]
        assert (await agent.end(run["run_id"]))["state"] == "finished"


@pytest.mark.slow
async def test_a_pin_on_a_gpu_that_another_run_leases_is_warned_of(sandbox: Sandbox, gpus: Machine) -> None:
    gpus.report(gpus=2)
    async with sandbox.agent_in_process() as agent:
        holder = (await agent.call("launch_run", command="sleep 60", gpus=[0]))["run_id"]
        pinned = await agent.call("launch_run", command="CUDA_VISIBLE_DEVICES=0 python -V", dry_run=True)
        assert holder in pinned["warnings"][0]
        unleased = await agent.call("launch_run", command="python -V; true --device cuda:1", dry_run=True)
        assert "GPU 1 without a lease" in unleased["warnings"][0]
        unpinned = await agent.call("launch_run", command="python -V", dry_run=True)
        assert holder in unpinned["warnings"][0]
        fine = await agent.call("launch_run", command="python -V --device cuda:0", gpus=1, dry_run=True)
        assert "warnings" not in fine
        overriding = await agent.call("launch_run", command="CUDA_VISIBLE_DEVICES=0 python -V", gpus=1, dry_run=True)
        assert "overrides" in overriding["warnings"][0]
        await agent.kill(holder)


async def test_the_gpus_of_a_service_are_for_the_runs_that_need_it(sandbox: Sandbox, gpus: Machine) -> None:
    gpus.report(gpus=2)
    async with sandbox.agent_in_process() as agent:
        head = (await agent.call("launch_run", command="sleep 60", gpus=[0]))["run_id"]
        for command in ("python -m this", "CUDA_VISIBLE_DEVICES=0 python -V"):
            assert head in (await agent.call("launch_run", command=command, dry_run=True))["warnings"][0]
            assert "warnings" not in await agent.call("launch_run", command=command, needs=[head], dry_run=True)
        await agent.kill(head)


async def test_a_pin_is_warned_of_by_the_records_of_leases_where_no_driver_answers(
    sandbox: Sandbox, gpus: Machine
) -> None:
    gpus.report(gpus=2)
    async with sandbox.agent_in_process() as agent:
        holder = (await agent.call("launch_run", command="sleep 60", gpus=[0]))["run_id"]
        gpus.report("fault nvmlInitWithFlags 9")
        pins: list[dict[str, object]] = [
            {"command": "CUDA_VISIBLE_DEVICES=0 python -V"},
            {"command": "python -V", "env": {"CUDA_VISIBLE_DEVICES": "0,1"}},
            {"command": "python -V --device cuda:0"},
            {"command": "python -V", "params": {"device": "cuda:0"}},
        ]
        for arguments in pins:
            (warning,) = (await agent.call("launch_run", **arguments, dry_run=True))["warnings"]
            assert f"uses GPU 0, which {holder} leases: leave it out and pass gpus=" in warning
        assert "warnings" not in await agent.call("launch_run", command="python -V --device cuda:1", dry_run=True)
        await agent.kill(holder)


async def test_a_launch_into_the_directory_of_a_live_run_names_that_run(sandbox: Sandbox) -> None:
    arguments = {"command": "sleep 300 && true --logdir out", "cwd": str(sandbox.path)}
    async with sandbox.agent_in_process() as agent:
        first = await agent.call("launch_run", **arguments)
        assert "warnings" not in first
        second = await agent.call("launch_run", **arguments, dry_run=True)
        assert second["warnings"][0].startswith(f"{first['run_id']} is live and writes to {sandbox.path}/out too")
        await agent.kill(first["run_id"])
        assert "warnings" not in await agent.call("launch_run", **arguments, dry_run=True)
