"""A blueprint from its file to its flag, by a real client: checked, launched, ended, finished."""

# ruff: noqa: RUF001 - people write full-width punctuation

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.sandbox import Sandbox, until_async

pytestmark = pytest.mark.anyio

TRAIN = """
import json, os, sys, time
print("config", open(sys.argv[1]).read().strip(), "with", sys.executable, flush=True)
for step in range(1, 4):
    print(f"step {step}/3 loss {1 / step:.3f}", flush=True)
if os.path.exists("fail"):
    raise KeyError("lr")
"""
BLUEPRINT = """# An experiment

## [exp_purpose]
Compare the learning rate of the small actor

## [exp_codebase_dir]
{code}

## [exp_venv_exe]
{python}

## [exp_yaml_path]
configs/small.yaml

## [exp_launch_command]
```bash
python train.py ${{exp_yaml_path}}
```

## [exp_result_dir]
{results}

## [exp_max_time]
20 minutes
"""


@pytest.fixture
def blueprint(sandbox: Sandbox) -> Path:
    """A blueprint whose code, python and configuration are there, on a host with a keyword."""
    code = sandbox.path / "code"
    (code / "configs").mkdir(parents=True)
    (code / "configs" / "small.yaml").write_text("lr: 0.1\n")
    (code / "train.py").write_text(TRAIN)
    path = sandbox.path / "lr.md"
    path.write_text(BLUEPRINT.format(code=code, python=sys.executable, results=sandbox.path / "results"))
    sandbox.store.home.create()
    host = f'[hosts.here]\nhostnames = ["{os.uname().nodename}"]\nkeyword = "ajet"\n'
    (sandbox.path / "state" / "hosts.toml").write_text(host)
    return path


def left(sandbox: Sandbox) -> set[str]:
    return {path.name for path in (sandbox.path / "results").iterdir()}


async def test_a_blueprint_is_checked_launched_ended_and_finished(sandbox: Sandbox, blueprint: Path) -> None:
    async with sandbox.agent_in_process() as agent:
        check = await agent.call("check_blueprint", path=str(blueprint))
        assert (check["ok"], check["time_limit_s"], check["problems"]) == (True, 1200, [])
        run = await agent.call("launch_run", blueprint=str(blueprint))
        assert run["session"].startswith("ajet-lr-Compare-the-learning-rate")
        spec = sandbox.run(run["run_id"]).spec
        assert (spec.time_limit_s, spec.cwd) == (1200, str(sandbox.path / "code"))
        log = (sandbox.path / "results" / "experiment_log.md").read_text()
        assert f"train.py {sandbox.path}/code/configs/small.yaml" in log
        end = await agent.end(run["run_id"])
        assert end["state"] == "finished"
        flag = json.loads((sandbox.path / "results" / "finish.flag").read_text())  # the end came after it
        assert (flag["run_id"], flag["state"]) == (run["run_id"], "finished")
        assert f"config lr: 0.1 with {sys.executable}" in sandbox.log(run["run_id"])
        for _ in range(2):
            finished = await agent.call("finish_blueprint", run_id=run["run_id"], summary="It learned.")
            text = Path(finished["results_path"]).read_text()
            assert "It learned." in text
            assert "Compare the learning rate" in text
    assert left(sandbox) >= {"experiment_log.md", "results.md", "finish.flag"}


def pids(sandbox: Sandbox) -> list[int]:
    """The processes of the sandbox; those that tmux has not yet waited for have ended."""
    return [process.pid for process in sandbox.own_processes()]


@pytest.mark.parametrize("grace_s", [0, 0.3])
async def test_a_failure_leaves_its_results_and_its_flag_as_well(
    sandbox: Sandbox, blueprint: Path, grace_s: float
) -> None:
    (sandbox.path / "state" / "config.toml").write_text(f"repair_grace_s = {grace_s}\n")
    (sandbox.path / "code" / "fail").touch()
    flag = sandbox.path / "results" / "finish.flag"
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(None, blueprint=str(blueprint))  # type: ignore[arg-type]
        end = await agent.end(run_id)
        assert (end["state"], end["failure"]["kind"]) == ("failed", "python_error")
        assert "KeyError: 'lr'" in (sandbox.path / "results" / "results.md").read_text()
        if grace_s:
            await until_async(flag.exists, "the flag after the grace")
    assert json.loads(flag.read_text())["state"] == "failed"
    assert sandbox.run(run_id).events[-1]["kind"] == "ended"  # nothing follows an end


