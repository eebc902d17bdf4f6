"""A package that is replaced or removed under living runs takes nothing away from them."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import mcp_server
from tests.support.sandbox import Sandbox, until_async

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

FAILS = """
touch ready
until test -e go; do sleep 0.05; done
echo 'RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB'
exit 1
"""
BLUEPRINT = """## [exp_purpose]
Fail after an upgrade

## [exp_codebase_dir]
{code}

## [exp_venv_exe]
{python}

## [exp_launch_command]
{command}

## [exp_result_dir]
{results}
"""


@pytest.fixture
def installation(sandbox: Sandbox) -> Path:
    """A directory with a package of its own, first on the path of a server that is started with it."""
    path = sandbox.path / "site"
    shutil.copytree(Path(mcp_server.__file__).parent, path / "mcp_server")
    for name in ("prompts", "agents"):
        if (source := Path(mcp_server.__file__).parents[1] / name).is_dir():
            shutil.copytree(source, path / name)
    return path


async def test_a_run_keeps_its_failure_its_retries_and_its_flag_when_the_package_is_removed(
    sandbox: Sandbox, installation: Path
) -> None:
    code = sandbox.path / "code"
    code.mkdir()
    (code / "fail.sh").write_text(FAILS)
    sandbox.store.home.create()
    blueprint = sandbox.path / "upgrade.md"
    facts = {"code": code, "python": sys.executable, "command": "bash fail.sh", "results": sandbox.path / "results"}
    blueprint.write_text(BLUEPRINT.format(**facts))
    async with sandbox.agent(cold=True, PYTHONPATH=str(installation)) as agent:
        recovery = {"oom_gpu": {"do": "retry", "times": 1, "wait_s": 0}}
        run_id = (await agent.call("launch_run", blueprint=str(blueprint), recovery=recovery))["run_id"]
        await until_async((code / "ready").exists)
    shutil.rmtree(installation)
    (code / "go").touch()
    async with sandbox.agent(cold=True) as agent:
        status = await agent.end(run_id)
    assert (status["state"], status["failure"]["kind"]) == ("failed", "oom_gpu")
    kinds = [event["kind"] for event in sandbox.run(run_id).events]
    assert kinds[-1] == "ended"
    assert "retrying" in kinds
    assert "observer_error" not in kinds
    assert (sandbox.path / "results" / "finish.flag").exists()
    assert "oom_gpu" in (sandbox.path / "results" / "results.md").read_text()


async def test_a_server_whose_package_is_removed_still_launches(sandbox: Sandbox, installation: Path) -> None:
    async with sandbox.agent(cold=True, PYTHONPATH=str(installation)) as agent:
        await agent.end(await agent.launch("true"))
        shutil.rmtree(installation)
        assert (await agent.end(await agent.launch("exit 4")))["exit_code"] == 4


async def test_an_installation_that_cannot_be_copied_is_used_as_it_is(sandbox: Sandbox) -> None:
    sandbox.store.home.create()
    (sandbox.path / "state" / "supervisors").touch()
    async with sandbox.agent_in_process() as agent:
        assert (await agent.end(await agent.launch("exit 4")))["exit_code"] == 4


async def test_two_servers_share_one_copy(sandbox: Sandbox) -> None:
    for _ in range(2):
        async with sandbox.agent(cold=True) as agent:
            await agent.end(await agent.launch("true"))
    assert len(list((sandbox.path / "state" / "supervisors").iterdir())) == 1


async def test_a_server_answers_as_before_when_its_package_is_replaced_before_the_first_call(
    sandbox: Sandbox, installation: Path
) -> None:
    package, loaded = installation / "mcp_server", sandbox.path / "loaded"
    # The last module by name says when the server has loaded all of them.
    (package / "zz_last.py").write_text(f"open({str(loaded)!r}, 'w').close()\n")
    async with sandbox.agent(cold=True, PYTHONPATH=str(installation)) as agent:
        await until_async(loaded.exists)
        replace_package(package)
        (installation / "prompts" / "rules.md").write_text("Other rules\n")
        (sandbox.path / "train.sh").write_text('for i in 1 2 3; do echo "step $i/3 loss: 0.$i"; done; exit $2\n')
        runs = [await agent.launch("bash train.sh", params={"code": code}) for code in (0, 3)]
        assert [(await agent.end(run_id))["exit_code"] for run_id in runs] == [0, 3]
        assert runs[1] in await agent.text("compare_runs", run_ids=runs)
        assert "step 2/3" in await agent.text("read_log", run_id=runs[0], grep="step 2")
        assert "loss" in await agent.text("read_tb", run_id=runs[0])
        assert runs[0] in await agent.text("list_runs", state="finished")
        plan: dict[str, Any] = {"name": "lr", "common": {"command": "bash train.sh"}, "grid": {"lr": [1, 2]}}
        assert "lr" in await agent.text("launch_sweep", **plan, dry_run=True)
        (sandbox.path / "empty.md").write_text("# Nothing\n")
        assert "exp_launch_command" in await agent.text("check_blueprint", path=str(sandbox.path / "empty.md"))
        assert await agent.text("preflight", command="true")
        (sandbox.path / "foreign.log").write_text("torch.OutOfMemoryError: CUDA out of memory\n")
        assert "halve the batch size" in await agent.text("read_log", path=str(sandbox.path / "foreign.log"))
        assert (await agent.call("finish_blueprint", run_id=runs[0], summary="Done"))["run_id"] == runs[0]
        sleeper = await agent.launch("sleep 1000")
        assert await agent.text("capture_pane", run_id=sleeper)
        assert (await agent.kill(sleeper))["status"] == "killed"
        rules = await agent.client.read_resource("guide://rules")
        assert "Other rules" not in str(rules)


def replace_package(package: Path) -> None:
    """Replace the modules by others that cannot be used, so that whatever is imported later is seen.

    The query of GPUs is a process of its own.
    """
    for path in package.rglob("*.py"):
        if "nvml" not in path.parts:
            path.write_text("raise AssertionError('The server imported a module of the new package')\n")
    for path in package.rglob("*.rows"):
        path.write_text("These are no rows\n")
    for cache in list(package.rglob("__pycache__")):
        shutil.rmtree(cache)
