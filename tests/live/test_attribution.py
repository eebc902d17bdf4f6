"""What is said of a run is that run's: eight runs beside each other, while they run and after their ends."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mcp_server.record.written_files import read_outputs
from tests.support.neighbours import HABITS, HALF, KINDS, STEPLESS, STEPS, Neighbours
from tests.support.sandbox import Agent, Sandbox, text_of, until_async
from tests.support.scalar_runs import write

pytestmark = pytest.mark.anyio


def asking(agent: Agent) -> Any:
    async def try_call(tool: str, **arguments: Any) -> str:
        result = await agent.client.call_tool(tool, arguments, read_timeout_seconds=90)
        return text_of(result)

    return try_call


@pytest.mark.slow
async def test_no_answer_about_a_run_has_a_figure_of_another(sandbox: Sandbox) -> None:
    directory = sandbox.path / "project"
    directory.mkdir()
    async with sandbox.agent_in_process() as agent:
        beside = Neighbours(directory, agent.call)
        await beside.launch()
        await until_async(beside.are_ready, "half of all runs")
        await beside.ask(asking(agent))
        assert beside.foreign == []
        assert beside.own > 0
        for number in (1, 2, 3, 4):
            waited = await agent.call("wait_run", run_ids=beside.run_ids[number], until=f"reward > {100 * number + 5}")
            assert f"reward = {100 * number + HALF} " in waited["met"]
        beside.go()
        for run_id in beside.run_ids.values():
            await agent.end(run_id)
    async with sandbox.agent_in_process() as another:  # which has seen nothing
        after = Neighbours(directory, another.call, beside.run_ids)
        await after.ask(asking(another))
        await after.finish(sandbox.path / "results")
        assert after.foreign == []
        for number, kind in enumerate(KINDS, 1):
            answer = await asking(another)("read_tb", run_id=after.run_ids[number], tags=["reward"])
            if kind in STEPLESS:
                assert "No scalars seen" in answer
            elif kind != "lines":
                assert f"{100 * number + STEPS}" in answer, (kind, answer)
    await check_without_records(sandbox, directory, beside.run_ids)


@pytest.mark.slow
async def test_nor_has_one_about_runs_with_the_file_habits_of_frameworks(sandbox: Sandbox) -> None:
    directory = sandbox.path / "project"
    directory.mkdir()
    async with sandbox.agent_in_process() as agent:
        beside = Neighbours(directory, agent.call)
        await beside.launch_habits()
        await until_async(beside.are_ready, "half of all runs")
        await beside.ask(asking(agent))
        beside.go()
        for run_id in beside.run_ids.values():
            await agent.end(run_id)
        after = Neighbours(directory, agent.call, beside.run_ids, kinds=HABITS)
        await after.ask(asking(agent))
        await after.finish(sandbox.path / "results")
        assert (beside.foreign, after.foreign) == ([], [])
        asked = {what for _, what in after.answered}
        assert after.answered == {(number, what) for number in beside.run_ids for what in asked}
        assert len(asked) >= 3, "each has its reward in read_tb, compare_runs and results.md"


async def check_without_records(sandbox: Sandbox, directory: Path, run_ids: dict[int, str]) -> None:
    """Look at the same runs as former supervisors left them: more is uncertain, and nothing is another's."""
    outputs = read_outputs(sandbox.rundir(run_ids[3]).outputs(1))
    assert outputs is not None
    assert len(outputs.pids) > 1, "the child is one of its processes"
    for run_id in run_ids.values():
        for path in sandbox.rundir(run_id).path.glob("attempts/*/outputs.json"):
            path.unlink()
    async with sandbox.agent_in_process() as agent:
        former = Neighbours(directory, agent.call, run_ids)
        await former.ask(asking(agent))
        await former.finish(sandbox.path / "former")
        assert former.foreign == []
        table = await agent.call("compare_runs", run_ids=list(run_ids.values()))
        assert any("uncertain which run" in note for note in table["notes"])


# A training that a person starts by hand: files that stay open, and files that are open for an instant.
BY_HAND = """
import json, pathlib, sys, time
table = open("progress.csv", "w")
table.write("step,reward\\n7,999\\n")
table.flush()
pathlib.Path("eval_results.json").write_text(json.dumps({"success": 999}))
pathlib.Path("checkpoints").mkdir()
pathlib.Path("checkpoints/step_999.pt").write_bytes(b"w" * 50)
pathlib.Path("begun").touch()
sys.stdin.readline()
"""
MANAGED = """
import pathlib, time
while not pathlib.Path("begun").exists():
    time.sleep(0.01)
table = open("own.csv", "w")
table.write("step,reward\\n1,5\\n2,6\\n")
table.flush()
for step in (1, 2):
    print(f"step {step}/2 loss 0.5", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.01)
"""