@pytest.mark.slow
async def test_nobody_sees_a_flag_while_a_failed_run_is_repaired(sandbox: Sandbox, blueprint: Path) -> None:
    (sandbox.path / "state" / "config.toml").write_text("repair_grace_s = 1800\n")
    fault, results = sandbox.path / "code" / "fail", sandbox.path / "results"
    fault.touch()
    async with sandbox.agent_in_process() as agent:
        first = await agent.launch(None, blueprint=str(blueprint))  # type: ignore[arg-type]
        end = await agent.end(first)
        assert end["events"][-1]["text"].endswith("finish.flag follows in 30 min, unless it is launched again.")
        supervisor = sandbox.supervisor(first)
        assert supervisor in pids(sandbox)
        assert left(sandbox) >= {"experiment_log.md", "results.md"}
        assert "finish.flag" not in left(sandbox)
        fault.unlink()
        second = await agent.launch(None, blueprint=str(blueprint))  # type: ignore[arg-type]
        assert (await agent.end(second))["state"] == "finished"
    assert json.loads((results / "finish.flag").read_text())["run_id"] == second
    await until_async(lambda: supervisor not in pids(sandbox), "the end of the first supervisor")
    assert json.loads((results / "finish.flag").read_text())["run_id"] == second


@pytest.mark.slow
@pytest.mark.parametrize("end", ["finish_blueprint", "SIGTERM", "session"])
async def test_a_failed_run_that_nobody_repairs_has_its_flag_before_the_grace_is_over(
    sandbox: Sandbox, blueprint: Path, end: str
) -> None:
    (sandbox.path / "state" / "config.toml").write_text("repair_grace_s = 1800\n")
    (sandbox.path / "code" / "fail").touch()
    flag = sandbox.path / "results" / "finish.flag"
    async with sandbox.agent_in_process() as agent:
        run = await agent.call("launch_run", blueprint=str(blueprint))
        run_id, session = run["run_id"], run["session"]
        await agent.end(run_id)
        supervisor = sandbox.supervisor(run_id)
        assert supervisor in pids(sandbox)
        assert not flag.exists()
        if end == "finish_blueprint":
            await agent.call("finish_blueprint", run_id=run_id, summary="It cannot be repaired.")
        elif end == "SIGTERM":
            os.kill(supervisor, signal.SIGTERM)
        else:
            sandbox.tmux("kill-session", "-t", f"={session}")
        await until_async(flag.exists, "the flag")
        await until_async(lambda: supervisor not in pids(sandbox), "the end of the supervisor")
    assert json.loads(flag.read_text())["state"] == "failed"
    assert ("It cannot be repaired." in (flag.parent / "results.md").read_text()) is (end == "finish_blueprint")


async def test_what_is_said_explicitly_wins(sandbox: Sandbox, blueprint: Path) -> None:
    async with sandbox.agent_in_process() as agent:
        run = await agent.call(
            "launch_run",
            blueprint=str(blueprint),
            command="echo mine",
            name="mine",
            time_limit_s=60,
            cwd=str(sandbox.path),
        )
        await agent.end(run["run_id"])
        spec = sandbox.run(run["run_id"]).spec
    assert (spec.command, spec.name, spec.time_limit_s, spec.cwd) == ("echo mine", "mine", 60, str(sandbox.path))


async def test_a_blueprint_that_cannot_be_run_starts_nothing_and_names_its_lines(
    sandbox: Sandbox, blueprint: Path
) -> None:
    blueprint.write_text(blueprint.read_text().replace("20 minutes", "soon"))
    line = blueprint.read_text().splitlines().index("soon") + 1
    async with sandbox.agent_in_process() as agent:
        refused = await agent.refusal("launch_run", blueprint=str(blueprint))
        assert f"Line {line}:" in refused
        check = await agent.call("check_blueprint", path=str(blueprint))
        assert [problem["line"] for problem in check["problems"]] == [line]
    assert not (sandbox.path / "results").exists()
    assert list((sandbox.path / "state" / "runs").iterdir()) == []


