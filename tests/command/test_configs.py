"""The files that a command names are found by the rules of the shell and of Hydra; nothing is guessed."""

from pathlib import Path

import pytest

from mcp_server.command.configs import find_config_files, find_script_configs

FILES = (
    *("train.py", "conf/small.yaml", "conf/big.yaml", "ds.json", "run.sh", "sub/local.yaml", "sub/train.py"),
    *("pkg/main.py", "a.toml", "data.csv"),
)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    for name in FILES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("python train.py --config conf/small.yaml", "train.py conf/small.yaml"),
        ("python train.py --config=conf/small.yaml +ds=ds.json", "train.py conf/small.yaml ds.json"),
        (["python", "train.py", "--config", "conf/small.yaml"], "train.py conf/small.yaml"),
        ("deepspeed train.py --deepspeed ds.json data.csv none.yaml", "train.py ds.json"),
        ("bash run.sh small 2>&1 | tee log.txt", "run.sh"),
        ("cd sub && python train.py local.yaml", "sub/train.py sub/local.yaml"),
        ("(cd sub; python train.py local.yaml)", "sub/train.py sub/local.yaml"),
        ("cd $(mktemp -d) && python train.py a.toml", ""),
        ("export C=conf && python train.py $C/small.yaml ${C}/big.yaml", "train.py conf/small.yaml conf/big.yaml"),
        ("python train.py $KNOWN/small.yaml $UNKNOWN/big.yaml", "train.py conf/small.yaml"),
        ("python train.py conf/*.yaml", "train.py"),
        ("python -m pkg.main", "pkg/main.py"),
        ("python train.py 'conf/small.yaml", ""),
    ],
)
def test_the_files_of_a_command(code: Path, command: str | list[str], names: str) -> None:
    found = find_config_files(command, str(code), {"KNOWN": "conf"})
    assert [str(path.relative_to(code)) for path in found] == names.split()


def test_arguments_of_the_attempt_count_for_the_last_program(code: Path) -> None:
    found = find_config_files("cd sub && python train.py", str(code), {}, ["--config", "local.yaml"])
    assert [path.name for path in found] == ["train.py", "local.yaml"]


HYDRA = '@hydra.main(version_base=None, config_path="../configs", config_name="train")\ndef main(cfg): ...\n'
TRAIN = """defaults:
  - _self_
  - algo: ppo
  - override hydra/job_logging: none
  - /env@task: walk  # default

lr: 1
"""


@pytest.fixture
def hydra(tmp_path: Path) -> Path:
    texts = {
        "src/train.py": HYDRA,
        "configs/train.yaml": TRAIN,
        "configs/other.yaml": "lr: 2\n",
        "configs/algo/ppo.yaml": "defaults:\n- base\n",
        "configs/algo/base.yaml": "",
        "configs/algo/sac.yaml": "",
        "configs/env/walk.yaml": "",
        "elsewhere/train.yaml": "",
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ("", "configs/train.yaml configs/algo/ppo.yaml configs/env/walk.yaml configs/algo/base.yaml"),
        ("lr=2 algo=sac", "configs/train.yaml configs/algo/sac.yaml configs/env/walk.yaml"),
        ("--config-name other", "configs/other.yaml"),
        ("--config-name=other.yaml", "configs/other.yaml"),
        ("-cp ../elsewhere", "elsewhere/train.yaml"),
        ("--config-path={root}/elsewhere", "elsewhere/train.yaml"),
        ("--config-dir elsewhere", "elsewhere/train.yaml configs/algo/ppo.yaml"),
        ("--config-name missing", ""),
    ],
)
def test_the_configs_that_hydra_composes(hydra: Path, options: str, names: str) -> None:
    found = find_config_files(f"python src/train.py {options.format(root=hydra)}", str(hydra), {})
    relative = [str(path.resolve().relative_to(hydra)) for path in found]
    assert relative[0] == "src/train.py"
    if "--config-dir" in options:  # it comes first, the others remain
        assert relative[1:] == ["elsewhere/train.yaml"]
    else:
        assert sorted(relative[1:]) == sorted(names.split())


def test_configs_that_name_each_other_end(hydra: Path) -> None:
    (hydra / "configs/algo/base.yaml").write_text("defaults:\n- ppo\n")
    assert len(find_config_files("python src/train.py", str(hydra), {})) == 5


