"""Variables in launch commands."""

import pytest

from mcp_server.blueprints.command import fill_variables
from mcp_server.blueprints.parser import parse_blueprint


@pytest.mark.parametrize(
    ("text", "filled_in"),
    [
        ("a ${exp_yaml_path} b", "a '/x y/it'\"'\"'s' b"),
        ('a "$exp_yaml_path"', 'a "/x y/it\'s"'),
        ("a '{exp_yaml_path}'", "a '/x y/it'\\''s'"),
        ("timeout ${MaxTime} a", "timeout 60 a"),
        ("timeout ${MaxTime:-24h} a", "timeout 60 a"),
        ("MaxTime=3; a $MaxTime", "MaxTime=3; a $MaxTime"),
        ("a $MaxTimes ${HOME} {gpus} $exp", "a $MaxTimes ${HOME} {gpus} $exp"),
    ],
)
def test_variables_are_filled_in_as_the_shell_will_read_them(text: str, filled_in: str) -> None:
    assert fill_variables(text, {"exp_yaml_path": "/x y/it's", "MaxTime": "60"}) == filled_in


@pytest.mark.parametrize(
    ("written", "command"),
    [
        ('["python", "train.py", "--name", "a b"]', "python train.py --name 'a b'"),
        ('```json\n[\n  "python",\n  "train.py"\n]\n```', "python train.py"),
        ('["python", "train.py", "$HOME"]', "python train.py '$HOME'"),
        ('["python train.py --lr 1e-4"]', "python train.py --lr 1e-4"),
        ('["cd code", "python train.py"]', None),
        ('["python", 3]', None),
        ("[]", None),
    ],
)
def test_an_array_of_words_is_a_command_and_an_array_of_commands_is_refused(written: str, command: str | None) -> None:
    blueprint = parse_blueprint(f"## [exp_purpose]\nx\n## [exp_launch_command]\n{written}\n")
    assert blueprint.launch_command == command
    assert bool(blueprint.faults) == (command is None)