async def test_what_a_training_started_by_hand_writes_is_not_the_runs(sandbox: Sandbox) -> None:
    place = sandbox.path / "place"
    place.mkdir()
    (place / "hand.py").write_text(BY_HAND)
    (place / "train.py").write_text(MANAGED)
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch([sys.executable, "train.py"], cwd=str(place))
        await until_async(lambda: sandbox.run(run_id).started_at, "its start")
        hand = subprocess.Popen([sys.executable, "hand.py"], cwd=place, stdin=subprocess.PIPE)
        try:
            await until_async(lambda: sandbox.run(run_id).made_a_step, "its steps")
            await until_async(lambda: _knows_outsider(sandbox, run_id, hand.pid), "the record of the other program")
            answers = [await everything(agent, run_id)]
            (place / "go").touch()
            await agent.end(run_id)
            answers.append(await everything(agent, run_id))
        finally:
            hand.communicate(timeout=60)
        out = await agent.call("finish_blueprint", run_id=run_id, result_dir=str(sandbox.path / "out"))
        answers.append(Path(out["results_path"]).read_text().partition("## Configuration")[0])
        for answer in answers:
            assert not re.search(r"\b999\b", answer.partition("Left out")[0]), answer
        table = await agent.call("compare_runs", run_ids=[run_id])
        assert any("uncertain which run" in note for note in table["notes"])


def _knows_outsider(sandbox: Sandbox, run_id: str, pid: int) -> bool:
    outputs = read_outputs(sandbox.rundir(run_id).outputs(1))
    return outputs is not None and any(one.pid == pid and one.files for one in outputs.outsiders)


async def everything(agent: Agent, run_id: str) -> str:
    """Return all that is said of a run's figures."""
    curve = await asking(agent)("read_tb", run_id=run_id, tags=["*"])
    return f"{curve}\n{await agent.call('compare_runs', run_ids=[run_id])}"


async def test_a_person_says_whose_files_they_are_and_every_later_answer_knows(sandbox: Sandbox) -> None:
    code = "import time; print('step 1/2 loss 5', flush=True); print('step 2/2 loss 4', flush=True); time.sleep(0.1)"
    first, second = ({"command": [sys.executable, "-c", code], "cwd": str(sandbox.path)} for _ in range(2))
    async with sandbox.agent_in_process() as agent:
        runs = [(await agent.call("launch_run", **one))["run_id"] for one in (first, second)]
        for run_id in runs:
            await agent.end(run_id)
        write(sandbox.path / "late" / "tb", 4, {"reward": lambda step: 40.0 + step})
        (sandbox.path / "late" / "eval_results.json").write_text('{"success": 0.5}')
        events = sandbox.rundir(runs[0]).events.read_bytes()
        wrong = await agent.refusal(
            "finish_blueprint", run_id=runs[0], result_dir=str(sandbox.path / "r"), results=["no"]
        )
        assert "does not exist" in wrong
        stated = {"tensorboard": "late/tb", "results": ["late/eval_results.json"]}
        answer = await agent.call("finish_blueprint", run_id=runs[0], result_dir=str(sandbox.path / "r"), **stated)
        assert "| reward | 40 (0) | 43 (3) |" in Path(answer["results_path"]).read_text()
        assert sandbox.rundir(runs[0]).events.read_bytes() == events, "its supervisor alone writes them"
    async with sandbox.agent_in_process() as another:
        curve = await another.call("read_tb", run_id=runs[0], tags=["reward"])
        assert curve["values"]["reward"]["last"] == 43
        table = await another.call("compare_runs", run_ids=runs)
        rows = [dict(zip(table["columns"].split("|"), row.split("|"), strict=True)) for row in table["rows"]]
        named = [name for name in rows[0] if "success" in name]
        assert [[row[name].split("@")[0] for name in named] for row in rows] == [["0.5"], [""]]


# Its figures go where a word of the command says, in files that are open for an instant.
ELSEWHERE = """
import json, pathlib, sys
out, number = pathlib.Path(sys.argv[1]), int(sys.argv[2])
out.mkdir(parents=True, exist_ok=True)
print("step 1/1 loss 0.5", flush=True)
(out / "eval_results.json").write_text(json.dumps({"success": number}))
(out / "model_step_7.pt").write_bytes(b"w" * 50)
"""


