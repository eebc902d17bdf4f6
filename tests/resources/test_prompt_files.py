"""The texts of prompts/ and agents/ are true: every tool, argument and word of an answer that they name exists."""

import argparse
import functools
import json
import re
import tomllib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, get_args

import anyio
import pytest
from mcp.client import Client

import mcp_server
from mcp_server.backends.ray import job_request
from mcp_server.blueprints.parser import parse_blueprint
from mcp_server.cli.parser import make_parser
from mcp_server.command.killers import find_warnings
from mcp_server.diagnosis.failure.kinds import ACTIONS, KINDS
from mcp_server.errors import BadArgument
from mcp_server.gpus.request import parse_requirements
from mcp_server.hosts.config import Environment, Host, HostsFile, Ray
from mcp_server.record.events import TRAITS
from mcp_server.record.state import RunState
from mcp_server.recovery import policy
from mcp_server.recovery.policy import LANGUAGE, describe_policy
from mcp_server.resources.documents import Document, parse_document, read_documents
from mcp_server.runs.launch.arguments import normalize_policy
from mcp_server.runs.launch.resolve import find_ray_variables
from mcp_server.runs.wait.waiting import Reason
from mcp_server.serve.app import INSTRUCTIONS, build
from mcp_server.store.state_home import Config, NotifySettings
from mcp_server.sweeps.trials.open_plan import OpenPlan
from tests.support.guide_examples import TEXTS, calls, quoted
from tests.support.rows import for_each

# Words of training programs that a text may have in backquotes in addition to runward's own words.
FOREIGN = {"num_envs", "total_num_envs", "run_name", "max_iterations"}
FOREIGN |= {
    "kl_loss",
    "mean_reward",
    "std_reward",
    "total_tasks",
    "pass_n",
    "task_pass_rate",
    "success_rate",
    "success_once",
    "success_at_end",
}
FOREIGN |= {"execute_test", "val_before_train", "test_freq", "total_epochs", "kl_loss_coef", "kl_coef"}
FOREIGN |= {
    "ppo_micro_batch_size_per_gpu",
    "gpu_memory_utilization",
    "max_response_length",
    "tensor_model_parallel_size",
}

AGENTS = {name: text for name, text in TEXTS.items() if name.startswith("agents/")}
# What Claude Code itself offers an agent; a shell is not among them.
OWN_TOOLS = {"Read", "Write", "Edit", "Grep", "Glob", "ReadMcpResourceTool"}


@functools.cache
def tools() -> dict[str, dict[str, Any]]:
    """The real server's tools by name."""

    async def list_tools() -> dict[str, dict[str, Any]]:
        async with Client(build({"RUNWARD_HOME": "/nonexistent"})) as client:
            listed = (await client.list_tools()).tools
        return {tool.name: tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed}

    return anyio.run(list_tools)


def arguments_of(tool: str) -> set[str]:
    return set(tools()[tool]["inputSchema"]["properties"])


def words_of(schema: Any) -> Iterator[str]:
    """Every property and every allowed word of a JSON schema."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        yield from (word for word in schema.get("enum", []) if isinstance(word, str))
        for part in schema.values():
            yield from words_of(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from words_of(part)


def known_words() -> set[str]:
    """Every word of runward's answers and arguments."""
    words = {
        *tools(),
        *KINDS,
        *ACTIONS,
        *get_args(RunState),
        *get_args(Reason),
        *FOREIGN,
        *Config.model_fields,
        *NotifySettings.model_fields,
    }
    words |= {*TRAITS, *policy.KEYS, *policy.WHEN_KEYS, *policy.STEP_KEYS, "gpu_indices", *read_documents("prompts")}
    words |= {*job_request.OPTIONS, *Host.model_fields, *Environment.model_fields, *Ray.model_fields, policy.NEXT_PORT}
    words |= {*OpenPlan.__dataclass_fields__, "peak_gpu_mib", "no_change", "no_metric", "not_finite", "over_limit"}
    for tool in tools().values():
        words |= {*words_of(tool["inputSchema"]), *words_of(tool.get("outputSchema", {}))}
        # Keys of a table argument are in its description.
        words |= set(re.findall(r"[a-z]\w*_\w+", json.dumps(tool["inputSchema"])))
    return words


