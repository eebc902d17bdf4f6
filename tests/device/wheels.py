"""Collect into .device/ the wheels and Debian packages that a machine with a card lacks: `make device-wheels`.

They are for CPython 3.12 on x86-64. The machine itself has PyTorch, JAX, numpy, tensorboard and nvidia-ml-py.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".device"
MOST_MIB = 60
_PRESENT = frozenset({"numpy", "tensorboard", "nvidia-ml-py"})
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64")


def list_requirements(project: dict[str, list[str]]) -> list[str]:
    """Return runward's requirements without those that the machine has."""
    return [each for each in project["dependencies"] if re.split(r"[^\w-]", each)[0].lower() not in _PRESENT]


def _download_wheels(folder: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    options = ["--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp"]
    options += [word for platform in _PLATFORMS for word in ("--platform", platform)]
    words = [sys.executable, "-m", "pip", "download", "-q", *options, "-d", str(folder), *list_requirements(project)]
    subprocess.run(words, check=True)


def _download_debian_packages(folder: Path) -> None:
    depends = subprocess.run(["apt-cache", "depends", "tmux"], capture_output=True, text=True, check=True).stdout
    libraries = [name for name in re.findall(r"Depends: ([\w.+-]+)", depends) if name != "libc6"]
    subprocess.run(["apt-get", "download", "-q", "tmux", *libraries], cwd=folder, check=True)


def main() -> int:
    """Replace the folder once all is there, and return the exit status."""
    with tempfile.TemporaryDirectory(dir=ROOT, prefix=".device-") as made:
        _download_wheels(Path(made))
        if shutil.which("apt-get") is None:
            print("No apt-get is here: tmux is not brought along, and the machine has to have it.", file=sys.stderr)
        else:
            _download_debian_packages(Path(made))
        size_mib = sum(path.stat().st_size for path in Path(made).iterdir()) / 2**20
        if size_mib > MOST_MIB:
            print(f"{size_mib:.1f} MiB, at most {MOST_MIB} can travel. {FOLDER.name} is as before.", file=sys.stderr)
            return 1
        shutil.rmtree(FOLDER, ignore_errors=True)
        shutil.copytree(made, FOLDER)
    print(f"{len(list(FOLDER.iterdir()))} packages, {size_mib:.1f} MiB, in {FOLDER.name}/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
