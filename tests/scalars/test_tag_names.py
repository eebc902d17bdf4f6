"""A word means the same tag for every tool, and the metrics that tell how good a run is come first."""

import pytest

from mcp_server.scalars.tag_names import best_direction, match_tags, rank_headline


@pytest.mark.parametrize(
    ("word", "tags", "meant"),
    [
        ("loss", ["eval/loss", "train/loss"], ["train/loss"]),
        ("loss", ["loss", "val_loss"], ["loss"]),
        ("loss", ["train/loss", "aux/loss"], ["train/loss"]),
        ("eval_loss", ["eval/loss", "train/loss"], ["eval/loss"]),
        ("eval_loss", ["val/loss", "train/loss"], ["val/loss"]),
        ("train loss", ["train/loss", "eval/loss"], ["train/loss"]),
        ("val/acc", ["accuracy", "loss", "val_acc"], ["val_acc"]),
        ("val/acc", ["csv/version_0/val/acc", "csv/version_0/val/loss"], ["csv/version_0/val/acc"]),
        ("val acc", ["valid/accuracy", "train/accuracy"], ["valid/accuracy"]),
        ("accuracy", ["train_acc", "val_acc"], ["train_acc"]),
        ("val_loss", ["eval/loss", "test/loss"], ["eval/loss"]),
        ("reward", ["rewards/step", "rewards/iter", "rewards/time"], ["rewards/step"]),
        ("reward", ["Train/mean_reward", "Train/mean_reward/time"], ["Train/mean_reward"]),
        ("ep_rew_mean", ["rollout/ep_rew_mean", "rollout/ep_len_mean"], ["rollout/ep_rew_mean"]),
        ("learning rate", ["train/lr", "train/loss"], ["train/lr"]),
        ("mAP", ["coco/bbox_mAP", "coco/bbox_mAP_50"], ["coco/bbox_mAP"]),
        ("val/acc", ["train/acc", "val/loss"], []),
        ("loss", ["value_loss", "policy_loss"], []),
        ("train_loss", ["eval/loss"], []),
    ],
)
def test_a_word_means_the_tag_that_any_tool_lists(word: str, tags: list[str], meant: list[str]) -> None:
    assert match_tags(word, tags) == meant
    assert all(match_tags(tag, tags) == [tag] for tag in tags), "an exact name comes first"


def test_an_evaluation_of_a_file_needs_no_word_that_says_so() -> None:
    assert match_tags("eval/success", ["success", "libero.accuracy"], held_out=True) == ["success"]
    assert match_tags("accuracy", ["libero.accuracy"], held_out=True) == ["libero.accuracy"]
    assert match_tags("eval/success", ["success"]) == []


def test_quality_comes_before_times_and_rates_and_more_of_it_is_better() -> None:
    best = [
        "metrics/mAP50(B)",
        "bbox/AP",
        "AP50",
        "mIoU",
        "dice",
        "success",
        "win_rate",
        "acc",
        "F1",
        "BLEU",
        "pass@1",
        "ndcg@10",
        "top1",
    ]
    assert {tag: best_direction(tag) for tag in best} == dict.fromkeys(best, "max")
    others = ["data_time", "lr", "eta_seconds", "time/fps", "train_lr", "memory"]
    ranked = sorted([*others, *best, "loss_cls"], key=rank_headline)
    assert set(ranked[-len(others) :]) == set(others)
    assert ranked[-len(others) - 1] == "loss_cls"
