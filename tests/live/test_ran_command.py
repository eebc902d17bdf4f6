"""The command is shown as it ran, by every answer and document that names it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.sandbox import Sandbox

pytestmark = pytest.mark.anyio

TRAIN = """
import pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("--logdir") + 1])
out.mkdir(parents=True)
print(out, flush=True)
if "--retry" in sys.argv and out.name == "1":
    sys.exit("CUDA out of memory. Tried to allocate 2.00 GiB")
while "--wait" in sys.argv and not pathlib.Path("go").exists():
    __import__("time").sleep(0.02)
"""


def text_in(resource: Any) -> str:
    return str(resource.contents[0].text)


async def test_placeholders_are_filled_in_and_every_answer_shows_the_command_that_ran(sandbox: Sandbox) -> None:
    (sandbox.path / "train.py").write_text(TRAIN)
    async with sandbox.agent_in_process() as agent:
        command = f"{sys.executable} train.py --logdir runs/{{run_id}}"
        run_id = await agent.launch(
            command, name="a", cwd=str(sandbox.path), params={"seed": 3, "wait": True}, tensorboard="runs/{run_id}"
        )
        ran = f"{sys.executable} train.py --logdir runs/{run_id} --seed 3 --wait"
        asked = await agent.call("kill_run", run_id=run_id)
        (sandbox.path / "go").touch()
        await agent.end(run_id)
        read = await agent.client.read_resource(f"run://{run_id}")
        listed = await agent.call("list_runs", name=run_id)
        finished = await agent.call("finish_blueprint", run_id=run_id, result_dir=str(sandbox.path / "results"))
        other = await agent.launch(f"{command} --seed 4", name="b", cwd=str(sandbox.path))
        await agent.end(other)
        table = await agent.call("compare_runs", run_ids=[run_id, other])
    assert ran in asked["message"]
    status = json.loads(text_in(read))
    assert (status["command"], status["cwd"]) == (ran, str(sandbox.path))
    assert listed["runs"][0]["command"] == ran
    assert f"```bash\n{ran}\n```" in Path(finished["results_path"]).read_text()
    assert table["rows"]
    assert "{run_id}" not in json.dumps(table)
    assert sorted(path.name for path in (sandbox.path / "runs").iterdir()) == sorted([run_id, other])


async def test_the_command_of_a_retry_is_that_of_its_attempt(sandbox: Sandbox) -> None:
    (sandbox.path / "train.py").write_text(TRAIN)
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(
            f"{sys.executable} train.py --logdir runs/{{attempt}} --retry",
            cwd=str(sandbox.path),
            params={"num_envs": 8},
            recovery={"oom_gpu": {"do": "retry", "times": 1, "change": {"num_envs": "halve"}}},
        )
        await agent.end(run_id)
        status = json.loads(text_in(await agent.client.read_resource(f"run://{run_id}")))
    assert status["command"] == f"{sys.executable} train.py --logdir runs/2 --retry --num_envs 4"
    first, second = status["attempts"]
    assert first == {"attempt": 1, "params": {"num_envs": 8}, "ended": "oom_gpu"}
    assert second == {"attempt": 2, "params": {"num_envs": 4}}
    assert status["settings"]["num_envs"] == "4"
    assert status["results"]["log"] == str(sandbox.rundir(run_id).log(2))
    scripts = [sandbox.rundir(run_id).script, sandbox.rundir(run_id).attempt(2) / "run.sh"]
    logdirs = [line for script in scripts for line in script.read_text().splitlines() if "--logdir" in line]
    assert [line.partition("--logdir ")[2] for line in logdirs] == ['runs/1 --retry "$@"', 'runs/2 --retry "$@"']
    assert sandbox.run(run_id).state == "finished"