async def test_a_new_launch_takes_an_old_flag_away_before_it_starts(sandbox: Sandbox, blueprint: Path) -> None:
    begun = sandbox.path / "begun"
    (sandbox.path / "code" / "train.py").write_text(
        f"import time\nopen({str(begun)!r}, 'w').close()\ntime.sleep(300)\n"
    )
    (sandbox.path / "results").mkdir()
    (sandbox.path / "results" / "finish.flag").write_text("old")
    async with sandbox.agent_in_process() as agent:
        run_id = await agent.launch(None, blueprint=str(blueprint))  # type: ignore[arg-type]
        assert "finish.flag" not in left(sandbox)
        await until_async(begun.exists, "the command")  # a run may be called started a moment before
        os.kill(sandbox.supervisor(run_id), signal.SIGKILL)
        await until_async(lambda: sandbox.run(run_id).state == "lost", "the supervisor's end")
        finished = await agent.call("finish_blueprint", run_id=run_id)
        assert finished["state"] == "lost"
        assert "finish.flag" in left(sandbox)
        await agent.kill(run_id)


@pytest.fixture
def other_root(sandbox: Sandbox) -> str:
    """The root of another machine, which is ``sandbox.path / "code"`` here; every run here wants a secret."""
    other = f"{sandbox.path}/elsewhere"
    hosts = f"""
[hosts.here]
hostnames = ["{os.uname().nodename}"]
roots = ["{sandbox.path}/code"]
environment = "rl"
[hosts.there]
roots = ["{other}"]
[environments.rl]
secrets = ["WANDB_API_KEY"]
"""
    sandbox.store.home.create()
    (sandbox.path / "state" / "hosts.toml").write_text(hosts)
    return other


async def test_a_blueprint_of_another_host_is_refused_with_every_line_rewritten(
    sandbox: Sandbox, blueprint: Path, other_root: str
) -> None:
    text = (
        blueprint.read_text().replace(f"{sandbox.path}/code", other_root).replace("configs/", f"{other_root}/configs/")
    )
    blueprint.write_text(text.replace("python train.py", f"python {other_root}/train.py"))
    async with sandbox.agent_in_process() as agent:
        check = await agent.call("check_blueprint", path=str(blueprint))
        refused = await agent.refusal("launch_run", blueprint=str(blueprint), environment="none")
        preflight = await agent.call("preflight", blueprint=str(blueprint), environment="none")
    assert check["ok"]
    assert [each["text"].partition(" is a path of another host")[2] for each in check["problems"]] == [
        f": {other_root}. Write {sandbox.path}/code.",
        f": {other_root}/configs/small.yaml. Write {sandbox.path}/code/configs/small.yaml.",
        f", and this is here. Use `python {sandbox.path}/code/train.py {sandbox.path}/code/configs/small.yaml`.",
    ]
    for each in check["problems"]:
        assert f"Line {each['line']}: {each['text'].rstrip('.')}." in refused
    assert [each["text"].partition(": ")[2] for each in preflight["problems"]] == [
        each["text"] for each in check["problems"]
    ]


async def test_another_hosts_path_is_refused_before_any_other_fault(sandbox: Sandbox, other_root: str) -> None:
    (sandbox.path / "code").mkdir()
    async with sandbox.agent_in_process() as agent:  # it has no WANDB_API_KEY
        refused = await agent.refusal("launch_run", command="python train.py", cwd=other_root)
        preflight = await agent.call("preflight", command="python train.py", cwd=other_root)
    assert f"Use `{sandbox.path}/code`" in refused
    (problem,) = (each for each in preflight["problems"] if each["what"] == "cwd")
    assert problem["text"] in refused
    assert problem["remedy"] == f"Use `{sandbox.path}/code`."


