"""Whoever edits code while a run waits, or between two attempts, is told that other code ran."""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.sandbox import Agent, Sandbox, until_async

pytestmark = pytest.mark.anyio

TRAIN = """
import pathlib, sys
RATE = 0.02
print("rate", RATE, flush=True)
"""
RETRIED = """
import pathlib, sys, os, time
if os.environ["RUNWARD_ATTEMPT"] == "1":
    pathlib.Path("running").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.02)
    sys.exit(7)
"""

# A run that ends at once may end before its code is kept.
EDITED = """
import os, pathlib, time
while not pathlib.Path("state/runs", os.environ["RUNWARD_RUN_ID"], "attempts/1/code/code.json").exists():
    time.sleep(0.02)
print('step 1/1 reward 3', flush=True)
"""


def write_code(directory: Path) -> None:
    (directory / "lib").mkdir()
    (directory / "lib" / "model.py").write_text("WIDTH = 1\n")
    (directory / "a.yaml").write_text("lr: 0.1\n")
    (directory / "train.py").write_text(TRAIN)


def changes(sandbox: Sandbox, run_id: str) -> list[str]:
    return [event["text"] for event in sandbox.run(run_id).events if event["kind"] == "code_changed"]


async def read_run(agent: Agent, run_id: str) -> dict[str, Any]:
    content = (await agent.client.read_resource(f"run://{run_id}")).contents[0]
    status: dict[str, Any] = json.loads(content.text)  # type: ignore[union-attr]
    return status


async def hold_slot(sandbox: Sandbox, agent: Agent) -> str:
    return await agent.launch("until test -e release; do sleep 0.02; done", gpus="cpu", cwd=str(sandbox.path))


async def test_a_queued_run_says_which_code_changed_before_it_started(sandbox: Sandbox) -> None:
    write_code(sandbox.path)
    (sandbox.path / "state").mkdir(mode=0o700)
    (sandbox.path / "state" / "config.toml").write_text("cpu_slots = 1\n")
    command = f"{sys.executable} train.py --config a.yaml"
    arguments: dict[str, Any] = {"cwd": str(sandbox.path), "gpus": "cpu", "queue": True}
    async with sandbox.agent_in_process() as agent:
        holder = await hold_slot(sandbox, agent)
        edited = await agent.call("launch_run", command=command, name="edited", **arguments)
        assert edited["state"] == "queued"
        for path, text in (
            ("train.py", TRAIN.replace("2", "3")),
            ("lib/model.py", "WIDTH = 2\n"),
            ("a.yaml", "lr: 1\n"),
        ):
            (sandbox.path / path).write_text(text)
        (sandbox.path / "new.py").write_text("")  # no code of the run that was launched
        (sandbox.path / "release").touch()
        await agent.end(holder)
        status = await agent.end(edited["run_id"])
        plain = await agent.launch(command, name="plain", cwd=str(sandbox.path))
        await agent.end(plain)
        compared = await agent.call("compare_runs", run_ids=[edited["run_id"], plain])
        finished = await agent.call("finish_blueprint", run_id=edited["run_id"], result_dir=str(sandbox.path / "out"))
    sentence = "Code changed between launch and start: train.py, a.yaml, lib/model.py."
    assert changes(sandbox, edited["run_id"]) == [sentence]
    assert sentence in status["note"]
    assert any(sentence in note for note in compared["notes"])
    assert sentence in Path(finished["results_path"]).read_text()
    assert changes(sandbox, plain) == []
    kept = sandbox.rundir(edited["run_id"]).code(1) / "files" / "train.py"
    assert "0.03" in kept.read_text()  # the copy is that of the start


async def test_a_queued_run_whose_code_was_only_touched_says_nothing(sandbox: Sandbox) -> None:
    write_code(sandbox.path)
    (sandbox.path / "state").mkdir(mode=0o700)
    (sandbox.path / "state" / "config.toml").write_text("cpu_slots = 1\n")
    async with sandbox.agent_in_process() as agent:
        holder = await hold_slot(sandbox, agent)
        command = f"{sys.executable} train.py"
        run = await agent.call("launch_run", command=command, cwd=str(sandbox.path), gpus="cpu", queue=True)
        (sandbox.path / "train.py").write_text(TRAIN)  # another time, the same text
        (sandbox.path / "release").touch()
        await agent.end(holder)
        status = await agent.end(run["run_id"])
    assert changes(sandbox, run["run_id"]) == []
    assert "note" not in status


async def test_an_attempt_with_other_code_than_the_former_says_so(sandbox: Sandbox) -> None:
    (sandbox.path / "train.py").write_text(RETRIED)
    recovery = {"any": {"do": "retry", "times": 1, "wait_s": 0}}
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(f"{sys.executable} train.py", cwd=str(sandbox.path), recovery=recovery)
        await until_async((sandbox.path / "running").exists, "the first attempt")
        await until_async(lambda: sandbox.rundir(run_id).code(1).joinpath("snapshot.json").exists(), "its copy")
        (sandbox.path / "train.py").write_text(RETRIED + "# better\n")
        (sandbox.path / "go").touch()
        await agent.end(run_id)
    assert changes(sandbox, run_id) == ["Code changed between attempt 1 and attempt 2: train.py."]


