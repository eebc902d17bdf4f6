"""The rooms of CONTRIBUTING.md, by every import statement: who may import whom, how many they are, and how large."""

import ast
import graphlib
import re
import sys
from pathlib import Path

import pytest

import mcp_server

ROOT = Path(mcp_server.__file__).parent
# From the ground up. A room may import all rooms of lower lines except the supervisor, and those in its parentheses.
HOUSE = """
errors    text(errors)    system(errors text)    record(errors text system)    answer    threads
diagnosis    recovery(diagnosis)    gpus    notices
supervisor
backends    store(backends)    hosts(store)    scalars(store)    blueprints(hosts)
views
runs    results
tools    resources(tools)    serve(tools resources)    cli(resources)
__main__
"""
LIBRARIES = """
tools(mcp mcp_types)  resources(mcp mcp_types)  serve(mcp mcp_types uvicorn)  cli(mcp mcp_types rich)
cli.demo_training(numpy tensorboard)  scalars(numpy google_crc32c matplotlib wandb google)  backends(libtmux)
store(inotify_simple regex)  gpus.nvml(pynvml)
"""


def read_table(text: str) -> dict[str, list[str]]:
    return {name: words.split() for name, words in re.findall(r"([\w.]+)(?:\((.+?)\))?", text)}


WITHIN = read_table(HOUSE)
LINE = {room: number for number, line in enumerate(HOUSE.strip().split("\n")) for room in read_table(line)}
BELOW_THE_LINE = {room for room in LINE if LINE[room] <= LINE["supervisor"]} - {"answer", "threads"}
KEPT = {library for libraries in read_table(LIBRARIES).values() for library in libraries}
FILES = {p.relative_to(ROOT).with_suffix("").as_posix(): p.read_text(encoding="utf-8") for p in ROOT.rglob("*.py")}
SOURCES = {path.removesuffix("/__init__").replace("/", "."): source for path, source in FILES.items()}


def imports(source: str) -> set[str]:
    nodes = list(ast.walk(ast.parse(source)))
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    assert not any(node.level for node in froms), "write the whole name of the package"
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {f"{node.module}.{alias.name}" for node in froms for alias in node.names}


def own_modules(source: str) -> set[str]:
    names = [name.removeprefix("mcp_server.") for name in imports(source) if name.startswith("mcp_server.")]
    return {name if name in SOURCES else name.rpartition(".")[0] for name in names} - {""}


def refused(module: str, source: str) -> list[str]:
    """The rooms and libraries that ``module`` imports and may not."""
    room = module.partition(".")[0]
    rooms = {other.partition(".")[0] for other in own_modules(source)} - {room, *WITHIN[room]}
    libraries = {name.partition(".")[0] for name in imports(source)} - {"mcp_server"} - set(sys.stdlib_module_names)
    for keeper, kept in read_table(LIBRARIES).items():
        libraries -= set(kept) if f"{module}.".startswith(f"{keeper}.") else set()
    wrong = libraries if room in BELOW_THE_LINE else libraries & KEPT
    return sorted(wrong | {other for other in rooms if other == "supervisor" or LINE[other] >= LINE[room]})


@pytest.mark.parametrize("module", sorted(SOURCES.keys() - {"__init__"}))
def test_a_module_imports_only_what_its_room_may_know(module: str) -> None:
    assert refused(module, SOURCES[module]) == []


def test_the_rooms_are_few_without_a_circle_and_none_holds_a_fifth_of_the_code() -> None:
    graphlib.TopologicalSorter({module: own_modules(source) - {module} for module, source in SOURCES.items()}).prepare()
    graphlib.TopologicalSorter(WITHIN).prepare()
    assert len(list(ROOT.glob("*.py"))) - 1 <= 5, "besides __init__"
    assert len(LINE) <= 25
    sizes = {room: sum(len(s) for m, s in SOURCES.items() if m.partition(".")[0] == room) for room in LINE}
    assert max(sizes.values()) <= sum(sizes.values()) / 5


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("record.state", "from mcp_server.store.run_store import RunStore"),
        ("runs.wait", "def f():\n    from mcp_server.results import compare"),
        ("cli.ls", "from mcp_server.supervisor import attempt"),
        ("gpus.leases", "import pydantic"),
        ("supervisor.attempt", "def f():\n    import anyio"),
        ("store.run_store", "from rich.table import Table"),
    ],
)
def test_a_wrong_import_is_found(module: str, statement: str) -> None:
    assert len(refused(module, statement)) == 1
