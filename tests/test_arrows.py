"""The layers of CONTRIBUTING.md: a room imports only rooms that it may know, read from every import statement."""

import ast
import graphlib
import sys
from pathlib import Path

import pytest

import mcp_server

ROOT = Path(mcp_server.__file__).parent
LAYERS = (  # from the ground up; a room may import every room of a lower layer
    ("errors", "answer", "threads", "text", "system", "record"),
    ("diagnosis", "recovery", "gpus", "notices"),
    ("supervisor",),
    ("backends", "store", "hosts", "blueprints", "scalars"),
    ("views",),
    ("runs", "results"),
    ("tools", "resources", "serve", "cli"),
    ("__main__",),
)
WITHIN = {  # the arrows inside one layer
    *(("text", "errors"), ("system", "errors"), ("system", "text"), ("record", "errors"), ("record", "text")),
    *(("record", "system"), ("recovery", "diagnosis"), ("hosts", "store"), ("scalars", "store"), ("store", "backends")),
    *(
        ("blueprints", "hosts"),
        ("resources", "tools"),
        ("serve", "tools"),
        ("serve", "resources"),
        ("cli", "resources"),
    ),
}
BELOW_THE_LINE = {"errors", "text", "system", "record", "diagnosis", "recovery", "gpus", "notices", "supervisor"}
LIBRARIES = {  # who may import which third-party package
    "mcp": "tools resources serve cli",
    "mcp_types": "tools resources serve cli",
    "uvicorn": "serve",
    "rich": "cli",
    "libtmux": "backends",
    "pynvml": "gpus.nvml",
    "tensorboard": "cli.demo_training",
    "numpy": "scalars cli.demo_training",
    "google_crc32c": "scalars",
    "matplotlib": "scalars",
    "wandb": "scalars",
    "google": "scalars",
    "inotify_simple": "store",
    "regex": "store",
}
HEIGHT = {room: height for height, rooms in enumerate(LAYERS) for room in rooms}
SOURCES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path.read_text(encoding="utf-8")
    for path in ROOT.rglob("*.py")
}


def imports(source: str) -> set[str]:
    """Every module that ``source`` imports, wherever in it; relative imports are not used here."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "write the whole name of the package"
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return modules


def own(name: str) -> str:
    """The module of this package that ``name`` is or comes from, without the package's name; else empty."""
    name = name.removeprefix("mcp_server.") if name.startswith("mcp_server.") else ""
    while name and name not in SOURCES:
        name = name.rpartition(".")[0]
    return name


def wrong(module: str, source: str) -> list[str]:
    """The imports of ``module`` that its room may not have."""
    room, refused = module.partition(".")[0], []
    for name in sorted(imports(source)):
        other, top = own(name).partition(".")[0], name.partition(".")[0]
        if other:
            lower = HEIGHT[other] < HEIGHT[room] and other != "supervisor"
            right = other == room or lower or (room, other) in WITHIN
        elif room in BELOW_THE_LINE and top != "mcp_server":
            right = top in sys.stdlib_module_names or (top == "pynvml" and module.startswith("gpus.nvml"))
        else:
            keepers = LIBRARIES.get(top, module).split()
            right = any(f"{module}.".startswith(f"{keeper}.") for keeper in keepers)
        refused += [] if right else [f"{module} -> {name}"]
    return refused


@pytest.mark.parametrize("module", sorted(SOURCES.keys() - {"__init__"}))
def test_a_module_imports_only_what_its_room_may_know(module: str) -> None:
    assert wrong(module, SOURCES[module]) == []


def test_no_modules_import_each_other_in_a_ring() -> None:
    graphlib.TopologicalSorter({m: {own(n) for n in imports(s)} - {"", m} for m, s in SOURCES.items()}).prepare()


def test_the_package_holds_packages_and_at_most_five_modules() -> None:
    assert len([path for path in ROOT.glob("*.py") if path.name != "__init__.py"]) <= 5
    assert len(HEIGHT) <= 25


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("record.state", "from mcp_server.store.run_store import RunStore"),
        ("runs.wait", "def f():\n    from mcp_server.results import compare"),
        ("cli.ls", "from mcp_server.supervisor import attempt"),
        ("gpus.leases", "import pydantic"),
        ("supervisor.attempt", "def f():\n    import anyio"),
        ("store.run_store", "from rich.table import Table"),
    ],
)
def test_a_wrong_import_is_found(module: str, source: str) -> None:
    assert len(wrong(module, source)) == 1
