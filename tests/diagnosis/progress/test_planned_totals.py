"""A total that the output does not print is the one that the command or a printed setting plans, or is unknown."""

import pytest

from mcp_server.diagnosis.progress.planned_totals import PlannedTotals
from mcp_server.diagnosis.progress.tracker import ProgressTracker
from tests.support.rows import for_each

COMMANDS = [
    ("python train.py config/x.py --max_iters=60 --eval_interval=20 --lr_decay_iters 7", {"steps": 60}),
    ("python main.py --epochs 3 --batch-size 64", {"epochs": 3}),
    ("python src/train.py -m trainer.max_epochs=2 seed=0,1", {"epochs": 2}),
    ("python test_dqn.py --epoch 3 --step-per-epoch 1000", {"epochs": 3}),
    ("python ppo.py --total-timesteps 4096", {"frames": 4096}),
    ("python -m baselines.run --num_timesteps=1e6", {"frames": 1_000_000}),
    ("python train_net.py SOLVER.MAX_ITER 120", {"steps": 120}),
    ("python tune.py --n-trials 8", {"trials": 8}),
    ("python a.py --epochs 3 && python b.py --epochs 5", {}),
    ("python train.py --warmup-steps 100 --warmup_epochs 3 --n_steps 5 --steps_per_epoch 9 --max_steps -1", {}),
]


@for_each(COMMANDS)
def test_a_command_plans_what_its_options_say(row: tuple[str, dict[str, int]]) -> None:
    command, totals = row
    planned = PlannedTotals(command)
    units = ("epochs", "steps", "frames", "trials")
    assert {unit: planned.total(unit) for unit in units if planned.total(unit) is not None} == totals


@for_each(
    [
        ("max_iters = 5000", "steps", 5000),
        ("Overriding: max_iters = 60", "steps", 60),
        ("Overwriting n_timesteps with n=4000", "frames", 4000),
        ("  Num Epochs = 8", "epochs", 8),
        ("  Total optimization steps = 40", "steps", 40),
        ("  train_iters ..................................... 60", "steps", 60),
        ("Namespace(dataset='c', epochs=10)", "epochs", 10),
        ("warmup_steps: 100", "steps", None),
        ("Steps:   1%|  | 3/9", "steps", None),
        ("Eval num_timesteps=1280, episode_reward=250.00", "frames", None),
    ]
)
def test_a_printed_setting_plans_a_total(row: tuple[str, str, int | None]) -> None:
    line, unit, total = row
    planned = PlannedTotals()
    planned.read_line(line)
    assert planned.total(unit) == total


@pytest.mark.parametrize(
    ("command", "lines", "place"),
    [
        ("t --max_iters 300", ["iter 120: loss 2.5"], "step 120 of 300"),
        ("t --max_iters 300", ["max_iters = 5000", "iter 120: loss 2.5"], "step 120 of 300"),
        ("t", ["max_iters = 5000", "max_iters = 300", "iter 120: loss 2.5"], "step 120 of 300"),
        ("t --max_iters 100", ["iter 120: loss 2.5"], "step 120"),
        ("t --max_iters 300", ["iter 12/50: loss 2.5"], "step 12 of 50"),
        ("t --epochs 4", ["epoch 3 loss 0.5"], "step 3 of 4"),
        ("t --epochs 4", ["Train Epoch: 1 [640/6000 (11%)]\tLoss: 0.5"], "step 640 of 24000"),
        ("t --epochs 2", ["| epoch   1 |   200/ 983 batches | lr 2.00 | loss  7.40"], "step 200 of 1966"),
        ("t --total-timesteps 4096 --num-steps 8", ["global_step=36, episodic_return=36.0"], "step 36 of 4096"),
        ("t --epochs 9", ["global_step=36, episodic_return=36.0"], "step 36"),
    ],
)
def test_the_total_is_the_printed_one_else_the_planned_one(command: str, lines: list[str], place: str) -> None:
    progress = ProgressTracker(command=command)
    progress.read_lines(lines)
    assert progress.place == place


def test_the_last_rollout_may_go_beyond_the_total() -> None:
    progress = ProgressTracker(command="ppo --total-timesteps 4000")
    progress.read_lines(["global_step=4096, episodic_return=36.0"], 1.0)
    assert (progress.place, progress._lead.total_steps) == ("step 4096 of 4000", 4000)
