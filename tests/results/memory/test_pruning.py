"""Records that nobody needs go when a person says so twice; what lives, what is best, and checkpoints stay."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

import pytest

from mcp_server.__main__ import main
from mcp_server.errors import BadArgument
from mcp_server.record.state import posix
from mcp_server.results.memory.pruning import PrunePlan, PruneSelection, plan_prune, prune
from mcp_server.sweeps.tables.log import keep_note
from tests.support.ended_runs import BEGAN_S, ENDED_AT, Runs

LONG_AGO, ENDED = "2021-11-21T15:30:00.000Z", "2021-11-21T16:30:00.000Z"


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    runs = Runs(tmp_path)
    for number, (state, loss) in enumerate([("finished", 0.5), ("finished", 0.1), ("finished", 0.9), ("failed", 0.0)]):
        progress = {"step": 9, "metrics": {"loss": loss}}
        runs.add(f"r-{number}", state, progress=progress, created_at=LONG_AGO, cwd=str(tmp_path / "work"))
        for path in (runs.home.runs / f"r-{number}").rglob("*.json*"):
            path.write_text(path.read_text().replace(ENDED_AT, ENDED))
    return runs


def plan(runs: Runs, *named: str, **selection: object) -> PrunePlan:
    return plan_prune(PruneSelection(named, **selection), runs.store, runs.scalars)  # type: ignore[arg-type]


def ids(plan: PrunePlan) -> list[str]:
    return sorted(run.run_id for run in plan.runs)


def test_the_flags_mean_together_which_runs_go(runs: Runs) -> None:
    assert ids(plan(runs, failed=True)) == ["r-3"]
    assert ids(plan(runs, older_s=1.0)) == ["r-0", "r-1", "r-2", "r-3"]
    assert ids(plan(runs, older_s=1.0, failed=True)) == ["r-3"]
    assert ids(plan(runs, older_s=1e12)) == []
    assert ids(plan(runs, keep_best=1)) == ["r-0", "r-2", "r-3"]
    assert plan(runs, keep_best=2).kept == {"r-1": "1. by loss", "r-0": "2. by loss"}
    assert ids(plan(runs, "r-2")) == ["r-2"]
    with pytest.raises(BadArgument, match="nothing says which runs go"):
        plan(runs)


def test_a_lost_run_is_as_old_as_its_last_sign_and_not_as_its_launch_or_the_look_that_found_it(runs: Runs) -> None:
    for run_id in ("r-long", "r-late"):
        runs.add(run_id, None, created_at="2020-01-01T00:00:00.000Z")
        rundir = runs.store.run_directory(run_id)
        if run_id == "r-late":
            text = rundir.events.read_text().replace("2026-11-21", "2020-01-02")
            end = {
                "seq": 3,
                "at": "2026-11-27T00:00:00.000Z",
                "kind": "ended",
                "state": "lost",
                "text": "lost: by Slurm",
            }
            rundir.events.write_text(f"{text}{json.dumps(end)}\n")
        assert runs.store.observe(run_id).state == "lost"
    years_s = time.time() - posix("2020-06-01T00:00:00Z")
    assert ids(plan(runs, older_s=years_s)) == ["r-late"]


def test_nothing_says_which_are_the_best_where_no_metric_has_a_direction(runs: Runs, tmp_path: Path) -> None:
    runs.add("r-9", progress={"step": 9, "metrics": {"foo": 1.0}}, cwd=str(tmp_path / "other"))
    assert plan(runs, keep_best=1).kept["r-9"] == "no metric says whether it is among the best"


def test_a_run_that_was_kept_by_a_verdict_goes_only_by_its_name(runs: Runs) -> None:
    keep_note(runs.store, runs.store.observe("r-3"), "keep", "odd", "ada", {})
    assert plan(runs, failed=True).kept == {"r-3": "noted as keep"}
    assert ids(plan(runs, "r-3")) == ["r-3"]


def test_whoever_lives_stays_and_is_refused_by_name(runs: Runs) -> None:
    runs.add("r-live", None)
    lock = runs.home.runs / "r-live/supervisor.lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(BadArgument, match="is still running"):
            plan(runs, "r-live")
        assert "r-live" not in ids(plan(runs, older_s=1.0))


def test_the_record_and_the_copy_that_nobody_else_has_go_and_the_work_stays(runs: Runs, tmp_path: Path) -> None:
    copies = runs.home.path / "code"
    for name in ("k-1", "k-2", "shared"):
        (copies / name).mkdir(parents=True)
        (copies / name / "train.py").write_text("print()")
        (copies / name / "data").symlink_to(tmp_path / "work")
    (copies / "k-2/checkpoint-9").mkdir()
    (copies / "k-2/checkpoint-9/model.safetensors").write_bytes(bytes(9))
    for name, copy in (("k-1", "k-1"), ("k-2", "k-2"), ("s-1", "shared"), ("s-2", "shared")):
        runs.add(name, cwd=str(copies / copy))
    (tmp_path / "work").mkdir(exist_ok=True)
    (tmp_path / "work/model.pt").write_bytes(bytes(9))
    planned = plan(runs, "k-1", "k-2", "s-1")
    assert set(planned.paths) == {*(runs.home.runs / name for name in ("k-1", "k-2", "s-1")), copies / "k-1"}
    assert "is a checkpoint" in planned.kept["k-2"]
    store = runs.store
    assert "k-1" in store.list_ids()
    assert prune(planned, store) == []
    assert "k-1" not in store.list_ids()
    assert sorted(path.name for path in copies.iterdir()) == ["k-2", "shared"]
    assert (tmp_path / "work/model.pt").exists()


def test_checkpoints_go_only_where_they_are_asked_for(runs: Runs) -> None:
    cwd = runs.add("c-1", command="python train.py --output-dir out")
    (cwd / "out").mkdir()
    (cwd / "out/model_9.pt").write_bytes(bytes(9))
    os.utime(cwd / "out/model_9.pt", (BEGAN_S + 60, BEGAN_S + 60))
    outputs = {"files": [], "directories": [str(cwd / "out")], "saved": [str(cwd / "out/model_9.pt")], "ended": True}
    (runs.home.runs / "c-1/attempts/1/outputs.json").write_text(json.dumps(outputs))
    assert plan(runs, "c-1").checkpoints == []
    planned = plan(runs, "c-1", checkpoints=True)
    assert planned.checkpoints == [cwd / "out/model_9.pt"]
    prune(planned, runs.store)
    assert not (cwd / "out/model_9.pt").exists()
    assert (cwd / "out").is_dir()


def test_what_a_killed_prune_left_is_no_run_and_goes_with_the_next(runs: Runs) -> None:
    (runs.home.runs / "r-0").rename(runs.home.runs / ".pruned-r-0")
    store = runs.store
    assert "r-0" not in store.list_ids()
    prune(plan(runs, "r-3"), store)
    assert sorted(path.name for path in runs.home.runs.iterdir()) == ["r-1", "r-2"]


@pytest.fixture
def verb(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setenv("RUNWARD_HOME", str(runs.home.path))
    return runs


def test_the_verb_lists_first_and_removes_once_it_is_told(verb: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prune", "--older", "90d", "--keep-best", "1"]) == 0
    told = capsys.readouterr().out
    assert "r-3 failed 2021-11-21T16:30:00.000Z" in told
    assert "stays: r-1 (1. by loss)" in told
    assert told.endswith("Nothing was removed: the same with --yes does it.\n")
    assert len(verb.store.list_ids()) == 4
    assert main(["prune", "r-3", "--yes", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["removed"]) == [str(verb.home.runs / "r-3")]
    assert verb.store.list_ids() == ["r-2", "r-1", "r-0"]
    assert main(["prune", "--older", "soon"]) == 2
    assert main(["prune"]) == 2
