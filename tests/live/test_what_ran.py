"""Answers say of a run what it did: its last step, the parameters of its attempt, its code at launch."""

import gzip
import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from mcp_server.record.code.code_snapshot import read_code_snapshot
from tests.support.fake_nvml import machine
from tests.support.sandbox import Agent, Sandbox, until_async

pytestmark = pytest.mark.anyio

# Prints a step every few milliseconds, so that the record of its progress is always behind.
LOOP = """
import itertools, time
for step in itertools.count(1):
    print(f"step {step}/100000 loss {1 / step:.4f}", flush=True)
    time.sleep(0.003)
    if step == 300:
        open("printed", "w").close()
"""
# A progress bar: its updates end with a carriage return in front of the next one, so the last has no end.
BAR = r"""
import sys, time
for n in range(0, 41):
    sys.stdout.write(f"\rEpoch 1: {n * 2}%|####      | {n}/50 [00:{n:02}<00:10,  1.00it/s, loss={1 - n / 100:.2f}]")
    sys.stdout.flush()
    time.sleep(0.005)
sys.exit(int(sys.argv[1]))
"""


async def agrees(agent: Agent, run_id: str, status: dict[str, object], step: int, out: Path) -> None:
    """Check that all answers have ``step`` as the last one."""
    assert status["step"] == step, status
    listed = (await agent.call("list_runs", name=run_id.rpartition("-")[0]))["runs"][0]
    assert listed["step"] == step
    compared = await agent.call("compare_runs", run_ids=[run_id])
    assert dict(zip(compared["columns"].split("|"), compared["rows"][0].split("|"), strict=True))["step"] == str(step)
    text = Path((await agent.call("finish_blueprint", run_id=run_id, result_dir=str(out)))["results_path"]).read_text()
    assert f"({step}) |" in text


@pytest.mark.slow
@pytest.mark.parametrize("end", ["killed", "timed_out"])
async def test_a_stopped_run_is_told_with_its_last_step(sandbox: Sandbox, end: str) -> None:
    (sandbox.path / "train.py").write_text(LOOP)
    limit = {"time_limit_s": 4.0} if end == "timed_out" else {}
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch([sys.executable, "train.py"], name="loop", cwd=str(sandbox.path), **limit)
        if end == "killed":
            await until_async((sandbox.path / "printed").exists, "its output")
            await agent.kill(run_id)
        status = await agent.end(run_id)
        last = max(int(step) for step in re.findall(r"^step (\d+)/", sandbox.log(run_id), re.MULTILINE))
        assert (status["state"], status["metrics"]["loss"]) == (end, round(1 / last, 4))
        await agrees(agent, run_id, status, last, sandbox.path / "out")


@pytest.mark.parametrize("code", [0, 3])
async def test_the_last_update_of_a_bar_counts(sandbox: Sandbox, code: int) -> None:
    (sandbox.path / "train.py").write_text(BAR)
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch([sys.executable, "train.py", str(code)], name="bar", cwd=str(sandbox.path))
        status = await agent.end(run_id)
        assert status["exit_code"] == code
        await agrees(agent, run_id, status, 40, sandbox.path / "out")


# --- what is kept at launch

TRAIN = """
import pathlib, sys, time
print("lr", pathlib.Path(sys.argv[1]).read_text().strip(), flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.02)
"""


