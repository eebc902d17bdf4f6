"""gpu_check and `runward gpu` with the fake driver, through a real server."""

from __future__ import annotations

import json
import re
import time

import pytest

from tests.support.fake_nvml import UUIDS, Machine, machine
from tests.support.sandbox import Sandbox, text_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def nvml(sandbox: Sandbox) -> Machine:
    fake = machine(sandbox.path)
    sandbox.environ |= fake.environ
    return fake


@pytest.mark.slow
async def test_gpu_check_reports_free_and_leased_gpus(sandbox: Sandbox, nvml: Machine) -> None:
    async with sandbox.agent_in_process() as agent:
        before = await agent.call("gpu_check")
        assert (before["ok"], before["reasons"], before["free"]) == (True, [], list(UUIDS[:2]))
        assert before["header"] == "2 NVIDIA H100 80GB HBM3, 81559 MiB, 700 W"
        run_id = await agent.launch("sleep 300", gpus=[1])
        after = await agent.call("gpu_check", require={"count": 2})
        assert (after["ok"], after["free"]) == (False, [UUIDS[0]])
        assert after["reasons"][0] == "1 of 2 GPUs available, 2 requested."
        assert f"leased by {run_id}" in after["gpus"][1]
        of_run = await agent.call("gpu_check", run_id=run_id)
        assert of_run["ok"] is True
        assert of_run["gpus"][0].startswith(f"1 {UUIDS[1]} ")


async def test_a_hanging_and_a_lost_gpu_do_not_hide_the_others(sandbox: Sandbox, nvml: Machine) -> None:
    nvml.report("hang nvmlDeviceGetTemperature 30 1", "fault nvmlDeviceGetUUID 15 2", gpus=4)
    async with sandbox.agent_in_process() as agent:
        report = await agent.call("gpu_check")
    assert (report["ok"], report["free"]) == (False, [UUIDS[0], UUIDS[3]])
    assert "; HANGS" in report["gpus"][1]
    assert "; LOST" in report["gpus"][2]


@pytest.mark.parametrize("what", ["nvmlInitWithFlags 60", "nvmlDeviceGetUtilizationRates 1"])
async def test_an_agent_does_not_wait_for_a_driver_that_hangs(sandbox: Sandbox, nvml: Machine, what: str) -> None:
    nvml.report(f"hang {what}", gpus=8)
    async with sandbox.agent_in_process() as agent:
        begun_s = time.monotonic()
        result = await agent.client.call_tool("gpu_check", {}, read_timeout_seconds=90)
        took_s = time.monotonic() - begun_s
    assert re.search("driver (does|did) not answer", text_of(result)), text_of(result)
    assert took_s < 30, "the driver would answer after a minute"


async def test_gpu_check_explains_why_a_run_has_no_gpus(sandbox: Sandbox, nvml: Machine) -> None:
    async with sandbox.agent_in_process() as agent:
        holder = await agent.launch("sleep 300", gpus=2)
        waiting = await agent.launch("true", gpus=1, queue=True)
        report = await agent.call("gpu_check", run_id=waiting)
        assert report["reasons"] == [f"{waiting} waits for GPUs, position 1: it has none yet."]
        await agent.kill(waiting)
        report = await agent.call("gpu_check", run_id=waiting)
        assert report["reasons"] == [f"{waiting} has no GPUs: its command never started."]
        assert "leave it out" in await agent.refusal("gpu_check", run_id=holder, require={"count": 1})
        slot = await agent.launch("sleep 300", gpus="cpu")
        nvml.report("fault nvmlInitWithFlags 9")
        assert (await agent.call("gpu_check", run_id=slot))["gpus"] == ["cpu-0"]


async def test_a_missing_driver_is_an_error_and_zero_gpus_are_not(sandbox: Sandbox, nvml: Machine) -> None:
    async with sandbox.agent_in_process() as agent:
        nvml.report("fault nvmlInitWithFlags 9")
        refusal = await agent.refusal("gpu_check")
        assert refusal.startswith("No NVIDIA driver: The NVIDIA driver is not loaded.")
        assert 'gpus="cpu"' in refusal
        nvml.report(gpus=0)
        report = await agent.call("gpu_check")
        assert (report["ok"], report["free"], report["gpus"]) == (False, [], [])


async def test_an_unknown_requirement_is_refused(sandbox: Sandbox, nvml: Machine) -> None:
    async with sandbox.agent_in_process() as agent:
        refusal = await agent.refusal("gpu_check", require={"memory": 3})
        assert refusal.startswith("require: 'memory' is not known. There are free_memory_mib")
        assert "Run not found" in await agent.refusal("gpu_check", run_id="cfm-7kqz")


def test_the_command_prints_the_same_verdict(sandbox: Sandbox, nvml: Machine) -> None:
    done = sandbox.runward("gpu", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["free"] == list(UUIDS[:2])
    nvml.report("set 1 remap_pending 1")
    done = sandbox.runward("gpu")
    assert done.returncode == 1
    assert "NVIDIA H100 80GB HBM3, 81559 MiB, 700 W; driver 550.54.15" in done.stdout
    assert "row remap pending" in done.stdout
    assert "GPU 1: needs a reset" in done.stdout
    nvml.report("fault nvmlInitWithFlags 9")
    done = sandbox.runward("gpu")
    assert done.returncode != 0
    assert "No NVIDIA driver" in done.stderr
