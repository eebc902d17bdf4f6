"""The command of a trial: what trains, then what measures, out of the former's reach."""

import importlib.util
import py_compile
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from mcp_server.sweeps.plan.open_cells import MEASURED, plan_open
from tests.support.repository import git, make_repository

PYTHON = shlex.quote(sys.executable)


def run_measured(project: Path, train: str) -> str:
    """The output of a trial's command: it trains, and is measured."""
    search = {"strategy": "open", "budget": 1, "measure": f"{PYTHON} evaluate.py"}
    values: dict[str, Any] = {"search": search, "metric": "loss", "goal": "min"}
    plan = plan_open(values, {"command": train, "cwd": str(project)}, "ar")
    command = ["bash", "-c", plan.common["command"].replace("{params}", "")]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False).stdout


def test_a_compiled_module_that_the_training_left_does_not_measure(tmp_path: Path) -> None:
    files = {"prepare.py": "LOSS = 0.5\n", "evaluate.py": "import prepare\n\nprint(f'loss: {prepare.LOSS}')\n"}
    project = make_repository(tmp_path / "project", files)
    source, cheat = project / "prepare.py", tmp_path / "cheat.py"
    cheat.write_text("LOSS = 0.0\n")
    compiled = py_compile.compile(str(cheat), str(tmp_path / "cheat.pyc"))
    data, status = bytearray(Path(str(compiled)).read_bytes()), source.stat()
    data[8:16] = int(status.st_mtime).to_bytes(4, "little") + status.st_size.to_bytes(4, "little")
    cached = Path(importlib.util.cache_from_source(str(source)))
    (tmp_path / "tampered.pyc").write_bytes(data)
    train = f"mkdir -p {cached.parent} && cp {tmp_path}/tampered.pyc {cached}"
    assert run_measured(project, train).splitlines() == [MEASURED, "loss: 0.5"]
    plain = subprocess.run([sys.executable, "evaluate.py"], cwd=project, capture_output=True, text=True, check=True)
    assert plain.stdout == "loss: 0.0\n", "without it the module is used"


def test_a_training_that_failed_is_not_measured(tmp_path: Path) -> None:
    project = make_repository(tmp_path / "project", {"evaluate.py": "print('loss: 0')\n"})
    assert run_measured(project, "echo 'loss: 0.1'; false") == "loss: 0.1\n"


def test_the_refs_of_a_second_sweep_of_a_name_are_apart_from_those_of_the_first(tmp_path: Path) -> None:
    project = make_repository(tmp_path / "project")
    values: dict[str, Any] = {"search": {"strategy": "open", "budget": 1}, "metric": "loss", "goal": "min"}
    common = {"command": "true", "cwd": str(project)}
    assert plan_open(values, common, "my loop", "my-loop-ab3d").branch == "my-loop"
    for ref in ("refs/runward/my-loop/t1", "refs/heads/runward/my-loop"):
        git(project, "update-ref", ref, "HEAD")
        assert plan_open(values, common, "my loop", "my-loop-ab3d").branch == "my-loop-ab3d"
        git(project, "update-ref", "-d", ref)