def git(directory: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    who += ["-c", "protocol.file.allow=always"]  # a submodule beside it
    return subprocess.run(["git", *who, *words], cwd=directory, check=True, capture_output=True, text=True).stdout


async def test_the_results_show_what_was_launched_not_what_is_there_at_the_end(sandbox: Sandbox) -> None:
    code = sandbox.path / "code"
    (code / "conf").mkdir(parents=True)
    (code / "train.py").write_text(TRAIN)
    (code / "conf" / "small.yaml").write_text("lr: 0.1\n")
    part = sandbox.path / "part"
    part.mkdir()
    (part / "lib.py").write_text("A = 1\n")
    for directory in (part, code):
        git(directory, "init")
        git(directory, "add", ".")
        if directory == code:
            git(code, "submodule", "add", str(part), "third")
        git(directory, "commit", "-m", "First")
    (code / "third" / "lib.py").write_text("A = 2\ntoken = 'abcdef123456'\n")
    commit = git(code, "rev-parse", "HEAD").strip()
    (code / "conf" / "small.yaml").write_text("lr: 0.2\napi_key: abcdef123456\n")
    venv = sandbox.path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    (venv / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\nversion = 3.11.99\n")
    (venv / "lib" / f"python3.{sys.version_info.minor}" / "site-packages" / "Demo_Kit-1.2.3.dist-info").mkdir(
        parents=True
    )
    async with sandbox.agent_in_process() as agent:
        command = f"{venv}/bin/python train.py conf/small.yaml"
        run_id = await agent.launch(command, name="kept", cwd=str(code))
        rundir = sandbox.rundir(run_id)
        snapshot = await until_async(
            lambda: (kept := read_code_snapshot(rundir, 1)) and kept.packages and kept, "what ran to be kept"
        )
        (code / "conf" / "small.yaml").write_text("lr: 0.9\n")
        git(code, "commit", "-am", "Second")
        (code / "go").touch()
        await agent.end(run_id)
        answer = await agent.call("finish_blueprint", run_id=run_id, result_dir=str(sandbox.path / "out"))
    assert snapshot.git.commit == commit
    assert [Path(one.path).name for one in snapshot.files] == ["train.py", "small.yaml"]
    assert "+lr: 0.2" in snapshot.read_diff()
    assert "+++ b/third/lib.py\n@@ -1 +1,2 @@\n-A = 1\n+A = 2\n" in snapshot.read_diff()
    text = Path(answer["results_path"]).read_text()
    assert commit in text
    assert "lr: 0.2\n" in text
    assert "lr: 0.9" not in text
    assert (snapshot.python, snapshot.python_version) == (f"{venv}/bin/python", "3.11.99")
    assert snapshot.read_packages() == {"demo-kit": "1.2.3"}
    for path in [*rundir.code(1).rglob("*"), *(sandbox.path / "out").iterdir()]:
        data = b"" if path.is_dir() else path.read_bytes()
        assert b"abcdef123456" not in (gzip.decompress(data) if path.suffix == ".gz" else data)
    assert {path.stat().st_mode & 0o077 for path in rundir.code(1).rglob("*")} == {0}


# --- the parameters that ran

HALVED = """
import argparse, os, pathlib, time
parser = argparse.ArgumentParser()
parser.add_argument("--num_envs", type=int)
parser.add_argument("--wait", default="")
args = parser.parse_args()
results = pathlib.Path("results")
seen = sorted(path.name for path in results.iterdir()) if results.exists() else []
print(f"attempt {os.environ['RUNWARD_ATTEMPT']} sees {seen}", flush=True)
if args.num_envs > 4096:
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
for step in range(1, 6):
    print(f"step {step}/5 reward {args.num_envs / 1024 + step}", flush=True)
"""
BLUEPRINT = """# An experiment

## [exp_purpose]
Find out whether a batch of 8192 environments
fits on the small machine.

## [exp_codebase_dir]
{code}

## [exp_venv_exe]
{python}

## [exp_yaml_path]
conf.yaml

## [exp_launch_command]
```bash
python train.py
```

## [exp_result_dir]
{code}/results

## [exp_max_time]
20 minutes
"""
POLICY = {"oom_gpu": [{"do": "retry", "wait_s": 0, "change": {"num_envs": "halve"}, "times": 3}]}
CHANGED = "num_envs 8192 → 4096 after attempt 1"


@pytest.mark.slow
async def test_every_answer_has_the_halved_value_and_the_flag_comes_after_the_last_attempt(sandbox: Sandbox) -> None:
    code = sandbox.path / "code"
    code.mkdir()
    (code / "train.py").write_text(HALVED)
    (code / "conf.yaml").write_text("lr: 0.1\n")
    (sandbox.path / "fits.md").write_text(BLUEPRINT.format(code=code, python=sys.executable))
    async with sandbox.agent() as agent:
        other = await agent.launch([sys.executable, "train.py"], params={"num_envs": 2048}, cwd=str(code), name="other")
        await agent.end(other)
        run = await agent.call(
            "launch_run",
            blueprint=str(sandbox.path / "fits.md"),
            params={"num_envs": 8192},
            recovery=POLICY,
            env={"LD_LIBRARY_PATH": "/opt/a/lib:/opt/b/lib:/opt/c/lib", "OMP_NUM_THREADS": "4"},
        )
        run_id = run["run_id"]
        status = await agent.end(run_id)
        plain = (code / "results" / "results.md").read_text()
        listed = next(one for one in (await agent.call("list_runs"))["runs"] if one["run_id"] == run_id)
        for answer in (status, listed):
            assert (answer["attempt"], answer["params"], answer["params_changed"]) == (2, {"num_envs": 4096}, [CHANGED])
        compared = await agent.call("compare_runs", run_ids=[run_id, other])
        await agent.call("finish_blueprint", run_id=run_id, summary="It fits when halved.")
    rows = [dict(zip(compared["columns"].split("|"), row.split("|"), strict=True)) for row in compared["rows"]]
    assert [(row["num_envs"], row["attempts"], row["reward last/max@step"]) for row in rows] == [
        ("4096", "2 (attempt 1 oom_gpu)", "9"),
        ("2048", "1", "7"),
    ]
    assert f"{run_id}: {CHANGED}." in compared["notes"]
    # No attempt ever saw a flag: not the second after the first had failed.
    for number in (1, 2):
        assert "finish.flag" not in sandbox.rundir(run_id).log(number).read_text()
    results = (code / "results" / "results.md").read_text()
    for text in (plain, results):
        assert f"- Changed by a retry: {CHANGED}" in text
        assert "## End of the run\n" in text
        assert "erdict" not in text
    assert "# Results: Find out whether a batch of 8192 environments fits on the small machine.\n" in results
    assert "--num_envs 4096\n```" in results
    assert "- Environment: `LD_LIBRARY_PATH=/opt/a/lib`, then 2 more\n" in results
    assert "- Environment: `OMP_NUM_THREADS=4`\n" in results
    assert max(line.count(":/") for line in results.splitlines()) < 3
    log = (code / "results" / "experiment_log.md").read_text()
    assert re.match(rf"# Experiment log\n\n## Launch of {run_id}\n<!-- .* -->\n\n```bash\n.*train.py.*8192\n```\n", log)
    assert {path.stat().st_mode & 0o777 for path in (code / "results").iterdir()} == {0o644}


async def test_a_run_of_no_blueprint_has_its_command_in_the_log_too(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("/bin/echo done", params={"lr": 0.1}, cwd=str(sandbox.path))
        await agent.end(run_id)
        out = sandbox.path / "out"
        await agent.call("finish_blueprint", run_id=run_id, result_dir=str(out))
    log = (out / "experiment_log.md").read_text()
    assert log.index("```bash\n/bin/echo done --lr 0.1\n```") < log.index(f"## End of {run_id}: finished")


WRITES = """
import pathlib, sys
directory = pathlib.Path(sys.argv[sys.argv.index("--output_dir") + 1])
for name in ("params/env.yaml", ".hydra/config.yaml"):
    (directory / name).parent.mkdir(parents=True)
    (directory / name).write_text(f"made_by: {directory.name}\\n")
print("step 1/1 reward 1.0", flush=True)
"""


async def test_the_configuration_that_the_program_wrote_is_in_its_own_results_alone(sandbox: Sandbox) -> None:
    (sandbox.path / "train.py").write_text(WRITES)
    async with sandbox.agent_in_process() as agent:
        ids = [
            await agent.launch([sys.executable, "train.py", "--output_dir", f"logs/{name}"], cwd=str(sandbox.path))
            for name in ("first", "second")
        ]
        for run_id in ids:
            await agent.end(run_id)
        for run_id, own, other in zip(ids, ("first", "second"), ("second", "first"), strict=True):
            answer = await agent.call("finish_blueprint", run_id=run_id, result_dir=str(sandbox.path / f"out-{own}"))
            text = Path(answer["results_path"]).read_text()
            for name in ("params/env.yaml", ".hydra/config.yaml"):
                assert f"logs/{own}/{name}`, as the program wrote it:\n\n```yaml\nmade_by: {own}\n```" in text
            assert f"made_by: {other}" not in text


# --- keeping it never disturbs the run


@pytest.fixture
def slow_git(sandbox: Sandbox) -> dict[str, str]:
    """Variables with which git notes that it began, and takes ten minutes."""
    program = sandbox.path / "slow" / "git"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {sandbox.path}/git-began\nsleep 600\n")
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{sandbox.environ['PATH']}"}


@pytest.mark.slow
async def test_a_git_that_hangs_neither_delays_the_command_nor_outlives_the_run(
    sandbox: Sandbox, slow_git: dict[str, str]
) -> None:
    (sandbox.path / "conf.yaml").write_text("lr: 0.1\n")
    command = "while [ ! -e git-began ]; do sleep 0.02; done; cat conf.yaml"
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(command, env=slow_git, cwd=str(sandbox.path), name="hangs")
        status = await agent.end(run_id)
    assert (status["state"], status["exit_code"]) == ("finished", 0)
    end = sandbox.run(run_id).events[-1]
    assert "leftovers" not in end
    assert "survivors" not in end
    kept = read_code_snapshot(sandbox.rundir(run_id), 1)
    assert kept is not None
    assert [Path(one.path).name for one in kept.files] == ["conf.yaml"]
    assert "git was not read" in " ".join(kept.notes)
    assert not [p for p in sandbox.own_processes() if p.name in ("git", "sleep")]


async def test_a_run_is_killed_while_its_code_is_being_kept(sandbox: Sandbox, slow_git: dict[str, str]) -> None:
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch("sleep 600", env=slow_git, cwd=str(sandbox.path), name="stopped")
        await until_async((sandbox.path / "git-began").exists, "git")
        answer = await agent.kill(run_id)
    assert (answer["status"], answer["survivors"]) == ("killed", [])
    assert sandbox.run(run_id).events[-1]["signals_sent"] == ["SIGINT"]
    await until_async(lambda: not [p for p in sandbox.own_processes() if p.name in ("git", "sleep")], "git's end")


def has_peak(progress: Path, mib: int) -> bool:
    gpus = (json.loads(progress.read_text()) if progress.exists() else {}).get("gpus", {})
    return any(usage.get("peak_mib") == mib for usage in gpus.values())


async def test_the_memory_that_a_run_used_is_compared(sandbox: Sandbox) -> None:
    sandbox.store.home.create()
    (sandbox.path / "state" / "config.toml").write_text("gpu_sample_s = 0.1\n")
    fake = machine(sandbox.path)
    sandbox.environ |= fake.environ
    async with sandbox.agent_in_process() as agent:
        ids = []
        for name, used_mib in (("small", 2048), ("large", 40960)):
            run_id = await agent.launch(
                f"while [ ! -e {name} ]; do echo tick; sleep 0.05; done", gpus=[0], name=name, cwd=str(sandbox.path)
            )
            fake.report(f"zombie 0 {used_mib}")
            await until_async(partial(has_peak, sandbox.rundir(run_id).progress(1), used_mib), "its samples")
            (sandbox.path / name).touch()
            await agent.end(run_id)
            fake.report()
            ids.append(run_id)
        compared = await agent.call("compare_runs", run_ids=ids)
    rows = [dict(zip(compared["columns"].split("|"), row.split("|"), strict=True)) for row in compared["rows"]]
    assert [row["peak GPU GiB"] for row in rows] == ["2.0", "40.0"]
