"""Real runs that fail and are retried as their recovery policies say, and no further."""

import json
import os
import socket
import sys

import anyio.to_thread
import pytest

from mcp_server.system.own_process import STARTER
from tests.support.fake_nvml import machine
from tests.support.sandbox import Sandbox, until, until_async

pytestmark = pytest.mark.anyio

# Fails as long as it has more than so many environments.
TRAIN = """
import argparse, os, sys
parser = argparse.ArgumentParser()
parser.add_argument("--num_envs", type=int, default=1)
parser.add_argument("--resume", action="store_true")
args = parser.parse_args()
print(f"attempt {os.environ['RUNWARD_ATTEMPT']} num_envs {args.num_envs} resume {args.resume}", flush=True)
if args.num_envs > 1024:
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
"""
FAST = {"oom_gpu": [{"do": "retry", "wait_s": 0, "change": {"num_envs": "halve"}, "times": 3}]}


def script(sandbox: Sandbox, code: str) -> list[str]:
    path = sandbox.path / "train.py"
    path.write_text(code)
    return [sys.executable, str(path)]


def logs(sandbox: Sandbox, run_id: str) -> list[str]:
    run = sandbox.run(run_id)
    return [sandbox.rundir(run_id).log(n).read_text() for n in range(1, run.attempt + 1)]


async def test_a_retry_halves_the_environments_until_they_fit_and_every_attempt_keeps_its_log_and_its_exit(
    sandbox: Sandbox,
) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(
            script(sandbox, TRAIN),
            params={"num_envs": 4096},
            recovery=FAST,
            resume_args=["--resume"],
            cwd=str(sandbox.path),
        )
        end = await agent.end(run_id)
        (row,) = (await agent.call("list_runs"))["runs"]
        compared = await agent.call("compare_runs", run_ids=[run_id])
        ended = await agent.call("kill_run", run_id=run_id)
    assert (end["state"], end["attempt"], end["exit_code"]) == ("finished", 3, 0)
    assert end["earlier"] == row["earlier"] == "attempt 1-2 oom_gpu"
    assert "|3 (attempt 1-2 oom_gpu)|" in compared["rows"][0]
    assert "attempt 1-2 oom_gpu" in ended["message"]
    first, second, third = logs(sandbox, run_id)
    assert "attempt 1 num_envs 4096 resume False" in first
    assert "CUDA out of memory" in first
    assert "attempt 2 num_envs 2048 resume True" in second
    assert "attempt 3 num_envs 1024 resume True" in third
    exits = [json.loads(sandbox.rundir(run_id).exit(n).read_text())["exit_code"] for n in (1, 2, 3)]
    assert exits == [1, 1, 0]
    events = sandbox.run(run_id).events
    assert [e["kind"] for e in events] == ["started", "retrying", "started", "retrying", "started", "ended"]
    assert [e["params"] for e in events if e["kind"] == "retrying"] == [{"num_envs": 2048}, {"num_envs": 1024}]
    report = sandbox.rundir(run_id).account.read_text()
    assert report.count("oom_gpu") == 2
    assert [line.split(" | ")[0] for line in report.splitlines()[4:]] == ["| 1", "| 2", "| 3"]
    assert report.splitlines()[-1].split(" | ")[2] == sandbox.run(run_id).ended_at  # one moment in all records
    assert report.splitlines()[4].split(" | ")[1] == sandbox.run(run_id).started_at


async def test_a_launch_says_what_its_recovery_cannot_halve_and_at_the_end_how_many_attempts_ran(
    sandbox: Sandbox,
) -> None:
    halving = {"oom_gpu": [{"do": "retry", "wait_s": 0}, {"do": "retry", "wait_s": 0, "change": {"@batch": "halve"}}]}
    wish = {"command": [*script(sandbox, TRAIN), "--num_envs", "4096"], "cwd": str(sandbox.path), "recovery": halving}
    async with sandbox.agent_in_process() as agent:
        end = await agent.call("launch_run", **wish, wait_s=60)
        assert (end["state"], end["attempt"], end["earlier"]) == ("failed", 2, "attempt 1 oom_gpu")
        assert [text for text in end["warnings"] if "@batch can halve nothing" in text]
        fits = await agent.call("launch_run", **wish | {"params": {"num_envs": 1024}}, wait_s=60)
        twice = "num_envs stands twice: 4096 in the command and 1024 in params, which come later."
        assert (fits["state"], fits["attempt"], fits.get("warnings")) == ("finished", 1, [twice])


