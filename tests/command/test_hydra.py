"""Hydra's options, overrides, decorator and lists of defaults, by value."""

from pathlib import Path

import pytest

from mcp_server.command.configs import (
    expand_default,
    find_hydra_configs,
    list_config_names,
    read_hydra_decorator,
    read_hydra_options,
    read_hydra_overrides,
    takes_settings,
)
from mcp_server.command.shell import parse


def test_options_have_long_and_short_names_and_the_last_counts() -> None:
    words = ["--config-path=conf", "-cn", "small", "--config-name", "large", "--config-dir", "more", "-cp"]
    assert read_hydra_options(words) == {"path": "conf", "name": "large", "dir": "more"}


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("import hydra\n", None),
        ('@hydra.main(version_base=None, config_path="../conf", config_name="base")\ndef f(): ...', "../conf base"),
        ("@main(\n config_path=r'conf',\n # config_name='old',\n config_name='new',\n)  # as ever\n", "conf new"),
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


FILES = {
    "train.py": "@hydra.main(config_path='conf', config_name='config', version_base=None)\ndef f(c): ...\n",
    "plain.py": "import argparse\n",
    "broken.py": "def (:\n",
    "conf/config.yaml": "defaults:\n  - model: small\n  - optional data@source: local\n"
    "  - override hydra/job_logging: none\n  - _self_\n",
    "conf/other.yaml": "defaults: [base, /model: large]\n",
    "conf/base.yaml": "defaults:\n  - other\n",  # a circle
    "conf/model/small.yaml": "defaults:\n  - parts/head\n  - parts: [a, b]\n",
    "conf/model/large.yaml": "size: ${width}\n",
    "conf/model/parts/head.yaml": "x: 1\n",
    "conf/model/parts/a.yaml": "x: 1\n",
    "conf/data/local.yaml": "x: [\n",  # not YAML
    "more/extra.yaml": "x: 1\n",
    "pkg/main.py": "@hydra.main(config_path='../conf')\ndef f(c): ...\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("script", "words", "names"),
    [
        ("train.py", "", "config model/small data/local model/parts/head model/parts/a"),
        ("train.py", "model=large lr=1", "config model/large data/local"),
        ("train.py", "model=large data=null", "config model/large"),
        ("train.py", "--config-name other", "other base model/large"),
        ("train.py", "-cn=other.yaml", "other base model/large"),
        ("train.py", "--config-dir more --config-name extra", "../more/extra"),
        ("pkg/main.py", "--config-name other", "other base model/large"),
        ("plain.py", "--config-name other --config-path conf", "other base model/large"),
        ("plain.py", "--config-name other", ""),
        ("plain.py", "", ""),
        ("broken.py", "", ""),
    ],
)
def test_the_configs_that_hydra_reads_are_found(script: str, words: str, names: str, project: Path) -> None:
    found = find_hydra_configs(["python", script, *words.split()], project / script, project)
    assert [path.resolve() for path in found.files] == [
        (project / "conf" / f"{name}.yaml").resolve() for name in names.split()
    ]
    assert not found.missing


@pytest.mark.parametrize(
    ("script", "words", "missing"),
    [
        ("train.py", "--config-name none", "none"),
        ("train.py", "--config-name $NAME", ""),
        ("train.py", "--config-path /none/at/all --config-name none", ""),  # the directory itself is not certain
        ("plain.py", "--config-name none", ""),  # an option of its own
    ],
)
def test_only_a_name_that_hydra_cannot_find_is_missing(script: str, words: str, missing: str, project: Path) -> None:
    assert find_hydra_configs(["python", script, *words.split()], project / script, project).missing == missing


def test_without_the_script_only_an_absolute_config_path_says_where_to_look(project: Path) -> None:
    words = ["python", "-m", "verl.main", "--config-name", "none", "--config-path"]
    assert find_hydra_configs([*words, str(project / "conf")], None, project).missing == "none"
    assert not find_hydra_configs([*words, "conf"], None, project).missing


DECORATED = "import hydra\n\n@hydra.main(config_path='conf', config_name='base')\ndef main(cfg): ...\n"


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
    (tmp_path / "train.py").write_text(DECORATED)
    (tmp_path / "plain.py").write_text("import argparse\n")
    (tmp_path / "mixed.py").write_text(f"import argparse\n{DECORATED}")
    assert takes_settings(parse(command), ["algo.lr"], tmp_path) is takes


def test_hydras_own_options_are_not_settings(tmp_path: Path) -> None:
    command = parse("python3 -m verl.trainer.main_ppo")
    assert takes_settings(command, ["data.seed"], tmp_path)
    assert not takes_settings(command, ["data.seed", "config-name"], tmp_path)
