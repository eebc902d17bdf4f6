"""Every example of the guides and agent files is executed as it stands in the text: calls, settings, commands.

What a reader fills in (``...``, ``run_id``, ``/project``) is filled in here. A launch is a dry run, a wait takes
no time.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from pydantic import BaseModel, ValidationError

import mcp_server
from mcp_server.blueprints.parser import parse_blueprint
from mcp_server.gpus.request import parse_gpus
from mcp_server.hosts.config import Environment, Host, HostsFile, Ray
from mcp_server.results.figures import names_value
from mcp_server.runs.launch.arguments import normalize_policy
from mcp_server.scalars.condition import parse_condition
from mcp_server.store.state_home import Config, NotifySettings
from mcp_server.sweeps.trials.open_plan import parse_open
from tests.resources.test_prompt_files import tools
from tests.support import fake_nvml, fake_slurm
from tests.support.guide_examples import (
    HOLE,
    TEXTS,
    ToolCall,
    blocks,
    check_command,
    list_assignments,
    list_calls,
    list_commands,
    list_settings,
    quoted,
    read_arguments,
)
from tests.support.repository import git
from tests.support.sandbox import Agent, Sandbox, text_of, until_async

ROOT = Path(mcp_server.__file__).parent.parent
TOOLS = tools()
WRITTEN = {name: text for name, text in TEXTS.items() if name != "prompts/reference.md"}
WRITTEN["README.md"] = (ROOT / "README.md").read_text()
# Arguments that cannot be tried here, and where they are.
ELSEWHERE = {"host": "another machine: test_far_runs", "confirm_token": "a token is of one stop: test_kill"}
# Examples that cannot be executed here, by a part of their text.
NOT_HERE = {
    'backend="ray", backend_options': "asks a cluster that answers: test_ray_jobs",
    'source="verl:': "reads data files and models that are not here: tests/sweeps/sources/test_hydra_source",
    'promote="<run_id>", common={"command": "..."': "closed: no person has opened the gate here: test_gpu_runs",
    'launch_sweep(name="<sweep>")': "goes on with a sweep that has not finished: test_sweeps",
    '"Train/mean_episode_length"': "tags of rsl_rl, which a run here does not write: tests/scalars",
    "gpu_check(host=": "another machine: test_far_runs",
    "list_runs(host=": "another machine: test_far_runs",
    "preflight(host=": "another machine: test_far_runs",
}
FOREIGN = {"k", "key", "http_proxy", "logdir"}  # names before `=` that are not arguments
BLUEPRINT = (
    "## [exp_purpose]\nDoes it learn?\n## [exp_launch_command]\n```\npython train.py\n```\n## [exp_max_time]\n1 hour\n"
)


def values_of(node: Any) -> Any:
    """The values in a tree of arguments."""
    if isinstance(node, dict):
        return [value for each in node.values() for value in values_of(each)]
    return [value for each in node for value in values_of(each)] if isinstance(node, list) else [node]


def refusal_of(tool: str, arguments: dict[str, Any]) -> str | None:
    """Why the schema of a tool refuses arguments; what the reader fills in is not judged."""
    schema = TOOLS[tool]["inputSchema"]
    if unknown := arguments.keys() - schema["properties"].keys():
        return f"{tool} has no argument {', '.join(unknown)}"
    for name, value in arguments.items():
        if HOLE in values_of(value):
            continue
        definitions = {key: schema[key] for key in ("$defs",) if key in schema}
        try:
            jsonschema.validate(value, {**schema["properties"][name], **definitions})
        except jsonschema.ValidationError as error:
            return f"{tool}: {name}: {error.message}"
    return None


@pytest.mark.parametrize("call", list_calls(), ids=lambda call: call.title[:70])
def test_a_call_of_a_guide_is_one_that_its_tool_takes(call: ToolCall) -> None:
    assert call.tool in TOOLS, call.title
    assert refusal_of(call.tool, call.arguments) is None, call.title


@pytest.mark.parametrize(("guide", "piece", "arguments"), list_assignments())
def test_arguments_that_stand_alone_are_those_of_a_tool(guide: str, piece: str, arguments: dict[str, Any]) -> None:
    if FOREIGN & arguments.keys():
        return
    refusals = [refusal_of(tool, arguments) for tool in TOOLS]
    assert None in refusals, f"{guide}: {piece}: {[r for r in refusals if r and 'no argument' not in r] or refusals[0]}"


# --- settings, commands, documents


@pytest.mark.parametrize(("guide", "line"), list_settings())
def test_a_line_of_settings_is_one_that_its_file_takes(guide: str, line: str) -> None:
    ((key, value),) = tomllib.loads(line).items()
    models: list[type[BaseModel]] = [Config, NotifySettings, Host, Environment, Ray]
    models = [model for model in models if key in model.model_fields]
    assert models, f"{guide}: no setting is named {key}"
    needed = {Host: {"name": "m2"}, NotifySettings: {"webhook": "https://ntfy.sh/x"}}
    problems = []
    for model in models:
        try:
            model.model_validate({**needed.get(model, {}), key: value})
        except ValidationError as error:
            problems.append(str(error))
    assert len(problems) < len(models), f"{guide}: {line}: {problems}"


@pytest.mark.parametrize("guide", TEXTS)
def test_a_block_of_settings_commands_or_a_document_is_one_that_can_be_used(guide: str) -> None:
    for language, text in blocks(TEXTS[guide]):
        if language == "toml":
            settings = tomllib.loads(text)
            model = HostsFile if {"hosts", "environments"} & settings.keys() else Config
            model.model_validate(settings)
        elif language == "markdown":
            assert [fault.text for fault in parse_blueprint(text).faults] == [], guide
        elif not language and not text.lstrip().startswith(("launch_", "propose(", "runward ls ")):
            done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{guide}: {done.stderr}"


@pytest.mark.parametrize(("guide", "line"), list_commands(WRITTEN))
def test_a_command_line_is_one_that_the_program_takes(guide: str, line: str) -> None:
    assert check_command(line) is None, f"{guide}: {line}: {check_command(line)}"


def test_a_policy_of_recovery_is_one_that_a_launch_takes() -> None:
    policies = [piece for text in TEXTS.values() for piece in quoted(text) if piece.startswith('{"extends"')]
    assert policies
    for piece in policies:
        assert normalize_policy(json.loads(piece))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("launch_run(comand='python train.py')", "no argument"),
        ("wait_run(run_ids='a', timeout_s=-1)", "minimum"),
        ("launch_run(command='x', queue='yes')", "boolean"),
        ("compare_runs(tags=7)", "7 is not"),
    ],
)
def test_a_wrong_call_would_be_found(wrong: str, why: str) -> None:
    tool, _, inside = wrong.partition("(")
    assert why in str(refusal_of(tool, read_arguments(inside.removesuffix(")"))))


@pytest.mark.parametrize("line", ["runward sweeps", "runward wait cfm --timeot 3", "runward kill", "runward token add"])
def test_a_wrong_command_would_be_found(line: str) -> None:
    assert (check_command(line) is None) == (line == "runward kill")  # which only names the command


# --- the pieces in backquotes that are none of these

# A name, a path, a field or a word: no example.
PLAIN = re.compile(r"[\w./*<>{}~:$@%+?&#-]+(?:\(\))?|[+@&]+|\$\(date\)|-\w \S+|--\S+(?: \S+)?|\[exp_\w+\]|\w+ \w+")
VALUE = re.compile(r'[\[{"\']|\w+%:')
# Pieces that are neither calls, arguments, settings, commands nor values, by a pattern, and why nothing executes them.
NOT_EXECUTED = {
    r"exp_launch_command: \||(params|seed|num_envs|name|stopped_by|status): .+|: ": "a line of a document or an answer",
    r"1 1/2 days|\d x \d hours = .*|4 h per arm.*|First step within .*": "a limit in words: tests/blueprints",
    r"(Could|Failed|Session|Ray runtime|epoch 3|reward ended|attempt 1-2|fail|0\.399|256→|RUN_ID-).*": "printed words",
    r"(claude|uvx?|pip|curl|loginctl|module|salloc|tmux|sleep|ssh m2|/mcp__\w+|-e|exit) .*": "another program's",
    r"git merge runward/.*": "of a person",
    r"\| tee.*|a,b|[A-Z]\w+=\S*|\d,\d|&&": "a part of a command, or a variable",
    r"/data/(run_\$|code on ).*|<keyword .*|\"\$@\"|bash -c '\.\.\.'|--flag false": "a place, or words",
    r"doit:walk.*|verl:agent.*|'agent\.tools=.*": "a source or setting of another program: tests/sweeps/sources",
}
PROGRAMS: tuple[str, ...] = (
    "python",
    "bash",
    "ray",
    "sbatch",
    "srun",
    "scancel",
    "pkill",
    "killall",
    "kill",
    "fuser",
    "nohup",
    "vllm",
)
PROGRAMS += ("redis-server", "cp", "ssh machine2", "ssh -tt", "tmux kill")


def list_pieces() -> list[tuple[str, str]]:
    """Every piece in backquotes that is an example of something else than calls, arguments and settings."""
    known = {piece for _, piece, _ in list_assignments()} | {piece for _, piece in list_settings()}
    found = []
    for guide, text in WRITTEN.items():
        for piece in dict.fromkeys(quoted(text)):
            is_call = re.match(r"([a-z]+_[a-z_]+|preflight|propose)\(", piece) is not None
            is_plain = PLAIN.fullmatch(piece) and not piece.startswith(tuple(f"{name} " for name in PROGRAMS))
            if not (is_call or piece in known or piece.startswith("runward ") or is_plain):
                found.append((guide, piece))
    return found


def check_value(piece: str) -> bool:
    """Whether a value that stands alone is one that recovery, `gpus`, `until`, `metrics` or an argument takes."""
    if re.fullmatch(r"(best|mean10%):\S+|\S+@\d+", piece):
        return names_value(piece)
    text = piece.replace("{...}", '{"exit_code": 3}').replace("[...]", '["stop"]').replace("...a step", '"…": 1')
    text = text.replace("null, …", 'null, "…": 1')
    if re.match(r'"\w+": ?', piece):
        text = f"{{{piece}}}"
    value = json.loads(text)
    names = {name for tool in TOOLS.values() for name in tool["inputSchema"]["properties"]}
    names |= {"clock_confirmed", "shared_disk", "state", "exit_code", "mcpServers", "changes", "nodes", "name", "when"}
    if isinstance(value, dict) and names & value.keys():
        return True
    for takes in (
        lambda: normalize_policy({"oom_gpu": value}),
        lambda: normalize_policy(
            {"rules": [{"when": {"exit_code": 3}, "do": "retry", "change": {"@batch": value, "lr": value}}]}
        ),
        lambda: normalize_policy(value),
        lambda: parse_gpus(value),
        lambda: parse_open({"strategy": "open", "budget": 1, "limits": value}),
        lambda: parse_condition(str(value)),
        lambda: resolve_names(value),
    ):
        with contextlib.suppress(Exception):
            takes()
            return True
    return False


def resolve_names(value: object) -> None:
    """Refuse a text that is none of the words which settings and recovery have."""
    words = {*("@batch", "@port", "@gpu", "other", "$NAME", "any", "stall", "confirm", "human", "local", "0", "report")}
    words |= {"next_port", "retry", "nudge", "block", "off"}
    given = value if isinstance(value, list) else [value]
    assert all(
        str(each) in words or re.search(r"\{run_id\}|\{port\}|^http|^\d+-\d+$|ADDRESS", str(each)) for each in given
    )


@pytest.mark.parametrize(("guide", "piece"), list_pieces())
def test_a_piece_of_a_guide_is_executed_or_has_a_reason(guide: str, piece: str) -> None:
    if piece.startswith(PROGRAMS) or any(re.fullmatch(pattern, piece) for pattern in NOT_EXECUTED):
        return  # a command: the next test launches it
    assert VALUE.match(piece), f"{guide}: nothing executes `{piece}`"
    assert check_value(piece), f"{guide}: no argument takes `{piece}`"


def test_each_reason_is_that_of_a_piece() -> None:
    pieces = [piece for _, piece in list_pieces()]
    assert [pattern for pattern in NOT_EXECUTED if not any(re.fullmatch(pattern, piece) for piece in pieces)] == []


@pytest.mark.anyio
async def test_every_command_that_stands_alone_is_one_that_a_launch_takes_and_those_of_the_table_warn(
    sandbox: Sandbox,
) -> None:
    (sandbox.path / "train.py").touch()
    (sandbox.path / "client.py").touch()
    (sandbox.path / "server.py").touch()
    (sandbox.path / "job.sh").touch()
    (sandbox.path / "a.yaml").touch()
    (sandbox.path / "bin").mkdir()
    for program in ("ray", "sbatch", "srun", "scancel", "vllm", "redis-server", "fuser", "killall", "torchrun"):
        (sandbox.path / "bin" / program).write_text("#!/bin/sh\nexit 1\n")
        (sandbox.path / "bin" / program).chmod(0o755)
    sandbox.environ["PATH"] = f"{sandbox.path}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    _, _, table = TEXTS["prompts/launching.md"].partition("| in the command |")
    rows = [line.split(" | ")[0] for line in table.partition("\n\n")[0].splitlines()[2:]]
    warned = {piece for row in rows for piece in quoted(row)}
    commands = [piece for _, piece in list_pieces() if piece.startswith(PROGRAMS)]
    assert warned <= {*commands, "ray stop"}
    problems = []
    async with sandbox.agent_in_process() as agent:
        for command in dict.fromkeys([*commands, "ray stop"]):
            text = command.replace("…", "train.py").replace("X.yaml", "a.yaml").replace("'...'", "'python train.py'")
            result = await agent.client.call_tool(
                "launch_run", {"command": text, "cwd": str(sandbox.path), "environment": "none", "dry_run": True}
            )
            warnings = (result.structured_content or {}).get("warnings")
            if result.is_error or (command in warned and not warnings):
                problems.append(f"{command}: {text_of(result)[:300]}")
    assert not problems, "\n".join(problems)


# --- the calls, really made


class Place:
    """A project, a machine with eight GPUs, runs, services and a sweep, as the examples take them for granted."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox, self.project = sandbox, sandbox.path / "project"
        self.run_id = self.sweep_id = ""

    async def prepare(self, agent: Agent) -> None:
        sandbox, project = self.sandbox, self.project
        project.mkdir()
        for name in ("train.py", "eval.py", "client.py", "server.py", "prepare.py"):
            (project / name).write_text("print('step 1/2 loss 0.5')\nprint('step 2/2 loss 0.4')\n")
        (project / "exp.md").write_text(f"{BLUEPRINT}## [exp_codebase_dir]\n{project}\n")
        (project / "train.log").write_text("step 1/2 loss 0.5\n")
        (project / "metrics.csv").write_text("step,loss\n1,0.5\n2,0.4\n")
        (project / "checkpoint").mkdir()
        (project / "data").mkdir()
        (project / "data" / "train.bin").touch()
        (project / "ckpt" / "cfm" / "global_step_20000").mkdir(parents=True)
        (sandbox.path / "data" / "lab" / "embodied").mkdir(parents=True)
        (project / "dodo.py").write_text(
            "def task_walk():\n    return {'actions': ['python train.py --num_envs 64']}\n"
            "def task_cube():\n    return {'basename': 'cube-one', 'actions': ['python train.py']}\n"
        )
        hosts = next(text for language, text in blocks(TEXTS["prompts/hosts.md"]) if language == "toml")
        hosts = hosts.replace("node-a", os.uname().nodename).replace("/data/envs/rl/bin/python", sys.executable)
        hosts = re.sub(r"(?m)^(?:power_limit_w|max_sm_clock_mhz) .*\n", "", hosts)  # a gate: the driver here is a fake
        sandbox.store.home.create()
        (sandbox.path / "state" / "hosts.toml").write_text(hosts.replace("/data/", f"{sandbox.path}/data/"))
        sandbox.tmux("new-session", "-d", "-s", "theirs", "sleep 600")
        for name in ("redis", "judge", "ray-head", "ray-worker", "ajet-server"):
            await agent.launch("sleep 600", name=name, environment="none")
        git(project, "init", "-q")
        git(project, "add", "train.py", "prepare.py")
        git(project, "commit", "-qm", "first")
        learned = f"{shlex.quote(sys.executable)} train.py"
        tags = ["sweep-a", "eval", "project", "cfm-lr"]
        self.run_id = await agent.launch(learned, cwd=str(project), tags=tags, name="cfm", environment="none")
        await agent.end(self.run_id)
        plan = {
            "common": {"command": f"{learned} {{lr}} {{seed}}", "cwd": str(project), "environment": "none"},
            "grid": {"lr": [1e-4, 3e-4], "seed": [1, 2]},
        }
        search = {"strategy": "open", "budget": 1, "baseline_runs": 1, "ledger": False}
        common = {"command": f"{learned} {{seed}}", "cwd": str(project), "environment": "none"}
        await agent.call("launch_sweep", name="ar", metric="loss", goal="min", common=common, search=search)
        self.sweep_id = (await agent.call("launch_sweep", name="cfm-lr", metric="loss", **plan))["sweep_id"]
        await until_async(lambda: sandbox.store.sweeps.observe(self.sweep_id).ended, "the end of the sweep")

    def fill(self, call: ToolCall) -> dict[str, Any]:
        """The arguments of a call with what its reader fills in."""
        arguments = {n: self._fill(n, value) for n, value in call.arguments.items() if n not in ELSEWHERE}
        for name in TOOLS[call.tool]["inputSchema"].get("required", ()):
            arguments.setdefault(name, self._fill(name, HOLE))
        proposal: dict[str, Any] = {"sweep": "ar", "worktree": str(self.project), "dry_run": True}
        own: dict[str, dict[str, Any]] = {"wait_run": {"timeout_s": 0}, "propose": proposal}
        arguments |= own.get(call.tool, {})
        if call.tool == "launch_run":
            if not {"command", "blueprint", "like"} & arguments.keys():
                arguments |= {"command": "python train.py", "params": {"num_envs": 4096}}
            if not {"blueprint", "like"} & arguments.keys():
                arguments.setdefault("cwd", str(self.project))
            arguments["dry_run"] = True
            arguments.pop("wait_s", None)
        elif call.tool == "preflight":
            arguments.setdefault("cwd", str(self.project))
        elif call.tool == "launch_sweep" and "notes" not in arguments:
            arguments |= {"dry_run": True, "name": "another"}
            common = {**arguments.get("common", {}), "cwd": str(self.project)}
            if "source" not in arguments:
                common.setdefault("command", "python train.py")
            arguments["common"] = common
            if not {"grid", "source", "promote", "search"} & arguments.keys():
                arguments["grid"] = {"lr": [1e-4]}
        return arguments

    def _fill(self, name: str, value: Any) -> Any:
        if isinstance(value, dict):
            # A note's key is a cell, or a trial.
            return {
                key.replace("<cell>", "lr0.0003-seed1").replace("t5", "t0"): self._fill(key, each)
                for key, each in value.items()
            }
        if isinstance(value, list):
            return [self._fill(name, each) for each in value]
        if not isinstance(value, str):
            return value
        if value in (HOLE, "...") or (value.startswith(("<", "{{")) and value.endswith((">", "}}"))):
            return self._value_of(name)
        for there in ("/project", "/shared/cfm", "/data/lab2/cfm"):
            if value == there:
                return str(self.project)
        known = {"a": self.run_id, "b": self.run_id, "c": self.run_id, "night-ab3d": self.sweep_id}
        if name in ("run_ids", "run_id") and value in known:
            return known[value]
        value = value.replace("/path/exp.md", f"{self.project}/exp.md").replace("/path/", f"{self.project}/")
        return value.replace("tail --pid=PID", "tail --pid=1").replace("/data/ckpt", str(self.project / "ckpt"))

    def _value_of(self, name: str) -> Any:
        project = str(self.project)
        return {
            **dict.fromkeys(("run_id", "run_ids", "like", "compare", "promote"), self.run_id),
            **dict.fromkeys(("path", "blueprint"), f"{project}/exp.md"),
            **dict.fromkeys(("cwd", "logdir", "tensorboard"), project),
            "name": "cfm-lr",
            "sweep": "cfm-lr",
            "session": "theirs",
            "environment": "robot",
            "gpus": 1,
            "since": 0,
            "env": {"HF_HUB_OFFLINE": "1"},
            "secrets": "WANDB_API_KEY",
            "command": "python train.py",
            "grid": {"lr": [1e-4]},
            "results": f"{project}/checkpoint",
            "paths": f"{project}/checkpoint",
            "model_path": f"{project}/checkpoint",
            "result_dir": f"{project}/out",
            "start_line": 1,
            "limit": 5,
            "backend_options": {"partition": "a100"},
        }.get(name, "an example")


