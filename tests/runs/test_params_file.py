"""Parameters from a YAML or JSON file become flat names, in the order of the file; other files are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.errors import BadArgument
from mcp_server.record.script import format_arguments
from mcp_server.runs.params_file import read_params_file


def test_nested_names_become_arguments_in_the_order_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "trainer:\n  total_epochs: 3\n  logger: [console, 'wandb']\nactor: {lr: 1e-6, path: null, offload: true}\n"
        "extra: {}\nversion: '007'\n"
    )
    file, params = read_params_file("c.yaml", str(tmp_path))
    assert file == tmp_path / "c.yaml"
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