def keywords(inside: str) -> set[str]:
    """The names of the arguments of a call: those outside of brackets and quotes."""
    flat = re.sub(r'"[^"]*"', '""', inside)
    while (less := re.sub(r"\[[^\[\]]*\]|\{[^{}]*\}|\([^()]*\)", "", flat)) != flat:
        flat = less
    return set(re.findall(r"\b(\w+)=", flat))


# --- tools and words


@pytest.mark.parametrize("name", TEXTS)
def test_every_call_names_a_tool_and_arguments_that_exist(name: str) -> None:
    for tool, inside in calls(TEXTS[name]):
        assert tool in tools(), f"{name}: no tool {tool}"
        assert keywords(inside) <= arguments_of(tool), f"{name}: {tool}({inside})"


@pytest.mark.parametrize("name", TEXTS)
def test_every_word_of_runward_in_backquotes_exists(name: str) -> None:
    words = known_words()
    document = parse_document(name, TEXTS[name])
    parameters = {key for table in document.tables.values() for key in table}
    for piece in quoted(document.text):
        for word in re.findall(r"(?<![\w$/.\"\[-])[a-z]+(?:_[a-z]+)+(?![\w(/-]|\.\w)", re.sub(r'"[^"]*"', "", piece)):
            assert word in words | parameters or word.startswith("exp_"), f"{name}: {word!r} in `{piece}`"


def literals(argument: str, text: str) -> list[Any]:
    """Every ``argument={…}`` of a text that is written out."""
    values = []
    for match in re.finditer(rf"\b{argument}=(?=\{{)", text):
        depth = ends = 0
        for ends, letter in enumerate(text[match.end() :], match.end() + 1):  # noqa: B007 - used behind the loop
            depth += {"{": 1, "}": -1}.get(letter, 0)
            if not depth:
                break
        if "..." not in text[match.end() : ends]:
            values.append(json.loads(text[match.end() : ends]))
    return values


def test_recovery_policies_and_requirements_are_valid() -> None:
    together = "\n".join(TEXTS.values())
    policies, requirements = literals("recovery", together), literals("require", together)
    assert (len(policies), len(requirements) >= 4) == (1, True)
    for each in policies:
        policy.normalize_policy(each)
    for requirement in requirements:
        parse_requirements(requirement)


def test_the_texts_call_every_tool() -> None:
    together = "\n".join(TEXTS.values())
    assert [tool for tool in tools() if not re.search(rf"\b{tool}\b", together)] == []


def test_every_reason_state_and_kind_of_failure_is_explained() -> None:
    monitoring, troubleshooting = (read_documents("prompts")[n].text for n in ("monitoring", "troubleshooting"))
    states = ("finished", "failed", "killed", "timed_out", "lost")
    assert [word for word in (*get_args(Reason), *states) if f"| `{word}` |" not in monitoring] == []
    assert [kind for kind in KINDS if f"| `{kind}` |" not in troubleshooting] == []


@pytest.mark.parametrize("document", [d for d in read_documents("prompts").values() if "arguments" in d.tables])
def test_every_slot_of_a_prompt_is_filled_for_any_arguments(document: Document) -> None:
    required = {n for n, text in document.tables["arguments"].items() if not text.startswith("Optional. ")}
    assert set(re.findall(r"\{\{(\w+)\}\}", document.text)) <= required | {"arguments"} | set(read_documents("prompts"))


# --- what must not be in them


def warned_rows() -> list[str]:
    text = read_documents("prompts")["launching"].text
    return rows(text.partition("## Warned of")[2].partition("\n## ")[0])


def test_the_guide_to_launching_names_commands_that_are_warned_of() -> None:
    for row in warned_rows():
        warned, _, instead = (cell.strip() for cell in row.strip("|").split(" | "))
        for command in quoted(warned):
            assert find_warnings(command), command
        for command in quoted(instead):
            assert find_warnings(f"{command} python -V") == [], command


