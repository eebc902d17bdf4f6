"""The packages that are installed for a Python, found by looking at its directories: nothing of it is ever executed.

A Python may be any file that a caller names, and a module runs code when it is imported. So neither is started: the
directories follow from ``pyvenv.cfg``, from the place of the program and from ``.pth`` files. An installed module can
still fail when it is imported; only the run itself shows that.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from mcp_server.system.files import read_regular_file
from mcp_server.text.regex import compile_lazily
from mcp_server.text.rows import read_blocks

_PYTHON = compile_lazily(r"(python|pypy)[\d.]*t?d?")
_BINARIES = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
_VERSION = compile_lazily(r"(\d+)\.(\d+)")
_MODULE = compile_lazily(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_DISTRIBUTION = compile_lazily(r"([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)(?:\[[\w, .-]*\])?")
_INSTALLED = compile_lazily(r"(?P<name>[^-]+)-(?P<version>[^-]+)(?:-.+)?\.(?:dist|egg)-info")
_FINDER = compile_lazily(r"import (__editable___\w+_finder)\b")
_CODE = (".py", ".pyc", ".so", ".pyd")
_MOST_BYTES, _MOST_ENTRIES = 65_536, 20_000


@functools.cache
def _read_modules() -> tuple[dict[str, str], dict[str, str]]:
    """Return the modules of distributions whose names differ, and the usual distribution of each such module."""
    blocks = [(one["name"], one["of"].split()) for one in map(dict, read_blocks("system/modules"))]
    return {each: module for module, names in blocks for each in names}, {module: names[0] for module, names in blocks}


@dataclass(frozen=True)
class Fault:
    """What is wrong with a Python, and what to do about it."""

    text: str
    remedy: str


@dataclass(frozen=True)
class Installation:
    """A Python by its files. ``directories``: where it looks for modules. ``editable``: packages elsewhere, by name.

    ``installed``: versions of the distributions in these directories, by normal name.
    """

    program: str
    version: str
    directories: tuple[Path, ...]
    editable: Mapping[str, Path] = field(default_factory=dict)
    installed: Mapping[str, str] = field(default_factory=dict)

    def has_module(self, name: str, own: Sequence[Path] = ()) -> bool:
        """Return whether there is a module of this dotted name. ``own``: directories of the user's code."""
        top, _, rest = name.partition(".")
        if not rest and top in getattr(sys, "stdlib_module_names", sys.builtin_module_names):
            return True
        if top in self.editable:
            root = self.editable[top]
            return root.exists() and (not rest or _has_module(rest, [root]))
        return _has_module(name, [*own, *self.directories])

    def version_of(self, name: str) -> str | None:
        """Return the version of a distribution, or of the one that a module belongs to. None where it has none here."""
        top, (_, usual) = name.partition(".")[0], _read_modules()
        for each in (name, usual.get(name, ""), usual.get(top, ""), top):
            if version := self.installed.get(_normalize(each)):
                return version
        return None


def find_installation(program: str, env: Mapping[str, str], cwd: Path) -> Installation | Fault:
    """Return the installation that ``program``, started in ``cwd``, belongs to, or why it cannot be found."""
    path = _follow_pyenv(Path(program), env, cwd)
    program, real = str(path), path.resolve()
    if not _PYTHON.fullmatch(path.name) or not _PYTHON.fullmatch(real.name):
        text = f"{program} is not a python by its name."
        text = text if real == path or _PYTHON.fullmatch(real.name) else f"{program} is not a python: it is {real}."
        return _problem(text, "Name the python of the training's environment.")
    if not read_regular_file(real, max_bytes=4).startswith(_BINARIES):
        text = f"{program} is a script: which python it starts is unknown, and a check does not run it."
        return _problem(text, "Name the python itself, e.g. that of the virtual environment.")
    settings = _read_venv(path)
    base, version = real.parent.parent, _find_version(real)
    prefixes = [base]
    if settings is not None:
        home = Path(settings.get("home", str(real.parent)))
        if not home.is_dir():
            return _problem(f"{program}: its base python is gone: {home}.", "Make the virtual environment again.")
        version = _short_version(settings.get("version") or settings.get("version_info") or "") or version
        shared = settings.get("include-system-site-packages", "").lower() == "true"
        prefixes = [path.parent.parent, *([home.parent] if shared else [])]
    if not version:
        return _problem(f"{program}: which version it is is unknown.", f"To see it, run: {program} -V")
    roots = [root for prefix in prefixes for root in _list_site_directories(prefix, version)]
    if base in prefixes and "HOME" in env and not env.get("PYTHONNOUSERSITE"):
        roots.append(Path(env["HOME"]) / ".local" / "lib" / f"python{version}" / "site-packages")
    roots = [root for root in dict.fromkeys(roots) if root.is_dir()]
    if not roots:
        return _problem(f"{program}: where its modules are is unknown.", f"To see it, run: {program} -m site")
    more, editable = _read_path_files(roots)
    library = [each for each in (base / "lib" / f"python{version}",) if each.is_dir()]
    directories = tuple(dict.fromkeys([*roots, *more, *library]))
    installed = {name: version for root in (*more, *reversed(roots)) for name, version in _list_installed(root)}
    return Installation(program, version, directories, editable, installed)


