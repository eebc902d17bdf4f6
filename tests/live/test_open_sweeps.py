"""Open sweeps through a real client: proposals, pairs, verdicts, deaths."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import pytest

from mcp_server.sweeps.trials.trials import read_trials
from tests.support.repository import git, make_repository, picture
from tests.support.sandbox import Agent, Sandbox

pytestmark = pytest.mark.anyio

# The noise is a number of the seed, so that every try of the test has the same verdicts; its deviation is about 0.006.
TRAIN = """
import sys
level = 1.0
seed = int(sys.argv[1])
print(f"step 1/1 loss {level + 0.01 * ((seed * 5 + 3) % 13 - 6) / 6:.6f}", flush=True)
"""
FILES = {"train.py": TRAIN, "prepare.py": "DATA = 1\n", ".gitignore": "*.log\n"}


def toy(sandbox: Sandbox, **search: Any) -> dict[str, Any]:
    """The arguments of an open sweep of a small repository."""
    repository = make_repository(sandbox.path / "project", FILES)
    return {
        "name": "loop",
        "common": {"command": "python3 train.py {seed}", "cwd": str(repository)},
        "metric": "loss",
        "goal": "min",
        "max_parallel": 3,
        "search": {"strategy": "open", "budget": 10, "protect": ["prepare.py"], **search},
    }


def patch(old: str, new: str, name: str = "train.py") -> str:
    """The unified diff of one replaced text."""
    before, after = FILES[name], FILES[name].replace(old, new)
    lines = before.splitlines(keepends=True), after.splitlines(keepends=True)
    return "".join(difflib.unified_diff(lines[0], lines[1], f"a/{name}", f"b/{name}"))


async def verdict_of(agent: Agent, sandbox: Sandbox, sweep_id: str, trial: str) -> Any:
    """Wait until a trial has a verdict."""
    for _ in range(60):
        seen = read_trials(sandbox.store.sweeps.observe(sweep_id))
        if trial in seen.trials and seen.trials[trial].verdict is not None:
            return seen.trials[trial]
        await agent.call("wait_run", run_ids=sweep_id, until="decision", timeout_s=60)
    raise AssertionError(f"{trial} has no verdict: {seen.trials}")


async def test_a_change_is_measured_beside_the_best_and_kept_only_if_better(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        arguments = toy(sandbox)
        repository = Path(arguments["common"]["cwd"])
        before = picture(repository)
        sweep_id = (await agent.call("launch_sweep", **arguments))["sweep_id"]
        better, worse = patch("1.0", "0.98"), patch("1.0", "1.2")
        first = await agent.call("propose", sweep=sweep_id, text="lower level", patch=better)
        assert (first["trial"], first["state"], first["base"], first["files"]) == ("t1", "queued", "t0", ["train.py"])
        kept = await verdict_of(agent, sandbox, sweep_id, "t1")
        assert (kept.verdict, kept.base, len(kept.runs) >= 3) == ("kept", "t0", True), kept.why
        assert git(repository, "rev-parse", "runward/loop").strip() == kept.commit
        again = await agent.call("propose", sweep="loop", text="the same", patch=better, base="t0")
        assert (again["state"], again["kept"]["trial"]) == ("repeat", "t1")
        assert "t1 kept: lower level" in again["why"]
        asked = await agent.call("propose", sweep="loop", text="the lower level", patch=worse, base="t0", dry_run=True)
        assert (asked["state"], asked.get("trial")) == ("checked", None)
        assert asked["like"][0].startswith("t1 kept: lower level")
        third = await agent.call("propose", sweep="loop", text="raise it", patch=worse, base="t0")
        assert third["trial"] == "t3", "the repeat is on record"
        discarded = await verdict_of(agent, sandbox, sweep_id, "t3")
        assert discarded.verdict == "discarded"
        touched = patch("1", "2", "prepare.py")
        invalid = await agent.call("propose", sweep="loop", text="easier data", patch=touched, base="t0")
        assert (invalid["state"], invalid["why"]) == ("invalid", "touches what is protected: prepare.py")
        answer = await agent.call("wait_run", run_ids=sweep_id, until="decision", timeout_s=0)
        assert answer["sweep"]["trials"]["kept"]["trial"] == "t1"
        await agent.kill(sweep_id)
        assert picture(repository) == before, "no file, index or branch of a person's has changed"
        assert not list((sandbox.store.sweeps.directory(sweep_id).trees).glob("*/")), "no worktree is left"