FORBIDDEN = {
    "a shell's polling": r"\b(sleep \d|tail -[fn]|watch -n|while true|smi -l|tmux (?:capture|send|kill|new)|ps aux)",
    "a shell's killing": r"(?<!Never `)\b(pkill|killall|kill -\d|ray stop|scancel|fuser -k)\b",
    "a machine's path": r"(?<![\w.])/(?:home|mnt|root|Users|cpfs|nfs|gpfs|lustre|workspace)/",
    "a machine's address": r"(?<![\d.])(?!0\.0\.0\.0\b|127\.0\.0\.1\b)\d{1,3}(?:\.\d{1,3}){3}\b|\b\w+@[\w.]+\.\w+",
    "a key": r"\b(?:sk-|hf_|ghp_|wandb_v1_|AKIA)\w{8,}|\b[0-9a-f]{32,}\b|\bAPI_KEY\s*=\s*[\"']?\w{6,}",
}


@for_each(product(TEXTS, FORBIDDEN))
def test_no_text_holds(name: str, what: str) -> None:
    text = TEXTS[name]
    if name == "prompts/launching.md":  # what it forbids, a launch warns of: below
        text = "\n".join(line for line in text.splitlines() if line not in warned_rows())
    assert re.findall(FORBIDDEN[what], text) == []


@pytest.mark.parametrize(
    "text",
    ["sleep 60 && tail -n 5 log", "pkill -f train", "cd /mnt/data/x", "ssh a@10.0.0.7", "export K=sk-abcdefgh12345"],
)
def test_what_is_forbidden_is_found(text: str) -> None:
    assert any(re.search(pattern, text) for pattern in FORBIDDEN.values())


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_short_enough_to_be_read(name: str) -> None:
    assert len(TEXTS[name]) < (24_000 if name == "prompts/reference.md" else 10_000)  # which is looked up, not read


# --- agents, as Claude Code reads them


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_file_is_what_claude_code_expects(name: str) -> None:
    agent = parse_document(Path(name).stem, AGENTS[name])
    assert set(agent.facts) == {"name", "description", "tools", "disallowedTools", "model"}
    assert agent.tables == {}
    assert agent.facts["name"] == agent.name
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", agent.name)
    assert agent.facts["model"] in {"inherit", "sonnet", "opus", "haiku"}
    assert re.match(r"[A-Z][a-z]+s .*\.$", agent.description)
    assert re.findall(r"\{\{|\}\}", agent.text) == []


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_has_the_tools_that_its_text_calls_and_no_others(name: str) -> None:
    agent = parse_document(Path(name).stem, AGENTS[name])
    every, of_plugin, *own = agent.facts["tools"].split(", ")
    denied = {tool.rpartition("__")[2] for tool in agent.facts["disallowedTools"].split(", ")}
    assert (every, of_plugin) == ("mcp__runward__*", "mcp__plugin_runward_runward__*"), (
        "a client writes the list of tools beside each description: one word is cheap"
    )
    assert len(own) == len(set(own))
    assert set(own) <= OWN_TOOLS
    assert denied <= {"kill_run", "finish_blueprint"}
    ours = set(tools()) - denied
    assert {tool for tool, _ in calls(agent.text)} <= ours
    looking = {name for name, tool in tools().items() if tool["annotations"]["readOnlyHint"]}
    assert looking <= ours


def agents_that_stop_runs() -> set[str]:
    agents = [parse_document(Path(name).stem, text) for name, text in AGENTS.items()]
    return {agent.name for agent in agents if "mcp__runward__kill_run" not in agent.facts["disallowedTools"]}


def test_only_agents_that_may_stop_a_run_can() -> None:
    assert agents_that_stop_runs() == {"experiment-runner", "launcher-monitor"}


# --- one rule per question, one place per fact