async def test_a_cell_that_starts_with_other_code_than_its_sweep_says_so_beside_the_best(sandbox: Sandbox) -> None:
    (sandbox.path / "train.py").write_text(RETRIED.replace("sys.exit(7)", "print('step 1/1 reward 2', flush=True)"))
    async with sandbox.agent_in_process() as agent:
        common = {"command": f"{sys.executable} train.py", "cwd": str(sandbox.path)}
        plan = {"grid": {"lr": [1, 2], "seed": [1, 2]}, "max_parallel": 1, "metric": "reward"}
        sweep = await agent.call("launch_sweep", name="s", common=common, **plan)
        await until_async((sandbox.path / "running").exists, "the first cell")
        (sandbox.path / "train.py").write_text(EDITED)
        (sandbox.path / "go").touch()
        waited = await agent.call("wait_run", run_ids=sweep["sweep_id"], until="end", timeout_s=60)
        runs = (await agent.call("list_runs", sweep=sweep["sweep_id"]))["runs"]
        compared = await agent.call("compare_runs", sweep=sweep["sweep_id"])
        listed = await agent.call("list_runs")
    changed = [run["cell"] for run in runs if changes(sandbox, run["run_id"])]
    assert set(changed) == {"lr1-seed2", "lr2-seed1", "lr2-seed2"}
    told = [note for note in compared["notes"] if "Code changed since the sweep's first launch: train.py." in note]
    assert all(any(cell in note for note in told) for cell in changed)
    best = waited["sweep"]["best"]
    assert (best["mean"], best["code"]) == (3, "not all of the same code")
    assert any("not all of the same code" in line for line in listed["sweeps"]), listed["sweeps"]


async def test_a_comparison_names_the_files_that_differ_and_results_say_what_was_kept(sandbox: Sandbox) -> None:
    write_code(sandbox.path)
    async with sandbox.agent_in_process() as agent:
        first = await agent.launch(f"{sys.executable} train.py 1e-3", name="a", cwd=str(sandbox.path))
        await agent.end(first)
        (sandbox.path / "train.py").write_text(TRAIN.replace("2", "3"))
        (sandbox.path / "lib" / "model.py").write_text("WIDTH = 2\n")
        script = sandbox.path / "train.py"
        second = await agent.launch(f"{sys.executable} {script} 0.001", name="b", cwd=str(sandbox.path))
        await agent.end(second)
        compared = await agent.call("compare_runs", run_ids=[first, second])
        finished = await agent.call("finish_blueprint", run_id=first, result_dir=str(sandbox.path / "out"))
    assert "Code differs: train.py, lib/model.py." in compared["notes"]
    assert not {"command", "commit"} & set(compared["columns"].split("|"))
    results = Path(finished["results_path"]).read_text()
    assert "The state of the code is unknown" not in results
    kept = hashlib.sha256(TRAIN.encode()).hexdigest()[:16]
    assert "- No commit: not a git repository" in results
    assert f"`{sandbox.path / 'train.py'}`, sha256 {kept}, copy: `" in results
    assert "± is one standard error" not in results


async def test_kept_code_runs_as_it_was_at_the_launch_and_its_outputs_stay_in_the_project(sandbox: Sandbox) -> None:
    project = sandbox.path / "project"
    project.mkdir()
    empty = sandbox.path / "empty"
    empty.mkdir()
    write_code(project)
    (project / "data").mkdir()
    (project / "data" / "x.csv").write_text("1")
    (project / "train.py").write_text(
        "import pathlib, sys; sys.path.insert(0, '.')\nimport lib.model\n"
        "out = pathlib.Path(sys.argv[sys.argv.index('--logdir') + 1]); out.mkdir(parents=True, exist_ok=True)\n"
        "(out / 'w').write_text(f'{lib.model.WIDTH} ' + pathlib.Path('data/x.csv').read_text())\n"
    )
    (sandbox.path / "state").mkdir(mode=0o700)
    (sandbox.path / "state" / "config.toml").write_text("cpu_slots = 1\n")
    command = f"{sys.executable} {project}/train.py --logdir runs/one"
    arguments: dict[str, Any] = {"command": command, "cwd": str(project), "code": "kept"}
    async with sandbox.agent_in_process() as agent:
        planned = await agent.call("launch_run", **arguments, dry_run=True)
        assert not (project / "runs").exists()
        assert not (sandbox.path / "state" / "code").exists()
        holder = await hold_slot(sandbox, agent)
        run = await agent.call("launch_run", **arguments, gpus="cpu", queue=True)
        (project / "lib" / "model.py").write_text("WIDTH = 2\n")
        (project / "train.py").write_text("raise SystemExit('edited')\n")
        (sandbox.path / "release").touch()
        await agent.end(holder)
        status = await agent.end(run["run_id"])
        refusal = await agent.refusal("launch_run", command="true", cwd=str(empty), code="kept")
    assert status["state"] == "finished", sandbox.log(run["run_id"])
    assert (project / "runs" / "one" / "w").read_text() == "1 1"
    assert changes(sandbox, run["run_id"]) == []
    assert f"Code: a copy of {project} in " in run["code"]
    assert f"Code: a copy of {project} in " in planned["code"]
    assert "has none" in refusal


