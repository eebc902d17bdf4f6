"""A run starts again as it was: `launch_run(like=RUN, change=...)`, with the code as it is now, or as it was kept."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp.types import TextResourceContents

from mcp_server.record.spec import RunSpec
from tests.support import fake_slurm
from tests.support.fake_ray import FakeRay
from tests.support.sandbox import Agent, Sandbox
from tests.support.sshd import NAME, FarHost, needs_sshd

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

# Runs out of memory above 4, so that recovery halves it.
HALVED = """
import sys
batch = int(sys.argv[sys.argv.index("--batch_size") + 1])
print("batch", batch, "of", *sys.argv, flush=True)
if batch > 4:
    print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", flush=True)
    sys.exit(1)
"""
RECOVERY = {"oom_gpu": {"do": "retry", "times": 3, "change": {"batch_size": "halve"}, "wait_s": 0}}
OF_ONE_RUN = ("run_id", "created_at", "session", "run_dir", "like", "change", "idempotency_key", "boot_id")


def same(spec: RunSpec, other: RunSpec, **changed: Any) -> bool:
    """Whether two runs were launched alike, but for ``changed`` in the second."""
    own = {name: getattr(other, name) for name in OF_ONE_RUN} | changed
    return replace(spec, **own) == other


async def repeat(agent: Agent, **arguments: Any) -> str:
    return str((await agent.call("launch_run", **arguments))["run_id"])


async def test_a_run_is_repeated_as_it_was_and_by_the_attempt_that_ended_it(sandbox: Sandbox) -> None:
    (sandbox.path / "train.py").write_text(HALVED)
    sandbox.environ["GIFT_TOKEN"] = "hf_9sKdmQ2xZ81LpWvT"
    launch = {
        "command": f"{sys.executable} train.py --lr 0.1",
        "cwd": str(sandbox.path),
        "env": {"SHADE": "a"},
        "secrets": ["GIFT_TOKEN"],
        "params": {"batch_size": 8, "out": "runs/{run_id}"},
        "tensorboard": "tb/{run_id}",
        "recovery": RECOVERY,
        "gpus": "cpu",
        "time_limit_s": 500,
        "stall_timeout_s": 400,
        "tags": ["cube"],
        "name": "cfm",
    }
    async with sandbox.agent_in_process() as agent:
        first = await repeat(agent, **launch, idempotency_key="k")
        await agent.end(first)
        again = await repeat(agent, like=first)
        whole = await repeat(agent, like=f"{first}@1", change={"lr": 0.2, "$SHADE": "b", "time_limit_s": 600})
        for run_id in (again, whole):
            await agent.end(run_id)
        spec = sandbox.run(first).spec
        board = {run_id: str(sandbox.path / "tb" / run_id) for run_id in (again, whole)}
        params = {"batch_size": 4, "out": "runs/{run_id}"}
        assert same(spec, sandbox.run(again).spec, params=params, tensorboard=board[again])
        assert sandbox.run(again).spec.like == f"{first}@2"
        changed = {"command": f"{sys.executable} train.py --lr 0.2", "env": {**spec.env, "SHADE": "b"}}
        other = sandbox.run(whole).spec
        assert same(spec, other, **changed, time_limit_s=600, tensorboard=board[whole])
        assert (sandbox.run(again).attempt, sandbox.run(whole).attempt) == (1, 2)
        assert f"batch 4 of train.py --lr 0.1 --batch_size 4 --out runs/{again}" in sandbox.log(again)


async def test_a_repetition_that_cannot_be_meant_starts_nothing(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        first = await agent.launch("echo step 1", name="one", cwd=str(sandbox.path), params={})
        await agent.end(first)
        for arguments, says in (
            ({"like": "two"}, "Run not found: 'two'"),
            ({"like": f"{first}@2"}, f"names attempt 2, and {first} has 1"),
            ({"like": first, "command": "true"}, f"is that of {first}"),
            ({"change": {"lr": 1}}, "Pass like too"),
            ({"like": first, "change": {"time_limits": 3}}, "Did you mean time_limit_s?"),
        ):
            assert says in await agent.refusal("launch_run", **arguments)
        assert (await agent.call("list_runs"))["total"] == 1
        rehearsed = await agent.call("launch_run", like=first, change={"gpus": "cpu"}, dry_run=True)
        assert "echo step 1" in rehearsed["dry_run_script"]
        assert (await agent.call("list_runs"))["total"] == 1


async def test_a_cell_of_a_sweep_is_repeated_as_a_run_of_its_own(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent:
        common = {"command": "echo seed {seed} of {run_id}", "cwd": str(sandbox.path)}
        sweep = await agent.call("launch_sweep", name="grid", common=common, grid={"seed": [1, 2]})
        await agent.call("wait_run", run_ids=sweep["sweep_id"], until="end")
        cells = (await agent.call("list_runs", sweep=sweep["sweep_id"]))["runs"]
        again = await repeat(agent, like=cells[0]["run_id"])
        assert (await agent.end(again))["state"] == "finished"
        assert sandbox.run(again).spec.sweep is None
        seed = sandbox.log(cells[0]["run_id"]).split(" of ")[0]
        assert f"{seed} of {again}" in sandbox.log(again)


# --- the code as it was

SHOWS = """
import os, pathlib, time
import part
print("model", part.WIDTH, "data", pathlib.Path("data/x.txt").read_text(), flush=True)
pathlib.Path("out").mkdir(exist_ok=True)
pathlib.Path("out", os.environ["RUNWARD_RUN_ID"]).touch()
kept = pathlib.Path(os.environ["RECORDS"], os.environ["RUNWARD_RUN_ID"], "attempts/1/code/packages.txt")
while not kept.exists():
    time.sleep(0.02)
