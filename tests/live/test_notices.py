"""Notices of real runs arrive, with and without a server, and no receiver can touch a run."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcp_server.record.notices.notice import RECORD
from mcp_server.record.run_processes import supervisor_of
from mcp_server.system import processes
from tests.support.receiver import Receiver, receive
from tests.support.sandbox import Sandbox, until_async

pytestmark = pytest.mark.anyio
CONFIG = '[notify]\nwebhook = "{url}/hook"\non = ["started", "ended"]\n'


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receive() as receiver:
        yield receiver


def configure(sandbox: Sandbox, text: str) -> None:
    (sandbox.path / "state").mkdir(exist_ok=True, mode=0o700)
    (sandbox.path / "state" / "config.toml").write_text(text)


def notifiers(run_id: str) -> list[processes.Process]:
    title = ["runward-notifier", ".".join(run_id)]
    return [each for each in processes.list_processes() if processes.command_words(each.pid)[:2] == title]


async def test_a_person_hears_of_a_run_whose_agent_and_server_are_gone(sandbox: Sandbox, receiver: Receiver) -> None:
    configure(sandbox, CONFIG.format(url=receiver.url))
    async with sandbox.agent(WANDB_API_KEY="0123456789abcdef") as agent:
        command = "read line < go; echo key $WANDB_API_KEY; exit 3"
        os.mkfifo(sandbox.path / "go")
        run_id = await agent.launch(command, cwd=str(sandbox.path), secrets=["WANDB_API_KEY"], owner="alice")
    (sandbox.path / "go").write_text("go\n")
    await until_async(lambda: len(receiver.posts) == 2, "the notice of the end")
    started, ended = receiver.bodies
    assert (started["kind"], started["run_id"], started["owner"]) == ("started", run_id, "alice")
    assert (ended["kind"], ended["state"], ended["exit_code"]) == ("ended", "failed", 3)
    assert "0123456789abcdef" not in json.dumps(receiver.bodies)
    await until_async(lambda: not notifiers(run_id), "the end of the process that sends")
    record = (sandbox.rundir(run_id).path / "notices.jsonl").read_text().splitlines()
    sent = [json.loads(line).get("sent") for line in record]  # the second may be taken before the first is sent
    assert sorted(map(str, sent)) == ["None", "None", "True", "True"]
    kept = b"".join(path.read_bytes() for path in sandbox.rundir(run_id).path.rglob("*") if path.is_file())
    assert receiver.url.encode() not in kept


async def test_a_receiver_that_never_answers_delays_neither_run_nor_stop(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and says nothing
        configure(sandbox, CONFIG.format(url=f"http://127.0.0.1:{silent.getsockname()[1]}"))
        async with sandbox.agent() as agent:
            short = await agent.launch("true")
            assert (await agent.end(short))["state"] == "finished"
            long = await agent.launch("sleep 600")
            stopped = await agent.kill(long)
            assert (stopped["status"], stopped["survivors"]) == ("killed", [])
            living = [*notifiers(short), *notifiers(long)]
            assert len(living) == 2
            for each in living:
                processes.send_signal(each, signal.SIGKILL)


async def test_a_command_that_does_not_read_its_notice_takes_no_other_target_with_it(
    sandbox: Sandbox, receiver: Receiver
) -> None:
    deaf = '[[notify]]\ncommand = ["true"]\non = ["started", "ended"]\n'
    hung_up = '[[notify]]\ncommand = ["sh", "-c", "exec <&-; exit 3"]\non = ["ended"]\n'
    configure(sandbox, deaf + hung_up + CONFIG.format(url=receiver.url).replace("[notify]", "[[notify]]"))
    async with sandbox.agent() as agent:
        runs = [await agent.launch("false", name=f"r{number}") for number in range(6)]
        living = await agent.launch("sleep 600")
        (sender,) = notifiers(living)
        ignored = int(Path(f"/proc/{sender.pid}/status").read_text().partition("SigIgn:")[2].split()[0], 16)
        assert ignored >> (signal.SIGPIPE - 1) & 1, "a write to a command that has ended would end it"
        await agent.kill(living)
        for run_id in runs:
            await agent.end(run_id)
        await until_async(lambda: len(receiver.posts) == 2 * len(runs) + 2, "both notices of every run")
        records = [sandbox.rundir(run_id).path / "notices.jsonl" for run_id in runs]
        await until_async(lambda: all(len(each.read_text().splitlines()) >= 8 for each in records), "the record")


async def test_a_notice_whose_sender_died_is_named_to_agents_and_people(sandbox: Sandbox, receiver: Receiver) -> None:
    """It was written nowhere: 15 of 40 failed runs had no record of a notice at all."""
    configure(sandbox, CONFIG.format(url=receiver.url))
    async with sandbox.agent() as agent:
        run_id = await agent.launch("until test -e go; do sleep 0.02; done; exit 3", cwd=str(sandbox.path))
        record = sandbox.rundir(run_id).path / RECORD  # what has arrived and is not noted yet counts as not delivered
        await until_async(lambda: receiver.posts and '"sent": true' in record.read_text(), "the notice of the start")
        for each in notifiers(run_id):
            processes.send_signal(each, signal.SIGKILL)
        await until_async(lambda: not notifiers(run_id), "the end of the process that sends")
        (sandbox.path / "go").touch()
        await agent.end(run_id)
        looked = await agent.call("wait_run", run_ids=run_id, timeout_s=0)
        (page,) = (await agent.client.read_resource(f"run://{run_id}")).contents
    said = "ended to 127.0.0.1: the process that sends notices died"
    assert f"Not notified (1): {said}." in looked["runs"][0]["note"]
    assert said in json.loads(page.text)["note"]  # type: ignore[union-attr]
    assert f"not delivered: {run_id}, {said}" in sandbox.runward("doctor", "--json").stdout


async def test_a_supervisor_that_is_killed_is_said_to_be_lost(sandbox: Sandbox, receiver: Receiver) -> None:
    configure(sandbox, CONFIG.format(url=receiver.url))
    async with sandbox.agent() as agent:
        run_id = await agent.launch("sleep 600")
        await until_async(lambda: receiver.posts, "the notice of the start")
        supervisor = supervisor_of(sandbox.rundir(run_id).path, sandbox.run(run_id))
        assert supervisor is not None
        processes.send_signal(supervisor, signal.SIGKILL)
        await until_async(lambda: len(receiver.posts) == 2, "the notice of the loss")
        assert receiver.bodies[1]["state"] == "lost"


async def test_a_target_without_its_secret_is_a_warning_and_no_obstacle(sandbox: Sandbox) -> None:
    configure(sandbox, '[notify]\nwebhook_secret = "SLACK_URL"\n')
    async with sandbox.agent() as agent:
        answer = await agent.call("launch_run", command="true")
        assert any("SLACK_URL" in each for each in answer["warnings"])
        assert (await agent.end(answer["run_id"]))["state"] == "finished"


def notify_test(sandbox: Sandbox) -> tuple[int, str]:
    words = [sys.executable, "-m", "mcp_server", "notify", "test"]
    done = subprocess.run(words, env=sandbox.environ, capture_output=True, text=True, cwd=Path.cwd(), check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_person_tries_the_targets(sandbox: Sandbox, receiver: Receiver) -> None:
    assert notify_test(sandbox)[0] == 1
    assert "[notify]" in notify_test(sandbox)[1]
    configure(sandbox, f'[[notify]]\nwebhook = "{receiver.url}/a"\n[[notify]]\nwebhook = "{receiver.url}/b"\n')
    receiver.answers = [200, 404]
    assert notify_test(sandbox) == (1, "127.0.0.1: sent\n127.0.0.1: not sent: HTTP 404\n")
    assert notify_test(sandbox) == (0, "127.0.0.1: sent\n127.0.0.1: sent\n")
    configure(sandbox, '[notify]\nwebhook = "ftp://box/secret-part"\n')
    status, text = notify_test(sandbox)
    assert status == 2
    assert "begins with https://" in text
    assert "secret-part" not in text
