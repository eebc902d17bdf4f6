"""What is installed for a Python, by its directories alone."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from mcp_server.system.python_modules import Fault, Installation, find_installation, find_missing

BINARY = Path(sys.executable).resolve()


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A base Python 3.12 with packages in it: a binary that is never started, and its library."""
    site = tmp_path / "base" / "lib" / "python3.12" / "site-packages"
    (tmp_path / "base" / "bin").mkdir(parents=True)
    shutil.copy(BINARY, tmp_path / "base" / "bin" / "python3.12")
    (tmp_path / "base" / "bin" / "python3").symlink_to("python3.12")
    for name in ("torch", "hydra", "google/protobuf", "wandb"):
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").touch()
    for name in ("torch-2.4.1", "hydra_core-1.3.2", "PyYAML-6.0.2", "opencv_python-4.10.0"):
        (site / f"{name}.dist-info").mkdir()
    (site / "cv2.abi3.so").touch()
    return tmp_path / "base"


def installation_of(program: Path) -> Installation:
    found = find_installation(str(program), {}, Path("/none"))
    assert isinstance(found, Installation), found
    return found


def missing(installation: Installation, *names: str) -> list[str]:
    return [
        each.text.partition(" is not installed")[0] for each in find_missing(installation, names, [], Path("/none"))
    ]


def make_venv(prefix: Path, *, shared: bool) -> Path:
    venv = prefix.parent / f"venv-{shared}"
    (venv / "bin").mkdir(parents=True)
    (venv / "lib" / "python3.12" / "site-packages" / "mine").mkdir(parents=True)
    (venv / "lib" / "python3.12" / "site-packages" / "mine" / "__init__.py").touch()
    (venv / "bin" / "python").symlink_to(prefix / "bin" / "python3")
    (venv / "pyvenv.cfg").write_text(
        f"home = {prefix}/bin\ninclude-system-site-packages = {str(shared).lower()}\nversion = 3.12.4\n"
    )
    return venv / "bin" / "python"


def test_modules_and_distributions_are_found_under_either_name(prefix: Path) -> None:
    base = installation_of(prefix / "bin" / "python3")
    assert base.version == "3.12"
    assert (
        missing(base, "torch", "hydra-core", "hydra", "google.protobuf", "protobuf", "cv2", "opencv-python", "json")
        == []
    )
    assert missing(base, "scikit-learn", "torch", "yaml_of_nobody", "torchvision") == [
        "scikit-learn (module sklearn)",
        "yaml_of_nobody",
        "torchvision",
    ]
    assert base.version_of("torch") == "2.4.1"
    assert base.version_of("hydra") == base.version_of("hydra-core") == "1.3.2"
    assert base.version_of("wandb") is None


def test_a_virtual_environment_has_its_own_packages_and_the_shared_ones_only_if_it_says_so(prefix: Path) -> None:
    assert missing(installation_of(make_venv(prefix, shared=False)), "mine", "torch") == ["torch"]
    assert missing(installation_of(make_venv(prefix, shared=True)), "mine", "torch") == []


def test_editable_installs_are_followed_without_running_them(prefix: Path, tmp_path: Path) -> None:
    site, ran = prefix / "lib" / "python3.12" / "site-packages", tmp_path / "ran"
    for name in ("one", "two"):
        (tmp_path / "code" / name).mkdir(parents=True)
        (tmp_path / "code" / name / "__init__.py").touch()
    (tmp_path / "code" / "three").mkdir()
    (tmp_path / "code" / "three" / "four.py").touch()
    (site / "one.pth").write_text(f"{tmp_path / 'code'}\nimport os; open({str(ran)!r}, 'w')\n")
    (site / "__editable___two_finder.py").write_text(
        f"open({str(ran)!r}, 'w')\nMAPPING: dict[str, str] = {{'elsewhere': {str(tmp_path / 'code' / 'three')!r}}}\n"
    )
    (site / "__editable__.two.pth").write_text("import __editable___two_finder; __editable___two_finder.install()\n")
    base = installation_of(prefix / "bin" / "python3")
    assert missing(base, "one", "two", "elsewhere", "elsewhere.four", "elsewhere.five") == ["elsewhere.five"]
    assert not ran.exists()


def test_a_python_without_its_base_or_its_library_is_a_problem_and_not_a_guess(prefix: Path) -> None:
    python = make_venv(prefix, shared=False)
    (python.parent.parent / "pyvenv.cfg").write_text("home = /none/bin\nversion = 3.12.4\n")
    gone = find_installation(str(python), {}, Path("/none"))
    assert isinstance(gone, Fault)
    assert "its base python is gone: /none/bin" in gone.text
    shutil.rmtree(prefix / "lib")
    unknown = find_installation(str(prefix / "bin" / "python3.12"), {}, Path("/none"))
    assert isinstance(unknown, Fault)
    assert unknown.text.endswith("where its modules are is unknown.")


def test_a_shim_of_pyenv_is_followed_by_the_files_in_which_pyenv_looks(prefix: Path, tmp_path: Path) -> None:
    root, work = tmp_path / "pyenv", tmp_path / "work"
    (root / "shims").mkdir(parents=True)
    (root / "versions").mkdir()
    work.mkdir()
    shim = root / "shims" / "python3"
    shim.write_text("#!/bin/sh\nexit 1\n")
    (root / "versions" / "3.12.4").symlink_to(prefix)
    script = find_installation(str(shim), {}, work)
    assert isinstance(script, Fault)
    assert "is a script: which python it starts is unknown" in script.text
    expected = str(root / "versions" / "3.12.4" / "bin" / "python3")
    (root / "version").write_text("3.12.4\n")
    found = find_installation(str(shim), {}, work)
    assert isinstance(found, Installation)
    assert found.program == expected
    (root / "version").write_text("system\n")
    (work / ".python-version").write_text("3.12\n")
    found = find_installation(str(shim), {}, work)
    assert isinstance(found, Installation)
    assert found.program == expected
    assert isinstance(find_installation(str(shim), {"PYENV_VERSION": "3.9.1"}, work), Fault)
