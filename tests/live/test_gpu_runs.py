"""Runs on GPUs of the fake driver: what they lease, which launches are refused, and what is reported."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mcp_server.gpus.leases import Leases
from mcp_server.system.own_process import GPU_SAMPLER
from mcp_server.system.processes import Process
from tests.live.test_gpu_allocation import go, waits
from tests.support.fake_nvml import UUIDS, Machine, machine
from tests.support.sandbox import Sandbox, until_async

pytestmark = pytest.mark.anyio

SHOW = 'echo "<$CUDA_VISIBLE_DEVICES> <$CUDA_DEVICE_ORDER> <$RUNWARD_GPU_INDICES> <{gpus}>"'
# Frequent samples, and a short window.
SETTINGS = "gpu_sample_s = 0.1\ngpu_window_s = 1.0\n"


@pytest.fixture
def gpus(sandbox: Sandbox) -> Machine:
    """Two healthy, idle GPUs, and a server that samples them often."""
    sandbox.store.home.create()
    (sandbox.path / "state" / "config.toml").write_text(SETTINGS)
    fake = machine(sandbox.path)
    sandbox.environ |= fake.environ
    return fake


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process that uses no leases."""
    with subprocess.Popen(["sleep", "300"]) as process:
        yield process.pid
        process.kill()


def samplers(sandbox: Sandbox) -> list[Process]:
    return [p for p in sandbox.own_processes() if GPU_SAMPLER in p.command]


async def test_a_run_sees_the_requested_gpus_by_index(sandbox: Sandbox, gpus: Machine) -> None:
    gpus.report(gpus=4)
    async with sandbox.agent_in_process() as agent:
        run = await agent.call("launch_run", command=SHOW, gpus=[2, UUIDS[3][:12]])
        assert run["gpus"] == [2, 3]
        end = await agent.end(run["run_id"])
        assert (end["state"], end["gpus"]) == ("finished", [2, 3])
        listed = await agent.call("list_runs")
        assert listed["runs"][0]["gpus"] == [2, 3]
    assert f"<2,3> <PCI_BUS_ID> <2,3> <{','.join(UUIDS[2:4])}>" in sandbox.log(run["run_id"])


async def test_a_program_that_chooses_its_gpus_by_index_sees_all_of_them(sandbox: Sandbox, gpus: Machine) -> None:
    gpus.report(gpus=4)
    show = 'echo "<${CUDA_VISIBLE_DEVICES-unset}> <$CUDA_DEVICE_ORDER> <$RUNWARD_GPU_INDICES> <$*>"'
    launches: list[tuple[dict[str, Any], str]] = [
        ({"command": f"{show} --device cuda:{{gpu_indices}}"}, "<unset> <PCI_BUS_ID> <2> <> --device cuda:2"),
        ({"command": f"{show} $DEVICE", "env": {"DEVICE": "cuda:{gpu_indices}"}}, "<unset> <PCI_BUS_ID> <2> <> cuda:2"),
        ({"command": show, "env": {"CUDA_VISIBLE_DEVICES": "{gpu_indices}"}}, "<2> <PCI_BUS_ID> <2> <>"),
        (
            {"command": ["bash", "-c", show, "x", "{params}"], "params": {"device": "cuda:{gpu_indices}"}},
            "<unset> <PCI_BUS_ID> <2> <--device cuda:2>",
        ),
    ]
    async with sandbox.agent(CUDA_VISIBLE_DEVICES="0") as agent:
        for arguments, output in launches:
            run_id = await agent.launch(**arguments, gpus=[2])
            assert (await agent.end(run_id))["exit_code"] == 0
            assert output in sandbox.log(run_id), arguments


async def test_a_placeholder_without_gpus_is_refused_and_dropped_from_an_environment_of_the_host(
    sandbox: Sandbox, gpus: Machine
) -> None:
    (sandbox.path / "state" / "hosts.toml").write_text(
        '[environments.rl]\nenv = { CUDA_VISIBLE_DEVICES = "{gpu_indices}", KEPT = "1" }\n'
    )
    command = 'echo "<${CUDA_VISIBLE_DEVICES-unset}> $KEPT"'
    async with sandbox.agent_in_process() as agent:
        for arguments in (
            {"command": "python train.py --device cuda:{gpu_indices}"},
            {"command": "python train.py", "env": {"DEVICE": "{gpus}"}, "gpus": 0},
            {"command": "python train.py", "params": {"device": "cuda:{gpu_indices}"}},
        ):
            refused = await agent.refusal("launch_run", **arguments)
            assert "stands for leased GPUs, and gpus requests none." in refused
            assert "Pass gpus, e.g. gpus=1" in refused
        for more, output in (({}, "<unset> 1"), ({"gpus": 1}, "<0> 1")):
            run_id = await agent.launch(command, environment="rl", **more)
            assert (await agent.end(run_id))["exit_code"] == 0
            assert output in sandbox.log(run_id)


