"""The server over HTTP, as agents meet it: who is let in by which name, where it listens, how it stops."""

from __future__ import annotations

import contextlib
import json
import signal
import socket

import anyio
import pytest

from mcp_server import __version__
from tests.support import hostile_requests
from tests.support.ports import free_port
from tests.support.sandbox import Agent, Sandbox, until_async
from tests.support.service import serve, tokens

pytestmark = pytest.mark.anyio

STOPS_WITHIN_S = 15.0  # the waits would last ten minutes


# --- who is let in, by which name


async def test_a_run_belongs_to_the_token_it_was_launched_with_and_others_may_only_look(sandbox: Sandbox) -> None:
    alices, bobs = tokens(sandbox).add("alice"), tokens(sandbox).add("bob")
    with serve(sandbox) as service:
        async with service.agent(alices) as alice, service.agent(bobs, legacy=True) as bob:
            run = await alice.call("launch_run", command="echo begun; sleep 600", owner="alice")
            run_id = run["run_id"]
            assert run["owner"] == "alice"
            await until_async(lambda: "begun" in sandbox.log(run_id), "output")
            assert (await bob.call("wait_run", run_ids=run_id, timeout_s=0))["runs"][0]["state"] == "running"
            assert "begun" in await bob.text("read_log", run_id=run_id)
            assert [(r["run_id"], r["owner"]) for r in (await bob.call("list_runs"))["runs"]] == [(run_id, "alice")]
            for force in (False, True):
                told = await bob.refusal("kill_run", run_id=run_id, force_other_owner=force)
                assert "belongs to 'alice'" in told
                assert "left alone, still running" in told
            assert "leave owner out" in await bob.refusal("launch_run", command="true", owner="alice")
            assert (await alice.kill(run_id))["status"] == "killed"
    assert json.loads(sandbox.rundir(run_id).stop.read_text())["by"] == "alice"


async def test_a_key_is_its_owners_alone(sandbox: Sandbox) -> None:
    alices, bobs = tokens(sandbox).add("alice"), tokens(sandbox).add("bob")
    with serve(sandbox) as service:
        async with service.agent(alices) as alice, service.agent(bobs) as bob:
            hers = await alice.call("launch_run", command="sleep 600", idempotency_key="sweep/1")
            his = await bob.call("launch_run", command="echo his; sleep 600", idempotency_key="sweep/1")
            assert (hers["owner"], his["owner"]) == ("alice", "bob")
            assert hers["run_id"] != his["run_id"]
            # A launch that is refused is not told of another's run with its key either.
            told = await bob.refusal("launch_run", command="true", cwd="/nonexistent", idempotency_key="sweep/2")
            assert "is not a directory" in told
            again = [await agent.launch("true", idempotency_key="sweep/1") for agent in (alice, bob)]
            assert again == [hers["run_id"], his["run_id"]]


async def test_a_key_is_one_over_http_and_stdio_for_its_owner_alone(sandbox: Sandbox) -> None:
    me = sandbox.store.home.owner({})
    mine, adas = tokens(sandbox).add(me), tokens(sandbox).add("ada")
    by_stdio = {}
    for owner in (me, "ada"):
        async with sandbox.agent(RUNWARD_OWNER=owner) as agent:
            by_stdio[owner] = await agent.launch("sleep 600", idempotency_key="sweep/1")
            assert await agent.launch("sleep 600", idempotency_key="sweep/1") == by_stdio[owner]
    with serve(sandbox) as service:
        async with service.agent(mine) as my_agent, service.agent(adas) as ada:
            by_http = {me: my_agent, "ada": ada}
            again = {owner: await agent.launch("true", idempotency_key="sweep/1") for owner, agent in by_http.items()}
            assert again == by_stdio
            first = await ada.launch("true", idempotency_key="sweep/2")
    async with sandbox.agent(RUNWARD_OWNER="ada") as agent:
        assert await agent.launch("true", idempotency_key="sweep/2") == first
    assert len(sandbox.store.list_ids()) == 3


