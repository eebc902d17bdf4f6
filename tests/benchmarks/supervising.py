"""What an agent reads that watches several runs: seven to their ends, and a hundred that have ended."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import NotMeasured, Sandbox, Server
from tests.benchmarks.report import Row, Table, amount, measured
from tests.benchmarks.tokens import count
from tests.support.ended_runs import Runs

_RUNS, _ENDED = 7, 100
_MOST_CALLS = 40
# Steps for a second, then silence until its end; the third fails once and is retried.
_TRAIN = 'for i in 1 2 3 4; do echo "step $i/4 loss 0.$i"; sleep 0.25; done; {once}sleep {seconds}'
_ONCE = "test -e {flag} || {{ touch {flag}; exit 1; }}; "
_OOM = {"kind": "oom_gpu", "line": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"}


@dataclass(frozen=True)
class _Reading:
    calls: int
    tokens: int
    ends: int


async def measure(sandbox: Sandbox) -> Table:
    """Watch seven short runs twice, for decisions and for every event, and list a hundred ended runs."""
    async with sandbox.server() as server:
        decisions = await _watch(server, sandbox.root, "decision")
        events = await _watch(server, sandbox.root, "event")
    if decisions.ends != _RUNS or events.ends != _RUNS:
        raise NotMeasured(f"ends answered: {decisions.ends} and {events.ends} of {_RUNS}")
    runs = Runs(sandbox.root / "ended")
    for number in range(_ENDED):
        state, failure = ("failed", _OOM) if number % 4 == 0 else ("finished", None)
        runs.add(f"qwen2-7b-sft-lr{number:02}-k{number:02}q", state, failure=failure, tags=["big"])
    async with sandbox.server(RUNWARD_HOME=str(runs.home.path)) as server:
        listed = await server.call("list_runs", limit=_ENDED)
        begun = await server.call("wait_run", run_ids="tag:big", until="decision", timeout_s=0)
    rows = (
        measured(
            f"{_RUNS} runs to their ends, until=decision",
            decisions.tokens,
            "tokens",
            baseline=events.tokens,
            at_most=1500,
        ),
        measured("the same: calls", decisions.calls, "calls", baseline=events.calls, at_most=8),
        measured(f"list_runs of {_ENDED} ended runs", _tokens(listed.data), "tokens", at_most=2000),
        measured(f"wait_run of {_ENDED} ended runs, all of them news", _tokens(begun.data), "tokens", at_most=2000),
        Row("the same: runs in it", amount(len(begun.data["runs"]) + len(begun.data.get("brief", ())), "runs")),
    )
    note = "Baseline: the same by wait_run(run_ids=[all seven]) until every end was answered. Launches are not counted."
    return Table("Supervising", rows, (note,))


async def _watch(server: Server, directory: Path, until: str) -> _Reading:
    tag, ids = f"seven-{until}", []
    answers: list[dict[str, Any]] = []
    ended: set[str] = set()
    for number in range(_RUNS):
        once = _ONCE.format(flag=directory / f"{tag}.flag") if number == 2 else ""
        command = _TRAIN.replace("{once}", once).replace("{seconds}", f"{1 + number * 0.8:g}")
        policy: dict[str, Any] = {"any": {"do": "retry", "times": 1, "wait_s": 0}}
        launched = await server.call(
            "launch_run", command=command, name=f"qwen2-sft-{number}", tags=[tag], recovery=policy
        )
        ids.append(launched.data["run_id"])
    arguments: dict[str, Any] = {"run_ids": f"tag:{tag}" if until == "decision" else ids, "until": until}
    while len(ended) < _RUNS and len(answers) < _MOST_CALLS:
        answer = (await server.call("wait_run", **arguments)).data
        answers.append(answer)
        ended |= {run["run_id"] for run in answer["runs"] if run["state"] == "finished"}
        ended |= {line.split()[0] for line in answer.get("brief", ())}
        if until == "decision":
            arguments["since"] = answer["cursor"]
    return _Reading(len(answers), sum(map(_tokens, answers)), len(ended))


def _tokens(answer: Any) -> int:
    return count(json.dumps(answer, ensure_ascii=False, separators=(",", ":")))
