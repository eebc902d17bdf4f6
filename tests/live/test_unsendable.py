"""Names and texts that no JSON can carry, or that nobody sees, reach an agent readable; the server lives on."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from mcp.shared.exceptions import MCPError
from mcp.types import ElicitRequestParams, ElicitResult, ResourceTemplateReference

from tests.support.sandbox import Agent, Sandbox, text_of
from tests.support.service import serve, tokens

pytestmark = pytest.mark.anyio

LATIN_1 = b"donn\xe9es"
HALF_EMOJI = '{"step": %d, "loss \\ud83d": %g, "loss": %g}\n'


async def test_a_name_that_is_no_utf_8_is_named_readably_and_ends_no_server(sandbox: Sandbox) -> None:
    _make_latin_1(sandbox)
    async with sandbox.agent() as agent:
        refusal = await agent.refusal("launch_run", command="true", cwd=str(sandbox.path / "donnees"))
        assert r"donn\xe9es" in refusal
        await _is_alive(agent)


async def test_half_an_emoji_in_the_metrics_of_a_run_ends_no_server(sandbox: Sandbox) -> None:
    lines = "".join(HALF_EMOJI % (step, 2 - step / 10, 2 - step / 10) for step in range(9))
    (sandbox.path / "lines").write_text(lines)
    async with sandbox.agent() as agent:
        run_id = await agent.launch("cat lines > metrics.jsonl; mkdir -p tb/$'donn\\xe9es'", tags=["odd"])
        await agent.end(run_id)
        for tool, arguments in (
            ("read_tb", {"logdir": str(sandbox.path)}),
            ("read_tb", {"run_id": run_id}),
            ("compare_runs", {"run_ids": [run_id]}),
            ("finish_blueprint", {"run_id": run_id, "result_dir": str(sandbox.path / "results")}),
            ("preflight", {"paths": [str(sandbox.path / "tb" / "donnees")]}),
        ):
            result = await agent.client.call_tool(tool, arguments, read_timeout_seconds=60)
            assert "a fault of runward itself" not in result.content[0].text, (tool, result)  # type: ignore[union-attr]
        found = json.dumps(await agent.call("read_tb", logdir=str(sandbox.path)))
        assert "\\\\ud83d" in found
        await _is_alive(agent)


@pytest.mark.slow
async def test_a_record_with_odd_characters_hides_no_other_run(sandbox: Sandbox) -> None:
    text = r'{"seq":%s,"at":"2026-11-22T08:00:00.000Z","kind":"note","text":"half \ud800 of \u202e it"}'
    async with sandbox.agent() as agent:
        odd = await agent.launch("true", name="odd")
        await agent.end(odd)
        plain = await agent.launch("true", name="plain")
        await agent.end(plain)
        events = sandbox.rundir(odd).path / "events.jsonl"
        with events.open("a") as file:
            file.write(text % 77 + "\n" + text % ("9" * 400) + "\n")
        _spoil(sandbox.rundir(odd).path / "spec.json", owner="\udce9")
    async with sandbox.agent() as agent:
        listed = await agent.call("list_runs")
        assert {odd, plain} <= {row["run_id"] for row in listed["runs"]}
        await agent.call("wait_run", run_ids=[odd, plain], timeout_s=0)
        for tool, arguments in (
            ("compare_runs", {"run_ids": [odd, plain]}),
            ("compare_runs", {"run_ids": [odd, plain], "diff": True}),
            ("find_runs", {"query": "odd"}),
            ("read_log", {"run_id": odd}),
            ("read_tb", {"run_id": odd}),
            ("capture_pane", {"run_id": odd}),
            ("gpu_check", {"run_id": odd}),
            ("launch_run", {"like": odd, "dry_run": True}),
            ("kill_run", {"run_id": odd}),
            ("finish_blueprint", {"run_id": odd, "result_dir": str(sandbox.path / "results")}),
        ):
            told = await agent.client.call_tool(tool, arguments, read_timeout_seconds=60)
            assert "a fault of runward itself" not in text_of(told), (tool, arguments, told)
        assert (await agent.client.list_resources()).resources
        assert (await agent.client.read_resource(f"run://{odd}")).contents
        await _is_alive(agent)
    for words in (
        ["ls"],
        ["ls", "--json"],
        ["show", odd],
        ["logs", odd],
        ["tb", odd],
        ["sweep"],
        ["prune"],
        ["doctor"],
        ["export", odd, "-o", "x.html"],
    ):
        listing = sandbox.runward(*words, cold=words == ["ls"])
        assert "Traceback" not in listing.stderr, (words, listing.stderr)
        assert words[0] != "ls" or (listing.returncode == 0 and plain in listing.stdout), listing


def _spoil(spec: Path, owner: str = "") -> None:
    """Put half an emoji into every text of a run's specification that an answer may tell."""
    facts = json.loads(spec.read_text())
    facts |= {"name": "odd \ud83d", "tags": ["t \ud83d"], "command": "echo \udce9", "cwd": "/tmp/\ud83d"}
    facts |= {"why": "\ud83d", "tensorboard": "/tmp/n\0\ud83d", "result_dir": None, "params": {"lr \ud83d": "\0\ud83d"}}
    facts["owner"] += owner
    spec.write_text(json.dumps(facts))


