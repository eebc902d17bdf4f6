"""A package that is replaced or removed under living runs takes nothing away from them."""

import shutil
import sys
from pathlib import Path

import pytest

import mcp_server
from tests.support.sandbox import Sandbox, until_async

pytestmark = pytest.mark.anyio

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