@pytest.mark.slow
@pytest.mark.anyio
async def test_every_call_of_the_guides_is_taken_by_a_server(sandbox: Sandbox) -> None:
    sandbox.environ |= fake_nvml.machine(sandbox.path).environ
    fake_nvml.machine(sandbox.path).report(gpus=8)
    fake_slurm.install(sandbox.path / "slurm")
    for program in ("redis-server", "vllm", "ray"):  # a launch asks whether there is one; a dry run starts none
        (sandbox.path / "slurm" / program).write_text("#!/bin/sh\nexit 1\n")
        (sandbox.path / "slurm" / program).chmod(0o755)
    path = f"{sandbox.path}/slurm:{Path(sys.executable).parent}:{os.environ['PATH']}"
    sandbox.environ |= {"PATH": path, "WANDB_API_KEY": "a-key-of-nobody-1234"}
    place, refused, made = Place(sandbox), [], set()
    async with sandbox.agent_in_process() as agent:
        await place.prepare(agent)
        for call in list_calls():
            if any(part in call.text for part in NOT_HERE):
                continue
            made.add(call.tool)
            result = await agent.client.call_tool(call.tool, place.fill(call))
            if result.is_error:
                refused.append(f"{call.title}\n    {text_of(result)[:400]}")
    assert not refused, f"{len(refused)} refused\n" + "\n".join(refused)
    assert made == set(TOOLS)


def test_no_excuse_is_left_over() -> None:
    texts = [call.text for call in list_calls()]
    assert [part for part in NOT_HERE if not any(part in text for text in texts)] == []
    named = {name for call in list_calls() for name in call.arguments}
    assert ELSEWHERE.keys() <= named
