"""Parameters from a YAML or JSON file become flat names, in the order of the file; other files are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.errors import BadArgument
from mcp_server.record.script import format_arguments
from mcp_server.runs.launch.params_file import name_for_program, read_params_file


def test_nested_names_become_arguments_in_the_order_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "trainer:\n  total_epochs: 3\n  logger: [console, 'wandb']\nactor: {lr: 1e-6, path: null, offload: true}\n"
        "extra: {}\nversion: '007'\n"
    )
    file, params = read_params_file("c.yaml", str(tmp_path))
    assert file == f"{tmp_path}/c.yaml"
    assert format_arguments(params, "k=v") == [
        "trainer.total_epochs=3",
        'trainer.logger=["console","wandb"]',
        "actor.lr=1e-06",
        "actor.path=null",
        "actor.offload=true",
        "extra={}",
        "version=007",
    ]


def test_json_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"data": {"size": 512, "seeds": [0, 1]}}')
    assert read_params_file(str(tmp_path / "c.json"), None)[1] == {"data.size": 512, "data.seeds": "[0,1]"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a:\n  - b\n c: 1\n", "line 3: not YAML"),
        (b"- 1\n", "no table"),
        (b"", "no table"),
        (b"a: 1\na: 2\n", "line 2: 'a' is there twice"),
        (b"a.b: 1\na:\n  b: 2\n", "'a.b' twice"),
        (b"a: \xff\n", "UTF-8"),
    ],
)
def test_a_file_that_holds_no_parameters_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "c.yaml").write_bytes(content)
    with pytest.raises(BadArgument, match=words):
        read_params_file("c.yaml", str(tmp_path))


def test_a_missing_file_is_refused_with_those_of_a_similar_name(tmp_path: Path) -> None:
    (tmp_path / "cfm.yaml").write_text("lr: 1")
    with pytest.raises(BadArgument, match=r"No such file.*cfm\.yaml"):
        read_params_file("cfn.yaml", str(tmp_path))
    with pytest.raises(BadArgument, match="cwd is not given"):
        read_params_file("cfm.yaml", None)


def test_several_files_are_joined_in_their_order_and_the_later_wins(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("agent: {tools: [a]}\ndata: {train_batch_size: 64}\n")
    (tmp_path / "train.yaml").write_text("trainer: {nnodes: 2}\ndata: {train_batch_size: 32, size: 1}\n")
    files, params = read_params_file("agent.yaml, train.yaml", str(tmp_path))
    assert files == f"{tmp_path}/agent.yaml,{tmp_path}/train.yaml"
    assert params == {"agent.tools": '["a"]', "data.train_batch_size": 32, "trainer.nnodes": 2, "data.size": 1}
    assert read_params_file("train.yaml,agent.yaml", str(tmp_path))[1]["data.train_batch_size"] == 64
    with pytest.raises(BadArgument, match=r"none\.yaml cannot be read"):
        read_params_file("agent.yaml,none.yaml", str(tmp_path))
    (tmp_path / "train.yaml").write_text("data: 3\n")
    with pytest.raises(BadArgument, match=r"train\.yaml has 'data', and a file before it 'data\.train_batch_size'"):
        read_params_file("agent.yaml,train.yaml", str(tmp_path))


def test_only_the_program_of_verl_gets_verls_names() -> None:
    verl = ["python3", "-m", "verl.trainer.main_ppo"]
    given = {"training.learning_rate": 5e-7, "hardware.num_gpus": 8}
    assert name_for_program(given, "t.yaml", ["python", "train.py"]) == given
    named = {"actor_rollout_ref.actor.optim.lr": 5e-7, "trainer.n_gpus_per_node": 8}
    assert name_for_program(given, "t.yaml", verl) == named
    with pytest.raises(BadArgument, match=r"t\.yaml: VERL's name of training\.warmth is not certain"):
        name_for_program({"training.warmth": 1}, "t.yaml", verl)
