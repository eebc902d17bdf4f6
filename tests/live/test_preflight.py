"""Preflight through a real server."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from tests.support.sandbox import Sandbox

pytestmark = pytest.mark.anyio


async def test_an_agent_learns_what_is_missing_and_what_trains(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        idle = await agent.call("preflight")
        # Tests beside this one may train; their runs are not of this state directory.
        assert all("not runward's" in each for each in idle.pop("running", []))
        assert idle.pop("found")[0].endswith(f" GB free at {sandbox.path}")
        assert idle == {"ok": True, "problems": []}
        run_id = await agent.launch("sleep 300", owner="alice")
        answer = await agent.call("preflight", command="python3 trian.py", imports=["json"], secrets=["WANDB_API_KEY"])
        assert (answer["ok"], [each["what"] for each in answer["problems"]]) == (False, ["command", "secret"])
        assert answer["running"][0] == f"{run_id} running (alice)"
        refused = await agent.refusal("launch_run", command="python3 -c 1", recovery={"oom": "retry"}, dry_run=True)
        same = await agent.call("preflight", command="python3 -c 1", recovery={"oom": "retry"})
        assert [each["what"] for each in same["problems"]] == ["recovery"]
        assert same["problems"][0]["text"] in refused
        venv, version = sandbox.path / "venv", ".".join(map(str, sys.version_info[:2]))
        (venv / "bin").mkdir(parents=True)
        (venv / "bin" / "python").symlink_to(sys.executable)
        (venv / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\nversion = {version}\n")
        package = venv / "lib" / f"python{version}" / "site-packages" / "only_here"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        own = await agent.call("preflight", command="venv/bin/python -c 1", imports=["only_here", "absent"])
        assert [each["text"] for each in own["problems"]] == [f"absent is not installed for {venv}/bin/python."]
        assert "no such argument" in await agent.refusal("preflight", pyton="python")


async def test_data_that_a_config_names_and_that_is_missing_stops_all_three_before_anything_starts(
    sandbox: Sandbox,
) -> None:
    (sandbox.path / "train.py").write_text("print('epoch 1')\n")
    (sandbox.path / "config.yaml").write_text("data:\n  train_files: ./data/none.parquet\n")
    command, cwd = "python3 train.py --config config.yaml", str(sandbox.path)
    async with sandbox.agent_in_process() as agent:
        launched = await agent.refusal("launch_run", command=command, cwd=cwd)
        rehearsed = await agent.refusal("launch_run", command=command, cwd=cwd, dry_run=True)
        (problem,) = (await agent.call("preflight", command=command, cwd=cwd))["problems"]
        assert launched == rehearsed
        assert problem["text"] == f"{cwd}/config.yaml: data.train_files: there is no data file ./data/none.parquet."
        assert problem["text"] in launched
        assert (await agent.call("list_runs"))["runs"] == []
        assert not list(sandbox.path.glob("state/runs/*"))
        (sandbox.path / "data").mkdir()
        (sandbox.path / "data" / "none.parquet").touch()
        assert (await agent.end(await agent.launch(command, cwd=cwd)))["state"] == "finished"


async def test_every_line_of_a_config_with_another_hosts_path_is_named_at_once(sandbox: Sandbox) -> None:
    sandbox.store.home.create()
    here, there = sandbox.path / "lab", sandbox.path / "lab2"
    here.mkdir()
    own = f'[hosts.here]\nhostnames = ["{socket.gethostname()}"]\nroots = ["{here}"]\n'
    (sandbox.path / "state" / "hosts.toml").write_text(f'{own}[hosts.there]\nroots = ["{there}"]\n')
    (here / "train.py").write_text("print('epoch 1')\n")
    (here / "cfm.yaml").write_text(f"model: {there}/ckpt\nlr: 0.1\ndata:\n  root: {there}/data\n")
    command = "python3 train.py --config cfm.yaml"
    async with sandbox.agent_in_process() as agent:
        refused = await agent.refusal("launch_run", command=command, cwd=str(here))
        for arguments in ({"command": command}, {"paths": ["cfm.yaml"]}):
            problems = (await agent.call("preflight", cwd=str(here), **arguments))["problems"]
            assert [each["remedy"] for each in problems] == [
                f"Write `model: {here}/ckpt`.",
                f"Write `root: {here}/data`.",
            ]
            assert problems[0]["text"] in refused