async def test_two_runs_of_one_result_directory_leave_its_flag_to_the_later(sandbox: Sandbox, blueprint: Path) -> None:
    (sandbox.path / "code" / "train.py").write_text("import time\ntime.sleep(300)\n")
    async with sandbox.agent_in_process() as agent:
        first = await agent.launch(None, blueprint=str(blueprint))  # type: ignore[arg-type]
        second = await agent.launch(None, blueprint=str(blueprint))  # type: ignore[arg-type]
        await agent.kill(first)
        await agent.end(first)
        assert "finish.flag" not in left(sandbox)
        await agent.kill(second)
        await agent.end(second)
    assert json.loads((sandbox.path / "results" / "finish.flag").read_text())["run_id"] == second


async def test_a_blueprint_is_read_where_the_hosts_file_is_broken(sandbox: Sandbox, blueprint: Path) -> None:
    (sandbox.path / "state" / "hosts.toml").write_text("[hosts")
    async with sandbox.agent_in_process() as agent:
        assert (await agent.call("check_blueprint", path=str(blueprint)))["ok"]


SHOW = """
import json, os, sys
print("SHOWN", json.dumps([sys.argv[1:], os.getcwd(), sys.executable]), flush=True)
"""
ARRAY = """\
---
params:
  num_envs: 4096
seed: 7
recovery: none
tensorboard: runs/tb
---
# 实验蓝图

## 一、实验目的
- 说明：验证 LoRA 的效果
- 内容1：与全参数训练比较
- 内容2：

## 二、代码目录
./my code

## 三、Python 环境
{python}

## 四、启动命令
```bash
ARGS=(
  --lr 1e-4   # TODO tune
  --note "a b"
)
python show.py "${{ARGS[@]}}" {{params}} 2>&1 | tee show.txt
exit ${{PIPESTATUS[0]}}
```

## 五、结果目录
results/run\\_1

## 六、最长运行时间
二十四小时 / 首步 30 分钟

## 七、备注
- ……
- TODO: ...
"""
TABLE = """\
| Section | Value |
|---|---|
| [exp\\_purpose] | Does it run?<br>We expect 0. |
| exp_codebase_dir | {directory}/my code |
| exp_launch_command | `export A=1`<br>`python show.py --out ${{exp_result_dir}} \\| tee show.txt` |
| exp_venv_exe | {python} |
| exp_max_time | 10M frames or 2h30 |
"""


async def test_loosely_written_blueprints_run_as_they_were_meant(sandbox: Sandbox) -> None:
    directory = sandbox.path / "blueprints"
    (directory / "my code").mkdir(parents=True)
    (directory / "my code" / "show.py").write_text(SHOW)
    for name, text in (("array_of_options", ARRAY), ("table_of_sections", TABLE)):
        (directory / f"{name}.md").write_text(text.format(python=sys.executable, directory=directory))
    async with sandbox.agent() as agent:
        shown, specs = {}, {}
        for name, problems in (("array_of_options", []), ("table_of_sections", [7])):
            path = str(directory / f"{name}.md")
            check = await agent.call("check_blueprint", path=path)
            assert (check["ok"], [each["line"] for each in check["problems"]]) == (True, problems)
            run = await agent.call("launch_run", blueprint=path)
            assert run["session"].startswith(name)
            assert (await agent.end(run["run_id"]))["state"] == "finished"
            line = next(line for line in sandbox.log(run["run_id"]).splitlines() if line.startswith("SHOWN"))
            shown[name], specs[name] = json.loads(line.removeprefix("SHOWN")), sandbox.run(run["run_id"]).spec
    code = str(directory / "my code")
    words = ["--lr", "1e-4", "--note", "a b", "--num_envs", "4096", "--seed", "7"]
    assert shown["array_of_options"] == [words, code, sys.executable]
    assert shown["table_of_sections"] == [["--out", str(directory / "table_of_sections")], code, sys.executable]
    assert [(spec.time_limit_s, spec.first_step_timeout_s) for spec in specs.values()] == [
        (86_400, 1_800),
        (9_000, None),
    ]
    assert specs["array_of_options"].tensorboard == f"{code}/runs/tb"
    assert (directory / "results" / "run_1" / "finish.flag").exists()
