"""Every arrow of DESIGN.md points down: read from the imports of every module, also those inside functions."""

import ast
import graphlib
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import mcp_server

PACKAGE = "mcp_server"
ROOT = Path(mcp_server.__file__).parent
SUPERVISOR = f"{PACKAGE}.supervisor"

# From the ground up; a package stands for all that is in it. A module imports its own layer and those below.
LAYERS = (
    (
        "values",
        (
            *(
                "run",
                "request",
                "status",
                "answers",
                "errors",
                "logtext",
                "patterns",
                "verdict",
                "report",
                "conditions",
            ),
            *("blueprint", "conditions", "durations", "client_settings"),
        ),
    ),
    (
        "world",
        (
            *(
                "changes",
                "gpu",
                "gpu_use",
                "nvml",
                "home",
                "hosts",
                "ledger",
                "logfile",
                "others",
                "plot",
                "scalars",
                "screen",
            ),
            *("tmux", "backends", "hostfile", "ports", "imports", "library", "tokens"),
            *("walk", "masks", "codebase", "checkpoints", "evaluations"),
        ),
    ),
    (
        "verbs",
        (
            *("launch", "settle", "admission", "params", "script", "idempotency", "tidy", "watch", "kill"),
            *(
                "metrics",
                "scalar_report",
                "blueprints",
                "blueprint_places",
                "experiment_log",
                "commandline",
                "fitting",
                "paths",
            ),
            *("checks", "preflight", "printed", "outcome", "configuration", "results_document", "finish", "compare"),
        ),
    ),
    ("edge", ("tools", "documents", "commands", "gpus_command", "tb", "install")),
    ("server", ("server", "door", "web")),
    ("shows", ("doctor", "demo")),
    ("command", ("__main__",)),
)
# Run by themselves; nobody imports them and they import nobody.
ALONE = ("demo_training",)

# The supervisor's file formats and processes: what the layers above its own may know of it.
SHARED = (
    *("rundir", "events", "processes", "redact", "handover", "ending"),
    *("arguments", "examine", "policy", "lease", "probe"),
    *("results", "resultpage", "lines", "progress"),
)
# Of these, what the values may know as well: they are values themselves.
SHARED_VALUES = ("gpus", "placement", "wants", "holder", "xids")

# Who may import what others made.
KEEPERS: Mapping[str, tuple[str, ...]] = {
    "mcp": ("server", "door", "web", "documents", "tools", "demo"),
    "mcp_types": ("server", "documents", "tools", "demo"),
    "uvicorn": ("web",),
    "libtmux": ("tmux",),
    "pynvml": ("gpu",),
    "tensorboard": ("demo_training",),
    "numpy": ("scalars", "demo_training"),
    "google_crc32c": ("scalars",),
    "matplotlib": ("plot",),
    "wandb": ("scalars",),
    "google": ("scalars",),  # protobuf, which wandb brings
    "inotify_simple": ("changes",),
    "rich": ("commands", "gpus_command", "tb", "doctor", "demo", "__main__"),
}
EVERYWHERE_ABOVE_THE_SUPERVISOR = ("anyio", "pydantic")

