"""The supervisor's program, which needs nothing but Python 3.9: a copy for the runs of this host, a file for others.

`python3 -I -S FILE RUN_DIR` supervises a run, as `python -I -S mcp_server/supervisor RUN_DIR` does here.
`python3 -I -S FILE --relay STATE` serves a server of another host, which started it over ssh.
`python3 -I FILE --nvml …` queries the GPUs, as `mcp_server/gpus/nvml` does. nvidia-ml-py is in the file, if it is
installed here. So give each content a name of its own, and never replace a file under a living run.

A supervisor imports modules until the end of its run, days later. Its program lies in the state directory, one copy for
each content, so that an upgrade or a removed environment takes nothing away from a living run.

Servers and supervisors hold a shared lock of the copy that they use, for as long as they live. A copy is removed only
under its exclusive lock, so none that a launch under way has chosen.
"""

import contextlib
import functools
import hashlib
import importlib.util
import io
import os
import re
import secrets
import shutil
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from mcp_server.system.files import open_private
from mcp_server.system.lock_files import LOCK_NAME, share_lock, try_lock

ROOMS = ("text", "system", "command", "record", "diagnosis", "recovery", "gpus", "supervisor", "relay")
MODULES = ("__init__.py", "errors.py")
OLDEST_PYTHON = (3, 9)

PACKAGE = Path(__file__).parents[1]
_SUFFIXES = (".py", ".rows")
_OLDEST_ZIP_TIME = (1980, 1, 1, 0, 0, 0)
_FILE_MODE = 0o644
# Any Python can parse it, so that one that is too old says so.
_MAIN = f"""\
import sys

if sys.version_info < {OLDEST_PYTHON}:
    sys.exit("runward needs Python {".".join(map(str, OLDEST_PYTHON))} or newer, this is %d.%d." % sys.version_info[:2])

if sys.argv[1:2] == ["--nvml"]:
    del sys.argv[1]
    from mcp_server.gpus.nvml.__main__ import main

    sys.exit(main())

if sys.argv[1:2] == ["--relay"]:
    del sys.argv[1]
    from mcp_server.relay.__main__ import main
else:
    from mcp_server.supervisor.__main__ import main

sys.exit(main())
"""


class Source(NamedTuple):
    """A file of the supervisor's program, and when it was last modified."""

    path: Path
    content: bytes
    modified_ns: int

    @property
    def name(self) -> str:
        """The path below the package."""
        return self.path.relative_to(PACKAGE).as_posix()


@functools.cache
def read_sources() -> tuple[Source, ...]:
    """Return the supervisor's program in a fixed order, read once: a package that is replaced later changes nothing."""
    paths = [PACKAGE / name for name in MODULES]
    for room in ROOMS:
        paths += sorted(path for path in (PACKAGE / room).rglob("*.*") if path.suffix in _SUFFIXES)
    return tuple(Source(path, path.read_bytes(), path.stat().st_mtime_ns) for path in paths)


