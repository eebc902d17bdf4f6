"""finish_blueprint and compare_runs as agents use them: after success, a failure, and a supervisor's death."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from mcp_server.system import processes
from tests.support.sandbox import Sandbox, until_async

pytestmark = pytest.mark.anyio

TRAINING = """
import json, sys, time
rate, ending = float(sys.argv[1]), sys.argv[2]
with open("progress.csv", "w") as file:
    file.write("step,reward\\n")
    for step in range(1, 11):
        file.write(f"{step},{step * rate}\\n")
        print(f"step {step}/10 reward {step * rate}", flush=True)
open("ckpt_10.pt", "wb").write(b"weights")
if ending == "fails":
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
json.dump({"mean_reward": 10 * rate}, open("eval_results.json", "w"))
if ending == "stays":
    open("begun", "w").close()
    time.sleep(600)
"""


async def launch(agent, sandbox: Sandbox, name: str, rate: float, ending: str) -> str:  # type: ignore[no-untyped-def]
    cwd = sandbox.path / name
    cwd.mkdir()
    (cwd / "train.py").write_text(TRAINING)
    return str(
        await agent.launch([sys.executable, "train.py", str(rate), ending], name=name, cwd=str(cwd), tags=["both"])
    )


async def test_a_good_and_a_failed_run_are_finished_and_compared(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        good = await launch(agent, sandbox, "good", 0.5, "ends")
        bad = await launch(agent, sandbox, "bad", 0.25, "fails")
        for run_id in (good, bad):
            await agent.end(run_id)
        kept = await agent.call("finish_blueprint", run_id=bad)
        assert Path(kept["results_path"]).parent == sandbox.rundir(bad).path / "results"
        out = sandbox.path / "out"
        answer = await agent.call("finish_blueprint", run_id=bad, summary="It needs less.", result_dir=str(out))
        assert (answer["status"], answer["state"]) == ("written", "failed")
        text = (out / "results.md").read_text()
        for part in ("oom_gpu", "It needs less.", "| reward | 0.25 (1) | 2.5 (10) | 2.5 (10) | max |  |", "ckpt_10.pt"):
            assert part in text
        assert json.loads((out / "finish.flag").read_text())["failure"] == "oom_gpu"
        again = await agent.call("finish_blueprint", run_id=bad, result_dir=str(out))
        assert again["files"] == answer["files"]
        better = await agent.call("finish_blueprint", run_id=good, result_dir=str(sandbox.path / "out2"))
        assert "| mean_reward | 5.0 |" in Path(better["results_path"]).read_text()
        found = await agent.call("compare_runs", tags=["both"])
        names = found["columns"].split("|")
        rows = {row.split("|")[0]: dict(zip(names, row.split("|"), strict=True)) for row in found["rows"]}
        assert rows[good]["reward last/max@step"] == "5"
        assert (rows[bad]["state"], rows[bad]["why"].split(":")[0]) == ("failed", "oom_gpu")
        assert rows[good]["eval mean_reward"] == "5"
        assert rows[bad]["checkpoint"].startswith(
            f"{sandbox.path.joinpath('bad/ckpt_10.pt').relative_to(found['root'])} "
        )
        assert found["findings"] == [f"{bad}: It needs less. | {out}/results.md", f"{good}: {better['results_path']}"]
        table = await agent.call("compare_runs", run_ids=[good, bad], markdown=True)
        assert table["markdown"].startswith("| run | state |")
        assert f"- {bad}: It needs less. | {out}/results.md" in table["markdown"]
        assert "Did you mean" in await agent.refusal("compare_runs", run_ids=[good[:-1]])


async def test_a_run_whose_supervisor_was_killed_is_finished_as_lost(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await launch(agent, sandbox, "gone", 1, "stays")
        await until_async((sandbox.path / "gone" / "begun").exists, "its start")
        out = str(sandbox.path / "out")
        assert "still running" in await agent.refusal("finish_blueprint", run_id=run_id, result_dir=out)
        os.kill(sandbox.supervisor(run_id), signal.SIGKILL)
        await until_async(lambda: sandbox.run(run_id).state == "lost", "its loss")
        answer = await agent.call("finish_blueprint", run_id=run_id, result_dir=out)
        assert answer["state"] == "lost"
        assert json.loads(Path(answer["flag_path"]).read_text())["ended_at"] is None
        assert "| mean_reward | 10.0 |" in Path(answer["results_path"]).read_text()
        for process in processes.find_by_variable("RUNWARD_RUN_ID", run_id):
            processes.send_signal(process, signal.SIGKILL)


ISAAC = """
import argparse, os, time
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
parser = argparse.ArgumentParser()
parser.add_argument("--run_name")
parser.add_argument("--num_envs", type=int)
options = parser.parse_args()
directory = f"logs/rsl_rl/cube/2026-11-22_{options.run_name}"
writer = EventFileWriter(directory)
os.mkdir(f"{directory}/params")
with open(f"{directory}/params/env.yaml", "w") as file:
    file.write(f"scene:\\n  num_envs: {options.num_envs}\\n")
for step in range(3):
    value = Summary.Value(tag="Train/mean_reward", simple_value=step * options.num_envs)
    writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=[value])))
    writer.flush()
    print(f"Learning iteration {step}/3", flush=True)
writer.close()
"""


async def test_results_have_the_configuration_that_a_simulator_wrote_beside_its_event_file(sandbox: Sandbox) -> None:
    cwd = sandbox.path / "isaac"
    cwd.mkdir()
    (cwd / "train.py").write_text(ISAAC)
    async with sandbox.agent_in_process() as agent:
        launches = [
            await agent.launch(
                [sys.executable, "train.py"], cwd=str(cwd), params={"num_envs": number, "run_name": "{run_id}"}
            )
            for number in (64, 32)
        ]
        for run_id, number in zip(launches, (64, 32), strict=True):
            assert (await agent.end(run_id))["params"] == {"num_envs": number, "run_name": run_id}
            answer = await agent.call("finish_blueprint", run_id=run_id, result_dir=str(sandbox.path / run_id))
            text = Path(answer["results_path"]).read_text()
            assert text.count("/params/env.yaml") == 1
            assert f"2026-11-22_{run_id}/params/env.yaml" in text
            assert f"num_envs: {number}" in text
