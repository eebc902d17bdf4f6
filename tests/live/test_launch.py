"""Real commands in real panes, launched and awaited by a real client over stdio."""

import json
import os
import shutil
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.support.sandbox import Agent, Sandbox, until_async

pytestmark = pytest.mark.anyio

PYTHON = sys.executable
FAIL = f"{PYTHON} -c 'import sys; print(\"work\"); sys.exit(7)'"

SHAPES: dict[str, tuple[str | list[str], int | None, str | None]] = {
    "plain": (FAIL, 7, None),
    "argv": ([PYTHON, "-c", "raise SystemExit(7)"], 7, None),
    "bash -c": ("bash -c 'echo hi; exit 7'", 7, None),
    "tee pipeline": (f"{FAIL} 2>&1 | tee copy.log", 7, None),
    "exec": ("exec bash -c 'exit 7'", 7, None),
    "setsid": ("setsid bash -c 'sleep 0.3; exit 7'", 7, None),
    "setsid argv": (["setsid", "bash", "-c", "sleep 0.3; exit 7"], 7, None),
    "nohup": ("nohup bash -c 'exit 7'", 7, None),
    "background child": ("sleep 300 & bash -c 'sleep 0.2; exit 7'", 7, None),
    "instant success": ("true", 0, None),
    "instant failure": ("exit 7", 7, None),
    "and list": ("cd . && bash -c 'exit 7'", 7, None),
    "subshell": ("(exit 7)", 7, None),
    "assignment": ("A=7 bash -c 'exit $A'", 7, None),
    "lines": ("echo one\necho two\nexit 7", 7, None),
    "quotes": (r"""bash -c 'test "$0" = "a\"b \$c" && exit 7' 'a"b $c'""", 7, None),
    "unicode": (
        [PYTHON, "-c", "import sys; sys.exit(7 if sys.argv[1] == 'größe 训练 🚀' else 1)", "größe 训练 🚀"],
        7,
        None,
    ),
    "not found": ("eval no-such-program-anywhere", 127, None),
    "own SIGKILL": ("kill -KILL $$", None, "SIGKILL"),
    "SIGSEGV": ([PYTHON, "-c", "import os; os.kill(os.getpid(), 11)"], None, "SIGSEGV"),
    "SIGTERM behind a shell": ("bash -c 'kill -TERM $$'; exit", 143, None),
    "own process group": ([PYTHON, "-c", "import os; os.setpgrp(); raise SystemExit(7)"], 7, None),
    "double fork": ("bash -c '(setsid sleep 300 &) ; exit 7'", 7, None),
}


