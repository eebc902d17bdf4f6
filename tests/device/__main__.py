"""Run the checks on this machine's GPU: `python3 -m tests.device [--fake] [--out DIR] [--only NAME,…]`.

Needs the standard library alone: it makes an environment with the packages of .device/ in front of those of this
Python, unpacks tmux where none is, and starts the checks there. Nothing is installed, and no network is used.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

from tests.device.wheels import FOLDER, ROOT

LONGEST_S = 470  # of the 8 minutes that a machine is at hand
_GRACE_S = 5


def fits(wheel: str, version: tuple[int, int]) -> bool:
    """Return whether a wheel of this file name runs on CPython ``version``."""
    python, abi, _ = wheel.removesuffix(".whl").rsplit("-", 3)[-3:]
    mine = f"cp{version[0]}{version[1]}"
    if abi == "abi3":
        return int(python.removeprefix("cp3")) <= version[1]
    return "py3" in python.split(".") or mine in python.split(".")


def make_environment(folder: Path) -> Path:
    """Make an environment that sees the brought wheels first, then all that this Python has; return its Python."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    site = next(folder.glob("lib/python3*/site-packages"))
    for wheel in sorted(FOLDER.glob("*.whl")):
        if fits(wheel.name, sys.version_info[:2]):
            zipfile.ZipFile(wheel).extractall(site)
    others = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    lines = [str(ROOT), *(f"import site; site.addsitedir({path!r})" for path in others)]
    (site / "device.pth").write_text("\n".join(lines) + "\n")
    return folder / "bin" / "python"


def unpack_tmux(folder: Path) -> Path | None:
    """Return a directory with a tmux made of the Debian packages, None without them."""
    packages = sorted(FOLDER.glob("*.deb"))
    if not packages or shutil.which("dpkg-deb") is None:
        return None
    for package in packages:
        subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True)
    libraries = ":".join(sorted({str(path.parent) for path in folder.glob("**/*.so.*")}))
    (folder / "path").mkdir()
    start = folder / "path" / "tmux"
    more = 'LD_LIBRARY_PATH="' + libraries + '${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"'
    start.write_text(f'#!/bin/sh\n{more} exec {folder}/usr/bin/tmux "$@"\n')
    start.chmod(0o755)
    return start.parent


def main() -> int:
    """Run the checks and return the exit status: 0 when none failed."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.device")
    parser.add_argument("--fake", action="store_true", help="try the script with a fake driver, where no card is")
    parser.add_argument("--out", type=Path, default=FOLDER / "out", help="where device.json and report.md are written")
    parser.add_argument("--only", default="", help="names of checks, with commas")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in ("device.json", "report.md", "texts.txt"):
        (options.out / name).unlink(missing_ok=True)
    environ = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="runward-device-") as made:
        work = Path(made)
        if shutil.which("tmux") is None or (options.fake and FOLDER.is_dir()):
            directory = unpack_tmux(work / "debian")
            if directory is None and shutil.which("tmux") is None:
                print("No tmux is here, and none is in .device/: run `make device-wheels` before.", file=sys.stderr)
                return 2
            environ["PATH"] = f"{directory}:{environ['PATH']}" if directory else environ["PATH"]
        if options.fake:
            from tests.support.fake_nvml import Machine, library  # noqa: PLC0415 - only here is a compiler needed

            if (compiled := library()) is None:
                print("No C compiler is here to make the fake driver with.", file=sys.stderr)
                return 2
            fake = Machine(work, compiled)
            fake.report(gpus=1)
            environ |= fake.environ
        python = make_environment(work / "python")
        words = [str(python), "-m", "tests.device.session", str(work), str(options.out.resolve()), options.only]
        # A terminal's interrupt reaches both; this process then waits for the other to clean up.
        session = subprocess.Popen(words, cwd=ROOT, env=environ)
        try:
            return session.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            session.send_signal(signal.SIGINT)
            try:
                session.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                session.kill()
            print(f"Stopped after {LONGEST_S} s; the report has what was checked until then.", file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main())
