"""Two runs are compared in all that was kept: functions by name, the whole diff, and where their curves part."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from mcp_server.record.code.code_snapshot import DIFF, SNAPSHOT, SOURCES_ARCHIVE
from mcp_server.results.code_differences import name_functions, read_code_diff
from mcp_server.results.run_differences import describe_run_differences
from mcp_server.scalars.summary import find_parting
from tests.support.ended_runs import Runs

CODE = "def load():\n    return 1\n\n\ndef step(x):\n    return x + {}\n"


def with_curve(runs: Runs, run_id: str, values: list[float], tag: str = "loss", **spec: object) -> None:
    cwd = runs.add(run_id, cwd=str(runs.path / "work"), **spec)  # type: ignore[arg-type]
    table = runs.path / f"{run_id}.csv"
    table.write_text(f"step,{tag}\n" + "".join(f"{10 * n},{value}\n" for n, value in enumerate(values)))
    (runs.home.runs / run_id / "attribution.json").write_text(json.dumps({"tensorboard": [str(table)]}))
    assert cwd
    keep(runs, run_id)


def keep(runs: Runs, run_id: str, code: str = "1", config: str = "") -> None:
    directory = runs.store.run_directory(run_id).code(1)
    directory.mkdir(parents=True, exist_ok=True)
    named = {"/lab/train.py": code, **({"/lab/a.yaml": config} if config else {})}
    facts = {"files": [{"path": path, "sha256": digest} for path, digest in named.items()]}
    (directory / SNAPSHOT).write_text(json.dumps(facts))


def compare(runs: Runs, one: str, other: str) -> list[str]:
    first, second = (runs.store.observe(name) for name in (one, other))
    return describe_run_differences(runs.store, runs.scalars, first, second, environ={})


def curves(runs: Runs, one: str, other: str) -> list[str]:
    return [line for line in compare(runs, one, other) if line.startswith("loss")]


def test_curves_part_where_they_stay_apart_by_more_than_they_scatter() -> None:
    chance = np.random.default_rng(1)
    flat = np.ones(200)
    noise = [chance.normal(0, 0.02, 200) for _ in range(2)]
    assert find_parting(flat, flat) is None
    assert find_parting(flat + noise[0], flat + noise[1]) is None
    drop = flat - np.where(np.arange(200) < 100, 0, 0.3)
    parts = find_parting(flat + noise[0], drop + noise[1])
    assert parts is not None
    assert 90 <= parts <= 112
    bump = flat + np.where((np.arange(200) > 50) & (np.arange(200) < 80), 1, 0)
    assert find_parting(flat + noise[0], bump + noise[1]) is None, "they meet again"


def test_a_gap_at_the_end_is_told_with_the_step_and_against_other_seeds(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    low = [1.0 - n / 50 for n in range(40)]
    for seed, end in enumerate((0.0, 0.01, -0.01)):
        command = f"python train.py --lr 1e-3 --seed {seed}"
        with_curve(runs, f"a-{seed}", [value + end for value in low], command=command)
    with_curve(
        runs, "b-0", [value if n < 20 else value + 0.3 for n, value in enumerate(low)], command="python t.py --lr 1"
    )
    assert curves(runs, "a-0", "b-0") == [
        "loss: parts at step 200, 0.22 → 0.52 (+0.3) at step 390; beyond the seeds' noise "
        "(two of 3 seeds of one code and setting differ by ±0.014)."
    ]
    (line,) = curves(runs, "a-0", "a-1")
    assert "(+0.01) at step 390; within the seeds' noise (two of 3 seeds" in line
    with_curve(runs, "c-0", [2.0] * 40, command="python c.py")
    with_curve(runs, "c-1", [3.0] * 40, command="python d.py")
    assert curves(runs, "c-0", "c-1")[0].endswith("no other seeds say how much chance does.")
    assert curves(runs, "a-0", "a-0") == ["loss: identical up to step 390."]
    with_curve(runs, "c-2", [2.0, 2.1] * 19 + [2.0] * 2, command="python c.py")
    with_curve(runs, "c-3", [2.1, 2.0] * 19 + [2.0] * 2, command="python c.py")
    assert curves(runs, "c-2", "c-3") == ["loss: no lasting gap up to step 390, the largest 2 → 2.1 at step 0."]


def test_losses_of_unknown_names_are_compared_and_a_gap_that_closes_is_told(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    low = [1.0 - n / 50 for n in range(40)]
    with_curve(runs, "a", low, command="python c.py", tag="L_total")
    with_curve(
        runs, "b", [x - (0.25 if 20 < n < 24 else 0) for n, x in enumerate(low)], command="python c.py", tag="L_total"
    )
    (line,) = [line for line in compare(runs, "a", "b") if line.startswith("L_total")]
    assert line == "L_total: no lasting gap up to step 390, the largest 0.58 → 0.33 at step 210."


@pytest.mark.parametrize("other", ["code", "config"])
def test_a_run_of_other_code_or_settings_is_no_seed_of_the_one_it_is_compared_with(tmp_path: Path, other: str) -> None:
    runs = Runs(tmp_path)
    low = [1.0 - n / 50 for n in range(40)]
    for name, seed, end in (("a-0", 0, 0.0), ("a-1", 1, 0.005), ("b-0", 0, 0.025), ("a-0-again", 0, 0.0)):
        with_curve(runs, name, [value + end for value in low], command=f"python train.py --seed {seed}")
        keep(runs, name, "2" if name == "b-0" and other == "code" else "1", config="2" if name == "b-0" else "1")
    (line,) = curves(runs, "a-0", "b-0")
    assert line.endswith(
        "(+0.025) at step 390; 5 times the seeds' noise "
        "(two of 2 seeds of one code and setting differ by ±0.005): too few runs to tell."
    )
    for name in ("a-0-again", "a-1"):
        keep(runs, name, "3")
    assert curves(runs, "a-0", "b-0")[0].endswith("no other seeds say how much chance does.")


def test_seeds_of_both_codes_count_each_beside_its_own(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    low = [1.0 - n / 50 for n in range(40)]
    for code, shift in (("a", 0.0), ("b", 0.3)):
        for seed in range(3):
            run_id = f"{code}-{seed}"
            with_curve(runs, run_id, [x + shift + seed / 100 for x in low], command=f"python t.py --seed {seed}")
            keep(runs, run_id, code)
    (line,) = curves(runs, "a-0", "b-0")
    assert "(+0.3) at step 390; beyond the seeds' noise (two of 6 seeds" in line
    assert line.endswith("differ by ±0.014).")


def keep_sources(runs: Runs, run_id: str, text: str) -> None:
    cwd = runs.add(run_id)
    code = runs.store.run_directory(run_id).code(1)
    code.mkdir(parents=True)
    (cwd / "model.py").write_text(text)
    with tarfile.open(code / SOURCES_ARCHIVE, "w:gz") as archive:
        archive.add(cwd / "model.py", "model.py")
    facts = {"archive": {"root": "/lab", "files": 1, "digest": str(len(text))}}
    (code / SNAPSHOT).write_text(json.dumps(facts))


def test_code_without_git_is_compared_by_what_was_kept_and_functions_are_named(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    keep_sources(runs, "a-1", CODE.format(1))
    keep_sources(runs, "b-2", CODE.format(22))
    first, second = (runs.store.observe(name) for name in ("a-1", "b-2"))
    text, note = read_code_diff(runs.store, {}, second, first)
    assert note is None
    assert [line for line in text.splitlines() if line[:1] in "+-"][2:] == ["-    return x + 1", "+    return x + 22"]
    lines = compare(runs, "a-1", "b-2")
    assert "Code differs: /lab/model.py." in lines
    assert "In model.py (step)." in lines
    assert "The whole diff: run://a-1/diff/b-2." in lines


@pytest.mark.parametrize(
    ("hunk", "named"),
    [
        ("@@ -5,2 +5,2 @@ def step(x):\n-    return 1\n+    return 2\n", ["train.py (step)"]),
        ("@@ -1,0 +1,2 @@\n+async def fetch():\n+    return 2\n", ["train.py (fetch)"]),
        ("@@ -9,1 +9,1 @@ class Agent(Base):\n-        a = 1\n+        a = 2\n", ["train.py (Agent)"]),
        ("@@ -1,1 +1,1 @@\n-x = 1\n+x = 2\n", []),
        (
            "@@ -9,3 +9,3 @@ def ctc(x):\n     return x\n def wer(x):\n-    return 1\n+    return 2\n",
            ["train.py (wer)"],
        ),
        ("@@ -9,2 +9,3 @@ def main():\n     run()\n main()\n+# the end\n", []),
    ],
)
def test_the_functions_of_a_diff_are_those_around_its_changed_lines(hunk: str, named: list[str]) -> None:
    head = "diff --git a/src/train.py b/src/train.py\n--- a/src/train.py\n+++ b/src/train.py\n"
    assert name_functions(head + hunk) == named


def test_a_diff_shows_no_secret(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.add("a-1")
    code = runs.store.run_directory("a-1").code(1)
    code.mkdir(parents=True)
    (code / SNAPSHOT).write_text(json.dumps({"git": {"commit": "ab" * 20}}))
    (code / DIFF).write_text('+api_key = "sk-live-0123456789abcdef0123"\n')
    assert "0123456789abcdef" not in read_code_diff(runs.store, {}, runs.store.observe("a-1"))[0]


def test_curves_that_were_printed_part_as_those_of_files_do(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    for run_id, gap in (("a-0", 0.0), ("b-0", 0.3)):
        runs.add(run_id, state="finished", command=f"python {run_id}.py")
        lines = [f"step {n}/40 loss: {1 - n / 50 + gap * (n > 20):.3f}\n" for n in range(1, 41)]
        (runs.home.runs / run_id / "attempts/1/output.log").write_text("".join(lines))
    assert curves(runs, "a-0", "b-0")[0].startswith("loss: parts at step 21, 0.2 → 0.5 (+0.3) at step 40; no other")
