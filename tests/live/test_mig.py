"""MIG instances are leased and pinned by UUID, and reported; their GPU as a whole is not leasable meanwhile."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.support.fake_nvml import UUIDS, Machine, machine
from tests.support.sandbox import Sandbox, until_async

pytestmark = pytest.mark.anyio

SMALL, LARGE = "MIG-5a1e7c1d-0000-5000-8000-00000000000a", "MIG-9b2f8d2e-0000-5000-8000-00000000000b"
DIVIDED = ("set 1 mig 1", f"mig 1 {SMALL} 1g.10gb 9728", f"mig 1 {LARGE} 3g.40gb 40192")
SHOW = 'import os, sys, time; print("seen", os.environ["CUDA_VISIBLE_DEVICES"], *sys.argv[1:], flush=True)'


@pytest.fixture
def gpus(sandbox: Sandbox) -> Machine:
    fake = machine(sandbox.path)
    sandbox.environ |= fake.environ
    fake.report(*DIVIDED)
    return fake


@pytest.fixture
def stranger() -> Iterator[int]:
    process = subprocess.Popen(["sleep", "300"])
    yield process.pid
    process.kill()
    process.wait()


async def test_an_instance_is_leased_and_pinned_by_its_uuid(sandbox: Sandbox, gpus: Machine) -> None:
    async with sandbox.agent() as agent:
        command = ["python3", "-c", f"{SHOW}; time.sleep(300)", "{gpus}"]
        run = await agent.call("launch_run", command=command, gpus=[SMALL])
        assert run["gpus"] == [SMALL]
        await until_async(lambda: "seen" in sandbox.log(run["run_id"]), "the output of the command")
        assert f"seen {SMALL} {SMALL}\n" in sandbox.log(run["run_id"]).replace("\r", "")
        refusal = await agent.refusal("launch_run", command="true", gpus=[SMALL[:12]])
        assert f"1 MIG instance requested, 0 available. {SMALL[:12]}" in refusal
        assert f"leased by {run['run_id']}" in refusal
        both = await agent.call("launch_run", command=["python3", "-c", SHOW], gpus=LARGE[:10])
        assert both["gpus"] == [LARGE]
        assert (await agent.end(both["run_id"]))["gpus"] == [LARGE]
        assert (await agent.call("gpu_check", run_id=run["run_id"]))["ok"]
        released = await agent.kill(run["run_id"])
        assert (released["status"], released["gpu_memory_released"]) == ("killed", True)


async def test_a_gpu_with_instances_is_not_leased_as_a_whole_and_its_instances_are_named(
    sandbox: Sandbox, gpus: Machine
) -> None:
    async with sandbox.agent_in_process() as agent:
        refusal = await agent.refusal("launch_run", command="true", gpus=[1])
        assert f"1: MIG is on: request its instances by UUID: {SMALL[:12]}, {LARGE[:12]}" in refusal
        assert "0 available" in refusal
        report = await agent.call("gpu_check")
        assert (report["ok"], report["reasons"], report["free"]) == (True, [], [UUIDS[0], SMALL, LARGE])
        assert [line.split("; ")[0] for line in report["gpus"][2:]] == [
            f"1 {SMALL} 1g.10gb 0/9728MiB",
            f"1 {LARGE} 3g.40gb 0/40192MiB",
        ]
        assert not (await agent.call("gpu_check", require={"count": 2}))["ok"]
        run_id = await agent.launch("sleep 60", gpus=[LARGE])
        leased = await agent.call("gpu_check")
        assert f"leased by {run_id}" in leased["gpus"][3]
        assert LARGE not in leased["free"]
        unknown = await agent.refusal("launch_run", command="true", gpus=["MIG-00"])
        assert f"No MIG instance, or more than one, is MIG-00. There are {SMALL}, {LARGE}." in unknown
        indices = await agent.refusal("launch_run", command="true --device cuda:{gpu_indices}", gpus=[SMALL])
        assert "MIG instances have none" in indices
        mixed = await agent.refusal("launch_run", command="true", gpus=["0", SMALL])
        assert "whole GPUs or MIG instances, not both together" in mixed
        await agent.kill(run_id)


async def test_a_machine_of_instances_alone_is_well_and_a_count_names_them(sandbox: Sandbox, gpus: Machine) -> None:
    gpus.report("set 0 mig 1", f"mig 0 {SMALL} 1g.10gb 9728", gpus=1)
    async with sandbox.agent_in_process() as agent:
        report = await agent.call("gpu_check")
        assert (report["ok"], report["free"]) == (True, [SMALL])
        refusal = await agent.refusal("launch_run", command="true", gpus=1)
        assert f"MIG is on: request its instances by UUID: {SMALL[:12]}" in refusal
        found = (await agent.call("preflight", command="true", gpus=[SMALL]))["found"]
        assert any(SMALL[:12] in each for each in found)


async def test_an_instance_with_a_stranger_or_of_a_lost_gpu_is_refused(
    sandbox: Sandbox, gpus: Machine, stranger: int
) -> None:
    gpus.report(*DIVIDED, f"mproc {LARGE} {stranger} 3000")
    async with sandbox.agent_in_process() as agent:
        refusal = await agent.refusal("launch_run", command="true", gpus=[LARGE])
        assert f"uses 3,000 MiB (pid {stranger})" in refusal
        assert "warnings" not in await agent.call("launch_run", command="true", gpus=[SMALL], dry_run=True)
        assert (await agent.call("gpu_check"))["free"] == [UUIDS[0], SMALL]
        gpus.report(*DIVIDED, "set 1 recovery 1")
        needs_reset = await agent.refusal("launch_run", command="true", gpus=[SMALL])
        assert "GPU 1: needs a reset" in needs_reset
        assert "MIG is on" not in needs_reset
