"""The source files of an attempt, byte for byte: kept beside its commit when it started, and laid out again.

`sources.tar.gz` in the attempt's `code/` has the files that its commit lacks: changed, and unknown to git; without a
repository all code of the working directory, of a large one its source files. Data and files beyond the limits are
left out, and named; so are files with secrets, of which a masked copy is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import os
import re
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from mcp_server.command.inputs import find_inputs, find_param_inputs
from mcp_server.command.outputs import names_a_place, names_an_output
from mcp_server.command.shell import parse
from mcp_server.errors import BadArgument
from mcp_server.record.code.code_directory import list_sources, read_code_directory, stays_behind
from mcp_server.record.code.code_snapshot import SOURCES_ARCHIVE, CodeSnapshot, KeptSources, NamedInput
from mcp_server.record.code.code_state import SOURCES
from mcp_server.system.files import open_private, read_regular_file
from mcp_server.system.git_state import GitState, list_filter_options, quote_git_failure
from mcp_server.text.secret_patterns import mask_source

_MOST_FILE_BYTES, _MOST_BYTES, _MOST_FILES = 4 << 20, 8 << 20, 2_000
_MASKED = ": holds a secret"  # a file, of which the archive has a masked copy
_GIT_S, _MOST_LINKS = 120.0, 2_000
_NO_DATA = ("", ".py", ".sh", ".yaml", ".yml", ".toml", ".ini", ".cfg")  # of options that name code or settings
_MOST_INPUTS, _MOST_ENTRIES = 50, 10_000
# No hook, monitor or garbage collection of the repository is started, and a person's settings change no file.
_SETTINGS = ("core.hooksPath=/dev/null", "core.fsmonitor=false", "core.sparseCheckout=false", "core.autocrlf=false")
_GIT = ("git", "-c", "gc.auto=0", *(word for setting in _SETTINGS for word in ("-c", setting)))


def keep_sources(
    cwd: Path, git: GitState, directory: Path, secrets: Mapping[str, str], outputs: Sequence[str] = ()
) -> KeptSources:
    """Write the archive into ``directory``. Reads at most 8 MiB in 2,000 files; below ``outputs`` only source files."""
    root, tracked, count, left_bytes = cwd, git.changed, 0, _MOST_BYTES
    left_out: list[str] = []
    sha = hashlib.sha256()
    deleted: list[str] = []
    if git.commit:
        root = Path(git.root)
        names = [*tracked, *(name for name in git.untracked if is_code(Path(git.root), name))]
        left_out = [] if not git.problem else [f"files: {git.problem}"]
    else:
        names, left_out = _list_code(cwd)
    with (
        open(directory / SOURCES_ARCHIVE, "wb", opener=open_private) as file,
        tarfile.open(fileobj=file, mode="w:gz", format=tarfile.PAX_FORMAT, compresslevel=1) as archive,
    ):
        for name in names:
            if name not in tracked and not name.endswith(SOURCES) and any(map((root / name).is_relative_to, outputs)):
                continue
            member = _read_member(root, name, secrets, left_bytes if count < _MOST_FILES else 0)
            if isinstance(member, str):
                left_out.append(member)
            elif member is None:
                deleted += [name] if name in tracked else []
            else:
                left_out += [f"{name}{_MASKED}"] if member[2] else []
                count, left_bytes = count + 1, left_bytes - member[0].size
                sha.update(
                    f"{name}\0{member[0].mode}\0{member[0].linkname}\0{member[0].size}\0".encode(errors="replace")
                )
                sha.update(member[1])
                archive.addfile(member[0], io.BytesIO(member[1]))
    return KeptSources(str(root), git.commit, count, sha.hexdigest(), tuple(left_out), tuple(deleted))


def _list_code(cwd: Path) -> tuple[list[str], list[str]]:
    """Return the files of the code in a directory without git, and why they are not all: then its source files."""
    try:
        return [file.path for file in read_code_directory(cwd, _MOST_BYTES).files], []
    except BadArgument as error:
        found, is_cut = list_sources(cwd)
        more = [f"more than {len(found):,} source files"] if is_cut else []
        return [str(path.relative_to(cwd)) for path in found], [str(error), *more]


def is_code(root: Path, name: str) -> bool:
    """Return whether an untracked file is code: neither data, an output, nor what may hold keys."""
    above = [str(path) for path in Path(name).parents][:-1]
    with contextlib.suppress(OSError):
        if (root / name).is_symlink() and (root / name).readlink().is_absolute():  # as a kept copy has to its data
            return False
        if not name.endswith(SOURCES) and (root / name).lstat().st_size > _MOST_FILE_BYTES:
            return False
    return not any(stays_behind(root, one, (), is_directory=one != name) for one in (name, *above))


def _read_member(
    root: Path, name: str, secrets: Mapping[str, str], left_bytes: int
) -> tuple[tarfile.TarInfo, bytes, bool] | str | None:
    """Return a file or link, its content and whether secrets are masked in it; None: it is gone; else why it is not."""
    path, member = root / name, tarfile.TarInfo(name)
    try:
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)  # noqa: PTH115 - a text, not a path
            return member, b"", False
        if not stat.S_ISREG(status.st_mode):
            return None if stat.S_ISDIR(status.st_mode) else f"{name}: no regular file"
        if status.st_size > min(_MOST_FILE_BYTES, left_bytes):
            return f"{name}: {status.st_size:,} bytes"
        data = read_regular_file(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return f"{name}: {getattr(error, 'strerror', None) or error}"
    text = data.decode("latin-1")
    is_masked = (shown := mask_source(text, secrets)) != text
    if is_masked and not name.endswith(SOURCES):
        return f"{name}{_MASKED}"
    data = shown.encode("latin-1", "replace") if is_masked else data
    member.size, member.mode = len(data), 0o755 if status.st_mode & stat.S_IXUSR else 0o644
    return member, data, is_masked


# --- laid out again


def find_obstacle(snapshot: CodeSnapshot) -> str:
    """Return why the code cannot be laid out here as it was, empty where it can. Starts git, and changes nothing."""
    sources, git = snapshot.archive, snapshot.git
    if not sources.root:
        return "its source files were not kept"
    if sources.left_out:
        return f"not kept: {'; '.join(sources.left_out)}"
    for path, commit in {"": git.commit, **git.submodules}.items() if snapshot.archive.commit else ():
        repository = Path(git.root, path)
        try:
            if not has_commit(str(repository), commit):
                return f"{repository} has no commit {commit[:12]}"
        except OSError as error:
            return f"git: {error.strerror}"
    return ""


def restore_sources(snapshot: CodeSnapshot, there: Path) -> None:
    """Make the directory ``there`` with the code as it was. OSError, subprocess.SubprocessError: it cannot be made.

    What is not code (ignored by git, data) is linked to where it is.
    """
    root, git = Path(snapshot.archive.root), snapshot.git
    there.parent.mkdir(mode=0o700, exist_ok=True)
    try:
        if snapshot.archive.commit:
            for path, commit in {"": git.commit, **git.submodules}.items():
                words = ("worktree", "add", "--quiet", "--force", "--detach", str(there / path), commit)
                run_git_unfiltered(str(root / path), *words)
        else:
            there.mkdir(mode=0o700)
        for name in snapshot.archive.deleted:
            _remove(there, name)
        _unpack(snapshot.directory / SOURCES_ARCHIVE, there)
        for name in list_not_code(snapshot):
            _link(root, there, name)
    except (OSError, subprocess.SubprocessError):
        shutil.rmtree(there, ignore_errors=True)
        raise


def list_not_code(snapshot: CodeSnapshot) -> list[str]:
    """Return what lies in the former directory now and is not code, by path below it."""
    root, git = Path(snapshot.archive.root), snapshot.git
    names: list[str] = []
    if not snapshot.archive.commit:
        with contextlib.suppress(BadArgument):
            names = list(read_code_directory(root, 1 << 40).left_out)
    for path in ("", *git.submodules) if snapshot.archive.commit else ():
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            words = ("ls-files", "--others", "--directory", "--exclude-standard", "-z")
            for more in ((), ("--ignored",)):
                listed = run_git(str(root / path), *words, *more).decode("utf-8", "surrogateescape").split("\0")
                below = [f"{path}/{name}" if path else name for name in listed if name]
                names += [one for one in below if more or not is_code(root, one.rstrip("/"))]
    kept = {name.rstrip("/") for name in names if "__pycache__" not in name}
    return sorted(name for name in kept if name not in git.submodules)[:_MOST_LINKS]


def list_directories(snapshot: CodeSnapshot) -> set[str]:
    """Return the directories that hold code, by path below the former root, which is empty."""
    git, names = snapshot.git, set[str]()
    for path, commit in {"": git.commit, **git.submodules}.items() if snapshot.archive.commit else ():
        words = ("ls-tree", "-r", "-d", "--name-only", "-z", commit)
        listed = run_git(str(Path(git.root, path)), *words).decode("utf-8", "surrogateescape").split("\0")
        names |= {path, *(f"{path}/{name}".lstrip("/") for name in listed)}
    with tarfile.open(snapshot.directory / SOURCES_ARCHIVE) as archive:
        names.update(str(above) for name in archive.getnames() for above in Path(name).parents)
    return (names | {""}) - {"."}


def _unpack(path: Path, there: Path) -> None:
    with tarfile.open(path) as archive:
        for member in archive:
            target = _find_target(there, member.name)
            _remove(there, member.name)
            target.parent.mkdir(parents=True, exist_ok=True)
            if member.issym():
                target.symlink_to(member.linkname)
            elif (content := archive.extractfile(member)) is not None:
                with target.open("xb") as file:
                    shutil.copyfileobj(content, file)
                target.chmod(member.mode & 0o755)


def _find_target(there: Path, name: str) -> Path:
    """Return the path of a file below ``there``. OSError: it would lead out."""
    target = there / name
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise OSError(0, f"{name} leads out of the directory")
    for above in target.relative_to(there).parents:
        if (there / above).is_symlink():  # a directory is now where a link was
            (there / above).unlink()
    return target


def _remove(there: Path, name: str) -> None:
    target = there / name
    if target.is_symlink() or target.is_file():
        target.unlink()
    elif target.is_dir():
        shutil.rmtree(target)


def _link(root: Path, there: Path, name: str) -> None:
    target = there / name
    if not (target.is_symlink() or target.exists()):
        target.parent.mkdir(parents=True, exist_ok=True)
        original = root / name
        if original.is_symlink() and original.readlink().is_absolute():  # of a directory that was laid out itself
            original = original.readlink()
        target.symlink_to(original)


def list_changed_sources(snapshot: CodeSnapshot, root: Path) -> list[str]:
    """Return the files of the archive that are others below ``root`` now, or gone."""
    changed = []
    with contextlib.suppress(OSError, tarfile.TarError), tarfile.open(snapshot.directory / SOURCES_ARCHIVE) as archive:
        for member in archive:
            if f"{member.name}{_MASKED}" in snapshot.archive.left_out:
                continue
            path, content = root / member.name, archive.extractfile(member) if member.isreg() else None
            try:
                if content is None:
                    is_same = os.fspath(path.readlink()) == member.linkname
                else:
                    is_same = path.lstat().st_size == member.size and read_regular_file(path) == content.read()
            except (OSError, ValueError):
                is_same = False
            changed += [] if is_same else [member.name]
    return changed


# --- git, with what it writes


def has_commit(repository: str, commit: str) -> bool:
    """Return whether a repository has a commit."""
    try:
        run_git(repository, "cat-file", "-e", f"{commit}^{{commit}}")
    except subprocess.SubprocessError:
        return False
    return True


def run_git_unfiltered(directory: str, *words: str, data: bytes = b"") -> bytes:
    """Return the output of git, which starts no filter program of a clone's settings."""
    return run_git(directory, *list_filter_options(Path(directory), os.environ), *words, data=data)


