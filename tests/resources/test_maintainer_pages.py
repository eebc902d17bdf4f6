"""The pages for maintainers name modules, tests and files that exist, and say what the code says."""

import re
from pathlib import Path

import pytest

import mcp_server
from mcp_server.record.run_directory import LAYOUT
from tests.support.guide_examples import quoted

PACKAGE = Path(mcp_server.__file__).parent
ROOT = PACKAGE.parent
PAGES = {name: (ROOT / f"{name}.md").read_text() for name in ("ARCHITECTURE", "CONTRIBUTING", "README")}
# Places of a run or of the state directory, and what a reader fills in.
ELSEWHERE = re.compile(
    r"attempts/|waits/|cursors/|supervisors/|hosts/|\.venv|dist/|[A-Z]{3,}|[<>…*=(]|evals?/|guide://"
)


ROW = re.compile(r"^\| `(?P<room>\w+)/` \| (?P<text>.+) \|$")


def exists(name: str) -> bool:
    module = name.partition(".")[0]  # of `backends/base.Backend`
    places = (PACKAGE, ROOT, ROOT / ".github")
    return any((place / each).exists() for place in places for each in (name, f"{name}.py", f"{module}.py"))


def is_in_room(name: str, room: str) -> bool:
    """A row of the table of rooms names modules, and those of a package in it, by their last names."""
    return any(path.stem == name.strip("/") for path in (PACKAGE / room).rglob("*"))


@pytest.mark.parametrize("page", PAGES)
def test_every_module_and_file_that_a_page_names_exists(page: str) -> None:
    missing = []
    for line in PAGES[page].split("\n"):
        row = ROW.match(line)
        words = [word.partition("::")[0].rstrip(".,:") for text in quoted(line) for word in text.split()]
        # The row of a room names its modules without the room.
        form = r"[a-z_]+/?(?:[\w.]+)*" if row else r"\.?[a-z_]+(?:/[\w.]*)+"
        named = {word for word in words if re.fullmatch(form, word) and not ELSEWHERE.search(word)}
        missing += [name for name in named if not (exists(name) or (row and is_in_room(name, row["room"])))]
    assert sorted(missing) == []


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_somewhere(page: str) -> None:
    links = {link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", PAGES[page]) if "://" not in link}
    assert sorted(link for link in links if not (ROOT / link).exists()) == []


def test_every_room_is_in_the_drawing() -> None:
    drawing = PAGES["ARCHITECTURE"].partition("## Rooms")[2].partition("| room |")[0]
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert set(re.findall(r"(\w+)/", drawing.split("```")[1])) == rooms


def test_every_layout_that_is_promised_has_a_record() -> None:
    assert f"this version writes layout {LAYOUT}" in PAGES["ARCHITECTURE"]
    assert f"layouts 0 to {LAYOUT}" in PAGES["ARCHITECTURE"]
    assert {path.name for path in (ROOT / "tests" / "data" / "layouts").iterdir()} == set(map(str, range(LAYOUT + 1)))


def test_each_recipe_has_at_most_ten_steps() -> None:
    recipes = re.split(r"^\*\*", PAGES["CONTRIBUTING"].partition("## Recipes")[2], flags=re.MULTILINE)
    steps = {recipe.partition("**")[0]: len(re.findall(r"^\d+\. ", recipe, re.MULTILINE)) for recipe in recipes[1:]}
    assert len([name for name, count in steps.items() if count]) == 6
    assert max(steps.values()) <= 10
