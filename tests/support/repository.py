"""A small git repository of a training project, for tests."""

import hashlib
import subprocess
from pathlib import Path

FILES = {
    "prepare.py": "import numpy\n\nSECONDS = 2\n",
    "train.py": "import prepare\n\nlr = 0.1\nmomentum = 0.9\nsteps = 10\nprint(lr)\n",
    "eval/score.py": "def score(x):\n    return x\n",
    ".gitignore": "data/\n*.log\n.venv/\n",
}


def git(directory: Path, *words: str) -> str:
    """Return the output of git, as a person of this name."""
    command = ["git", "-C", str(directory), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def make_repository(path: Path, files: dict[str, str] = FILES) -> Path:
    """Return ``path`` as a repository with one commit on the branch `main`."""
    path.mkdir(parents=True)
    git(path, "init", "-q", "-b", "main")
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    git(path, "add", "-A")
    git(path, "commit", "-qm", "first")
    return path


def picture(path: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a person: of the work tree, and of git's but for objects and trials."""
    ours = ("objects", "refs/runward", "refs/heads/runward", "logs/refs/heads/runward", "worktrees")
    names = (file for file in path.rglob("*") if file.is_file() or file.is_symlink())
    below = {str(file.relative_to(path)): file for file in names}
    return {
        name: hashlib.sha256(file.read_bytes()).hexdigest() + f" {file.stat().st_mtime_ns}"
        for name, file in sorted(below.items())
        if not any(name.startswith(f".git/{each}") for each in ours)
    }
