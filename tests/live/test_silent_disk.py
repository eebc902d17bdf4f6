"""A file system that does not answer, as one on a network during a restart, holds up only those who use it."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_server.gpus.leases import Leases
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from tests.support.sandbox import Agent, Sandbox, until, until_async
from tests.support.service import serve, tokens
from tests.support.silent_mount import CannotMount, silent_mount

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("fsfreeze"), reason="needs root and fsfreeze"),
]
BLUEPRINT = """## [exp_purpose]
Write where nothing can be written

## [exp_codebase_dir]
{code}

## [exp_launch_command]
bash train.sh

## [exp_result_dir]
{results}
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, which fsfreeze silences: writing waits until it is thawed."""
    image, mount = tmp_path / "disk.img", tmp_path / "disk"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(16 << 20)
    commands = [["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(mount)]]
    if any(shutil.which(command[0]) is None for command in commands):
        pytest.skip("this machine makes no file system")
    if any(subprocess.run(command, check=False, capture_output=True).returncode for command in commands):
        pytest.skip("this machine mounts no image")
    yield mount
    subprocess.run(["fsfreeze", "-u", str(mount)], check=False, capture_output=True)
    subprocess.run(["umount", "-l", str(mount)], check=False)


async def test_other_calls_are_answered_while_a_launch_waits_for_a_silent_disk(sandbox: Sandbox, disk: Path) -> None:
    blueprint = sandbox.path / "silent.md"
    blueprint.write_text(BLUEPRINT.format(code=sandbox.path, results=disk / "results"))
    (sandbox.path / "train.sh").write_text("echo step 1 loss 0.5\n")
    async with sandbox.agent() as agent:
        run_id = await agent.launch("sleep 300")
        subprocess.run(["fsfreeze", "-f", str(disk)], check=True)
        launched: list[dict[str, object]] = []

        async def launch() -> None:
            launched.append(await agent.call("launch_run", blueprint=str(blueprint)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(launch)
            await anyio.sleep(0.5)  # the launch is under way
            with anyio.fail_after(20):
                for _ in range(5):
                    assert (await agent.call("list_runs"))["runs"][0]["run_id"] == run_id
                    assert (await agent.call("wait_run", run_ids=run_id, timeout_s=0))["runs"][0]["state"] == "running"
                assert (await agent.kill(run_id))["status"] == "killed"
            assert launched == []
            subprocess.run(["fsfreeze", "-u", str(disk)], check=True)
        assert (await agent.end(str(launched[0]["run_id"])))["state"] == "finished"


async def test_a_server_answers_while_its_own_state_directory_is_silent(sandbox: Sandbox, disk: Path) -> None:
    async with sandbox.agent(RUNWARD_HOME=str(disk / "state")) as agent:
        run_id = await agent.launch("until test -e go; do sleep 0.05; done", cwd=str(sandbox.path))
        confirmation = await agent.call("kill_run", run_id=run_id)
        subprocess.run(["fsfreeze", "-f", str(disk)], check=True)
        ended: list[dict[str, object]] = []

        async def kill() -> None:
            ended.append(await agent.call("kill_run", run_id=run_id, confirm_token=confirmation["confirm_token"]))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kill)
            await anyio.sleep(0.5)  # the stop is under way: its request cannot be written
            with anyio.fail_after(20):
                for _ in range(5):
                    assert len((await agent.client.list_tools()).tools) > 8
            subprocess.run(["fsfreeze", "-u", str(disk)], check=True)
        assert ended[0]["status"] == "killed"


async def test_results_are_written_while_another_result_directory_is_silent(sandbox: Sandbox, disk: Path) -> None:
    async with sandbox.agent() as agent:
        ana, bea = [await agent.launch("echo step 1 loss 0.5") for _ in range(2)]
        await agent.end(ana)
        await agent.end(bea)
        subprocess.run(["fsfreeze", "-f", str(disk)], check=True)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_finish, agent, ana, disk)
            await anyio.sleep(0.5)  # the first call is under way, and waits for the disk
            with anyio.fail_after(20):
                await _finish(agent, bea, sandbox.path / "results")
            assert (sandbox.path / "results" / "finish.flag").exists()
            subprocess.run(["fsfreeze", "-u", str(disk)], check=True)
        assert (disk / "finish.flag").exists()


async def _finish(agent: Agent, run_id: str, directory: Path) -> None:
    await agent.call("finish_blueprint", run_id=run_id, result_dir=str(directory))


async def test_other_agents_work_while_one_agents_directories_do_not_answer(sandbox: Sandbox) -> None:
    """Not even a look at them comes back: those of a file server that is gone."""
    directories = {name: sandbox.path / name for name in ("ana", "bea", "other")}
    command = "echo step 1 loss 0.5; printf 'step,loss\\n1,0.5\\n2,0.4\\n' > metrics.csv; exec sleep 300"
    for directory in directories.values():
        directory.mkdir()
    given = {name: tokens(sandbox).add(name) for name in ("ana", "bea")}
    with serve(sandbox) as service, contextlib.ExitStack() as silence:
        async with service.agent(given["ana"]) as ana, service.agent(given["bea"]) as bea:
            runs: dict[str, str] = {}
            for name, agent in (("ana", ana), ("bea", bea), ("other", ana)):
                there = {"cwd": str(directories[name]), "tensorboard": str(directories[name])}
                runs[name] = await agent.launch(command, **there)
                await agent.call("wait_run", run_ids=runs[name], until="first_step", timeout_s=60)
            try:
                silence.enter_context(silent_mount(directories["ana"]))
            except CannotMount as error:
                pytest.skip(f"no silent file system: {error}")
            async with anyio.create_task_group() as tasks:
                for tool, arguments in 5 * _looks(runs["ana"], directories["ana"]):
                    tasks.start_soon(_try, ana, tool, arguments)
                await anyio.sleep(1.0)  # all of them wait by now
                with anyio.fail_after(40):
                    for tool, arguments in _looks(runs["bea"], directories["bea"]):
                        await bea.call(tool, **arguments)
                    assert (await bea.call("list_runs"))["total"] == 3
                    assert (await bea.kill(runs["bea"]))["status"] == "killed"
                    await _finish(bea, runs["bea"], directories["bea"] / "results")
                    # Nor do her own calls about another directory, and about the records of her runs, wait for it.
                    for tool, arguments in _looks(runs["other"], directories["other"]):
                        await ana.call(tool, **arguments)
                    assert (await ana.call("list_runs"))["total"] == 3
                    assert (await ana.kill(runs["ana"]))["status"] == "killed"
                silence.close()
                tasks.cancel_scope.cancel()


def _looks(run_id: str, directory: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return calls that look into the directories of a run."""
    return [
        ("read_tb", {"run_id": run_id}),
        ("compare_runs", {"run_ids": [run_id]}),
        ("wait_run", {"run_ids": run_id, "until": "loss < 1", "timeout_s": 60}),
        ("preflight", {"command": "bash train.sh", "cwd": str(directory)}),
        ("launch_run", {"command": "true", "cwd": str(directory), "dry_run": True}),
    ]