async def test_a_key_belongs_to_the_owner_that_a_call_over_stdio_names(sandbox: Sandbox) -> None:
    adas = tokens(sandbox).add("ada")
    async with sandbox.agent() as agent:
        first = await agent.launch("true", idempotency_key="sweep/1", owner="ada")
        mine = await agent.launch("true", idempotency_key="sweep/1")
        # A key that reads like one of hers is not hers.
        lookalike = await agent.launch("true", idempotency_key="ada: sweep/2")
        assert await agent.launch("true", idempotency_key="ada: sweep/2") == lookalike
    with serve(sandbox) as service:
        async with service.agent(adas) as ada:
            assert await ada.launch("true", idempotency_key="sweep/1") == first
            hers = await ada.launch("true", idempotency_key="sweep/2")
    assert len({first, mine, lookalike, hers}) == 4


@pytest.mark.slow
async def test_a_sweep_is_its_owners_and_every_file_that_it_names_is_checked(sandbox: Sandbox) -> None:
    alices, bobs = tokens(sandbox).add("alice"), tokens(sandbox).add("bob")
    secret, project = sandbox.path / "secret", sandbox.path / "project"
    secret.mkdir()
    project.mkdir()  # a run of bob's in the sandbox's directory would let him read all that is below it
    (secret / "plan.md").write_text("# of somebody else\n")
    with serve(sandbox) as service:
        async with service.agent(alices) as alice, service.agent(bobs) as bob:
            plan = {"name": "night", "common": {"command": "sleep 600", "cwd": str(project)}, "cells": [{}]}
            hers = (await alice.call("launch_sweep", **plan))["sweep_id"]
            for arguments in ({"name": "night"}, {**plan, "name": hers}, {"name": hers, "notes": {"cell": "keep"}}):
                assert "belongs to 'alice'" in await bob.refusal("launch_sweep", **arguments)
            assert "belongs to 'alice'" in await bob.refusal("kill_run", run_id=hers, force_other_owner=True)
            his = (await bob.call("launch_sweep", **plan))["sweep_id"]
            assert his != hers
            blueprints = {"common": {"cwd": str(secret)}, "blueprints": ["plan.md"]}
            for arguments in (blueprints, {"phases": [blueprints]}, {"cells": [{"launch": {"cwd": str(secret)}}]}):
                refused = await bob.refusal("launch_sweep", name="x", dry_run=True, **arguments)
                assert "is not below a directory that this token may read" in refused
            for agent, sweep_id in ((alice, hers), (bob, his)):
                assert (await agent.kill(sweep_id))["status"] == "killed"


async def test_callers_without_sessions_are_told_apart_by_their_tokens(sandbox: Sandbox) -> None:
    alices, bobs = tokens(sandbox).add("alice"), tokens(sandbox).add("bob")
    with serve(sandbox) as service:
        async with service.agent(alices) as alice, service.agent(bobs) as bob:
            run_id = await alice.launch("true")
            told = [await agent.end(run_id) for agent in (alice, alice, bob, bob)]
            kinds = [[event["kind"] for event in status.get("events", [])] for status in told]
            assert kinds == [["ended"], [], ["ended"], []]


async def test_a_token_taken_back_or_given_counts_from_the_next_request_on(sandbox: Sandbox) -> None:
    known = tokens(sandbox)
    token = known.add("alice")
    with serve(sandbox) as service:
        request = hostile_requests.plain().replace(b"{port}", str(service.port).encode())
        assert service.send(request.replace(b"{alice}", token.encode()))[0] == 200
        known.remove("alice")
        assert service.send(request.replace(b"{alice}", token.encode()))[0] == 401
        again = known.add("alice")
        assert service.send(request.replace(b"{alice}", token.encode()))[0] == 401
        assert service.send(request.replace(b"{alice}", again.encode()))[0] == 200
        known.file.unlink()
        assert service.send(request.replace(b"{alice}", again.encode()))[0] == 401


async def test_without_tokens_all_on_this_machine_may_come_in_until_there_are_some(sandbox: Sandbox) -> None:
    with serve(sandbox) as service:
        async with service.agent() as anyone:
            assert (await anyone.call("launch_run", command="true", owner="me"))["owner"] == "me"
        request = hostile_requests.plain(token=None).replace(b"{port}", str(service.port).encode())
        assert service.send(request)[0] == 200
        tokens(sandbox).add("alice")
        assert service.send(request)[0] == 401


