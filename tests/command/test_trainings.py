"""What trains, evaluates or serves, by command lines."""

from __future__ import annotations

import shlex

import pytest

from mcp_server.command import trainings
from mcp_server.command.trainings import classify

FOUND = """
training | python train.py --task cube
training | /data/envs/rl/bin/python3.10 -u scripts/rsl_rl/train.py --headless
training | python -m verl.trainer.main_ppo data.train_files=x
training | python -W ignore -X faulthandler finetune_vla.py
training | python main.py train --config x.yaml
training | python examples/embodiment/train_embodied_agent.py
training | python -m rlinf.train
training | lerobot-train --policy act
training | llamafactory-cli train a.yaml
training | uv run python train.py
evaluation | python eval_policy.py --ckpt x
evaluation | python -m lm_eval --model hf
evaluation | python scripts/evaluate.py
evaluation | python -m robot.evaluation.rollout
evaluation | lm_eval --model hf
serving | vllm serve Qwen/Qwen2.5-7B
serving | python -m vllm.entrypoints.openai.api_server --model x
serving | python /data/envs/rl/bin/vllm serve /models/x
serving | VLLM::EngineCore
serving | python -m sglang.launch_server --model x
ray | ray::RolloutWorker.step
ray | ray::IDLE
ray | /data/ray/core/src/ray/raylet/raylet --raylet_socket_name=x
ray | python /data/ray/_private/workers/default_worker.py --node-ip-address=1
launcher | torchrun --nproc_per_node 4 main.py
launcher | python /data/envs/rl/bin/torchrun --nproc_per_node 4 main.py
launcher | python -m torch.distributed.run main.py
launcher | python -m ajet.launcher --conf x.yaml
launcher | accelerate launch main.py
launcher | deepspeed --num_gpus 4 main.py
"""

OTHERS = """
vim train.py
nano eval.py
bash
bash -c 'python train.py'
-zsh
tail -f logs/train.log
less train.log
grep -r train .
python
python -c 'import train'
python -m pip install trl
python -m pytest tests/test_train.py
python -m http.server
python -m mcp_server
python -m ipykernel_launcher -f x.json
python -m tensorboard.main --logdir runs/train
python plot.py train.csv
python scripts/prepare_train_data.py
python -m mypkg.data.split_train_val
python tests/test_trainer.py
python plot-training-curves.py runs
python train_utils.py
python -u - train
runward serve
runward-supervisor t.r.a.i.n.-.7.k.q.z
tmux new-session -s train
ssh host python train.py
accelerate config
vllm --version
swift build
git commit -m train
code train.py
nvidia-smi
"""


@pytest.mark.parametrize("line", FOUND.strip().splitlines())
def test_a_process_is_recognised_by_what_it_runs(line: str) -> None:
    kind, _, command = line.partition(" | ")
    assert classify(shlex.split(command)) == kind


@pytest.mark.parametrize("line", OTHERS.strip().splitlines())
def test_editors_shells_and_tools_are_not_trainings(line: str) -> None:
    assert classify(shlex.split(line)) is None


def test_a_process_without_words_is_nothing() -> None:
    assert classify([]) is None
    assert classify([""]) is None


@pytest.mark.parametrize("block", [block for block in trainings._BLOCKS if "seen" in block], ids=str)
def test_each_pattern_wins_on_the_name_that_it_was_seen_with(block: dict[str, str]) -> None:
    words = ["-m", block["seen"]] if block["of"] == "module" else [f"{block['seen']}.py"]
    assert classify(["python", *words]) == (None if block["kind"] == "other" else block["kind"])