def rows(text: str) -> list[str]:
    """The rows of the tables of a text, without headers."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [line for line, below in zip(lines, [*lines[1:], ""], strict=True) if "| --- |" not in line + below]


@pytest.mark.parametrize("name", AGENTS)
def test_the_rules_of_an_agent_are_those_of_the_guide(name: str) -> None:
    rules = AGENTS[name].partition("## Rules\n")[2].partition("\n## ")[0]
    assert len(rows(rules)) >= 5
    assert set(rows(rules)) <= set(rows(read_documents("prompts")["rules"].text))


def test_the_rules_name_the_agents_that_can_stop_a_run() -> None:
    rules = read_documents("prompts")["rules"].text
    (sentence,) = re.findall(r"^(.*) have the tool `kill_run`; (.*) do not\.$", rules, re.MULTILINE)
    can, cannot = (set(re.findall(r"`([a-z-]+)`", part)) for part in sentence)
    assert can == agents_that_stop_runs()
    assert can | cannot == {Path(name).stem for name in AGENTS}


def guides() -> set[str]:
    return {d.facts["uri"].removeprefix("guide://") for d in read_documents("prompts").values() if "uri" in d.facts}


ROOT = Path(mcp_server.__file__).parent.parent


def test_every_guide_that_is_named_exists() -> None:
    sources = {str(path): path.read_text() for path in (ROOT / "mcp_server").rglob("*.py")}
    for name, text in {**TEXTS, **sources, "instructions": INSTRUCTIONS}.items():
        named = set(re.findall(r"guide://([a-z_]+)", text))
        assert named <= guides(), f"{name}: {named - guides()}"


def test_every_guide_is_reached_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    linked = set(re.findall(r"\(prompts/(\w+)\.md\)", readme))
    served = {
        name for name, d in read_documents("prompts").items() if "uri" in d.facts and name != "blueprint_template"
    }
    assert linked == served


def test_the_instructions_name_tools_and_guides_that_exist_in_few_words() -> None:
    words = set(re.findall(r"[a-z]+(?:_[a-z]+)+", INSTRUCTIONS))
    assert words <= {*tools(), *guides()}
    assert {"check_blueprint", "compare_runs", "launch_run", "wait_run", "kill_run"} <= words
    assert "preflight" in INSTRUCTIONS
    listed = re.sub(r"\([^)]*\)", "", INSTRUCTIONS.partition("guide://NAME: ")[2].partition(". ")[0])
    assert set(listed.replace(" ", "").split(",")) <= guides()
    assert len(INSTRUCTIONS) <= 900


def test_the_guide_to_ray_has_the_variables_of_a_launch() -> None:
    variables = find_ray_variables(Ray(capacity_threshold=0.9), "cfm-7kqz")
    text = read_documents("prompts")["ray"].text
    assert [name for name in variables if f"`{name}`" not in text] == []


def test_the_guide_to_hosts_has_every_key_and_a_file_that_can_be_used() -> None:
    text = read_documents("prompts")["hosts"].text
    site = HostsFile.model_validate(tomllib.loads(text.partition("```toml\n")[2].partition("```")[0]))
    assert set(site.hosts) == {"machine1", "machine2"}
    tables = "\n".join(rows(text))
    keys = {*Host.model_fields, *Environment.model_fields, *Ray.model_fields} - {"name"}  # which is that of the table
    assert [key for key in sorted(keys) if f"`{key}`" not in tables] == []
    defaults = {key: field.default for key, field in Ray.model_fields.items() if field.default is not None}
    assert [key for key, value in defaults.items() if not re.search(rf'`{key}` .*`"{re.escape(value)}"`', tables)] == []


def test_the_guide_to_tools_has_every_command() -> None:
    (verbs,) = (action.choices for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction))
    assert [verb for verb in verbs if f"runward {verb} " not in read_documents("prompts")["tools"].text] == []


def test_the_guide_to_settings_has_every_key() -> None:
    tables = "\n".join(rows(read_documents("prompts")["settings"].text))
    assert [key for key in Config.model_fields if f"| `{key}` |" not in tables] == []


# --- the language of recovery, on one page


def recovery_table(header: str) -> dict[str, str]:
    """The table of guide://recovery under this header: the second column by each word in backquotes of the first."""
    table = read_documents("prompts")["recovery"].text.partition(f"\n| {header} |")[2].partition("\n\n")[0]
    cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table.splitlines()[2:]]
    return {word: row[1] for row in cells for word in re.findall(r"`\"?([^`\"]+)\"?`", row[0]) or [row[0]]}


