"""However a run ends, every answer has the step and the figures that it printed last, also of a bar without an end."""

import os
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcp_server.record.state import Run
from mcp_server.store import freshness
from mcp_server.store.run_store import RunStore
from mcp_server.system import processes
from tests.support.sandbox import Agent, Sandbox, until_async

pytestmark = pytest.mark.anyio

LAST = 12
# argv: how it prints, how it ends. The updates of a bar end with the carriage return of the next: the last has none.
PROGRAM = r"""
import pathlib, sys, time
for n in range(13):
    if sys.argv[1] == "lines":
        text = f"step {n}/50 loss {1 - n / 100:.2f}\n" if n else ""
    else:
        text = f"\rEpoch 1: {n * 2}%|####      | {n}/50 [00:{n:02}<00:10,  1.00it/s, loss={1 - n / 100:.2f}]"
    sys.stdout.write(text)
    sys.stdout.flush()
    time.sleep(0.02)
pathlib.Path(f"printed-{sys.argv[2]}").touch()
if sys.argv[2] in ("finished", "failed"):
    sys.exit(3 * (sys.argv[2] == "failed"))
time.sleep(600)
"""
ENDS: dict[str, dict[str, Any]] = {
    "finished": {},
    "failed": {},
    "killed": {},
    "shot": {},  # somebody kills the command
    "timed_out": {"time_limit_s": 6},
    "stopped": {"recovery": {"stall": "stop"}, "stall_timeout_s": 2},
    "lost": {},
}
STATES = {"shot": "failed", "stopped": "killed"}


@pytest.mark.slow
@pytest.mark.parametrize("style", ["lines", "bar"])
async def test_all_answers_agree_about_the_last_step_after_every_end(sandbox: Sandbox, style: str) -> None:
    (sandbox.path / "train.py").write_text(PROGRAM)
    async with sandbox.agent_in_process() as agent:
        run_ids = {}
        for end, more in ENDS.items():
            command = [sys.executable, "train.py", style, end]
            run_ids[end] = await agent.launch(command, name=end, cwd=str(sandbox.path), **more)
        await until_async(lambda: all((sandbox.path / f"printed-{end}").exists() for end in ENDS), "the last updates")
        await agent.kill(run_ids["killed"])
        os.kill(sandbox.run(run_ids["shot"]).at_start["pid"], signal.SIGKILL)
        lost = run_ids["lost"]
        await until_async(lambda: sandbox.run(lost).progress.get("step") == LAST, "the record of the last step")
        os.kill(sandbox.supervisor(lost), signal.SIGKILL)
        await until_async(lambda: sandbox.run(lost).state == "lost", "its loss")
        for process in processes.find_by_variable("RUNWARD_RUN_ID", lost):
            processes.send_signal(process, signal.SIGKILL)
        for end, run_id in run_ids.items():
            status = await agent.end(run_id)
            assert status["state"] == STATES.get(end, end), status
            if end != "lost":
                await check(agent, run_id, status, sandbox.path / "out" / end)
            else:
                await check_lost(agent, run_id, status, sandbox.path / "out" / end)


async def check(agent: Agent, run_id: str, status: dict[str, Any], out: Path) -> None:
    assert status["step"] == LAST, status
    assert status.get("metrics", {}).get("loss", 0.88) == 0.88
    listed = next(one for one in (await agent.call("list_runs"))["runs"] if one["run_id"] == run_id)
    assert listed.get("step", LAST) == LAST
    row = await compared(agent, run_id)
    assert row["step"] == str(LAST)
    assert row["loss last/min@step"].startswith("0.88"), row
    assert f"| 0.88 ({LAST}) |" in await results(agent, run_id, out)


async def check_lost(agent: Agent, run_id: str, status: dict[str, Any], out: Path) -> None:
    assert re.search(rf"Its last known step: {LAST}, noted 20\d\d-.*Z\.$", status["reason"])
    assert status.keys().isdisjoint({"step", "metrics", "eta_s"})
    assert (await compared(agent, run_id))["step"].startswith(f"{LAST}, noted 20")
    text = await results(agent, run_id, out)
    assert f"at step {LAST}, noted 20" in text
    assert "The run is lost: these are the last values that are known." in text


async def compared(agent: Agent, run_id: str) -> dict[str, str]:
    table = await agent.call("compare_runs", run_ids=[run_id])
    return dict(zip(table["columns"].split("|"), table["rows"][0].split("|"), strict=True))


async def results(agent: Agent, run_id: str, out: Path) -> str:
    answer = await agent.call("finish_blueprint", run_id=run_id, result_dir=str(out))
    return Path(answer["results_path"]).read_text()


