"""Answers say of a run what it did: its last step, the parameters of its attempt, its code at launch."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_server.record.code_snapshot import read_code_snapshot
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
    return subprocess.run(["git", *who, *words], cwd=directory, check=True, capture_output=True, text=True).stdout


async def test_the_results_show_what_was_launched_not_what_is_there_at_the_end(sandbox: Sandbox) -> None:
    code = sandbox.path / "code"
    (code / "conf").mkdir(parents=True)
    (code / "train.py").write_text(TRAIN)
    (code / "conf" / "small.yaml").write_text("lr: 0.1\n")
    git(code, "init")
    git(code, "add", ".")
    git(code, "commit", "-m", "First")
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
    text = Path(answer["results_path"]).read_text()
    assert commit in text
    assert "lr: 0.2\n" in text
    assert "0.9" not in text
    assert (snapshot.python, snapshot.python_version) == (f"{venv}/bin/python", "3.11.99")
    assert snapshot.read_packages() == {"demo-kit": "1.2.3"}
    for path in [*rundir.code(1).rglob("*"), *(sandbox.path / "out").iterdir()]:
        assert path.is_dir() or "abcdef123456" not in path.read_text()
    assert {path.stat().st_mode & 0o077 for path in rundir.code(1).rglob("*")} == {0}