async def _try(agent: Agent, tool: str, arguments: dict[str, Any]) -> None:
    with contextlib.suppress(Exception):  # an error, once the file system is gone
        await agent.client.call_tool(tool, arguments)


@pytest.mark.slow
async def test_leases_are_kept_while_a_process_lives_that_nothing_can_stop(sandbox: Sandbox, disk: Path) -> None:
    (sandbox.path / "state").mkdir(mode=0o700)
    (sandbox.path / "state" / "config.toml").write_text("cpu_slots = 1\nstop_grace_s = 0.25\n")
    async with sandbox.agent() as agent:
        write = f"touch ready; while true; do echo x > {disk}/file; sleep 0.01; done"
        run_id = await agent.launch(write, cwd=str(sandbox.path), gpus="cpu", name="stuck")
        await until_async((sandbox.path / "ready").exists)
        subprocess.run(["fsfreeze", "-f", str(disk)], check=True)
        await until_async(lambda: any(waits_for_disk(p.pid) for p in sandbox.own_processes()), "a process that waits")
        done = await agent.kill(run_id)
        assert done["survivors"], (
            done,
            sandbox.run(run_id).events[-1],
            await agent.text("capture_pane", run_id=run_id),
        )
        assert "its leases are kept until they end" in done["message"]
        assert "cpu slots stay leased" in sandbox.run(run_id).events[-1]["text"]
        assert "stuck-" in await agent.refusal("launch_run", command="true", gpus="cpu")
        subprocess.run(["fsfreeze", "-u", str(disk)], check=True)
        leases = Leases(sandbox.path / "leases")
        await until_async(lambda: not leases.holders(), "the end of the keeper")
        assert (await agent.end(await agent.launch("true", gpus="cpu")))["state"] == "finished"


def waits_for_disk(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].startswith(b"D")
    return False


async def test_a_state_directory_that_becomes_read_only_ends_nothing_and_is_named_until_it_takes_writes(
    sandbox: Sandbox, disk: Path
) -> None:
    go, home = sandbox.path / "go", disk / "state"
    command = f"echo step 1 loss 0.5; until test -e {go}-$RUNWARD_RUN_ID; do sleep 0.02; done; exit 3"
    async with sandbox.agent(RUNWARD_HOME=str(home)) as agent:
        ends_meanwhile, goes_on, stopped = [await agent.launch(command) for _ in range(3)]
        for run_id in (ends_meanwhile, goes_on, stopped):
            await agent.call("wait_run", run_ids=run_id, until="first_step", timeout_s=60)
        with _read_only(home):
            assert {row["state"] for row in (await agent.call("list_runs"))["runs"]} == {"running"}
            assert "step 1" in await agent.text("read_log", run_id=goes_on)
            refusal = await agent.refusal("launch_run", command="true")
            assert "Read-only file system" in refusal, refusal
            assert str(home) in refusal
            Path(f"{go}-{ends_meanwhile}").touch()
            ended = await agent.end(ends_meanwhile)
            assert (ended["state"], ended["exit_code"]) == ("failed", 3)
            assert "Read-only file system" in json.dumps(ended["events"])
            assert (await agent.kill(stopped))["status"] == "killed"
            assert RunStore(StateHome(home)).observe(goes_on).state == "running"
        assert (await agent.end(ends_meanwhile))["exit_code"] == 3
        Path(f"{go}-{goes_on}").touch()
        assert (await agent.end(goes_on))["exit_code"] == 3
        assert (await agent.end(stopped))["state"] == "killed"
        assert (await agent.end(await agent.launch("exit 7")))["exit_code"] == 7


@contextlib.contextmanager
def _read_only(directory: Path) -> Iterator[None]:
    """Lay a read-only mount of a directory over it, as a remount does to all files that are opened from then on."""
    subprocess.run(["mount", "--bind", str(directory), str(directory)], check=True)
    try:
        remount = ["mount", "-o", "remount,bind,ro", str(directory)]  # refused while a file is being written there
        until(
            lambda: subprocess.run(remount, capture_output=True, check=False).returncode == 0, "a pause of all writers"
        )
        yield
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)
