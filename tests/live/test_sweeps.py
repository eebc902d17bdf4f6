"""Sweeps through a real client: real conductors, runs, deaths and stops."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import socket
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_server.record.run_directory import now, write_json
from mcp_server.record.sweeps.sweep_spec import Cell
from mcp_server.record.sweeps.sweep_state import Sweep
from mcp_server.runs.stop.stop_run import stop_run
from mcp_server.store.file_watch import FileWatch
from mcp_server.sweeps.conducting import PROGRAM, ensure_conductor
from mcp_server.sweeps.conductor.conductor import REAPED, conduct
from mcp_server.system import processes
from tests.support.fake_nvml import machine
from tests.support.sandbox import Agent, Sandbox, until, until_async
from tests.support.sshd import NAME, FarHost, needs_sshd
from tests.support.sweeps import write_sweep
from tests.support.task_client import TASKS, TaskClient

pytestmark = pytest.mark.anyio

TRAIN = """
import argparse, os, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.0)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--out")
arguments = parser.parse_args()
boost = float(os.environ.get("BOOST", 0))
for step in range(1, arguments.steps + 1):
    print(f"step {step}/{arguments.steps} reward {boost + arguments.lr * 100 + arguments.seed + step:.3f}", flush=True)
    time.sleep(0.02)
while (gate := os.environ.get("GATE")) and not os.path.exists(gate):
    time.sleep(0.02)
if arguments.seed == 3:
    raise ValueError("bad seed")
"""


def script(sandbox: Sandbox) -> dict[str, str]:
    path = sandbox.path / "train.py"
    path.write_text(TRAIN)
    return {"command": f"python3 {path}", "cwd": str(sandbox.path)}


def observe(sandbox: Sandbox, sweep_id: str) -> Sweep:
    return sandbox.store.sweeps.observe(sweep_id)


def conductor(sandbox: Sandbox) -> int:
    """The process number of the living conductor."""

    def find() -> int | None:
        shown = (p for p in processes.list_processes() if processes.command_words(p.pid)[:1] == ["runward-conductor"])
        return next((p.pid for p in shown if p in sandbox.own_processes()), None)

    return int(until(find, "a conductor"))


def list_conductings(sandbox: Sandbox, sweep_id: str) -> list[Any]:
    return [event for event in observe(sandbox, sweep_id).events if event["kind"] == "conducting"]


async def to_end(agent: Agent, sweep_id: str) -> list[dict[str, Any]]:
    """Wait until the sweep has ended; return every answer."""
    answers: list[dict[str, Any]] = []
    while not answers or answers[-1]["reason"] != "ended":
        answers.append(await agent.call("wait_run", run_ids=sweep_id, until="decision", timeout_s=60))
        assert answers[-1]["reason"] != "heartbeat", answers[-1]
    return answers


def read_on_a_terminal(sandbox: Sandbox, sweep: dict[str, Any]) -> None:
    sweep_id = sweep["sweep_id"]
    noted = sandbox.runward("note", "night/lr0.1-seed3", "discard", "bad", "seed")
    assert noted.returncode == 0, noted.stderr
    assert "has no cell 'lr9'" in sandbox.runward("note", "night/lr9", "keep").stderr
    assert "\tdiscard: bad seed\n" in Path(sweep["sweep_log"]).with_name("results.tsv").read_text()
    assert sandbox.runward("wait", "night").returncode == 1, "two cells failed"
    (row,) = json.loads(sandbox.runward("sweep", "--json").stdout)["sweeps"]
    assert (row["sweep_id"], row["done"], row["failed"], row["best"]["cell"]) == (sweep_id, 6, 2, "lr0.2-seed2")
    shown = sandbox.runward("sweep", "night").stdout
    assert "24.5±0.71" in shown
    assert "lr0.1-seed3: python_error: ValueError: bad seed" in shown
    assert json.loads(sandbox.runward("sweep", "night", "--json").stdout)["settings"][0]["cell"] == "lr0.2-seed2"
    assert f"{sweep_id}  finished  6/6" in sandbox.runward("sweep").stdout


@pytest.mark.slow
async def test_a_grid_runs_to_its_end_and_says_what_is_best_and_what_failed(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent:
        arguments: dict[str, Any] = {
            "name": "night",
            "common": script(sandbox),
            "grid": {"lr": [0.1, 0.2], "seed": [1, 2, 3]},
            "metric": "reward",
            "max_parallel": 3,
        }
        plan = await agent.call("launch_sweep", dry_run=True, **arguments)
        assert plan["cells"] == {"total": 6}
        assert plan["plan"][1].endswith("train.py --lr 0.1 --seed 2")
        assert not (sandbox.path / "state" / "sweeps").exists()
        sweep = await agent.call("launch_sweep", **arguments)
        sweep_id = sweep["sweep_id"]
        again = await agent.call("launch_sweep", **arguments)
        assert (again["sweep_id"], "goes on" in again["next_step"]) == (sweep_id, True)
        answers = await to_end(agent, sweep_id)
        assert any(answer["waited_s"] > 0 for answer in answers)
        status = answers[-1]["sweep"]
        assert (status["state"], status["cells"]) == ("finished", {"total": 6, "failed": 2, "finished": 4})
        best = status["best"]
        assert (best["cell"], best["value"], best["mean"], best["n"]) == ("lr0.2-seed2", 25, 24.5, 2)
        assert {cell["kind"] for cell in status["failed"]} == {"python_error"}
        assert {cell["tail"][-1] for cell in status["failed"]} == {"ValueError: bad seed"}
        assert all(any("step 3/3 reward" in line for line in cell["tail"]) for cell in status["failed"])
        assert "launch_run" not in json.dumps(status)
        assert f'launch_sweep(name="{sweep_id}", resume="continue") starts failed cells again' in status["hint"]
        log = Path(sweep["sweep_log"]).read_text()
        assert "State: finished; 6 cells: 2 failed, 4 finished" in log
        assert "| 5 | 1 | lr0.2-seed2 | 0.2 | 2 | finished | 3 |" in log
        assert "ValueError: bad seed" in log
        assert "ValueError: bad seed" in await agent.text("read_log", run_id=sweep_id)
        other = {**arguments, "grid": {"lr": [0.1]}}
        assert "another plan" not in (await agent.call("launch_sweep", dry_run=True, **other))["next_step"]
        table = await agent.call("compare_runs", sweep="night", metrics=["reward"])
        assert await agent.call("compare_runs", run_ids=["night"], metrics=["reward"]) == table
        other = await agent.call("compare_runs", sweep="night", metrics=["mean_rewards"])
        assert [note for note in other["notes"] if "No metric 'mean_rewards' in these runs. Near: " in note]
        assert (table["columns"], table["rows"][0]) == (
            "lr|reward (last) mean±sd|n|last@step|best mean±sd|cell|state",
            "0.2|24.5±0.71|2|25@3|24.5±0.71|lr0.2-seed2|1 failed python_error 26@3",
        )
        listed = await agent.call("list_runs", sweep="night", state="failed")
        assert {(run["sweep"], run["cell"]) for run in listed["runs"]} == {
            (sweep_id, "lr0.1-seed3"),
            (sweep_id, "lr0.2-seed3"),
        }
        page = await agent.call("list_runs", sweep=sweep_id, limit=2)
        assert (page["total"], len(page["runs"]), "4 older" in page["more"]) == (6, 2, True)
        (line,) = (await agent.call("list_runs"))["sweeps"]
        best = "24.5±0.71 (n 2) by lr0.2-seed2; against lr0.1-seed2 14.5±0.71 (n 2), Welch t 14.1, df 2, p 0.005"
        assert line == f"{sweep_id} finished: 6 cells, 2 failed, 4 finished; best {best}"
        for tool in ("list_runs", "compare_runs"):
            assert "Sweep not found" in await agent.refusal(tool, sweep="nigth")
        noted = await agent.call("launch_sweep", name="night", notes={"lr0.2-seed2": "keep: the best"})
        assert (noted["sweep_id"], noted["state"]) == (sweep_id, "finished")
        assert "keep: the best" in Path(sweep["sweep_log"]).read_text()
        assert "-lr0-2-seed2-" in str(await agent.call("find_runs", query="verdict:keep"))
        assert "no cell 'lr0.2'" in await agent.refusal("launch_sweep", name="night", notes={"lr0.2": "keep"})
        refused = await agent.refusal("launch_sweep", notes={"lr0.2-seed2": "x"}, **arguments)
        assert "Pass name and notes alone" in refused
        assert (await agent.call("compare_runs", sweep="night"))["rows"][0].endswith("|lr0.2-seed2: keep: the best")
    read_on_a_terminal(sandbox, sweep)


CURVES = """
import sys, time, pathlib
name = sys.argv[sys.argv.index("--curve") + 1]
values = {"peak": [1, 9, 2], "late": [1, 2, 5], "nan": [1, 8, float("nan")], "cut": [7]}[name]
for step, value in enumerate(values, 1):
    print(f"step {step}/3 score {value}", flush=True)
