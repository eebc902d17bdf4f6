"""read_tb as agents use it: a real training run over stdio, whose output directory is not named."""

import base64
import json
import struct
import sys
from pathlib import Path

import pytest

from mcp_server.results.figures import measure
from mcp_server.scalars.run_scalars import Scalars
from tests.support.sandbox import Sandbox, until_async

pytestmark = pytest.mark.anyio

TRAINING = """
import os, sys, time
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

writer = EventFileWriter("runs/first")
for step in range(1, 101):
    told = {"Train/reward": step / 2, "loss": 1 / step}
    values = [Summary.Value(tag=tag, simple_value=value) for tag, value in told.items()]
    writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
writer.flush()
open("told", "w").close()
while not os.path.exists("go"):
    time.sleep(0.02)
values = [Summary.Value(tag="loss", simple_value=float("nan"))]
writer.add_event(Event(wall_time=time.time(), step=101, summary=Summary(value=values)))
writer.close()
"""


async def test_the_curves_of_a_run_are_found_while_it_runs_and_after_its_end(sandbox: Sandbox) -> None:
    (sandbox.path / "train.py").write_text(TRAINING)
    async with sandbox.agent_in_process() as agent:
        assert "No scalars seen" in await agent.refusal("read_tb")
        run_id = await agent.launch([sys.executable, "train.py"], cwd=str(sandbox.path))
        await until_async((sandbox.path / "told").exists, "the first hundred steps")
        answer = await agent.call("read_tb", run_id=run_id)
        assert (answer["run_id"], answer["source"]) == (run_id, str(sandbox.path / "runs" / "first"))
        assert answer["step"] == 100
        assert answer["tags"][0].startswith("Train/reward 50 ↑50 0.5@1 50@100 0")
        (sandbox.path / "go").touch()
        await agent.end(run_id)
    async with sandbox.agent_in_process() as another:
        answer = await another.call("read_tb", tags="loss", points=3)
        assert answer["run_id"] == run_id
        loss = answer["values"]["loss"]
        assert (loss["last"], loss["nan"], loss["first_nan_step"], loss["count"]) == ("nan", 1, 101, 101)
        assert loss["shape"].endswith("x")
        printed = json.loads(sandbox.runward("tb", run_id, "--json").stdout)
        assert printed["run_id"] == run_id


@pytest.mark.slow
async def test_a_picture_is_added_to_the_answer(sandbox: Sandbox) -> None:
    rows = "".join(f"{step},{1 / (step + 1)},{step}\n" for step in range(500))
    (sandbox.path / "progress.csv").write_text(f"step,loss,reward\n{rows}")
    pictures = sandbox.path / "state" / "pictures"
    pictures.mkdir(mode=0o700, parents=True)
    kept = [*(f"20200101-000000-{n:04x}.png" for n in range(60)), *(f"photo{n}.png" for n in range(60))]
    for name in kept:
        (pictures / name).touch()
    async with sandbox.agent_in_process() as agent:
        asked = {"logdir": str(sandbox.path / "progress.csv"), "tags": ["loss", "reward"], "plot": True}
        result = await agent.client.call_tool("read_tb", asked)
        assert not result.is_error
        text, image = result.content
        assert text.type == "text"
        assert image.type == "image"
        assert json.loads(text.text) == result.structured_content
        png = base64.b64decode(image.data)
        assert image.mime_type == "image/png"
        assert struct.unpack(">II", png[16:24]) == (900, 500)
        assert len(png) <= 200_000
        assert Path(result.structured_content["picture"]).read_bytes() == png
    left = [path.name for path in pictures.iterdir()]
    assert (len(left), sum(name.startswith("photo") for name in left)) == (110, 60), "50 of its own, and all others"
    drawn = sandbox.runward("tb", "progress.csv", "--plot", "curves.png")
    assert drawn.returncode == 0, drawn.stderr
    assert "reward" in drawn.stdout
    assert (sandbox.path / "curves.png").read_bytes().startswith(b"\x89PNG")


