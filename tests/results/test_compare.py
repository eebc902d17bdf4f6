"""Runs side by side in one table: only what differs, exact enough, and few tokens."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from mcp_server.errors import BadArgument, RunNotFound
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run
from mcp_server.record.sweeps.sweep_spec import Cell
from mcp_server.results.compare import build_comparison
from mcp_server.results.comparison_cells import describe_end, shorten_names
from mcp_server.results.outcome_answers import Comparison
from mcp_server.views.run_status import describe
from tests.support.ended_runs import BEGAN_S, Runs
from tests.support.sweeps import write_sweep


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


def test_a_single_run_has_its_checkpoints_listed_and_several_have_not(runs: Runs) -> None:
    assert two(runs).checkpoints is None
    alone = build_comparison(runs.store, runs.scalars, run_ids=["cfm-aaaa"])
    assert alone.checkpoints == ["checkpoint-100 2KiB", "checkpoint-1 2KiB"]
    assert str(alone.root).endswith("cfm-aaaa/ckpt")


def test_a_row_has_the_settings_that_differ_and_the_results(runs: Runs, tmp_path: Path) -> None:
    comparison = two(runs)
    first, second = table(comparison)
    work = str(tmp_path / "work")
    assert first == {
        "run": "cfm-aaaa",
        "state": "finished",
        "why": "",
        "lr": "1e-1",
        "layers": "1",
        "batch": "64",
        "width": "100",
        "reward last/max@step": "1/3@3",
        "eval mean_reward": "0.5",
        "checkpoint": "cfm-aaaa/ckpt/checkpoint-100 2KiB +1",
    }
    assert (second["state"], second["batch"], second["reward last/max@step"]) == ("failed", "128", "2")
    assert second["why"] == "oom_gpu: CUDA out of memory"
    assert comparison.same == {"step": "5", "time": "62min", "loss last/min@step": "0.5", "eval tasks": "57"}
    assert comparison.notes == ["Paths and names differ too: cwd."]
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
    assert "reward last/max@step" in (comparison.columns or "")
    assert "loss" not in (comparison.columns or "") + str(comparison.same)


def test_a_value_of_a_curve_is_chosen_as_for_a_sweep(runs: Runs) -> None:
    two(runs)  # rewards 0 1 2 3 0 1 and 0 2 0 2 0 2
    asked = ["mean10%:reward", "best:reward", "reward@3", "last:loss", "any:reward@best"]
    first, second = table(build_comparison(runs.store, runs.scalars, tags=["sweep"], metrics=asked))[::-1]
    assert [first[name] for name in ("reward mean10%", "reward best", "reward @3")] == ["1", "3", "3"]
    assert [second[name] for name in ("reward mean10%", "reward best", "reward @3")] == ["2", "2", "2"]
    unmet = build_comparison(runs.store, runs.scalars, tags=["sweep"], metrics=["reward@900", "best:rewrd"]).notes
    assert (unmet or [])[-2:] == [
        "No run has reward at step 900: none has come that far.",
        "No metric 'best:rewrd' in these runs. Near: reward, mean_reward.",
    ]


def test_a_named_value_is_compared_with_that_of_the_first_run(runs: Runs) -> None:
    two(runs)
    asked = ["mean10%:reward", "reward@3", "best:reward", "first:reward>1"]
    comparison = build_comparison(runs.store, runs.scalars, run_ids=["cfm-bbbb", "cfm-aaaa"], metrics=asked)
    assert [note for note in comparison.notes or [] if "against" in note] == [
        "reward mean10% against cfm-bbbb: cfm-aaaa -1 (-50 %).",
        "reward @3 against cfm-bbbb: cfm-aaaa +1 (+50 %).",
        "reward best against cfm-bbbb: cfm-aaaa +1 (+50 %).",
        "reward first>1 against cfm-bbbb: cfm-aaaa +1 (+100 %).",
    ]


def test_markdown_is_one_table(runs: Runs) -> None:
    two(runs)
    comparison = build_comparison(runs.store, runs.scalars, tags=["sweep"], as_markdown=True)
    lines = (comparison.markdown or "").split("\n")
    assert comparison.rows is None
    assert len(lines) == 4
    assert lines[0].startswith("| run | state | why | lr |")


def test_a_run_without_scalars_and_a_lost_run_have_rows(runs: Runs) -> None:
    runs.add("cfm-aaaa")
    runs.add("cfm-bbbb", None)
    first, second = table(build_comparison(runs.store, runs.scalars, run_ids=["cfm-aaaa", "cfm-bbbb", "cfm-aaaa"]))
    assert (first["state"], second["state"]) == ("finished", "lost")
    assert (first["time"], second["time"]) == ("62min", "")


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"state": "killed", "text": "killed: SIGINT (enough (for me); root)."}, "root: enough (for me)"),
        (
            {"state": "timed_out", "text": "timed_out: SIGINT (6 s have passed; time limit)."},
            "time limit: 6 s have passed",
        ),
        (
            {"state": "killed", "stopped_by": "policy", "failure": {"kind": "stall", "line": "step 3/9"}},
            "policy: stall: step 3/9",
        ),
        ({"state": "failed", "failure": {"kind": "data_error", "line": "no|file"}}, "data_error: no¦file"),
        ({"state": "lost", "reason": "Its supervisor is gone: how it ended is unknown."}, "Its supervisor is gone"),
        ({"state": "finished"}, ""),
    ],
)
def test_a_table_says_in_short_why_a_run_did_not_finish(facts: dict[str, Any], why: str) -> None:
    text = facts.pop("text", "")
    run = Run(RunSpec(run_id="cfm-7kqz"), events=({"seq": 1, "kind": "ended", "text": text},), **facts)
    assert describe_end(run) == why


def add_with(runs: Runs, run_id: str, events: list[dict[str, Any]], **facts: Any) -> None:
    """Add a finished run with ``events`` between its start and its end."""
    runs.add(run_id, **facts)
    path = runs.home.runs / run_id / "events.jsonl"
    first, *_, last = path.read_text().splitlines()
    lines = [first, *map(json.dumps, events), last.replace('"attempt": 1', f'"attempt": {1 + len(events) // 2}')]
    path.write_text("".join(f"{line}\n" for line in lines))
    (runs.home.runs / run_id / "attempts" / "2").mkdir()


def test_a_halved_run_is_compared_with_the_value_that_ran(runs: Runs) -> None:
    halved = {"seq": 2, "kind": "retrying", "attempt": 1, "params": {"num_envs": 4096}, "failure": {"kind": "oom_gpu"}}
    events = [halved, {"seq": 3, "kind": "started", "attempt": 2}]
    add_with(runs, "cfm-aaaa", events, params={"num_envs": 8192})
    runs.add("cfm-bbbb", params={"num_envs": 8192})
    comparison = build_comparison(runs.store, runs.scalars, run_ids=["cfm-aaaa", "cfm-bbbb"])
    assert [(row["num_envs"], row["attempts"]) for row in table(comparison)] == [
        ("4096", "2 (attempt 1 oom_gpu)"),
        ("8192", "1"),
    ]
    assert "cfm-aaaa: num_envs 8192 → 4096 after attempt 1." in (comparison.notes or [])


def test_the_gpu_that_used_most_memory_counts_and_the_mean_use_of_all(runs: Runs) -> None:
    for run_id, peak, use in (("cfm-aaaa", 40536, 90.0), ("cfm-bbbb", 20480, 40.5)):
        gpus = {
            "GPU-1": {"peak_mib": peak, "mean_util": use},
            "GPU-2": {"peak_mib": 1024, "mean_util": 70},
            "GPU-3": {},
        }
        runs.add(run_id, progress={"gpus": gpus})
    rows = table(build_comparison(runs.store, runs.scalars, run_ids=["cfm-aaaa", "cfm-bbbb"]))
    assert [row["peak GPU GiB"] for row in rows] == ["39.6", "20.0"]
    assert [row["mean GPU %"] for row in rows] == ["80", "55"]


def test_a_killed_run_says_why(runs: Runs) -> None:
    runs.add("cfm-aaaa")
    runs.add("cfm-bbbb", "killed")
    path = runs.home.runs / "cfm-bbbb" / "events.jsonl"
    path.write_text(path.read_text().replace("killed: exit code 1.", "killed: SIGINT (it diverged; alice)."))
    rows = table(build_comparison(runs.store, runs.scalars, run_ids=["cfm-aaaa", "cfm-bbbb"]))
    assert [row["why"] for row in rows] == ["", "alice: it diverged"]


@pytest.mark.parametrize(
    ("names", "taken", "short"),
    [
        (["conf:algo.lr", "conf:model.width"], (), ["lr", "width"]),
        (["a:opt.lr", "b:opt.lr"], (), ["a:opt.lr", "b:opt.lr"]),
        (["a:actor.lr", "a:critic.lr", "lr"], (), ["actor.lr", "critic.lr", "lr"]),
        (["conf:step", "conf:algo.step"], ("step",), ["conf:step", "algo.step"]),
        (["trailing."], (), ["trailing."]),
    ],
)
def test_a_name_is_shortened_to_what_no_other_ends_with(
    names: list[str], taken: tuple[str, ...], short: list[str]
) -> None:
    assert list(shorten_names(names, taken).values()) == short


def test_an_option_replaces_the_value_in_the_file(runs: Runs) -> None:
    for number, (run_id, options) in enumerate((("cfm-aaaa", "algo.lr=1e-3"), ("cfm-bbbb", "")), 1):
        cwd = runs.add(run_id, command=f"python train.py {options} --config c{number}.yaml")
        put(cwd / f"c{number}.yaml", f"algo:\n  lr: 0.{number}\n  gamma: 0.9\nhost: x{number}\n")
    comparison = build_comparison(runs.store, runs.scalars, run_ids=["cfm-aaaa", "cfm-bbbb"])
    rows = table(comparison)
    assert [(row["lr"], row["config"], row["host"]) for row in rows] == [
        ("1e-3", "c1.yaml", "x1"),
        ("0.2", "c2.yaml", "x2"),
    ]
    assert "gamma" not in (comparison.columns or "")


def test_a_parameter_inside_a_path_is_a_setting_and_one_that_an_option_repeats_is_none(runs: Runs) -> None:
    for name, lr in (("fine", 0.1), ("coarse", 0.2)):
        command = f"python train.py --scene scenes/{name}/s.xml --learning-rate {lr}"
        runs.add(f"cfm-{name}", command=command, filled={"scene_name": name, "lr": lr})
    comparison = build_comparison(runs.store, runs.scalars, run_ids=["cfm-fine", "cfm-coarse"])
    assert [(row["scene_name"], row["learning-rate"]) for row in table(comparison)] == [
        ("fine", "0.1"),
        ("coarse", "0.2"),
    ]
    assert "lr" not in (comparison.columns or "").split("|")
    status = describe(runs.store.observe("cfm-fine"), now_s=0.0)
    assert status.params == {"scene_name": "fine", "lr": 0.1}


def test_settings_beyond_the_widest_table_are_named(runs: Runs) -> None:
    for number in (1, 2):
        runs.add(f"cfm-{'ab'[number - 1] * 4}", params={f"p{n}": n * number for n in range(1, 12)})
    comparison = build_comparison(runs.store, runs.scalars, run_ids=["cfm-aaaa", "cfm-bbbb"])
    assert "3 more settings differ: p9, p10, p11." in (comparison.notes or [])


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
    assert len(openai.o200k_base().encode(answer)) <= 780, answer  # the state directory's own path is among them


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


def test_a_run_whose_training_was_left_behind_and_stopped_is_noted(runs: Runs) -> None:
    runs.add("bg-1", command="nohup python train.py &")
    runs.add("fg-2")
    path = runs.home.runs / "bg-1" / "events.jsonl"
    *others, end = path.read_text().splitlines()
    left = json.loads(end) | {"leftovers": [{"pid": 7, "command": "python train.py"}]}
    path.write_text("\n".join([*others, json.dumps(left), ""]))
    notes = build_comparison(runs.store, runs.scalars, run_ids=["bg-1", "fg-2"]).notes or []
    assert [note for note in notes if "behind" in note] == ["bg-1 left 1 process behind, stopped."]


def test_a_curve_is_no_evaluation_beside_itself_and_figures_have_four_digits(runs: Runs) -> None:
    for number, run_id in enumerate(("cfm-aaaa", "cfm-bbbb"), 1):
        cwd = runs.add(run_id)
        rows = [{"step": n, "val_iou": n * number / 7, "recon_loss": 1 / n} for n in range(1, 6)]
        if number == 1:
            put(cwd / "metrics.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
        else:
            put(
                cwd / "metrics.csv", "\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)])
            )
        put(cwd / "eval.json", json.dumps({"success_rate": 0.9039311 / number}))
    comparison = build_comparison(runs.store, runs.scalars, run_ids=["cfm-aaaa", "cfm-bbbb"])
    assert "val_iou last" in (comparison.columns or ""), comparison
    assert "eval val_iou" not in (comparison.columns or "")
    assert "eval recon_loss" not in [*(comparison.columns or "").split("|"), *(comparison.same or {})]
    assert [row["eval success_rate"] for row in table(comparison)] == ["0.9039", "0.452"]


def test_the_metric_of_a_sweep_is_a_column_though_its_runs_only_print_it(runs: Runs) -> None:
    write_sweep(runs.path / "state", [Cell("a", "1")], [], metric="mAP50")
    for run_id, value, sweep in (("cfm-aaaa", 0.5597, "night-ab3d"), ("cfm-bbbb", 0.579, None)):
        cwd = runs.add(run_id, command="python train.py", sweep=sweep)
        put(cwd / "progress.csv", "step,L_total\n" + "".join(f"{n},{3 - n / 2}\n" for n in range(6)))
        put(runs.home.runs / run_id / "attempts" / "1" / "output.log", f"done; best mAP50 {value} at iteration 40\n")
    compared = build_comparison(runs.store, runs.scalars, run_ids=["cfm-aaaa", "cfm-bbbb"])
    assert [row["eval mAP50"] for row in table(compared)] == ["0.5597", "0.579"]
    alone = build_comparison(runs.store, runs.scalars, run_ids=["cfm-bbbb"])
    assert "mAP50" not in (alone.columns or ""), "a run of no sweep"
