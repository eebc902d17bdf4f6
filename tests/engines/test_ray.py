"""Runs on a real Ray, which is itself a run: its head as a service, jobs on it, and the end of the head.

`make engines` runs it. `RUNWARD_RAY` names the program `ray` where it is not in PATH. The figures are printed.
"""

import json
import os
import shutil
import signal
import socket
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from mcp_server.system import processes
from tests.engines.jobs import end_conductor, end_sweep
from tests.support.sandbox import Agent, Sandbox, until_async

RAY = os.environ.get("RUNWARD_RAY") or shutil.which("ray")
WHY_NOT = "make engines runs it" if not os.environ.get("RUNWARD_ENGINES") else "Ray is not installed: set RUNWARD_RAY"
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(RAY is None or not os.environ.get("RUNWARD_ENGINES"), reason=WHY_NOT),
]

JOBS, CELLS = 20, 20
MOST_WAIT = {"RAY_JOB_START_TIMEOUT_SECONDS": "20"}  # as on a cluster that is full for more than 15 minutes
HEAD = (
    "{ray} start --head --block --node-ip-address=127.0.0.1 --port=$RAY_PORT --temp-dir=$RAY_TMPDIR --num-cpus=4 "
    "--num-gpus=2 --dashboard-host=127.0.0.1 --dashboard-port={dashboard} --dashboard-agent-listen-port={agent} "
    "--ray-client-server-port={client} --object-store-memory=100000000 --disable-usage-stats"
)
DRIVER = """import os, ray
ray.init()
@ray.remote
def where():
    return ray.get_runtime_context().get_job_id()
assert ray.get(where.remote()) == ray.get_runtime_context().get_job_id()
print("connected", ray.get_runtime_context().gcs_address, os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
"""


def free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


async def measure_ends(agent: Agent, sandbox: Sandbox, options: Mapping[str, object]) -> list[float]:
    """Return by how many seconds the answer followed the end of the command, for each of ``JOBS`` jobs."""
    delays = []
    for number in range(JOBS):
        stamp = sandbox.path / f"end-{number}"
        code = number % 3
        run = await agent.launch(
            f"sleep 0.2; date +%s.%N > {stamp}; exit {code}",
            backend="ray",
            backend_options=options,
            name=f"end{number}",
        )
        end = await agent.end(run)
        delays.append(time.time() - float(stamp.read_text()))
        assert (end["state"], end["exit_code"]) == ("failed" if code else "finished", code)
    return delays


def describe(delays: Sequence[float]) -> str:
    ordered = sorted(delays)
    p99 = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    return (
        f"end of the command to the answer: median {ordered[len(ordered) // 2]:.3f} s, p99 {p99:.3f} s of {len(delays)}"
    )


