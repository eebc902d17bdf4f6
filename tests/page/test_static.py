"""The files of the page: light, whole, and from nowhere else."""

import hashlib
import re
import tomllib
from pathlib import Path

import mcp_server

STATIC = Path(mcp_server.__file__).parent / "page" / "static"
VENDOR = STATIC / "vendor"
VENDORED = tomllib.loads((VENDOR / "VENDORED.toml").read_text())
SERVED = {path for path in STATIC.rglob("*") if path.is_file() and path.suffix != ".toml"}
OWN = {path for path in SERVED if path.parent == STATIC}
BRIDGE = STATIC.parent / "bridge.js"  # of the MCP App, which the page does not load


def test_the_page_weighs_no_more_than_150_kb() -> None:
    assert sum(path.stat().st_size for path in SERVED) <= 150_000


def test_files_of_other_projects_are_unchanged() -> None:
    assert {path.name for path in VENDOR.iterdir()} == {*VENDORED, "VENDORED.toml"}
    for name, facts in VENDORED.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == facts["sha256"], name
        assert {"package", "version", "file", "source", "licence"} <= facts.keys()


def test_nothing_is_asked_of_another_address() -> None:
    for path in (*OWN, BRIDGE):
        addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+", path.read_text()))
        assert addresses <= {"http://www.w3.org"}, path.name  # the name space of SVG


def test_no_text_becomes_markup_or_code() -> None:
    for path in (*OWN, BRIDGE):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|new Function", path.read_text()
        )


def test_what_a_module_imports_from_another_stands_there() -> None:
    """As a browser would only say once somebody opens that part of the page."""
    exports = {
        path.name: set(re.findall(r"^export (?:async )?(?:const|function|class) (\w+)", path.read_text(), re.MULTILINE))
        for path in OWN
    }
    again = re.search(r"^export \{ (.+) \}$", (STATIC / "base.js").read_text(), re.MULTILINE)
    assert again is not None
    exports["base.js"] |= set(again[1].split(", "))
    for path in OWN:
        for names, name in re.findall(r"^import \{ (.+?) \} from '\./(\w+\.js)'", path.read_text(), re.MULTILINE):
            wanted = {one.partition(" as ")[0] for one in names.split(", ")}
            assert wanted <= exports[name], (path.name, name, wanted - exports[name])
