"""Settings of a run from its command and from YAML."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run
from mcp_server.results.configuration import parse_yaml, read_configuration, read_options


def test_a_command_has_options_by_name_and_the_last_wins() -> None:
    assert read_options("python -m train --lr 1e-4 --fast --lr=2e-4 model.n=3 --shift -0.5 ++a/b=c 'two words'") == {
        "m": "train",
        "lr": "2e-4",
        "fast": "true",
        "model.n": "3",
        "shift": "-0.5",
        "a/b": "c",
        "command": "python two words",
    }
    assert read_options("echo 'unclosed")["command"] == "echo 'unclosed"
    both = "nohup t.py --lr 1 > bg.log 2>&1 | tee 'a b' 2>/dev/null; x&&y &"
    assert read_options(both)["command"] == "nohup t.py > bg.log 2>&1 | tee a b 2>/dev/null; x&&y &"


@pytest.mark.parametrize(
    ("command", "sims"),
    [
        ("export N=128\npython t.py --sims $N", "128"),
        ('N=128; python t.py --sims="${N}"', "128"),
        ("python t.py --sims $M", "64"),
        ("M=32 && python t.py --sims $M", "32"),
        ("M=32 python t.py --sims $M", "64"),  # the shell reads $M before it sets it for the program
        ("[ -e x ] && N=1 || N=2; python t.py --sims $N", "$N"),
        ("N=$(nproc); python t.py --sims $N", "$N"),
        ("python t.py --sims $UNKNOWN", "$UNKNOWN"),
        (["python", "t.py", "--sims", "$M"], "$M"),
    ],
)
def test_a_setting_that_is_a_variable_of_the_command_has_its_value(command: str | list[str], sims: str) -> None:
    run = Run(RunSpec(command=command, cwd="/", env={"M": "64"}), "finished")
    assert read_configuration(run, None)["sims"] == sims


def test_a_secret_variable_stays_masked_under_another_name() -> None:
    run = Run(RunSpec(command="export API_KEY=abc123def456; python t.py --login $API_KEY", cwd="/"), "finished")
    assert "abc123" not in read_configuration(run, None)["login"]


def test_yaml_has_dotted_names_and_values_as_written() -> None:
    text = "a: 1  # one\nb:\n  c: 'x y'\n  d:\n    e: 2.50\nf: [1, 2]\ng:\n- h: 3e-4\n- i: yes\n# j: 4\nk:\n"
    assert parse_yaml(text) == {"a": "1", "b.c": "x y", "b.d.e": "2.50", "f": "[1, 2]", "g.h": "3e-4", "g.i": "yes"}
    assert parse_yaml("a: 1\n---\nb: 2\n") == {"a": "1"}


def test_what_is_not_yaml_has_no_values() -> None:
    for text in ("", "just words", "a: {{ x }}\n", "a: 1\n- b\n", "\t", "[" * 5000, "!!python/object:os.system {}\n"):
        assert parse_yaml(text) == {}


def test_aliases_that_multiply_end() -> None:
    laughs = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))
    assert len(parse_yaml(f"a0: &a0 [x]\n{laughs}\n")) < 20


def test_a_file_that_is_too_long_is_left_out_and_never_cut(tmp_path: Path) -> None:
    run = Run(RunSpec(command="python train.py --config a.yaml", cwd=str(tmp_path)), "finished")
    (tmp_path / "a.yaml").write_text("lr: 0.0001\n")
    assert read_configuration(run, None)["config:lr"] == "0.0001"
    (tmp_path / "a.yaml").write_text(f"note: {'x' * 199_980}\nlr: 0.0001\nseed: 1\n")
    assert "config:lr" not in read_configuration(run, None)


def test_settings_of_files_have_one_name_whatever_the_files_are_called(tmp_path: Path) -> None:
    run = Run(RunSpec(command="python train.py --config a.yaml --ds b.yaml", cwd=str(tmp_path)), "finished")
    (tmp_path / "a.yaml").write_text("lr: 0.1\nname: a\n")
    (tmp_path / "b.yaml").write_text("stage: 2\nname: b\n")
    settings = read_configuration(run, None)
    found = {name: value for name, value in settings.items() if ":" in name}
    assert found == {"config:lr": "0.1", "config:stage": "2", "a:name": "a", "b:name": "b"}


def test_options_of_a_helper_in_the_background_are_no_settings() -> None:
    expected = {"lr": "1", "command": "python train.py"}
    assert read_options("tensorboard --logdir out --port 6006 & python train.py --lr 1") == expected
    assert read_options("cd tb && tensorboard --port 1 2>&1 | tee t.log &\npython train.py --lr 1") == expected
    assert read_options("python train.py --lr 1 & wait")["lr"] == "1"  # nothing else is the training
