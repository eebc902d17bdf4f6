"""A file system that does not answer, as one on a network during a restart, holds up only those who use it."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from tests.support.sandbox import Sandbox

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
