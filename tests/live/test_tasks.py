"""Waits as tasks: what a client that declares the extension gets, from any server, and what nobody else gets."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.shared.exceptions import MCPError
from mcp.types import ElicitResult
from mcp_types import SubscriptionFilter, SubscriptionsListenRequest, SubscriptionsListenRequestParams

from mcp_server.system.processes import find_process
from tests.support.sandbox import Agent, Sandbox, until_async
from tests.support.service import serve, tokens
from tests.support.task_client import ANYTHING, IDENTIFIER, TASKS, TaskClient, TaskParams, TaskRequest

pytestmark = pytest.mark.anyio

NO_SUCH_TASK = "Task not found. Its runs, if it had any, go on. Call wait_run again."
NOWHERE = f"{'0' * 12}-{'x' * 32}"


@pytest.fixture
def gate(sandbox: Sandbox) -> Path:
    """A run that reads from this goes on when somebody writes into it."""
    os.mkfifo(path := sandbox.path / "gate")
    return path


def files(sandbox: Sandbox) -> list[Path]:
    return sorted((sandbox.path / "state" / "waits").glob("*"))


async def refusal(request: Any) -> tuple[int, str]:
    with pytest.raises(MCPError) as refused:
        await request
    return refused.value.code, refused.value.message


async def blocking_answer(agent: Agent, run_id: str) -> dict[str, Any]:
    return await agent.call("wait_run", run_ids=run_id, timeout_s=0, since=0)


# --- a task, from its beginning to its end


async def test_a_wait_is_a_task_that_completes_with_the_ordinary_result(sandbox: Sandbox, gate: Path) -> None:
    async with sandbox.agent(extensions=TASKS) as agent, sandbox.agent() as other:
        tasks = TaskClient(agent.client)
        run_id = await agent.launch(f"echo 'step 812/5000 loss 1.93'; read -r < {gate}; exit 3")
        await agent.call("wait_run", run_ids=run_id, until="first_step", timeout_s=0)
        await until_async(lambda: sandbox.run(run_id).progress.get("step"), "a step")
        task = await tasks.create(run_ids=run_id, until="end")
        assert task["status"] == "working"
        assert 400 <= task["pollIntervalMs"] <= 600
        (file,) = files(sandbox)
        assert file.name == f"{task['taskId']}.json"
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.parent.stat().st_mode & 0o777 == 0o700
        working = await tasks.get(task["taskId"])
        assert (working["resultType"], working["status"]) == ("complete", "working")
        assert working["statusMessage"].startswith("step 812/5000, loss 1.93")
        assert "result" not in working
        gate.write_text("\n")
        done = await tasks.poll(task["taskId"])
        assert (done["status"], done["taskId"], done["createdAt"]) == ("completed", task["taskId"], task["createdAt"])
        result = done["result"]
        assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
        assert not result["isError"]
        plain = await blocking_answer(other, run_id)
        assert result["structuredContent"]["reason"] == plain["reason"] == "ended"
        (status,), (plain_status,) = result["structuredContent"]["runs"], plain["runs"]
        assert status["failure"] == plain_status["failure"]
        assert status["exit_code"] == 3
        again = [await tasks.get(task["taskId"]) for _ in range(2)]
        assert [(each["status"], each["result"]) for each in again] == [("completed", result)] * 2


async def test_an_answer_that_is_there_already_is_no_task(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process(extensions=TASKS) as agent:
        tasks = TaskClient(agent.client)
        run_id = await agent.launch("sleep 600")
        over = await agent.launch("true")
        await until_async(lambda: sandbox.run(over).ended, "the end")
        now = await tasks.call("wait_run", run_ids=run_id, timeout_s=0)
        ended = await tasks.call("wait_run", run_ids=over)
        wrong = await tasks.call("wait_run", run_ids="nobody")
        worse = await tasks.call("wait_run", run_ids=run_id, timeout_s="soon")
        assert [answer["resultType"] for answer in (now, ended, wrong, worse)] == ["complete"] * 4
        assert [answer["isError"] for answer in (now, ended, wrong, worse)] == [False, False, True, True]
        assert ended["structuredContent"]["reason"] == "ended"
    assert files(sandbox) == []


async def test_a_timeout_completes_a_task_with_a_heartbeat(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process(extensions=TASKS) as agent:
        tasks = TaskClient(agent.client)
        run_id = await agent.launch("sleep 600")
        task = await tasks.create(run_ids=run_id, timeout_s=0.5)
        done = await tasks.poll(task["taskId"])
        assert done["result"]["structuredContent"]["reason"] == "heartbeat"
        assert done["result"]["structuredContent"]["runs"][0]["state"] == "running"


async def test_several_runs_are_one_task_whose_message_counts_them(sandbox: Sandbox, gate: Path) -> None:
    async with sandbox.agent_in_process(extensions=TASKS) as agent:
        tasks = TaskClient(agent.client)
        ids = [await agent.launch("sleep 600"), await agent.launch(f"read -r < {gate}")]
        task = await tasks.create(run_ids=ids)
        assert task["statusMessage"] == "2 running"
        gate.write_text("\n")
        answer = (await tasks.poll(task["taskId"]))["result"]["structuredContent"]
        assert (answer["reason"], sorted(run["state"] for run in answer["runs"])) == ("ended", ["finished", "running"])


async def test_a_run_that_joins_the_tag_completes_the_task_of_the_tag(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process(extensions=TASKS) as agent:
        tasks = TaskClient(agent.client)
        await agent.launch("sleep 600", tags=["night"])
        task = await tasks.create(run_ids="tag:night", until="decision")
        joined = await agent.launch("exit 3", tags=["night"])
        answer = (await tasks.poll(task["taskId"]))["result"]["structuredContent"]
        assert (answer["reason"], [run["run_id"] for run in answer["runs"]]) == ("ended", [joined])
        assert answer["unchanged"] == {"running": 1}
        later = await agent.call("wait_run", run_ids="tag:night", until="decision", since=answer["cursor"], timeout_s=0)
        assert later["reason"] == "heartbeat"


async def test_a_condition_completes_a_task_with_the_value_that_met_it(sandbox: Sandbox, gate: Path) -> None:
    command = f"echo 'step 1 loss 2.5'; read -r < {gate}; echo 'step 2 loss 0.25'; sleep 600"
    async with sandbox.agent_in_process(extensions=TASKS) as agent:
        tasks = TaskClient(agent.client)
        run_id = await agent.launch(command)
        await until_async(lambda: sandbox.run(run_id).progress.get("step") == 1, "a step")
        await agent.call("wait_run", run_ids=run_id, timeout_s=0)
        task = await tasks.create(run_ids=run_id, until="loss < 0.5")
        assert (await tasks.get(task["taskId"]))["status"] == "working"
        gate.write_text("\n")
        answer = (await tasks.poll(task["taskId"]))["result"]["structuredContent"]
        assert answer["reason"] == "condition_met"
        assert "0.25" in answer["met"]


async def test_cancelling_ends_the_wait_and_never_the_run(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process(extensions=TASKS) as agent:
        tasks = TaskClient(agent.client)
        run_id = await agent.launch("sleep 600")
        task = await tasks.create(run_ids=run_id)
        for _ in range(2):
            acknowledged = await tasks.request("tasks/cancel", task["taskId"])
            assert acknowledged.keys() <= {"resultType", "_meta"}
        cancelled = await tasks.get(task["taskId"])
        assert (cancelled["status"], "result" in cancelled) == ("cancelled", False)
        assert (await agent.call("wait_run", run_ids=run_id, timeout_s=0))["runs"][0]["state"] == "running"
        await agent.kill(run_id)
        assert (await tasks.get(task["taskId"]))["status"] == "cancelled", "an end is final"


async def test_a_completed_task_stays_so_when_it_is_cancelled(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process(extensions=TASKS) as agent:
        tasks = TaskClient(agent.client)
        task = await tasks.create(run_ids=await agent.launch("sleep 600"), timeout_s=0.1)
        done = await tasks.poll(task["taskId"])
        await tasks.request("tasks/cancel", task["taskId"])
        assert (await tasks.get(task["taskId"]))["result"] == done["result"]


async def test_answers_that_nobody_asked_for_are_acknowledged_and_change_nothing(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process(extensions=TASKS) as agent:
        tasks = TaskClient(agent.client)
        task = await tasks.create(run_ids=await agent.launch("sleep 600"))
        answers = {"name": {"action": "accept", "content": {"name": "x"}}}
        acknowledged = await tasks.request("tasks/update", task["taskId"], inputResponses=answers)
        assert acknowledged["resultType"] == "complete"
        assert (await tasks.get(task["taskId"]))["status"] == "working"
        assert (await refusal(tasks.request("tasks/update", NOWHERE, inputResponses={}))) == (-32602, NO_SUCH_TASK)
        assert (await refusal(tasks.request("tasks/cancel", NOWHERE))) == (-32602, NO_SUCH_TASK)


# --- what a caller has seen


async def test_news_counts_as_seen_once_the_completed_task_was_answered(sandbox: Sandbox, gate: Path) -> None:
    command = f"read -r < {gate}; echo first of steps; sleep 600"
    token = tokens(sandbox).add("alice")
    with serve(sandbox) as service:
        async with service.agent(token, extensions=TASKS) as agent:
            tasks = TaskClient(agent.client)
            run_id = await agent.launch(command, first_step_pattern="first of steps")
            task, unpolled = [await tasks.create(run_ids=run_id) for _ in range(2)]
            gate.write_text("\n")
            done = await tasks.poll(task["taskId"])
            assert done["result"]["structuredContent"]["reason"] == "first_step"
            next_wait = await agent.call("wait_run", run_ids=run_id, timeout_s=0)
            assert next_wait["reason"] == "heartbeat"
            # Another wait had seen nothing when it began.
            late = await tasks.poll(unpolled["taskId"])
            assert late["result"]["structuredContent"]["reason"] == "first_step"


async def test_news_of_a_task_that_nobody_polled_is_news_to_the_next_wait(sandbox: Sandbox, gate: Path) -> None:
    async with sandbox.agent_in_process(extensions=TASKS) as agent:
        tasks = TaskClient(agent.client)
        run_id = await agent.launch(
            f"read -r < {gate}; echo first of steps; sleep 600", first_step_pattern="first of steps"
        )
        await tasks.create(run_ids=run_id)
        gate.write_text("\n")
        await until_async(lambda: sandbox.run(run_id).stepped, "the first step")
        assert (await tasks.call("wait_run", run_ids=run_id))["structuredContent"]["reason"] == "first_step"


# --- any server


@pytest.mark.slow
async def test_a_task_outlives_its_server_and_its_client(sandbox: Sandbox, gate: Path) -> None:
    token = tokens(sandbox).add("alice")
    with serve(sandbox, cold=True) as service:
        async with service.agent(token, extensions=TASKS) as agent:
            run_id = await agent.launch(f"read -r < {gate}; exit 3")
            task = await TaskClient(agent.client).create(run_ids=run_id)
        service.process.kill()
    with serve(sandbox, port=service.port, cold=True) as service:
        async with service.agent(token, extensions=TASKS) as agent:
            assert (await TaskClient(agent.client).get(task["taskId"]))["status"] == "working"
        service.process.kill()
    gate.write_text("\n")  # nobody serves at the end
    await until_async(lambda: sandbox.run(run_id).ended, "the end")
    with serve(sandbox, port=service.port) as service:
        async with service.agent(token, extensions=TASKS) as agent:
            done = await TaskClient(agent.client).get(task["taskId"])
    assert done["result"]["structuredContent"]["runs"][0]["exit_code"] == 3


async def test_two_servers_answer_with_the_same_result(sandbox: Sandbox, gate: Path) -> None:
    async with sandbox.agent(extensions=TASKS) as one, sandbox.agent(extensions=TASKS) as other:
        clients = TaskClient(one.client), TaskClient(other.client)
        run_id = await one.launch(f"read -r < {gate}; exit 3")
        tasks = [await clients[n % 2].create(run_ids=run_id) for n in range(8)]
        results: dict[str, list[dict[str, Any]]] = {task["taskId"]: [] for task in tasks}

        async def poll(client: TaskClient, task_id: str) -> None:
            results[task_id].append((await client.poll(task_id))["result"])

        async with anyio.create_task_group() as polls:
            for task_id in results:
                for client in clients * 2:
                    polls.start_soon(poll, client, task_id)
            gate.write_text("\n")
    for answers in results.values():
        assert answers == [answers[0]] * 4


# --- who gets no task


async def test_clients_that_do_not_declare_tasks_get_none(sandbox: Sandbox) -> None:
    async with sandbox.agent(extensions=TASKS) as agent:
        run_id = await agent.launch("sleep 600")
        task = await TaskClient(agent.client).create(run_ids=run_id)
    for legacy in (False, True):
        async with sandbox.agent(legacy=legacy) as agent:
            answer = await agent.call("wait_run", run_ids=run_id, timeout_s=0.2)
            assert answer["reason"] == "heartbeat"
            for method in ("tasks/get", "tasks/cancel"):
                code, _ = await refusal(TaskClient(agent.client).request(method, task["taskId"]))
                assert code == (-32601 if legacy else -32021)
            declared = agent.client.server_capabilities.extensions or {}
            assert (IDENTIFIER in declared) != legacy
    assert len(files(sandbox)) == 1


async def test_a_declaration_counts_for_its_own_request_alone(sandbox: Sandbox) -> None:
    with serve(sandbox) as service:
        async with service.agent(extensions=TASKS) as agent, service.agent() as other:
            run_id = await agent.launch("sleep 600")
            task = await TaskClient(agent.client).create(run_ids=run_id)
            code, _ = await refusal(TaskClient(other.client).get(task["taskId"]))
            assert code == -32021
            assert (await other.call("wait_run", run_ids=run_id, timeout_s=0.2))["reason"] == "heartbeat"


async def test_a_subscription_to_tasks_needs_the_declaration(sandbox: Sandbox) -> None:
    wanted = SubscriptionFilter.model_validate({"taskIds": [NOWHERE]})
    request = SubscriptionsListenRequest(params=SubscriptionsListenRequestParams(notifications=wanted))
    async with sandbox.agent() as agent:
        code, _ = await refusal(agent.client.session.send_request(request, ANYTHING, 30))
        assert code == -32021


async def test_a_header_that_names_another_task_is_refused(sandbox: Sandbox) -> None:
    class Misrouted(TaskRequest):
        name_param = "other"

    with serve(sandbox) as service:
        async with service.agent(extensions=TASKS) as agent:
            task = await TaskClient(agent.client).create(run_ids=await agent.launch("sleep 600"))
            params = TaskParams.model_validate({"taskId": task["taskId"], "other": NOWHERE})
            request = Misrouted(method="tasks/get", params=params)
            code, message = await refusal(agent.client.session.send_request(request, ANYTHING, 30))
            assert (code, "Mcp-Name".lower() in message.lower()) == (-32020, True)


async def test_a_foreign_task_is_answered_like_one_that_does_not_exist(sandbox: Sandbox) -> None:
    alices, bobs = tokens(sandbox).add("alice"), tokens(sandbox).add("bob")
    with serve(sandbox) as service:
        async with service.agent(alices, extensions=TASKS) as alice, service.agent(bobs, extensions=TASKS) as bob:
            task = await TaskClient(alice.client).create(run_ids=await alice.launch("sleep 600"))
            bobs_tasks = TaskClient(bob.client)
            for task_id in (task["taskId"], NOWHERE, "", "../tokens", f"{task['taskId']}.end", "x" * 10_000):
                for method in ("tasks/get", "tasks/cancel"):
                    assert await refusal(bobs_tasks.request(method, task_id)) == (-32602, NO_SUCH_TASK)
                request = bobs_tasks.request("tasks/update", task_id, inputResponses={})
                assert await refusal(request) == (-32602, NO_SUCH_TASK)
            # Nor is it a user's of this machine over stdio.
            async with sandbox.agent(extensions=TASKS) as local:
                assert await refusal(TaskClient(local.client).get(task["taskId"])) == (-32602, NO_SUCH_TASK)
            assert (await TaskClient(alice.client).get(task["taskId"]))["status"] == "working"


async def test_a_client_with_tasks_is_asked_before_a_stop_in_the_call_itself(sandbox: Sandbox) -> None:
    async def elicit(_context: Any, _params: Any) -> ElicitResult:
        return ElicitResult(action="decline")

    async with sandbox.agent(extensions=TASKS, elicit=elicit) as agent:
        run_id = await agent.launch("sleep 600")
        asked = await TaskClient(agent.client).call("kill_run", allow_input_required=True, run_id=run_id)
        assert asked["resultType"] == "input_required"
        (question,) = asked["inputRequests"].values()
        assert run_id in question["params"]["message"]
        assert (await agent.call("kill_run", run_id=run_id))["status"] == "declined"
    assert sandbox.run(run_id).state == "running"
    assert files(sandbox) == []


# --- damage


async def test_a_damaged_record_is_an_error_with_a_remedy(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process(extensions=TASKS) as agent:
        tasks = TaskClient(agent.client)
        run_id = await agent.launch("sleep 600")
        for damage in ("", "[]", "{", '{"owner": null, "created_at": "2026-11-22T10:00:00Z"}', '{"owner": null}'):
            task = await tasks.create(run_ids=run_id)
            file = sandbox.path / "state" / "waits" / f"{task['taskId']}.json"
            file.write_text(damage)
            code, message = await refusal(tasks.get(task["taskId"]))
            assert code == -32603
            assert "The record of this wait cannot be used" in message
            assert message.endswith("Its runs go on. Call wait_run again.")
        task = await tasks.create(run_ids=run_id)
        end = sandbox.path / "state" / "waits" / f"{task['taskId']}.end.json"
        end.write_text('{"status": "completed"}')
        assert (await refusal(tasks.get(task["taskId"])))[0] == -32603
        assert (await agent.call("wait_run", run_ids=run_id, timeout_s=0))["runs"][0]["state"] == "running"


async def test_a_run_that_was_removed_completes_its_task_with_the_refusal_of_the_call(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process(extensions=TASKS) as agent:
        tasks = TaskClient(agent.client)
        run_id = await agent.launch("sleep 600")
        task = await tasks.create(run_ids=run_id)
        supervisor = sandbox.supervisor(run_id)
        await agent.kill(run_id)
        await until_async(lambda: find_process(supervisor) is None, "nobody who writes into the directory")
        shutil.rmtree(sandbox.rundir(run_id).path)
        done = await tasks.get(task["taskId"])
        assert (done["status"], done["result"]["isError"]) == ("completed", True)
        assert "Run not found" in done["result"]["content"][0]["text"]


async def test_a_wait_that_cannot_be_kept_blocks(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process(extensions=TASKS) as agent:
        run_id = await agent.launch("sleep 600")
        (sandbox.path / "state" / "waits").write_text("not a directory")
        answer = await TaskClient(agent.client).call("wait_run", run_ids=run_id, timeout_s=0.2)
        assert answer["structuredContent"]["reason"] == "heartbeat"
