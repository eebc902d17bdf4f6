"""Questions as people write them, over 200 runs of which all is known: each has exactly its answer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

import pytest

from mcp_server.results.memory.question import read_question
from mcp_server.results.memory.searcher import Searcher, list_kinds
from mcp_server.scalars.run_scalars import Scalars
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.text.formatting import estimate_tokens
from tests.support.tried_runs import NOW, Facts, try_runs

HOUR, MIDNIGHT = timedelta(hours=1), NOW.replace(hour=0, minute=0)
Truth = Callable[[list[Facts]], "set[str] | list[str]"]


def such(is_meant: Callable[[Facts], object]) -> Truth:
    """Return what gives the ids of all such runs."""
    return lambda runs: {run["id"] for run in runs if is_meant(run)}


def best(is_meant: Callable[[Facts], object], figure: str, *, least: bool = False) -> Truth:
    """Return what gives the ids of such runs, the best first; those that were cut short do not rank."""

    def rank(runs: list[Facts]) -> list[str]:
        whole = [run for run in runs if is_meant(run) and run[figure] is not None]
        whole = [run for run in whole if run["state"] not in ("failed", "killed")]
        return [run["id"] for run in sorted(whole, key=lambda run: run[figure], reverse=not least)]

    return rank


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Facts], RunStore, Scalars]:
    home = tmp_path_factory.mktemp("lab")
    runs, store = try_runs(home), RunStore(StateHome(home))
    return runs, store, Scalars(store.home, store)


QUESTIONS: list[tuple[str, Truth]] = [
    (
        "which cube runs had a learning rate above 1e-3?",
        such(lambda r: r["project"] == "cube" and float(r["lr"]) > 1e-3),
    ),
    ("lr > 1e-3 cube", such(lambda r: r["project"] == "cube" and float(r["lr"]) > 1e-3)),
    ("runs with num_envs >= 4096", such(lambda r: (r["envs"] or 0) >= 4096)),
    ("ppo on cube with 4096 envs", such(lambda r: r["algo"] == "ppo" and r["project"] == "cube" and r["envs"] == 4096)),
    ("adamw with batch size 64", such(lambda r: r["opt"] == "adamw" and r["bs"] == 64)),
    (
        "batch_size=64 optimizer=adamw",
        such(lambda r: r["opt"] == "adamw" and r["bs"] == 64 and r["project"] != "llama"),
    ),
    ("which runs ran out of GPU memory?", such(lambda r: r["kind"] == "oom_gpu")),
    ("failed:oom_gpu owner:ada", such(lambda r: r["kind"] == "oom_gpu" and r["owner"] == "ada")),
    ("what failed in the last three days", such(lambda r: r["state"] == "failed" and r["created"] >= NOW - 72 * HOUR)),
    ("runs that crashed with NCCL errors", such(lambda r: r["kind"] == "nccl_error")),
    ("did anything diverge on walker?", such(lambda r: r["kind"] == "divergence" and r["project"] == "walker")),
    ("runs that ran out of disk", such(lambda r: r["kind"] == "disk_full")),
    ("best by Train/mean_reward on walker", best(lambda r: r["project"] == "walker", "reward")),
    ("best run ever on cube by mean reward", best(lambda r: r["project"] == "cube", "reward")),
    ("lowest eval loss of llama", best(lambda r: r["project"] == "llama", "loss", least=True)),
    ("which llama finetune had the lowest eval/loss?", best(lambda r: r["project"] == "llama", "loss", least=True)),
    (
        "best cube run with lr below 1e-3 by Train/mean_reward",
        best(lambda r: r["project"] == "cube" and float(r["lr"]) < 1e-3, "reward"),
    ),
    ("highest mean_reward with sac", best(lambda r: r["algo"] == "sac", "reward")),
    ("Train/mean_reward > 400", such(lambda r: (r["reward"] or 0) > 400)),
    ("eval/loss < 0.3", such(lambda r: r["loss"] is not None and r["loss"] < 0.3)),
    ("runs whose eval loss got below 0.3", such(lambda r: r["loss"] is not None and r["loss"] < 0.3)),
    ("last night", such(lambda r: MIDNIGHT - 6 * HOUR <= r["created"] < MIDNIGHT + 10 * HOUR)),
    ("what did we run yesterday", such(lambda r: MIDNIGHT - 24 * HOUR <= r["created"] < MIDNIGHT)),
    (
        "failed runs of bob this week",
        such(lambda r: r["state"] == "failed" and r["owner"] == "bob" and r["created"] >= MIDNIGHT - 4 * 24 * HOUR),
    ),
    ("tag:ablation finished", such(lambda r: "ablation" in r["tags"] and r["state"] == "finished")),
    ("runs tagged baseline on cube", such(lambda r: "baseline" in r["tags"] and r["project"] == "cube")),
    ("what was discarded and why", such(lambda r: r["verdict"] == "discard")),
    ("verdict:keep walker", such(lambda r: r["verdict"] == "keep" and r["project"] == "walker")),
    ("runs we decided to keep on llama", such(lambda r: r["verdict"] == "keep" and r["project"] == "llama")),
    ("which runs were noted as inconclusive?", such(lambda r: r["verdict"] == "inconclusive")),
    ("where did larger batches help the critic", such(lambda r: r["why"] and "larger" in r["why"])),
    ("did anyone check whether dropout hurts?", such(lambda r: r["why"] and "dropout" in r["why"])),
    ("runs on gpu02 that were killed", such(lambda r: r["host"] == "gpu02" and r["state"] == "killed")),
    ("runs that hit their time limit", such(lambda r: r["state"] == "timed_out")),
    ("NCCL_P2P_DISABLE=1", such(lambda r: r["env"])),
    ("runs that took more than 8 hours", such(lambda r: r["took_s"] > 8 * 3600)),
    ("elapsed_s > 28800 cube", such(lambda r: r["took_s"] > 8 * 3600 and r["project"] == "cube")),
    ("runs that reached step 5000", such(lambda r: r["steps"] >= 5000)),
    (
        "how many ppo runs with muon finished",
        such(lambda r: r["algo"] == "ppo" and r["opt"] == "muon" and r["state"] == "finished"),
    ),
    (
        "lr between 3e-4 and 1e-3 on walker seed 3",
        such(lambda r: 3e-4 <= float(r["lr"]) <= 1e-3 and r["project"] == "walker" and r["seed"] == 3),
    ),
    ("everything with learning_rate 3e-3", such(lambda r: float(r["lr"]) == 3e-3)),
    ("sweep:cube-lr failed", such(lambda r: r["sweep"] == "cube-lr-ab3d" and r["state"] == "failed")),
    ("Llama-3-8B with lr=1e-3", such(lambda r: r["project"] == "llama" and float(r["lr"]) == 1e-3)),
    ("project:/lab/walker since:5d", such(lambda r: r["project"] == "walker" and r["created"] >= NOW - 120 * HOUR)),
    ("runs since Monday", such(lambda r: r["created"] >= MIDNIGHT - 4 * 24 * HOUR)),
    ("runs from November 20", such(lambda r: r["created"].date() == date(2026, 11, 20))),
    ("runs before 2026-11-01", such(lambda r: r["created"] < datetime(2026, 11, 1, tzinfo=UTC))),
    ("worst reward on cube", best(lambda r: r["project"] == "cube", "reward", least=True)),
    ("not finished on cube", such(lambda r: r["project"] == "cube" and r["state"] != "finished")),
    ("sac without adam", such(lambda r: r["algo"] == "sac" and r["opt"] != "adam")),
    ("runs with KeyError", such(lambda r: r["kind"] == "python_error")),
    ("runs with lr of 1e-2 or more", such(lambda r: float(r["lr"]) >= 1e-2)),
    ("lr <= 3e-4 and batch size at least 64", such(lambda r: float(r["lr"]) <= 3e-4 and r["bs"] >= 64)),
    ("top 3 runs by reward on cube", best(lambda r: r["project"] == "cube", "reward")),
    ("seed 2 dreamer walker", such(lambda r: r["seed"] == 2 and r["algo"] == "dreamer" and r["project"] == "walker")),
    (
        "mean reward over 300 with fewer than 1024 envs",
        such(lambda r: (r["reward"] or 0) > 300 and (r["envs"] or 9999) < 1024),
    ),
    (
        "Which walker experiments used muon and finished?",
        such(lambda r: r["project"] == "walker" and r["opt"] == "muon" and r["state"] == "finished"),
    ),
    ("show me everything ada ran on llama", such(lambda r: r["owner"] == "ada" and r["project"] == "llama")),
    ("eve's failed runs", such(lambda r: r["owner"] == "eve" and r["state"] == "failed")),
    ("OOMs on cube", such(lambda r: r["kind"] == "oom_gpu" and r["project"] == "cube")),
    ("num_envs=8192 that went out of memory", such(lambda r: r["kind"] == "oom_gpu" and r["envs"] == 8192)),
    ("runs where training blew up", such(lambda r: r["kind"] == "divergence")),
    ("which lr was best on cube", best(lambda r: r["project"] == "cube", "reward")),
    ("best lr for walker", best(lambda r: r["project"] == "walker", "reward")),
    ("what is our best result on walker so far", best(lambda r: r["project"] == "walker", "reward")),
    ("three best cube runs", best(lambda r: r["project"] == "cube", "reward")),
    ("the 5 best sac runs by reward", best(lambda r: r["algo"] == "sac", "reward")),
    ("highest reward with num_envs=512", best(lambda r: r["envs"] == 512, "reward")),
    (
        "best Train/mean_reward among dreamer runs with lr=1e-3",
        best(lambda r: r["algo"] == "dreamer" and float(r["lr"]) == 1e-3, "reward"),
    ),
    ("best:eval/loss owner:bob", best(lambda r: r["project"] == "llama" and r["owner"] == "bob", "loss", least=True)),
    ("reward greater than 450 on cube", such(lambda r: (r["reward"] or 0) > 450 and r["project"] == "cube")),
    (
        "eval loss under 0.5 with adamw",
        such(lambda r: r["loss"] is not None and r["loss"] < 0.5 and r["opt"] == "adamw"),
    ),
    ("mean_reward >= 100 and <= 120", such(lambda r: r["reward"] is not None and 100 <= r["reward"] <= 120)),
    ("mean reward between 100 and 120", such(lambda r: r["reward"] is not None and 100 <= r["reward"] <= 120)),
    ("learning rate 0.0003 with muon", such(lambda r: float(r["lr"]) == 3e-4 and r["opt"] == "muon")),
    ("lr=0.001 seed=4", such(lambda r: float(r["lr"]) == 1e-3 and r["seed"] == 4)),
    ("runs with batch size larger than 64 on walker", such(lambda r: r["bs"] > 64 and r["project"] == "walker")),
    ("killed runs", such(lambda r: r["state"] == "killed")),
    (
        "anything stopped by hand last week?",
        such(
            lambda r: (
                r["state"] == "killed"
                and MIDNIGHT - timedelta(days=4 + 7) <= r["created"] < MIDNIGHT - timedelta(days=4)
            )
        ),
    ),
    ("timed_out on cube", such(lambda r: r["state"] == "timed_out" and r["project"] == "cube")),
    ("what crashed since yesterday", such(lambda r: r["state"] == "failed" and r["created"] >= MIDNIGHT - 24 * HOUR)),
    ("failures in the past 48 hours", such(lambda r: r["state"] == "failed" and r["created"] >= NOW - 48 * HOUR)),
    ("failed last hour", such(lambda r: r["state"] == "failed" and r["created"] >= NOW - HOUR)),
    ("runs launched two days ago", such(lambda r: MIDNIGHT - 48 * HOUR <= r["created"] < MIDNIGHT - 24 * HOUR)),
    (
        "runs between Nov 10 and Nov 12",
        such(lambda r: datetime(2026, 11, 10, tzinfo=UTC) <= r["created"] < datetime(2026, 11, 13, tzinfo=UTC)),
    ),
    (
        "what did bob try on Tuesday",
        such(lambda r: r["owner"] == "bob" and MIDNIGHT - 72 * HOUR <= r["created"] < MIDNIGHT - 48 * HOUR),
    ),
    ("older than 30 days", such(lambda r: r["created"] < NOW - 720 * HOUR)),
    ("runs more than two weeks old", such(lambda r: r["created"] < NOW - 336 * HOUR)),
    ("short runs under 30 minutes", such(lambda r: r["took_s"] < 1800)),
    ("runs shorter than 1 hour on llama", such(lambda r: r["took_s"] < 3600 and r["project"] == "llama")),
    ("tag:paper verdict:keep", such(lambda r: "paper" in r["tags"] and r["verdict"] == "keep")),
    (
        "baseline runs that were discarded",
        such(
            lambda r: r["verdict"] == "discard" and ("baseline" in r["tags"] or (r["why"] and "baseline" in r["why"]))
        ),
    ),
    ("unstable after warmup", such(lambda r: r["verdict"] == "discard")),
    ("which ideas were rejected on cube", such(lambda r: r["verdict"] == "discard" and r["project"] == "cube")),
    ("warmup spike", such(lambda r: r["why"] and "spike" in r["why"])),
    ("runs with the hypothesis that warmup fixes the spike", such(lambda r: r["why"] and "spike" in r["why"])),
    ("host:gpu01 state:failed", such(lambda r: r["host"] == "gpu01" and r["state"] == "failed")),
    ("did we ever try mamba", such(lambda r: False)),
    ("lr above 1", such(lambda r: False)),
    ("cause:nccl_error", such(lambda r: r["kind"] == "nccl_error")),
    ("NCCL watchdog timeout", such(lambda r: r["kind"] == "nccl_error")),
    ("No space left on device", such(lambda r: r["kind"] == "disk_full")),
    ("runs in the sweep walker-lr", such(lambda r: r["sweep"] == "walker-lr-ab3d")),
    ("train_ppo.py with --num-envs 1024", such(lambda r: r["algo"] == "ppo" and r["envs"] == 1024)),
    ("finetune.py adam", such(lambda r: r["project"] == "llama" and r["opt"] == "adam")),
    ("steps > 1000", such(lambda r: r["steps"] > 1000)),
    ("exit_code=1 on walker", such(lambda r: r["state"] != "finished" and r["project"] == "walker")),
    ("unsuccessful cube runs", such(lambda r: r["state"] != "finished" and r["project"] == "cube")),
    ("all ppo runs except on cube", such(lambda r: r["algo"] == "ppo" and r["project"] != "cube")),
    ("optimizer != adam walker", such(lambda r: r["opt"] != "adam" and r["project"] == "walker")),
    ("lr 1e-3 or 3e-3 on cube", such(lambda r: float(r["lr"]) in (1e-3, 3e-3) and r["project"] == "cube")),
    ("ppo or sac on walker", such(lambda r: r["algo"] in ("ppo", "sac") and r["project"] == "walker")),
    ("failed or killed on llama", such(lambda r: r["state"] in ("failed", "killed") and r["project"] == "llama")),
    ("how did the runs with lr 0.01 do", such(lambda r: float(r["lr"]) == 0.01)),
    ("4096 envs, adamw, cube", such(lambda r: r["envs"] == 4096 and r["opt"] == "adamw" and r["project"] == "cube")),
    (
        "this month's best cube run",
        best(lambda r: r["project"] == "cube" and r["created"] >= datetime(2026, 11, 1, tzinfo=UTC), "reward"),
    ),
    (
        "best llama run in the last 10 days",
        best(lambda r: r["project"] == "llama" and r["created"] >= NOW - 240 * HOUR, "loss", least=True),
    ),
    ("worst eval loss", best(lambda r: r["project"] == "llama", "loss")),
    # Written before the reader had seen their like; at first sight it answered 28 of the first 40.
    (
        "any cube trainings with the learning rate at or under 3e-4 that completed?",
        such(lambda r: r["project"] == "cube" and float(r["lr"]) <= 3e-4 and r["state"] == "finished"),
    ),
    ("sac jobs with 8192 parallel environments", such(lambda r: r["algo"] == "sac" and r["envs"] == 8192)),
    ("which experiments used the muon optimizer with seed 0", such(lambda r: r["opt"] == "muon" and r["seed"] == 0)),
    ("lr=3e-4 num_envs=1024", such(lambda r: float(r["lr"]) == 3e-4 and r["envs"] == 1024)),
    ("llama fine-tunes with batch size 256", such(lambda r: r["project"] == "llama" and r["bs"] == 256)),
    ("batch sizes below 32 on cube", such(lambda r: r["bs"] < 32 and r["project"] == "cube")),
    (
        "seed=1 state:finished tag:night",
        such(lambda r: r["seed"] == 1 and r["state"] == "finished" and "night" in r["tags"]),
    ),
    (
        "dreamer with a learning rate of 0.01 on walker",
        such(lambda r: r["algo"] == "dreamer" and float(r["lr"]) == 0.01 and r["project"] == "walker"),
    ),
    ("which runs of eve ended out of memory", such(lambda r: r["owner"] == "eve" and r["kind"] == "oom_gpu")),
    ("failed:divergence", such(lambda r: r["kind"] == "divergence")),
    ("python errors on llama", such(lambda r: r["kind"] == "python_error" and r["project"] == "llama")),
    ("which ones died because the disk was full", such(lambda r: r["kind"] == "disk_full")),
    ("NaN loss on cube", such(lambda r: r["kind"] == "divergence" and r["project"] == "cube")),
    ("did NCCL break anything on gpu01?", such(lambda r: r["kind"] == "nccl_error" and r["host"] == "gpu01")),
    ("timed out walker runs", such(lambda r: r["state"] == "timed_out" and r["project"] == "walker")),
    (
        "successful llama runs by bob",
        such(lambda r: r["state"] == "finished" and r["project"] == "llama" and r["owner"] == "bob"),
    ),
    ("best reward ppo reached on walker", best(lambda r: r["algo"] == "ppo" and r["project"] == "walker", "reward")),
    (
        "what gave the lowest eval/loss with muon",
        best(lambda r: r["project"] == "llama" and r["opt"] == "muon", "loss", least=True),
    ),
    ("top 5 dreamer runs by mean reward", best(lambda r: r["algo"] == "dreamer", "reward")),
    (
        "best:Train/mean_reward num_envs=4096 project:walker",
        best(lambda r: r["envs"] == 4096 and r["project"] == "walker", "reward"),
    ),
    ("which optimizer did best on llama", best(lambda r: r["project"] == "llama", "loss", least=True)),
    ("highest reward ada got", best(lambda r: r["owner"] == "ada" and r["reward"] is not None, "reward")),
    ("worst walker run by mean reward", best(lambda r: r["project"] == "walker", "reward", least=True)),
    ("runs with mean reward below 50", such(lambda r: r["reward"] is not None and r["reward"] < 50)),
    ("train/loss under 0.4", such(lambda r: r["loss"] is not None and round(r["loss"] * 0.9, 3) < 0.4)),
    ("eval loss between 1 and 2 on llama", such(lambda r: r["loss"] is not None and 1 <= r["loss"] <= 2)),
    (
        "sac runs above a reward of 250 with adam",
        such(lambda r: r["algo"] == "sac" and (r["reward"] or 0) > 250 and r["opt"] == "adam"),
    ),
    ("in the last 36 hours", such(lambda r: r["created"] >= NOW - 36 * HOUR)),
    ("cube since:3d", such(lambda r: r["project"] == "cube" and r["created"] >= NOW - 72 * HOUR)),
    (
        "what did ada start on November 15?",
        such(lambda r: r["owner"] == "ada" and r["created"].date() == date(2026, 11, 15)),
    ),
    (
        "runs from October",
        such(
            lambda r: (
                r["created"] < datetime(2026, 11, 1, tzinfo=UTC) and r["created"] >= datetime(2026, 10, 1, tzinfo=UTC)
            )
        ),
    ),
    (
        "what failed in the first week of November",
        such(
            lambda r: (
                r["state"] == "failed"
                and datetime(2026, 11, 1, tzinfo=UTC) <= r["created"] < datetime(2026, 11, 8, tzinfo=UTC)
            )
        ),
    ),
    ("llama runs longer than 5 hours", such(lambda r: r["project"] == "llama" and r["took_s"] > 5 * 3600)),
    ("what did we decide to discard on walker", such(lambda r: r["verdict"] == "discard" and r["project"] == "walker")),
    ("verdict:inconclusive owner:eve", such(lambda r: r["verdict"] == "inconclusive" and r["owner"] == "eve")),
    ("which runs were too noisy to tell", such(lambda r: r["verdict"] == "inconclusive")),
    ("why:dropout cube", such(lambda r: r["why"] and "dropout" in r["why"] and r["project"] == "cube")),
    ("who tried to reproduce the baseline of the paper?", such(lambda r: r["why"] and "reproduce" in r["why"])),
    ("cells of cube-lr that finished", such(lambda r: r["sweep"] == "cube-lr-ab3d" and r["state"] == "finished")),
    ("runs with NCCL_P2P_DISABLE set on walker", such(lambda r: r["env"] and r["project"] == "walker")),
    (
        "how did walker behave with learning rates of 3e-3 or more",
        such(lambda r: r["project"] == "walker" and float(r["lr"]) >= 3e-3),
    ),
    (
        "give me llama jobs whose batch size was 16 and that crashed",
        such(lambda r: r["project"] == "llama" and r["bs"] == 16 and r["state"] == "failed"),
    ),
    (
        "ppo cube fewer than 2000 envs",
        such(lambda r: r["algo"] == "ppo" and r["project"] == "cube" and (r["envs"] or 9e9) < 2000),
    ),
    (
        "where did the GPU run out of memory with 4096 envs?",
        such(lambda r: r["kind"] == "oom_gpu" and r["envs"] == 4096),
    ),
    (
        "is there any sac run on walker with reward over 400?",
        such(lambda r: r["algo"] == "sac" and r["project"] == "walker" and (r["reward"] or 0) > 400),
    ),
    (
        "which setting gave the best eval loss for llama with adamw",
        best(lambda r: r["project"] == "llama" and r["opt"] == "adamw", "loss", least=True),
    ),
    ("best walker runs of bob by reward", best(lambda r: r["project"] == "walker" and r["owner"] == "bob", "reward")),
    (
        "runs killed on gpu01 this month",
        such(
            lambda r: (
                r["state"] == "killed" and r["host"] == "gpu01" and r["created"] >= datetime(2026, 11, 1, tzinfo=UTC)
            )
        ),
    ),
    (
        "cube experiments tagged paper that finished",
        such(lambda r: r["project"] == "cube" and "paper" in r["tags"] and r["state"] == "finished"),
    ),
    (
        "anything by ada from yesterday",
        such(lambda r: r["owner"] == "ada" and MIDNIGHT - 24 * HOUR <= r["created"] < MIDNIGHT),
    ),
    ("which runs hit a KeyError on walker", such(lambda r: r["kind"] == "python_error" and r["project"] == "walker")),
    (
        "llama runs that got an eval loss below 0.6 in November",
        such(lambda r: r["loss"] is not None and r["loss"] < 0.6 and r["created"] >= datetime(2026, 11, 1, tzinfo=UTC)),
    ),
    ("what have we kept from the cube project", such(lambda r: r["verdict"] == "keep" and r["project"] == "cube")),
    (
        "runs started because larger batches may help, on llama",
        such(lambda r: r["why"] and "larger" in r["why"] and r["project"] == "llama"),
    ),
    ("dreamer runs with transformers", such(lambda r: False)),
    ("ended in nan on walker", such(lambda r: r["kind"] == "divergence" and r["project"] == "walker")),
    ("runs that took less than 45 minutes", such(lambda r: r["took_s"] < 2700)),
    (
        "cube runs with the highest reward at lr 1e-4",
        best(lambda r: r["project"] == "cube" and float(r["lr"]) == 1e-4, "reward"),
    ),
    (
        "only finished sac runs, seed 4",
        such(lambda r: r["state"] == "finished" and r["algo"] == "sac" and r["seed"] == 4),
    ),
    (
        "project:/lab/cube failed:oom_gpu since:20d",
        such(lambda r: r["project"] == "cube" and r["kind"] == "oom_gpu" and r["created"] >= NOW - 480 * HOUR),
    ),
    ("seed 0 or 1 of dreamer", such(lambda r: r["seed"] in (0, 1) and r["algo"] == "dreamer")),
    ("walker and llama failures", such(lambda r: r["state"] == "failed" and r["project"] in ("walker", "llama"))),
    ("what did we learn about warming and spikes", such(lambda r: r["why"] and "spike" in r["why"])),
    ("episode reward over 400", such(lambda r: (r["reward"] or 0) > 400)),
    ("sac without NCCL_P2P_DISABLE", such(lambda r: r["algo"] == "sac" and not r["env"])),
    ("which optimizer is best for walker", best(lambda r: r["project"] == "walker", "reward")),
]


@pytest.mark.parametrize(("text", "truth"), QUESTIONS, ids=[text for text, _ in QUESTIONS])
def test_a_question_has_its_answer(lab: tuple[list[Facts], RunStore, Scalars], text: str, truth: Truth) -> None:
    runs, store, scalars = lab
    expected = truth(runs)
    searcher = Searcher(store, scalars, "/lab/cube")
    found = searcher.find(lambda names: read_question(text, NOW, list_kinds(), names), 10, 360)
    ids = [line.partition(" ")[0] for line in found.lines if not line.startswith("sweep ")]
    if isinstance(expected, list):
        assert ids[:3] == expected[:3]
    else:
        assert found.total == len(expected)
        assert set(ids) <= expected
    assert estimate_tokens("\n".join([*found.lines, *found.notes])) <= 400