async def test_the_exit_code_of_every_kind_of_command_is_exact(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent:
        ids = {shape: await agent.launch(command) for shape, (command, _, _) in SHAPES.items()}
        for shape, run_id in ids.items():
            _, code, signal = SHAPES[shape]
            status = await agent.end(run_id)
            assert (status.get("exit_code"), status.get("signal")) == (code, signal), shape
            assert status["state"] == ("finished" if code == 0 else "failed"), shape


async def test_left_over_processes_are_stopped_and_reported(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("(setsid sleep 301 &); sleep 302 & exit 0")
        status = await agent.end(run_id)
    assert status["state"] == "finished"
    assert "Stopped 2 process" in status["events"][-1]["text"]
    assert len(sandbox.run(run_id).events[-1]["leftovers"]) == 2
    assert not [p for p in sandbox.own_processes() if "sleep" in p.command]


async def test_a_run_that_ended_before_the_call_returns_at_once(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("exit 3")
        await until_async(lambda: sandbox.run(run_id).ended)
        answer = await agent.call("wait_run", run_ids=run_id)
    assert answer["reason"] == "ended"
    assert answer["waited_s"] < 15
    assert answer["runs"][0]["exit_code"] == 3


async def test_the_command_gets_its_directory_environment_and_a_terminal(sandbox: Sandbox) -> None:
    cwd = sandbox.path / "my 'dir' ü"
    cwd.mkdir()
    script = "import os, json, sys; print(json.dumps([os.getcwd(), dict(os.environ), sys.stdout.isatty()]))"
    async with sandbox.agent(HF_TOKEN="hf_not_asked_for") as agent:
        run_id = await agent.launch([PYTHON, "-c", script], cwd=str(cwd), env={"LR": "3e-4 'x'", "N": "1"})
        await agent.end(run_id)
    seen: tuple[str, dict[str, str], bool] = json.loads(sandbox.log(run_id))
    assert seen[0] == str(cwd)
    assert seen[2] is True
    assert seen[1]["LR"] == "3e-4 'x'"
    assert seen[1]["RUNWARD_RUN_ID"] == run_id
    assert "HF_TOKEN" not in seen[1], "a secret reaches a run only by name"
    assert "TMUX" not in seen[1]


async def test_secrets_reach_the_command_and_nothing_else(sandbox: Sandbox) -> None:
    canary = "canary-5f2a91c07d-value"
    script = (
        "import base64, os, sys, time\n"
        "k = os.environ['WANDB_API_KEY']\n"
        "print(k, flush=True)\n"
        "for c in k: print(c, end='', flush=True)\n"
        "print(); print(k[:9], end='', flush=True); time.sleep(0.2); print(k[9:], flush=True)\n"
        "for pad in ('', 'x', 'xy'): print(base64.b64encode((pad + k).encode()).decode())\n"
        "print(k.encode().hex())\n"
        "print(len(k)); sys.exit(4)"
    )
    async with sandbox.agent(WANDB_API_KEY=canary) as agent:
        answers: list[Any] = [await agent.call("launch_run", command=[PYTHON, "-c", script], secrets=["WANDB_API_KEY"])]
        run_id = answers[0]["run_id"]
        commands = [p.command for p in sandbox.own_processes()]
        answers.append(await agent.end(run_id))
        answers.append(await agent.text("read_log", run_id=run_id))
        await until_async(lambda: "failed: exit code 4" in sandbox.tmux("capture-pane", "-p", "-t", f"={run_id}:"))
        answers.append(await agent.text("capture_pane", run_id=run_id, history=True))
        answers.append(await agent.call("list_runs", others=True))
        environment = sandbox.tmux("show-environment", "-g") + sandbox.tmux("show-environment", "-t", run_id)
    assert str(len(canary)) in sandbox.log(run_id).splitlines(), "the command did get it"
    assert sandbox.log(run_id).count("[secret:WANDB_API_KEY]") == 7
    places = [json.dumps(answers), *commands, environment]
    places += [f.read_text(errors="replace") for f in (sandbox.path / "state").rglob("*") if f.is_file()]
    core = "Y2FuYXJ5LTVmMmE5MWMwN2QtdmFsd"  # the base64 digits that the canary alone decides
    for place in places:
        assert canary not in place
        assert core not in place
        assert canary.encode().hex() not in place


async def test_a_highlighted_secret_is_masked_in_log_and_answers(sandbox: Sandbox) -> None:
    canary = "abcd/efgh/1234/ijkl+mnop"
    script = "import os; from rich.console import Console; Console(force_terminal=True).print(os.environ['P_KEY'])"
    async with sandbox.agent(P_KEY=canary) as agent:
        run_id = await agent.launch([PYTHON, "-c", script], secrets=["P_KEY"])
        status = await agent.end(run_id)
        text = await agent.text("read_log", run_id=run_id)
    assert status["tail"] == ["[secret:P_KEY]"]
    assert text.splitlines()[-2] == "[secret:P_KEY]"


async def test_a_run_has_the_umask_of_its_launcher(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent:
        await agent.end(await agent.launch("true"))  # tmux has this umask
    before = os.umask(0o027)
    try:
        async with sandbox.agent() as agent:
            run_id = await agent.launch("umask")
            await agent.end(run_id)
    finally:
        os.umask(before)
    assert sandbox.log(run_id) == "0027\n"


@pytest.mark.parametrize("umask", [0o777, 0o177])
async def test_a_umask_that_bars_its_owner_is_the_commands_and_not_runwards(
    sandbox: Sandbox, tmp_path: Path, umask: int
) -> None:
    before = os.umask(umask)
    try:
        async with sandbox.agent() as agent:
            run_id = await agent.launch("umask")
            await agent.end(run_id)
            sweep = await agent.call(
                "launch_sweep",
                name="one",
                common={"command": ["bash", "-c", 'umask; : "$@"', "cell"]},
                cells=[{"seed": "1"}],
            )
            ended = await agent.call("wait_run", run_ids=sweep["sweep_id"], until="end", timeout_s=60)
    finally:
        os.umask(before)
    assert ended["reason"] == "ended"
    logs = [path.read_text() for path in sandbox.store.home.runs.rglob("output.log")]
    assert logs == [f"{umask:04o}\n"] * 2
    odd = {
        str(path): oct(path.stat().st_mode)
        for path in (sandbox.path / "state").rglob("*")
        if (path.is_dir() and path.stat().st_mode & 0o777 != 0o700) or not path.stat().st_mode & 0o400
    }
    assert not odd


async def test_refused_arguments_create_nothing(sandbox: Sandbox) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"command": ""}, "empty"),
        ({"command": []}, "empty"),
        ({"command": "true", "cwd": "/no/such/dir"}, "not a directory"),
        ({"command": "true", "cwd": "relative"}, "absolute"),
        ({"command": "true", "secrets": ["UNSET_KEY"]}, "Secret not set: 'UNSET_KEY'"),
        ({"command": "true", "name": "a/b"}, "name"),
        ({"command": "true", "name": ".."}, "name"),
        ({"command": "true", "name": "a:b"}, "name"),
        ({"command": "true", "name": "n" * 300}, "300"),
        ({"command": "true", "gpu": 2}, "gpu: there is no such argument"),
        ({"command": "true", "env": {"API_KEY": "12345678"}}, "secrets=['API_KEY']"),
        ({"command": "true", "time_limit_s": 0}, "time_limit_s"),
        ({}, "command"),
    ]
    async with sandbox.agent_in_process() as agent:
        for arguments, words in refused:
            assert words in await agent.refusal("launch_run", **arguments), arguments
        assert (await agent.call("list_runs"))["total"] == 0
    assert not (sandbox.path / "state").exists()
    assert sandbox.tmux("list-sessions") == ""


async def test_a_dry_run_shows_the_script_and_starts_nothing(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent:
        answer = await agent.call("launch_run", command="python -V", cwd="/", env={"A": "1"}, dry_run=True)
    assert answer["dry_run_script"] == (
        "#!/usr/bin/env bash\nset -o pipefail\nexport A=1\ncd -- / || exit\nexec python -V\n"
    )
    assert "run_id" not in answer
    assert not (sandbox.path / "state").exists()


async def test_a_repeated_key_returns_the_first_run_from_any_server(sandbox: Sandbox) -> None:
    command = f"echo ran >> {sandbox.path}/effects; sleep 300"
    async with sandbox.agent() as one, sandbox.agent() as other:
        first = await one.launch(command, idempotency_key="sweep-3/cell-7")
        assert await other.launch(command, idempotency_key="sweep-3/cell-7") == first
        another = await other.call("launch_run", command="true", idempotency_key="sweep-3/cell-7")
        assert another["run_id"] == first
        assert (
            f"{first} runs another command than this call's, which was not run: use another key." in another["warnings"]
        )
        assert await one.launch("true", idempotency_key="another") != first
        await until_async((sandbox.path / "effects").exists)
    assert (sandbox.path / "effects").read_text() == "ran\n"


async def test_a_short_command_answers_with_its_end_and_its_output(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        failed = await agent.call("launch_run", command="seq 3; echo 'KeyError: lr' >&2; exit 7", wait_s=60)
        fine = await agent.call("launch_run", command="echo 42; echo step 3/3 loss 0.5", name="answer", wait_s=60)
        both = [str(run["run_id"]) for run in (failed, fine)]
        again = await agent.call("wait_run", run_ids=[*both, await agent.launch("sleep 300")], timeout_s=0)
    assert (failed["state"], failed["exit_code"], failed["failure"]["kind"]) == ("failed", 7, "python_error")
    assert failed["tail"] == ["1", "2", "3", "KeyError: lr"]
    assert failed["next_step"] == "read_log has all output."
    assert (fine["state"], fine["exit_code"], fine["tail"]) == ("finished", 0, ["42", "step 3/3 loss 0.5"])
    assert (fine["step"], fine["total_steps"], fine["metrics"]) == (3, 3, {"loss": 0.5})
    assert again["reason"] == "heartbeat", "the ends were answered, so they are no news"


async def test_a_longer_command_goes_on_after_the_wait_for_its_end(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run = await agent.call("launch_run", command="until test -e go; do sleep 0.02; done", wait_s=0.2)
        assert run["state"] == "running"
        assert run["next_step"] == "Call wait_run."
        assert "exit_code" not in run
        refused = await agent.refusal("launch_run", command="true", wait_s=3600)
        assert "wait_s" in refused
        (sandbox.path / "go").touch()
        assert (await agent.end(run["run_id"]))["state"] == "finished"


async def test_a_cancelled_wait_for_its_end_leaves_the_run_alone(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        with anyio.move_on_after(10) as scope:
            async with anyio.create_task_group() as tasks:
                command = "echo running; until test -e go; do sleep 0.02; done"
                tasks.start_soon(partial(agent.call, "launch_run", command=command, name="slow", wait_s=600))
                await until_async(lambda: [run for run in sandbox.store.list_runs() if run.state == "running"])
                tasks.cancel_scope.cancel()
        assert not scope.cancelled_caught
        (run,) = sandbox.store.list_runs()
        assert run.state == "running"
        (sandbox.path / "go").touch()
        assert (await agent.end(run.run_id))["state"] == "finished"


async def test_paths_are_in_verbose_answers(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        short = await agent.call("launch_run", command="sleep 300", name="cfm")
        long = await agent.call("launch_run", command="sleep 300", name="cfm", verbose=True)
    assert set(short) == {"run_id", "state", "session", "owner", "next_step"}
    assert set(long) == {*short, "name", "attach_command", "log_path", "run_dir", "started_at"}
    assert Path(long["log_path"]).is_file()
    assert Path(long["run_dir"]) == sandbox.rundir(long["run_id"]).path


async def test_a_time_limit_ends_a_run_as_timed_out(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent:
        status = await agent.end(await agent.launch("sleep 300", time_limit_s=0.5))
    assert (status["state"], status["signal"]) == ("timed_out", "SIGINT")
    assert "0.5 s have passed" in status["events"][-1]["text"]


async def test_the_session_stays_for_reading_and_says_how_it_ended(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run = await agent.call("launch_run", command="echo last words; exit 3", name="cfm 训练 v1.2")
        await agent.end(run["run_id"])
        await until_async(lambda: "failed: exit" in sandbox.tmux("capture-pane", "-p", "-t", f"={run['run_id']}:"))
        screen = await agent.text("capture_pane", run_id=run["run_id"])
    assert "last words" in screen
    assert "failed: exit code 3" in screen
    assert run["session"] in sandbox.tmux("list-sessions", "-F", "#{session_name}").split()
    assert run["run_id"].startswith("cfm-v1-2-")


@pytest.mark.usefixtures("own_supervisor_copies")
async def test_files_are_readable_by_their_owner_alone(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("echo x")
        await agent.end(run_id)
    open_to_others = stat.S_IRWXG | stat.S_IRWXO
    found = [sandbox.path / "state", *(sandbox.path / "state").rglob("*")]
    assert len(found) > 8
    assert [f for f in found if f.lstat().st_mode & open_to_others and f.name != "attempts"] == []


async def test_tmux_is_started_with_a_bare_environment(sandbox: Sandbox) -> None:
    async with sandbox.agent(SOME_API_KEY="canary-in-the-server", EDITOR="vi") as agent:
        await agent.end(await agent.launch("true"))
    environment = sandbox.tmux("show-environment", "-g")
    assert "PATH=" in environment
    assert "canary" not in environment
    assert "EDITOR" not in environment


async def test_without_tmux_the_refusal_names_the_line_to_type(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "bash").symlink_to(shutil.which("bash") or "/bin/bash")
    async with sandbox.agent(PATH=os.fspath(tmp_path / "bin")) as agent:
        assert "apt-get install tmux" in await agent.refusal("launch_run", command="true")
    assert not (sandbox.path / "state").exists()


async def test_old_screens_are_closed_and_others_left_alone(sandbox: Sandbox) -> None:
    (sandbox.path / "state").mkdir(mode=0o700)
    (sandbox.path / "state" / "config.toml").write_text("keep_sessions = 1\n")
    async with sandbox.agent_in_process() as agent:
        live = await agent.launch("sleep 300")
        sandbox.tmux("new-session", "-d", "-s", "theirs")
        ended = [await agent.launch("echo done") for _ in range(3)]
        for run_id in ended:
            await agent.end(run_id)
        newest = await agent.launch("sleep 300")
        assert "done" in await agent.text("read_log", run_id=ended[0])
    sessions = set(sandbox.tmux("list-sessions", "-F", "#{session_name}").split())
    assert sessions == {live, "theirs", ended[-1], newest}
    assert sandbox.run(live).state == "running"


async def test_a_state_directory_that_cannot_be_made_is_named(sandbox: Sandbox) -> None:
    (sandbox.path / "file").write_text("x")
    async with sandbox.agent(RUNWARD_HOME=str(sandbox.path / "file" / "state")) as agent:
        assert "Not a directory" in await agent.refusal("launch_run", command="true")


async def test_parameters_may_be_a_file(sandbox: Sandbox) -> None:
    (sandbox.path / "cfm.yaml").write_text("data:\n  batch_size: 512\n  files: [a.json]\nlr: 0.5\n")
    program = ["python3", "-c", "import sys; print(sys.argv[1:])"]
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(program, params="cfm.yaml", param_style="k=v", cwd=str(sandbox.path))
        end = await agent.end(run_id)
        assert end["params"] == {"data.batch_size": 512, "data.files": '["a.json"]', "lr": 0.5}
        assert sandbox.run(run_id).spec.params_file == str(sandbox.path / "cfm.yaml")
        checked = await agent.call("preflight", command=program, params="cfm.yaml", cwd=str(sandbox.path))
        assert checked["ok"], checked
        refusal = await agent.refusal("launch_run", command=program, params="cfn.yaml", cwd=str(sandbox.path))
        assert "cfm.yaml" in refusal
    assert "['data.batch_size=512', 'data.files=[\"a.json\"]', 'lr=0.5']" in sandbox.log(run_id)


async def test_a_program_of_hydra_gets_its_parameters_as_settings(sandbox: Sandbox) -> None:
    decorated = "@hydra.main(config_path=None)\ndef main(cfg): ...\n"
    program = f"import sys\nprint(sys.argv[1:])\nsys.exit()\n{decorated}"
    (sandbox.path / "train.py").write_text(program)
    (sandbox.path / "ppo.yaml").write_text("trainer:\n  total_epochs: 3\n  logger: [console]\n")
    async with sandbox.agent_in_process() as agent:
        launch = {"command": "python3 train.py", "cwd": str(sandbox.path), "params": "ppo.yaml"}
        run_id = await agent.launch(**launch)
        assert (await agent.end(run_id))["exit_code"] == 0
        dry = await agent.call(
            "launch_run", command="python3 -m verl.trainer.main_ppo", params={"a.b": 1}, dry_run=True
        )
        assert "set -- a.b=1\n" in dry["dry_run_script"]
    assert "['trainer.total_epochs=3', 'trainer.logger=[\"console\"]']" in sandbox.log(run_id)


async def test_the_runs_id_and_attempt_stand_in_parameters_and_environment_and_a_command_keeps_its_braces(
    sandbox: Sandbox,
) -> None:
    code = 'import os, sys; print(f"{len(sys.argv)}", sys.argv[1:], os.environ["OUT"], "{run_id}")'
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(
            ["python3", "-c", code], params={"run_name": "{run_id}-{attempt}"}, env={"OUT": "out/{run_id}"}
        )
        assert (await agent.end(run_id))["state"] == "finished"
    assert sandbox.log(run_id).split() == ["3", "['--run_name',", f"'{run_id}-1']", f"out/{run_id}", "{run_id}"]


@pytest.mark.parametrize("gone", ["state", "state/supervisors"])
async def test_a_server_whose_state_is_removed_or_moved_launches_again(sandbox: Sandbox, gone: str) -> None:
    async with sandbox.agent() as agent:
        await agent.end(await agent.launch("true"))

        def is_removed() -> bool:  # in several tries: the supervisor of the run still writes for a moment
            shutil.rmtree(sandbox.path / gone, ignore_errors=True)
            return not (sandbox.path / gone).exists()

        await until_async(is_removed)
        assert (await agent.end(await agent.launch("echo after a removal")))["state"] == "finished"
        (sandbox.path / gone).rename(sandbox.path / "moved")
        assert (await agent.end(await agent.launch("echo after a move")))["state"] == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["is missing", "may not be executed"])
async def test_a_server_whose_environment_is_gone_says_so_and_starts_nothing(sandbox: Sandbox, fault: str) -> None:
    venv = sandbox.path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    packages = next((venv / "lib").glob("python3*/site-packages"))
    paths = [str(Path(__file__).parents[2]), *(path for path in sys.path if path.endswith("site-packages"))]
    (packages / "of_the_tests.pth").write_text("\n".join(paths))
    server = StdioServerParameters(
        command=str(venv / "bin" / "python"), args=["-m", "mcp_server"], env=sandbox.environ, cwd=sandbox.path
    )
    async with Client(stdio_client(server)) as client:
        agent = Agent(client)
        run_id = await agent.launch("sleep 300")
        python = venv / "bin" / "python"
        if fault == "is missing":
            shutil.rmtree(venv)
        else:
            python.unlink()
            python.touch(0o600)
        for told in (
            await agent.refusal("launch_run", command="true"),
            await agent.refusal("launch_sweep", name="s", common={"command": "true {a}"}, grid={"a": [1]}),
        ):
            assert f"runward's own environment is gone: {python} {fault}" in told
            assert "overloaded" not in told
        assert f"{python} {fault}" in await agent.refusal("gpu_check")
        assert (await agent.call("list_runs"))["total"] == 1
        assert (await agent.kill(run_id))["status"] == "killed"


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["does not start", "has no mcp_server"])
async def test_a_sweep_whose_conductor_could_not_start_is_not_made(sandbox: Sandbox, fault: str) -> None:
    venv, source = sandbox.path / "venv", Path(__file__).parents[2]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    packages = next((venv / "lib").glob("python3*/site-packages"))
    shutil.copytree(source / "mcp_server", packages / "mcp_server", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("prompts", "agents"):
        shutil.copytree(source / name, packages / "mcp_server" / name, dirs_exist_ok=True)
    others = (path for path in sys.path if path.endswith("site-packages"))
    (packages / "of_the_tests.pth").write_text("\n".join(others))
    server = StdioServerParameters(
        command=str(venv / "bin" / "python"),
        args=["-P", "-B", "-m", "mcp_server"],  # nothing comes into the package while it is removed
        env=sandbox.environ,
        cwd=sandbox.path,
    )
    plan = {"name": "s", "common": {"command": "true {a}"}, "grid": {"a": [1]}}
    async with Client(stdio_client(server)) as client:
        agent = Agent(client)
        await agent.call("launch_sweep", **plan, dry_run=True)  # what it needs is loaded
        if fault == "does not start":
            (venv / "bin" / "python").unlink()
            (venv / "bin" / "python").write_bytes(b"\x7fELF of another machine")
            (venv / "bin" / "python").chmod(0o755)
        else:
            shutil.rmtree(packages / "mcp_server")
        told = await agent.refusal("launch_sweep", **plan)
        assert f"runward's own environment is gone: {venv / 'bin' / 'python'} {fault}" in told
        assert "began" not in told
    assert not any((sandbox.path / "state" / "sweeps").glob("s-*"))