def test_a_file_of_tokens_that_others_can_read_lets_nobody_in(sandbox: Sandbox) -> None:
    token = tokens(sandbox).add("alice")
    with serve(sandbox) as service:
        tokens(sandbox).file.chmod(0o644)
        request = (
            hostile_requests.plain().replace(b"{alice}", token.encode()).replace(b"{port}", str(service.port).encode())
        )
        assert [service.send(request)[0] for _ in range(3)] == [503] * 3
        assert service.log.read_text().count("chmod 600") == 1
    refused = sandbox.runward("serve", "--http", f"127.0.0.1:{free_port()}")
    assert (refused.returncode, "chmod 600" in refused.stderr) == (2, True)


# --- where it listens


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.1"])
def test_beyond_this_machine_it_listens_only_with_tokens(sandbox: Sandbox, host: str) -> None:
    refused = sandbox.runward("serve", "--http", f"{host}:{free_port()}")
    assert refused.returncode == 2
    assert "runward token add NAME" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_with_tokens_it_listens_on_every_address_and_still_refuses_rebound_names(sandbox: Sandbox) -> None:
    token = tokens(sandbox).add("alice")
    with serve(sandbox, "0.0.0.0") as service:
        request = hostile_requests.plain(host="{host}").replace(b"{alice}", token.encode())
        for host, status in (("localhost", 200), (socket.gethostname(), 200), ("evil.example", 421), ("8.8.8.8", 421)):
            assert service.send(request.replace(b"{host}", host.encode()))[0] == status, host


async def test_it_serves_over_ipv6(sandbox: Sandbox) -> None:
    with serve(sandbox, "[::1]") as service:
        async with service.agent() as agent:
            assert (await agent.call("list_runs"))["total"] == 0


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.0.0.1:99999", "::1:8765", "127.0.0.1:x", "no host:1"])
def test_an_address_that_is_none_is_refused(sandbox: Sandbox, address: str) -> None:
    refused = sandbox.runward("serve", "--http", address)
    assert (refused.returncode, "Nothing is served" in refused.stderr) == (2, True), refused.stderr


def test_a_port_in_use_is_said(sandbox: Sandbox) -> None:
    with serve(sandbox) as service:
        refused = sandbox.runward("serve", "--http", f"127.0.0.1:{service.port}")
        assert refused.returncode == 2
        assert f"Cannot listen at 127.0.0.1:{service.port}" in refused.stderr
        assert "Traceback" not in refused.stderr


# --- stopping


@pytest.mark.parametrize(
    ("number", "legacy"), [(signal.SIGTERM, False), (signal.SIGINT, True)], ids=["stateless", "sessions"]
)
async def test_it_stops_with_waits_open_and_starts_again_at_once(
    sandbox: Sandbox, number: signal.Signals, legacy: bool
) -> None:
    with serve(sandbox) as service:
        async with contextlib.AsyncExitStack() as stack:
            # A client whose server has gone may say so in many ways; it is not what is looked at.
            agents = [await stack.enter_async_context(service.agent(legacy=legacy)) for _ in range(3)]
            run_id = await agents[0].launch("echo begun; sleep 600")

            async def wait(agent: Agent) -> None:
                with contextlib.suppress(Exception):
                    await agent.call("wait_run", run_ids=run_id, timeout_s=600)

            async with anyio.create_task_group() as waits:
                for agent in agents:
                    waits.start_soon(wait, agent)
                await until_async(lambda: service.health()["waits"] == 3, "three open waits")
                took_s = await anyio.to_thread.run_sync(service.stop, number)
                waits.cancel_scope.cancel()
            with serve(sandbox, port=service.port) as successor:
                assert successor.health()["waits"] == 0
            with contextlib.suppress(Exception):
                await stack.aclose()
    assert took_s < STOPS_WITHIN_S
    assert service.process.returncode == 0
    greeting = f"runward {__version__} at {service.url} (no tokens: open to all users of this machine)\n"
    assert service.log.read_text() == 2 * greeting
    assert sandbox.run(run_id).state == "running"
