"""Variables in launch commands."""

import pytest

from mcp_server.blueprints.command import fill_variables


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
