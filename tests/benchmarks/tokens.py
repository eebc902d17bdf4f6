"""What an agent pays for runward, in tokens (o200k): the tools' schemas, and typical answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from mcp.client import Client
from rs_bpe import openai
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from tests.benchmarks.harness import Answer, NotMeasured, Sandbox, program, until
from tests.benchmarks.report import Row, Table, amount, measured

_LIVE_S = 4.0
_TAGS, _POINTS, _SPECIAL = 20, 100_000, 2
_NAME = "qwen2-7b-sft-lr2e-4"
_CORE = ("launch_run", "wait_run", "kill_run", "capture_pane", "read_log", "list_runs", "gpu_check", "read_tb")


async def measure(sandbox: Sandbox) -> Table:
    """Count the schemas, and the answers about one training that runs and then fails."""
    async with sandbox.server() as server:
        schemas = await _schemas(server.client)
        launched = await server.call("launch_run", command=program("failing_training", _LIVE_S), name=_NAME)
        run_id, session = launched.data["run_id"], launched.data["session"]
        if not await until(lambda: b"240/720" in sandbox.log(run_id).read_bytes()):
            raise NotMeasured("the training did not come to its step 240")
        await server.wait(run_id, until="first_step")
        if not await until(
            lambda: sandbox.progress(run_id).exists() and b"240" in sandbox.progress(run_id).read_bytes()
        ):
            raise NotMeasured("the step 240 of 720 was not recognised")
        heartbeat = await server.wait(run_id, timeout_s=0.2, until="event")
        live_pane = _capture(sandbox, session)
        failed = await server.wait(run_id, until="event")
        failed_pane = _capture(sandbox, session)
        listed = await server.call("list_runs")
        log = await server.call("read_log", run_id=run_id)
        curves = await server.call("read_tb", logdir=str(_curves(sandbox.root / "curves")))
    reasons = (heartbeat.data["reason"], failed.data["reason"], failed.data["runs"][0]["state"])
    if reasons != ("heartbeat", "ended", "failed"):
        raise NotMeasured(f"the waits returned with {reasons}")
    core = sum(count for name, count in schemas.items() if name in _CORE)
    missing = [name for name in _CORE if name not in schemas]
    lines = {line.split()[0]: line for line in curves.data["tags"]}
    if len(lines) != _TAGS or "9999" not in lines["Train/tag00"] or "NaN" not in lines["Train/tag01"]:
        raise NotMeasured(f"the spike or the NaN cannot be seen: {curves.data}")
    rows = (
        measured(f"schemas of the core eight ({len(_CORE) - len(missing)} exist)", core, "tokens", at_most=2500),
        measured("schemas of all tools", sum(schemas.values()), "tokens", at_most=4800),
        *(Row(f"schema of {name}", amount(count, "tokens")) for name, count in schemas.items()),
        measured("heartbeat of wait_run", _tokens(heartbeat), "tokens", baseline=count(live_pane), at_most=45),
        measured("failed run, told by wait_run", _tokens(failed), "tokens", baseline=count(failed_pane), at_most=300),
        measured(
            f"read_tb, {_TAGS} tags, a spike of one in {_POINTS:,} points and one NaN told",
            _tokens(curves),
            "tokens",
            baseline=count(_pairs()),
            at_most=800,
        ),
        measured("launch_run", _tokens(launched), "tokens", at_most=80),
        Row("list_runs with one run", amount(_tokens(listed), "tokens")),
        Row("read_log after the failure (50 lines)", amount(count(log.text), "tokens")),
    )
    notes = [
        "Answers: structured content as compact JSON. Baseline: `tmux capture-pane -p -S -200` of the same run's "
        "pane at the same moment, which tells no exit code.",
        f"Baseline of read_tb: 32 points a tag as JSON. Its answer begins: `{_compact(curves.data)[:300]}…`",
        *([f"Not there yet: {', '.join(missing)}."] if missing else []),
        f"The heartbeat: `{_compact(heartbeat.data)}`",
        f"The failure: `{_compact(failed.data)}`",
    ]
    return Table("Tokens", rows, tuple(notes))


def _curves(directory: Path) -> Path:
    """Write tags of a hundred thousand points, one with a spike and one with a NaN."""
    writer = EventFileWriter(str(directory))
    for tag in range(_TAGS):
        values = np.random.default_rng(tag).normal(np.linspace(3, 1, _POINTS), 0.05)
        if tag == 0:
            values[31_415] = 9999
        elif tag == 1:
            values[27_182] = np.nan
        for at in range(0, _POINTS, 1 if tag < _SPECIAL else 1000):
            value = Summary.Value(tag=f"Train/tag{tag:02}", simple_value=values[at])
            writer.add_event(Event(wall_time=1.8e9 + at, step=at, summary=Summary(value=[value])))
    writer.close()
    return directory


def _pairs() -> str:
    rng = np.random.default_rng(1)
    tags = {f"Train/tag{tag:02}": [[step * 3125, round(rng.random(), 4)] for step in range(32)] for tag in range(_TAGS)}
    return _compact(tags)


async def _schemas(client: Client) -> dict[str, int]:
    """Return the tokens of each tool as a model sees it."""
    found = (await client.list_tools()).tools
    seen = {t.name: {"name": t.name, "description": t.description, "inputSchema": t.input_schema} for t in found}
    return {name: count(_compact(tool)) for name, tool in seen.items()}


def _capture(sandbox: Sandbox, session: str) -> str:
    return sandbox.tmux("capture-pane", "-p", "-S", "-200", "-t", f"={session}:", socket=sandbox.socket)


def _tokens(answer: Answer) -> int:
    return count(_compact(answer.data))


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def count(text: str) -> int:
    """Return the o200k tokens of ``text``."""
    return int(openai.o200k_base().count(text))
