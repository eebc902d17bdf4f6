"""Hydra's options, overrides, decorator and lists of defaults, by value."""

import pytest

from mcp_server.command.hydra import (
    expand_default,
    list_config_names,
    read_hydra_decorator,
    read_hydra_options,
    read_hydra_overrides,
)


def test_options_have_long_and_short_names_and_the_last_counts() -> None:
    words = ["--config-path=conf", "-cn", "small", "--config-name", "large", "--config-dir", "more", "-cp"]
    assert read_hydra_options(words) == {"path": "conf", "name": "large", "dir": "more"}


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("import hydra\n", None),
        ('@hydra.main(version_base=None, config_path="../conf", config_name="base")\ndef f(): ...', "../conf base"),
        (
            "@main(\n config_path=r'conf',\n # config_name='old',\n config_name='new',\n)  # as ever\n",
            "conf new",
        ),
        ("@hydra.main()\ndef main(cfg): ...", ""),
        ("@hydra.main(config_path=str(HERE / 'conf'), config_name='base')\n", "base"),
        ("# @hydra.main(config_name='base')\n", None),
    ],
)
def test_the_decorator_is_read_from_the_text_of_a_script(script: str, arguments: str | None) -> None:
    decorator = read_hydra_decorator(script)
    assert (None if decorator is None else " ".join(decorator.values())) == arguments


def test_overrides_are_by_group_without_plus_and_package() -> None:
    words = ["train.py", "model=large", "+exp/a=b", "db@here=x", "--flag=1", "~model"]
    assert read_hydra_overrides(words) == {"model": "large", "exp/a": "b", "db": "x"}


@pytest.mark.parametrize(
    ("key", "options", "group", "configs"),
    [
        ("model", ["small"], "", "model/large"),
        ("override /optim", ["adam"], "exp", "optim/adam"),
        ("optional db@here", ["a", "b"], "exp", "exp/db/a exp/db/b"),
        ("optim", ["null"], "", ""),
        ("base", [], "exp", "exp/base"),
        ("_self_", [], "exp", ""),
    ],
)
def test_a_default_is_expanded(key: str, options: list[str], group: str, configs: str) -> None:
    assert " ".join(name for name, _ in expand_default(key, options, group, {"model": "large"})) == configs


def test_a_config_may_be_named_without_its_ending() -> None:
    assert list_config_names("base") == ["base.yaml", "base.yml"]
    assert list_config_names("base.yml") == ["base.yml"]
