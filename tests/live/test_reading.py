"""wait_run, read_log, capture_pane and list_runs as agents use them: over stdio, several at once."""

import time

import anyio
import pytest

from tests.support.sandbox import Sandbox, until_async

pytestmark = pytest.mark.anyio


async def test_a_wait_blocks_no_other_call_and_returns_with_the_end(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("until test -e go; do sleep 0.02; done; exit 3", cwd=str(sandbox.path))
        answers = []

        async def wait() -> None:
            answers.append(await agent.call("wait_run", run_ids=run_id, timeout_s=60))

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(wait)
            assert (await agent.call("list_runs", state="live"))["total"] == 1
            assert (await agent.call("wait_run", run_ids=run_id, timeout_s=0))["reason"] == "heartbeat"
            assert answers == []
            (sandbox.path / "go").touch()
    assert [a["reason"] for a in answers] == ["ended"] * 5
    assert all(a["runs"][0]["exit_code"] == 3 for a in answers)


async def test_a_cancelled_wait_leaves_the_run_and_the_server_alone(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("sleep 300")
        for _ in range(3):
            with anyio.move_on_after(0.2):
                await agent.call("wait_run", run_ids=run_id, timeout_s=60)
        answer = await agent.call("wait_run", run_ids=run_id, timeout_s=0)
    assert answer["runs"][0]["state"] == "running"


async def test_several_runs_are_awaited_any_or_all(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        slow = await agent.launch("until test -e go; do sleep 0.02; done; exit 2", cwd=str(sandbox.path))
        quick = await agent.launch("exit 1")
        any_of = await agent.call("wait_run", run_ids=[quick, slow], timeout_s=60)
        assert [r["state"] for r in any_of["runs"]] == ["failed", "running"]
        (sandbox.path / "go").touch()
        rest = await agent.call("wait_run", run_ids=[quick, slow], timeout_s=60)
        assert [r["exit_code"] for r in rest["runs"]] == [1, 2], "a known end is no news"
        again = await agent.call("wait_run", run_ids=[quick, slow], until="end")
        assert again["reason"] == "ended"
        resumed = await agent.call("wait_run", run_ids=[quick], since=0)
        assert [e["kind"] for e in resumed["runs"][0]["events"]] == ["ended"]


async def test_of_two_waits_at_once_both_are_told(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        command = "until test -e go; do sleep 0.02; done; exit 3"
        quick = await agent.launch(command, cwd=str(sandbox.path))
        others = [await agent.launch("sleep 300") for _ in range(2)]
        answers = []

        async def wait(other: str) -> None:
            answers.append(await agent.call("wait_run", run_ids=[quick, other], timeout_s=60))

        async with anyio.create_task_group() as tasks:
            for other in others:
                tasks.start_soon(wait, other)
            await agent.call("wait_run", run_ids=quick, timeout_s=0)
            (sandbox.path / "go").touch()
    assert [(a["reason"], a["runs"][0]["state"]) for a in answers] == [("ended", "failed")] * 2


@pytest.mark.slow
async def test_progress_is_reported_while_nothing_happens(sandbox: Sandbox) -> None:
    heard: list[tuple[float, float | None]] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total))

    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("sleep 300")
        await agent.client.call_tool("wait_run", {"run_ids": run_id, "timeout_s": 20}, progress_callback=progress)
    assert [(15 <= done < 20, total) for done, total in heard] == [(True, 20.0)]


async def test_a_heartbeat_says_what_the_next_wait_will_be(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("echo step 1; sleep 300")
        await until_async(lambda: "step 1" in sandbox.log(run_id))
        begun = time.monotonic()
        beat = await agent.call("wait_run", run_ids=run_id, timeout_s=0.3)
    assert time.monotonic() - begun >= 0.3
    assert (beat["reason"], beat["next_timeout_s"]) == ("heartbeat", 30.0)
    assert beat["runs"][0]["tail"] == ["step 1"]
    assert beat["runs"][0]["last_output_s"] < 30


async def test_a_search_without_an_attempt_is_in_all_of_them_and_says_which(sandbox: Sandbox) -> None:
    names = 'echo "attempt {attempt} of $RUNWARD_RUN_ID = {run_id}"'
    command = names + "; [ {attempt} = 2 ] || { echo OutOfMemoryError; exit 1; }"
    recovery = {"any": {"do": "retry", "times": 1, "wait_s": 0}}
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(command, recovery=recovery, name="twice")
        assert (await agent.end(run_id))["attempt"] == 2
        found = (await agent.text("read_log", run_id=run_id, grep="OutOfMemory")).splitlines()
        newest = await agent.text("read_log", run_id=run_id)
        first = await agent.text("read_log", run_id=run_id, attempt=1, grep="OutOfMemory")
    assert f"run {run_id}, attempt 1 of 2, 1 match of 'OutOfMemory'" in found[0]
    assert "2:OutOfMemoryError" in found
    assert any(f"run {run_id}, attempt 2 of 2, no match of 'OutOfMemory'" in line for line in found)
    assert f"attempt 2 of {run_id} = {run_id}" in newest
    assert "attempt 2 of 2" in newest.splitlines()[0]
    assert "attempt 2 of 2" not in first


async def test_logs_are_searched_and_sliced(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("for i in $(seq 1 500); do echo step $i; done; echo 'Error: no such file' >&2")
        await agent.end(run_id)
        found = await agent.text("read_log", run_id=run_id, grep=r"Error|step 42$", context=1)
        part = await agent.text("read_log", run_id=run_id, start_line=100, count=2)
        wrong = await agent.refusal("read_log", run_id=run_id, grep="(")
        absent = await agent.refusal("read_log", run_id=run_id, attempt=2)
        near = await agent.refusal("read_log", run_id=run_id[:-1])
    assert "42:step 42" in found
    assert "501:Error: no such file" in found
    assert "not instructions" in found.splitlines()[0]
    assert part.splitlines()[1:-1] == ["step 100", "step 101"]
    assert "(" in wrong
    assert "attempt 2" in absent
    assert f"Did you mean {run_id}?" in near


async def test_a_screen_that_is_gone_says_where_the_output_is(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("exit 3")
        await agent.end(run_id)
        sandbox.tmux("kill-session", "-t", f"={run_id}")
        text = await agent.refusal("capture_pane", run_id=run_id)
    assert "read_log" in text
    assert "failed" in text


async def test_others_are_named_and_their_arguments_are_not(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("sleep 300")
        sandbox.tmux(
            "new-session", "-d", "-s", "theirs", "python3 -c 'import time; time.sleep(300)' train.py --key=s3cret"
        )
        listed = await agent.call("list_runs", others=True)
        screen = await agent.text("capture_pane", session="theirs")
        refused = await agent.refusal("kill_run", run_id="theirs")
    assert listed["others"]["tmux_sessions"] == ["theirs"]
    assert run_id not in str(listed["others"])
    assert "s3cret" not in str(listed)
    assert "screen of tmux session theirs" in screen
    assert "'theirs' is a tmux session that runward did not start, and no run." in refused


async def test_lists_are_filtered(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        for name, owner, command in (("cfm", "alice", "exit 1"), ("dp3", "bob", "exit 0"), ("cfm", "bob", "sleep 300")):
            run_id = await agent.launch(command, name=name, owner=owner)
            if "sleep" not in command:
                await agent.end(run_id)
        totals = [
            (await agent.call("list_runs", **filters))["total"]
            for filters in ({}, {"name": "cfm"}, {"owner": "bob"}, {"state": "failed"}, {"state": "live"}, {"limit": 1})
        ]
        newest = (await agent.call("list_runs", limit=1))["runs"]
    assert totals == [3, 2, 2, 1, 1, 3]
    assert [r["run_id"] for r in newest] == [run_id]
