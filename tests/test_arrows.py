"""The rooms of ARCHITECTURE.md, by every import statement: who may import whom, how many they are, and how large."""

import ast
import functools
import graphlib
import re
import sys
from pathlib import Path

import mcp_server

# From the ground up. A room imports the standard library, all rooms of lower lines except programs, and what is in
# its parentheses: rooms of its own line, libraries. A name with a dot is an exception for one module or package.
HOUSE = """
errors
text
system
command
record
diagnosis  recovery(diagnosis)  gpus  gpus.nvml(pynvml)
supervisor  relay
answer(pydantic)  threads(anyio)
backends(anyio libtmux typing_extensions)  store(backends anyio pydantic inotify_simple regex)
hosts(store pydantic yaml)
backends.ssh.far_answers(pydantic)
blueprints(hosts yaml)  scalars(store numpy google_crc32c matplotlib typing_extensions)
views
runs(anyio pydantic)  results(yaml)
sweeps(anyio yaml)  sweeps.plan.search(optuna)  sweeps.tables.plot(numpy)
sweeps.sources.doit_child(doit)
tools(anyio mcp pydantic pydantic_core)  resources(tools mcp yaml)
page(tools anyio numpy starlette)
serve(tools resources anyio h11 mcp mcp_types pydantic uvicorn)
cli(resources anyio mcp rich)  cli.setup.demo_training(numpy tensorboard)
__main__
"""
# The wings of a room in the same way. A module that is in no folder belongs to the wing with the room's name.
WINGS = {
    "runs": """
code  wait  stop  warnings
launch
preflight
""",
    "sweeps": """
sources
trials
plan
tables
conductor
sweeps
""",
    "tools": """
support
tools
""",
    "cli": """
cli
setup  top
""",
}
MOST_INNER_ARROWS = {"runs": 6, "sweeps": 10, "tools": 1, "cli": 2}
MOST_FILES = 15  # of a folder, beside those of its wings
LINES = [re.findall(r"([\w.]+)(?:\((.+?)\))?", line) for line in HOUSE.strip().split("\n")]
WORDS = {room: set(words.split()) for line in LINES for room, words in line}
ROOMS = {room: number for number, line in enumerate(LINES) for room, _ in line if "." not in room}
PROGRAMS = {"supervisor", "relay"}  # processes of their own, which nobody imports
BELOW_THE_LINE = {room for room in ROOMS if ROOMS[room] <= ROOMS["supervisor"]}
ROOT = Path(mcp_server.__file__).parent
PATHS = {path.relative_to(ROOT).with_suffix("").as_posix(): path for path in ROOT.rglob("*.py")}
SOURCES = {name.removesuffix("/__init__").replace("/", "."): path.read_text("utf-8") for name, path in PATHS.items()}
MODULES = SOURCES.keys() - {"__init__"}