def run_git(directory: str, *words: str, data: bytes = b"", env: Mapping[str, str] | None = None) -> bytes:
    """Return the output of git. OSError, subprocess.SubprocessError: it failed, with the line that says why."""
    # GIT_DIR and its like would lead git to another repository than `directory`.
    env = {**{name: value for name, value in os.environ.items() if not name.startswith("GIT_")}, **(env or {})}
    env |= {"GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none", "LC_ALL": "C"}
    command = [*_GIT, "-C", directory, *words]
    process = subprocess.run(command, input=data, capture_output=True, check=False, env=env, timeout=_GIT_S)
    if process.returncode:
        raise subprocess.SubprocessError(quote_git_failure(process.stderr.decode(errors="replace")))
    return process.stdout


def list_committed(repository: str, former: str, now: str) -> set[str]:
    """Return the files in which two commits differ, none where that cannot be told."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        words = ("diff", "--name-only", "-z", "--no-renames", "--no-ext-diff", "--ignore-submodules=all", former, now)
        return {*filter(None, run_git(repository, *words, "--").decode("utf-8", "replace").split("\0"))}
    return set()


# --- data that the command names

_DATA_KINDS = ("checkpoint", "data file", "data directory", "model")
_DRIVER = Path("/proc/driver/nvidia/version")


def look_at_inputs(
    command: str | list[str], params: Mapping[str, object], cwd: str, known: Collection[str] = ()
) -> tuple[NamedInput, ...]:
    """Return data, checkpoints and models that a command certainly reads, as they are now; one that is gone has -1.

    So are files of any other option that are there, or that ``known`` paths say were: no code, no output.
    """
    read = parse(command)
    found: dict[str, NamedInput] = {}
    for file in (*find_inputs(read), *find_param_inputs(params, read)):
        if file.kind in _DATA_KINDS and len(found) < _MOST_INPUTS:
            path = Path(cwd or "/").joinpath(*file.base, Path(file.path).expanduser())
            found[str(path)] = _look_at(path, file.kind)
    for name, value in {**read.split_options()[0], **params}.items():
        path = Path(cwd or "/", str(value))
        is_input = str(path) in known or _is_data(path)
        if is_input and not (names_an_output(name) or names_a_place(name)) and len(found) < _MOST_INPUTS:
            found.setdefault(str(path), _look_at(path, "data file"))
    return tuple(found.values())


def _is_data(path: Path) -> bool:
    try:
        return path.suffix not in _NO_DATA and path.is_file()
    except (OSError, ValueError):  # a text that is no path
        return False


def _look_at(path: Path, kind: str) -> NamedInput:
    try:
        status = path.stat()
        entries = len(list(itertools.islice(path.iterdir(), _MOST_ENTRIES))) if stat.S_ISDIR(status.st_mode) else 0
    except OSError:
        return NamedInput(str(path), kind, -1)
    return NamedInput(str(path), kind, status.st_size, status.st_mtime_ns, entries)


def read_driver() -> str:
    """Return the version of this machine's NVIDIA driver, empty without one."""
    with contextlib.suppress(OSError):
        if match := re.search(r"Module.*?\s(\d+(?:\.\d+)+)\s", _DRIVER.read_text(errors="replace")):
            return match[1]
    return ""
