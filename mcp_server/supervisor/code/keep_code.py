"""Copies what an attempt runs: configuration files, commit and changes or all sources, Python and packages."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mcp_server.command.configs import find_config_files
from mcp_server.command.outputs import find_in_command
from mcp_server.command.programs import PYTHON
from mcp_server.command.python import find_python, resolve_python
from mcp_server.record.code.code_snapshot import DIFF, FILES, PACKAGES, SNAPSHOT, CodeSnapshot, KeptFile, KeptSources
from mcp_server.record.code.code_state import add_digests, read_code_state
from mcp_server.record.code.drift import digest_variables
from mcp_server.record.code.kept_sources import keep_sources, look_at_inputs, read_driver
from mcp_server.record.run_directory import RunDir, now, write_json
from mcp_server.record.spec import RunSpec
from mcp_server.system import processes
from mcp_server.system.files import open_private, read_regular_file
from mcp_server.system.git_state import GitState, read_git_state
from mcp_server.system.python_modules import PythonPackages, read_packages
from mcp_server.text.secret_patterns import mask_secrets, mask_source

_PYTHON_WAIT_S, _PYTHON_CHECK_S = 15.0, 0.5  # for a Python that only the running processes show
_MOST_FILE_BYTES, _MOST_BYTES = 1_000_000, 5_000_000


@dataclass(frozen=True)
class KeptAttempt:
    """The attempt whose code is kept: its number, more arguments of its command, its environment, its process."""

    rundir: RunDir
    spec: RunSpec
    number: int
    arguments: Sequence[str]
    env: Mapping[str, str]
    secrets: Mapping[str, str]
    pid: int


def keep_code(attempt: KeptAttempt, on_done: Callable[[], None] = lambda: None) -> None:
    """Keep what ``attempt`` runs. ``on_done`` is called before the wait for a Python that the command does not name."""
    directory, cwd = attempt.rundir.code(attempt.number), attempt.spec.cwd or "/"
    directory.mkdir(mode=0o700, exist_ok=True)
    snapshot = CodeSnapshot(taken_at=now(), notes=("The state of git was not read in time.",))
    files = find_config_files(attempt.spec.command, cwd, attempt.env, attempt.arguments)
    if attempt.spec.blueprint:
        files.insert(0, Path(attempt.spec.blueprint))
    copies, notes = _copy_files(attempt, files, directory)
    write_json(directory / SNAPSHOT, replace(snapshot, files=copies, notes=(*notes, *snapshot.notes)).facts())
    git = _read_git([Path(cwd), *(path.parent for path in files)], attempt.env)
    _write(directory / DIFF, mask_source(git.diff, attempt.secrets))
    git = replace(git, subject=mask_secrets(git.subject, attempt.secrets))
    snapshot = replace(snapshot, files=copies, git=git, notes=notes)
    outputs = [path for path in find_in_command(attempt.spec.command, cwd, attempt.spec.params) if path != cwd]
    copy = (attempt.spec.code or {}).get("to")  # a repository around it is not its own
    own = git if not copy or os.path.realpath(copy) == git.root else GitState()
    home = attempt.env.get("HOME") or "/"
    if not own.commit and Path(cwd) in (Path("/"), Path("/tmp"), Path(home)):  # noqa: S108 - everybody's files
        why = f"The sources below {cwd} were not kept: it is nobody's project."
        snapshot = replace(snapshot, archive=KeptSources(cwd, left_out=(why,)), notes=(*snapshot.notes, why))
    else:
        snapshot = replace(snapshot, archive=keep_sources(Path(cwd), own, directory, attempt.secrets, outputs))
    inputs = look_at_inputs(attempt.spec.command, attempt.spec.params, cwd)
    variables = digest_variables(attempt.env, {*attempt.spec.env, *attempt.spec.secrets})
    snapshot = replace(snapshot, inputs=inputs, driver=read_driver(), variables=variables)
    if not git.commit:  # else the commit and its changes say what the modules were
        add_digests(read_code_state([cwd], files)).write(directory)
    python = find_python(attempt.spec.command, cwd, attempt.env)
    snapshot = _keep_packages(directory, snapshot, python)
    on_done()
    until_s = time.monotonic() + _PYTHON_WAIT_S
    while not snapshot.python and time.monotonic() < until_s and processes.find_process(attempt.pid) is not None:
        time.sleep(_PYTHON_CHECK_S)
        if python := _find_running_python(attempt.pid):
            snapshot = _keep_packages(directory, snapshot, python)


def _copy_files(
    attempt: KeptAttempt, files: Sequence[Path], directory: Path
) -> tuple[tuple[KeptFile, ...], tuple[str, ...]]:
    """Copy ``files`` with secrets masked, and return them and a note for each one that is not there whole."""
    copies: list[KeptFile] = []
    notes: list[str] = []
    left_bytes = _MOST_BYTES
    for path in files:
        try:
            data = read_regular_file(path)
        except (OSError, ValueError) as error:
            notes.append(f"{path} was not kept: {getattr(error, 'strerror', None) or error}.")
            continue
        one = KeptFile(str(path), "", len(data), hashlib.sha256(data).hexdigest())
        if len(data) <= min(_MOST_FILE_BYTES, left_bytes):
            left_bytes -= len(data)
            one = replace(one, kept=f"{FILES}/{_name_copy(path, attempt.spec.cwd)}")
            copy = directory / one.kept
            for level in (*reversed(Path(one.kept).parent.parents), Path(one.kept).parent):  # each private
                (directory / level).mkdir(mode=0o700, exist_ok=True)
            _write(copy, mask_source(data.decode(errors="replace"), attempt.secrets))
        else:
            notes.append(f"{path} was not kept: it has {len(data):,} bytes.")
        copies.append(one)
    return tuple(copies), tuple(notes)


def _name_copy(path: Path, cwd: str) -> str:
    """Return the name of the copy of a file: as below the working directory, else its whole path."""
    whole = os.path.normpath(path)
    inside = os.path.relpath(whole, cwd) if cwd else ".."
    return inside if not inside.startswith("..") else whole.lstrip("/")


def _read_git(directories: Sequence[Path], env: Mapping[str, str]) -> GitState:
    """Return the state of the first of ``directories`` that is in a work tree, else that of the first one."""
    first: GitState | None = None
    for directory in dict.fromkeys(directories):
        code = read_git_state(directory, env)
        if code.commit or code.root:
            return code
        first = first or code
    return first or GitState()


def _keep_packages(directory: Path, snapshot: CodeSnapshot, python: str) -> CodeSnapshot:
    """Add Python and its packages to ``snapshot``, write it, and return it."""
    try:
        packages = read_packages(python)
    except OSError as error:
        packages = PythonPackages()
        snapshot = replace(snapshot, notes=(*snapshot.notes, f"The packages of {python} were not read: {error}."))
    if packages.packages:
        lines = (f"{name}=={version}" for name, version in sorted(packages.packages.items()))
        _write(directory / PACKAGES, "\n".join(lines) + "\n")
    snapshot = replace(snapshot, python=packages.path, python_version=packages.version, packages=len(packages.packages))
    write_json(directory / SNAPSHOT, snapshot.facts())
    return snapshot


def _write(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8", errors="replace", newline="", opener=open_private) as file:
        file.write(text)


def _find_running_python(pid: int) -> str:
    """Return the path of the first Python among process ``pid`` and its descendants, empty while there is none."""
    own = processes.find_process(pid)
    for process in [*([own] if own else []), *processes.descendants(pid)]:
        word = next(iter(processes.command_words(process.pid)), "")
        if not PYTHON.fullmatch(os.path.basename(word)):  # noqa: PTH119 - a word of a command
            continue
        try:
            environ = Path(f"/proc/{process.pid}/environ").read_bytes().decode(errors="replace").split("\0")
            directory = os.readlink(f"/proc/{process.pid}/cwd")  # noqa: PTH115 - as the kernel has it
        except OSError:
            continue
        search = next((line[len("PATH=") :] for line in environ if line.startswith("PATH=")), os.defpath)
        if path := resolve_python(word, "python", directory, search):
            return path
    return ""