if name == "cut":
    time.sleep(600)
"""


@pytest.mark.slow
async def test_the_last_lines_of_all_failed_cells_come_in_one_answer(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent:
        grid = {"lr": [0.1, 0.2], "seed": [1, 3]}
        sweep = await agent.call("launch_sweep", name="ends", common=script(sandbox), grid=grid)
        await agent.call("wait_run", run_ids=sweep["sweep_id"], until="end", timeout_s=60)
        told = await agent.text("read_log", run_id="ends", tail=2)
        assert told.count("ValueError: bad seed") == 2
        assert "step 3/3" not in told, "two lines each"
        found = await agent.text("read_log", run_id="ends", grep="step 3/3")
        assert found.startswith("['step 3/3': matches in 4 of 4 logs of 4 cells, all attempts]")
        assert found.count("1 match of") == 4
        assert "matches in 2 of 4 logs" in await agent.text("read_log", run_id="ends", grep="ValueError")
        by_id = await agent.text("read_log", run_id=sweep["sweep_id"], tail=2)
        assert by_id.count("ValueError: bad seed") == 2


async def test_the_last_value_of_whole_trainings_ranks_and_everything_else_is_said(sandbox: Sandbox) -> None:
    (sandbox.path / "curves.py").write_text(CURVES)
    common = {"command": "python3 curves.py", "cwd": str(sandbox.path)}
    grid = {"curve": ["peak", "late", "nan", "cut"]}
    async with sandbox.agent_in_process() as agent:
        plan: dict[str, Any] = {"name": "curves", "common": common, "grid": grid, "max_parallel": 4}
        would = await agent.call("launch_sweep", dry_run=True, metric="best:score", **plan)
        assert would["metric"] == "score (best), max"
        sweep_id = (await agent.call("launch_sweep", metric="score", **plan))["sweep_id"]
        await until_async(lambda: observe(sandbox, sweep_id).count().get("finished") == 3, "three ended cells")
        cut = next(cell for cell in observe(sandbox, sweep_id).cells if cell.cell.name == "curve-cut")
        await until_async(lambda: "step" in sandbox.run(str(cut.run_id)).progress, "its step")
        await agent.kill(str(cut.run_id))
        status = (await to_end(agent, sweep_id))[-1]["sweep"]
        assert (status["metric"], status["best"]["cell"], status["best"]["value"]) == ("score (last)", "curve-late", 5)
        table = await agent.call("compare_runs", sweep="curves", metrics=["best:score", "scoer"])
        assert table["columns"] == "curve|score (last)@step|best@step|score best|cell|state"
        assert table["rows"] == [
            "late|5@3|5@3|5|curve-late|",
            "peak|2@3|9@2|9|curve-peak|",
            "cut||||curve-cut|killed 7@1",
            "nan||||curve-nan|finished ended nan@3",
        ]
        assert "No metric 'scoer' in these runs. Near: score." in table["notes"]
    results = (sandbox.store.home.sweeps / sweep_id / "results.tsv").read_text()
    assert [line.split("\t")[5:7] for line in results.splitlines()[1:]] == [
        ["2.0", "3"],
        ["5.0", "3"],
        ["", "3"],
        ["", "1"],
    ], "a mean over the values is that of the tables"
    assert [line.split("\t")[7:12] for line in results.splitlines()[1:]] == [
        ["score (last)", "9.0", "2", "2.0", "3"],
        ["score (last)", "5.0", "3", "5.0", "3"],
        ["", "8.0", "2", "", ""],
        ["", "7.0", "1", "7.0", "1"],
    ]


async def test_a_metric_that_no_run_has_is_a_decision_and_nothing_is_promoted_by_it(sandbox: Sandbox) -> None:
    phases = [{"name": "explore", "grid": {"lr": [0.1]}}, {"name": "final", "promote": "best"}]
    async with sandbox.agent_in_process() as agent:
        arguments = {"name": "typo", "common": script(sandbox), "phases": phases, "metric": "rewrad"}
        dry = await agent.call("launch_sweep", dry_run=True, **arguments)
        assert (
            "Whether more or less of rewrad is better, its name does not say: max is taken. Pass goal."
            in dry["warnings"]
        )
        assert "warnings" not in await agent.call("launch_sweep", dry_run=True, **arguments, goal="max")
        across = [{"name": "explore", "grid": {"task": ["cube", "walk"], "lr": [1, 2]}}, phases[1]]
        dry = await agent.call("launch_sweep", dry_run=True, **{**arguments, "phases": across, "metric": "reward"})
        assert [text for text in dry["warnings"] if text.startswith("task is the benchmark")]
        sweep_id = (await agent.call("launch_sweep", **arguments))["sweep_id"]
        answer = await agent.call("wait_run", run_ids=sweep_id, until="decision", timeout_s=60)
        assert answer["reason"] == "metric_missing"
        assert "cell has ended without 'rewrad'. Near: reward." in answer["sweep"]["events"][0]
        assert observe(sandbox, sweep_id).count() == {"total": 2, "finished": 1, "queued": 1}
        await agent.kill(sweep_id)


@pytest.mark.slow
async def test_a_sweep_survives_its_conductor_and_its_server_without_a_cell_lost_or_launched_twice(
    sandbox: Sandbox,
) -> None:
    gates = [sandbox.path / f"gate-{n}" for n in range(12)]
    for gate in gates[:9]:  # the last three cells end once all conductors were killed
        gate.touch()
    env = {"GATE": f"{sandbox.path}/gate-{{lr}}"}
    common = {**script(sandbox), "params": {"steps": 10}, "env": env}
    async with sandbox.agent() as agent:
        sweep = await agent.call(
            "launch_sweep", name="night", common=common, grid={"lr": list(range(12))}, max_parallel=3
        )
    sweep_id = sweep["sweep_id"]
    for count in (2, 5, 8):  # each time with another server, which starts the next conductor

        def has_ends(least: int = count) -> bool:
            return observe(sandbox, sweep_id).count().get("finished", 0) >= least

        await until_async(has_ends, "some ends")

        former = len(list_conductings(sandbox, sweep_id))
        os.kill(conductor(sandbox), signal.SIGKILL)

        def has_another(before: int = former) -> bool:
            return len(list_conductings(sandbox, sweep_id)) > before

        async with sandbox.agent():
            await until_async(has_another, "another conductor")
    for gate in gates[9:]:
        gate.touch()
    async with sandbox.agent() as agent:
        answers = await to_end(agent, sweep_id)
    assert answers[-1]["sweep"]["cells"] == {"total": 12, "finished": 12}
    assert sandbox.runward("wait", sweep_id).returncode == 0
    runs = [run for run in sandbox.store.list_runs() if run.spec.sweep == sweep_id]
    # A launch that died with its conductor leaves a record of a command that never started.
    started = [run for run in runs if run.started_at is not None]
    assert Counter(run.spec.cell for run in started) == Counter(f"lr{n}" for n in range(12))
    assert {run.state for run in started} == {"finished"}
    kinds = Counter(event["kind"] for event in observe(sandbox, sweep_id).events)
    assert (kinds["conducting"], kinds["cell_ended"], kinds["ended"]) == (4, 12, 1)


async def test_a_conductor_that_comes_after_the_end_starts_no_failed_cell_again(sandbox: Sandbox) -> None:
    common = {"command": ["false"], "gpus": "none"}
    async with sandbox.agent() as agent:
        sweep_id = (await agent.call("launch_sweep", name="over", common=common, grid={"n": [1, 2]}))["sweep_id"]
        await to_end(agent, sweep_id)
    ended, sweeps = observe(sandbox, sweep_id), sandbox.store.sweeps
    before = replace(ended, state="running", events=ended.events[:-1], conducted=False)  # as another process saw it
    with contextlib.closing(FileWatch()) as file_watch:
        await ensure_conductor(before, sandbox.store, file_watch, sandbox.environ)
    directory = sweeps.files_of(ended)
    assert await anyio.to_thread.run_sync(lambda: conduct(directory, sandbox.environ, "late", reopens=False)) == 0
    assert observe(sandbox, sweep_id).events == ended.events
    assert len(sandbox.store.list_runs()) == 2


async def test_a_cell_that_is_killed_together_with_its_supervisor_is_started_again(sandbox: Sandbox) -> None:
    """As a reboot or the kernel's OOM killer does it: the exit record was written, and nobody judged it."""
    go = sandbox.path / "go"
    common = {"command": f"test -e {go} || exec sleep 600", "cwd": str(sandbox.path), "env": {"N": "{n}"}}
    async with sandbox.agent() as agent:
        sweep_id = (await agent.call("launch_sweep", name="killed", common=common, grid={"n": [1]}))["sweep_id"]
        await until_async(lambda: [run.state for run in sandbox.store.list_runs()] == ["running"], "the command")
        await until_async(lambda: any(p.name == "sleep" for p in sandbox.own_processes()), "its sleep")
        run_id = sandbox.store.list_runs()[0].run_id
        supervisor, commands = sandbox.supervisor(run_id), processes.find_by_variable("RUNWARD_RUN_ID", run_id)
        go.touch()
        exit_record = sandbox.rundir(run_id).exit(1)
        write_json(exit_record, {"exit_code": None, "signal": "SIGKILL", "state": "failed"} | times(sandbox, run_id))
        for pid in (*(process.pid for process in commands if process.command == "sleep 600"), supervisor):
            os.kill(pid, signal.SIGKILL)  # at once: a supervisor that is stopped first is continued by its parent
        answers = await to_end(agent, sweep_id)
        assert answers[-1]["sweep"]["cells"] == {"total": 1, "finished": 1}
        looked = (await agent.call("wait_run", run_ids=run_id, timeout_s=0))["runs"][0]
    assert looked["reason"].startswith("Its supervisor died before it judged the end")
    ends = [event["text"] for event in observe(sandbox, sweep_id).events if event["kind"] == "cell_ended"]
    assert ends[0] == "cell: interrupted (SIGKILL). It is started again."


