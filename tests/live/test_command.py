"""`runward` as people and scripts type it, and the server over HTTP."""

import json
import os
import shutil
import signal

import pytest

from mcp_server.system import processes
from tests.support.sandbox import Sandbox, until
from tests.support.service import serve

pytestmark = pytest.mark.anyio


async def test_wait_exits_with_the_runs_own_exit_code(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        ids = [await agent.launch(c) for c in ("sleep 0.5; exit 7", "true", "kill -KILL $$", "sleep 300")]
    assert [sandbox.runward("wait", i).returncode for i in ids[:3]] == [7, 0, 128 + signal.SIGKILL]
    still = sandbox.runward("wait", ids[3], "--timeout", "0.1")
    assert (still.returncode, "still running" in still.stderr) == (124, True)
    status = json.loads(sandbox.runward("wait", ids[0], "--json").stdout)
    assert (status["state"], status["exit_code"]) == ("failed", 7)


async def test_wait_says_why_a_run_is_lost(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("sleep 300")
    os.kill(sandbox.supervisor(run_id), signal.SIGKILL)
    told = sandbox.runward("wait", run_id)
    assert (told.returncode, "supervisor is gone" in told.stdout) == (125, True)


async def test_lists_and_logs_are_for_people_and_for_scripts(sandbox: Sandbox) -> None:
    assert "No runs yet" in sandbox.runward("ls").stdout
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("echo one; echo two; exit 3", name="cfm")
        await agent.end(run_id)
    table = sandbox.runward("ls").stdout
    assert run_id in table
    assert "failed" in table
    listed = json.loads(sandbox.runward("ls", "--json", "--state", "ended").stdout)
    assert [r["run_id"] for r in listed["runs"]] == [run_id]
    assert sandbox.runward("logs", run_id, "-n", "1").stdout == "two\n"
    assert sandbox.runward("logs", run_id, "--grep", "on").stdout == "1:one\n"
    assert sandbox.runward("logs", run_id, "--path").stdout.strip() == str(sandbox.rundir(run_id).log(1))
    missing = sandbox.runward("logs", run_id[:-1])
    assert (missing.returncode, missing.stdout) == (2, "")
    assert f"Did you mean {run_id}?" in missing.stderr


async def test_no_owner_or_command_can_disturb_a_list_or_a_question(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("true #\r\x1b[2K\x1b]0;x\x07", owner="[/x]")
        await agent.end(run_id)
        assert "owner" in await agent.refusal("launch_run", command="true", owner="a\x1b[31m")
        asked = await agent.call("kill_run", run_id=await agent.launch("sleep 300 #\r\x1b[2Kdone"))
    assert "\x1b" not in asked["message"]
    listed = sandbox.runward("ls")
    assert (listed.returncode, "[/x]" in listed.stdout, "\x1b" in listed.stdout) == (0, True, False)


async def test_attach_opens_a_new_screen_when_tmux_has_died(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("echo before; sleep 300")
    sandbox.tmux("kill-server")
    until(lambda: "screen_lost" in [e["kind"] for e in sandbox.run(run_id).events])
    assert sandbox.runward("attach", run_id).returncode != 0, "no terminal here to attach with"
    until(lambda: "before" in sandbox.tmux("capture-pane", "-p", "-t", f"={run_id}:"))
    sandbox.tmux("kill-session", "-t", f"={run_id}")
    assert sandbox.run(run_id).state == "running", "closing a reader's screen closes no run"


def test_doctor_says_what_is_missing_and_what_to_type(sandbox: Sandbox) -> None:
    assert sandbox.runward("doctor").returncode == 0
    report = json.loads(sandbox.runward("doctor", "--json").stdout)
    assert report["ok"] is True
    (sandbox.path / "state" / "config.toml").write_text('kill_polcy = "human"\n')
    (sandbox.path / "state" / "secrets.env").write_text("A_KEY=12345678\n")
    (sandbox.path / "state" / "secrets.env").chmod(0o644)
    sandbox.environ["PATH"] = str(sandbox.path)
    broken = json.loads(sandbox.runward("doctor", "--json").stdout)
    found = {f["what"]: f for f in broken["findings"]}
    assert broken["ok"] is False
    assert found["tmux"]["remedy"] == "sudo apt-get install tmux"
    assert "kill_polcy" in found["config"]["detail"]
    assert "chmod 600" in found["secrets"]["detail"]
    assert "12345678" not in json.dumps(broken)


async def test_an_invalid_setting_stops_nothing_silently(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("sleep 300")
        (sandbox.path / "state" / "config.toml").write_text('kill_polcy = "human"\n')
        # It may have been meant to reserve stops for people.
        asked = await agent.call("kill_run", run_id=run_id)
        assert (asked["status"], "confirm_token" in asked) == ("confirmation_required", False)
        assert "kill_polcy" in await agent.refusal("launch_run", command="true")
        assert (await agent.call("list_runs"))["total"] == 1


@pytest.mark.parametrize("legacy", [False, True])
async def test_the_same_tools_over_http(sandbox: Sandbox, legacy: bool) -> None:
    with serve(sandbox) as service:
        async with service.agent(legacy=legacy) as agent:
            run_id = await agent.launch("sleep 0.3; exit 7")
            assert (await agent.end(run_id))["exit_code"] == 7
            other = await agent.launch("sleep 300")
            beat = await agent.call("wait_run", run_ids=[run_id, other], timeout_s=0.2)
            assert beat["reason"] == "heartbeat", "a known end is no news for ever"
            assert (await agent.kill(other))["status"] == "killed"
    assert sandbox.run(run_id).exit_code == 7


def test_nobody_else_may_reach_a_server_without_tokens(sandbox: Sandbox) -> None:
    refused = sandbox.runward("serve", "--http", "0.0.0.0:8765")
    assert refused.returncode == 2
    assert "can be reached by other machines" in refused.stderr
    assert sandbox.runward("serve", "--http", "nonsense").returncode == 2


async def test_diagnose_tells_why_a_log_or_a_run_failed(sandbox: Sandbox) -> None:
    log = sandbox.path / "train.log"
    trace = "Traceback (most recent call last):\n  File \"t.py\", line 1\nKeyError: 'lr'\n"
    log.write_text(f"step 7 loss 0.5\n{trace}Done.\n")
    facts = json.loads(sandbox.runward("diagnose", "--json", str(log), "--exit-code", "1").stdout)
    assert set(facts) == {*("kind", "line", "line_number", "retryable", "action", "advice", "first_step_seen", "step")}
    assert (facts["kind"], facts["line"], facts["line_number"]) == ("python_error", "KeyError: 'lr'", 4)
    assert (facts["first_step_seen"], facts["step"]) == (True, 7)
    assert "python_error" in sandbox.runward("diagnose", str(log)).stdout

    log.write_text("step 7 loss 0.5\nTraining completed\n")
    assert json.loads(sandbox.runward("diagnose", "--json", str(log)).stdout)["kind"] == "ok"
    killed = json.loads(sandbox.runward("diagnose", "--json", str(log), "--signal", "9").stdout)
    assert killed["kind"] == "killed"
    assert killed == json.loads(sandbox.runward("diagnose", "--json", str(log), "--signal", "SIGKILL").stdout)

    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("echo 'OSError: [Errno 28] No space left on device'; exit 1")
        await agent.end(run_id)
    assert json.loads(sandbox.runward("diagnose", "--json", run_id).stdout)["kind"] == "disk_full"


@pytest.mark.parametrize(
    ("words", "told"),
    [(["/no/such.log"], "not a file"), (["/"], "not a file"), (["/dev/null", "--signal", "SIGNONE"], "SIGNONE")],
)
def test_what_cannot_be_diagnosed_is_refused_with_the_cause(sandbox: Sandbox, words: list[str], told: str) -> None:
    done = sandbox.runward("diagnose", *words)
    assert done.returncode == 2
    assert told in done.stderr


async def test_a_training_in_the_background_is_not_told_as_plainly_finished(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        answer = await agent.call("launch_run", command="nohup sleep 600 &", name="lost", wait_s=30)
        listed = (await agent.call("list_runs"))["runs"][0]
        waited = (await agent.call("wait_run", run_ids=answer["run_id"], timeout_s=0, since=0))["runs"][0]
    assert (answer["state"], answer["exit_code"]) == ("finished", 0)
    sentence = next(each for each in answer["warnings"] if "left 1 process behind" in each)
    assert "which runward stopped: sleep 600." in sentence
    assert sentence.endswith("launch it again without &, nohup or setsid: a run ends with its command.")
    assert waited["note"] == sentence
    assert listed["note"] == "left 1 process behind, stopped"


async def test_a_run_whose_record_was_removed_is_named_by_doctor_and_stopped_by_its_id(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent:
        run_id, other = await agent.launch("sleep 300 & exec sleep 301"), await agent.launch("sleep 300")
        command, supervisors = sandbox.run(run_id).at_start["pid"], {n: sandbox.supervisor(n) for n in (run_id, other)}
        record = sandbox.rundir(run_id).path  # its supervisor may still write there
        while record.exists():
            shutil.rmtree(record, ignore_errors=True)
        sandbox.rundir(other).spec.unlink()
        found = json.loads(sandbox.runward("doctor", "--json").stdout)["findings"]
        named = {each["detail"].split()[0]: each["remedy"] for each in found if each["what"] == "record"}
        assert named == {name: f"runward kill {name}  # its supervisor: {pid}" for name, pid in supervisors.items()}
        asked = await agent.call("kill_run", run_id=run_id)
        assert (asked["status"], asked["state"]) == ("confirmation_required", "running")
        assert "sleep 301" in asked["message"], "who confirms sees which command is meant"
        assert processes.find_process(command) is not None
        killed = await agent.call("kill_run", run_id=run_id, confirm_token=asked["confirm_token"])
        assert (killed["status"], killed["state"], killed["survivors"]) == ("killed", "killed", [])
        assert killed["message"].endswith("Its record had been removed.")
        assert processes.find_process(command) is processes.find_process(supervisors[run_id]) is None
        assert await agent.refusal("kill_run", run_id=run_id)
        assert (await agent.kill(other))["status"] == "killed"