@functools.cache
def imports(source: str) -> set[str]:
    """Modules of the package (``record.state``) and libraries. Relative imports are refused by ruff."""
    nodes = list(ast.walk(ast.parse(source)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {f"{n.module}.{alias.name}" for n in nodes if isinstance(n, ast.ImportFrom) for alias in n.names}
    own = {name.removeprefix("mcp_server.") for name in names if name.startswith("mcp_server.")}
    modules = {name if name in MODULES else name.rpartition(".")[0] for name in own} - {""}
    return modules | {name.partition(".")[0] for name in names if not name.startswith("mcp_server.")}


def wrong_imports(module: str, source: str) -> set[str]:
    room = module.partition(".")[0]
    allowed = {other for other in ROOMS if ROOMS[other] < ROOMS[room]} - PROGRAMS | sys.stdlib_module_names
    allowed.update({room}, *(words for name, words in WORDS.items() if f"{module}.".startswith(f"{name}.")))
    return {name.partition(".")[0] for name in imports(source)} - allowed


def test_a_module_imports_only_what_its_room_may_know() -> None:
    wrong = {module: wrong_imports(module, SOURCES[module]) for module in MODULES}
    assert {module: names for module, names in wrong.items() if names} == {}
    assert all(WORDS[room] <= BELOW_THE_LINE for room in BELOW_THE_LINE), "standard library only"
    assert PROGRAMS.isdisjoint(set().union(*WORDS.values()))
    assert wrong_imports("record.state", "from mcp_server.store.run_store import RunStore") == {"store"}
    assert wrong_imports("cli.ls", "def f():\n    from mcp_server.supervisor import attempt") == {"supervisor"}
    assert wrong_imports("gpus.leases", "import pydantic") == {"pydantic"}


def test_the_rooms_are_few_without_a_circle_and_none_holds_a_fifth_of_the_code() -> None:
    for graph in (WORDS, {module: imports(SOURCES[module]) - {module} for module in MODULES}):
        graphlib.TopologicalSorter(graph).prepare()
    assert len(list(ROOT.glob("*.py"))) - 1 <= 5, "besides __init__"
    assert len(ROOMS) <= 27
    sizes = {room: sum(len(SOURCES[m]) for m in MODULES if m.partition(".")[0] == room) for room in ROOMS}
    assert max(sizes.values()) <= sum(sizes.values()) / 5


def find_inner_arrows(room: str, sources: dict[str, str]) -> set[tuple[str, str]]:
    """Return which wing of a room imports which."""

    def find_wing(module: str) -> str:
        wing, dot, _ = module.partition(".")[2].partition(".")
        return wing if dot else room

    own = {module: imports(source) for module, source in sources.items() if module.startswith(f"{room}.")}
    pairs = {(find_wing(module), find_wing(name)) for module, names in own.items() for name in names if name in own}
    return {(one, other) for one, other in pairs if one != other}


def test_a_wing_imports_only_wings_of_lower_lines() -> None:
    for room, wings in WINGS.items():
        line_of = {wing: number for number, line in enumerate(wings.strip().split("\n")) for wing in line.split()}
        arrows = find_inner_arrows(room, SOURCES)
        assert {pair for pair in arrows if line_of[pair[0]] <= line_of[pair[1]]} == set(), room
        assert len(arrows) <= MOST_INNER_ARROWS[room], (room, arrows)
    upwards = {"runs.stop.a": "from mcp_server.runs.launch.b import c", "runs.launch.b": ""}
    assert find_inner_arrows("runs", upwards) == {("stop", "launch")}


def test_no_room_is_a_flat_heap_of_files() -> None:
    folders = [path.parent for path in PATHS.values() if path.name != "__init__.py"]
    large = {folder.relative_to(ROOT).as_posix() for folder in folders if folders.count(folder) > MOST_FILES}
    assert large == set()


def test_no_two_modules_or_public_classes_have_one_name() -> None:
    files = [path for path in PATHS if not path.startswith("cli/") and not path.endswith("__")]
    names = [path.rpartition("/")[2] for path in files]
    names += [match for source in SOURCES.values() for match in re.findall(r"^class ([A-Z]\w*)", source, re.MULTILINE)]
    assert {name for name in names if names.count(name) > 1} == set(), "name it by what tells it apart"


def test_a_module_gives_a_name_once() -> None:
    twice = {}
    for module, source in SOURCES.items():
        body = ast.parse(source).body
        targets = [target for each in body if isinstance(each, ast.Assign) for target in each.targets]
        targets += [each.target for each in body if isinstance(each, ast.AnnAssign)]
        names = [
            node.id
            for target in targets
            for node in ast.walk(target)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        ]
        names += [each.name for each in body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
        twice[module] = {name for name in names if names.count(name) > 1}
    assert {module: names for module, names in twice.items() if names} == {}


def test_imports_inside_functions_are_few_and_each_says_how_many_milliseconds_it_saves() -> None:
    lazy = [line for source in SOURCES.values() for line in source.splitlines() if "PLC0415" in line]
    assert [line for line in lazy if not re.search(r"PLC0415 - .*\b[\d,]+ ms", line)] == []
    assert len(lazy) <= 50