async def test_a_cell_goes_on_whose_conductor_died_after_it_stopped_what_a_dead_supervisor_left(
    sandbox: Sandbox,
) -> None:
    go = sandbox.path / "go"
    common = {"command": f"test -e {go} || exec sleep 600", "cwd": str(sandbox.path), "env": {"N": "{n}"}}
    async with sandbox.agent() as agent:
        sweep_id = (await agent.call("launch_sweep", name="reaped", common=common, grid={"n": [1]}))["sweep_id"]
        await until_async(lambda: [run.state for run in sandbox.store.list_runs()] == ["running"], "the command")
        (run,) = sandbox.store.list_runs()
        await until_async(lambda: any(p.name == "sleep" for p in sandbox.own_processes()), "its sleep")
        go.touch()
        first = conductor(sandbox)
        os.kill(first, signal.SIGSTOP)
        os.kill(sandbox.supervisor(run.run_id), signal.SIGKILL)
        await until_async(lambda: sandbox.run(run.run_id).state == "lost", "the death of its supervisor")
        watch = FileWatch()
        stopped = await stop_run(
            sandbox.run(run.run_id), sandbox.store, watch, by="its sweep", reason=REAPED, stopped_by="sweep"
        )
        watch.close()
        assert (stopped.survivors, sandbox.run(run.run_id).state) == ((), "killed")
        os.kill(first, signal.SIGKILL)
        assert (await to_end(agent, sweep_id))[-1]["sweep"]["cells"] == {"total": 1, "finished": 1}
    ends = [event["text"] for event in observe(sandbox, sweep_id).events if event["kind"] == "cell_ended"]
    assert ends[0] == "cell: interrupted. It is started again."


def times(sandbox: Sandbox, run_id: str) -> dict[str, Any]:
    return {"started_at": sandbox.run(run_id).started_at, "ended_at": now()}


def stop_on_a_terminal(sandbox: Sandbox, sweep_id: str) -> None:
    assert sandbox.runward("kill", sweep_id).returncode == 2, "no terminal, no person to ask"
    assert f"sweep {sweep_id} running: 5 cells, 3 queued, 2 running" in sandbox.runward("ls").stdout
    assert sandbox.runward("attach", sweep_id).returncode != 0, "no terminal here to attach with"
    ours, theirs = pty.openpty()
    os.write(ours, f"{sweep_id}\n".encode())
    done = sandbox.runward("kill", "long", stdin=theirs)
    assert (done.returncode, "Stopped: 2 runs; not started: 3 cells." in done.stdout) == (0, True), done
    os.close(ours)
    os.close(theirs)


async def check_that_the_named_call_continues(agent: Agent, sweep_id: str, message: str, cells: int) -> None:
    call = f'launch_sweep(name="{sweep_id}", resume="continue") starts {cells} cells without result again.'
    assert message.endswith(call)
    would = await agent.call("launch_sweep", name=sweep_id, resume="continue", dry_run=True)
    assert (would["sweep_id"], would["cells"], len(would["plan"])) == (
        sweep_id,
        {"total": cells, "to_start": cells},
        cells,
    )
    assert "Nothing was started" in would["next_step"]


