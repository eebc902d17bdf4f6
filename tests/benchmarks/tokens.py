"""What an agent pays for runward, in tokens (o200k): the tools' schemas, and typical answers."""

from __future__ import annotations

import json
from typing import Any

from mcp.client import Client
from rs_bpe import openai

from .harness import Answer, House, NotMeasured, program, until
from .report import Row, Table, amount, measured

_LIVE_S = 4.0
_NAME = "qwen2-7b-sft-lr2e-4"
_CORE = ("launch_run", "wait_run", "kill_run", "capture_pane", "read_log", "list_runs", "gpu_check", "read_tb")


async def measure(house: House) -> Table:
    """Count the schemas, and the answers about one training that runs and then fails."""
    async with house.server() as server:
        schemas = await _schemas(server.client)
        launched = await server.call("launch_run", command=program("failing_training", _LIVE_S), name=_NAME)
        run_id, session = launched.data["run_id"], launched.data["session"]
        if not await until(lambda: b"240/720" in house.log(run_id).read_bytes()):
            raise NotMeasured("the training did not come to its step 240")
        await server.wait(run_id, until="first_step")
        if not await until(lambda: house.progress(run_id).exists() and b"240" in house.progress(run_id).read_bytes()):
            raise NotMeasured("the step 240 of 720 was not recognised")
        heartbeat = await server.wait(run_id, timeout_s=0.2, until="event")
        live_pane = _capture(house, session)
        failed = await server.wait(run_id, until="event")
        failed_pane = _capture(house, session)
        listed = await server.call("list_runs")
        log = await server.call("read_log", run_id=run_id)
    reasons = (heartbeat.data["reason"], failed.data["reason"], failed.data["runs"][0]["state"])
    if reasons != ("heartbeat", "ended", "failed"):
        raise NotMeasured(f"the waits returned with {reasons}")
    core = sum(count for name, count in schemas.items() if name in _CORE)
    missing = [name for name in _CORE if name not in schemas]
    rows = (
        measured(f"schemas of the core eight ({len(_CORE) - len(missing)} exist)", core, "tokens", at_most=2500),
        measured("schemas of all tools", sum(schemas.values()), "tokens", at_most=4500),
        *(Row(f"schema of {name}", amount(count, "tokens")) for name, count in schemas.items()),
        measured("heartbeat of wait_run", _tokens(heartbeat), "tokens", baseline=count(live_pane), at_most=100),
        measured("failed run, told by wait_run", _tokens(failed), "tokens", baseline=count(failed_pane), at_most=300),
        Row("launch_run", amount(_tokens(launched), "tokens")),
        Row("list_runs with one run", amount(_tokens(listed), "tokens")),
        Row("read_log after the failure (50 lines)", amount(count(log.text), "tokens")),
    )
    notes = [
        "Answers: structured content as compact JSON. Baseline: `tmux capture-pane -p -S -200` of the same run's "
        "pane at the same moment, which tells no exit code.",
        *([f"Not there yet: {', '.join(missing)}."] if missing else []),
        f"The heartbeat: `{_compact(heartbeat.data)}`",
        f"The failure: `{_compact(failed.data)}`",
    ]
    return Table("Tokens", rows, tuple(notes))


async def _schemas(client: Client) -> dict[str, int]:
    """Return the tokens of each tool as a model sees it."""
    found = (await client.list_tools()).tools
    seen = {t.name: {"name": t.name, "description": t.description, "inputSchema": t.input_schema} for t in found}
    return {name: count(_compact(tool)) for name, tool in seen.items()}


def _capture(house: House, session: str) -> str:
    return house.tmux("capture-pane", "-p", "-S", "-200", "-t", f"={session}:", socket=house.socket)


def _tokens(answer: Answer) -> int:
    return count(_compact(answer.data))


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def count(text: str) -> int:
    """Return the o200k tokens of ``text``."""
    return int(openai.o200k_base().count(text))
