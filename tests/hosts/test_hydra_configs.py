"""Which configs Hydra composes for a command, by files; no script is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.hosts.hydra_configs import find_hydra_configs

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
