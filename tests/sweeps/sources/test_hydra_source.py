"""The YAML of a Hydra program becomes overrides that Hydra reads as the same values; VERL's is checked as well."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from mcp_server.errors import BadArgument
from mcp_server.record.script import format_arguments
from mcp_server.sweeps.sources.cell import Scalar, SourceCell
from mcp_server.sweeps.sources.hydra_source import format_value
from mcp_server.sweeps.sources.source import read_source

PPO = """\
data: {train_files: data/train.parquet, train_batch_size: 256}
actor_rollout_ref:
  model: {path: Qwen/Qwen2.5-7B, +override_config: {rope: 1}}
  actor: {optim: {lr: 1e-6}}
algorithm: {adv_estimator: grpo}
trainer: {n_gpus_per_node: 8, total_epochs: 1}
"""


def read(
    source: str, cwd: Path, overrides: Mapping[str, Scalar] | None = None, gpus: int | None = None, python: str = ""
) -> list[SourceCell]:
    environ = {"PATH": "/nonexistent"}
    return read_source(
        source, cwd=str(cwd), overrides=overrides or {}, gpus=gpus, environ=environ, python=python or None
    )


def write_ppo(cwd: Path, text: str = PPO) -> None:
    (cwd / "data").mkdir()
    (cwd / "data" / "train.parquet").touch()
    (cwd / "ppo.yaml").write_text(text)


def test_nested_names_and_values_become_overrides_in_the_order_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "train.yaml").write_text(
        "base: &base {lr: 1e-6, when: 2024-01-01}\n"
        "actor: {<<: *base, offload: yes, path: null, version: '007', flag: 'true'}\n"
        "trainer:\n  logger: [console, 'wandb']\n  note: a, b\n  empty: {}\n  limit: .inf\n  ++new: {deep: 1}\n"
        "script: |\n  x = 1\n"
        "model: ${name}-v1\nseed: ???\n"
    )
    (cell,) = read("hydra:train", tmp_path, {"actor.lr": 0.1, "+extra": 2})
    assert (cell.name, cell.launch) == ("train", {"param_style": "k=v"})
    assert format_arguments(cell.params, "k=v") == [
        "base.lr=1e-06",
        'base.when="2024-01-01"',
        "actor.lr=0.1",
        'actor.when="2024-01-01"',
        "actor.offload=true",
        "actor.path=null",
        'actor.version="007"',
        'actor.flag="true"',
        "trainer.logger=[console,wandb]",
        'trainer.note="a, b"',
        "trainer.empty={}",
        "trainer.limit=inf",
        "++trainer.new.deep=1",
        'script="x = 1\n"',
        'model="${name}-v1"',
        "+extra=2",
    ]
    assert cell.notes == ("seed must be given, in params or in the grid: the file says ???.",)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B"),
        ("./a.yaml", "./a.yaml"),
        ("1e-6", '"1e-6"'),
        (".5", '".5"'),
        ("NaN", '"NaN"'),
        ("", '""'),
        ("é", '"é"'),
        ('say "no"', '"say \\"no\\""'),
        ("a\\b\\", '"a\\b\\\\"'),
        ('\\"', '"\\\\\\""'),
        ([1, [True, None], {"a": "b c"}], '[1,[true,null],{a:"b c"}]'),
    ],
)
def test_a_value_is_quoted_where_hydra_would_read_another(value: object, text: str) -> None:
    assert format_value(value) == text  # each was compared with the parser of hydra-core 1.3


def test_a_pattern_means_all_its_files_and_names_stay_apart(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yml", "sub/a.yaml", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("lr: 1")
    assert [cell.name for cell in read("hydra:*, sub/a.yaml", tmp_path)] == ["a", "b", "a-2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\nb: 2", "line 2: not YAML"),
        ("- 1", "holds no table"),
        ("my key: 1", "the key 'my key' cannot be written"),
        ("a: [{'b c': 1}]", "a: the key 'b c' inside a list cannot be written"),
        ("a: &a [*a]", "or contains itself"),
        ("defaults: [base, _self_]\na: 1", "--config-dir=.* --config-name=c"),
        ("data: {val_files: [no.parquet]}", "data.val_files: there is no data file no.parquet"),
    ],
)
def test_a_config_that_overrides_cannot_repeat_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(BadArgument, match=message):
        read("hydra:c.yaml", tmp_path)


def test_a_missing_config_and_an_unknown_kind_are_refused_with_what_exists(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text("lr: 1")
    with pytest.raises(BadArgument, match=r"there is no config .*/trian\.yaml\..*train\.yaml"):
        read("hydra:trian", tmp_path)
    for source in ("make:x", "train.yaml", ""):
        with pytest.raises(BadArgument, match=r"known kind.*doit:TASK"):
            read(source, tmp_path)
    for source in ("hydra:", "hydra:x*"):
        with pytest.raises(BadArgument, match="names no config"):
            read(source, tmp_path)


def test_verl_needs_its_sections_and_its_data(tmp_path: Path) -> None:
    write_ppo(tmp_path, PPO.replace("algorithm:", "algo:"))
    with pytest.raises(BadArgument, match=r"has no section algorithm,.*hydra:CONFIG"):
        read("verl:ppo.yaml", tmp_path)
    (tmp_path / "ppo.yaml").write_text(PPO)
    (tmp_path / "data" / "train.parquet").rename(tmp_path / "data" / "trains.parquet")
    with pytest.raises(BadArgument, match=r"there is no data file data/train\.parquet.*trains\.parquet"):
        read("verl:ppo.yaml", tmp_path)
    assert read("verl:ppo.yaml", tmp_path, {"data.train_files": "data/trains.parquet"})[0].params["data.train_files"]


def test_parts_of_one_verl_configuration_are_joined_in_their_order(tmp_path: Path) -> None:
    write_ppo(tmp_path)
    data, rest = PPO.split("actor_rollout_ref:")
    (tmp_path / "agent.yaml").write_text(f"{data}trainer: {{total_epochs: 3}}\n")
    (tmp_path / "train.yaml").write_text(f"actor_rollout_ref:{rest}")
    (cell,) = read("verl:agent.yaml,train.yaml", tmp_path)
    (whole,) = read("verl:ppo.yaml", tmp_path)
    assert (cell.name, cell.params) == ("train", whole.params)
    assert cell.notes[0] == "train.yaml replaces trainer.total_epochs."
    assert read("verl:train.yaml,agent.yaml", tmp_path)[0].params["trainer.total_epochs"] == 3
    (tmp_path / "train.yaml").write_text("trainer: {nnodes: 1}\n")
    with pytest.raises(BadArgument, match=r"agent\.yaml, .*train\.yaml has no section actor_rollout_ref, algorithm,"):
        read("verl:agent.yaml,train.yaml", tmp_path)


def test_the_tutorials_files_are_one_configuration_in_verls_names(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "t.json").write_text("[]")
    (tmp_path / "agent.yaml").write_text(
        "agent: {tools: [answer], model_name_or_path: Q/q-7B}\ndata: {train_files: data/t.json, train_batch_size: 16}\n"
    )
    train = (
        "training: {algorithm: grpo, learning_rate: 5e-7}\nhardware: {num_gpus: 8}\nmonitoring: {loggers: [console]}\n"
    )
    (tmp_path / "train.yaml").write_text(train)
    (cell,) = read("verl:agent.yaml,train.yaml", tmp_path, {"trainer.nnodes": 2})
    assert cell.params["actor_rollout_ref.actor.optim.lr"] == 5e-7
    assert cell.params["actor_rollout_ref.model.path"] == "Q/q-7B"
    assert cell.params["trainer.n_gpus_per_node"] == 8
    assert (cell.params["trainer.logger"], cell.params["trainer.nnodes"]) == ("[console]", 2)
    assert not [name for name in cell.params if name.startswith(("training", "hardware", "monitoring"))]
    (tmp_path / "train.yaml").write_text(train.replace("algorithm", "algo"))
    with pytest.raises(BadArgument, match=r"VERL's name of training\.algo is not certain"):
        read("verl:agent.yaml,train.yaml", tmp_path)
    (tmp_path / "train.yaml").write_text(train)
    with pytest.raises(BadArgument, match=r"train\.yaml has no section"):
        read("verl:train.yaml", tmp_path)


def test_whole_verl_configurations_stay_cells_of_their_own(tmp_path: Path) -> None:
    write_ppo(tmp_path)
    (tmp_path / "big.yaml").write_text(PPO.replace("1e-6", "1e-5"))
    assert [cell.name for cell in read("verl:ppo.yaml,big.yaml", tmp_path)] == ["ppo", "big"]


def test_verl_keys_are_compared_with_the_installed_configs_and_gpus_with_the_cell(tmp_path: Path) -> None:
    write_ppo(tmp_path, f"defaults: [ppo_trainer, _self_]\n{PPO}".replace("total_epochs", "total_epoch"))
    (cell,) = read("verl:ppo.yaml", tmp_path, gpus=4, python=sys.executable)
    assert cell.notes[0].startswith("ppo.yaml builds on ppo_trainer")
    assert cell.notes[1].startswith("The keys were not compared with VERL's: ")
    packaged = tmp_path / "verl" / "trainer" / "config"
    packaged.mkdir(parents=True)
    (packaged / "_generated_ppo_trainer.yaml").write_text(
        "data: {train_files: x, train_batch_size: 1}\nalgorithm: {adv_estimator: gae}\n"
        "actor_rollout_ref: {model: {path: x}, actor: {optim: {lr: 1}}}\n"
        "trainer: {n_gpus_per_node: 8, nnodes: 1, total_epochs: 1}\n"
    )
    (cell,) = read("verl:ppo.yaml", tmp_path, {"data.shuffel": True}, gpus=4, python=sys.executable)
    assert cell.params["+actor_rollout_ref.model.override_config.rope"] == 1
    assert cell.notes[1:] == (
        "VERL has no key trainer.total_epoch, so Hydra refuses it: did you mean trainer.total_epochs?",
        "VERL has no key data.shuffel, so Hydra refuses it: a new key is written +data.shuffel.",
        "trainer.n_gpus_per_node times trainer.nnodes is 8, and a cell has gpus=4.",
    )