def pack_zipapp() -> bytes:
    """Return the program as one file; the same sources give the same bytes, wherever and whenever it is built."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:  # compressed, bytes depend on zlib's version
        for name, text in _sources():
            entry = zipfile.ZipInfo(name, _OLDEST_ZIP_TIME)
            entry.external_attr = _FILE_MODE << 16
            entry.create_system = 3  # Unix
            archive.writestr(entry, text)
    return content.getvalue()


def _sources() -> Iterator[tuple[str, bytes]]:
    yield "__main__.py", _MAIN.encode()
    library = importlib.util.find_spec("pynvml")
    if library is not None and library.origin is not None and library.origin.endswith("pynvml.py"):
        yield "pynvml.py", Path(library.origin).read_bytes()  # one file without dependencies, where a host has none
    for source in read_sources():
        yield f"{PACKAGE.name}/{source.name}", source.content


_DIRECTORY = "supervisors"
_DIGITS = 16
_TRIES = 5  # of what another process may remove in the same moment
_COPY = re.compile(rf"[0-9a-f]{{{_DIGITS}}}")
_PART = re.compile(r"\.[0-9a-f]{16}-[0-9a-f]{8}")
_MAIN_FILE = "__main__.py"
_WRITERS = 8  # where each write takes long, most of it is waiting
_COPIED_WITHIN_S = 10.0
_ABANDONED_S = 3600.0  # the writer of a half-made copy of that age has exited

_chosen: dict[Path, Path] = {}  # the program by the state directory
_choosing = threading.Lock()


def supervisor_program(home: Path) -> Path:
    """Return the path of the supervisor's program in the state directory ``home``, copied there if it is missing.

    Where it cannot be copied, that is the installed one, for all launches of this process where copying took too long.
    """
    try:
        return _copied_program(home)
    except OSError as error:
        installed = PACKAGE / "supervisor"
        if isinstance(error, TimeoutError):
            _chosen[home] = installed
        return installed


def remove_unused_copies(home: Path) -> None:
    """Remove the copies that no server and no supervisor uses, but for the newest one."""
    with contextlib.suppress(OSError):
        copies = [path for path in (home / _DIRECTORY).iterdir() if path.is_dir()]
        for path in copies:
            if _PART.fullmatch(path.name) and time.time() - path.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(path, ignore_errors=True)
        whole = sorted((path for path in copies if _COPY.fullmatch(path.name)), key=lambda path: path.stat().st_mtime)
        for path in whole[:-1]:
            _remove_unless_used(path)


def _remove_unless_used(directory: Path) -> None:
    with contextlib.suppress(OSError):
        fd = open_private(str(directory / LOCK_NAME), os.O_RDWR | os.O_CREAT)
        try:
            if try_lock(fd):
                removed = directory.with_name(f".{directory.name}-{secrets.token_hex(4)}")
                directory.rename(removed)
                shutil.rmtree(removed, ignore_errors=True)
        finally:
            os.close(fd)


def _copied_program(home: Path) -> Path:
    """Return the copy that this process chose for ``home``, made anew where somebody has removed or moved it."""
    with _choosing:
        program = _chosen.get(home)
        if program is None or not (program / _MAIN_FILE).exists():
            program = _chosen[home] = _choose_copy(home)
        return program


def _choose_copy(home: Path) -> Path:
    digest = hashlib.sha256()
    for source in read_sources():
        digest.update(f"{source.name}\0".encode() + source.content + b"\0")
    directory = home / _DIRECTORY / digest.hexdigest()[:_DIGITS]
    for _ in range(_TRIES):
        if not directory.exists():
            _copy(directory)
        if _hold(directory):
            return directory / PACKAGE.name / "supervisor"
    raise OSError(f"{directory} is removed again and again")


def _hold(directory: Path) -> bool:
    """Share the lock of a copy until this process exits; return False if the copy was removed meanwhile."""
    try:
        fd = open_private(str(directory / LOCK_NAME), os.O_RDWR | os.O_CREAT)
    except FileNotFoundError:
        return False
    share_lock(fd)
    with contextlib.suppress(OSError):
        if os.path.samestat(os.fstat(fd), (directory / LOCK_NAME).stat()):
            os.utime(directory)  # the newest copy is the one that was used last
            return True
    os.close(fd)
    return False


def _copy(directory: Path) -> None:
    """Copy the sources and what Python has compiled of them; other processes see all of it or nothing.

    Raises:
        TimeoutError: it took longer than 10 s; what was made lies there for `remove_unused_copies`.
    """
    directory.parent.mkdir(mode=0o700, exist_ok=True)
    part = directory.with_name(f".{directory.name}-{secrets.token_hex(4)}")
    give_up_s = time.monotonic() + _COPIED_WITHIN_S
    try:
        files = {part / PACKAGE.name / source.name: source for source in read_sources()}
        for missing in sorted({above for copy in files for above in copy.parents} - {*part.parents}):
            _stop_if_late(give_up_s)
            missing.mkdir(mode=0o700)
            (missing / "__pycache__").mkdir(mode=0o700)  # a supervisor that compiles makes it readable by others
        with ThreadPoolExecutor(_WRITERS) as writers:
            for _ in writers.map(partial(_copy_source, give_up_s), files.values(), files):
                pass
        try:
            part.rename(directory)
        except OSError:
            if not directory.exists():  # else another process was faster
                raise
    finally:
        if time.monotonic() < give_up_s:  # else its removal takes as long: it waits for `remove_unused_copies`
            shutil.rmtree(part, ignore_errors=True)


def _stop_if_late(give_up_s: float) -> None:
    if time.monotonic() > give_up_s:
        raise TimeoutError("the state directory takes too long to write to")


def _copy_source(give_up_s: float, source: Source, copy: Path) -> None:
    """Copy a source, and what Python has compiled of it."""
    _stop_if_late(give_up_s)
    _write(copy, source.content, source.modified_ns)
    if source.path.suffix == ".py":
        with contextlib.suppress(FileNotFoundError):
            compiled = Path(importlib.util.cache_from_source(str(source.path))).read_bytes()
            _write(Path(importlib.util.cache_from_source(str(copy))), compiled, source.modified_ns)


def _write(path: Path, content: bytes, modified_ns: int) -> None:
    with open(open_private(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:  # noqa: PTH123 - a descriptor
        file.write(content)
        file.flush()
        os.utime(file.fileno(), ns=(modified_ns,) * 2)  # the compiled file is valid for this time of its source alone