async def test_all_cells_of_a_sweep_run_the_code_that_was_kept_at_its_start(sandbox: Sandbox) -> None:
    project = sandbox.path / "project"
    project.mkdir()
    (project / "out").mkdir()
    (project / "out" / "notes.yaml").write_text("a: 1")  # of the code, in the directory of the outputs
    (project / "model.py").write_text("WIDTH = 1\n")
    (project / "train.py").write_text(
        "import model, os, pathlib, sys, time\n"
        "out = pathlib.Path(sys.argv[2]); out.mkdir(parents=True, exist_ok=True)\n"
        "(out / 'w').write_text(str(model.WIDTH))\n"
        "(out / 'eval.json').write_text('{\"success_rate\": 0.9}')\n"
        "print('step 1/1 loss 1', flush=True)\n"
        "while not os.path.exists(sys.argv[3]): time.sleep(0.02)\n"
    )
    command = f"{sys.executable} {project}/train.py --output_dir out/{{sweep}}/{{cell}} {sandbox.path}/go"
    common = {"command": command, "cwd": str(project), "code": "kept"}
    plan: dict[str, Any] = {"common": common, "max_parallel": 1}
    copies = sandbox.path / "state" / "code"
    async with sandbox.agent_in_process() as agent:
        await agent.call("launch_sweep", name="s", **plan, grid={"seed": [1, 2]}, dry_run=True)
        assert not copies.exists()
        refusal = await agent.refusal(
            "launch_sweep", name="s", common={**common, "cwd": None}, grid={"seed": [1]}, dry_run=True
        )
        assert "Pass cwd in common" in refusal
        sweep = (await agent.call("launch_sweep", name="s", **plan, grid={"seed": [1, 2]}))["sweep_id"]
        outputs = project / "out" / sweep
        await until_async((outputs / "seed1" / "w").exists, "the first cell")
        (project / "model.py").write_text("WIDTH = 2\n")
        (project / "train.py").write_text("raise SystemExit('edited')\n")
        (sandbox.path / "go").touch()
        await agent.call("wait_run", run_ids=sweep, until="end", timeout_s=60)
        added = await agent.call("launch_sweep", name=sweep, **plan, grid={"seed": [1, 2, 3]})
        assert "1 cell added" in str(added), added
        ended = await agent.call("wait_run", run_ids=sweep, until="end", timeout_s=60)
        assert ended["sweep"]["cells"] == {"total": 3, "finished": 3}, ended
        runs = (await agent.call("list_runs", sweep=sweep))["runs"]
        compared = await agent.call("compare_runs", sweep=sweep)
        assert "first_step is for runs" in await agent.refusal("wait_run", run_ids=sweep, until="first_step")
    assert [(outputs / f"seed{seed}" / "w").read_text() for seed in (1, 2, 3)] == ["1", "1", "1"]
    assert [changes(sandbox, run["run_id"]) for run in runs] == [[], [], []]
    assert not [note for note in compared.get("notes") or [] if "ode" in note.split()[:3]], compared["notes"]
    assert len(list(copies.iterdir())) == 2, "one copy and its record"
    # Its outputs lie behind a link, and are its own all the same.
    rows = [dict(zip(compared["columns"].split("|"), row.split("|"), strict=True)) for row in compared["rows"]]
    assert [row["eval success_rate mean±sd"] for row in rows] == ["0.9±0"], "of all three"


async def test_one_read_of_a_run_has_the_digests_of_its_configuration_and_its_code(sandbox: Sandbox) -> None:
    write_code(sandbox.path)
    command = f"{sys.executable} train.py --config a.yaml"
    async with sandbox.agent_in_process() as agent:
        read = []
        for name, text in (("a.yaml", "lr: 0.1\n"), ("a.yaml", "lr: 0.2\n"), ("train.py", TRAIN + "# better\n")):
            (sandbox.path / name).write_text(text)
            run_id = await agent.launch(command, cwd=str(sandbox.path))
            await agent.end(run_id)
            await until_async((sandbox.rundir(run_id).code(1) / "code.json").exists, "its copy")
            read.append(await read_run(agent, run_id))
        kept = await agent.launch(command, cwd=str(sandbox.path), code="kept")
        await agent.end(kept)
        read.append(await read_run(agent, kept))
    first, second, third, copied = read
    assert first["configs"] == {"a.yaml": hashlib.sha256(b"lr: 0.1\n").hexdigest()[:12]}
    assert second["configs"] == third["configs"] == {"a.yaml": hashlib.sha256(b"lr: 0.2\n").hexdigest()[:12]}
    assert first["code"]["sources"] == second["code"]["sources"] != third["code"]["sources"]
    assert first["code"]["files"] == 2
    code = sandbox.run(kept).spec.code
    assert code is not None
    assert copied["code"]["copy_hash"] == code["hash"][:12]