"""


def write_project(directory: Path, *, uses_git: bool) -> None:
    (directory / "data").mkdir(parents=True)
    (directory / "data" / "x.txt").write_text("of today")
    (directory / "train.py").write_text(SHOWS)
    (directory / "part.py").write_text("WIDTH = 1\n")
    (directory / ".gitignore").write_text("data/\nout/\n__pycache__/\n")
    if uses_git:
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
            subprocess.run(["git", "-C", directory, "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)
    (directory / "part.py").write_text("WIDTH = 2\n")  # not committed


@pytest.mark.parametrize("uses_git", [True, False], ids=["git", "no git"])
async def test_the_code_of_a_run_is_had_again_though_it_was_edited_since(sandbox: Sandbox, uses_git: bool) -> None:
    project = sandbox.path / "project"
    write_project(project, uses_git=uses_git)
    env = {"RECORDS": str(sandbox.path / "state" / "runs")}
    command = [sys.executable, str(project / "train.py"), "--output_dir", str(project / "out")]
    async with sandbox.agent_in_process() as agent:
        first = await agent.launch(command, cwd=str(project), name="cfm", env=env)
        await agent.end(first)
        (project / "part.py").write_text("WIDTH = 30\n")
        (project / "train.py").rename(project / "renamed.py")
        rehearsed = await agent.call("launch_run", like=first, code="kept", dry_run=True)
        assert f"Code: that of {first}@1" in rehearsed["code"]
        again = await repeat(agent, like=first, code="kept")
        assert (await agent.end(again))["state"] == "finished", sandbox.log(again)
        assert "model 2 data of today" in sandbox.log(again)
        assert (project / "out" / again).exists()
        (project / "renamed.py").rename(project / "train.py")
        third = await repeat(agent, like=again, code="kept")  # a repetition is kept as well
        assert (await agent.end(third))["state"] == "finished", sandbox.log(third)
        assert "model 2 data of today" in sandbox.log(third)
        fourth = await repeat(agent, like=third)
        assert (await agent.end(fourth))["state"] == "finished", sandbox.log(fourth)
        assert "model 30 data of today" in sandbox.log(fourth)
        assert sandbox.run(fourth).spec.cwd == str(project)


async def test_code_that_cannot_be_had_again_is_named_and_nothing_starts(sandbox: Sandbox) -> None:
    project = sandbox.path / "project"
    write_project(project, uses_git=True)
    env = {"RECORDS": str(sandbox.path / "state" / "runs")}
    async with sandbox.agent_in_process() as agent:
        first = await agent.launch([sys.executable, "train.py"], cwd=str(project), name="cfm", env=env)
        await agent.end(first)
        shutil.rmtree(project / ".git")
        for arguments in ({}, {"dry_run": True}):
            refusal = await agent.refusal("launch_run", like=first, code="kept", **arguments)
            assert f"is the code of {first}@1: {project} has no commit" in refusal
        assert (await agent.call("list_runs"))["total"] == 1
        assert not (sandbox.path / "state" / "code").exists()


@pytest.mark.parametrize("uses_git", [True, False], ids=["git", "no git"])
async def test_what_is_other_than_it_was_is_named_before_the_start(sandbox: Sandbox, uses_git: bool) -> None:
    project, venv = sandbox.path / "project", sandbox.path / "venv"
    write_project(project, uses_git=uses_git)
    (project / "a.yaml").write_text("lr: 0.1\n")
    (project / "train.jsonl").write_text("{}\n")
    packages = venv / "lib" / "python3.11" / "site-packages"
    for place in (packages / "kit-1.0.dist-info", venv / "bin"):
        place.mkdir(parents=True)
    (packages / "kit-1.0.dist-info" / "METADATA").write_text("Name: kit\nVersion: 1.0\n")
    (venv / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\nversion = 3.11.1\n")
    (venv / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    env = {"RECORDS": str(sandbox.path / "state" / "runs")}
    command = [str(venv / "bin" / "python"), "train.py", "--config", "a.yaml", "--train_file", "train.jsonl"]
    async with sandbox.agent_in_process() as agent:
        first = await agent.launch(command, cwd=str(project), name="cfm", env=env)
        assert (await agent.end(first))["state"] == "finished", sandbox.log(first)
        same = await agent.call("launch_run", like=first, dry_run=True)
        drifts = ("Code", "Files", "Packages", "Data", "Variables")
        assert not [one for one in same.get("warnings", []) if one.startswith(drifts)]
        (project / "part.py").write_text("WIDTH = 40\n")
        (project / "a.yaml").write_text("lr: 0.2\n")
        (project / "out" / "cell-1").mkdir(parents=True, exist_ok=True)
        (project / "out" / "cell-1" / "burrow_00010.bin").write_bytes(b"weights")
        (project / "out" / "trace.jsonl").write_text("{}\n")
        (project / "train.jsonl").write_text("{}\n{}\n")
        (packages / "kit-1.0.dist-info").rename(packages / "kit-2.0.dist-info")
        told = (await agent.call("launch_run", like=first, dry_run=True))["warnings"]
        assert {"Code differs: part.py.", 'code="kept" runs it as it was.'} <= {*told}, "no output of a run is code"
        assert "Files that the command names differ: a.yaml." in told
        assert "Packages: kit 1.0 → 2.0." in told
        assert f"Data file {project / 'train.jsonl'}: 3 B → 6 B." in told
        again = await repeat(agent, like=first, change={"$SHADE": "b", "dropout": 3})
        assert (await agent.end(again))["state"] == "finished"
        diff = (await agent.call("compare_runs", run_ids=[first, again], diff=True))["diff"]
        assert {"dropout: none → 3", "Variables: $SHADE.", "Packages: kit 1.0 → 2.0."} <= {*diff}, diff
        assert [one for one in diff if one.endswith("lr: 0.1 → 0.2")], diff
        assert [one for one in diff if "part.py" in one]
        assert f"Data file {project / 'train.jsonl'}: 3 B → 6 B." in diff
        assert "is of two runs" in await agent.refusal("compare_runs", run_ids=[first], diff=True)
        kept = (await agent.call("launch_run", like=first, code="kept", dry_run=True))["warnings"]
        assert not [one for one in kept if one.startswith(("Code", "Files"))]
        assert "Packages: kit 1.0 → 2.0." in kept


@needs_sshd
@pytest.mark.parametrize("uses_git", [True, False], ids=["git", "no git"])
async def test_the_code_of_a_run_on_another_host_is_laid_out_there(
    sandbox: Sandbox, far_host: FarHost, uses_git: bool
) -> None:
    project = sandbox.path / "project"
    write_project(project, uses_git=uses_git)
    env = {"RECORDS": str(far_host.state / "runs")}
    async with sandbox.agent() as agent:
        first = await agent.launch([sys.executable, "train.py"], cwd=str(project), name="cfm", env=env, host=NAME)
        await agent.end(first)
        (project / "part.py").write_text("WIDTH = 30\n")
        rehearsed = await agent.call("launch_run", like=first, code="kept", dry_run=True)
        assert f"that of {first}@1" in rehearsed["code"]
        assert not list((far_host.state / "code").glob("*"))
        again = await repeat(agent, like=first, code="kept")
        assert (await agent.end(again))["state"] == "finished"
        now = await repeat(agent, like=first)
        assert (await agent.end(now))["state"] == "finished"
        printed = [await agent.text("read_log", run_id=run_id) for run_id in (again, now)]
        assert ["model 2 data of today" in text for text in printed] == [True, False]
        assert "model 30 data of today" in printed[1]


@needs_sshd
async def test_code_that_was_sent_is_had_again_and_sent_anew(sandbox: Sandbox, far_host: FarHost) -> None:
    project = sandbox.path / "project"
    write_project(project, uses_git=True)
    env = {"RECORDS": str(far_host.state / "runs")}
    command = f"mkdir -p data && echo of today > data/x.txt && {sys.executable} train.py"
    async with sandbox.agent() as agent:
        first = await agent.launch(command, cwd=str(project), name="cfm", env=env, host=NAME, sync="git")
        assert (await agent.end(first))["state"] == "finished"
        (project / "part.py").write_text("WIDTH = 30\n")
        texts = []
        for arguments in ({"code": "kept"}, {}):
            again = await repeat(agent, like=first, **arguments)
            assert (await agent.end(again))["state"] == "finished", await agent.text("read_log", run_id=again)
            texts.append(await agent.text("read_log", run_id=again))
        assert "model 2 data" in texts[0]
        assert "model 30 data" in texts[1]


WRITER = """
import pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
out.mkdir(parents=True, exist_ok=True)
heat = sys.argv[sys.argv.index("--heat") + 1]
(out / "kiln_log.csv").write_text(f"step,warp\\n1,{heat}\\n2,{heat}\\n")
"""


async def test_a_repeated_blueprint_leaves_the_results_of_the_former_run_where_they_are(sandbox: Sandbox) -> None:
    (sandbox.path / "kiln.py").write_text(WRITER)
    results = sandbox.path / "results"
    (document := sandbox.path / "kiln_heat.md").write_text(
        f"## [exp_purpose]\nIs heat 1 too hot?\n## [exp_codebase_dir]\n{sandbox.path}\n"
        f"## [exp_venv_exe]\n{sys.executable}\n## [exp_yaml_path]\nnone\n"
        "## [exp_launch_command]\n```\npython kiln.py --heat 0.3 --out ${exp_result_dir}\n```\n"
        f"## [exp_result_dir]\n{results}\n## [exp_max_time]\n5 minutes\n"
    )
    async with sandbox.agent_in_process() as agent:
        first = await repeat(agent, blueprint=str(document))
        await agent.end(first)
        await agent.call("finish_blueprint", run_id=first, summary="Not at all.")
        before = {path.name: path.read_text() for path in results.iterdir()}
        again = await repeat(agent, like=first, change={"heat": 0.9})
        await agent.end(again)
        third = await agent.call("launch_run", like=again, change={"heat": 1.5}, wait_s=30)
        assert {path.name: path.read_text() for path in results.iterdir()} == before
        for run_id, heat in ((again, "0.9"), (third["run_id"], "1.5")):
            own = Path(f"{results}-{run_id}")
            assert (own / "kiln_log.csv").read_text() == f"step,warp\n1,{heat}\n2,{heat}\n"
            assert f"runward run {run_id}," in (own / "results.md").read_text()
        told = f"Its results go to {results}-{third['run_id']}: those of {again}@1 stay where they are."
        assert told in third["warnings"]
        assert not [one for one in third["warnings"] if "may overwrite" in one]
        assert third["next_step"].startswith("finish_blueprint ")
        resumed = await agent.call("launch_run", like=first, change={"resume": "yes"}, dry_run=True)
        assert "-{run_id}" not in resumed["dry_run_script"], "it goes on with the files of the former run"
        last = await repeat(agent, blueprint=str(document))
        await agent.end(last)
        ran = (await agent.client.read_resource(f"run://{first}")).contents[0]
        assert isinstance(ran, TextResourceContents)
        assert json.loads(ran.text)["results"]["document"] == f"{results}/results-{first}.md"


# --- on schedulers


@pytest.mark.parametrize("uses_git", [True, False], ids=["git", "no git"])
@pytest.mark.parametrize("backend", ["slurm", "ray"])
async def test_a_job_is_repeated_as_a_job_with_the_code_as_it_was(
    sandbox: Sandbox, backend: str, uses_git: bool
) -> None:
    project = sandbox.path / "project"
    write_project(project, uses_git=uses_git)
    head = FakeRay() if backend == "ray" else None
    fake_slurm.install(sandbox.path / "slurm")
    (sandbox.path / "slurm" / "kill_wait_s").write_text("20")
    sandbox.environ["PATH"] = f"{sandbox.path}/slurm:{sandbox.environ['PATH']}"
    options = {"address": head.address} if head is not None else {}
    launch: dict[str, Any] = {
        "command": [sys.executable, "train.py"],
        "cwd": str(project),
        "env": {"RECORDS": str(sandbox.path / "state" / "runs")},
        "backend": backend,
        "backend_options": options,
        "name": "job",
    }
    try:
        async with sandbox.agent_in_process() as agent:
            first = await repeat(agent, **launch)
            assert (await agent.end(first))["state"] == "finished", sandbox.log(first)
            (project / "part.py").write_text("WIDTH = 30\n")
            drift = (await agent.call("launch_run", like=first, dry_run=True))["warnings"]
            assert any("part.py" in one for one in drift), drift
            again = await repeat(agent, like=first, code="kept")
            now = await repeat(agent, like=first, change={"$SHADE": "b"})
            for run_id, width in ((again, 2), (now, 30)):
                assert (await agent.end(run_id))["state"] == "finished", sandbox.log(run_id)
                assert f"model {width} data of today" in sandbox.log(run_id)
                assert sandbox.run(run_id).spec.backend == backend
                assert sandbox.run(run_id).job_id != sandbox.run(first).job_id
    finally:
        sandbox.close()
        if head is not None:
            head.end()