@dataclass(frozen=True)
class PythonPackages:
    """A Python and its packages by name. All empty where it is unknown which Python runs."""

    path: str = ""
    version: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)


def read_packages(python: str) -> PythonPackages:
    """Return version and packages of the Python at ``python``, from the names of files in its directories."""
    if not python or not os.path.exists(python):  # noqa: PTH110 - of a word that may not be a path
        return PythonPackages()
    # A virtual environment is where the link is, not where it leads.
    prefix, home, settings = Path(python).parent.parent, Path(python).resolve().parent.parent, _read_venv(Path(python))
    prefixes = [prefix, home] if settings is None else [prefix]
    settings = settings or {}
    if settings.get("include-system-site-packages", "").lower() == "true":
        prefixes.append(home)
    version = _short_version(Path(python).resolve().name) or "3*"
    roots = list(dict.fromkeys(root for each in prefixes for root in _list_site_directories(each, version)))
    more, _ = _read_path_files(roots)
    packages = {name: version for root in reversed([*roots, *more]) for name, version in _list_installed(root)}
    version = settings.get("version") or settings.get("version_info") or _find_full_version(prefix, home)
    return PythonPackages(python, version, packages)


def _find_full_version(prefix: Path, home: Path) -> str:
    """Return the version of a Python that is not a virtual environment, as far as names of files show it."""
    for record in (prefix / "conda-meta").glob("python-3*.json"):
        return record.name.split("-")[1]
    match = re.search(r"(\d+\.\d+(?:\.\d+)?)$", home.name)  # pyenv, uv
    if match:
        return match[1]
    libraries = sorted(path.name[len("python") :] for path in (prefix / "lib").glob("python3.*"))
    return libraries[0] if len(libraries) == 1 else ""


def describe_python(
    python: str | None, imports: Sequence[str], env: Mapping[str, str], cwd: Path, suggest: Callable[[Path], str]
) -> Iterator[Fault | str]:
    """Yield why ``python`` cannot be started or what is not installed for it, then what it is. It is never started.

    None stands for the first ``python`` or ``python3`` in the PATH of ``env``. ``suggest``: names near a missing path.
    """
    import shutil  # noqa: PLC0415 - 2 ms and 0.2 MB of each supervisor, which reads packages by this module

    words = [python] if python else ["python", "python3"]
    paths = (str(cwd / Path(word).expanduser()) if "/" in word else word for word in words)
    program = next(filter(None, (shutil.which(path, path=env.get("PATH")) for path in paths)), None)
    if program is None:
        remedy = suggest(cwd / python) if python and "/" in python else ""
        yield Fault(f"{python or 'python'} is not a program that can be started.", remedy or "Name another python.")
        return
    installation = find_installation(program, env, cwd)
    if isinstance(installation, Fault):
        yield installation
        return
    own = [cwd, *map(Path, filter(None, env.get("PYTHONPATH", "").split(os.pathsep)))]
    yield from find_missing(installation, imports, own, cwd)
    versions = [(name, installation.version_of(name)) for name in imports]
    known = [f"{name} {version}" for name, version in versions if version]
    yield "; ".join([f"{installation.program}: Python {installation.version}", *([", ".join(known)] if known else [])])


def find_missing(installation: Installation, names: Sequence[str], own: Sequence[Path], cwd: Path) -> list[Fault]:
    """Return those of ``names`` that are not installed, each with its remedy.

    A name is a module's, as in an import statement, or a distribution's, as for pip.
    """
    return [problem for name in names if (problem := _check_name(installation, name.strip(), own, cwd))]


def _check_name(installation: Installation, name: str, own: Sequence[Path], cwd: Path) -> Fault | None:
    distribution = _DISTRIBUTION.fullmatch(name)
    if distribution is None:
        return _problem(f"{name[:80]!r} is not the name of a module or package.", "Write the name alone.")
    normal = _normalize(distribution[1])
    module = _read_modules()[0].get(normal, name if _MODULE.fullmatch(name) else normal.replace("-", "_"))
    if installation.has_module(module, own):
        return None
    if normal in installation.installed and "." not in name:
        return None
    what = name if module == name else f"{name} (module {module})"
    return _problem(f"{what} is not installed for {installation.program}.", _suggest(installation, module, normal, cwd))


def _suggest(installation: Installation, module: str, normal: str, cwd: Path) -> str:
    top, _, rest = module.partition(".")
    for directory in (cwd / "src", cwd.parent):
        if (directory / top).is_dir():
            return f"Put {directory} into PYTHONPATH."
    modules, usual = _read_modules()
    if rest and module not in usual and installation.has_module(top):
        return f"Check which version of {top} is installed: {installation.program} -m pip show {top}"
    name = normal if normal in modules else usual.get(module) or usual.get(top, top.replace("_", "-"))
    return f"If it is not your own code: {installation.program} -m pip install {name}"