async def test_the_limits_of_the_host_stop_launches_of_more_than_one_gpu(sandbox: Sandbox, gpus: Machine) -> None:
    hosts = f"[hosts.{os.uname().nodename}]\npower_limit_w = 275\nmax_sm_clock_mhz = 1700\n"
    (sandbox.path / "state" / "hosts.toml").write_text(hosts)
    gpus.report(gpus=4)
    line = "0-3: power limit 700 W, at most 275 W required"
    remedy = "A person should run: sudo nvidia-smi -i 0,1,2,3 -pl 275"
    async with sandbox.agent_in_process() as agent:
        for arguments in ({"gpus": 4}, {"gpus": "0-3", "queue": True}, {"gpus": 4, "dry_run": True}):
            refused = await agent.refusal("launch_run", command="true", **arguments)
            assert line in refused
            assert refused.endswith(remedy)
        check = await agent.call("gpu_check", require={"count": 4})
        assert (check["ok"], check["reasons"][1:]) == (False, [f"GPU {line}. {remedy}"])
        assert (await agent.call("gpu_check", require={"count": 1}))["ok"] is True
        assert (await agent.end(await agent.launch("true", gpus=1)))["state"] == "finished"
        gpus.report(*(f"set {index} limit 275000" for index in range(4)), gpus=4)
        assert (await agent.call("gpu_check", require={"count": 4}))["ok"] is True
        assert (await agent.end(await agent.launch("true", gpus=4)))["state"] == "finished"


async def test_no_gpu_is_leased_twice(sandbox: Sandbox, gpus: Machine) -> None:
    async with sandbox.agent_in_process() as agent:
        first = await agent.call("launch_run", command=waits(sandbox, "a"), gpus=1)
        second = await agent.call("launch_run", command=waits(sandbox, "a"), gpus=1)
        assert {*first["gpus"], *second["gpus"]} == {0, 1}
        refused = await agent.refusal("launch_run", command="true", gpus=1)
        assert first["run_id"] in refused
        assert second["run_id"] in refused
        go(sandbox, "a")
        for run in (first, second):
            await agent.end(run["run_id"])


async def test_a_gpu_with_a_strangers_process_is_not_leased(sandbox: Sandbox, gpus: Machine, stranger: int) -> None:
    gpus.report(f"proc 0 {stranger} 31000")
    async with sandbox.agent_in_process() as agent:
        assert (await agent.call("launch_run", command="true", gpus=1))["gpus"] == [1]
        refused = await agent.refusal("launch_run", command="true", gpus=[0])
        assert "31,000 MiB" in refused
        assert f"pid {stranger}" in refused
        shared = await agent.call("launch_run", command="true", gpus=[0], require={"no_strangers": False})
        assert shared["gpus"] == [0]


async def test_a_run_waits_until_a_strangers_process_has_ended(sandbox: Sandbox, gpus: Machine, stranger: int) -> None:
    gpus.report(f"proc 0 {stranger} 31000", f"proc 1 {stranger} 31000")
    async with sandbox.agent_in_process() as agent:
        waiting = await agent.call("launch_run", command="true", gpus=2, queue=True)
        assert (waiting["state"], waiting["queue_position"]) == ("queued", 1)
        gpus.report()
        assert (await agent.end(waiting["run_id"]))["state"] == "finished"


async def test_gpus_that_do_not_meet_a_requirement_are_refused_with_the_remedy(sandbox: Sandbox, gpus: Machine) -> None:
    gpus.report("set 1 limit 400000")
    async with sandbox.agent_in_process() as agent:
        refused = await agent.refusal("launch_run", command="true", gpus=2, require={"power_limit_w": 400})
        assert "sudo nvidia-smi -i 0 -pl 400" in refused
        assert "-i 1" not in refused
        run = await agent.call("launch_run", command="true", gpus=1, require={"power_limit_w": 400})
        assert run["gpus"] == [1]


@pytest.mark.slow
async def test_a_gpu_that_gets_too_hot_is_reported_while_the_run_continues(sandbox: Sandbox, gpus: Machine) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(waits(sandbox, "a"), gpus=1)
        gpus.report("set 0 throttle 32")
        news = await agent.call("wait_run", run_ids=run_id, timeout_s=30)
        assert news["reason"] == "gpu_deviation"
        assert news["runs"][0]["state"] == "running"
        assert "thermal" in news["runs"][0]["events"][-1]["text"]
        go(sandbox, "a")
        assert (await agent.end(run_id))["state"] == "finished"


