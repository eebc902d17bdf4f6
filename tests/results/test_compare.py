"""Runs side by side in one table: only what differs, exact enough, and few tokens."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mcp_server.errors import BadArgument, RunNotFound
from mcp_server.results.answers import Comparison
from mcp_server.results.compare import build_comparison
from tests.support.ended_runs import BEGAN_S, Runs


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (BEGAN_S + 60,) * 2)


def table(comparison: Comparison) -> list[dict[str, str]]:
    names = (comparison.columns or "").split("|")
    return [dict(zip(names, row.split("|"), strict=True)) for row in comparison.rows or []]


def two(runs: Runs) -> Comparison:
    for number, run_id in enumerate(("cfm-aaaa", "cfm-bbbb"), 1):
        cwd = runs.add(
            run_id,
            "failed" if number == 2 else "finished",
            command=f"python train.py --lr 1e-{number} --seed 3 --config conf.yaml model.layers={number}",
            failure={"kind": "oom_gpu", "line": "CUDA out of memory"} if number == 2 else None,
            params={"batch": 64 * number},
            env={"OMP_NUM_THREADS": "4"},
            tags=["sweep", f"n{number}"],
        )
        put(
            cwd / "progress.csv",
            "step,reward,loss\n" + "".join(f"{n},{n * number % 4},{3 - n / 2}\n" for n in range(6)),
        )
        put(cwd / "conf.yaml", f"model:\n  width: {number}00\n  depth: 4\n")
        put(cwd / "eval_results.json", json.dumps({"mean_reward": 0.5 * number, "tasks": 57}))
        put(cwd / f"ckpt/checkpoint-{number}00/model.safetensors", "x" * 2048)
        put(cwd / f"ckpt/checkpoint-{number}/model.safetensors", "x" * 2048)
    return build_comparison(runs.store, runs.scalars, run_ids=["cfm-aaaa", "cfm-bbbb"])


def test_a_row_has_the_settings_that_differ_and_the_results(runs: Runs, tmp_path: Path) -> None:
    comparison = two(runs)
    first, second = table(comparison)
    work = str(tmp_path / "work")
    assert first == {
        "run": "cfm-aaaa",
        "state": "finished",
        "lr": "1e-1",
        "model.layers": "1",
        "batch": "64",
        "conf:model.width": "100",
        "cwd": "cfm-aaaa",
        "reward last/max": "1/3",
        "eval mean_reward": "0.5",
        "checkpoint": "cfm-aaaa/ckpt/checkpoint-100 2KiB +1",
    }
    assert (second["state"], second["batch"], second["reward last/max"]) == ("failed (oom_gpu)", "128", "2")
    assert comparison.same == {"step": "5", "time": "62min", "loss last/min": "0.5", "eval tasks": "57"}
    assert comparison.root == work


def test_runs_are_found_by_their_tags(runs: Runs) -> None:
    two(runs)
    comparison = build_comparison(runs.store, runs.scalars, tags=["sweep"])
    assert {row["run"] for row in table(comparison)} == {"cfm-aaaa", "cfm-bbbb"}
    assert [row["run"] for row in table(build_comparison(runs.store, runs.scalars, tags=["sweep", "n2"]))] == [
        "cfm-bbbb"
    ]
    with pytest.raises(BadArgument, match="no run has the tags sweep, other"):
        build_comparison(runs.store, runs.scalars, tags=["sweep", "other"])
    with pytest.raises(BadArgument, match="name run_ids or tags"):
        build_comparison(runs.store, runs.scalars)


def test_metrics_are_chosen_by_name_or_glob(runs: Runs) -> None:
    two(runs)
    comparison = build_comparison(runs.store, runs.scalars, tags=["sweep"], metrics=["rew*"])
    assert "reward last/max" in (comparison.columns or "")
    assert "loss" not in (comparison.columns or "") + str(comparison.same)


def test_markdown_is_one_table(runs: Runs) -> None:
    two(runs)
    comparison = build_comparison(runs.store, runs.scalars, tags=["sweep"], as_markdown=True)
    lines = (comparison.markdown or "").split("\n")
    assert comparison.rows is None
    assert len(lines) == 4
    assert lines[0].startswith("| run | state | lr |")


def test_a_run_without_scalars_and_a_lost_run_have_rows(runs: Runs) -> None:
    runs.add("cfm-aaaa")
    runs.add("cfm-bbbb", None)
    first, second = table(build_comparison(runs.store, runs.scalars, run_ids=["cfm-aaaa", "cfm-bbbb", "cfm-aaaa"]))
    assert (first["state"], second["state"]) == ("finished", "lost")
    assert (first["time"], second["time"]) == ("62min", "")


def test_an_unknown_run_is_refused_with_similar_ids(runs: Runs) -> None:
    runs.add("cfm-aaaa")
    with pytest.raises(RunNotFound, match="Did you mean cfm-aaaa"):
        build_comparison(runs.store, runs.scalars, run_ids=["cfm-aaaa", "cfm-aaab"])


def test_no_secret_is_shown(runs: Runs) -> None:
    runs.add("cfm-aaaa", command="WANDB_API_KEY=abcdef123456 python train.py")
    runs.add("cfm-bbbb", command="python train.py --api-key zyxwvu987654")
    answer = build_comparison(runs.store, runs.scalars, run_ids=["cfm-aaaa", "cfm-bbbb"]).model_dump_json()
    assert "abcdef123456" not in answer
    assert "zyxwvu987654" not in answer


def test_eight_runs_and_six_metrics_cost_few_tokens(runs: Runs) -> None:
    openai = pytest.importorskip("rs_bpe").openai
    names = ["Train/mean_reward", "Train/mean_episode_length", "Loss/value_function", "Loss/surrogate"]
    names += ["Episode/success_rate", "eval/return"]
    ids = [f"cfm-{letter}7kq" for letter in "abcdefgh"]
    for number, run_id in enumerate(ids, 1):
        cwd = runs.add(run_id, command=f"python train.py --task Humanoid --lr {number}e-4 --seed {number}")
        rows = (",".join(str(round(n * number * k * 0.01234, 5)) for k in range(1, 7)) for n in (1, 900, 800))
        steps = (1, 900, 1000)
        lines = "".join(f"{step},{row}\n" for step, row in zip(steps, rows, strict=True))
        put(cwd / "progress.csv", f"step,{','.join(names)}\n{lines}")
        put(cwd / "ckpt/model_1000.pt", "x" * 1_500_000)
    comparison = build_comparison(runs.store, runs.scalars, run_ids=ids)
    assert len(comparison.rows or []) == 8
    for name in names:
        assert name in (comparison.columns or "")
    answer = json.dumps(comparison.model_dump(mode="json"), ensure_ascii=False, separators=(",", ":"))
    assert len(openai.o200k_base().encode(answer)) <= 720, answer  # the state directory's own path is among them


def test_the_rows_of_a_table_of_figures_are_named(runs: Runs) -> None:
    for number, run_id in enumerate(("a-1", "b-2")):
        cwd = runs.add(run_id, env={"PATH": f"/{number}/bin"})
        text = f"| metric | value |\n| --- | --- |\n| task_pass_rate@1 | 0.{number + 4} |\n| mean_reward | 1.5 |\n"
        (cwd / "validation.md").write_text(f"{text}\npass_n: 4\n")
        os.utime(cwd / "validation.md", (BEGAN_S + 60,) * 2)
    comparison = build_comparison(runs.store, runs.scalars, run_ids=["a-1", "b-2"], metrics=["task_pass_rate@1"])
    assert (comparison.columns, comparison.rows) == ("run|cwd|eval task_pass_rate@1", ["a-1|a-1|0.4", "b-2|b-2|0.5"])


def test_a_setting_and_a_metric_of_one_name_are_both_shown(runs: Runs) -> None:
    for number, run_id in enumerate(("a-1", "b-2"), 1):
        cwd = runs.add(run_id, command=f"python train.py --lr 1e-{number}")
        put(cwd / "progress.csv", f"step,lr\n1,0.5\n2,0.{number}\n")
    comparison = table(build_comparison(runs.store, runs.scalars, run_ids=["a-1", "b-2"]))
    assert [(row["lr"], row["lr last"]) for row in comparison] == [("1e-1", "0.1"), ("1e-2", "0.2")]
