"""Runs on another host, over a real sshd: from launch to end, without a connection, and after it."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_server.backends.ssh import ssh_backend, ssh_channel, ssh_link
from mcp_server.backends.ssh.ssh_channel import Channel, channel_of, close_channels
from mcp_server.errors import HostUnreachable
from mcp_server.system import processes
from tests.support import warm_start
from tests.support.sandbox import Agent, Sandbox, until, until_async
from tests.support.sshd import NAME, FarHost, needs_sshd

pytestmark = [pytest.mark.anyio, needs_sshd, pytest.mark.slow]

SECRET = "hf_9sKdmQ2xZ81LpWvT"
TRAINING = """
import json, os, time
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter("tb")
def write(step):
    value = Summary.Value(tag="loss", simple_value=1 / step)
    writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=[value])))
    writer.flush()
for step in range(1, 21):
    write(step)
while not os.path.exists("go"):
    time.sleep(0.02)
writer.close()
os.makedirs("ckpt")
with open("ckpt/model_20.pt", "wb") as file:
    file.truncate(3 * 2**30 - 75_000_000)
with open("eval_results.json", "w") as file:
    json.dump({"success": 0.75}, file)
"""
NOISE = "echo Welcome to the machine; printf 'no newline at the end'"


def connect(host: FarHost, monkeypatch: pytest.MonkeyPatch) -> Channel:
    for name, value in host.sandbox.environ.items():
        monkeypatch.setenv(name, value)
    channel = channel_of(host.sandbox.path / "state" / "hosts" / NAME)
    channel.open()
    return channel


async def test_a_far_run_from_its_launch_to_its_end(sandbox: Sandbox, far_host: FarHost) -> None:
    shutil.rmtree(far_host.state)  # the program is sent
    sandbox.environ["GIFT_TOKEN"] = SECRET
    command = 'echo "got ${#GIFT_TOKEN} on $RUNWARD_RUN_ID"; until test -e go; do sleep 0.02; done; echo gone; exit 3'
    async with sandbox.agent() as agent:
        refusal = await agent.refusal("launch_run", command="true", cwd="/nowhere/at/all", host=NAME)
        assert "lab has no directory /nowhere/at/all" in refusal
        rehearsed = await agent.call("launch_run", command=command, cwd=str(sandbox.path), host=NAME, dry_run=True)
        assert "until test -e go" in rehearsed["dry_run_script"]
        run_id = await agent.launch(command, cwd=str(sandbox.path), host=NAME, secrets=["GIFT_TOKEN"])
        assert (far_host.state / "runs" / run_id / "events.jsonl").exists()
        assert not (sandbox.path / "state" / "runs" / run_id).exists()
        listed = await agent.call("list_runs", state="live")
        assert [(row["run_id"], row["host"]) for row in listed["runs"]] == [(run_id, NAME)]
        whole = f"on {run_id}".encode()  # the end of a line that may begin a secret comes later
        await until_async(lambda: _runs_below(far_host, run_id, "output.log", whole))
        assert f"got {len(SECRET)} on {run_id}" in await agent.text("capture_pane", run_id=run_id)
        _check_secret_is_nowhere(sandbox, run_id)
        (sandbox.path / "go").touch()
        status = await agent.end(run_id)
        assert (status["state"], status["exit_code"], status["host"]) == ("failed", 3, NAME)
        assert "gone" in await agent.text("read_log", run_id=run_id)
        assert "2:gone" in await agent.text("read_log", run_id=run_id, grep="gone", context=0)
    assert far_host.logins == 1


async def test_a_blueprint_on_another_host_from_its_launch_to_its_results(sandbox: Sandbox, far_host: FarHost) -> None:
    """Also its curves, checkpoints and evaluations, checks before a launch, and the list of hosts."""
    here, there = sandbox.path / "plans", far_host.path / "work"
    for directory in (here, there / "cfm"):
        directory.mkdir(parents=True)
    (there / "cfm" / "train.py").write_text(TRAINING)
    library = next(path for path in sys.path if Path(path, "tensorboard").is_dir())
    (here / "cfm.md").write_text(
        f"[exp_purpose]\nA test\n[exp_codebase_dir]\n{here}/cfm\n[exp_venv_exe]\n{sys.executable}\n"
        f"[exp_launch_command]\nexport PYTHONPATH={library}; exec python {here}/cfm/train.py\n[exp_result_dir]\nout\n"
    )
    far_host.write_hosts(rewrites=f"{here}={there}")
    async with sandbox.agent() as agent:
        launched = await agent.call("launch_run", blueprint=str(here / "cfm.md"), host=NAME)
        run_id = launched["run_id"]
        record = sandbox.rundir(run_id).outputs(1)
        await until_async(
            lambda: record.exists() and json.loads(record.read_text())["pids"], "the record of its process"
        )
        (there / "cfm" / "go").touch()
        status = await agent.end(run_id)
        assert status["state"] == "finished", await agent.text("read_log", run_id=run_id)
        spec = json.loads(sandbox.rundir(run_id).spec.read_text())
        assert (spec["cwd"], spec["result_dir"]) == (f"{there}/cfm", f"{there}/out")
        assert f"python {there}/cfm/train.py" in spec["command"]
        log = there / "out" / "experiment_log.md"
        assert f"## Launch of {run_id}" in log.read_text()
        with anyio.fail_after(30):  # the last record of its processes comes a moment after its end
            while (await agent.client.call_tool("read_tb", {"run_id": run_id})).is_error:  # noqa: ASYNC110 - another process
                await anyio.sleep(0.05)
        assert "loss 0.05 " in await agent.text("read_tb", run_id=run_id)
        finished = await agent.call("finish_blueprint", run_id=run_id, summary="It works.")
        assert finished["results_path"] == f"{there}/out/results.md"
        text = (there / "out" / "results.md").read_text()
        assert all(word in text for word in ("It works.", "model_20.pt", "2.93 GiB", "success", "0.75", "loss")), text
        assert str(sandbox.path / "state") not in text
        assert json.loads((there / "out" / "finish.flag").read_text())["run_id"] == run_id
        assert f"## End of {run_id}: finished" in log.read_text()
        (there / "out" / "results.md").write_text(text + "\nA person's line.\n")
        await agent.call("finish_blueprint", run_id=run_id)
        assert (there / "out" / "results.md").read_text().endswith("A person's line.\n")
        assert not (here / "out").exists()
        compared = await agent.call("compare_runs", run_ids=[run_id])
        assert "model_20.pt" in str(compared["rows"])
        assert "0.75" in str(compared["rows"])
        assert (sum(file.stat().st_blocks for file in sandbox.path.joinpath("state").rglob("*.pt"))) == 0
        assert "No NVIDIA driver" in await agent.refusal("gpu_check", host=NAME)
        checks: dict[str, Any] = {"host": NAME, "cwd": str(there), "paths": ["cfm/train.py", "weights.pt"]}
        checks |= {"python": sys.executable, "imports": ["tensorboard", "no_such_module"], "ports": [far_host.port]}
        checks["env"] = {"RAY_ADDRESS": "127.0.0.1:9", "PYTHONPATH": library}
        checked = await agent.call("preflight", ray=True, **checks)
        assert [
            (problem["what"], problem["text"].partition(" is not installed")[0]) for problem in checked["problems"]
        ] == [
            ("path", f"lab has no {there}/weights.pt."),
            ("python", "lab: no_such_module"),
            ("port", f"lab: sshd (pid {far_host.pid}) listens on port {far_host.port}."),
            ("ray", "lab: Ray at 127.0.0.1:9 cannot be reached: [Errno 111] Connection refused."),
        ]
        assert (await agent.call("list_runs", host=NAME))["total"] == 1
    (report,) = json.loads(sandbox.runward("hosts", "--json").stdout)
    assert (report["reachable"], report["gpus"], report["live_runs"]) == (True, "no driver", 0)
    far_host.stop()
    assert "Connection refused" in sandbox.runward("hosts", NAME).stdout


async def test_code_goes_along_as_a_commit_with_its_changes_or_as_files(
    sandbox: Sandbox, far_host: FarHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = sandbox.path / "cfm"
    (here / "data").mkdir(parents=True)
    (here / "train.py").write_text("import model\nprint('weights', model.SIZE, open('config.yaml').read())\n")
    (here / "model.py").write_text("SIZE = 1\n")
    (here / "config.yaml").write_text("lr: 1")
    (here / "data" / "big.bin").write_bytes(bytes(1000))
    (here / ".env").write_text(f"HF_TOKEN={SECRET}\n")
    git = ["git", "-C", str(here), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "train.py", "model.py", "config.yaml"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    (here / "model.py").write_text("SIZE = 2\n")
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    command = f"{sys.executable} {here}/train.py && git rev-parse HEAD; touch made-by-run"
    async with sandbox.agent_in_process() as agent:
        assert "Pass host too" in await agent.refusal("launch_run", command="true", cwd=str(here), sync="git")
        arguments: dict[str, Any] = {"cwd": str(here), "host": NAME, "sync": "git"}
        rehearsed = await agent.call("launch_run", command=command, dry_run=True, **arguments)
        assert (commit[:12] in rehearsed["code"], "Not sent, since untracked: .env" in rehearsed["code"]) == (
            True,
            True,
        )
        assert not (far_host.state / "code").exists()
        refusal = await agent.refusal(
            "launch_run", command=[sys.executable, "train.py", "--config", f"{here}/new.yaml"], **arguments
        )
        assert "config new.yaml is not part of the code" in refusal
        first = await agent.launch(command, **arguments)
        asked = _note_questions(sandbox, monkeypatch, first)
        assert (await agent.end(first))["state"] == "finished"
        assert asked == [], "the end of a run comes with all that its answer says"
        assert f"weights 2 lr: 1\n{commit}" in await agent.text("read_log", run_id=first)
        spec = json.loads(sandbox.rundir(first).spec.read_text())
        assert (spec["code"]["commit"], spec["cwd"], spec["code"]["from"]) == (commit, spec["code"]["to"], str(here))
        again = await agent.call("launch_run", command="test -e made-by-run", **arguments)
        assert "all of it is there already" in again["code"]
        assert (await agent.end(again["run_id"]))["state"] == "finished"
        (here / "model.py").write_text("SIZE = 3\n")
        arguments, questions = {**arguments, "sync": "rsync"}, _note_questions(sandbox, monkeypatch)
        rehearsed = await agent.call("launch_run", command=command, dry_run=True, **arguments)
        assert ("in 3 of 3 files" in rehearsed["code"], ".env, .git/, data/" in rehearsed["code"]) == (True, True)
        second = await agent.launch(f"{command}; seq 20000", **arguments)
        assert questions.count("code_put") == 1, "small files go together"
        monkeypatch.setattr(
            ssh_backend, "_MOST_LOG_BYTES", 10
        )  # larger logs show their end, and all of it where it is searched
        await agent.end(second)
        assert "the end of the log" in await agent.text("read_log", run_id=second)
        assert "weights 3 lr: 1" in await agent.text("read_log", run_id=second, grep="weights")
        (here / "model.py").write_text("SIZE = 4\n")
        rehearsed = await agent.call("launch_run", command=command, dry_run=True, **arguments)
        assert "9 B in 1 of 3 files" in rehearsed["code"]
        (here / "assets").mkdir()
        with (here / "assets" / "robot.usd").open("wb") as file:
            file.truncate(65 * 2**20)
        refusal = await agent.refusal("launch_run", command=command, **arguments)
        assert ("assets/ 65" in refusal, ".runwardignore" in refusal) == (True, True)
    sent = [path for path in (far_host.state / "code").rglob("*") if path.is_file()]
    assert [path for path in sent if SECRET.encode() in path.read_bytes()] == []


async def test_kept_code_is_sent_and_every_cell_of_a_sweep_has_that_of_its_start(
    sandbox: Sandbox, far_host: FarHost
) -> None:
    here = sandbox.path / "cfm"
    here.mkdir()
    (here / "data").mkdir()
    (here / "data" / "big.bin").write_bytes(bytes(1000))
    (here / "model.py").write_text("SIZE = 1\n")
    (here / "train.py").write_text(
        "import model, os, sys, time\nprint('size', model.SIZE, flush=True)\n"
        "while not os.path.exists(sys.argv[1]): time.sleep(0.02)\n"
    )
    command = f"{sys.executable} {here}/train.py {sandbox.path}/go"
    arguments: dict[str, Any] = {"command": command, "cwd": str(here), "host": NAME, "code": "kept"}
    async with sandbox.agent_in_process() as agent:
        only_there = await agent.refusal(
            "launch_run", **{**arguments, "command": "true", "cwd": str(far_host.path / "x")}
        )
        assert "is not a directory of this machine" in only_there
        assert "Leave code out to run what is on the host" in only_there
        one = await agent.call("launch_run", **arguments)
        common = {"common": arguments, "max_parallel": 1}
        sweep = (await agent.call("launch_sweep", name="s", **common, grid={"seed": [1, 2]}))["sweep_id"]
        logs = (far_host.state / "runs").glob
        await until_async(lambda: any(b"size" in log.read_bytes() for log in logs("s-seed1-*/attempts/1/output.log")))
        (here / "model.py").write_text("SIZE = 2\n")
        (sandbox.path / "go").touch()
        assert (await agent.end(one["run_id"]))["state"] == "finished"
        assert (await agent.call("wait_run", run_ids=sweep, until="end", timeout_s=60))["reason"] == "ended"
        runs = [one["run_id"], *(run["run_id"] for run in (await agent.call("list_runs", sweep=sweep))["runs"])]
        assert len(runs) == 3
        for run_id in runs:
            assert "size 1" in await agent.text("read_log", run_id=run_id)
        with_git = await agent.refusal(
            "launch_sweep", name="g", common={**arguments, "sync": "git"}, grid={"seed": [1]}
        )
        assert "Leave sync out: the copy is sent" in with_git
    assert not list((far_host.state / "code").rglob("big.bin"))


async def test_a_far_run_is_killed_with_everything_and_verified_there(sandbox: Sandbox, far_host: FarHost) -> None:
    stubborn = (
        "trap '' INT TERM; (trap '' INT TERM HUP; exec setsid sleep 300) & echo ready; while :; do sleep 0.1; done"
    )
    (sandbox.path / "state" / "config.toml").write_text("stop_grace_s = 0.2\n")
    async with sandbox.agent() as agent:
        run_id = await agent.launch(stubborn, cwd=str(sandbox.path), host=NAME)
        await until_async(lambda: _runs_below(far_host, run_id, "output.log", b"ready"))
        killed = await agent.kill(run_id)
        assert (killed["status"], killed["state"], killed["survivors"]) == ("killed", "killed", [])
        lost = await agent.launch("sleep 300", cwd=str(sandbox.path), host=NAME)
        os.kill(sandbox.supervisor(lost), signal.SIGKILL)
        status = await agent.end(lost)
        assert (status["state"], [one["command"] for one in status["leftovers"]]) == ("lost", ["sleep"])
        assert (await agent.kill(lost))["survivors"] == []
    assert [p for p in sandbox.own_processes() if p.name == "sleep"] == []


async def test_a_config_that_names_a_root_of_another_host_is_refused_where_it_is(
    sandbox: Sandbox, far_host: FarHost
) -> None:
    hosts = sandbox.path / "state" / "hosts.toml"
    hosts.write_text(f"{hosts.read_text()}roots = ['/mnt/lab']\n[hosts.two]\nssh = '{NAME}'\nroots = ['/mnt/lab2']\n")
    (sandbox.path / "train.py").write_text("print('step 1 loss 0.1')\n")
    config = sandbox.path / "conf.yaml"
    config.write_text("model: a\ndata: /mnt/lab2/d\n")
    launch: dict[str, Any] = {"command": "python3 train.py --config conf.yaml", "cwd": str(sandbox.path), "host": NAME}
    async with sandbox.agent() as agent:
        for sync in ({}, {"sync": "rsync"}):
            refusal = await agent.refusal("launch_run", **launch, **sync)
            assert "conf.yaml, line 2: /mnt/lab2/d is a path of another host, and this is lab." in refusal
            assert "Write `data: /mnt/lab/d`." in refusal
        config.write_text("data: /mnt/lab/d\n")
        assert (await agent.end(await agent.launch(**launch)))["state"] == "finished"


async def test_a_host_that_is_away_changes_no_state_and_what_happened_is_told_once(
    sandbox: Sandbox, far_host: FarHost
) -> None:
    async with sandbox.agent() as agent:
        run_id = await agent.launch("until test -e go; do sleep 0.02; done", cwd=str(sandbox.path), host=NAME)
        unread = await agent.launch("seq 1 200000", cwd=str(sandbox.path), host=NAME)
        await agent.end(unread)
        (sandbox.path / "state" / "hosts" / NAME / "runs" / unread / "attempts" / "1" / "output.log").write_text("")
        far_host.stop()
        away = await _until_status(agent, run_id, lambda status: "unreachable" in status)
        assert (away["state"], away["unreachable"]["host"]) == ("running", NAME)
        assert "elapsed_s" not in away
        assert "Nothing was started" in await agent.refusal("launch_run", command="true", cwd="/", host=NAME)
        assert "Nothing was stopped" in await agent.refusal("kill_run", run_id=run_id)
        assert "whether it has written some is unknown" in await agent.refusal("read_tb", run_id=run_id)
        assert "newest output may be missing" in await agent.text("read_log", run_id=unread, grep="200000")
        assert "lab is away" in sandbox.runward("ls").stdout
        assert "lab cannot be reached since" in sandbox.runward("logs", run_id).stderr
        (sandbox.path / "go").touch()
        until(lambda: _runs_below(far_host, run_id, "exit.json", b"exit_code"))
        far_host.start()
        told = await agent.call("wait_run", run_ids=run_id, until="end", timeout_s=60)
        assert told["runs"][0]["state"] == "finished"
        assert [event["kind"] for event in told["runs"][0]["events"]].count("ended") == 1
    until(lambda: far_host.relays() == [], "the end of the relays")


async def test_another_state_directory_on_a_host_makes_no_run_lost(sandbox: Sandbox, far_host: FarHost) -> None:
    """It is empty: a disk is not mounted there, or hosts.toml leads elsewhere."""
    mounted = far_host.path / "mounted"
    async with sandbox.agent() as agent:
        run_id = await agent.launch("until test -e go; do sleep 0.02; done", cwd=str(sandbox.path), host=NAME)
        far_host.write_hosts(state=str(mounted))
        far_host.cut_connections()
        away = await _until_status(agent, run_id, lambda status: "unreachable" in status)
        assert away["state"] == "running"
        refusal = await agent.refusal("launch_run", command="true", cwd="/", host=NAME)
        assert f"its state directory {mounted} is not that of {run_id}, {far_host.state}: a person mounts" in refusal
        far_host.write_hosts()
        await agent.client.call_tool("capture_pane", {"run_id": run_id})  # who asks does not wait for the next attempt
        (sandbox.path / "go").touch()
        assert (await agent.end(run_id))["state"] == "finished"
        far_host.write_hosts(state=str(mounted))
        assert sandbox.runward("hosts").returncode == 0, "no run of the other one lives any more"


async def test_a_new_server_finds_the_runs_of_the_old_one(sandbox: Sandbox, far_host: FarHost) -> None:
    async with sandbox.agent() as agent:
        run_id = await agent.launch("until test -e go; do sleep 0.02; done", cwd=str(sandbox.path), host=NAME)
    until(lambda: far_host.relays() == [], "the end of the relay with its server")
    async with sandbox.agent() as agent:
        assert (await agent.call("list_runs"))["runs"][0]["state"] == "running"
        (sandbox.path / "go").touch()
        assert (await agent.end(run_id))["state"] == "finished"


async def test_a_launch_whose_answer_is_lost_starts_once(
    sandbox: Sandbox, far_host: FarHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = sandbox.path / "cut"

    def cut_after_the_launch() -> None:
        until(lambda: list((far_host.state / "runs").glob("*/events.jsonl")), "the run")
        far_host.cut_connections()
        cut.touch()

    channel = connect(far_host, monkeypatch)
    ask = channel.ask

    def ask_and_lose(name: str, **words: object) -> object:
        answer = ask(name, **words)  # type: ignore[arg-type]
        if name == "launch" and not cut.exists():
            cut_after_the_launch()
            raise HostUnreachable(NAME, "cut")
        return answer

    monkeypatch.setattr(channel, "ask", ask_and_lose)
    async with sandbox.agent_in_process() as agent:
        first = await agent.launch(
            "echo x >> started; sleep 300", cwd=str(sandbox.path), host=NAME, idempotency_key="k"
        )
        again = await agent.launch(
            "echo x >> started; sleep 300", cwd=str(sandbox.path), host=NAME, idempotency_key="k"
        )
        assert first == again
        until((sandbox.path / "started").exists)
        assert (sandbox.path / "started").read_text() == "x\n"
        await agent.kill(first)


def test_a_silent_connection_is_given_up_once_somebody_waits_for_it(
    far_host: FarHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_link, "_ASKED_S", 0.1)
    monkeypatch.setattr(ssh_link, "_ANSWERED_WITHIN_S", 1.0)
    channel = connect(far_host, monkeypatch)
    far_host.freeze_connections()
    with pytest.raises(HostUnreachable, match="it was silent for"):
        channel.ask("ping")
    assert channel.ask("ping")[0]["time"] > 0, "the next connection"
    monkeypatch.setattr(ssh_link, "_SLOWEST", 2**30)
    far_host.freeze_connections()
    more_than_ssh_takes = bytes(16 * 2**20)
    with pytest.raises(HostUnreachable, match="it was silent for"):
        channel.ask("code_put", data=more_than_ssh_takes, token="0" * 16, offset=0, timeout_s=600.0)


def test_an_attempt_that_hangs_is_awaited_once_where_the_host_was_away(
    far_host: FarHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_channel, "_AGAIN_WITHIN_S", 1.0)
    channel = connect(far_host, monkeypatch)
    far_host.stop()
    far_host.start(ForceCommand="sleep 300")
    until(lambda: far_host.logins == 2, "the login that hangs")
    for _ in range(20):
        with pytest.raises(HostUnreachable):
            channel.ask("ping")
    assert far_host.logins == 2, "no attempt has ended"


async def test_the_answer_that_finds_a_host_silent_says_so(
    sandbox: Sandbox, far_host: FarHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_link, "_ASKED_S", 0.1)
    monkeypatch.setattr(ssh_link, "_ANSWERED_WITHIN_S", 1.0)
    async with sandbox.agent_in_process() as agent:
        command = "until test -e go; do echo more; sleep 0.05; done"
        run_id = await agent.launch(command, cwd=str(sandbox.path), host=NAME)
        await until_async(lambda: _runs_below(far_host, run_id, "output.log", b"more"))
        os.kill(far_host.pid, signal.SIGKILL)  # nobody takes a new connection
        far_host.freeze_connections()
        assert (await agent.text("read_log", run_id=run_id)).startswith(f"[{NAME} cannot be reached since")
        (status,) = (await agent.call("wait_run", run_ids=run_id, timeout_s=0))["runs"]
        assert status["unreachable"]["host"] == NAME
        (sandbox.path / "go").touch()


def test_a_host_that_works_long_is_not_silent(far_host: FarHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_link, "_ASKED_S", 0.1)
    monkeypatch.setattr(ssh_link, "_ANSWERED_WITHIN_S", 1.0)
    channel = connect(far_host, monkeypatch)
    (far_host.state / "runs" / "slow-run").mkdir()
    holder = (far_host.state / "launch.lock").open("a")
    fcntl.flock(holder, fcntl.LOCK_EX)
    with pytest.raises(HostUnreachable, match="no answer to withdraw within 4 s"):
        channel.ask("withdraw", run="slow-run", timeout_s=4.0)
    holder.close()
    assert channel.ask("withdraw", run="slow-run")[0] == {"withdrawn": False}
    assert far_host.logins == 1


def test_a_launch_that_never_arrived_is_withdrawn_for_good(far_host: FarHost, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = connect(far_host, monkeypatch)
    directory = channel.mirror.directory("cfm-7kqz")
    directory.path.mkdir()
    (directory.path / "launching").touch()
    directory.spec.write_text('{"run_id": "cfm-7kqz", "created_at": "2026-11-22T10:00:00Z"}')
    far_host.cut_connections()
    until(lambda: far_host.logins == 2, "the second connection")
    until(lambda: channel.mirror.read_dead("cfm-7kqz"), "the withdrawal")
    run = far_host.sandbox.run("cfm-7kqz")
    assert (run.state, run.reason) == ("lost", "The launch never reached lab: nothing was started.")
    with pytest.raises(Exception, match="withdrawn"):
        channel.ask("launch", spec={"run_id": "cfm-7kqz", "command": "true"}, handover={"env": {}, "secrets": {}})
    assert not (far_host.state / "runs" / "cfm-7kqz").exists()


def test_a_login_shell_may_print_anything(far_host: FarHost, monkeypatch: pytest.MonkeyPatch) -> None:
    far_host.stop()
    login = far_host.path / "login"
    login.write_text(f'#!/bin/sh\n{NOISE}; exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"\n')
    login.chmod(0o755)
    far_host.start(ForceCommand=str(login))
    assert connect(far_host, monkeypatch).ask("ping")[0]["time"] > 0


def test_a_changed_host_key_and_a_refused_login_are_not_tried_again(
    far_host: FarHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    far_host.stop()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(far_host.path / "other")], check=True)
    far_host.start(HostKey=str(far_host.path / "other"))
    with pytest.raises(HostUnreachable, match=r"host key has changed.* runward hosts lab\. .*tries again before that"):
        connect(far_host, monkeypatch)
    far_host.stop()
    mirror = far_host.sandbox.path / "state" / "hosts" / NAME
    close_channels(lambda path: path == mirror)
    (mirror / "refused.json").unlink()
    (far_host.path / "id").unlink()
    (far_host.path / "id.pub").unlink()
    key = far_host.path / "authorized_keys"
    far_host.start()
    key.write_text("")
    for _ in range(3):
        with pytest.raises(HostUnreachable, match="login was refused"):
            connect(far_host, monkeypatch)
    assert far_host.log.count("Connection closed by authenticating user") == 1


def test_a_host_without_a_usable_python_or_disk_is_refused_with_what_was_found(
    far_host: FarHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = far_host.path / "old"
    old.mkdir()
    for name in ("sed", "head", "tr", "tail", "sh", "bash", "env"):
        (old / name).symlink_to(f"/usr/bin/{name}" if Path(f"/usr/bin/{name}").exists() else f"/bin/{name}")
    (old / "python3").write_text('#!/bin/sh\n[ "$1" = -V ] && echo Python 3.6.8\nexit 1\n')
    (old / "python3").chmod(0o755)
    far_host.stop()
    far_host.start(SetEnv=f"HOME={far_host.path / 'home'} PATH={old}")
    far_host.write_hosts(prepare=f"export PATH={old}")
    with pytest.raises(HostUnreachable, match=r"no Python 3.9 or newer \(found: .*/old/python3 is Python 3.6.8"):
        connect(far_host, monkeypatch)
    far_host.stop()
    far_host.start()
    far_host.write_hosts(state="/proc/runward")
    close_channels(lambda path: path.is_relative_to(far_host.sandbox.path))
    with pytest.raises(
        HostUnreachable, match=r"cannot be used \(/proc/runward: No such file or directory\): .* or write state ="
    ):
        connect(far_host, monkeypatch)


async def test_without_tmux_a_run_lives_on_and_its_screen_is_the_end_of_its_log(
    sandbox: Sandbox, far_host: FarHost
) -> None:
    few = far_host.path / "few"
    few.mkdir()
    for directory in ("/usr/bin", "/bin"):
        for file in Path(directory).iterdir():
            if file.name not in ("tmux", "systemd-run"):
                with contextlib.suppress(FileExistsError):
                    (few / file.name).symlink_to(file)
    far_host.write_hosts(prepare=f"export PATH={few}")
    async with sandbox.agent() as agent:
        command = "until test -e say; do sleep 0.02; done; echo hello; until test -e go; do sleep 0.02; done"
        launched = await agent.call("launch_run", command=command, cwd=str(sandbox.path), host=NAME)
        run_id = launched["run_id"]
        assert "session" not in launched
        assert "0 lines" in await agent.text("capture_pane", run_id=run_id)
        (sandbox.path / "say").touch()
        await until_async(lambda: _runs_below(far_host, run_id, "output.log", b"hello"))
        assert "hello" in await agent.text("capture_pane", run_id=run_id)
        assert _attach(sandbox, run_id) == "hello"
    until(lambda: far_host.relays() == [])
    async with sandbox.agent() as agent:
        (sandbox.path / "go").touch()
        assert (await agent.end(run_id))["state"] == "finished"


async def test_attach_shows_the_screen_there_and_its_log_once_that_is_closed(
    sandbox: Sandbox, far_host: FarHost
) -> None:
    async with sandbox.agent() as agent:
        run_id = await agent.launch("echo hello", cwd=str(sandbox.path), host=NAME)
        assert (await agent.end(run_id))["state"] == "finished"
    head, row = sandbox.runward("ls").stdout.splitlines()
    assert "HOST" in head.split()
    assert NAME in row.split()
    subprocess.run(["tmux", "-L", far_host.socket, "kill-server"], check=True)
    assert _attach(sandbox, run_id) == "hello"


def _attach(sandbox: Sandbox, run_id: str) -> str:
    """Return the first line that attach shows of a log."""
    command = [*warm_start.command(), "attach", run_id]
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=sandbox.environ, cwd=sandbox.path, text=True, **streams) as process:
        assert process.stdout is not None
        line: str = process.stdout.readline()
        process.kill()
    return line.strip()


def _note_questions(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, run_id: str | None = None) -> list[str]:
    """Return a list that gets the name of every question to the host, once a run has ended where one is named."""
    channel, asked = channel_of(sandbox.path / "state" / "hosts" / NAME), []
    ask = channel.ask

    def note(name: str, /, **words: Any) -> tuple[dict[str, Any], bytes]:
        if run_id is None or sandbox.rundir(run_id).exit(1).exists():
            asked.append(name)
        return ask(name, **words)

    monkeypatch.setattr(channel, "ask", note)
    return asked


async def _until_status(agent: Agent, run_id: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    with anyio.fail_after(30):
        while True:
            status: dict[str, Any]
            (status,) = (await agent.call("wait_run", run_ids=run_id, timeout_s=0))["runs"]
            if condition(status):
                return status
            await anyio.sleep(0.05)


def _runs_below(host: FarHost, run_id: str, name: str, text: bytes) -> bool:
    file = host.state / "runs" / run_id / "attempts" / "1" / name
    return file.exists() and text in file.read_bytes()


def _check_secret_is_nowhere(sandbox: Sandbox, run_id: str) -> None:
    """Look for the secret in all files, arguments and environments, but for those of server and run."""
    files = [path for path in sandbox.path.rglob("*") if path.is_file()]
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    for process in processes.list_processes():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            assert SECRET.encode() not in words, process
            environ = Path(f"/proc/{process.pid}/environ").read_bytes()
            is_run = f"RUNWARD_RUN_ID={run_id}".encode() in environ
            is_server = any(word in words for word in (b"mcp_server", b"pytest", b"warm_start"))
            assert is_run or is_server or SECRET.encode() not in environ, process