@pytest.mark.slow
async def test_a_gpu_that_idles_while_the_others_work_is_reported_and_retried_on_request(
    sandbox: Sandbox, gpus: Machine
) -> None:
    def loads(first: int, second: int) -> None:
        loaded = (f"{UUIDS[0]} NVIDIA_H100_80GB_HBM3 81559 {first}", f"{UUIDS[1]} NVIDIA_H100_80GB_HBM3 81559 {second}")
        gpus.report(*(f"gpu {index} {each} 40 300000" for index, each in enumerate(loaded)), gpus=0)

    async with sandbox.agent_in_process() as agent:
        loads(0, 0)
        run_id = await agent.launch(waits(sandbox, "a"), gpus=2)
        loads(98, 20)
        news = await agent.call("wait_run", run_ids=run_id, timeout_s=30)
        assert news["reason"] == "gpu_deviation"
        go(sandbox, "a")
        await agent.end(run_id)
    used = sandbox.run(run_id).events[-1]["gpus"]
    assert set(used) == set(UUIDS[:2])
    assert used[UUIDS[0]]["mean_util"] > used[UUIDS[1]]["mean_util"]
    smaller = {"do": "retry", "wait_s": 0, "change": {"num_envs": "halve"}}
    async with sandbox.agent_in_process() as agent:
        command = [sys.executable, "-c", "import sys, time\nwhile sys.argv[-1] != '4': time.sleep(0.02)"]
        recovery = {"imbalance": [{"do": "retry", "wait_s": 0}, smaller]}
        run_id = await agent.launch(command, gpus=2, params={"num_envs": 8}, recovery=recovery)
        end = await agent.end(run_id)
    assert (end["state"], end["attempt"], end["params"]) == ("finished", 3, {"num_envs": 4})
    retries = [event for event in sandbox.run(run_id).events if event["kind"] == "retrying"]
    assert ["num_envs" in event["then"] for event in retries] == [False, True]
    assert f"GPU 1 ({UUIDS[1][:8]}" in retries[0]["failure"]["line"], "the GPU that lags"


@pytest.mark.parametrize(
    "trouble", ["fault nvmlInitWithFlags 9", "crash nvmlDeviceGetTemperature", "hang nvmlInitWithFlags 60"]
)
async def test_a_sampler_that_fails_harms_no_run(sandbox: Sandbox, gpus: Machine, trouble: str) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(waits(sandbox, "a"), gpus=1)
        await until_async(lambda: samplers(sandbox), "a sampler")
        gpus.report(trouble)
        if "crash" in trouble:  # a sampler that has begun by now asks for nothing more of nvmlInit
            await until_async(
                lambda: "sampler_lost" in [e["kind"] for e in sandbox.run(run_id).events], "a lost sampler"
            )
        go(sandbox, "a")
        assert (await agent.end(run_id))["state"] == "finished"
    await until_async(lambda: not samplers(sandbox), "the end of the samplers")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "released", "words"),
    [
        ("", True, "was stopped."),
        ("zombie 0 20000", False, "20,000 MiB of GPU 0"),
        ("hang nvmlDeviceGetMemoryInfo_v2 60 0", None, "was stopped."),
        ("fault nvmlDeviceGetUUID 15 0", None, "was stopped."),
        ("fault nvmlInitWithFlags 9", None, "was stopped."),
    ],
)
async def test_kill_reports_whether_gpu_memory_was_released_as_far_as_known(
    sandbox: Sandbox, gpus: Machine, line: str, released: bool | None, words: str
) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("sleep 300", gpus=[0])
        gpus.report(line)
        killed = await agent.kill(run_id)
        assert killed.get("gpu_memory_released") is released
        assert words in killed["message"]


async def test_a_killed_supervisor_leaves_no_sampler_and_no_lease_once_its_command_has_ended(
    sandbox: Sandbox, gpus: Machine
) -> None:
    leases = Leases(Path(gpus.environ["RUNWARD_LEASES"]))
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(waits(sandbox, "a"), gpus=[0])
        await until_async(lambda: samplers(sandbox), "a sampler")
        os.kill(sandbox.supervisor(run_id), signal.SIGKILL)
        await until_async(lambda: not samplers(sandbox), "the end of the sampler")
        await until_async(lambda: sandbox.run(run_id).state == "lost", "the end of the supervisor")
        assert f"leased by {run_id}" in await agent.refusal("launch_run", command="true", gpus=[0])
        go(sandbox, "a")
        await until_async(lambda: not leases.holders(), "the lease to be free")


@pytest.mark.slow
async def test_a_retry_gets_another_gpu_than_the_one_that_failed(sandbox: Sandbox, gpus: Machine) -> None:
    script = 'echo "<$CUDA_VISIBLE_DEVICES>"; [ "$CUDA_VISIBLE_DEVICES" = 1 ] || ' + (
        '{ echo "RuntimeError: CUDA error: uncorrectable ECC error encountered"; exit 1; }'
    )
    recovery = {"cuda_error": {"do": "retry", "change": {"@gpu": "other"}}}
    async with sandbox.agent_in_process() as agent:
        for arguments in ({"gpus": 1}, {"env": {"CUDA_VISIBLE_DEVICES": "0"}}):
            run_id = await agent.launch(script, recovery=recovery, **arguments)
            end = await agent.end(run_id)
            assert (end["state"], end["attempt"]) == ("finished", 2), arguments
            started = [e for e in sandbox.run(run_id).events if e["kind"] == "started"]
            assert started[-1]["gpus"] == [UUIDS[1]]
    assert Leases(Path(gpus.environ["RUNWARD_LEASES"])).holders() == {}