async def test_every_answer_about_a_live_run_is_of_the_moment_of_the_answer(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freshness, "_WITHIN_S", 60.0)  # a loaded machine is no reason to answer with an old step
    command = (
        "for i in 1 2 3; do echo step $i/90 loss: 1; done; until [ -e go ]; do sleep 0.02; done; "
        "for i in $(seq 4 60); do echo step $i/90 loss: 1; done; echo over; sleep 600"
    )
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(command)
        await until_async(lambda: sandbox.run(run_id).progress.get("step") == 3, "the first progress")
        (sandbox.path / "go").touch()
        log = sandbox.rundir(run_id).log(1)
        await until_async(lambda: log.read_text().endswith("over\n"), "the output")
        (row,) = (await agent.call("list_runs", state="live"))["runs"]
        assert row["step"] == 60
        (status,) = (await agent.call("wait_run", run_ids=run_id, timeout_s=0))["runs"]
        assert status["step"] == 60


@pytest.mark.slow
async def test_a_condition_that_is_met_and_the_row_beside_it_are_of_one_moment(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent:
        run_id = await agent.launch("for i in $(seq 4000); do echo step $i/4000 loss: 1; sleep 0.01; done")
        await until_async(lambda: "step" in sandbox.run(run_id).progress, "the first progress")
        for until, name in (("step >= 100", "step"), ("10%", "progress")):
            answer = await agent.call("wait_run", run_ids=run_id, until=until, timeout_s=60)
            assert answer["reason"] == "condition_met", answer
            at = answer["met"].rpartition(" ")[2]
            assert answer["met"].startswith(f"{name} = ")
            assert answer["runs"][0]["step"] == int(at)


# What they print, and what is true at their end: step, total, metrics. The first is what a real command plans.
PRINTED: dict[str, tuple[str, list[str], tuple[int, int | None], dict[str, float]]] = {
    "planned": (
        "from sys import argv\nfor n in range(0, 61, 20):\n"
        "    print(f'step {n}: train loss 2.{n}, val loss 3.{n}\\niter {n}: loss 1.{n}, time 9.00ms', flush=True)",
        ["--max_iters=60", "--eval_interval=20"],
        (60, 60),
        {"loss": 1.6, "val_loss": 3.6},
    ),
    "rich": (
        "for n in range(0, 20001, 2000):\n"
        "    print(f'\\r\\x1b[2K {n // 200}% ━━━━━━━╺━━ {n:,}/20,000  [ 0:00:04 < 0:00:10 , 4,200 it/s ]', end='')",
        [],
        (20_000, 20_000),
        {},
    ),
    "evaluated": (
        "for e in (1, 2):\n    print(f'Epoch {e}/2')\n    for n in (1, 60, 100):\n"
        "        print(f'\\r{n}/100 ━━━━━━━━━━━━━━━━━━━━ 1s 9ms/step - loss: {1 - e / 4}', end='')\n    print()\n"
        "for n in (1, 200, 313):\n    print(f'\\r{n}/313 ━━━━━━━━━━━━━━━━━━━━ 1s 9ms/step - loss: 0.9', end='')",
        [],
        (200, 200),
        {"loss": 0.5, "val_loss": 0.9},
    ),
}


async def test_the_step_and_the_total_of_an_unchanged_program_are_its_training_s(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_ids = {}
        for name, (program, arguments, _, _) in PRINTED.items():
            (sandbox.path / f"{name}.py").write_text(program)
            command = [sys.executable, f"{name}.py", *arguments]
            run_ids[name] = await agent.launch(command, name=name, cwd=str(sandbox.path))
        for name, (_, _, place, metrics) in PRINTED.items():
            status = await agent.end(run_ids[name])
            assert (status["step"], status["total_steps"]) == place, name
            assert status.get("round", 1) == 1
            assert {metric: status["metrics"][metric] for metric in metrics} == metrics, name
        met = await agent.call("wait_run", run_ids=run_ids["planned"], until="train loss < 2.5", timeout_s=5)
        assert "step 40" in str(met), met


async def test_nobody_waits_for_the_progress_of_a_run_that_has_printed_nothing(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each list of runs took a quarter of a second longer, and woke every silent supervisor."""
    asked: list[str] = []

    def ask(_: RunStore, run: Run) -> bool:
        asked.append(run.run_id)
        return False

    monkeypatch.setattr(freshness, "_ask", ask)
    async with sandbox.agent() as agent:
        silent, other = await agent.launch("sleep 600"), await agent.launch("echo step 1/5; sleep 600")
        await until_async(lambda: sandbox.rundir(other).log(1).stat().st_size, "its output")
        freshness.refresh(sandbox.store, [replace(sandbox.run(each), progress={}) for each in (silent, other)])
    assert asked == [other]
