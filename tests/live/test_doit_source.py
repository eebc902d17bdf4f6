"""A real doit reads a real dodo.py in a process of its own, which ends in time and leaves the project as it was."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mcp_server.errors import BadArgument
from mcp_server.sweeps.sources import source
from mcp_server.sweeps.sources.cell import GpuCount, Scalar, SourceCell
from mcp_server.sweeps.sources.source import read_source
from tests.support.sandbox import Sandbox

DODO = """
import os
from doit import get_var, task_params
from doit.action import CmdAction
from doit.tools import LongRunning, create_folder

print("this is not JSON")
DOIT_CONFIG = {"action_string_formatting": "both"}
TRAIN = "python train.py --task {} --num_envs 4096 --device cuda:0"

def task_cube():
    "Train the cube"
    return {"actions": [LongRunning(TRAIN.format("cube"))], "task_dep": ["prepare"], "uptodate": [True]}

def task_cube_mgpu():
    return {"basename": "cube-mgpu", "actions": [["torchrun", "--nproc_per_node=4", "train.py", "--distributed"]]}

def task_prepare():
    return {"actions": [lambda: None]}

def task_walk():
    for robot in ("ant", "go2"):
        yield {"name": robot, "actions": [(create_folder, ["logs/" + robot]), TRAIN.format(robot) + " --seed %(seed)s"],
               "params": [{"name": "seed", "long": "seed", "type": int, "default": 0}]}

@task_params([{"name": "scene", "default": "flat"}])
def task_scene(scene):
    env = dict(os.environ, SCENE=scene)
    return {"actions": [CmdAction(lambda: "python train.py --scene " + scene, cwd="sub", env=env)]}
"""


def read(project: Path, source: str, overrides: Mapping[str, Scalar], gpus: GpuCount) -> list[SourceCell]:
    environ = dict(os.environ, PYTHONDONTWRITEBYTECODE="1")
    return read_source(source, cwd=str(project), overrides=overrides, gpus=gpus, environ=environ, python=sys.executable)


@pytest.mark.slow
def test_the_commands_of_real_tasks_are_read_and_the_project_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "dodo.py").write_text(DODO)
    cube, ant, go2, scene = read(tmp_path, "doit:cube,walk,scene", {"num_envs": 512, "seed": 7, "scene": "rough"}, 1)
    pin = "--device cuda:{gpu_indices}"
    assert cube.launch == {
        "command": f"python train.py --task cube --num_envs 4096 --device cuda:0 {pin}",
        "cwd": str(tmp_path),
        "param_style": "--k v",
    }
    assert cube.params == {"num_envs": 512, "seed": 7, "scene": "rough"}
    assert "doit runs prepare before cube; a cell does not." in cube.notes
    assert f"dodo.py was executed by {sys.executable} to read its tasks." in cube.notes
    assert (ant.name, go2.name) == ("walk-ant", "walk-go2")
    train = "python train.py --task go2 --num_envs 4096 --device cuda:0 --seed 7"
    assert go2.launch["command"] == f"mkdir -p -- logs/go2 && {train} {pin} {{params}}"
    assert (scene.launch["cwd"], scene.launch["env"]) == (str(tmp_path / "sub"), {"SCENE": "rough"})
    assert scene.launch["command"] == f"python train.py --scene rough {pin}"
    assert [path.name for path in tmp_path.iterdir()] == ["dodo.py"]

    for count in (4, "all"):
        (variant,) = read(tmp_path, "doit:cube", {}, count)
        assert variant.launch["command"] == ["torchrun", "--nproc_per_node=4", "train.py", "--distributed"]
    with pytest.raises(BadArgument, match=r"Tasks: cube \(Train the cube\), cube-mgpu, prepare, walk:ant, walk:go2"):
        read(tmp_path, "doit:", {}, None)


def test_a_dodo_that_fails_hangs_or_has_no_doit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadArgument, match=r"Could not find dodo file"):
        read(tmp_path, "doit:cube", {}, None)
    (tmp_path / "dodo.py").write_text("import no_such_module")
    with pytest.raises(BadArgument, match="ModuleNotFoundError: No module named 'no_such_module'"):
        read(tmp_path, "doit:cube", {}, None)
    (tmp_path / "doit.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(BadArgument, match=f"no Python with doit: {sys.executable}"):
        read(tmp_path, "doit:cube", {}, None)
    monkeypatch.delenv("PYTHONPATH")
    (tmp_path / "doit.py").unlink()
    (tmp_path / "dodo.py").write_text("while True: pass")
    monkeypatch.setattr(source, "_LIMIT_S", 1.0)
    with pytest.raises(BadArgument, match=r"was still loading after 1 s, and was stopped"):
        read(tmp_path, "doit:cube", {}, None)


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_sweep_of_tasks_runs_their_commands_with_parameters_and_names_of_their_own(sandbox: Sandbox) -> None:
    program = sandbox.path / "rsl_rl" / "train.py"
    program.parent.mkdir()
    program.write_text("import os, sys\nprint('scene', os.environ['SCENE'], *sys.argv[1:])\n")
    (sandbox.path / "dodo.py").write_text(
        "import os\nfrom doit.action import CmdAction\n"
        "def task_walk():\n"
        "    for robot in ('ant', 'go2'):\n"
        "        def command(scene, robot=robot):\n"
        "            return f'SCENE={scene} python rsl_rl/train.py --task {robot} --num_envs 64'\n"
        "        yield {'name': robot, 'params': [{'name': 'scene', 'default': 'flat'}],\n"
        "               'actions': ['echo begin', CmdAction(command)]}\n"
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    common = {"cwd": str(sandbox.path), "env": {"PATH": path}, "params": {"scene": "rough", "num_envs": 32}}
    sweep: dict[str, Any] = {"name": "walks", "common": common, "source": "doit:walk", "grid": {"seed": [1, 2]}}
    async with sandbox.agent_in_process() as agent:
        plan = await agent.call("launch_sweep", dry_run=True, **sweep)
        assert [line.split(": ")[0] for line in plan["plan"]] == [
            "1 1 walk-ant-seed1",
            "2 1 walk-ant-seed2",
            "3 1 walk-go2-seed1",
            "4 1 walk-go2-seed2",
        ]
        words = "rsl_rl/train.py --task go2 --num_envs 64 --num_envs 32 --seed 2 --run_name '{run_id}-{attempt}' )"
        assert plan["plan"][3].endswith(words)
        assert any(re.fullmatch(r"dodo\.py was executed by /\S+ to read its tasks\.", w) for w in plan["warnings"])
        sweep_id = (await agent.call("launch_sweep", **sweep))["sweep_id"]
        while (answer := await agent.call("wait_run", run_ids=sweep_id, until="decision"))["reason"] != "ended":
            pass
    assert answer["sweep"]["cells"] == {"total": 4, "finished": 4}
    last = sandbox.store.sweeps.observe(sweep_id).cells[3]
    name = f"{last.run_id}-1"
    assert f"scene rough --task go2 --num_envs 64 --num_envs 32 --seed 2 --run_name {name}" in sandbox.log(
        str(last.run_id)
    )
