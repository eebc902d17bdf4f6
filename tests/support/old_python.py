"""The oldest Python on PATH that the rooms below the line have to run on."""

import shutil
import subprocess
from functools import cache

OLDEST, NEWEST = (3, 9), (3, 10)  # 3.11 is what the other tests run on


@cache
def find_old_python() -> str | None:
    """Return the path of the oldest of python3.9, python3.10 on PATH that runs; a shim without a version does not."""
    for minor in range(OLDEST[1], NEWEST[1] + 1):
        path = shutil.which(f"python3.{minor}")
        if path and _version(path) == f"3.{minor}":
            return path
    return None


def _version(path: str) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([path, "-I", "-S", "-c", code], capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
