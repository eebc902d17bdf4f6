"""A picture of several scalars, drawn by a process of its own, so that the server loads no matplotlib."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mcp_server.errors import RunwardError

_DRAWING = str(Path(__file__).with_name("drawing.py"))
_EXIT_NO_MATPLOTLIB = 3

MOST_PANELS = 6
CURVE_POINTS = 2000  # two a pixel, with the extremes of each bucket among them

_TIME_LIMIT_S = 60.0


@dataclass(frozen=True)
class Curve:
    """One series: finite points, the steps of NaN and infinite values, and the median curve of a noisy one."""

    label: str
    steps: Sequence[int]
    values: Sequence[float]
    odd: Sequence[int] = ()
    middle: tuple[Sequence[float], Sequence[float]] = ((), ())
    band: tuple[Sequence[float], Sequence[float]] = ((), ())  # lower and upper values at these steps


@dataclass(frozen=True)
class Bar:
    """A mean with its deviation, None where there is none, and the values that it is the mean of."""

    label: str
    mean: float
    deviation: float | None
    values: Sequence[float]


@dataclass(frozen=True)
class Axis:
    """An upright axis of parallel coordinates, with texts at heights from 0 to 1."""

    name: str
    ticks: Sequence[tuple[float, str]]


@dataclass(frozen=True)
class Panel:
    """One pair of axes: with curves, with bars, or with lines across upright axes, a height on each for every line."""

    title: str
    curves: Sequence[Curve] = ()
    bars: Sequence[Bar] = ()
    axes: Sequence[Axis] = ()
    lines: Mapping[str, Sequence[float]] = field(default_factory=dict)


class NotDrawn(RunwardError):
    """No picture was drawn. The cause says why."""

    def __init__(self, cause: str, remedy: str = "") -> None:
        super().__init__(f"{cause}.", "No picture was drawn.", remedy)


def draw_picture(panels: Sequence[Panel], form: str = "") -> bytes:
    """Return a PNG of 900 x 500 pixels, at most 200 KB, of up to six panels.

    ``form``: "png", "svg" or "pdf" for a picture of 1800 x 1350 pixels of any size, for a paper.

    Raises:
        NotDrawn: matplotlib is missing, failed, or took longer than a minute.
    """
    request = json.dumps({"panels": [asdict(panel) for panel in panels[:MOST_PANELS]], "form": form})
    with _font_cache_directory() as directory:
        environ = {**os.environ, "MPLCONFIGDIR": directory, "MPLBACKEND": "agg"}
        try:
            process = subprocess.run(
                [sys.executable, "-I", _DRAWING],
                input=request.encode(),
                capture_output=True,
                env=environ,
                timeout=_TIME_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise NotDrawn(f"drawing took longer than {_TIME_LIMIT_S:.0f} s") from error
    if process.returncode == _EXIT_NO_MATPLOTLIB:
        raise NotDrawn("matplotlib is not installed", "A person can run: pip install 'matplotlib>=3.9'")
    if process.returncode or not process.stdout.startswith((b"\x89PNG", b"<?xml", b"%PDF")):
        lines = process.stderr.decode(errors="replace").strip().splitlines()
        raise NotDrawn(lines[-1][:200] if lines else f"the drawing process ended with {process.returncode}")
    return process.stdout


@contextmanager
def _font_cache_directory() -> Iterator[str]:
    """Yield a directory for matplotlib's font list: building it takes a second, so it is kept between pictures."""
    directory_path = Path(tempfile.gettempdir()) / f"runward-matplotlib-{os.getuid()}"
    try:
        directory_path.mkdir(mode=0o700, exist_ok=True)
        is_own = directory_path.lstat().st_uid == os.getuid() and not directory_path.is_symlink()
    except OSError:
        is_own = False
    if is_own:
        yield str(directory_path)
        return
    with tempfile.TemporaryDirectory(prefix="runward-matplotlib-", ignore_cleanup_errors=True) as directory:
        yield directory
