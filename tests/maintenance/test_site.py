"""The documentation site: built from the guides and the tools' schemas, and it loads nothing from another host."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_server.resources.documents import read_documents
from mcp_server.tools.support.listing import NAMES

ROOT = Path(__file__).parents[2]
pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "--strict", "-d", str(path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return path


def test_every_guide_and_every_tool_has_a_page(site: Path) -> None:
    pages = {path.relative_to(site).with_suffix("").as_posix() for path in site.rglob("*.html")} - {"404"}
    assert pages == {*read_documents("prompts"), *(f"tools/{name}" for name in NAMES)}


def test_every_page_is_in_the_navigation(site: Path) -> None:
    page = (site / "tools.html").read_text()
    targets = {link.partition("#")[0] for link in re.findall(r'href="([^":]+\.html)', page)} | {"tools.html"}
    assert targets >= {f"{name}.html" for name in read_documents("prompts")} | {f"tools/{name}.html" for name in NAMES}


def test_the_page_of_a_tool_has_its_arguments(site: Path) -> None:
    page = (site / "tools" / "kill_run.html").read_text()
    assert "confirm_token" in page
    assert "<td><code>required</code></td>" in page


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    loads = re.compile(
        r"<(?:script|img|iframe)\b[^>]*\bsrc=\"(?:https?:)?//|<link\b[^>]*\bhref=\"(?:https?:)?//|@import|url\((?:https?:)?//"
    )
    found = [
        path.name for path in site.rglob("*") if path.suffix in (".html", ".css") and loads.search(path.read_text())
    ]
    assert found == []
