"""A copy of the code of a run, made at its launch: `code="kept"`. Blocks. Use a thread.

The copy, `code/RUN_ID` in the state directory, is the run's working directory, also of its retries: edits after the
launch do not reach it. What is not code (see ``code_directory``) is linked, so that data is found and outputs stay
where they belong. A sweep has one copy for all its cells, made at its start, and a far host is sent what was copied.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from mcp_server.command.configs import find_config_files
from mcp_server.command.outputs import find_in_command
from mcp_server.errors import BadArgument, LaunchFailed
from mcp_server.hosts.path_checks import Roots
from mcp_server.record.code.code_directory import CodeDirectory, CodeFile, open_below, read_code_directory
from mcp_server.record.code.code_snapshot import CodeSnapshot
from mcp_server.record.code.code_state import add_digests, load_code_state, read_code_state
from mcp_server.record.code.kept_sources import find_obstacle, list_directories, list_not_code, restore_sources
from mcp_server.record.run_directory import RunDir, read_json, write_json
from mcp_server.record.script import AttemptInputs, attempt_arguments
from mcp_server.record.spec import LaunchRequest, RunSpec
from mcp_server.record.sweeps.sweep_spec import SweepSpec
from mcp_server.store.state_home import StateHome
from mcp_server.system.files import name_below
from mcp_server.text.formatting import join_some, printable

_LIMIT_BYTES = 64 * 2**20
_MOST_NAMED = 6
_NOTHING = "Nothing was started."


@dataclass(frozen=True)
class CodeCopy:
    """Code that is copied before its run starts. ``linked``: paths below it that stay where they are.

    ``record``: where the facts of a sweep's copy are kept, from which ``is_there`` tells a copy that was made before.
    """

    code: CodeDirectory
    there: str
    linked: Sequence[str]
    record: Path | None = None
    is_there: bool = False

    @property
    def facts(self) -> Mapping[str, str]:
        """Its facts in the run's record."""
        stays = join_some(list(dict.fromkeys(printable(name.rstrip("/")) for name in self.linked)), _MOST_NAMED)
        return {"sync": "kept", "from": str(self.code.root), "hash": self.code.digest, "stays": stays}

    def move(self, request: LaunchRequest) -> LaunchRequest:
        """Return ``request`` with the paths of code that it names as they are in the copy."""
        root = str(self.code.root)
        roots = Roots({root: self.there}, tuple(f"{root}/{path.rstrip('/')}" for path in self.linked), "")
        return roots.move(request, self.there)

    def send(self) -> None:
        """Make the copy. LaunchFailed: it cannot be written, or the code has changed; nothing is left of it."""
        there = Path(self.there)
        try:
            there.parent.mkdir(mode=0o700, exist_ok=True)
            if not self.is_there:
                there.mkdir(mode=0o700)
                for file in self.code.files:
                    self._copy(file)
            for path in self.linked:
                self._link(path)
            if self.record is not None and not self.is_there:
                facts = {"files": [file.facts for file in self.code.files], "left_out": list(self.code.left_out)}
                write_json(self.record, {"from": str(self.code.root), "hash": self.code.digest, **facts})
        except OSError as error:
            if not self.is_there:
                shutil.rmtree(there, ignore_errors=True)
            cause = f"The code could not be copied to {there}: {error.strerror}."
            raise LaunchFailed(cause, _NOTHING, 'Launch again, or without code="kept".') from error

    def _copy(self, file: CodeFile) -> None:
        target = Path(self.there, file.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.mode < 0:
            target.symlink_to(file.digest)
            return
        with open_below(self.code.root, file.path) as source, target.open("xb") as copy:
            shutil.copyfileobj(source, copy)
        target.chmod(file.mode)
        if target.stat().st_size != file.size:
            raise OSError(0, f"{file.path} changed meanwhile")

    def _link(self, path: str) -> None:
        name = path.rstrip("/")
        original, target = self.code.root / name, Path(self.there, name)
        if path.endswith("/"):
            original.mkdir(parents=True, exist_ok=True)  # where the command will write
        target.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # another cell's launch did it
            target.symlink_to(original)


@dataclass(frozen=True)
class FormerCode:
    """The code of an attempt of a former run. ``moved``: the facts of its copy, where it ran in one of this host."""

    run_id: str
    attempt: int
    snapshot: CodeSnapshot | None
    moved: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class RestoredCode(CodeCopy):
    """The code of a former run, laid out as it was by ``fill``. ``below``: the working directory in it."""

    like: str
    commit: str
    below: str
    is_here: bool
    fill: Callable[[], object]

    @property
    def facts(self) -> Mapping[str, str]:
        """Its facts in the run's record."""
        return {**super().facts, "of": self.like, "commit": self.commit}

    def move(self, request: LaunchRequest) -> LaunchRequest:
        """Return ``request`` with the paths of code that it names as they are in the copy."""
        return replace(super().move(request), cwd=os.path.normpath(f"{self.there}/{self.below}"))

    def send(self) -> None:
        """Lay it out. LaunchFailed, HostUnreachable: it cannot be; nothing is left of it."""
        try:
            self.fill()
            if self.is_here:
                for path in self.linked:
                    self._link(path)
        except (OSError, subprocess.SubprocessError) as error:
            shutil.rmtree(self.there, ignore_errors=True)
            raise LaunchFailed(f"The code could not be laid out in {self.there}: {error}.", _NOTHING) from error


def plan_restored(
    request: LaunchRequest, former: FormerCode, there: str, fill: Callable[[], object] | None = None
) -> RestoredCode:
    """Return what ``code="kept"`` with ``like`` lays out ``there``: the code as the former run had it.

    ``fill``: does so on another host, whose repository is not looked at. BadArgument: the code cannot be had.
    """
    snapshot, cwd = former.snapshot, str(request.cwd or "/")
    why = "its source files were not kept" if snapshot is None else "" if fill else find_obstacle(snapshot)
    if snapshot is None or why:
        cause = f'"kept" is the code of {request.like}: {why}.'
        raise BadArgument("code", cause, "Leave code out to run the code as it is now.")
    sources, moved = snapshot.archive, former.moved
    root = Path(moved.get("from") or sources.root, name_below(sources.root, moved.get("to") or sources.root))
    words = str(request.tensorboard or ""), *find_in_command(request.command, cwd, request.params)
    outputs = [
        os.path.relpath(path.replace("{run_id}", there.rpartition("/")[2]), root) for path in words if path[:1] == "/"
    ]
    if fill is None:
        held = list_directories(snapshot)
        new = [f"{first}/" for path in outputs if (first := _find_first(path, held))]
        linked = [*list_not_code(snapshot), *new]
    else:
        linked = [path for path in outputs if not path.startswith("..")]
    digest = hashlib.sha256(f"{sources.commit} {sources.digest} {sources.deleted}".encode()).hexdigest()
    return RestoredCode(
        CodeDirectory(root, (), (), digest),
        there,
        list(dict.fromkeys(linked)),
        like=str(request.like),
        commit=sources.commit,
        below=name_below(cwd, str(root)),
        is_here=fill is None,
        fill=fill or partial(restore_sources, snapshot, Path(there)),
    )


def plan_copy(request: LaunchRequest, run_id: str, home: Path) -> CodeCopy:
    """Return what ``code="kept"`` copies of ``request.cwd``; a cell has its sweep's copy. BadArgument: no code."""
    root = Path(request.cwd or "/")
    there = find_sweep_copy(request.sweep, str(root), home) if request.sweep else home / "code" / run_id
    record = there.with_name(f"{there.name}.json") if request.sweep else None
    code = _read_record(record) if record is not None else None
    is_there = code is not None
    if code is None:
        code = _read_code(root)
    words = str(request.tensorboard or ""), *find_in_command(request.command, str(root), request.params)
    outputs = [os.path.relpath(path.replace("{run_id}", run_id), root) for path in words if path.startswith("/")]
    held = {above for file in code.files for above in ("", *_list_above(file.path))}
    new = [f"{first}/" for path in outputs if (first := _find_first(path, held))]
    linked = dict.fromkeys([*code.left_out, *new])
    names = [path for path in linked if not path.endswith("__pycache__/")]
    return CodeCopy(code, str(there), names, record, is_there)


def find_sweep_copy(sweep: str, cwd: str, home: Path) -> Path:
    """Return where the copy of a directory is that the cells of a sweep execute."""
    return home / "code" / f"{sweep}-{hashlib.sha256(os.fsencode(cwd)).hexdigest()[:6]}"


def _read_code(root: Path) -> CodeDirectory:
    try:
        code = read_code_directory(root, _LIMIT_BYTES)
    except BadArgument as error:
        raise BadArgument("code", str(error).partition(": ")[2], 'Or launch without code="kept".') from error
    if not code.files:
        raise BadArgument("code", f'"kept" copies the code of cwd, and {root} has none.', "Pass the code's directory.")
    return code


def _read_record(path: Path) -> CodeDirectory | None:
    facts = read_json(path)
    if facts is None:
        return None
    files = [CodeFile(*each) for each in facts["files"]]
    return CodeDirectory(Path(facts["from"]), files, facts["left_out"], facts["hash"])


def _list_above(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _find_first(path: str, held: Collection[str]) -> str:
    """Return the first part of a relative path that holds no code, and has a name already; empty without one."""
    parts = path.split("/")
    below = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    first = next((each for each in below if each not in held), "")
    return "" if parts[0] in ("..", ".") or "{" in first else first


_MOST_CELLS = 100  # whose configurations are looked for


def keep_code_state(directory: RunDir, spec: RunSpec, home: StateHome) -> None:
    """Write the state into a run's directory: of a cell that of its sweep's start. Unreadable files are left out."""
    with contextlib.suppress(OSError):
        of_sweep = load_code_state(home.sweeps / spec.sweep) if spec.sweep and not spec.keep_code else None
        if of_sweep is None and spec.backend == "slurm":
            inputs = AttemptInputs(spec.params)
            arguments = attempt_arguments(spec, inputs)
            named = find_config_files(spec.command, spec.cwd or "/", {**os.environ, **spec.env}, arguments)
            of_sweep = add_digests(read_code_state([spec.cwd] if spec.cwd else [], named))
        if of_sweep is not None:
            of_sweep.write(directory.path)


def keep_sweep_code_state(directory: Path, spec: SweepSpec) -> None:
    """Write the state of the code of all cells into a sweep's directory. Files that cannot be read are left out."""
    with contextlib.suppress(OSError):
        launches = [cell.launch for cell in spec.cells if cell.launch.get("code") != "kept"]
        directories = dict.fromkeys(str(each["cwd"]) for each in launches if each.get("cwd"))
        add_digests(read_code_state(directories, _find_named(launches))).write(directory)


def _find_named(launches: Sequence[Mapping[str, Any]]) -> Iterator[Path]:
    for launch in launches[:_MOST_CELLS]:
        if launch.get("command") and launch.get("cwd"):
            given = RunSpec(params=launch.get("params") or {}, param_style=launch.get("param_style") or "--k v")
            arguments = attempt_arguments(given, AttemptInputs(given.params))
            env = {**os.environ, **(launch.get("env") or {})}
            yield from find_config_files(launch["command"], str(launch["cwd"]), env, arguments)
