"""What a run ran, as one read of it says: digests of the files its command names, and whether its tree was clean."""

import json
from pathlib import Path
from typing import Any

import pytest

from mcp_server.__main__ import main
from mcp_server.record.code.code_snapshot import DIFF, SNAPSHOT
from mcp_server.results.ran_status import describe_ran
from tests.support.ended_runs import Runs

COMMIT = "176cbbca001b37617043f199196ca159d1309ae4"


def read_code(runs: Runs, run_id: str, diff: str = "", **git: Any) -> dict[str, Any]:
    """Add a run of ``train.py`` in a git tree in this state, and return what a reader is told of its code."""
    cwd = runs.add(run_id)
    code = runs.store.run_directory(run_id).code(1)
    code.mkdir(parents=True)
    script = {"path": str(cwd / "train.py"), "kept": "files/train.py", "sha256": "ab" * 32}
    (code / SNAPSHOT).write_text(json.dumps({"git": {"commit": COMMIT, **git}, "files": [script]}))
    (code / DIFF).write_text(diff)
    told: dict[str, Any] = describe_ran(runs.store, runs.scalars, runs.store.observe(run_id)).model_dump()["code"]
    assert told.pop("kept_in") == str(code)
    return told


def test_a_clean_tree_is_called_that_and_a_script_has_its_digest(tmp_path: Path) -> None:
    told = read_code(Runs(tmp_path), "a-1")
    assert told == {"commit": COMMIT, "changes": "none", "scripts": {"train.py": "abababababab"}}


def test_changes_have_a_digest_and_untracked_sources_are_counted(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    one, other = (
        read_code(runs, name, diff, untracked=["new.py", "notes.txt"]) for name, diff in (("a", "+"), ("b", "-"))
    )
    assert len(one["changes"]) == 12
    assert one["changes"] != other["changes"]
    assert one["untracked"] == 1
    assert read_code(runs, "c", untracked=["new.py"])["changes"] == "none in files that git knows"
    assert read_code(runs, "d", untracked=["notes.txt"])["changes"] == "none"


def test_of_an_unknown_state_nothing_is_said(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    assert "changes" not in read_code(runs, "a-1", problem="git did not answer")
    assert "changes" not in read_code(runs, "b-2", "x" * 50, cut=True)


def test_people_read_the_same_by_one_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = Runs(tmp_path)
    cwd = runs.add("a-1", params={"seed": 3}, why="the baseline", secrets=["WANDB_API_KEY"])
    (cwd / "metrics.csv").write_text("step,loss\n1,0.5\n2,0.25\n")
    (runs.home.runs / "a-1" / "attribution.json").write_text(json.dumps({"tensorboard": [str(cwd)]}))
    monkeypatch.setenv("RUNWARD_HOME", str(runs.home.path))
    assert main(["show", "a-1"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert "command: python train.py --lr 1e-4 --seed 3" in told
    assert "why: the baseline" in told
    assert told[told.index("settings:") + 1 :][:2] == ["  lr: 1e-4", "  seed: 3"]
    assert told[told.index("  curves:") + 1] == f"    - {cwd}/metrics.csv"
    assert main(["show", "a-1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["secrets"] == ["WANDB_API_KEY"]
    assert main(["show", "no-such"]) == 2