SCRIPT = """#! /bin/bash
export EMBODIED_PATH="$( cd "$(dirname "${BASH_SOURCE[0]}" )" && pwd )"
export SRC_FILE="${EMBODIED_PATH}/train.py"
LOG="$(date +%F).yaml"
if [ -z "$1" ]; then
    CONFIG_NAME="ppo"
else
    CONFIG_NAME=$1
fi
CMD="python ${SRC_FILE} --config-path ${EMBODIED_PATH}/config/ --config-name ${CONFIG_NAME} runner.log=${LOG}"
mkdir -p logs
${CMD} 2>&1 | tee logs/x.log
"""


@pytest.mark.parametrize(
    ("command", "config"),
    [
        ("bash examples/run.sh", "ppo"),
        ("bash -x examples/run.sh grpo", "grpo"),
        ("cd examples && ./run.sh grpo", "grpo"),
        ("bash examples/run.sh $UNKNOWN_NAME", None),
    ],
)
def test_a_script_is_followed_with_its_arguments(tmp_path: Path, command: str, config: str | None) -> None:
    for name, text in {"run.sh": SCRIPT, "train.py": "", "config/ppo.yaml": "", "config/grpo.yaml": ""}.items():
        path = tmp_path / "examples" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = find_config_files(command, str(tmp_path), {})
    assert [path.name for path in found] == ["run.sh", "train.py", *([f"{config}.yaml"] if config else [])]


def test_a_value_that_differs_between_branches_names_no_file(code: Path) -> None:
    script = "if nvidia-smi; then C=conf/big.yaml; else C=conf/small.yaml; fi\npython train.py $C ${D:-a.toml}\n"
    (code / "run.sh").write_text(script)
    assert [path.name for path in find_config_files("bash run.sh", str(code), {})] == ["run.sh", "train.py", "a.toml"]


def test_scripts_that_start_each_other_end(code: Path) -> None:
    (code / "run.sh").write_text("bash run.sh conf/small.yaml\npython train.py $1\n")
    assert len(find_config_files("bash run.sh", str(code), {})) == 3


def test_a_name_that_cannot_be_a_file_is_none(code: Path) -> None:
    assert find_config_files(["python", "a\0b.yaml", "x" * 5000 + ".yaml"], str(code), {}) == []


CHOOSES = """#! /bin/bash
export EMBODIED_PATH="$( cd "$(dirname "${BASH_SOURCE[0]}" )" && pwd )"
export REPO_PATH=$(dirname $(dirname "$EMBODIED_PATH"))
export SRC_FILE="${EMBODIED_PATH}/train_embodied_agent.py"
if [ -z "$1" ]; then
    CONFIG_NAME="maniskill_ppo"
else
    CONFIG_NAME=$1
fi
CMD="python ${SRC_FILE} --config-path ${EMBODIED_PATH}/config/ --config-name ${CONFIG_NAME} runner.log=${LOG_DIR}"
${CMD} 2>&1 | tee run.log
"""


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("bash run.sh libero_grpo", ["libero_grpo"]),
        ("bash run.sh", ["maniskill_ppo", "cube"]),
        ("./run.sh maniskill_ppo", ["maniskill_ppo", "cube"]),
        ("cd sub && bash ../run.sh libero_grpo", ["libero_grpo"]),
        ("bash run.sh other", []),
        ("bash run.sh $CONFIG", []),
        ("bash short.sh libero_grpo", ["libero_grpo"]),
        ("bash up.sh libero_grpo", []),
        ("bash computed.sh", []),
        ("bash missing.sh libero_grpo", []),
        ("python train.py", []),
    ],
)
def test_the_config_is_that_of_the_argument(tmp_path: Path, command: str, names: list[str]) -> None:
    for name, text in {
        "run.sh": CHOOSES,
        "short.sh": 'D=$(dirname "$0")\npython t.py --config-path "$D/config" --config-name "$1"\n',
        "up.sh": 'D=$(dirname $(dirname "$0"))\npython t.py --config-path "$D/config" --config-name "$1"\n',
        "computed.sh": 'N=$(ls config | head -1)\npython t.py --config-path /nowhere --config-name "$N"\n',
        "config/maniskill_ppo.yaml": "defaults:\n  - env: cube\n",
        "config/env/cube.yaml": "x: 1\n",
        "config/libero_grpo.yaml": "x: 1\n",
        "sub/empty": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert [path.stem for path in find_script_configs(command, tmp_path)] == names