async def test_a_refusal_on_the_command_line_is_a_sentence(sandbox: Sandbox) -> None:
    done = sandbox.runward("tb", "./nowhere")
    assert done.returncode == 2
    assert done.stderr.startswith("runward: logdir: there is no ")


async def test_printed_numbers_stand_in_for_files_that_cannot_be_read_and_say_where_they_are_from(
    sandbox: Sandbox,
) -> None:
    code = "import pathlib; d = pathlib.Path('wandb/offline-run-20261122_202854-orxsddp0'); d.mkdir(parents=True); "
    code += "(d / 'run-orxsddp0.wandb').write_bytes(bytes.fromhex('3a585959 e1be00') * 9); "
    code += "[print(f'step {n}/9 loss {1 / n}', flush=True) for n in range(1, 10)]"
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch([sys.executable, "-c", code], cwd=str(sandbox.path))
        await agent.end(run_id)
        answer = await agent.call("read_tb", run_id=run_id, tags="loss")
        assert answer["values"]["loss"]["count"] == 9
        assert answer["source"] == str(sandbox.rundir(run_id).log(1))
        assert "does not begin like wandb's files" in answer["notes"][0]


SLOWLY_NOTED = """
import time
for step in range(1, 401):
    print(f"step {step}/400 - train/loss:{1 / step:.4f} - critic/score/mean:{step / 400:.4f}", flush=True)
    time.sleep(0.02 if step < 340 else 0.5)
"""


@pytest.mark.slow
async def test_the_row_beside_a_met_condition_is_of_its_moment(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch([sys.executable, "-c", SLOWLY_NOTED], cwd=str(sandbox.path))
        answer = await agent.call("wait_run", run_ids=run_id, until="critic/score/mean >= 0.8")
        (row,) = answer["runs"]
        assert row["state"] == "running"
        assert row["step"] >= int(answer["met"].rpartition(" ")[2]) >= 320, answer
        assert row["metrics"]["reward"] == pytest.approx(row["step"] / 400, abs=0.001)


PRINTING = """
for step in range(1, 31):
    print(f"step {step}/30 - train/loss:{1 / step:.4f} - critic/score/mean:{step / 30:.4f}", flush=True)
"""


@pytest.mark.parametrize("tee", ["| tee training.log", "2>&1 | tee $LOG_DIR/training.log"])
async def test_all_answers_find_what_a_run_prints_beside_its_copy_by_tee(sandbox: Sandbox, tee: str) -> None:
    (sandbox.path / "train.py").write_text(PRINTING)
    (sandbox.path / "logs").mkdir()
    command = f"export LOG_DIR=logs; {sys.executable} train.py {tee}"
    tag = "critic/score/mean"
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(command, cwd=str(sandbox.path))
        status = await agent.end(run_id)
        assert (status["state"], status["metrics"]["reward"]) == ("finished", 1)
        for name in (tag, "reward", "Critic/Score/Mean"):
            values = (await agent.call("read_tb", run_id=run_id, tags=[name]))["values"]
            assert list(values) == [tag], name
            assert (values[tag]["last"], values[tag]["last_step"]) == (1, 30)
            table = await agent.call("compare_runs", run_ids=[run_id], metrics=[name])
            row = dict(zip(table["columns"].split("|"), table["rows"][0].split("|"), strict=True))
            assert next(value for column, value in row.items() if "mean" in column).startswith("1"), table
        done = await agent.call("finish_blueprint", run_id=run_id, result_dir=str(sandbox.path / "out"))
        assert f"{tag} | 0.0333 (1) | 1 (30)" in Path(done["results_path"]).read_text()
        met = await agent.call("wait_run", run_ids=run_id, until=f"{tag} >= 0.4")
        assert met["reason"] == "condition_met"
        assert met["met"].startswith(f"{tag} = 1")
    scalars = Scalars(sandbox.store.home, sandbox.store)
    assert measure(sandbox.run(run_id), sandbox.store, scalars, tag, "max").value == 1
