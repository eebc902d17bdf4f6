"""Questions about former runs as people and agents write them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mcp_server.errors import BadArgument
from mcp_server.results.memory.conditions import Bound, Question
from mcp_server.results.memory.question import read_question
from mcp_server.results.memory.searcher import list_kinds
from mcp_server.results.memory.vocabulary import Names

NOW = datetime(2026, 11, 27, 9, 30, tzinfo=UTC)
SETTINGS = ("lr", "num_envs", "batch_size", "optimizer", "dropout", "seed")
NAMES = Names(SETTINGS, ("Train/mean_reward", "val/ppl", "loss", "reward"), ("cube", "resnet"))
MIDNIGHT = datetime(2026, 11, 27, tzinfo=UTC)


def read(text: str) -> Question:
    return read_question(text, NOW, list_kinds(), NAMES)


def ago(**span: float) -> float:
    return (NOW - timedelta(**span)).timestamp()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("lr=3e-4 num_envs>=4096", {"comparisons": (("lr", "=", "3e-4"), ("num_envs", ">=", "4096"))}),
        ("what did we try on cube with lr above 1e-3", {"comparisons": (("lr", ">", "1e-3"),), "words": ("cube",)}),
        ("num_envs at least 4096", {"comparisons": (("num_envs", ">=", "4096"),)}),
        ("batch-size between 16 and 64", {"comparisons": (("batch-size", ">=", "16"), ("batch-size", "<=", "64"))}),
        ("loss is below 0.3", {"comparisons": (("loss", "<", "0.3"),)}),
        ("optimizer=adamw, dropout over .1", {"comparisons": (("optimizer", "=", "adamw"), ("dropout", ">", ".1"))}),
        ("best by Train/mean_reward in this project", {"ranked": "Train/mean_reward", "project": "."}),
        ("which run was the best ever in this project", {"ranked": "", "project": "."}),
        ("best:mean10%:reward project:~/cube", {"ranked": "mean10%:reward", "project": "~/cube"}),
        ("lowest val/ppl of resnet", {"ranked": "val/ppl", "goal": "min", "words": ("resnet",)}),
        ("best run by reward since 2026-11-20", {"ranked": "reward", "since_s": ago(days=7, hours=9.5)}),
        ("failed:oom_gpu since:7d", {"states": ("ended",), "causes": ("oom_gpu",), "since_s": ago(days=7)}),
        (
            "which of the runs crashed yesterday?",
            {"states": ("failed",), "since_s": ago(hours=33.5), "until_s": ago(hours=9.5)},
        ),
        ("runs with oom_gpu in the last 3 days", {"causes": ("oom_gpu",), "since_s": ago(days=3)}),
        ("killed last night", {"states": ("killed",), "since_s": ago(hours=15.5)}),
        ("cube since:2months", {"since_s": ago(days=60), "words": ("cube",)}),
        ("cube in the last month", {"since_s": ago(days=30), "words": ("cube",)}),
        ("tag:night owner:ada commit:ab12", {"fields": (("tag", "night"), ("owner", "ada"), ("commit", "ab12"))}),
        ('why:"bigger batches" state:live', {"fields": (("why", "bigger batches"),), "states": ("live",)}),
        ("why did cube fail", {"states": ("failed",), "words": ("cube",)}),
        ('"out of memory"', {"words": ("out of memory",)}),
        ("cube -failed -resnet", {"words": ("cube",), "not_states": ("failed",), "unlike": ("resnet",)}),
        (
            "-tag:night not owner:bob -state:killed",
            {"not_fields": (("tag", "night"), ("owner", "bob")), "not_states": ("killed",)},
        ),
        ("seed=1 vs seed=2 on cube", {"comparisons": (("seed", "=", "1 or 2"),), "words": ("cube",)}),
        ("batch_size 16 vs 32", {"comparisons": (("batch_size", "=", "16 vs 32"),)}),
        ("lr 1e-3 and 4096 envs", {"comparisons": (("envs", "=", "4096"), ("lr", "=", "1e-3"))}),
        ("cube with the highest accuracy", {"ranked": "accuracy", "goal": "max", "words": ("cube",)}),
        ("best mean iou of cube", {"ranked": "mean iou", "words": ("cube",)}),
        ('best:"top-1 accuracy" in cube', {"ranked": "top-1 accuracy", "words": ("cube",)}),
        ('cube, best by "top-1 accuracy"', {"ranked": "top-1 accuracy", "words": ("cube",)}),
        ("runs that needed over ten hours", {"comparisons": (("elapsed_s", ">", "36000"),)}),
        ("between 1 and 2 hours", {"comparisons": (("elapsed_s", ">=", "3600.0"), ("elapsed_s", "<=", "7200.0"))}),
        ("dropout is off, seed:13", {"comparisons": (("seed", "=", "13"), ("dropout", "is", "off"))}),
        ("cube without dropout", {"comparisons": (("dropout", "is", "off"),), "words": ("cube",)}),
        (
            "1024 to 4096 envs on cube",
            {"comparisons": (("envs", ">=", "1024"), ("envs", "<=", "4096")), "words": ("cube",)},
        ),
        ("val/ppl better than 8", {"comparisons": (("val/ppl", "<", "8"),)}),
        ("reward worse than 8", {"comparisons": (("reward", "<", "8"),)}),
        ("where seed is 3 and dropout is 0.1", {"comparisons": (("seed", "=", "3"), ("dropout", "=", "0.1"))}),
        (
            "which batch size gave the best reward",
            {"ranked": "reward", "shown": ("batch size",), "words": ("batch size",)},
        ),
        ("best run for some/thing_new", {"ranked": "", "words": ("some/thing_new",)}),
        ("experiments motivated by reward hacking", {"words": ("reward", "hacking")}),
        ("sort cube by reward", {"ranked": "reward", "words": ("cube",)}),
        ("which could not import a module", {"causes": ("import_error",), "words": ("module",)}),
        ("cube out-of-memory errors", {"causes": ("oom",), "words": ("cube",)}),
        ("cube and resnet", {"words": ("cube", "resnet"), "joined": (("cube", "resnet"),)}),
        ("day before yesterday", {"since_s": ago(hours=57.5), "until_s": ago(hours=33.5)}),
        ("runs of November 12 and 13", {"since_s": ago(days=15, hours=9.5), "until_s": ago(days=13, hours=9.5)}),
        ("the week of November 11", {"since_s": ago(days=18, hours=9.5), "until_s": ago(days=11, hours=9.5)}),
        ("lr=5 best:reward", {"comparisons": (("lr", "=", "5"),), "ranked": "reward"}),
        ("lr<0.5 best:val/ppl", {"comparisons": (("lr", "<", "0.5"),), "ranked": "val/ppl"}),
        ("lr over 3 best:reward", {"comparisons": (("lr", ">", "3"),), "ranked": "reward"}),
        ("seed 3 best reward", {"comparisons": (("seed", "=", "3"),), "ranked": "reward"}),
        ("the 3 best reward", {"ranked": "reward", "most": 3}),
        (
            "three best det runs by mAP50 with lr 32",  # no supervisor has noted mAP50
            {"ranked": "mAP50", "most": 3, "comparisons": (("lr", "=", "32"),), "words": ("det",)},
        ),
        ("cube, 2 best by reward", {"ranked": "reward", "most": 2, "words": ("cube",)}),
        (
            "lowest train/obj/total lr=5",
            {"ranked": "train/obj/total", "goal": "min", "comparisons": (("lr", "=", "5"),)},
        ),
        ("which run had the lowest obj.total", {"ranked": "obj.total", "goal": "min"}),
        ("failed:nans", {"states": ("ended",), "causes": ("divergence",)}),
        (
            "finished runs that took more than 20 s",
            {"states": ("finished",), "comparisons": (("elapsed_s", ">", "20"),)},
        ),
    ],
)
def test_a_question_is_read_in_its_parts(text: str, parts: dict[str, Any]) -> None:
    if "comparisons" in parts:
        parts["comparisons"] = tuple(Bound(*each) for each in parts["comparisons"])
    assert read(text) == Question(**parts)


@pytest.mark.parametrize(("text", "why"), [("state:done", "is no state"), ("since:soon", "is no time")])
def test_a_state_or_time_that_does_not_exist_is_refused(text: str, why: str) -> None:
    with pytest.raises(BadArgument, match=why):
        read(text)
