"""Which files of a directory are a run's code: what `sync="rsync"` sends, and what is kept of code without a commit.

What is not code stays behind: repositories, environments, caches, checkpoints, data, outputs, and files that hold keys.
`.runwardignore` in the directory names more, one pattern a line.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from mcp_server.record.code.code_state import SOURCES
from mcp_server.system.files import read_regular_file

IGNORE_FILE = ".runwardignore"
_MOST_IGNORE_BYTES, _DEEPEST, _MOST_SOURCES, _LONGEST_S = 65_536, 20, 2_000, 3.0
# Never code, at any depth.
_DIRECTORIES = frozenset(
    """.git .hg .svn .jj venv .venv .tox .nox .direnv .conda site-packages node_modules __pycache__ .mypy_cache
    .pytest_cache .ruff_cache .hypothesis .ipynb_checkpoints .cache .idea .vscode .dvc .aws .ssh .gnupg .eggs htmlcov
    wandb mlruns lightning_logs tb_logs tensorboard multirun outputs checkpoints ckpts ckpt""".split()  # noqa: SIM905
)
# Packages have these names too: they stay here where they hold no Python.
_DATA = frozenset("data dataset datasets output results result logs log runs models weights env build dist tmp".split())  # noqa: SIM905
_FILES = (
    *("*.pyc", "*.pt", "*.pth", "*.ckpt", "*.safetensors", "*.onnx", "*.h5", "*.hdf5", "*.npz", "*.parquet", "*.arrow"),
    *("*.tfrecord", "*.lmdb", "*.mp4", "*.avi", "*.bag", "*.mcap", "*.tar", "*.tar.*", "*.tgz", "*.zip", "*.zst"),
    *("core",),
    *("*tfevents*", "*.log", "nohup.out", "core.[0-9]*", ".DS_Store", "*.swp"),
)
# Files and directories that hold keys, in any case.
_KEYS = (
    *(".env", ".env.*", ".envrc", "*.env", ".netrc", ".pgpass", ".my.cnf", ".npmrc", ".pypirc", ".git-credentials"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.kdbx", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*"),
    *("secrets*", ".secrets*", "credentials*", ".credentials*", "client_secret*", "service_account*", "kaggle.json"),
    *(".docker", ".kube", ".azure", ".gcloud", ".vault-token", ".htpasswd"),
)


def read_ignore_file(root: Path) -> list[str]:
    """Return the patterns of the directory's own ignore file."""
    try:
        text = read_regular_file(root / IGNORE_FILE, max_bytes=_MOST_IGNORE_BYTES).decode(errors="replace")
    except OSError:
        return []
    lines = (line.strip().rstrip("/") for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def stays_behind(root: Path, path: str, ignored: Sequence[str], *, is_directory: bool) -> bool:
    """Return whether what has this path below ``root`` is no code."""
    name = path.rpartition("/")[2]
    if any(fnmatch(name, pattern) or fnmatch(path, pattern) for pattern in ignored):
        return True
    is_key = any(fnmatch(name.lower(), pattern) for pattern in _KEYS)
    if not is_directory:
        is_data = any(fnmatch(name, pattern) for pattern in _FILES)
        return (is_key or is_data) and not name.endswith((".py", ".example"))
    if name in _DIRECTORIES or (root / path / "pyvenv.cfg").exists() or (root / path / "conda-meta").exists():
        return True
    return (is_key or name in _DATA) and not any((root / path).glob("*.py"))


def list_sources(root: Path) -> tuple[list[Path], bool]:
    """Return the source files below ``root`` that a run there could import, and whether there are more than looked at.

    Takes 3 s at most. A link is followed to a file alone; what cannot be read is left out.
    """
    until_s = time.monotonic() + _LONGEST_S
    found: list[Path] = []
    for path in _walk(root, "", read_ignore_file(root)):
        if len(found) >= _MOST_SOURCES or time.monotonic() > until_s:
            return found, True
        if path.endswith(SOURCES):
            found.append(root / path)
    return found, False


def _walk(root: Path, below: str, ignored: Sequence[str]) -> Iterator[str]:
    try:
        with os.scandir(root / below) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in listed:
        path, is_directory = f"{below}{entry.name}", entry.is_dir(follow_symlinks=False)
        if stays_behind(root, path, ignored, is_directory=is_directory):
            continue
        if is_directory and below.count("/") < _DEEPEST:
            yield from _walk(root, f"{path}/", ignored)
        elif not is_directory:
            yield path
