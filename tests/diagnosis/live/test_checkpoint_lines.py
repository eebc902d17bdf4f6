"""A line that says where a checkpoint was saved names it, and no line takes long."""

import random
import re
import time

import pytest

from mcp_server.diagnosis.live.checkpoint_lines import find_checkpoint

# The rule as one pattern, which is too slow for some lines.
PATTERN = re.compile(
    r"(?i)\b(?:sav(?:ed|ing)|wr(?:ote|iting))\b.{0,80}?([^\s'\"]{0,200}(?:ckpt|checkpoint|step|epoch)[^\s'\"]{0,100}\d)"
)
PARTS = [
    "saving",
    "Saved",
    " ",
    "to",
    "/a/b/",
    "ckpt",
    "checkpoint",
    "step",
    "epoch",
    "_",
    "12",
    "=",
    "'",
    '"',
    "wrote",
]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("Saved checkpoint to runs/a/ckpt-500.pt", "runs/a/ckpt-500"),
        ("saving model: '/out/global_step_20/actor'", "/out/global_step_20"),
        ("Saving model checkpoint to output/checkpoint-1500", "output/checkpoint-1500"),
        ("Saved checkpoint to logs/walk/2026-11-23_a/model_1500.pt", "logs/walk/2026-11-23_a/model_1500.pt"),
        ("saved checkpoint 'policy_best.pth'.", "policy_best.pth"),
        ("saved=out/lm_b16/ckpt_000050.json", "out/lm_b16/ckpt_000050"),
        ("Saved checkpoint embeddings to cache.pt", None),
        ("loaded checkpoint-3", None),
        ("Saved the best checkpoint", None),
    ],
)
def test_a_checkpoint_is_named_up_to_its_number(line: str, name: str | None) -> None:
    assert find_checkpoint(line) == name


def test_random_lines_are_read_as_the_pattern_reads_them() -> None:
    chance = random.Random(7)
    for _ in range(2000):
        line = "".join(chance.choice(PARTS) for _ in range(chance.randint(3, 25)))
        match = PATTERN.search(line)
        assert find_checkpoint(line) == (match[1].lstrip("=:") if match else None), line


@pytest.mark.parametrize("line", ["saving/step/" * 330 + "ckpt", "saving " * 600 + "ckpt", "saved " + "9step" * 900])
def test_no_line_takes_a_hundred_times_as_long_as_an_ordinary_one(line: str) -> None:
    ordinary = "Saved checkpoint to runs/a/ckpt-500.pt " * 100
    assert _best_s(line) < 100 * _best_s(ordinary)


def _best_s(line: str) -> float:
    took = []
    for _ in range(5):
        begun_s = time.process_time()
        find_checkpoint(line)
        took.append(time.process_time() - begun_s)
    return max(min(took), 1e-5)
