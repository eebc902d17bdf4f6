"""The form of parameters follows from the program, where that is certain."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.command.shell import parse
from mcp_server.hosts.param_style import takes_settings

HYDRA = "import hydra\n\n@hydra.main(config_path='conf', config_name='base')\ndef main(cfg): ...\n"


@pytest.mark.parametrize(
    ("command", "takes"),
    [
        ("python3 -m verl.trainer.main_ppo", True),
        ("python3 -m verl.trainer.main_ppo --config-path=/c --config-name ppo data.seed=1", True),
        ("python train.py", True),
        ("cd sub && python ../train.py", True),
        ("torchrun --nproc_per_node 2 train.py", True),
        ("python -m train --config-name=ppo", True),
        ("python missing.py algo.lr=0.1", True),
        ("python missing.py", False),
        ("python missing.py lr=0.1", False),
        ("python plain.py", False),
        ("python mixed.py", False),
        ("python train.py --num_envs 4", False),
        ("python missing.py --lr 0.1 a.b=c", False),
        ("./train", False),
    ],
)
def test_a_program_of_hydra_takes_settings(tmp_path: Path, command: str, takes: bool) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "train.py").write_text(HYDRA)
    (tmp_path / "plain.py").write_text("import argparse\n")
    (tmp_path / "mixed.py").write_text(f"import argparse\n{HYDRA}")
    assert takes_settings(parse(command), ["algo.lr"], tmp_path) is takes


def test_hydras_own_options_are_not_settings(tmp_path: Path) -> None:
    command = parse("python3 -m verl.trainer.main_ppo")
    assert takes_settings(command, ["data.seed"], tmp_path)
    assert not takes_settings(command, ["data.seed", "config-name"], tmp_path)
