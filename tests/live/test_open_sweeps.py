"""Open sweeps through a real client: proposals, pairs, verdicts, deaths."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from mcp_server.store.sweep_store import find_conductor
from mcp_server.sweeps.plan.open_cells import MEASURED
from mcp_server.sweeps.trials.trials import read_trials
from tests.support.repository import git, make_repository, picture
from tests.support.sandbox import Agent, Sandbox
from tests.support.sshd import NAME, FarHost, needs_sshd

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
    repository = sandbox.path / "project"
    if not repository.exists():
        make_repository(repository, FILES)
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


@pytest.mark.slow
async def test_a_change_is_measured_beside_the_best_and_kept_only_if_better(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        arguments = toy(sandbox)
        repository = Path(arguments["common"]["cwd"])
        before = picture(repository)
        sweep_id = (await agent.call("launch_sweep", **arguments))["sweep_id"]
        (repository / "train.py").write_text(TRAIN.replace("1.0", "1.3"))
        before["train.py"] = picture(repository)["train.py"]
        better, worse = patch("1.0", "0.98"), patch("1.0", "1.2")
        first = await agent.call("propose", sweep=sweep_id, text="lower level", patch=better)
        assert (first["trial"], first["state"], first["base"], first["files"]) == ("t1", "queued", "t0", ["train.py"])
        kept = await verdict_of(agent, sandbox, sweep_id, "t1")
        assert (kept.verdict, kept.base, len(kept.runs) >= 3) == ("kept", "t0", True), kept.why
        assert git(repository, "rev-parse", "runward/loop").strip() == kept.commit
        again = await agent.call("propose", sweep="loop", text="the same", patch=better, base="t0")
        assert (again["state"], again["kept"]["trial"]) == ("repeat", "t1")
        assert "t1 kept: lower level" in again["why"]
        assert "like" not in again, "the cause names it"
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
        changed = {run.code_change for run in sandbox.store.list_runs()}
        assert changed == {None}, "what a person edits is not the code of a trial"
        table = [line.split("\t")[3:6] for line in (repository / "results.tsv").read_text().splitlines()]
        assert table[1:3] == [["keep", "the base", "t0"], ["keep", "lower level", "t1"]]
        now = picture(repository)
        assert {name for name in now | before if now.get(name) != before.get(name)} == {
            *("results.tsv", ".git/info/exclude")
        }, "no file, index or branch of a person's has changed"
        assert not list((sandbox.store.sweeps.directory(sweep_id).trees).glob("*/")), "no worktree is left"


@pytest.mark.slow
async def test_a_conductor_that_is_killed_at_any_moment_loses_no_proposal_and_doubles_no_run(sandbox: Sandbox) -> None:
    async with sandbox.agent() as agent:
        arguments = toy(sandbox, budget=4, ledger=False)
        repository = Path(arguments["common"]["cwd"])
        sweep_id = (await agent.call("launch_sweep", **arguments))["sweep_id"]

        def look() -> Any:
            return sandbox.store.sweeps.observe(sweep_id)

        async def wait_until(condition: Any) -> None:
            """Wait by calls, each of which starts a conductor where the sweep has none."""
            for _ in range(300):
                if condition() or look().ended:
                    return
                await agent.call("wait_run", run_ids=sweep_id, until="event", timeout_s=1)
            raise AssertionError(look().events)

        for number, level in enumerate(("1.01", "0.985", "1.02", "0.99"), 1):
            before = len(look().events)
            if (pid := find_conductor(look())) is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            answer = await agent.call(
                "propose", sweep=sweep_id, text=f"level {level}", patch=patch("1.0", level), base="t0"
            )
            assert answer["trial"] == f"t{number}"
            # Some events later, so that each death meets another step.
            await wait_until(lambda: len(look().events) > before + 6)  # noqa: B023
        await wait_until(lambda: look().ended)
        sweep = look()
        seen = read_trials(sweep)
    assert sweep.state == "finished", sweep.reason
    assert [trial.verdict is not None for trial in seen.trials.values() if not trial.origin] == [True] * 5
    cells = [event["cell"] for event in sweep.events if event["kind"] == "cell_added"]
    assert len(cells) == len(set(cells))
    started = [run.spec.cell for run in sandbox.store.list_runs() if run.started_at is not None]
    assert len(started) == len(set(started)), "each run once"
    assert {run.end for trial in seen.trials.values() for run in trial.runs} <= {"counted", None}
    screens = [run.trial for trial in seen.trials.values() for run in trial.runs if run.role == "screen"]
    assert len(screens) == len(set(screens)), "no trial is screened twice"
    tips = [event["commit"] for event in sweep.events if event["kind"] == "tip"]
    assert git(repository, "for-each-ref", "--format=%(objectname)", "refs/heads/runward").split() == tips[-1:]


@pytest.mark.slow
async def test_a_stopped_open_sweep_goes_on_and_a_spent_one_takes_a_bigger_budget(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        arguments = toy(sandbox, budget=1)
        sweep_id = (await agent.call("launch_sweep", **arguments))["sweep_id"]
        await agent.call("propose", sweep=sweep_id, text="higher", patch=patch("1.0", "1.1"))
        await agent.kill(sweep_id)
        refusal = await agent.refusal("propose", sweep=sweep_id, text="lower", patch=patch("1.0", "0.98"))
        assert f"{sweep_id} is killed" in refusal
        counts = (await agent.call("wait_run", run_ids=sweep_id, timeout_s=0))["sweep"]["trials"]["counts"]
        assert set(counts) <= {"queued", "stopped", "discarded"}, "nothing of it runs"
        asked = await agent.call("launch_sweep", name="loop", dry_run=True)
        assert f"{sweep_id} would go on. " in asked["next_step"]
        assert "until 1 trial, mostly 1 to 9 runs each; protected: prepare.py." in asked["next_step"]
        assert sandbox.store.sweeps.observe(sweep_id).state == "killed"
        assert (await agent.call("launch_sweep", name="loop"))["sweep_id"] == sweep_id
        assert (await verdict_of(agent, sandbox, sweep_id, "t1")).verdict == "discarded"
        await agent.call("wait_run", run_ids=sweep_id, until="end", timeout_s=60)
        assert sandbox.store.sweeps.observe(sweep_id).state == "finished"
        go_on: dict[str, Any] = {"name": sweep_id, "resume": "continue"}
        assert "is spent: 1 trials" in await agent.refusal("launch_sweep", **go_on)
        unplanned = await agent.refusal("launch_sweep", name="loop", dry_run=True)
        assert 'resume="continue" with a bigger budget in search goes on; a new one needs its plan' in unplanned
        other = {**go_on, "search": {"strategy": "open", "repeats": 2}}
        assert "repeats is 4 there, 2 in this call" in await agent.refusal("launch_sweep", **other)
        more = await agent.call("launch_sweep", **go_on, search={"strategy": "open", "budget": 2})
        assert more["warnings"] == ["budget is 2 now, it was 1."]
        await agent.call("propose", sweep=sweep_id, text="higher still", patch=patch("1.0", "1.2"))
        assert (await verdict_of(agent, sandbox, sweep_id, "t2")).verdict == "discarded"


@pytest.mark.slow
async def test_failures_are_verdicts_with_their_reason(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        sweep_id = (await agent.call("launch_sweep", **toy(sandbox, measure="python3 -c 'print(\"loss\", 1.0)'")))[
            "sweep_id"
        ]
        crash = patch("level = 1.0", "raise ValueError('bad shape')")
        await agent.call("propose", sweep=sweep_id, text="crashes", patch=crash)
        await agent.call("propose", sweep=sweep_id, text="prints another metric", patch=patch("loss", "cost"))
        forged = patch("import sys", f"import sys\nprint({MEASURED!r})\nprint('loss 0.1')")
        await agent.call("propose", sweep=sweep_id, text="prints as if it were measured", patch=forged, base="t0")
        failed = await verdict_of(agent, sandbox, sweep_id, "t1")
        assert (failed.verdict, "ValueError: bad shape" in failed.why) == ("crash", True), failed.why
        same = await verdict_of(agent, sandbox, sweep_id, "t2")
        assert (same.verdict, same.mean) == ("discarded", 1.0), "the command that measures is another one"
        cheat = await verdict_of(agent, sandbox, sweep_id, "t3")
        assert (cheat.verdict, f"its log, by another line {MEASURED!r}" in cheat.why) == ("invalid", True), cheat.why
        await agent.kill(sweep_id)
        silent = toy(sandbox, measure="echo 1.0") | {"name": "silent"}
        sweep_id = (await agent.call("launch_sweep", **silent))["sweep_id"]
        await agent.call("wait_run", run_ids=sweep_id, until="end", timeout_s=60)
        refusal = await agent.refusal("propose", sweep=sweep_id, text="crashes", patch=crash)
        assert "t0 gave no loss: no_metric: measure printed no number named so, e.g. loss: 0.5" in refusal
        assert 'Correct that, then launch_sweep(name="silent", resume="wipe", …) starts anew.' in refusal


@pytest.mark.slow
async def test_parameters_alone_are_tried_without_git_and_what_is_kept_is_the_base_of_the_next(
    sandbox: Sandbox,
) -> None:
    plain = sandbox.path / "plain"
    plain.mkdir()
    (plain / "train.py").write_text(
        TRAIN.replace("level = 1.0", "level = float(sys.argv[sys.argv.index('--level') + 1])")
    )
    async with sandbox.agent_in_process() as agent:
        arguments = toy(sandbox) | {"common": {"command": "python3 train.py {seed}", "cwd": str(plain)}}
        arguments["common"]["params"] = {"level": 1.0}
        search = {"strategy": "open", "budget": 3}
        refusal = await agent.refusal("launch_sweep", **arguments | {"search": search})
        assert "no work tree of git" in refusal
        advised = re.search(r'"base": "\w+"', refusal)
        assert advised is not None
        arguments["search"] = search | json.loads(f"{{{advised[0]}}}")
        sweep_id = (await agent.call("launch_sweep", **arguments))["sweep_id"]
        await agent.call("propose", sweep=sweep_id, text="lower", params={"level": 0.98})
        kept = await verdict_of(agent, sandbox, sweep_id, "t1")
        assert kept.verdict == "kept", kept.why
        again = await agent.call("propose", sweep=sweep_id, text="lower once more", params={"level": 0.98})
        assert again["state"] == "no_change"
        assert "no git repository" in await agent.refusal(
            "propose", sweep=sweep_id, text="code", patch=patch("1.0", "2.0")
        )
        await agent.kill(sweep_id)


@pytest.mark.slow
async def test_a_file_that_runs_write_themselves_stays_out_of_a_trial(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        arguments = toy(sandbox, budget=3, baseline_runs=1)
        repository = Path(arguments["common"]["cwd"])
        saves = f"{TRAIN}import time\nwith open('weights.json', 'w') as f:\n    f.write('1')\n    time.sleep(0.5)\n"
        (repository / "train.py").write_text(saves)
        git(repository, "commit", "-qam", "saves")
        sweep_id = (await agent.call("launch_sweep", **arguments))["sweep_id"]
        for name, text in (("weights.json", "0"), ("layers.py", "DEPTH = 2\n")):
            (repository / name).write_text(text)
        trial = {"sweep": sweep_id, "text": "layers", "worktree": str(repository)}
        early = await agent.call("propose", **trial)
        assert early["files"] == ["layers.py", "weights.json"], "the base has not run"
        carrying = await verdict_of(agent, sandbox, sweep_id, "t1")
        assert (carrying.verdict, len(carrying.runs)) == ("invalid", 0)
        assert carrying.why == "brings weights.json, which runs write: propose it again without"
        asked = await agent.call("propose", **trial, dry_run=True)
        assert (asked["files"], asked["warnings"]) == (["layers.py"], ["weights.json left out: runs write that"])
        (repository / "layers.py").unlink()
        same = await agent.call("propose", **trial)
        assert (same["state"], same["why"]) == (
            *("no_change", "nothing differs from t0; weights.json left out: runs write that"),
        )
        await agent.call("propose", sweep=sweep_id, text="higher", patch=patch("1.0", "1.1"))
        assert (await verdict_of(agent, sandbox, sweep_id, "t2")).verdict == "discarded"
        noted = await agent.call("launch_sweep", name=sweep_id, notes={"t2": "keep: simpler"})
        assert "A note decides on a suspect alone." in noted["next_step"]
        stopped = await agent.kill(sweep_id)
        assert f'launch_sweep(name="{sweep_id}", resume="continue") goes on' in stopped["message"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"goal": None}, "goal: strategy open needs it"),
        ({"metric": None}, "metric: strategy open needs it"),
        ({"grid": {"lr": [1, 2]}}, "grid: strategy open and grid exclude each other"),
        ({"halving": {"steps": [1]}}, "halving: strategy open and halving exclude each other"),
        ({"hosts": ["far"]}, 'sync must be "git" here'),
        ({"common": {"command": "x", "cwd": "/", "backend": "slurm"}}, "strategy open takes no backend"),
        ({"search": {"budget": 3, "space": {"lr": [1]}}}, "no field 'space'"),
        ({"search": {}}, "needs budget (trials) or hours"),
        ({"search": {"budget": 3, "repeats": 1}}, "1 pair proves nothing"),
        ({"search": {"budget": 3, "protect": ["preparo.py"]}}, "'preparo.py' matches nothing"),
        ({"search": {"budget": 3, "base": "nowhere"}}, "no commit 'nowhere'"),
        ({"search": {"budget": 3, "limits": {"cpu": 1}}}, "limits must be an object"),
        ({"search": {"budget": True}}, "budget must be a number of trials"),
    ],
)
async def test_a_plan_that_means_something_else_is_refused_and_nothing_is_written(
    sandbox: Sandbox, change: dict[str, Any], words: str
) -> None:
    arguments = toy(sandbox) | change
    arguments["search"] = {"strategy": "open", **arguments["search"]}
    async with sandbox.agent_in_process() as agent:
        refusal = await agent.refusal("launch_sweep", **{n: v for n, v in arguments.items() if v is not None})
    assert words in refusal
    assert not (sandbox.path / "state" / "sweeps").exists()


async def test_a_proposal_that_is_none_is_refused_with_the_way(sandbox: Sandbox) -> None:
    async with sandbox.agent_in_process() as agent:
        sweep_id = (await agent.call("launch_sweep", **toy(sandbox)))["sweep_id"]
        own = patch("1.0", "0.9")
        for words, arguments in (
            ("none of worktree", {"text": "x"}),
            ("patch and params of worktree", {"text": "x", "patch": own, "params": {"a": 1}}),
            ("text: must be one line", {"text": " ", "patch": own}),
            ("text: must be one line", {"text": "two\nlines", "patch": own}),
            ("text: must be one line", {"text": "x" * 201, "patch": own}),
            ("does not apply", {"text": "x", "patch": own.replace("level = 1.0", "level = 7.0")}),
            ("has no commit", {"text": "x", "commit": "0123456"}),
            ("has no trial 't9'", {"text": "x", "patch": own, "base": "t9"}),
            ("a must be a text, a number", {"text": "x", "params": {"a": [1]}}),
        ):
            assert words in await agent.refusal("propose", sweep=sweep_id, **arguments)
        none = await agent.call("propose", sweep=sweep_id, text="x", commit="HEAD")
        assert (none["state"], none.get("trial")) == ("no_change", None)
        key = {"sweep": sweep_id, "text": "x", "patch": own, "idempotency_key": "k"}
        assert [(await agent.call("propose", **key))["trial"] for _ in range(2)] == ["t1", "t1"]
        secret = await agent.call(
            "propose", sweep=sweep_id, text="with sk-proj-abcdefghij0123456789ABCDEFGHIJ", patch=patch("1.0", "1.5")
        )
        assert (
            "sk-proj"
            not in sandbox.store.sweeps.directory(sweep_id).requests.joinpath(f"{secret['trial']}.json").read_text()
        )
        await agent.kill(sweep_id)
        plan = await agent.call(
            "launch_sweep", name="grid", common={"command": ["true"], "gpus": "none"}, grid={"n": [1]}
        )
        assert "takes no proposals" in await agent.refusal("propose", sweep=plan["sweep_id"], text="x", patch=own)


@pytest.mark.slow
@needs_sshd
async def test_trials_run_on_other_hosts_as_commits_and_are_guarded_there(sandbox: Sandbox, far_host: FarHost) -> None:
    arguments = toy(sandbox, ledger=False) | {"hosts": [NAME, socket.gethostname()]}
    arguments["common"] |= {"sync": "git", "gpus": "cpu"}
    async with sandbox.agent_in_process() as agent:
        unsent = {**arguments, "common": {**arguments["common"], "sync": "rsync"}}
        assert 'sync must be "git"' in await agent.refusal("launch_sweep", **unsent)
        sweep_id = (await agent.call("launch_sweep", **arguments))["sweep_id"]
        tampering = patch("import sys", "import sys\nopen('prepare.py', 'a').write('#')")
        for text, change in (("lower level", patch("1.0", "0.98")), ("tampering", tampering)):
            await agent.call("propose", sweep=sweep_id, text=text, patch=change, base="t0")
        trials = [await verdict_of(agent, sandbox, sweep_id, name) for name in ("t1", "t2")]
        assert [trial.verdict for trial in trials] == ["kept", "invalid"], [trial.why for trial in trials]
        assert trials[1].why.endswith("changed while it ran: prepare.py")
        runs = [run for run in sandbox.store.list_runs() if run.spec.sweep == sweep_id]
        assert {bool(run.spec.mirror) for run in runs} == {True, False}, "here and there"
        seen = read_trials(sandbox.store.sweeps.observe(sweep_id))
        beside = {run.pair: run.host for run in seen.trials["t0"].runs if run.against == "t1"}
        assert beside == {run.pair: run.host for run in seen.trials["t1"].runs if run.pair}, "a pair is on one host"
        assert beside, "it was kept by pairs"
        await agent.kill(sweep_id)
    repository = Path(arguments["common"]["cwd"])  # the host has a clone there, which takes the commits
    assert len(git(repository, "worktree", "list").splitlines()) == 1, "no worktree is left, here or there"
    assert {path.name for path in (far_host.state / "code").iterdir()} == {"lock"}


@pytest.mark.parametrize("by", ["params", "patch"])
async def test_a_trial_that_would_end_a_live_run_does_not_start(sandbox: Sandbox, by: str) -> None:
    arguments = toy(sandbox)
    (sandbox.path / "project" / "go.sh").write_text("true\n")
    git(sandbox.path / "project", "add", "go.sh")
    git(sandbox.path / "project", "commit", "-qm", "go")
    arguments["common"] |= {"command": "bash -c {act}; bash go.sh; python3 train.py {seed}", "params": {"act": "true"}}
    change = "--- a/go.sh\n+++ b/go.sh\n@@ -1 +1 @@\n-true\n+pkill -f open_sweep_victim\n"
    async with sandbox.agent() as agent:
        victim = await agent.launch("exec -a open_sweep_victim sleep 600", gpus="cpu")
        sweep_id = (await agent.call("launch_sweep", **arguments))["sweep_id"]
        given: dict[str, Any] = (
            {"patch": change} if by == "patch" else {"params": {"act": "'pkill -f open_sweep_victim'"}}
        )
        trial = (await agent.call("propose", sweep=sweep_id, text="faster", **given))["trial"]
        seen = await verdict_of(agent, sandbox, sweep_id, trial)
        assert (seen.verdict, "it ends processes" in seen.why) == ("crash", True), seen
        assert (await agent.call("wait_run", run_ids=victim, timeout_s=0))["runs"][0]["state"] == "running"
        await agent.kill(victim)


async def test_a_proposal_keeps_no_key(sandbox: Sandbox) -> None:
    key, named = "ghp_A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8", "n4m3dS3cr3tV4lu3-0192"
    (sandbox.path / "state").mkdir(mode=0o700)
    (sandbox.path / "state" / "secrets.env").write_text(f"MY_TOKEN={named}\n")
    (sandbox.path / "state" / "secrets.env").chmod(0o600)
    async with sandbox.agent() as agent:
        sweep_id = (await agent.call("launch_sweep", **toy(sandbox)))["sweep_id"]
        for value, words in (
            ({"x": f"say {key}"}, "a key"),
            ({"x": named}, "a secret, MY_TOKEN"),
            ({"api_key": "hunter2hunter2zz"}, "a key"),
        ):
            assert words in await agent.refusal("propose", sweep=sweep_id, text="x", params=value)
        more = {"sweep": sweep_id, "text": f"by {key}", "patch": patch("level = 1.0", f'level, k = 1.0, "{named}"')}
        assert "looks like a key" in await agent.refusal("propose", **more, idempotency_key=key)
        await agent.call("propose", **more)
    kept = b"".join(path.read_bytes() for path in (sandbox.path / "state" / "sweeps").rglob("*") if path.is_file())
    assert not [one for one in (key, named) if one.encode() in kept]