@pytest.mark.slow
async def test_one_confirmation_stops_a_sweep_and_the_same_call_continues_it(sandbox: Sandbox) -> None:
    flag = sandbox.path / "go"
    command = f'echo step 1/2 loss 1; while [ ! -e {flag} ]; do sleep 0.05; done; echo "{{run_id}} {{cell}} $n"'
    plan: dict[str, Any] = {
        "name": "long",
        "common": {"command": command, "cwd": str(sandbox.path), "env": {"n": "{n}"}},
        "cells": [{"n": n} for n in range(5)],
        "max_parallel": 2,
        "metric": "loss",
        "goal": "min",
    }
    sandbox.store.home.create()
    (sandbox.path / "state" / "config.toml").write_text("stop_grace_s = 0.2\n")  # bash passes over some interrupts
    async with sandbox.agent_in_process() as agent:
        sweep_id = (await agent.call("launch_sweep", **plan))["sweep_id"]
        await until_async(lambda: observe(sandbox, sweep_id).count().get("running") == 2, "two live cells")
        live = [cell.run_id for cell in observe(sandbox, sweep_id).cells if cell.run_id is not None]
        await until_async(lambda: all("step" in sandbox.run(run_id).progress for run_id in live), "two steps")
        table = await agent.call("compare_runs", sweep="long", metrics=["loss", "kl"])
        assert (table["columns"], table["rows"][0], table["rows"][2]) == (
            *("n set|cell|state", "0|n0|running 1@1", "2|n2|queued"),
        )
        assert ("best" in table["sweep"], table["notes"]) == (False, ["No metric 'kl' in these runs."])
        others = (await agent.call("list_runs", others=True))["others"]
        assert others["tmux_sessions"] == [], "its session is runward's own"
        assert "a wipe stops no run" in await agent.refusal("launch_sweep", resume="wipe", **plan)
        asked = await agent.call("kill_run", run_id=sweep_id, reason="enough")
        assert asked["status"] == "confirmation_required"
        assert "to stop: 2 live runs, not started: 3 of 5 cells" in asked["message"]
        done = await agent.call("kill_run", run_id="long", confirm_token=asked["confirm_token"], reason="enough")
        assert (done["status"], done["survivors"], len(done["runs"])) == ("killed", [], 2)
        await check_that_the_named_call_continues(agent, sweep_id, done["message"], cells=5)
        stopped = observe(sandbox, sweep_id)
        assert (stopped.state, stopped.count()) == ("killed", {"total": 5, "killed": 2, "skipped": 3})
        assert (await agent.call("kill_run", run_id=sweep_id))["status"] == "already_ended"
        assert (await agent.call("launch_sweep", **plan))["sweep_id"] == sweep_id
        await until_async(lambda: observe(sandbox, sweep_id).count().get("running") == 2, "two live cells again")
        await anyio.to_thread.run_sync(stop_on_a_terminal, sandbox, sweep_id)
        assert observe(sandbox, sweep_id).count() == {"total": 5, "killed": 2, "skipped": 3}
        flag.touch()
        other = {**plan, "cells": [{"n": 9}]}
        assert "another plan: 5 cells, this call 1" in await agent.refusal("launch_sweep", **other)
        other = {**plan, "common": {**plan["common"], "command": "true"}}
        refused = await agent.refusal("launch_sweep", **other)
        assert "cell n0 has other launch arguments" in refused, "it would go on with the old command"
        anew = await agent.call("launch_sweep", resume="wipe", **{**plan, "cells": [{"n": 9}]})
        assert (anew["sweep_id"] != sweep_id, anew["cells"]["total"]) == (True, 1)
        await to_end(agent, anew["sweep_id"])
        assert (await agent.call("launch_sweep", name=sweep_id))["sweep_id"] == sweep_id, "the former one is kept"
        answers = await to_end(agent, sweep_id)
    assert answers[-1]["sweep"]["cells"] == {"total": 5, "finished": 5}
    cells = {cell.cell.name: cell for cell in observe(sandbox, sweep_id).cells}
    assert [len(cells[f"n{n}"].runs) for n in range(5)] == [3, 3, 1, 1, 1]
    run_id = str(cells["n3"].run_id)
    assert f"{run_id} n3 3" in sandbox.log(run_id)