def _has_module(name: str, directories: Sequence[Path]) -> bool:
    *packages, last = name.split(".")
    roots = list(directories)
    for package in packages:
        roots = [root / package for root in roots if (root / package).is_dir()]
    return any(_has_file(root, last) or _is_package(root / last) for root in roots)


def _has_file(root: Path, name: str) -> bool:
    if (root / f"{name}.py").is_file() or (root / f"{name}.so").is_file() or (root / f"{name}.pyc").is_file():
        return True
    with suppress(OSError):
        return any(root.glob(f"{name}.*.so"))
    return False


def _is_package(path: Path) -> bool:
    """Return whether a directory is a package; one without ``__init__.py`` has code, or a package, right in it."""
    if (path / "__init__.py").is_file():
        return True
    with suppress(OSError):
        for entry in path.iterdir():
            if entry.suffix in _CODE or (entry / "__init__.py").is_file():
                return True
    return False


def _follow_pyenv(program: Path, env: Mapping[str, str], cwd: Path) -> Path:
    """Return the Python that a shim of pyenv starts, by the files in which pyenv looks; other programs unchanged."""
    root = program.parent.parent
    if program.parent.name != "shims" or not (root / "versions").is_dir():
        return program
    words = env.get("PYENV_VERSION", "")
    for file in (*(each / ".python-version" for each in (cwd, *cwd.parents)), root / "version"):
        with suppress(OSError):
            words = words or read_regular_file(file, max_bytes=_MOST_BYTES).decode(errors="replace")
    version = (re.split(r"[:\s]+", words.strip()) or [""])[0]
    exact = root / "versions" / version / "bin" / program.name
    if version and exact.is_file():
        return exact
    near = (
        sorted((root / "versions").glob(f"{version}.*/bin/{program.name}"))
        if version.replace(".", "").isdigit()
        else []
    )
    return near[-1] if len(near) == 1 else program


def _read_venv(program: Path) -> dict[str, str] | None:
    """Return the settings of the virtual environment that a program belongs to; None where it belongs to none."""
    for root in (program.parent, program.parent.parent):
        with suppress(OSError):
            lines = read_regular_file(root / "pyvenv.cfg", max_bytes=_MOST_BYTES).decode(errors="replace").splitlines()
            pairs = (line.partition("=") for line in lines if "=" in line)
            return {name.strip().lower(): value.strip() for name, _, value in pairs}
    return None


def _find_version(real: Path) -> str:
    """Return the version in the name of a program, else of the only library beside it."""
    if version := _short_version(real.name):
        return version
    versions = {_short_version(each.name) for each in (real.parent.parent / "lib").glob("python3.*")}
    return versions.pop() if len(versions) == 1 else ""


def _short_version(text: str) -> str:
    match = _VERSION.search(text)
    return f"{match[1]}.{match[2]}" if match else ""


def _list_site_directories(prefix: Path, version: str) -> Iterator[Path]:
    """Yield the directories of packages below a prefix, Debian's among them. ``version``: as 3.11, or 3* for any."""
    for library in ("lib", "lib64", "local/lib"):
        for name in ("site-packages", "dist-packages"):
            yield from sorted((prefix / library).glob(f"python{version}/{name}"))
    yield prefix / "lib" / "python3" / "dist-packages"


def _read_path_files(roots: Sequence[Path]) -> tuple[list[Path], dict[str, Path]]:
    """Return what the ``.pth`` files in ``roots`` add: directories, and editable packages by name."""
    directories: list[Path] = []
    editable: dict[str, Path] = {}
    for file in (file for root in roots for file in sorted(root.glob("*.pth"))):
        with suppress(OSError):
            for line in read_regular_file(file, max_bytes=_MOST_BYTES).decode(errors="replace").splitlines():
                if match := _FINDER.match(line):
                    editable |= _read_finder(file.parent / f"{match[1]}.py")
                elif line.strip() and not line.startswith(("import ", "import\t", "#")):
                    directories.append(file.parent / line.strip())
    return [each for each in directories if each.is_dir()], editable


def _read_finder(file: Path) -> dict[str, Path]:
    """Return the packages that a finder of setuptools maps to directories, from its source."""
    with suppress(OSError, SyntaxError, ValueError, RecursionError):
        for node in ast.parse(read_regular_file(file, max_bytes=_MOST_BYTES)).body:
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                if isinstance(target, ast.Name) and target.id == "MAPPING":
                    return {str(name): Path(str(path)) for name, path in ast.literal_eval(node.value).items()}
    return {}


def _list_installed(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the distributions in a directory, by normal name, with their versions."""
    with suppress(OSError):
        for number, entry in enumerate(root.iterdir()):
            if number >= _MOST_ENTRIES:
                return
            if match := _INSTALLED.fullmatch(entry.name):
                yield _normalize(match["name"]), match["version"]


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _problem(text: str, remedy: str) -> Fault:
    return Fault(text, remedy)
