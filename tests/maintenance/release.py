"""`python tests/maintenance/release.py STEP`: a release, step by step. CONTRIBUTING.md has the recipe.

- ``prepare VERSION``: write the version, and date its entries in the changelog; commit that by hand.
- ``dist``: build wheel, sdist and zipapp in ``dist/``; install the first two, and serve from each.
- ``tag``: tag the commit; refused where version, changelog or working tree are not those of a release.
- ``check TAG``, ``notes TAG``: what the release workflow asks for a tag.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
VERSION_FILE, CHANGELOG = ROOT / "mcp_server" / "__init__.py", ROOT / "CHANGELOG.md"
_VERSION = re.compile(r'(?<=^__version__ = ")[^"]+(?="$)', re.MULTILINE)
_EMPTY = "## Unreleased\n\n### Added\n\n### Changed\n\n### Fixed\n"
# Runs in the fresh environment: a client of the installed server, and the zipapp that this version packs.
_TRY = """
import os, subprocess, sys
from pathlib import Path
import anyio
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_server.backends.supervisor_copy import pack_zipapp

async def main():
    env = {**os.environ, "RUNWARD_HOME": sys.argv[1]}
    server = StdioServerParameters(command=str(Path(sys.executable).with_name("runward")), args=["serve"], env=env)
    async with Client(stdio_client(server)) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        rules = await client.read_resource("guide://rules")
    assert "launch_run" in tools and "kill_run" in str(rules), tools
    Path(sys.argv[2]).write_bytes(pack_zipapp())
    relay = [sys.executable, "-I", "-S", sys.argv[2], "--relay", sys.argv[1] + "/far"]
    hello = subprocess.run(relay, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True).stdout
    assert b'"hello"' in hello and b'"error"' not in hello, hello
    print(f"serves {len(tools)} tools; its zipapp answers")

anyio.run(main)
"""


def main(step: str = "", *words: str) -> int:
    """Take one step; return 1 with the reason where it is refused."""
    steps: dict[str, Callable[..., None]] = {
        "prepare": prepare,
        "dist": build_dist,
        "tag": tag,
        "check": check_tag,
        "notes": print_notes,
    }
    if step not in steps:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        steps[step](*words)
    except RefusedError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


class RefusedError(Exception):
    """Why this is no release. Nothing was changed."""


def read_version() -> str:
    """Return the version of the package, which stands in one place."""
    match = _VERSION.search(VERSION_FILE.read_text(encoding="utf-8"))
    assert match is not None
    return match[0]


def read_notes(changelog: str, version: str) -> str:
    """Return the dated entries of a version.

    Raises:
        RefusedError: the changelog has no dated heading for it.
    """
    heading = rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d\n"
    match = re.search(rf"{heading}(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if match is None:
        raise RefusedError(f"CHANGELOG.md has no heading `## {version} - DATE`.")
    return match[1].strip() + "\n"


def date_entries(changelog: str, version: str, date: str) -> str:
    """Return the changelog with what was unreleased as the entries of ``version``.

    Raises:
        RefusedError: nothing is unreleased.
    """
    match = re.search(r"^## Unreleased\n(.*?)(?=^## )", changelog, re.MULTILINE | re.DOTALL)
    entries = re.sub(r"^### \w+\n\s*(?=^### |\Z)", "", match[1] if match else "", flags=re.MULTILINE)
    if match is None or not re.search(r"^- ", entries, re.MULTILINE):
        raise RefusedError("CHANGELOG.md has no entry below *Unreleased*.")
    dated = f"{_EMPTY}\n## {version} - {date}\n\n{entries.strip()}\n\n"
    return changelog[: match.start()] + dated + changelog[match.end() :]


def prepare(version: str) -> None:
    """Write version and changelog.

    Raises:
        RefusedError: it is not a version, or nothing is unreleased.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise RefusedError(f"{version!r} is not a version such as 0.2.0.")
    changelog = date_entries(CHANGELOG.read_text(encoding="utf-8"), version, f"{datetime.now(UTC):%Y-%m-%d}")
    source = _VERSION.sub(version, VERSION_FILE.read_text(encoding="utf-8"))
    CHANGELOG.write_text(changelog, encoding="utf-8")
    VERSION_FILE.write_text(source, encoding="utf-8")
    print(f"Commit this as `Release {version}`, land it, and run `make release`.")


def check_tag(name: str) -> None:
    """Compare a tag with the package and the changelog.

    Raises:
        RefusedError: they differ.
    """
    if name != f"v{read_version()}":
        raise RefusedError(f"the tag {name} is not that of version {read_version()}.")
    read_notes(CHANGELOG.read_text(encoding="utf-8"), read_version())


def print_notes(name: str) -> None:
    """Print the entries of a tag's version."""
    print(read_notes(CHANGELOG.read_text(encoding="utf-8"), name.removeprefix("v")), end="")


def tag() -> None:
    """Tag the commit with its version.

    Raises:
        RefusedError: the working tree is changed, the changelog has no such version, or the tag exists.
    """
    name = f"v{read_version()}"
    check_tag(name)
    if _git("status", "--porcelain"):
        raise RefusedError("the working tree has changes that are not committed.")
    if _git("tag", "--list", name):
        raise RefusedError(f"{name} exists. `release.py prepare VERSION` begins the next version.")
    notes = read_notes(CHANGELOG.read_text(encoding="utf-8"), read_version())
    _git("tag", "--annotate", name, "--cleanup=verbatim", "--message", f"{name}\n\n{notes}")
    print(f"Tagged {name}. `git push origin {name}` starts the release workflow.")


def build_dist() -> None:
    """Build into ``dist/``, and try what was built."""
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        _make_environment(Path(scratch) / "build", "hatchling>=1.27")
        python = Path(scratch) / "build" / "bin" / "python"
        subprocess.run([python, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel"], cwd=ROOT, check=True)
        zipapps = set()
        for number, built in enumerate(sorted(path for path in DIST.iterdir() if path.suffix in (".whl", ".gz"))):
            place = Path(scratch) / f"try{number}"
            _make_environment(place, str(built))
            zipapp = place / f"runward-{read_version()}.pyz"
            said = subprocess.run(
                [place / "bin" / "python", "-I", "-c", _TRY, place / "state", zipapp],
                cwd=scratch,
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            ).stdout
            print(f"{built.name}: {said.strip()}")
            zipapps.add(zipapp.read_bytes())
            shutil.copy(zipapp, DIST)
        if len(zipapps) != 1:
            raise RefusedError("wheel and sdist pack different zipapps.")


def _make_environment(place: Path, *requirements: str) -> None:
    venv.create(place, with_pip=True)
    subprocess.run([place / "bin" / "python", "-m", "pip", "install", "-q", *requirements], check=True)


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