async def test_a_stop_reaches_the_run_that_a_conductor_launched_and_did_not_note(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        cells = [Cell(f"n{n}", "1", launch={"command": "sleep 600"}) for n in range(2)]
        spec: dict[str, Any] = {"owner": sandbox.store.home.owner(sandbox.environ), "tmux_socket": sandbox.socket}
        run_id = await agent.launch("sleep 600", idempotency_key="sweep night-ab3d n0 1")
        write_sweep(sandbox.path / "state", cells, [], **spec)
        assert (await agent.kill("night-ab3d"))["status"] == "killed"
    assert observe(sandbox, "night-ab3d").count() == {"total": 2, "killed": 1, "skipped": 1}
    assert sandbox.run(run_id).state == "killed"


async def test_several_callers_start_a_conductor_at_once_and_one_stays(sandbox: Sandbox) -> None:
    gate = sandbox.path / "go"
    cells = [Cell("n0", "1", launch={"command": f"until test -e {gate}; do sleep 0.02; done", "cwd": "/"})]
    spec: dict[str, Any] = {"owner": sandbox.store.home.owner(sandbox.environ), "tmux_socket": sandbox.socket}
    async with sandbox.agent_in_process() as agent:
        sandbox.store.home.create()
        write_sweep(sandbox.path / "state", cells, [], **spec)
        store, dead = sandbox.store, observe(sandbox, "night-ab3d")
        with contextlib.closing(FileWatch()) as file_watch:
            async with anyio.create_task_group() as group:
                for _ in range(4):
                    group.start_soon(ensure_conductor, dead, store, file_watch, sandbox.environ)
        gate.touch()
        answers = await to_end(agent, "night-ab3d")
    assert answers[-1]["sweep"]["cells"] == {"total": 1, "finished": 1}
    assert len(sandbox.store.list_runs()) == 1


async def test_a_conductor_that_is_killed_as_it_begins_is_started_again_at_once(sandbox: Sandbox) -> None:
    gate, killed = sandbox.path / "go", list[int]()
    cells = [Cell("n0", "1", launch={"command": f"until test -e {gate}; do sleep 0.02; done", "cwd": "/"})]
    spec: dict[str, Any] = {"owner": sandbox.store.home.owner(sandbox.environ), "tmux_socket": sandbox.socket}
    async with sandbox.agent_in_process() as agent:
        sandbox.store.home.create()
        write_sweep(sandbox.path / "state", cells, [], **spec)
        store, dead = sandbox.store, observe(sandbox, "night-ab3d")

        async def kill_first() -> None:
            def find() -> int | None:
                words = ((p.pid, processes.command_words(p.pid) or []) for p in sandbox.own_processes())
                return next((pid for pid, each in words if PROGRAM in each), None)

            await until_async(lambda: find() is not None, "a conductor that begins")
            killed.append(int(find() or 0))
            os.kill(killed[0], signal.SIGKILL)

        with contextlib.closing(FileWatch()) as file_watch:
            async with anyio.create_task_group() as group:
                group.start_soon(kill_first)
                await ensure_conductor(dead, store, file_watch, sandbox.environ)
        pids = [event["pid"] for event in observe(sandbox, "night-ab3d").events if "pid" in event]
        assert (len(pids), killed[0] in pids) == (1, False), "the second one began"
        gate.touch()
        answers = await to_end(agent, "night-ab3d")
    assert answers[-1]["sweep"]["cells"] == {"total": 1, "finished": 1}


@pytest.mark.slow
async def test_phases_follow_each_other_and_the_best_cell_is_promoted(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        phases = [
            {"name": "search", "grid": {"lr": [0.1, 0.5, 0.3]}},
            {"name": "final", "promote": "best", "common": {"params": {"steps": 7}}},
        ]
        common = {**script(sandbox), "params": {"lr": 0.01, "out": "{run_id}"}}
        plan = {"name": "evening", "common": common, "phases": phases, "metric": "reward", "idempotency_key": "k"}
        lines = (await agent.call("launch_sweep", dry_run=True, **plan))["plan"]
        assert lines[0].endswith("train.py --lr 0.1 --out '{run_id}'")
        assert lines[-1].endswith("train.py --out '{run_id}' --steps 7 (and the parameters of the best cell so far)")
        sweep_id = (await agent.call("launch_sweep", **plan))["sweep_id"]
        answers = await to_end(agent, sweep_id)
        assert [answer["reason"] for answer in answers][-1] == "ended"
        assert any("Phase search" in text for answer in answers for text in answer["sweep"].get("events", ()))
        promoted = observe(sandbox, sweep_id).cells[-1]
        assert (promoted.state, promoted.params["lr"]) == ("finished", 0.5)
        assert sandbox.run(str(promoted.run_id)).spec.params == {"steps": 7, "lr": 0.5, "out": "{run_id}"}
        assert (await agent.call("launch_sweep", **plan))["sweep_id"] == sweep_id
        assert "is finished, and this call has no plan" in await agent.refusal("launch_sweep", name="evening")
        assert "Sweep not found: 'on'" in await agent.refusal("launch_sweep", name="on")
        promotion = await agent.call(
            "launch_sweep", name="wide", common={**script(sandbox), "params": {"seed": 2}}, promote=str(promoted.run_id)
        )
        await to_end(agent, promotion["sweep_id"])
        (cell,) = observe(sandbox, promotion["sweep_id"]).cells
        assert sandbox.run(str(cell.run_id)).spec.params == {"steps": 7, "lr": 0.5, "seed": 2, "out": "{run_id}"}


@pytest.mark.slow
async def test_the_best_setting_is_promoted_with_seeds_of_its_own(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        phases: list[dict[str, Any]] = [
            {"name": "search", "grid": {"lr": [0.1, 0.5], "seed": [1, 2]}},
            {"name": "final", "promote": "best", "grid": {"seed": [7, 8, 9]}, "common": {"params": {"steps": 7}}},
        ]
        common = script(sandbox)
        plan = {"name": "seeds", "common": common, "phases": phases, "metric": "reward", "max_parallel": 1}
        sweep_id = (await agent.call("launch_sweep", **plan))["sweep_id"]
        await to_end(agent, sweep_id)
        final = observe(sandbox, sweep_id).cells[4:]
        assert [cell.cell.name for cell in final] == ["promotion-seed7", "promotion-seed8", "promotion-seed9"]
        ran = [sandbox.run(str(cell.run_id)).spec.params for cell in final]
        assert ran == [{"lr": 0.5, "seed": seed, "steps": 7} for seed in (7, 8, 9)]
        table = await agent.call("compare_runs", sweep=sweep_id)
        assert "|3|" in next(row for row in table["rows"] if "|7|" in row or "final" in row), table["rows"]
        phases[1]["grid"] = {"lr": [0.1], "seed": [1]}
        assert "grid of seeds alone" in await agent.refusal("launch_sweep", **{**plan, "name": "other"})


@pytest.mark.slow
async def test_cells_that_write_one_directory_of_their_program_are_named_as_soon_as_that_is_seen(
    sandbox: Sandbox,
) -> None:
    (sandbox.path / "lib").mkdir()
    (sandbox.path / "lib" / "runner.py").write_text(
        "import pathlib, time\n"
        "out = pathlib.Path('logs/default')\n"
        "out.mkdir(parents=True, exist_ok=True)\n"
        "while not pathlib.Path('over').exists():\n"
        "    with (out / 'model.pt').open('wb') as file:\n"
        "        time.sleep(0.05)\n"
    )
    (sandbox.path / "train.py").write_text("from lib import runner\n")
    async with sandbox.agent() as agent:
        common = {"command": f"{sys.executable} train.py", "cwd": str(sandbox.path), "env": {"N": "{n}"}}
        plan = {"name": "both", "common": common, "grid": {"n": [1, 2]}, "max_parallel": 2}
        assert "warnings" not in await agent.call("launch_sweep", **plan, dry_run=True), "no word of it in the script"
        sweep_id = (await agent.call("launch_sweep", **plan))["sweep_id"]
        answer = await agent.call("wait_run", run_ids=sweep_id, until="decision", timeout_s=60)
        assert answer["reason"] == "outputs_shared", answer
        (warning,) = answer["sweep"]["warnings"]
        cells = [str(cell.run_id) for cell in observe(sandbox, sweep_id).cells]
        assert all(run_id in warning for run_id in cells)
        assert f"in {sandbox.path}/logs/default (model.pt)" in warning
        listed = await agent.call("list_runs", sweep=sweep_id)
        one = await agent.call("wait_run", run_ids=cells[0], timeout_s=0)
        compared = await agent.call("compare_runs", run_ids=cells)
        (sandbox.path / "over").touch()
        for warnings in (listed["warnings"], one["warnings"], compared["notes"]):
            assert warning in warnings
        await to_end(agent, sweep_id)
        assert warning in (await agent.call("compare_runs", sweep=sweep_id))["notes"]


async def test_a_retry_in_a_cell_is_news_of_its_sweep_and_no_decision(sandbox: Sandbox) -> None:
    command = "echo step 1/9 loss 1; [ $RUNWARD_ATTEMPT = 2 ] || { echo CUDA out of memory. >&2; exit 1; }; sleep 600"
    recovery = {"oom_gpu": {"do": "retry", "wait_s": 0}}
    async with sandbox.agent() as agent, sandbox.agent() as other:
        common = {"command": f"{command}; echo", "cwd": str(sandbox.path), "env": {"N": "{n}"}, "recovery": recovery}
        sweep_id = (await agent.call("launch_sweep", name="again", common=common, grid={"n": [1]}))["sweep_id"]
        answer = await agent.call("wait_run", run_ids=sweep_id, timeout_s=60)
        while answer["reason"] in ("heartbeat", "first_step", "started"):
            answer = await agent.call("wait_run", run_ids=sweep_id, timeout_s=60)
        assert answer["reason"] == "retrying", answer
        (event,) = answer["sweep"]["events"]
        assert event.startswith("cell: attempt 1: oom_gpu. Trying again in 0 s as it was"), event
        quiet = await other.call("wait_run", run_ids=sweep_id, until="decision", timeout_s=0.5)
        assert quiet["reason"] == "heartbeat", quiet
        await agent.kill(sweep_id)


@pytest.mark.parametrize(
    "cells", [{"grid": {"num_envs": [64, 128]}}, {"search": {"space": {"num_envs": [64, 128]}, "budget": 2}}]
)
async def test_a_policy_may_change_parameters_that_are_chosen_when_a_cell_begins(
    sandbox: Sandbox, cells: dict[str, Any]
) -> None:
    recovery = {"oom_gpu": {"do": "retry", "change": {"num_envs": "halve"}}}
    phases = [{"name": "explore", **cells}, {"name": "final", "promote": "best"}]
    common: dict[str, Any] = {**script(sandbox), "recovery": recovery}
    plan = {"common": common, "phases": phases, "metric": "loss", "dry_run": True}
    async with sandbox.agent_in_process() as agent:
        planned = await agent.call("launch_sweep", name="s", **plan)
        assert planned["cells"]["total"] == 3
        assert "num_envs" not in planned["plan"][-1]
        common["recovery"] = {"oom_gpu": {"do": "retry", "change": {"batch": "halve"}}}
        assert "params has no batch" in await agent.refusal("launch_sweep", name="s", **plan)


async def test_what_a_launch_sets_is_a_setting_and_is_promoted_with_its_cell(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        cells = [{"seed": seed, "launch": {"env": {"BOOST": boost}}} for boost in ("0", "50") for seed in (1, 2)]
        phases = [{"name": "ablation", "cells": cells}, {"name": "final", "promote": "best"}]
        common = {**script(sandbox), "params": {"out": "{run_id}"}}
        plan = {"name": "ablation", "common": common, "phases": phases, "metric": "reward"}
        sweep_id = (await agent.call("launch_sweep", **plan))["sweep_id"]
        await to_end(agent, sweep_id)
        promoted = observe(sandbox, sweep_id).cells[-1]
        assert sandbox.run(str(promoted.run_id)).spec.env == {"BOOST": "50"}
        assert promoted.value == 55.0
        found = await agent.call("compare_runs", sweep=sweep_id)
        names = found["columns"].split("|")
        rows = [dict(zip(names, row.split("|"), strict=True)) for row in found["rows"]]
        assert [(row["phase"], row["$BOOST"], row["reward (last) mean±sd"]) for row in rows] == [
            ("ablation", "50", "54.5±0.71"),
            ("ablation", "0", "4.5±0.71"),
            ("final", "50", "55"),
        ]
        assert found["sweep"]["best"]["params"] == {"seed": 2, "$BOOST": "50"}


async def test_a_sweep_that_cannot_start_is_refused_and_leaves_nothing(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        common = script(sandbox)
        refused = await agent.refusal("launch_sweep", name="x", common={"cwd": str(sandbox.path)}, grid={"lr": [1]})
        assert "holds no command" in refused
        missing = {**common, "cwd": "/nowhere"}
        refused = await agent.refusal("launch_sweep", name="x", common=missing, grid={"lr": [1]})
        assert "Cell cell: " in refused
        assert "No cell was started." in refused
        no_metric = [{"grid": {"lr": [1]}}, {"promote": "best"}]
        assert "needs metric" in await agent.refusal("launch_sweep", name="x", common=common, phases=no_metric)
        alone = [{"promote": "best"}]
        assert "a phase before it" in await agent.refusal("launch_sweep", name="x", common=common, phases=alone)
        assert not list((sandbox.path / "state" / "sweeps").glob("*"))
        assert json.dumps(sandbox.store.list_runs(), default=str) == "[]"


@pytest.mark.slow
async def test_a_search_proposes_cells_and_halving_stops_the_same_ones_whatever_conductor_looks(
    sandbox: Sandbox,
) -> None:
    gate = sandbox.path / "go"
    async with sandbox.agent_in_process() as agent:
        common = {**script(sandbox), "params": {"steps": 25}, "env": {"GATE": f"{gate}"}}
        space = {"lr": {"low": 0.001, "high": 1.0, "log": True}}
        plan = {"search": {"space": space, "budget": 5, "seed": 7}, "halving": {"steps": [20]}, "max_parallel": 5}
        sweep = await agent.call("launch_sweep", name="search", common=common, metric="reward", **plan)
        sweep_id = sweep["sweep_id"]
        await until_async(lambda: observe(sandbox, sweep_id).count().get("stopped") == 3, "three stops")
        os.kill(conductor(sandbox), signal.SIGKILL)
        await until_async(lambda: not observe(sandbox, sweep_id).conducted, "its death")
        await agent.call("wait_run", run_ids=sweep_id, timeout_s=0)
        assert observe(sandbox, sweep_id).conducted
        gate.touch()
        answers = await to_end(agent, sweep_id)
        assert answers[-1]["sweep"]["cells"] == {"total": 5, "finished": 2, "stopped": 3}
        cells = observe(sandbox, sweep_id).cells
        assert len({cell.params["lr"] for cell in cells}) == 5
        ranked = sorted(cells, key=lambda cell: cell.params["lr"])
        assert [cell.state for cell in ranked] == ["stopped", "stopped", "stopped", "finished", "finished"]
        run = sandbox.run(str(ranked[0].run_id))
        assert (run.state, run.stopped_by) == ("killed", "sweep")
        assert "halved at rung 20" in str(run.events[-1]["text"])
        assert "needs metric" not in await agent.refusal("launch_sweep", name="x", common=common, **plan)


@pytest.mark.slow
async def test_an_owner_has_no_more_gpus_than_the_quota_and_the_wait_is_a_task(sandbox: Sandbox) -> None:
    fake = machine(sandbox.path)
    fake.report(gpus=4)
    sandbox.environ |= fake.environ
    sandbox.store.home.create()
    (sandbox.path / "state" / "config.toml").write_text('owner = "maria"\nquotas = { maria = 2, "*" = 1 }\n')
    gate = sandbox.path / "go"
    command = f"echo step 1/2 loss 1; while [ ! -e {gate} ]; do sleep 0.02; done"
    common: dict[str, Any] = {"command": command, "cwd": str(sandbox.path), "gpus": 1}
    async with sandbox.agent(extensions=TASKS) as agent:
        common["env"] = {"N": "{n}"}
        sweep = await agent.call("launch_sweep", name="four", common=common, grid={"n": [1, 2, 3, 4]})
        sweep_id = sweep["sweep_id"]
        await until_async(lambda: observe(sandbox, sweep_id).count().get("running") == 2, "two live cells")
        refused = await agent.refusal("launch_run", command="sleep 9", gpus=1, queue=True)
        assert "maria may have 2 GPUs at once, has or awaits 2, and this launch requests 1." in refused
        assert "has or awaits 0" in await agent.refusal("launch_run", command="sleep 9", gpus=2, owner="bob")
        gated = {"promote": "best", "common": {"gpus": 2, "require": {"power_limit_w": 275}}}
        phases = [{"grid": {"n": [1]}}, gated]
        refused = await agent.refusal("launch_sweep", name="wide", common=common, metric="loss", phases=phases)
        assert refused.startswith("Cell promotion: GPUs not free"), "what midnight would refuse"
        assert "-pl 275" in refused
        task = await TaskClient(agent.client).create(run_ids=sweep_id, until="end")
        gate.touch()
        result = await TaskClient(agent.client).poll(task["taskId"])
        assert result["result"]["structuredContent"]["sweep"]["cells"] == {"total": 4, "finished": 4}
    runs = [run for run in sandbox.store.list_runs() if run.spec.sweep == sweep_id]
    begun = sorted(str(run.started_at) for run in runs)
    ended = sorted(str(run.ended_at) for run in runs)
    assert all(start >= end for start, end in zip(begun[2:], ended, strict=False)), "more than two at once"


async def test_a_stopped_conductor_is_named_and_continues_only_when_somebody_says_so(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        common = {"command": "sleep 600", "cwd": str(sandbox.path), "env": {"N": "{n}"}}
        plan = {"common": common, "grid": {"n": [1, 2]}, "max_parallel": 1}
        sweep_id = (await agent.call("launch_sweep", name="held", **plan))["sweep_id"]
        await until_async(lambda: observe(sandbox, sweep_id).count().get("running") == 1, "a live cell")
        tmux = Path("/proc") / sandbox.tmux("display-message", "-p", "#{pid}").strip()
        os.kill(int(tmux.name), signal.SIGKILL)  # it continues what is stopped in its panes, until its jobs have ended
        await until_async(lambda: not tmux.exists(), "the end of tmux")
        pid = conductor(sandbox)
        os.kill(pid, signal.SIGSTOP)
        await until_async(lambda: processes.is_stopped(pid), "the stop of the conductor")
        looked = await agent.call("wait_run", run_ids=sweep_id, timeout_s=0)
        assert f"(process {pid}) was stopped (SIGSTOP) after 20" in looked["sweep"]["reason"]
        assert f'kill -CONT {pid}, or launch_sweep(name="{sweep_id}")' in looked["sweep"]["reason"]
        (line,) = (await agent.call("list_runs"))["sweeps"]
        assert f"running: 2 cells, 1 queued, 1 running; Its conductor (process {pid}) was stopped" in line
        assert processes.is_stopped(pid), "whoever stopped it may have meant it"
        assert (await agent.call("launch_sweep", name="held"))["sweep_id"] == sweep_id
        assert "reason" not in (await agent.call("wait_run", run_ids=sweep_id, timeout_s=0))["sweep"]
        os.kill(pid, signal.SIGSTOP)
        await until_async(lambda: processes.is_stopped(pid), "the second stop")
        assert (await agent.kill(sweep_id))["status"] == "killed"
    kinds = Counter(event["kind"] for event in observe(sandbox, sweep_id).events)
    assert (kinds["conducting"], kinds["ended"]) == (1, 1)


def fill(path: Path) -> None:
    """Write until no byte more fits on the file system."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 65536)


@pytest.mark.slow
async def test_a_sweep_whose_home_is_full_says_so_and_goes_on_once_there_is_space(sandbox: Sandbox) -> None:
    home = sandbox.path / "state"
    home.mkdir(0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "none", str(home)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this machine mounts no file system")
    gate, ballast = sandbox.path / "go", home / "ballast"
    command = f"echo step 1/1 loss {{n}}; until test -e {gate}; do sleep 0.02; done; touch done-{{n}}"
    common = {"command": command, "cwd": str(sandbox.path), "env": {"N": "{n}"}}
    try:
        async with sandbox.agent_in_process() as agent:
            plan = {"grid": {"n": [1, 2, 3, 4]}, "metric": "loss", "max_parallel": 2}
            sweep_id = (await agent.call("launch_sweep", name="full", common=common, **plan))["sweep_id"]
            await until_async(lambda: observe(sandbox, sweep_id).count().get("running") == 2, "two live cells")
            fill(ballast)
            gate.touch()
            answer = await agent.call("wait_run", run_ids=sweep_id, timeout_s=0)
            assert f"{home} takes no writes (No space left on device)." in answer["sweep"]["reason"]
            assert "takes no writes" in (await agent.call("list_runs"))["sweeps"][0]
            await until_async(lambda: len(list(sandbox.path.glob("done-*"))) == 2, "both ends")
            ballast.unlink()
            answers = await to_end(agent, sweep_id)
        assert answers[-1]["sweep"]["cells"] == {"total": 4, "finished": 4}
        runs = Counter(run.spec.cell for run in sandbox.store.list_runs() if run.spec.sweep == sweep_id)
        assert runs == {f"n{n}": 1 for n in (1, 2, 3, 4)}
    finally:
        sandbox.close()
        subprocess.run(["umount", "-l", str(home)], check=False)


@pytest.mark.slow
@needs_sshd
async def test_cells_run_on_the_first_host_with_a_free_slot(sandbox: Sandbox, far_host: FarHost) -> None:
    sandbox.store.home.create()
    (sandbox.path / "state" / "config.toml").write_text("cpu_slots = 1\n")
    gate = sandbox.path / "go"
    common: dict[str, Any] = {
        "command": f"echo on ${{SSH_CONNECTION:+far}}; until test -e {gate}; do sleep 0.02; done",
        "cwd": "/",
    }
    common |= {"env": {"N": "{n}"}}
    hosts = [socket.gethostname(), NAME]
    async with sandbox.agent() as agent:
        sweep = await agent.call("launch_sweep", name="both", common=common, grid={"n": [1, 2]}, hosts=hosts)
        sweep_id = sweep["sweep_id"]
        await until_async(lambda: observe(sandbox, sweep_id).count().get("running") == 2, "two live cells")
        listed = await agent.call("list_runs", sweep=sweep_id)
        assert {run.get("host") for run in listed["runs"]} == {None, NAME}
        gate.touch()
        answers = await to_end(agent, sweep_id)
    assert answers[-1]["sweep"]["cells"] == {"total": 2, "finished": 2}


async def test_a_sweep_at_its_ceiling_goes_on_with_a_higher_one_and_never_run_cells_first(sandbox: Sandbox) -> None:
    common: dict[str, Any] = {"command": f"bash -c 'test -e {sandbox.path}/good' {{params}}", "cwd": str(sandbox.path)}
    plan: dict[str, Any] = {"name": "ceiling", "common": common, "grid": {"seed": [1, 2, 3, 4]}, "max_parallel": 1}
    async with sandbox.agent_in_process() as agent:
        sweep_id = (await agent.call("launch_sweep", max_failures=2, **plan))["sweep_id"]
        first = (await agent.call("wait_run", run_ids=sweep_id, until="end"))["sweep"]["cells"]
        assert (first["failed"], first["skipped"]) == (2, 2)
        (sandbox.path / "good").touch()
        started = await agent.call("launch_sweep", name="ceiling", max_failures=9)
        assert started["warnings"] == ["max_failures is 9 now, it was 2."]
        await agent.call("wait_run", run_ids=sweep_id, until="end")
        written = (sandbox.path / "state" / "sweeps" / sweep_id / "events.jsonl").read_text()
        events = [json.loads(line) for line in written.splitlines()]
        order = [event["cell"] for event in events if event["kind"] == "cell_started"]
        assert order == ["seed1", "seed2", "seed3", "seed4", "seed1", "seed2"]
        other = {**plan, "grid": {"seed": [1, 2, 3]}}
        refused = await agent.refusal("launch_sweep", resume="continue", **other)
        assert "has another plan" in refused
        assert (await agent.call("launch_sweep", resume="continue", **plan))["sweep_id"] == sweep_id


@pytest.mark.slow
async def test_more_seeds_and_values_run_only_what_is_new_and_stand_in_one_table(sandbox: Sandbox) -> None:
    plan: dict[str, Any] = {"name": "more", "common": script(sandbox), "metric": "reward", "resume": "continue"}
    grid = {"lr": [0.1, 0.2], "seed": [1, 2]}
    async with sandbox.agent_in_process() as agent:
        sweep_id = (await agent.call("launch_sweep", grid=grid, **plan))["sweep_id"]
        await to_end(agent, sweep_id)
        before = observe(sandbox, sweep_id)
        assert (before.state, before.count()) == ("finished", {"total": 4, "finished": 4})
        fresh = await agent.call(
            "launch_sweep", dry_run=True, **{**plan, "resume": None, "grid": {**grid, "lr": [0.1, 0.2, 0.3]}}
        )
        assert (
            f'{sweep_id} has 4 of these cells: resume="continue" adds the 2 others, and keeps results.'
            in fresh["warnings"]
        )
        fewer = await agent.refusal("launch_sweep", grid={"lr": [0.1, 0.2], "seed": [4, 5, 6]}, **plan)
        assert "cell lr0.1-seed1 is not in this call" in fewer
        assert "all its values and the new ones" in fewer
        other = await agent.refusal("launch_sweep", grid=grid, **{**plan, "metric": "step"})
        assert "its metric is reward (last), that of this call step (last)" in other
        grid = {"lr": [0.3, 0.1, 0.2], "seed": [1, 2, 4]}
        planned = await agent.call("launch_sweep", grid=grid, dry_run=True, **plan)
        names = ["lr0.3-seed1", "lr0.3-seed2", "lr0.3-seed4", "lr0.1-seed4", "lr0.2-seed4"]
        assert [line.partition(":")[0].split()[-1] for line in planned["plan"]] == names
        assert f"{sweep_id} would go on with these cells: 5 cells added, 4 kept." in planned["next_step"]
        assert observe(sandbox, sweep_id).spec == before.spec, "a dry run adds nothing"
        started = await agent.call("launch_sweep", grid=grid, **plan)
        assert (started["sweep_id"], started["cells"]["total"]) == (sweep_id, 9)
        assert "goes on: 5 cells added, 4 kept." in started["next_step"]
        again = await agent.call("launch_sweep", grid=grid, **plan)
        assert "added" not in again["next_step"]
        await to_end(agent, sweep_id)
        after = observe(sandbox, sweep_id)
        assert after.count() == {"total": 9, "finished": 9}
        assert [each.cell.name for each in after.cells] == [each.cell.name for each in before.cells] + names
        assert [each.runs for each in after.cells[:4]] == [each.runs for each in before.cells], "none ran again"
        assert all(len(each.runs) == 1 for each in after.cells)
        table = await agent.call("compare_runs", sweep="more")
        assert (table["sweep"]["best"]["mean"], table["sweep"]["best"]["n"]) == (35.33, 3)
        assert [row.split("|")[2] for row in table["rows"]] == ["3", "3", "3"]
        later = {**plan, "name": "later", "common": {**plan["common"], "tags": ["later"]}}
        later_id = (await agent.call("launch_sweep", grid={"lr": [0.2, 0.4], "seed": [4, 5]}, **later))["sweep_id"]
        await to_end(agent, later_id)
        both = await agent.call("compare_runs", sweep=["more", "later"])
        assert both == await agent.call("compare_runs", run_ids=[sweep_id, later_id])
        shown = {row.split("|")[0]: row.split("|")[1:3] for row in both["rows"]}
        assert (shown["0.2"], shown["0.4"][1]) == (["26±1.8", "4"], "2"), "the seeds 1, 2, 4 and 5, and 4 once"
        assert "1 cell ran in several sweeps with the same seed: it counts once." in both["notes"]
        assert both["sweep"]["sweep_id"] == f"{sweep_id}, {later_id}"
        loss = {**later, "name": "loss", "metric": "loss"}
        loss_id = (await agent.call("launch_sweep", grid={"seed": [7]}, **loss))["sweep_id"]
        await to_end(agent, loss_id)
        refused = await agent.refusal("compare_runs", sweep=["more", "loss"])
        assert f"{sweep_id} by reward (last), max; {loss_id} by loss (last), min" in refused


@pytest.mark.slow
async def test_more_seeds_start_no_failed_cell_and_the_name_alone_does(sandbox: Sandbox) -> None:
    plan: dict[str, Any] = {"name": "failing", "common": script(sandbox), "metric": "reward", "resume": "continue"}
    async with sandbox.agent_in_process() as agent:
        sweep_id = (await agent.call("launch_sweep", grid={"seed": [1, 3]}, **plan))["sweep_id"]
        await to_end(agent, sweep_id)
        assert observe(sandbox, sweep_id).count() == {"total": 2, "failed": 1, "finished": 1}
        longer = {"grid": {"seed": [1, 3, 4, 5]}, **plan}
        planned = await agent.call("launch_sweep", dry_run=True, **longer)
        assert planned["cells"] == {"total": 4, "to_start": 2}
        assert [line.split()[2] for line in planned["plan"]] == ["seed4:", "seed5:"]
        stays = 'without a result stay: a call with the name alone and resume="continue" starts them'
        assert f"2 cells added, 2 kept; 1 {stays}" in planned["next_step"]
        assert "2 cells, " in planned["next_step"]
        assert f"2 cells added, 2 kept; 1 {stays}" in (await agent.call("launch_sweep", **longer))["next_step"]
        await to_end(agent, sweep_id)
        assert [len(cell.runs) for cell in observe(sandbox, sweep_id).cells] == [1, 1, 1, 1]
        alone = await agent.call("launch_sweep", name="failing", resume="continue", dry_run=True)
        assert [line.split()[2] for line in alone["plan"]] == ["seed3:"]
        assert "as cells of this sweep took" in alone["next_step"]
        await agent.call("launch_sweep", name="failing", resume="continue")
        await to_end(agent, sweep_id)
        assert [len(cell.runs) for cell in observe(sandbox, sweep_id).cells] == [1, 2, 1, 1]


@pytest.mark.slow
async def test_cells_that_are_added_open_their_phase_again_and_survive_a_crash_before_a_conductor_begins(
    sandbox: Sandbox,
) -> None:
    def plan(*seeds: int) -> dict[str, Any]:
        phases = [
            {"name": "explore", "grid": {"lr": [0.1, 0.2], "seed": list(seeds)}},
            {"name": "final", "promote": "best", "common": {"params": {"steps": 4}}},
        ]
        return {"name": "open", "common": script(sandbox), "metric": "reward", "phases": phases, "resume": "continue"}

    async with sandbox.agent_in_process() as agent:
        sweep_id = (await agent.call("launch_sweep", **plan(1)))["sweep_id"]
        await to_end(agent, sweep_id)
        first = observe(sandbox, sweep_id)
        refused = await agent.refusal("launch_sweep", **{**plan(1, 2), "phases": plan(1, 2)["phases"][:1]})
        assert "its phases are explore, final, those of this call explore" in refused
        # The file that a call writes, and then dies: no conductor has begun.
        added = [
            replace(each, name=f"{each.name}-x", params={**each.params, "seed": 2}) for each in first.spec.cells[:2]
        ]
        added = [replace(each, launch={**each.launch, "params": each.params}) for each in added]
        spec = replace(first.spec, cells=(*first.spec.cells, *added))
        write_json(sandbox.store.sweeps.files_of(first).spec, spec.facts())
        open_now = observe(sandbox, sweep_id)
        assert (open_now.state, open_now.phase, open_now.count()["queued"]) == ("running", "explore", 2)
        answers = await to_end(agent, sweep_id)
        assert answers[-1]["sweep"]["cells"] == {"total": 5, "finished": 5}
        again = await agent.call("launch_sweep", **plan(1, 2))
        assert (again["sweep_id"], "added" in again["next_step"]) == (sweep_id, False)
        three = await agent.call("launch_sweep", **plan(1, 2, 4))
        assert "2 cells added, 5 kept" in three["next_step"]
        assert three["warnings"] == ["Phase final has run, and does not run again for the new cells."]
        await to_end(agent, sweep_id)
        done = observe(sandbox, sweep_id)
        assert [len(each.runs) for each in done.cells] == [1] * 7
        told = [event["text"].split(",")[0] for event in done.events if event["kind"] == "phase_done"]
        assert told == [f"Phase explore: {count} cells done" for count in (2, 4, 6)]


async def test_cells_join_a_sweep_that_is_under_way_and_one_that_was_stopped(sandbox: Sandbox) -> None:
    gate = sandbox.path / "open"
    common = {**script(sandbox), "env": {"GATE": str(gate)}}

    def plan(*seeds: int) -> dict[str, Any]:
        return {"name": "joined", "common": common, "grid": {"seed": list(seeds)}, "metric": "reward"}

    (sandbox.path / "state").mkdir(exist_ok=True)
    (sandbox.path / "state" / "config.toml").write_text("stop_grace_s = 0.2\n")
    async with sandbox.agent_in_process() as agent:
        sweep_id = (await agent.call("launch_sweep", max_parallel=5, **plan(1, 2)))["sweep_id"]
        await until_async(lambda: observe(sandbox, sweep_id).count().get("running") == 2, "two live cells")
        dry = await agent.call("launch_sweep", name="joined", resume="continue", dry_run=True)
        assert (dry["cells"], dry.get("plan")) == ({"total": 2, "to_start": 0}, None), "none that lives is started"
        assert f"{sweep_id} is under way, and starts 0 more cells without this call. Nothing" in dry["next_step"]
        dry = await agent.call("launch_sweep", dry_run=True, **plan(1, 2, 4))
        assert [line.split()[2] for line in dry["plan"]] == ["seed4:"]
        joined = await agent.call("launch_sweep", **plan(1, 2, 4))
        assert "goes on: 1 cell added, 2 kept." in joined["next_step"]
        await until_async(lambda: observe(sandbox, sweep_id).count().get("running") == 3, "the new one beside them")
        asked = await agent.call("kill_run", run_id=sweep_id, reason="enough")
        await agent.call("kill_run", run_id=sweep_id, confirm_token=asked["confirm_token"], reason="enough")
        stopped = observe(sandbox, sweep_id)
        assert (stopped.state, stopped.count()) == ("killed", {"total": 3, "killed": 3})
        gate.touch()
        planned = await agent.call("launch_sweep", dry_run=True, resume="continue", **plan(1, 2, 4, 5))
        assert [line.split()[2] for line in planned["plan"]] == ["seed1:", "seed2:", "seed4:", "seed5:"]
        assert "1 cell added, 3 kept, 3 of these without a result start too" in planned["next_step"]
        await agent.call("launch_sweep", resume="continue", **plan(1, 2, 4, 5))
        answers = await to_end(agent, sweep_id)
    assert answers[-1]["sweep"]["cells"] == {"total": 4, "finished": 4}
    assert [len(cell.runs) for cell in observe(sandbox, sweep_id).cells] == [2, 2, 2, 1]


@pytest.mark.slow
async def test_cells_that_are_added_while_the_last_ones_end_are_never_lost(sandbox: Sandbox) -> None:
    common = {**script(sandbox), "gpus": "cpu"}
    async with sandbox.agent_in_process() as agent:
        plan: dict[str, Any] = {"name": "race", "common": common, "metric": "reward", "resume": "continue"}
        sweep_id = (await agent.call("launch_sweep", grid={"seed": [4]}, **plan))["sweep_id"]
        for last in range(5, 9):
            await until_async(lambda: observe(sandbox, sweep_id).cells[-1].done, "the end of the last cell")
            await agent.call("launch_sweep", grid={"seed": list(range(4, last + 1))}, **plan)
        await until_async(lambda: observe(sandbox, sweep_id).count() == {"total": 5, "finished": 5}, "all")
        await to_end(agent, sweep_id)
        assert [len(cell.runs) for cell in observe(sandbox, sweep_id).cells] == [1] * 5