def test_the_page_on_recovery_has_the_default_of_every_kind() -> None:
    table = recovery_table("kind")
    assert set(table) == set(KINDS)
    for kind, steps in table.items():
        first = next(rule for rule in policy.DEFAULT["rules"] if rule["when"]["kind"] == kind)
        written = policy.normalize_policy({kind: json.loads(steps.strip("`"))})
        assert written["rules"][0]["steps"] == first["steps"], kind
        assert policy.is_guard(first["when"]) == (first["steps"][0]["do"] == "retry"), kind


def test_the_page_on_recovery_has_every_word_of_the_language() -> None:
    assert {*recovery_table("key"), "any"} == {"any", *policy.KEYS}
    assert set(recovery_table("key of `when`")) == set(policy.WHEN_KEYS)
    assert set(recovery_table("key of a step")) == set(policy.STEP_KEYS)
    changes = recovery_table("in `change`")
    assert {policy.BATCH, policy.PORT, policy.GPU} <= set(changes)
    together = " ".join(changes.values())
    assert [word for word in (policy.HALVE, policy.NEXT_PORT, policy.OTHER) if f'"{word}"' not in together] == []
    for ceiling, (default, least) in policy.CEILINGS.items():
        row = next(line for line in rows(read_documents("prompts")["recovery"].text) if f"`{ceiling}`" in line)
        assert row.startswith(f"| `{ceiling}` | {least} to {policy.MAX_ATTEMPTS}:")
        assert row.endswith(f"| {default} |")


def test_the_refusal_of_a_policy_has_the_whole_language() -> None:
    words = ["retry", "default", "report", "min", policy.HALVE, policy.NEXT_PORT, policy.OTHER]
    words += [policy.BATCH, policy.PORT, policy.GPU, *policy.STEP_KEYS, *policy.WHEN_KEYS]
    words += [key for key in policy.KEYS if key != "stop_on"]
    assert [word for word in words if f'"{word}"' not in LANGUAGE] == []
    assert [kind for kind in policy.POLICY_KINDS if f" {kind}" not in LANGUAGE.partition("Kinds:")[2]] == []
    assert describe_policy(policy.DEFAULT) in LANGUAGE
    for wrong in ("yes", {"oom": "retry"}, {"oom_gpu": {"do": "half"}}):
        with pytest.raises(BadArgument) as refusal:
            normalize_policy(wrong)
        assert refusal.value.remedy == LANGUAGE


# --- blueprints, as check_blueprint reads them


def test_an_empty_template_is_refused_section_by_section() -> None:
    blueprint = parse_blueprint(read_documents("prompts")["blueprint_template"].text)
    refused = "\n".join(fault.text for fault in blueprint.faults if fault.fatal)
    sections = ("purpose", "codebase_dir", "venv_exe", "yaml_path", "result_dir", "max_time")
    assert [name for name in sections if f"[exp_{name}]" not in refused] == []
    assert "launch command still holds the template" in refused


def test_a_template_that_was_filled_in_is_a_blueprint() -> None:
    text = read_documents("prompts")["blueprint_template"].text
    for place, value in (
        ("<one line that names the experiment>", "KL"),
        ("<question and expectation>", "Does it collapse?"),
        ("<absolute path of the code>", "/data/code"),
        ("<absolute path of the python>", "/data/code/.venv/bin/python"),
        ("<path of the configuration>", "none"),
        ("<the launch command>", "python train.py --time ${MaxTime}"),
        ("<absolute path of the results>", "/data/results"),
        ("<duration>", "36 hours"),
    ):
        assert place in text
        text = text.replace(place, value)
    blueprint = parse_blueprint(text)
    assert blueprint.faults == ()
    assert (blueprint.launch_command, blueprint.time_limit_s) == ("python train.py --time ${MaxTime}", 129_600)
    assert blueprint.notes.strip("# :") == "Blueprint: KL"


def test_the_good_example_is_good() -> None:
    guide = read_documents("prompts")["blueprint_guide"].text
    blueprint = parse_blueprint(guide.partition("````markdown\n")[2].partition("````")[0])
    assert (blueprint.faults, blueprint.defaults_used) == ((), ())
    assert (blueprint.time_limit_s, blueprint.first_step_timeout_s) == (43_200, 1_800)
    assert blueprint.first_step_pattern
    assert re.search(blueprint.first_step_pattern, "actor/kl_loss: 0.1")
