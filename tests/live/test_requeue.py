"""Real runs whose supervisor is killed and started again on the same directory, as a scheduler does."""

import os
import signal
import subprocess
import sys

import anyio.to_thread
import pytest

from mcp_server.backends.local import supervisor_argv
from mcp_server.system import processes
from tests.support.sandbox import Sandbox, until, until_async

pytestmark = pytest.mark.anyio

TRAIN = """
echo attempt $RUNWARD_ATTEMPT arguments "$@" variables $GIVEN $MINE umask $(umask)
echo secret $MY_TOKEN hidden "$OTHER_TOKEN"
[ $RUNWARD_ATTEMPT = 1 ] && sleep 300
[ -e wait ] && sleep 300
exit 4
"""


def script(sandbox: Sandbox) -> list[str]:
    path = sandbox.path / "train.sh"
    path.write_text(TRAIN)
    return ["bash", str(path)]


def kill_everything(sandbox: Sandbox, run_id: str) -> None:
    """Kill the supervisor and all processes of a run, as the failure of a node does."""
    os.kill(sandbox.supervisor(run_id), signal.SIGKILL)
    for p in processes.find_by_variable("RUNWARD_RUN_ID", run_id):
        processes.send_signal(p, signal.SIGKILL)
    until(lambda: not processes.find_by_variable("RUNWARD_RUN_ID", run_id), "the end of all processes")
    until(lambda: sandbox.run(run_id).state == "lost", "the end of the supervisor")


def supervise_again(sandbox: Sandbox, run_id: str, **environ: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        supervisor_argv(sys.executable, sandbox.rundir(run_id).path),
        env={"PATH": os.environ["PATH"], "HOME": str(sandbox.path), **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        umask=0o027,
    )


def output_and_status(process: subprocess.Popen[bytes]) -> tuple[bytes, int]:
    output, _ = process.communicate(timeout=60)
    return output, process.returncode


async def test_a_requeued_run_goes_on_with_another_attempt_to_its_end(sandbox: Sandbox) -> None:
    sandbox.environ["MY_TOKEN"] = "first-value-1234"
    async with sandbox.agent() as agent:
        run_id = await agent.launch(
            script(sandbox),
            params={"lr": 0.1},
            resume_args=["--resume"],
            env={"GIVEN": "by-launch"},
            secrets=["MY_TOKEN"],
            cwd=str(sandbox.path),
        )
        await until_async(lambda: "attempt 1" in sandbox.log(run_id), "the first output")
        kill_everything(sandbox, run_id)
        environ = {"MINE": "of-scheduler", "MY_TOKEN": "second-value-5678", "OTHER_TOKEN": "unnamed-value-9"}
        process = supervise_again(sandbox, run_id, **environ)
        output, status = await anyio.to_thread.run_sync(output_and_status, process)
        end = await agent.end(run_id)
    assert (output, status) == (b"", 4)
    assert (end["state"], end["attempt"], end["exit_code"]) == ("failed", 2, 4)
    events = sandbox.run(run_id).events
    assert [(e["seq"], e["kind"]) for e in events] == [(1, "started"), (2, "requeued"), (3, "started"), (4, "ended")]
    assert events[1]["text"] == (
        "Requeued: its supervisor died during attempt 1; attempt 2 follows. "
        "No launcher hands over an environment, so the command gets that of this process."
    )
    first, second = (sandbox.rundir(run_id).log(number).read_text() for number in (1, 2))
    assert first.startswith("attempt 1 arguments --lr 0.1 variables by-launch umask")
    assert second == (
        "attempt 2 arguments --lr 0.1 --resume variables by-launch of-scheduler umask 0027\n"
        "secret [secret:MY_TOKEN] hidden \n"
    )
    report = sandbox.rundir(run_id).account.read_text()
    assert [line.split(" | ")[0] for line in report.splitlines()[4:]] == ["| 1", "| 2"]
    assert "| lost: its supervisor died |" in report


async def test_a_requeued_run_is_live_and_can_be_killed(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent:
        run_id = await agent.launch(script(sandbox), cwd=str(sandbox.path))
        kill_everything(sandbox, run_id)
        (sandbox.path / "wait").touch()
        process = supervise_again(sandbox, run_id)
        await until_async(lambda: sandbox.run(run_id).attempt == 2, "the second attempt")
        status = (await agent.call("wait_run", run_ids=run_id, timeout_s=0))["runs"][0]
        assert (status["state"], status["attempt"]) == ("running", 2)
        assert await anyio.to_thread.run_sync(output_and_status, supervise_again(sandbox, run_id)) == (b"", 75)
        assert (await agent.kill(run_id))["survivors"] == []
        assert (await anyio.to_thread.run_sync(output_and_status, process))[1] != 75
    assert sandbox.run(run_id).state == "killed"
    assert output_and_status(supervise_again(sandbox, run_id)) == (b"", 75)


async def test_a_lost_run_that_was_killed_is_not_continued(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent:
        # Its own session and deaf to SIGHUP: it outlives its supervisor, and a person has to stop it.
        run_id = await agent.launch("setsid bash -c \"trap '' HUP; exec sleep 301\"", cwd=str(sandbox.path))
        await until_async(lambda: any(p.command == "sleep 301" for p in sandbox.own_processes()), "the command")
        os.kill(sandbox.supervisor(run_id), signal.SIGKILL)
        await until_async(lambda: sandbox.run(run_id).ended, "the death of the supervisor")
        assert (await agent.kill(run_id))["status"] == "killed"
    assert output_and_status(supervise_again(sandbox, run_id)) == (b"", 75)
    assert not sandbox.rundir(run_id).attempt(2).exists()