def list_jobs(address: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{address}/api/jobs/") as answer:
        jobs: list[dict[str, Any]] = json.load(answer)
    return jobs


def ray_processes(temp_dir: str) -> list[processes.Process]:
    return [p for p in processes.list_processes() if temp_dir in p.command]


async def check_withdrawal(agent: Agent, sandbox: Sandbox, options: dict[str, Any]) -> None:
    big = await agent.launch("true", backend="ray", backend_options=options, gpus=8, name="big")
    text = "Ray waits for resources: the job needs 8 GPU; the cluster has 2 GPU (2 free). It never starts unless GPU"
    await until_patiently(lambda: (sandbox.run(big).pending_reason or "").startswith(text), 30)
    begun_s = time.monotonic()
    killed = await agent.kill(big)
    assert (killed["status"], killed["survivors"]) == ("killed", [])
    assert "PENDING" not in killed["message"]
    assert sandbox.run(big).state == "killed"
    (job,) = (job for job in list_jobs(options["address"]) if job["submission_id"] == big)
    assert job["status"] == "FAILED"
    assert "never ran" in job["message"]
    print(f"kill of a pending job: Ray let go of it after {time.monotonic() - begun_s:.1f} s")


async def check_sweeps(agent: Agent, sandbox: Sandbox, options: dict[str, Any]) -> None:
    """Each cell has one success, although Ray lets no job wait for long and the conductor dies; a stop leaves none."""
    common: dict[str, Any] = {"backend": "ray", "backend_options": options, "gpus": 1}
    for shared in (True, False):
        common["backend_options"] = {**options, "shared_disk": shared}
        begun_s = time.monotonic()
        grid = {"n": list(range(CELLS))}
        sweep = await agent.call("launch_sweep", name="s", common={**common, "command": "sleep 3; : {n}"}, grid=grid)
        await end_conductor(sandbox, sweep["sweep_id"])
        finished = await end_sweep(agent, sandbox, sweep["sweep_id"])
        assert (len(finished), len(set(finished))) == (CELLS, CELLS)
        events = sandbox.store.sweeps.observe(sweep["sweep_id"]).events
        again = sum(event.get("state") == "waited" for event in events)
        print(
            f"{CELLS} cells{'' if shared else ', mirrored'}: {time.monotonic() - begun_s:.0f} s, "
            f"{again} handed in again"
        )
    sweep = await agent.call("launch_sweep", name="t", common={**common, "command": "sleep 985; : {n}"}, grid=grid)
    await until_patiently(lambda: len([p for p in processes.list_processes() if p.command == "sleep 985"]) == 2, 60)
    begun_s = time.monotonic()
    killed = await agent.kill(sweep["sweep_id"])
    assert (killed["status"], killed["survivors"]) == ("killed", [])
    print(f"kill of a sweep with {CELLS} cells, most of which wait: {time.monotonic() - begun_s:.1f} s")
    assert not [p for p in processes.list_processes() if p.command == "sleep 985"]
    assert not [job for job in list_jobs(options["address"]) if job["status"] in ("PENDING", "RUNNING")]
    states = {run.state for run in sandbox.store.list_runs() if run.spec.sweep == sweep["sweep_id"]}
    assert states <= {"killed", "failed"}  # Ray may have dropped one that waited


async def check_service(agent: Agent, sandbox: Sandbox, options: dict[str, Any]) -> None:
    """A service whose supervisor is dead lives as long as Ray says so."""
    alone = {**options, "shared_disk": False}
    service = await agent.launch(
        "echo ready; exec sleep 984", backend="ray", backend_options=alone, first_step_pattern="ready"
    )
    user = await agent.launch("sleep 983", needs=[service])
    await until_patiently(lambda: sandbox.run(user).state == "running", 60)
    os.kill(sandbox.supervisor(service), signal.SIGKILL)
    for process in processes.find_by_variable("RUNWARD_RUN_ID", service):
        if "--ray-job" in process.command:
            processes.send_signal(process, signal.SIGKILL)
    text = f"{service}, which it needs: its supervisor is gone, and Ray says RUNNING of its job. This run goes on."
    await until_patiently(lambda: any(event.get("text") == text for event in sandbox.run(user).events), 30)
    (command,) = (p for p in processes.list_processes() if p.command == "sleep 984")
    processes.send_signal(command, signal.SIGKILL)
    end = await agent.end(user)
    assert end["stopped_by"] == "service"
    assert "has ended: lost (Ray says FAILED of its job)" in end["events"][-1]["text"]


async def check_stops(agent: Agent, sandbox: Sandbox, options: dict[str, str]) -> None:
    for shared in (True, False):
        await check_withdrawal(agent, sandbox, {**options, "shared_disk": shared})

    stubborn = await agent.launch(
        "trap '' INT TERM; sleep 987 & while :; do sleep 1; done", backend="ray", backend_options=options
    )
    await until_patiently(lambda: sandbox.run(stubborn).state == "running", 60)
    stop_s = time.monotonic()
    killed = await agent.kill(stubborn)
    assert (killed["status"], killed["survivors"]) == ("killed", [])
    assert not [p for p in processes.list_processes() if p.command == "sleep 987"]
    print(f"kill of a command that ignores signals: verified after {time.monotonic() - stop_s:.1f} s")


async def check_the_end_of_the_head(
    agent: Agent, sandbox: Sandbox, options: dict[str, str], head: str, user: str
) -> None:
    left = await agent.launch("sleep 986", backend="ray", backend_options=options, name="left")
    pending = await agent.launch("true", backend="ray", backend_options=options, gpus=8, name="pending")
    await until_patiently(lambda: sandbox.run(left).state == "running", 60)
    asked = await agent.call("kill_run", run_id=head)
    assert user in asked["message"]
    for process in ray_processes(sandbox.run(head).spec.env["RAY_TMPDIR"]):
        if process.name in ("raylet", "gcs_server"):
            processes.send_signal(process, signal.SIGKILL)
    assert (await agent.end(user))["stopped_by"] == "service"
    print(f"head killed: its run is {sandbox.run(head).state}")
    await until_patiently(lambda: sandbox.run(left).ended, 30)
    print(f"head killed: a running job is {sandbox.run(left).state} ({sandbox.run(left).reason})")
    # Ray kills its supervisor, unless that of the head, in whose process tree it is, terminates it sooner.
    assert sandbox.run(left).state in ("lost", "killed")
    if (await agent.call("kill_run", run_id=left))["status"] != "already_ended":
        assert (await agent.kill(left))["survivors"] == []
    assert not [p for p in processes.list_processes() if p.command == "sleep 986"]
    await until_patiently(lambda: sandbox.run(pending).unreachable is not None, 30)
    print(f"head killed: a pending job is {sandbox.run(pending).state}, {dict(sandbox.run(pending).unreachable or {})}")


async def test_a_cluster_as_a_service_and_jobs_on_it(sandbox: Sandbox) -> None:
    assert RAY is not None
    python = Path(RAY).with_name("python3")
    home = sandbox.path / "state"
    home.mkdir(mode=0o700)
    ray_table = '[environments.cluster.ray]\nports = "21000-29000"\ntemp_dir = "/tmp/rw-{run_id}"\n'
    (home / "hosts.toml").write_text(ray_table)
    (sandbox.path / "driver.py").write_text(DRIVER)
    dashboard, agent_port, client = free_ports(3)
    options = {"address": f"http://127.0.0.1:{dashboard}"}
    sandbox.environ["HF_TOKEN"] = "hf_" + "aVerySecretValue"
    async with sandbox.agent_in_process() as agent:
        begun_s = time.monotonic()
        command = HEAD.format(ray=RAY, dashboard=dashboard, agent=agent_port, client=client)
        head = await agent.launch(command, name="head", environment="cluster", env=MOST_WAIT)
        temp_dir = sandbox.run(head).spec.env["RAY_TMPDIR"]
        user = await agent.launch(
            f"{python} driver.py; sleep 600", needs=[f"{head}@{dashboard}/api/version"], name="user"
        )
        assert sandbox.run(user).state == "queued"
        await until_patiently(lambda: sandbox.run(user).state == "running", 120)
        print(f"\nhead as a service: it answered after {time.monotonic() - begun_s:.1f} s")
        await until_patiently(lambda: "connected " in sandbox.log(user), 60)

        job = await agent.launch(
            f"echo ${{#HF_TOKEN}}; {python} driver.py; exit 7", backend="ray", backend_options=options, gpus=1,
            secrets=["HF_TOKEN"], name="driver",
        )  # fmt: skip
        end = await agent.end(job)
        assert (end["state"], end["exit_code"]) == ("failed", 7), sandbox.log(job)
        assert "connected " in sandbox.log(job)
        assert sandbox.log(job).startswith("19")
        logs = [path.read_bytes() for path in Path(temp_dir).rglob("*") if path.is_file()]
        assert not any(b"VerySecret" in data for data in logs)

        delays = await measure_ends(agent, sandbox, options)
        print(describe(delays))

        mirrored = {**options, "shared_disk": False}
        delays = await measure_ends(agent, sandbox, mirrored)
        print(f"mirrored, {describe(delays)}")
        await check_sweeps(agent, sandbox, options)
        await check_service(agent, sandbox, options)
        await check_stops(agent, sandbox, options)
        await check_the_end_of_the_head(agent, sandbox, options, head, user)
        assert not ray_processes(temp_dir)
    shutil.rmtree(temp_dir, ignore_errors=True)


async def until_patiently(condition: object, patience_s: float) -> None:
    """Wait for a condition that Ray needs longer for than tests usually wait."""
    give_up_s = time.monotonic() + patience_s
    while True:
        try:
            await until_async(condition, "what Ray is asked for")  # type: ignore[arg-type]
        except AssertionError:
            if time.monotonic() > give_up_s:
                raise
        else:
            return
