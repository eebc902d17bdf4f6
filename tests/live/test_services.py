"""Runs that need others: they start when these answer, and stop with them. With real servers and supervisors."""

import os
import signal

import pytest

from tests.support.ports import free_port
from tests.support.sandbox import Sandbox, until_async

pytestmark = pytest.mark.anyio

# Opens another port first, as Ray and vLLM do, and the one that answers once it may.
SERVER = """python3 -c '
import http.server, os, socket, sys, time
other = socket.create_server(("127.0.0.1", 0))
while not os.path.exists("go"): time.sleep(0.02)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[2])), http.server.SimpleHTTPRequestHandler).serve_forever()
' --port {port}"""


async def test_a_run_starts_when_its_services_answer_and_stops_when_one_ends(sandbox: Sandbox) -> None:
    port = free_port()
    (sandbox.path / "health").touch()
    async with sandbox.agent_in_process() as agent:
        server = await agent.launch(SERVER.format(port=port), name="server")
        printing = await agent.launch(
            "while [ ! -e go ]; do sleep 0.02; done; echo ready; sleep 600", first_step_pattern="ready"
        )
        needs = ["server", f"server@{port}/health", printing]
        answer = await agent.call("launch_run", command="echo started > started; sleep 600", name="user", needs=needs)
        user = answer["run_id"]
        assert answer["state"] == "queued"
        await until_async(lambda: "first_step_pattern" in (sandbox.run(user).pending_reason or ""), "the whole reason")
        (status,) = (await agent.call("wait_run", run_ids=user, timeout_s=0))["runs"]
        reason = (
            f"Waiting for {server}: it does not listen at port {port} yet; "
            f"{server}: http://127.0.0.1:{port}/health does not answer yet; "
            f"{printing}: it has not printed its first_step_pattern yet."
        )
        assert sandbox.run(user).pending_reason == reason
        assert status["pending_reason"].startswith(reason[:40])
        assert not (sandbox.path / "started").exists()
        (sandbox.path / "go").touch()
        await until_async((sandbox.path / "started").exists, "the start of the run")
        asked = await agent.call("kill_run", run_id=server)
        assert f"these need it and stop with it: {user}" in asked["message"]
        asked = await agent.call("kill_run", run_id=[server, printing])
        assert f"these need it and stop with it: {user}" in asked["message"]
        await agent.kill(server)
        end = await agent.end(user)
        assert (end["state"], end["stopped_by"]) == ("killed", "service")
        assert f"{server}, which it needs, has ended: killed" in end["events"][-1]["text"]
        assert (await agent.call("wait_run", run_ids=printing, timeout_s=0))["runs"][0]["state"] == "running"
        refusal = await agent.refusal("launch_run", command="true", needs=["server"])
        assert f"{server} has ended: killed" in refusal


async def test_a_run_whose_service_ends_before_it_answers_never_starts(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        server = await agent.launch("while [ ! -e go ]; do sleep 0.02; done; exit 3", name="server")
        user = await agent.launch("touch started", needs=["server@9"], recovery="default")
        stopped = await agent.launch("touch started", needs=["server"])
        assert (await agent.kill(stopped))["status"] == "killed"
        (sandbox.path / "go").touch()
        end = await agent.end(user)
        assert end["state"] == "failed"
        assert end["events"][-1]["text"] == (
            f"Never started: {server}, which it needs, ended before it answered: failed (exit code 3)."
        )
        assert not (sandbox.path / "started").exists()
        for wrong, cause in (("nobody", "Run not found"), (f"{server}@http", "is not RUN, RUN@PORT or HOST:PORT")):
            assert cause in await agent.refusal("launch_run", command="true", needs=[wrong])


async def test_a_service_goes_on_as_long_as_its_processes_do_and_its_ray_is_known_to_those_that_need_it(
    sandbox: Sandbox,
) -> None:
    home = sandbox.path / "state"
    home.mkdir(mode=0o700)
    (home / "hosts.toml").write_text('[environments.robot.ray]\nports = "20000-29999"\ntemp_dir = "/tmp/r-{run_id}"\n')
    async with sandbox.agent_in_process() as agent:
        head = await agent.launch(SERVER.format(port="$RAY_PORT"), name="head", environment="robot")
        (sandbox.path / "go").touch()
        command = "echo $RAY_ADDRESS $RLINF_NAMESPACE; while [ ! -e enough ]; do sleep 0.02; done; exit 1"
        user = await agent.launch(command, needs=[head], environment="robot")
        await until_async(lambda: sandbox.run(user).state == "running", "the start of the run")
        port = sandbox.run(head).spec.env["RAY_PORT"]
        await until_async(lambda: f"127.0.0.1:{port} {head}" in sandbox.log(user), "its output")
        os.kill(sandbox.supervisor(head), signal.SIGKILL)
        text = f"The supervisor of {head}, which it needs, is gone; its processes go on."
        await until_async(lambda: any(event.get("text") == text for event in sandbox.run(user).events), "the news")
        assert sandbox.run(user).state == "running"
        (sandbox.path / "enough").touch()
        assert (await agent.end(user))["state"] == "failed"


async def test_a_run_waits_for_an_address_as_for_a_run(sandbox: Sandbox) -> None:
    port = free_port()
    (sandbox.path / "health").touch()
    async with sandbox.agent_in_process() as agent:
        needs = [f"127.0.0.1:{port}", f"127.0.0.1:{port}/health"]
        answer = await agent.call("launch_run", command="echo started; sleep 600", name="user", needs=needs)
        user = answer["run_id"]
        reason = f"Waiting for 127.0.0.1:{port}: its host refuses connections; "
        await until_async(lambda: (sandbox.run(user).pending_reason or "").startswith(reason), "the reason")
        (sandbox.path / "go").touch()
        await agent.launch(SERVER.format(port=port), name="server")
        await until_async(lambda: sandbox.run(user).state == "running", "the start of the run")
        await agent.kill(user)
        assert "HOST:PORT" in await agent.refusal("launch_run", command="true", needs=[f"127.0.0.1:{port}x"])
