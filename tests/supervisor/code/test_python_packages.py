"""Which Python a command runs, and what is installed for it, is read from names; what they do not show is unknown."""

import os
from pathlib import Path

import pytest

from mcp_server.command.python import find_python
from mcp_server.system.python_modules import read_packages


def make_python(prefix: Path, *names: str) -> Path:
    (prefix / "bin").mkdir(parents=True)
    for name in ("python", "torchrun", *names):
        program = prefix / "bin" / name
        program.write_text("")
        program.chmod(0o755)
    return prefix / "bin" / "python"


@pytest.mark.parametrize(
    ("command", "known"),
    [
        ("python train.py", "first"),
        ("cd x && OMP_NUM_THREADS=4 nohup python -u train.py", "first"),
        ("torchrun --nproc_per_node 8 train.py", "first"),
        ("timeout 60 python train.py", "first"),
        ("{root}/second/bin/python train.py", "second"),
        ("./second/bin/python train.py", "second"),
        ("cd second && bin/python train.py", "second"),
        ("cd $DIR && second/bin/python train.py", ""),
        ("cd $DIR && python train.py", "first"),
        (["{root}/second/bin/python", "train.py"], "second"),
        ("source second/bin/activate && python train.py", "second"),
        ("export A=1; mkdir -p logs; {root}/second/bin/torchrun train.py", "second"),
        ("bash run.sh", ""),
        ("conda activate rl && python train.py", ""),
        ("$PYTHON train.py", ""),
        ("docker run image python train.py", ""),
        ("echo python", ""),
        ("none/bin/python train.py", ""),
    ],
)
def test_the_python_of_a_command(tmp_path: Path, command: str | list[str], known: str) -> None:
    first, _ = make_python(tmp_path / "first"), make_python(tmp_path / "second")
    words = [one.format(root=tmp_path) for one in ([command] if isinstance(command, str) else command)]
    found = find_python(words[0] if isinstance(command, str) else words, str(tmp_path), {"PATH": str(first.parent)})
    if "none/" in words[0]:
        assert read_packages(found).path == ""
    else:
        assert os.path.normpath(found) == (str(tmp_path / known / "bin" / "python") if known else ".")


def test_a_shim_shows_no_python(tmp_path: Path) -> None:
    python = make_python(tmp_path / "shims")
    python.write_text("#!/usr/bin/env bash\nexec pyenv exec python\n")
    assert find_python("python train.py", str(tmp_path), {"PATH": str(python.parent)}) == ""


def test_packages_of_a_virtual_environment(tmp_path: Path) -> None:
    python = make_python(tmp_path / "venv")
    (tmp_path / "venv" / "pyvenv.cfg").write_text("home = /usr/bin\nversion_info = 3.11.7.final.0\n")
    site = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    for name in ("torch-2.5.1+cu121.dist-info", "rsl_rl_lib-2.3.0.dist-info", "old-1.0-py3.11.egg-info", "torch"):
        (site / name).mkdir(parents=True)
    added = tmp_path / "added"
    (added / "mine-0.1.dist-info").mkdir(parents=True)
    (added / "torch-1.0.dist-info").mkdir()
    (site / "mine.pth").write_text(f"import sys\n# no\n{added}\n")
    found = read_packages(str(python))
    assert found.version == "3.11.7.final.0"
    assert found.packages == {"torch": "2.5.1+cu121", "rsl-rl-lib": "2.3.0", "old": "1.0", "mine": "0.1"}


def test_packages_of_a_conda_environment(tmp_path: Path) -> None:
    python = make_python(tmp_path / "env")
    (tmp_path / "env" / "conda-meta").mkdir()
    (tmp_path / "env" / "conda-meta" / "python-3.10.14-h955ad1f_1.json").write_text("{}")
    (tmp_path / "env" / "lib" / "python3.10" / "site-packages" / "numpy-1.26.4.dist-info").mkdir(parents=True)
    found = read_packages(str(python))
    assert (found.version, found.packages) == ("3.10.14", {"numpy": "1.26.4"})


def test_a_python_that_is_gone_has_nothing(tmp_path: Path) -> None:
    assert read_packages(str(tmp_path / "none")) == read_packages("")