async def _is_alive(agent: Agent) -> None:
    assert "runs" in await agent.call("list_runs")


ODD = {
    "surrogate": "od\ud800d \udce9",
    "nul": "od\x00d",
    "bidi": "od\u202ed \u2066x",
    "long": "odd " * 40_960,  # more than a program takes as one argument, 128 KiB
}
REQUIRED: dict[str, Any] = {
    "command": "true",
    "run_id": "odd",
    "run_ids": "odd",
    "name": "odd",
    "common": {"command": "true"},
    "grid": {"seed": [1]},
}


@pytest.mark.slow
async def test_every_text_in_every_argument_of_every_tool_may_be_odd(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        await agent.end(await agent.launch("echo hello", name="odd"))
        tried = 0
        for tool in (await agent.client.list_tools()).tools:
            fields = tool.input_schema["properties"]
            given = {name: REQUIRED[name] for name in tool.input_schema.get("required", ()) if name in REQUIRED}
            given |= {"dry_run": True} if "dry_run" in fields else {}
            for field, schema in fields.items():
                for value in (value for odd in ODD.values() for value in _shape(schema, odd)):
                    result = await agent.client.call_tool(tool.name, given | {field: value}, read_timeout_seconds=90)
                    sent = json.dumps(result.model_dump(mode="json"), ensure_ascii=False).encode()
                    assert b"a fault of runward itself" not in sent, (tool.name, field, str(value)[:40], sent[:500])
                    assert not set("\u202e\u2066\x00") & set(sent.decode()), (tool.name, field)
                    tried += 1
        assert tried > 300
        await _ask_for_documents(agent)
        listed = await agent.call("list_runs")
        assert [row["name"] if "name" in row else row["run_id"][:3] for row in listed["runs"]] == ["odd"]


async def _ask_for_documents(agent: Agent) -> None:
    """Resources, prompts and completions by odd words: refused with a reason, or answered readably."""
    for odd in ODD.values():
        word = quote(odd[:4096].encode("utf-8", "surrogatepass"))
        for address in ("run://{}", "run://{}/log", "sweep://{}", "sweep://odd/{}", "guide://{}", "agent://{}"):
            with pytest.raises(MCPError) as refused:
                await agent.client.read_resource(address.format(word))
            refused.value.error.message.encode()
        for prompt in (await agent.client.list_prompts()).prompts:
            arguments = {each.name: odd for each in prompt.arguments or ()}
            with contextlib.suppress(MCPError):
                told = await agent.client.get_prompt(prompt.name, arguments)
                json.dumps(told.model_dump(mode="json"), ensure_ascii=False).encode()
        completion = await agent.client.complete(
            ResourceTemplateReference(type="ref/resource", uri="run://{run_id}"), {"name": "run_id", "value": odd}
        )
        assert completion.completion.values == []


async def test_over_http_an_odd_name_is_answered_readably(sandbox: Sandbox) -> None:
    _make_latin_1(sandbox)
    token = tokens(sandbox).add("alice")
    with serve(sandbox) as service:
        for legacy in (False, True):
            async with service.agent(token, legacy=legacy) as agent:
                assert r"donn\xe9es" in await agent.refusal(
                    "launch_run", command="true", cwd=str(sandbox.path / "donnees")
                )
                await _is_alive(agent)


async def test_a_person_is_asked_about_a_run_with_an_odd_command(sandbox: Sandbox) -> None:
    asked: list[str] = []

    async def decline(_: object, params: ElicitRequestParams) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="decline")

    async with sandbox.agent() as agent:
        run_id = await agent.launch("sleep 600", name="odd")
    _spoil(sandbox.rundir(run_id).path / "spec.json")
    for legacy in (False, True):
        async with sandbox.agent(elicit=decline, legacy=legacy) as agent:
            answer = await agent.call("kill_run", run_id=run_id)
            assert answer["status"] == "declined"
            await _is_alive(agent)
            waited = await agent.call("wait_run", run_ids=run_id, timeout_s=0)
            assert waited["runs"][0]["state"] == "running"
    assert len(asked) == 2
    assert all("echo " in question for question in asked)


def _make_latin_1(sandbox: Sandbox) -> None:
    """Make a directory as old data sets have them."""
    Path(os.fsdecode(os.fsencode(sandbox.path) + b"/" + LATIN_1)).mkdir()


def _shape(schema: dict[str, Any], odd: str) -> list[Any]:
    """Return the values with ``odd`` in them that a field may take: a text, or one within lists and objects."""
    name = "half" if odd is ODD["surrogate"] else odd  # this client cannot send such a name
    shapes: dict[str, list[Any]] = {
        "string": [odd],
        "array": [[odd]],
        "object": [{name: odd}, {name: {name: [odd]}}][: 1 if odd is ODD["long"] else 2],
    }
    kinds = {option.get("type") for option in (schema, *schema.get("anyOf", ()))}
    return [value for kind in sorted(kinds - {None}) for value in shapes.get(kind, ())]
