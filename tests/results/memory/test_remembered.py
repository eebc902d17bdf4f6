"""Pairs of launches, labelled: which repeat a former one, which are near it, and which are others."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from mcp_server.record.script import command_text
from mcp_server.record.spec import RunSpec
from mcp_server.results.memory.remembered import list_beside, sign

Launch = tuple[str | list[str], dict[str, Any]]
BASE = "python train.py --task cube --lr 3e-4 --batch-size 64 --num-envs 4096 --seed 1"
EXACT: list[Launch] = [
    (BASE, {}),
    ("python train.py --task=cube --lr=3e-4 --batch-size=64 --num-envs=4096 --seed=1", {}),
    ("python train.py --seed 1 --num-envs 4096 --batch-size 64 --lr 3e-4 --task cube", {}),
    ("python train.py --task cube --lr 0.0003 --batch-size 64 --num-envs 4096 --seed 1", {}),
    ("/opt/venv/bin/python3 train.py --task cube --lr 3e-4 --batch-size 64 --num-envs 4096 --seed 1", {}),
    ("python3.11 train.py --task cube --lr 3e-4 --batch-size 64 --num-envs 4096 --seed 1", {}),
    ("python train.py --task cube --lr 3e-4 --batch_size 64 --num_envs 4096 --seed 1", {}),
    ("python train.py --task 'cube' --lr 3e-4 --batch-size \"64\" --num-envs 4096 --seed 1", {}),
    (
        [
            "python",
            "train.py",
            "--task",
            "cube",
            "--lr",
            "3e-4",
            "--batch-size",
            "64",
            "--num-envs",
            "4096",
            "--seed",
            "1",
        ],
        {},
    ),
    (BASE + " --output_dir runs/second", {}),
    (BASE + " --run_name again", {}),
    (BASE + " --logdir /tmp/tb/x", {}),
    ("CUDA_VISIBLE_DEVICES=1 " + BASE, {}),
    (BASE, {"env": {"CUDA_VISIBLE_DEVICES": "3"}}),
    (BASE, {"env": {"WANDB_NAME": "x"}}),
    (BASE, {"env": {"MASTER_PORT": "29501"}}),
    ("python train.py --task cube --batch-size 64 --num-envs 4096 --seed 1", {"params": {"lr": 3e-4}}),
    ("python train.py --task cube", {"params": {"lr": "3e-4", "batch-size": 64, "num-envs": 4096, "seed": 1}}),
    (BASE + " 2>&1 | tee train.log", {}),
    ("python -u train.py --task cube --lr 3e-4 --batch-size 64 --num-envs 4096 --seed 1", {}),
]
NEAR: list[Launch] = [
    (BASE.replace("--seed 1", "--seed 2"), {}),
    (BASE.replace(" --seed 1", ""), {}),
    (BASE.replace("--seed 1", "--seed 42 --run_name seed42"), {}),
    (BASE.replace("--seed 1", "--seed=7"), {}),
    (BASE + " --num_workers 8", {}),
    (BASE + " --log_interval 10", {}),
    (BASE + " --save-interval 500", {}),
    (BASE + " --verbose", {}),
    (BASE + " --device cuda:1", {}),
    (BASE + " --wandb_project other", {}),
    (BASE + " --checkpoint_every 100", {}),
    (BASE + " --no-progress-bar", {}),
    (BASE + " --eval_interval 50", {}),
    (BASE, {"env": {"PYTHONUNBUFFERED": "1"}}),
    (BASE, {"env": {"NCCL_DEBUG": "INFO"}}),
    (BASE, {"env": {"OMP_NUM_THREADS": "8"}}),
    (BASE, {"env": {"SEED": "3"}}),
    (BASE + " --print_freq 5 --seed 9", {}),
    (BASE + " --headless", {}),
    (BASE + " --video_interval 100", {}),
]
OTHER: list[Launch] = [
    (BASE.replace("3e-4", "1e-3"), {}),
    (BASE.replace("3e-4", "3e-5"), {}),
    (BASE.replace("64", "128"), {}),
    (BASE.replace("4096", "8192"), {}),
    (BASE.replace("cube", "walker"), {}),
    (BASE.replace("train.py", "eval.py"), {}),
    (BASE + " --clip 0.2", {}),
    (BASE + " --optimizer muon", {}),
    (BASE + " --max_steps 1000", {}),
    (BASE, {"cwd": "/lab/other"}),
    (BASE, {"env": {"DROPOUT": "0.1"}}),
    (BASE + " --fp16", {}),
    (BASE + " --weight-decay 0.1", {}),
    (BASE.replace("--lr 3e-4 ", ""), {}),
    (BASE, {"params": {"gamma": 0.9}}),
    ("torchrun --nproc-per-node 4 " + BASE[7:], {}),
    (BASE + " --resume ckpt.pt", {}),
    (BASE + " --dataset other.json", {}),
    (BASE.replace("--task cube", "--task Cube-v2"), {}),
    (BASE + " --model meta-llama/Llama-3-8B", {}),
    (BASE + " --warmup_steps 500", {}),
    (BASE + " --network.hidden 256", {}),
    (BASE + " agent.lr=1", {}),
    (BASE + " --save_best_metric reward --entropy 0.01", {}),
]


# Written before their author knew the rule: three of the others were then called exact, and six near ones others.
GPT = "torchrun --standalone --nproc_per_node=8 pretrain.py --config configs/gpt2.yaml --learning_rate 6e-4 --seed 1337"
SAC = "python -m rl.train task=Humanoid-v5 algo.name=sac algo.gamma=0.99 num_envs=2048 seed=5 hydra.run.dir=outputs/a"
DOG = "accelerate launch --mixed_precision bf16 train_dreambooth.py --instance_data_dir data/dog --max_train_steps 800"
PAIRS: list[tuple[str, str, Launch]] = [
    ("exact", GPT, (GPT.replace("=8", " 8").replace("6e-4", "0.0006") + " --out_dir out-2 > log.txt 2>&1", {})),
    ("exact", SAC, (SAC.replace("outputs/a", "outputs/b").replace("0.99", "0.990"), {})),
    ("exact", DOG, ("WANDB_NAME=second " + DOG + " --logging_dir logs/x --checkpoint_dir c --experiment.name two", {})),
    ("near", GPT, (GPT + " --wandb_log True", {})),
    ("near", GPT, (GPT + " --always_save_checkpoint False", {})),
    ("near", SAC, (SAC + " logger=wandb", {})),
    ("near", SAC, (SAC, {"env": {"TQDM_DISABLE": "1"}})),
    (
        "near",
        DOG,
        (DOG + " --report_to wandb --checkpointing_steps 100 --validation_epochs 5 --save_total_limit 2", {}),
    ),
    ("other", GPT, (GPT + " --model_name gpt2-xl", {})),
    ("other", GPT, (GPT + " --data_root /data/owt2", {})),
    ("other", SAC, (SAC.replace("sac", "td3"), {})),
    ("other", DOG, (DOG.replace("data/dog", "data/cat"), {})),
    ("other", DOG, (DOG + " --pretrained_model_name_or_path sd-legacy/v1-5", {})),
]


def tell(launch: Launch, base: str = BASE) -> str:
    """Return what a launch is beside that of ``base``."""
    command, other = launch
    one, two = RunSpec(command=base, cwd="/lab"), RunSpec(**{"command": command, "cwd": "/lab", **other})
    (same, alike), (own, near) = (sign(command_text(each), each.cwd, each.env) for each in (one, two))
    return "exact" if own == same else "near" if near == alike else "other"


@pytest.mark.parametrize(("kind", "launches"), [("exact", EXACT), ("near", NEAR), ("other", OTHER)])
def test_repeats_near_ones_and_other_launches_are_told_apart(kind: str, launches: Sequence[Launch]) -> None:
    assert {str(launch): tell(launch) for launch in launches} == {str(launch): kind for launch in launches}


def test_a_setting_that_says_what_is_trained_is_no_name_of_the_run() -> None:
    assert [(kind, launch) for kind, base, launch in PAIRS if tell(launch, base) != kind] == []


def test_a_near_launch_is_named_by_the_settings_that_differ() -> None:
    none: Mapping[str, str] = {}
    assert list_beside((BASE, none), (f"{BASE} --num_workers 8", {"NCCL_DEBUG": "INFO"})) == [
        "num_workers",
        "nccl_debug",
    ]
    assert list_beside((BASE, none), (BASE.replace("seed 1", "seed 2"), none)) == ["seed"]
