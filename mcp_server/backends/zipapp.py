"""The supervisor as one file for hosts without an installation: the rooms that need nothing but Python 3.9 or newer.

`python3 -I -S FILE RUN_DIR` supervises a run, as `python -I -S mcp_server/supervisor RUN_DIR` does here.
`python3 -I -S FILE --relay STATE` serves a server of another host, which started it over ssh.
`python3 -I FILE --nvml …` queries the GPUs, as `mcp_server/gpus/nvml` does. nvidia-ml-py is in the file, if it is
installed here.

A supervisor reads modules from the file as it needs them. So give each content a name of its own, and never replace a
file under a living run.
"""

import functools
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mcp_server.system.files import write_atomic

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


def build_zipapp(path: Path) -> None:
    """Write the file; the same sources give the same bytes, wherever and whenever it is built."""
    write_atomic(path, pack_zipapp(), mode=_FILE_MODE)


def pack_zipapp() -> bytes:
    """Return the content of the file."""
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