async def test_figures_in_a_directory_that_the_command_mentions_are_found_or_said_to_be_left_out(
    sandbox: Sandbox,
) -> None:
    place, far = sandbox.path / "place", sandbox.path / "far"
    place.mkdir()
    (far / "used").mkdir(parents=True)
    (far / "used" / "eval_former.json").write_text('{"success": 999}')
    os.utime(far / "used" / "eval_former.json", (1, 1))
    (place / "train.py").write_text(ELSEWHERE)
    async with sandbox.agent_in_process() as agent:
        commands: list[str | list[str]] = [
            [sys.executable, "train.py", str(far / "new" / "a"), "111"],
            [sys.executable, "train.py", "../far/new/b", "222"],
            f"bash -c '{sys.executable} train.py {far}/used 333'",
        ]
        run_ids = [await agent.launch(command, cwd=str(place)) for command in commands]
        for run_id in run_ids:
            await agent.end(run_id)
        tables = [str(await agent.call("compare_runs", run_ids=[run_id])) for run_id in run_ids]
        stated = {"results": [str(far / "used" / "eval_results.json")], "result_dir": str(sandbox.path / "results")}
        await agent.call("finish_blueprint", run_id=run_ids[2], **stated)
        corrected = str(await agent.call("compare_runs", run_ids=[run_ids[2]]))
    texts = [table.replace(str(sandbox.path), "") for table in (*tables, corrected)]  # its number may hold a figure
    own = [{figure for figure in ("111", "222", "333", "999") if figure in text} for text in texts]
    assert own[:2] == [{"111"}, {"222"}]
    assert all("model_step_7.pt" in table for table in tables[:2])
    # Seen while it was open, or not: never the former figure, and never silence.
    assert own[2] == {"333"} or "uncertain which run wrote them: eval_results.json" in tables[2]
    assert "999" not in own[2]
    assert own[3] == {"333"}


# Writes one event file into --logdir, and waits at its end for a file. A first attempt of odd length fails.
SHARED = """
import os, pathlib, sys, time
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
_, _, logs, plus, last, go = sys.argv
attempt = int(os.environ["RUNWARD_ATTEMPT"])
writer = EventFileWriter(logs)
for step in range(1, int(last) + 3 - 2 * attempt):
    value = Summary.Value(tag="reward", simple_value=float(plus) + step)
    writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=[value])))
    writer.flush()
    print(f"step {step}/9 loss 0.5", flush=True)
    time.sleep(0.01)
while not pathlib.Path(go).exists():
    time.sleep(0.01)
if int(last) % 2 and attempt == 1:
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
"""


@pytest.mark.slow
async def test_runs_that_share_a_log_directory_are_told_apart_and_a_retry_is_a_restart(sandbox: Sandbox) -> None:
    (sandbox.path / "train.py").write_text(SHARED)

    def command(*words: object, to: str = "same") -> list[str]:
        return [sys.executable, "train.py", "--logdir", str(sandbox.path / to), *map(str, words)]

    def last(answer: dict[str, Any]) -> list[str]:
        return [cell.split()[0] for cell in answer["tags"][0].split(" | ")[1:]]

    async with sandbox.agent_in_process() as agent:
        (sandbox.path / "now").touch()
        one = await agent.launch(command(100, 8, "now"), cwd=str(sandbox.path), name="one")
        await agent.end(one)
        two, three = [
            await agent.launch(command(plus, steps, "go"), cwd=str(sandbox.path), name=name)
            for name, plus, steps in (("two", 200, 6), ("three", 300, 4))
        ]
        for run_id, steps in ((two, 6), (three, 4)):
            await agent.call("wait_run", run_ids=run_id, until=f"step >= {steps}", timeout_s=60)
        while_live = await agent.call("read_tb", logdir=str(sandbox.path / "same"))
        (sandbox.path / "go").touch()
        for run_id in (two, three):
            await agent.end(run_id)
        after = await agent.call("read_tb", logdir=str(sandbox.path / "same"))
        for answer in (while_live, after):
            assert dict(zip(answer["runs"], last(answer), strict=True)) == {one: "108@8", two: "206@6", three: "304@4"}
            assert not any("Restarted" in note for note in answer["notes"])
        alone = await agent.call("read_tb", run_id=two, tags=["reward"])
        assert (alone["values"]["reward"]["count"], alone.get("notes")) == (6, None)
        table = await agent.call("compare_runs", run_ids=[one, two, three], metrics=["reward"])
        assert ["108" in table["rows"][0], "206" in table["rows"][1], "304" in table["rows"][2]] == [True] * 3, table
        again = await agent.launch(
            command(400, 5, "now", to="again"),
            cwd=str(sandbox.path),
            recovery={"oom_gpu": {"do": "retry", "wait_s": 0}},
        )
        assert (await agent.end(again))["attempt"] == 2
        for place in ({"run_id": again}, {"logdir": str(sandbox.path / "again")}):
            curve = await agent.call("read_tb", **place, tags=["reward"])
            assert (curve["values"]["reward"]["last"], curve["values"]["reward"]["restarts"]) == (403, [1])
            assert curve["notes"] == ["Restarted at step 1: later points replace earlier ones from there on."]
