"""Files with scalars, and short functions to read them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mcp_server.scalars.formats.detect import SourceReader, find_sources
from mcp_server.scalars.series import RunScalars

START_S = 1_700_000_000.0


def read(path: Path) -> RunScalars:
    """The scalars of the only source at ``path``."""
    (source,) = find_sources(path)
    return SourceReader().read(source)


def points(run: RunScalars, tag: str) -> list[tuple[int, float]]:
    series = run.series[tag]
    return list(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def csv_file(directory: Path, text: str | bytes, name: str = "metrics.csv") -> Path:
    path = directory / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def listing(directory: Path) -> list[tuple[str, int, int]]:
    return sorted((p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in directory.iterdir())


@contextmanager
def unchanged(directory: Path) -> Iterator[None]:
    """Nothing in a directory is created, changed or touched."""
    before = listing(directory)
    yield
    assert listing(directory) == before
