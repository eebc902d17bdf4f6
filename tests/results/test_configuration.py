"""Settings of a run from its command and from YAML."""

from __future__ import annotations

from mcp_server.results.configuration import parse_yaml, read_options


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


def test_plain_yaml_has_dotted_names() -> None:
    text = "a: 1  # one\nb:\n  c: 'x y'\n  d:\n    e: 2.5\nf: [1, 2]\n- g: 3\n# h: 4\n"
    assert parse_yaml(text) == {"a": "1", "b.c": "x y", "b.d.e": "2.5", "f": "[1, 2]", "g": "3"}
