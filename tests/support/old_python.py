"""An interpreter older than 3.11, to run the rooms below the line with."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_OLDEST = ("python3.9", "python3.10")


@cache
def find_old_python() -> str | None:
    """Return the path of the oldest Python from 3.9 on that is older than 3.11: on PATH, of pyenv, or beside this one.

    None if this machine has neither; a shim of pyenv without a selected version does not run, and does not count.
    """
    return next((path for name in _OLDEST for path in _candidates(name) if _runs(path)), None)


def _candidates(name: str) -> Iterator[str]:
    if (path := shutil.which(name)) is not None:
        yield path
    roots = (Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions", Path(sys.base_prefix).parent)
    yield from (str(path) for root in roots for path in sorted(root.glob(f"*/bin/{name}")))


def _runs(path: str) -> bool:
    try:
        done = subprocess.run([path, "-c", ""], capture_output=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
