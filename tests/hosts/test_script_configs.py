"""The Hydra configs that a shell script chooses by its arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.command.shell import parse
from mcp_server.hosts.script_configs import find_script_configs

RUN = """#! /bin/bash
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
        "run.sh": RUN,
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
    assert [path.stem for path in find_script_configs(parse(command), tmp_path)] == names
