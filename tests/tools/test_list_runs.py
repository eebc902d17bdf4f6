"""What list_runs answers about many runs: short rows, counts, and the call for the rest."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client

from mcp_server.record.sweeps.sweep_spec import Cell
from mcp_server.serve.app import build
from tests.support.ended_runs import Runs
from tests.support.sweeps import write_sweep

pytestmark = pytest.mark.anyio

OOM = {
    "kind": "oom_gpu",
    "line": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "line_number": 9,
}


async def list_runs(runs: Runs, **arguments: Any) -> dict[str, Any]:
    async with Client(build({"RUNWARD_HOME": str(runs.home.path)})) as client:
        result = await client.call_tool("list_runs", arguments)
    assert not result.is_error, result.content
    answer: dict[str, Any] = result.structured_content
    return answer


def add_hundred(runs: Runs) -> list[str]:
    ids = [f"qwen2-sft-lr{number:02}-k{number:02}q" for number in range(100)]
    for number, run_id in enumerate(ids):
        created_at = f"2026-11-21T15:{number // 60:02}:{number % 60:02}.000Z"
        failed = number % 4 == 0
        runs.add(run_id, "failed" if failed else "finished", created_at=created_at, failure=OOM if failed else None)
    return ids[::-1]


async def test_a_hundred_ended_runs_have_2000_tokens_and_the_rest_is_one_call_away(tmp_path: Path) -> None:
    openai = pytest.importorskip("rs_bpe").openai
    runs = Runs(tmp_path)
    ids = add_hundred(runs)
    first = await list_runs(runs, limit=100)
    assert openai.o200k_base().count(json.dumps(first, separators=(",", ":"))) <= 2000
    assert first["total"] == 100
    assert first["states"] == {"finished": 75, "failed": 25}
    listed = [run["run_id"] for run in first["runs"]]
    assert {k: v for k, v in first["runs"][3].items() if k not in ("started_at", "elapsed_s")} == {
        "run_id": ids[3],
        "state": "failed",
        "failure": {"kind": "oom_gpu"},
        "exit_code": 1,
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\dZ", first["runs"][3]["started_at"])
    assert first["more"] == f"{100 - len(listed)} older: list_runs(before={listed[-1]!r}) with the same filters"
    while "more" in first:
        first = await list_runs(runs, limit=100, before=listed[-1])
        listed += [run["run_id"] for run in first["runs"]]
    assert listed == ids, "each once, the newest first"


async def test_few_runs_are_described(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.add("cfm-7kqz", tags=["sweep-a", "lr"])
    runs.add("dp3-b3xq", "failed", failure=OOM)
    answer = await list_runs(runs)
    assert {run["run_id"]: run["elapsed_s"] for run in answer["runs"]} == {"cfm-7kqz": 3723, "dp3-b3xq": 3723}
    assert "states" not in answer
    assert "more" not in answer


async def test_runs_are_found_by_tag(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.add("cfm-7kqz", tags=["sweep-a", "lr"])
    runs.add("dp3-b3xq", tags=["sweep"])
    assert [run["run_id"] for run in (await list_runs(runs, tag="sweep"))["runs"]] == ["dp3-b3xq"]
    assert [run["run_id"] for run in (await list_runs(runs, tag="lr"))["runs"]] == ["cfm-7kqz"]
    assert (await list_runs(runs, tag="none"))["total"] == 0


async def test_sweeps_that_have_no_listed_run_are_named_by_their_ids(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    for number in range(7):
        created_at = f"2026-11-21T15:0{number}:00.000Z"
        end = {"kind": "ended", "state": "killed" if number == 3 else "finished"}
        write_sweep(
            runs.home.path, [Cell("c", "1")], [end], sweep_id=f"night-aaa{number}", name="night", created_at=created_at
        )
    runs.add("night-c-7kqz", sweep="night-aaa2", cell="c")
    listed, more = (await list_runs(runs))["sweeps"]
    assert listed.startswith("night-aaa2 finished: 1 cells")
    assert more == "6 more: night-aaa6, night-aaa5, night-aaa4, night-aaa3 and others"
    assert "sweeps" not in await list_runs(runs, owner="nobody")
    assert [line[:10] for line in (await list_runs(runs, name="NIGHT-C"))["sweeps"]] == ["night-aaa2"]