# What computes and touches nothing; pydantic checks values, pathlib is a type here, signal and os are tables.
COMPUTES = frozenset(
    """__future__ ast base64 bisect collections copy dataclasses datetime difflib enum fnmatch fractions functools
    graphlib hashlib heapq html itertools json math operator re shlex statistics string textwrap typing unicodedata
    urllib.parse""".split()  # noqa: SIM905 - a list of words
)
PURE: Mapping[str, frozenset[str]] = {
    "run": frozenset({"pydantic"}),
    "request": frozenset(),
    "errors": frozenset({"pathlib"}),
    "status": frozenset({"pydantic"}),
    "answers": frozenset({"pydantic"}),
    "logtext": frozenset(),
    "patterns": frozenset(),
    "script": frozenset({"pathlib"}),
    "blueprint.command": frozenset(),
    "blueprint.heads": frozenset(),
    "blueprint.parsing": frozenset(),
    "blueprint.text": frozenset(),
    "blueprint.values": frozenset(),
    "durations": frozenset(),
    "client_settings": frozenset({"tomllib"}),
    "commandline": frozenset({"pathlib"}),
    "masks": frozenset(),
    "verdict": frozenset(),
    "report": frozenset({"pydantic"}),
    "conditions": frozenset(),
    "scalars.summary": frozenset({"numpy"}),
    "scalars.text": frozenset({"numpy", "pydantic"}),
    "scalars.series": frozenset({"numpy", "pathlib"}),
    "supervisor.gpus": frozenset(),
    "supervisor.placement": frozenset(),
    "supervisor.wants": frozenset(),
    "supervisor.usage": frozenset(),
    "supervisor.resultpage": frozenset({"pathlib"}),
    "supervisor.tally": frozenset(),
    "supervisor.redact": frozenset(),
    "supervisor.ending": frozenset({"os", "signal", "pathlib"}),
    "supervisor.arguments": frozenset(),
    "supervisor.lines": frozenset(),
    "supervisor.shapes": frozenset(),
    "supervisor.progress": frozenset(),
    "supervisor.pace": frozenset(),
    "supervisor.divergence": frozenset(),
    "supervisor.judge": frozenset(),
    "supervisor.kinds": frozenset(),
    "supervisor.signatures": frozenset(),
    "supervisor.diagnosis": frozenset({"signal"}),
    "supervisor.recovery": frozenset(),
    "supervisor.policy": frozenset(),
    "supervisor.alter": frozenset(),
}
# Of modules that do touch the world, the names that do not.
HARMLESS = {("os", "waitstatus_to_exitcode"), ("os", "fspath"), ("pathlib", "Path"), ("pathlib", "PurePath")}
# Calls by which a pure module could touch the world without an import, or on a path that it was given.
TOUCHES = frozenset(
    """open print input exec eval __import__ import_module read_text read_bytes write_text write_bytes exists is_file
    is_dir stat iterdir glob rglob mkdir unlink rename touch resolve expanduser cwd home""".split()  # noqa: SIM905 - as above
)


