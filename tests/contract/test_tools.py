"""What agents see of the tools is committed: a change shows in review, and the server lists what was committed.

`RUNWARD_UPDATE_SNAPSHOTS=1 python -m pytest tests/contract` rewrites it.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client
from mcp.server import MCPServer

import mcp_server
from mcp_server.resources.documents import parse_document
from mcp_server.serve.app import INSTRUCTIONS, build
from mcp_server.tools.support.listing import NAMES, SCHEMAS, import_tool
from tests.support.sandbox import Sandbox

pytestmark = pytest.mark.anyio

ANSWERS = Path(__file__).parents[1] / "data" / "snapshots" / "answers.json"
CORE = {"launch_run", "wait_run", "capture_pane", "gpu_check", "read_tb", "kill_run", "list_runs", "read_log"}
ALWAYS_LOADED = {"launch_run", "wait_run"}
HEADINGS = 47  # tokens around the parts, by the difference of two requests of 2.1.330
LOOKING = {"wait_run", "list_runs", "capture_pane", "read_log", "gpu_check", "read_tb"}
LOOKING |= {"check_blueprint", "preflight", "compare_runs", "find_runs"}


def matches(file: Path, value: Any) -> None:
    """Compare with what this file holds."""
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    if os.environ.get("RUNWARD_UPDATE_SNAPSHOTS"):
        file.write_text(text)
    assert file.read_text() == text, f"{file.stem} changed: if that is meant, rewrite {file}"


async def list_as_sent(server: MCPServer[Any]) -> list[dict[str, Any]]:
    async with Client(server) as client:
        listed = await client.list_tools()
    return [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in listed.tools]


async def tools(tmp_path: Path) -> list[dict[str, Any]]:
    return await list_as_sent(build({"RUNWARD_HOME": str(tmp_path)}))


async def test_a_server_lists_each_tool_as_its_function_is(tmp_path: Path) -> None:
    derived = await list_as_sent(MCPServer("functions", tools=[import_tool(name) for name in NAMES]))
    for tool in derived:
        matches(SCHEMAS / f"{tool['name']}.json", tool)
    assert await tools(tmp_path) == derived
    assert sorted(path.stem for path in SCHEMAS.iterdir()) == sorted(NAMES)


async def test_every_tool_says_what_it_does_to_the_world(tmp_path: Path) -> None:
    for tool in await tools(tmp_path):
        hints = tool["annotations"]
        assert tool["title"], tool["name"]
        assert hints["title"] == tool["title"], tool["name"]
        assert hints["readOnlyHint"] == (tool["name"] in LOOKING), tool["name"]
        assert bool(hints.get("destructiveHint")) == (tool["name"] == "kill_run"), tool["name"]
        assert len(tool["description"]) <= 2048, "Claude Code cuts there"
        assert ("outputSchema" in tool) == (tool["name"] not in {"capture_pane", "read_log"})


async def test_all_schemas_together_cost_few_tokens(tmp_path: Path) -> None:
    openai = pytest.importorskip("rs_bpe").openai
    seen = [{key: tool[key] for key in ("name", "description", "inputSchema")} for tool in await tools(tmp_path)]

    def tokens(tools: list[dict[str, Any]]) -> int:
        return int(openai.o200k_base().count(json.dumps(tools, ensure_ascii=False, separators=(",", ":"))))

    assert tokens([tool for tool in seen if tool["name"] in CORE]) <= 2500
    assert tokens(seen) <= 4800


async def test_every_argument_of_every_tool_is_described(tmp_path: Path) -> None:
    silent = [
        f"{tool['name']}.{name}"
        for tool in await tools(tmp_path)
        for name, argument in tool["inputSchema"]["properties"].items()
        if not argument.get("description")
    ]
    assert silent == []


def untyped(schema: Any, place: str) -> list[str]:
    """Return where a schema says nothing of a value: the Inspector draws a warning sign beside such a tool."""
    if not isinstance(schema, dict):
        return [f"{place}: {schema}"]
    parts = {(key, name): each for key in ("properties", "$defs") for name, each in schema.get(key, {}).items()}
    parts |= {(key, n): each for key in ("anyOf", "allOf", "oneOf") for n, each in enumerate(schema.get(key, ()))}
    parts |= {(key, ""): schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict)}
    says = isinstance(schema.get("type"), str) or {"enum", "const", "$ref", "anyOf", "allOf", "oneOf"} & schema.keys()
    return [place] * (not says) + [each for at, part in parts.items() for each in untyped(part, f"{place}.{at[1]}")]


async def test_every_value_has_a_type_and_what_people_type_into_a_form_is_text_first(tmp_path: Path) -> None:
    listed = await tools(tmp_path)
    assert [
        place
        for t in listed
        for key in ("inputSchema", "outputSchema")
        for place in untyped(t.get(key) or {"type": "object"}, t["name"])
    ] == []
    for tool in listed:
        for name in ("command", "run_id", "run_ids", "sweep", "tags"):
            schema = tool["inputSchema"]["properties"].get(name, {"type": "string"})
            assert schema.get("type") or schema["anyOf"][0]["type"] == "string", (tool["name"], name)


async def test_launch_and_wait_are_loaded_always_and_the_others_are_found_by_a_search(tmp_path: Path) -> None:
    listed = await tools(tmp_path)
    assert {tool["name"] for tool in listed if tool["_meta"].get("anthropic/alwaysLoad")} == {"launch_run", "wait_run"}
    found = {
        tool["name"]: f"{tool['name']} {tool['description']} {tool['_meta'].get('anthropic/searchHint', '')}".lower()
        for tool in listed
    }
    for words, tool in {
        "train model": "launch_run",
        "python train.py": "launch_run",
        "wait training": "wait_run",
        "monitor job": "list_runs",
        "loss plot": "read_tb",
        "tensorboard": "read_tb",
        "nvidia-smi": "gpu_check",
        "slurm job": "list_runs",
    }.items():
        assert tool in [name for name, text in found.items() if all(word in text for word in words.split())], words
    assert all(tool["_meta"]["anthropic/searchHint"] for tool in listed)


async def test_a_request_of_claude_code_before_any_use_costs_few_tokens(tmp_path: Path) -> None:
    """All that 2.1.330 sends of this server and its agents, in its own words, before a tool was called."""
    openai = pytest.importorskip("rs_bpe").openai
    listed = await tools(tmp_path)
    loaded = [
        {"name": f"mcp__runward__{t['name']}", "description": t["description"], "input_schema": t["inputSchema"]}
        for t in listed
        if t["name"] in ALWAYS_LOADED
    ]
    deferred = [f"mcp__runward__{tool['name']}" for tool in listed if tool["name"] not in ALWAYS_LOADED]
    agents = []
    for path in sorted((Path(mcp_server.__file__).parents[1] / "agents").glob("*.md")):
        facts = parse_document(path.stem, path.read_text()).facts
        agents.append(f"- {facts['name']}: {facts['description']} (Tools: {facts['tools']})")
    parts = {
        "tools": json.dumps(loaded, ensure_ascii=False, separators=(",", ":")),
        "names": "\n".join(deferred),
        "agents": "\n".join(agents),
        "instructions": f"## runward\n{INSTRUCTIONS}",
    }
    tokens = {name: int(openai.o200k_base().count(text)) for name, text in parts.items()}
    assert tokens["agents"] <= 300, tokens
    assert sum(tokens.values()) + HEADINGS <= 1800, tokens


VOLATILE = (
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "TIME"),
    (re.compile(r"/[^\"' ]*/state/"), "HOME/"),
    (re.compile(r"runward-test-[0-9a-f]+"), "SOCKET"),
    (re.compile(r"(cfm)-[a-z0-9]{4}\b"), r"\1-ID"),
    (re.compile(r"\"(elapsed_s|last_output_s|waited_s)\": [\d.]+"), r'"\1": "SECONDS"'),
    (re.compile(r"\"confirm_token\": \"[^\"]+\""), '"confirm_token": "TOKEN"'),
    (re.compile(r"\[end [0-9a-f]{8}\]"), "[end MARK]"),
    (re.compile(r"\"owner\": \"[^\"]+\""), '"owner": "OWNER"'),
    (re.compile(r"owner \w+, started"), "owner OWNER, started"),
)


async def test_answers_are_as_the_snapshot_says(sandbox: Sandbox) -> None:
    command = "echo step 1; echo 'RuntimeError: shapes do not match' >&2; until test -e go; do sleep 0.02; done; exit 1"
    async with sandbox.agent(RUNWARD_OWNER="alice") as agent:
        launched = await agent.call("launch_run", command=command, name="cfm", cwd=str(sandbox.path))
        run_id = launched["run_id"]
        asked = await agent.call("kill_run", run_id=run_id)
        (sandbox.path / "go").touch()
        ended = await agent.call("wait_run", run_ids=run_id, until="end")
        listed = await agent.call("list_runs")
        log = await agent.text("read_log", run_id=run_id)
        errors = [
            await agent.refusal("launch_run", command="true", cwd="/no/such/place"),
            await agent.refusal("launch_run", command="true", secrets=["WANDB_API_KEY"]),
            await agent.refusal("launch_run", command="true", gpus=2),
            await agent.refusal("wait_run", run_ids="nowhere"),
        ]
    text = json.dumps(
        {"launched": launched, "asked": asked, "ended": ended, "listed": listed, "log": log, "errors": errors},
        ensure_ascii=False,
    )
    for pattern, stands_for in VOLATILE:
        text = pattern.sub(stands_for, text)
    matches(ANSWERS, json.loads(text))