async def test_a_retry_is_news(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(
            script(sandbox, TRAIN),
            params={"num_envs": 4096},
            recovery={"oom_gpu": {"do": "retry", "wait_s": 600}},
            cwd=str(sandbox.path),
        )
        answer = await agent.call("wait_run", run_ids=run_id, timeout_s=40)
        status = answer["runs"][0]
        assert (answer["reason"], status["state"]) == ("retrying", "retrying")
        assert status["failure"]["kind"] == "oom_gpu"
        # A stop request ends the pause, and no attempt follows.
        assert (await agent.kill(run_id))["status"] == "killed"
        end = await agent.end(run_id)
    assert (end["state"], end.get("attempt", 1)) == ("killed", 1)

    def is_alone() -> bool:
        return all("tmux" in p.name or STARTER in p.command for p in sandbox.own_processes())

    await until_async(is_alone, "all processes but tmux and the starter of supervisors to exit")


async def test_without_a_policy_nothing_is_tried_again_and_the_remedy_is_proposed(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(script(sandbox, TRAIN), params={"num_envs": 4096}, cwd=str(sandbox.path))
        end = await agent.end(run_id)
    assert (end["state"], end["attempt"]) == ("failed", 1)
    assert end["failure"]["action"].startswith("retry")


async def test_the_time_limit_counts_over_all_attempts(sandbox: Sandbox) -> None:
    code = "import sys\nprint('ConnectionError: connection refused', flush=True)\nsys.exit(1)"
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(
            script(sandbox, code),
            recovery={"any": {"do": "retry", "wait_s": 30, "times": 3}},
            time_limit_s=1.5,
            cwd=str(sandbox.path),
        )
        end = await agent.end(run_id)
    assert end["state"] == "timed_out"
    assert end["elapsed_s"] < 20


async def test_a_port_that_is_taken_is_changed(sandbox: Sandbox) -> None:
    code = """
import os, socket
server = socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"])))
print("bound", os.environ["MASTER_PORT"])
"""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with sandbox.agent_in_process() as agent:
            run_id = await agent.launch(
                script(sandbox, code), env={"MASTER_PORT": str(port)}, recovery="default", cwd=str(sandbox.path)
            )
            end = await agent.end(run_id)
    assert (end["state"], end["attempt"]) == ("finished", 2), end
    assert "bound" in logs(sandbox, run_id)[1]
    first, second = (path / "run.sh" for path in (sandbox.rundir(run_id).path, sandbox.rundir(run_id).attempt(2)))
    assert f"export MASTER_PORT={port}\n" in first.read_text()
    assert second.read_text().count("export MASTER_PORT=") == 1
    assert f"export MASTER_PORT={port}\n" not in second.read_text()


async def test_a_second_ray_on_one_port_is_retried_on_another_port_in_another_directory(sandbox: Sandbox) -> None:
    code = """
import os, sys
print(os.environ["RAY_PORT"], os.environ["RAY_TMPDIR"], os.environ["RAY_ADDRESS"])
if os.environ["RAY_PORT"] == "21379":
    raise AssertionError("Session name session_1_11 does not match persisted value b'session_2_22'. Perhaps there was")
"""
    env = {"RAY_PORT": "21379", "RAY_TMPDIR": "/tmp/ray-a", "RAY_ADDRESS": "127.0.0.1:21379"}
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(script(sandbox, code), env=env, recovery="default", cwd=str(sandbox.path))
        ended = await agent.end(run_id)
        assert (ended["state"], ended["attempt"]) == ("finished", 2)
        port, directory, address = sandbox.rundir(run_id).log(2).read_text().split()
        assert (port != "21379", directory, address) == (True, "/tmp/ray-a-2", f"127.0.0.1:{port}")
        unmoved = await agent.end(await agent.launch(script(sandbox, code), env=env, cwd=str(sandbox.path)))
        assert unmoved["failure"]["action"] == "retry_other_port"
        assert "again with a free --port and a --temp-dir of its own" in unmoved["failure"]["advice"]


async def test_a_stall_is_stopped_and_tried_again_if_the_policy_says_so(sandbox: Sandbox) -> None:
    code = """
import os, time
for step in range(1, 4):
    print(f"step {step} loss {1 / step:.4f}", flush=True)
if os.environ["RUNWARD_ATTEMPT"] == "1":
    time.sleep(600)
"""
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(script(sandbox, code), recovery="default", stall_timeout_s=1, cwd=str(sandbox.path))
        end = await agent.end(run_id)
    assert (end["state"], end["attempt"]) == ("finished", 2)
    retrying = next(e for e in sandbox.run(run_id).events if e["kind"] == "retrying")
    assert retrying["failure"]["kind"] == "stall"


async def test_the_same_error_at_the_same_step_is_not_tried_a_third_time(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(
            script(sandbox, "raise ValueError('shapes do not match')"),
            recovery={"any": {"do": "retry", "wait_s": 0, "times": 10}, "max_retries": 10, "max_same_kind": 10},
            cwd=str(sandbox.path),
        )
        end = await agent.end(run_id)
    assert (end["state"], end["attempt"]) == ("failed", 2)


async def test_a_server_that_dies_between_two_attempts_changes_nothing(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(
            script(sandbox, TRAIN),
            params={"num_envs": 2048},
            recovery={"oom_gpu": {"do": "retry", "wait_s": 1.5, "change": {"num_envs": "halve"}}},
            cwd=str(sandbox.path),
        )
        await until_async(lambda: sandbox.run(run_id).state == "retrying", "the pause")
    until(lambda: sandbox.run(run_id).ended, "the end")
    assert sandbox.run(run_id).state == "finished"


async def test_a_supervisor_that_dies_between_two_attempts_leaves_a_failed_run(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(
            script(sandbox, TRAIN),
            params={"num_envs": 2048},
            recovery={"oom_gpu": {"do": "retry", "wait_s": 600}},
            cwd=str(sandbox.path),
        )
        await until_async(lambda: sandbox.run(run_id).state == "retrying", "the pause")
        os.kill(sandbox.supervisor(run_id), 9)
        await until_async(lambda: sandbox.run(run_id).ended, "the end")
        end = (await agent.call("wait_run", run_ids=run_id, timeout_s=0))["runs"][0]
    assert (end["state"], end["exit_code"], end["failure"]["kind"]) == ("failed", 1, "oom_gpu")


@pytest.mark.parametrize(
    ("recovery", "culprit"),
    [
        ({"oom_gpuu": "retry"}, "oom_gpuu"),
        ({"oom_gpu": {"do": "dance"}}, "dance"),
        ({"rules": [{"when": {"pattern": "(a+)+"}, "do": "retry"}]}, "repeat"),
    ],
)
async def test_a_policy_that_is_not_understood_is_refused_before_anything_starts(
    sandbox: Sandbox, recovery: object, culprit: str
) -> None:
    async with sandbox.agent_in_process() as agent:
        text = await agent.refusal("launch_run", command="true", recovery=recovery)
    assert culprit in text
    assert sandbox.store.list_runs() == []


async def test_parameters_without_a_place_are_refused_and_a_placeholder_is_one(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        text = await agent.refusal("launch_run", command="cd / && echo hi", params={"lr": 0.1})
        assert "{params}" in text
        run_id = await agent.launch("cd / && echo got {params} && true", params={"lr": 0.1}, param_style="k=v")
        assert (await agent.end(run_id))["state"] == "finished"
    assert "got lr=0.1" in sandbox.log(run_id)


LEAVES_A_DAEMON = """
(trap '' INT TERM HUP; while :; do sleep 1; done) &
echo attempt $RUNWARD_ATTEMPT
exit 3
"""
# Longer than a test that waits for its processor comes late: a stop in the pause has the same end.
AGAIN = {"any": {"do": "retry", "wait_s": 5, "times": 5}}


async def ended_first(sandbox: Sandbox, run_id: str) -> None:
    """Wait until the first command has ended. Its leftovers keep the attempt alive for another 2 s."""
    await until_async(sandbox.rundir(run_id).exit(1).exists, "the first exit")


async def test_closing_the_session_during_a_short_pause_starts_nothing_more(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("exit 3", recovery={"any": {"do": "retry", "wait_s": 1}}, cwd=str(sandbox.path))
        await until_async(lambda: sandbox.run(run_id).state == "retrying", "the pause")
        sandbox.tmux("kill-session", "-t", f"={run_id}")
        end = await agent.end(run_id)
    assert (end["state"], end["attempt"]) == ("killed", 1)


@pytest.mark.parametrize("way", ["kill_run", "ctrl-c", "close"])
async def test_a_stop_while_a_failed_attempt_is_cleared_away_starts_nothing_more(sandbox: Sandbox, way: str) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(LEAVES_A_DAEMON, recovery=AGAIN, cwd=str(sandbox.path))
        await ended_first(sandbox, run_id)
        if way == "kill_run":
            await agent.kill(run_id)
        elif way == "ctrl-c":
            sandbox.tmux("send-keys", "-t", f"={run_id}:", "C-c")
        else:
            sandbox.tmux("kill-session", "-t", f"={run_id}")
        end = await agent.end(run_id)
    assert (end["state"], end["attempt"], end["exit_code"]) == ("killed", 1, 3), sandbox.run(run_id).events[-1]["text"]
    assert "Trying again" not in sandbox.run(run_id).events[-1]["text"]


async def test_a_stalled_attempt_that_ends_gracefully_is_a_stall_all_the_same(sandbox: Sandbox) -> None:
    code = """
import os, signal, sys, time
signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
print("step 1 loss 0.5", flush=True)
if os.environ["RUNWARD_ATTEMPT"] == "1":
    time.sleep(600)
"""
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(script(sandbox, code), recovery="default", stall_timeout_s=1, cwd=str(sandbox.path))
        end = await agent.end(run_id)
    assert (end["state"], end["attempt"]) == ("finished", 2)


async def test_a_retry_may_turn_the_last_flag_off(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(
            script(sandbox, "import sys\nprint(sys.argv[1:])\nsys.exit(len(sys.argv) > 1)"),
            params={"fp16": True},
            recovery={"any": {"do": "retry", "wait_s": 0, "change": {"fp16": False}}},
            cwd=str(sandbox.path),
        )
        end = await agent.end(run_id)
    assert (end["state"], end["attempt"]) == ("finished", 2)
    assert logs(sandbox, run_id)[1] == "[]\n"


async def test_the_report_of_a_retry_that_was_called_off_says_so(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("exit 3", recovery={"any": {"do": "retry", "wait_s": 600}}, cwd=str(sandbox.path))
        await until_async(lambda: sandbox.run(run_id).state == "retrying", "the pause")
        await agent.kill(run_id)
        await agent.end(run_id)
    assert str(sandbox.run(run_id).events[-1]["text"]).endswith("The retry was called off.")
    report = sandbox.rundir(run_id).account.read_text()
    assert report.count("| 1 |") == 1
    assert report.endswith("The retry was called off.\n")


@pytest.mark.slow
async def test_a_follower_of_the_log_follows_to_the_next_attempt(sandbox: Sandbox) -> None:
    waits = "import os, time\nwhile not os.path.exists('followed'):\n    time.sleep(0.02)\n"
    followed: list[str] = []
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(
            script(sandbox, waits + TRAIN),
            params={"num_envs": 2048},
            recovery={"oom_gpu": {"do": "retry", "wait_s": 1, "change": {"num_envs": "halve"}}},
            cwd=str(sandbox.path),
        )
        log = str(sandbox.rundir(run_id).log(1))

        async def follow() -> None:
            followed.append((await anyio.to_thread.run_sync(lambda: sandbox.runward("logs", "-f", run_id))).stdout)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await until_async(lambda: any(log in p.command for p in sandbox.own_processes()), "a follower")
            (sandbox.path / "followed").touch()
    assert "attempt 1 num_envs 2048" in followed[0]
    assert "attempt 2 num_envs 1024" in followed[0]


@pytest.mark.slow
async def test_a_broken_gpu_is_exchanged_for_a_free_one(sandbox: Sandbox) -> None:
    driver = machine(sandbox.path)
    driver.report(f"proc 1 {os.getpid()} 70000", gpus=3)
    code = """
import os
if os.environ["CUDA_VISIBLE_DEVICES"] == "0":
    raise RuntimeError("CUDA error: an illegal memory access was encountered")
print("on", os.environ["CUDA_VISIBLE_DEVICES"])
"""
    sandbox.environ |= driver.environ
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(
            script(sandbox, code), env={"CUDA_VISIBLE_DEVICES": "0"}, recovery="default", cwd=str(sandbox.path)
        )
        end = await agent.end(run_id)
    assert (end["state"], end["attempt"]) == ("finished", 3)
    assert "on 2" in logs(sandbox, run_id)[2]


@pytest.mark.slow
async def test_the_default_retries_nothing_that_the_line_proves_senseless_and_a_table_of_the_users_does(
    sandbox: Sandbox,
) -> None:
    code = "raise RuntimeError('CUDA error: no kernel image is available for execution on the device')"
    async with sandbox.agent_in_process() as agent:
        once = await agent.end(await agent.launch(script(sandbox, code), recovery="default", cwd=str(sandbox.path)))
        table = {"cuda_error": {"do": "retry", "times": 1, "wait_s": 0.1}}
        again = await agent.end(await agent.launch(script(sandbox, code), recovery=table, cwd=str(sandbox.path)))
    assert (once["attempt"], once["failure"]["retryable"], once["failure"]["action"]) == (1, False, "stop")
    assert "would meet the same" in str(sandbox.run(once["run_id"]).events)
    assert again["attempt"] == 2


@pytest.mark.slow
async def test_the_out_of_memory_of_an_actor_is_retried_with_half_and_not_as_a_dead_actor(sandbox: Sandbox) -> None:
    code = """
import sys
print("(Worker pid=7) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", flush=True)
print("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.", flush=True)
sys.exit(1)
"""
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(
            script(sandbox, code), recovery="default", params={"num_envs": 64}, cwd=str(sandbox.path)
        )
        end = await agent.end(run_id)
    assert end["failure"]["kind"] == "oom_gpu"
    assert end["params"]["num_envs"] < 64