def name_of(path: Path, root: Path = ROOT) -> str:
    parts = [PACKAGE, *path.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {name_of(path): path.read_text(encoding="utf-8") for path in sorted(ROOT.rglob("*.py"))}


def imports(source: str, module: str = "", *, is_package: bool = False) -> set[str]:
    """What a module imports, wherever in it, with what it takes of a package: ``mcp_server.tmux``, ``os.path``."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: len(module.split(".")) - node.level + is_package] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found |= {f"{base}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and called(node) in {"import_module", "__import__"}:
            found |= {str(word.value) for word in node.args[:1] if isinstance(word, ast.Constant)}
    return found


def called(node: ast.Call) -> str:
    """The last word of what is called."""
    function = node.func
    return (
        function.id if isinstance(function, ast.Name) else function.attr if isinstance(function, ast.Attribute) else ""
    )


def own(imported: str) -> str:
    """The module of this package that an imported name is or comes from; empty when it is not ours."""
    while imported.partition(".")[0] == PACKAGE:
        if imported in SOURCES:
            return imported
        imported = imported.rpartition(".")[0]
    return ""


def inside(module: str, names: tuple[str, ...]) -> bool:
    """Whether a module is one of ``names``, or in one of them."""
    return any(module == f"{PACKAGE}.{name}" or module.startswith(f"{PACKAGE}.{name}.") for name in names)


def layer(module: str) -> int | None:
    """How high a module stands; None for one without a place."""
    return next((height for height, (_, names) in enumerate(LAYERS) if inside(module, names)), None)


def own_imports(module: str, source: str) -> set[str]:
    package = any(name.startswith(f"{module}.") for name in SOURCES)
    return {own(name) for name in imports(source, module, is_package=package)} - {"", module, PACKAGE}


def others_imports(module: str, source: str) -> set[str]:
    """Top-level names of what a module imports that is neither ours nor the standard library's."""
    tops = {name.partition(".")[0] for name in imports(source, module)}
    return tops - {PACKAGE} - sys.stdlib_module_names


def wrong_arrows(module: str, source: str) -> list[str]:
    """What a module imports of this package and may not."""
    wrong = []
    for imported in sorted(own_imports(module, source)):
        if inside(module, ("supervisor",)):
            right = inside(imported, ("supervisor",))
        elif inside(module, ALONE) or inside(imported, ALONE):
            right = False
        elif inside(imported, ("supervisor",)):
            shared = SHARED_VALUES if layer(module) == 0 else (*SHARED, *SHARED_VALUES)
            right = inside(imported, tuple(f"supervisor.{name}" for name in shared))
        else:
            here, there = layer(module), layer(imported)
            right = here is not None and there is not None and there <= here
        if not right:
            wrong.append(f"{module} -> {imported}")
    return wrong


def wrong_guests(module: str, source: str) -> list[str]:
    """What a module imports of others and may not."""
    wrong = []
    for guest in sorted(others_imports(module, source)):
        if inside(module, ("supervisor",)):
            right = False
        elif guest in KEEPERS:
            right = inside(module, KEEPERS[guest])
        else:
            right = guest in EVERYWHERE_ABOVE_THE_SUPERVISOR
        if not right:
            wrong.append(f"{module} -> {guest}")
    return wrong


def impurities(source: str, allowed: frozenset[str]) -> list[str]:
    """How a module that should be pure could touch the world."""
    found = []
    tree = ast.parse(source)
    computes = COMPUTES | allowed | {PACKAGE}
    found += [name for name in imports(source) if not any(f"{name}.".startswith(f"{pure}.") for pure in computes)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called(node) in TOUCHES:
            found.append(f"{called(node)}()")
        elif (
            isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in {"os", "pathlib"}
        ):
            found += [] if (node.value.id, node.attr) in HARMLESS else [f"{node.value.id}.{node.attr}"]
        elif isinstance(node, ast.ImportFrom) and node.module in {"os", "pathlib"}:
            found += [
                f"{node.module}.{alias.name}" for alias in node.names if (node.module, alias.name) not in HARMLESS
            ]
    return sorted(set(found))


def cycle(sources: Mapping[str, str]) -> list[str]:
    """Modules that import each other in a ring."""
    try:
        graphlib.TopologicalSorter({name: own_imports(name, text) for name, text in sources.items()}).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


# --- the arrows


def test_every_module_has_a_place() -> None:
    placed = {name for name in SOURCES if inside(name, ("supervisor", *ALONE)) or layer(name) is not None}
    assert set(SOURCES) - placed - {PACKAGE} == set(), "give it a layer in LAYERS"
    assert len(placed) > 25


@pytest.mark.parametrize("module", SOURCES)
def test_a_module_imports_downwards_only(module: str) -> None:
    assert wrong_arrows(module, SOURCES[module]) == []


@pytest.mark.parametrize("module", SOURCES)
def test_a_library_is_known_to_its_keeper_only(module: str) -> None:
    assert wrong_guests(module, SOURCES[module]) == []


@pytest.mark.parametrize("module", [name for name in PURE if f"{PACKAGE}.{name}" in SOURCES])
def test_a_pure_module_touches_nothing(module: str) -> None:
    assert impurities(SOURCES[f"{PACKAGE}.{module}"], PURE[module]) == []


def test_no_modules_import_each_other_in_a_ring() -> None:
    assert cycle(SOURCES) == []


def test_the_package_itself_imports_nothing() -> None:
    assert imports(SOURCES[PACKAGE]) == set()
    assert imports(SOURCES[SUPERVISOR]) == set()


def test_what_is_imported_is_declared() -> None:
    project = (ROOT.parent / "pyproject.toml").read_text(encoding="utf-8")
    needed = {guest for name, text in SOURCES.items() for guest in others_imports(name, text)}
    # Come with what is declared: uvicorn and mcp_types with mcp, google.protobuf with wandb; pynvml is nvidia-ml-py's.
    for guest in needed - {"uvicorn", "mcp_types", "pynvml", "google"}:
        assert f'"{guest.replace("_", "-")}' in project.replace("_", "-"), guest


# --- the tests above can fail


def test_imports_are_found_wherever_they_are() -> None:
    source = """
from __future__ import annotations
import os.path as p, socket
from mcp_server import tmux, kill
from mcp_server.run import Run, fold
from . import sibling
from .cousin import thing
from .. import uncle
from ..aunt import word
if TYPE_CHECKING:
    from mcp.types import Tool
def f():
    import rich
    class A:
        from libtmux.exc import LibTmuxException
    importlib.import_module("pynvml")
    return __import__("numpy")
"""
    assert imports(source, "mcp_server.tools.runs") == {
        "__future__.annotations",
        "os.path",
        "socket",
        "mcp_server.tmux",
        "mcp_server.kill",
        "mcp_server.run.Run",
        "mcp_server.run.fold",
        "mcp_server.tools.sibling",
        "mcp_server.tools.cousin.thing",
        "mcp_server.uncle",
        "mcp_server.aunt.word",
        "mcp.types.Tool",
        "rich",
        "libtmux.exc.LibTmuxException",
        "pynvml",
        "numpy",
    }
    assert imports("from . import runs", "mcp_server.tools", is_package=True) == {"mcp_server.tools.runs"}


@pytest.mark.parametrize(
    ("module", "source", "arrow"),
    [
        ("mcp_server.run", "from mcp_server.ledger import Ledger", "mcp_server.run -> mcp_server.ledger"),
        (
            "mcp_server.run",
            "from mcp_server.supervisor import rundir",
            "mcp_server.run -> mcp_server.supervisor.rundir",
        ),
        ("mcp_server.tmux", "def f():\n    from mcp_server import launch", "mcp_server.tmux -> mcp_server.launch"),
        ("mcp_server.watch", "from mcp_server.tools import toolbox", "mcp_server.watch -> mcp_server.tools.toolbox"),
        ("mcp_server.kill", "import mcp_server.server", "mcp_server.kill -> mcp_server.server"),
        (
            "mcp_server.kill",
            "from mcp_server.supervisor import attempt",
            "mcp_server.kill -> mcp_server.supervisor.attempt",
        ),
        ("mcp_server.tools.runs", "from ..server import build", "mcp_server.tools.runs -> mcp_server.server"),
        ("mcp_server.commands", "import mcp_server.demo_training", "mcp_server.commands -> mcp_server.demo_training"),
        (
            "mcp_server.supervisor.loop",
            "from mcp_server.errors import RunwardError",
            "mcp_server.supervisor.loop -> mcp_server.errors",
        ),
        ("mcp_server.brand_new", "from mcp_server import run", "mcp_server.brand_new -> mcp_server.run"),
    ],
)
def test_a_wrong_arrow_is_found(module: str, source: str, arrow: str) -> None:
    assert wrong_arrows(module, source) == [arrow]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("mcp_server.commands", "from mcp.client import Client"),
        ("mcp_server.ledger", "import mcp.types"),
        ("mcp_server.screen", "def f():\n    from libtmux import Server"),
        ("mcp_server.tools.metrics", "import tensorboard"),
        ("mcp_server.doctor", "import pynvml"),
        ("mcp_server.watch", "from inotify_simple import INotify"),
        ("mcp_server.ledger", "from rich.table import Table"),
        ("mcp_server.ledger", "import psutil"),
        ("mcp_server.supervisor.rundir", "import pydantic"),
        ("mcp_server.supervisor.loop", "def f():\n    import anyio"),
    ],
)
def test_a_wrong_guest_is_found(module: str, source: str) -> None:
    assert len(wrong_guests(module, source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import subprocess",
        "import socket",
        "import time",
        "import random",
        "import urllib.request",
        "import os\nos.getpid()",
        "from os import environ",
        "def f():\n    import anyio",
        "from pathlib import Path\ndef f(path: Path): return path.read_text()",
        "open('/etc/passwd')",
        "__import__('os')",
    ],
)
def test_an_impurity_is_found(source: str) -> None:
    assert impurities(source, frozenset({"os", "pathlib"})) != []


def test_what_is_pure_is_let_be() -> None:
    source = "import os\nfrom pathlib import Path\nclass E(Exception):\n    path: Path\nos.waitstatus_to_exitcode(0)"
    assert impurities(source, frozenset({"os", "pathlib"})) == []


def test_a_ring_is_found() -> None:
    ring = {
        "mcp_server.run": "from mcp_server.errors import RunwardError",
        "mcp_server.errors": "def f():\n    from mcp_server import run",
    }
    assert set(cycle(ring)) == set(ring)
