"""One picture of several scalars: drawn by a process of its own, so that the server stays small and quick.

``python -I plot.py`` reads panels as JSON from stdin and writes a PNG to stdout.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

MOST_PANELS = 6
POINTS = 2000  # of a line: two a pixel, with the extremes of each bucket among them
MOST_BYTES = 200_000

_TIME_LIMIT_S = 60.0
_WIDTH, _HEIGHT, _DPI = 9.0, 5.0, 100  # inches; 900 x 500 pixels
_WIDER_FROM = 4  # panels: three columns, and smaller letters
_LOG_SPAN = 10**2.5  # from which a logarithmic axis says more
_LONGEST_TITLES = {1: 100, 2: 48, 3: 32}  # characters, by columns
_LONGEST_LABEL, _SHORT_LABEL = 40, 16
_COLOURS = ("#1f6fb4", "#e1701a", "#2c9c4b", "#c0392b", "#8157b3", "#7a5548", "#d65fa6", "#6f7680")
_DASHES = ("-", "--", ":")


@dataclass(frozen=True)
class Line:
    """One curve: finite points, the steps at which the value was none, and the middle of a rough curve."""

    label: str
    steps: Sequence[int]
    values: Sequence[float]
    odd: Sequence[int] = ()
    middle: tuple[Sequence[float], Sequence[float]] = ((), ())


@dataclass(frozen=True)
class Panel:
    """One pair of axes, and the lines in it."""

    title: str
    lines: Sequence[Line]


class NotDrawn(Exception):
    """No picture came; says why."""


def picture(panels: Sequence[Panel]) -> bytes:
    """Return a PNG of 900 x 500 pixels, at most 200 KB, of up to six panels.

    Raises:
        NotDrawn: matplotlib is missing, failed, or took longer than a minute.
    """
    request = json.dumps([asdict(panel) for panel in panels[:MOST_PANELS]])
    with _place_for_fonts() as place:
        environ = {**os.environ, "MPLCONFIGDIR": place, "MPLBACKEND": "agg"}
        try:
            done = subprocess.run(
                [sys.executable, "-I", __file__],
                input=request.encode(),
                capture_output=True,
                env=environ,
                timeout=_TIME_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise NotDrawn(f"it took longer than {_TIME_LIMIT_S:.0f} s") from error
    if done.returncode or not done.stdout.startswith(b"\x89PNG"):
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise NotDrawn(said[-1][:200] if said else f"the drawing process ended with {done.returncode}")
    return done.stdout


@contextmanager
def _place_for_fonts() -> Iterator[str]:
    """Give a directory for matplotlib's list of fonts: making it takes a second, so it is kept between pictures."""
    kept = Path(tempfile.gettempdir()) / f"runward-matplotlib-{os.getuid()}"
    try:
        kept.mkdir(mode=0o700, exist_ok=True)
        ours = kept.lstat().st_uid == os.getuid() and not kept.is_symlink()
    except OSError:
        ours = False
    if ours:
        yield str(kept)
        return
    with tempfile.TemporaryDirectory(prefix="runward-matplotlib-", ignore_cleanup_errors=True) as place:
        yield place


def is_log(lines: Sequence[Line]) -> bool:
    """Tell whether an axis should be logarithmic: all values positive, over more than 2.5 decades."""
    values = [value for line in lines for value in line.values]
    return bool(values) and min(values) > 0 and max(values) / min(values) > _LOG_SPAN


def short(step: float) -> str:
    """Write a step as an axis has room for it: ``900``, ``1.5k``, ``20M``."""
    for unit, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if unit <= abs(step) < 1000 * unit:
            return f"{step / unit:.4g}{sign}"
    return f"{step:.3g}"


def main() -> int:
    """Draw what stdin asks for."""
    asked = json.load(sys.stdin)
    panels = [Panel(p["title"], [Line(**line) for line in p["lines"]]) for p in asked]
    sys.stdout.buffer.write(_draw(panels))
    return 0


def _draw(panels: Sequence[Panel]) -> bytes:
    """Draw all panels; one whose letters have no glyph or whose layout is tight is drawn all the same."""
    import io  # noqa: PLC0415 - here and below: of the drawing process alone
    import warnings  # noqa: PLC0415

    warnings.simplefilter("ignore")
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    wide = len(panels) >= _WIDER_FROM
    columns = 3 if len(panels) > _WIDER_FROM else 2 if len(panels) > 1 else 1
    rows = -(-len(panels) // columns)
    mpl.rcParams.update({"font.size": 8 if wide else 9})
    figure = Figure(figsize=(_WIDTH, _HEIGHT), dpi=_DPI, layout="constrained")
    labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
    looks = {label: _look(number) for number, label in enumerate(labels)}  # a run looks the same in all panels
    for number, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, number)
        _panel(axes, panel, looks, _LONGEST_TITLES[columns], last_row=number > len(panels) - columns)
    if len(labels) > 1:
        _legend(figure, looks)
    for dpi in (_DPI, _DPI // 2):
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=dpi, pil_kwargs={"optimize": True})
        if buffer.tell() <= MOST_BYTES:
            break
    return buffer.getvalue()


def _legend(figure: Any, looks: Mapping[str, Mapping[str, Any]]) -> None:
    from matplotlib.lines import Line2D  # noqa: PLC0415

    figure.legend(
        [Line2D([], [], linewidth=2, **look) for look in looks.values()],
        [_cut(_plain(label), _LONGEST_LABEL) for label in looks],
        loc="outside upper center",
        ncols=min(len(looks), 6 if max(map(len, looks)) <= _SHORT_LABEL else 3),
        frameon=False,
    )
    for text in figure.legends[0].get_texts():
        text.set_parse_math(False)


def _panel(axes: Any, panel: Panel, looks: Mapping[str, Mapping[str, Any]], longest: int, *, last_row: bool) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter  # noqa: PLC0415

    logarithmic = is_log(panel.lines)
    stepless = all(len(set(line.steps)) == 1 for line in panel.lines) and any(
        len(line.steps) > 1 for line in panel.lines
    )
    for line in panel.lines:
        _line(
            axes,
            replace(line, steps=range(len(line.steps)), middle=((), ())) if stepless else line,
            looks[line.label],
            faint=0.4 if len(panel.lines) == 1 else 0.2,
        )
    title = _cut(_plain(panel.title), longest) + ("  (log)" if logarithmic else "")
    axes.set_title(title, fontweight="bold", fontsize="medium", parse_math=False)
    if logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: short(step)))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if last_row or stepless:
        axes.set_xlabel("point (no steps were told)" if stepless else "step")
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.01)
    if not any(line.values for line in panel.lines):
        axes.set_yticks([])
        axes.text(0.5, 0.5, "no finite value", transform=axes.transAxes, ha="center", va="center", color="#888888")


def _line(axes: Any, line: Line, look: Mapping[str, Any], faint: float) -> None:
    few, rough = len(line.values) <= 1, bool(line.middle[0])
    axes.plot(
        line.steps,
        line.values,
        **look,
        alpha=faint if rough else 0.9,
        linewidth=0.7 if rough else 1.3,
        marker="o" if few else None,
        markersize=4,
        zorder=2,
    )
    if rough:
        axes.plot(*line.middle, **look, linewidth=1.6, zorder=3)
    if line.odd:
        # At the bottom edge, whatever the values are: a NaN has no height.
        axes.plot(
            line.odd,
            [0.0] * len(line.odd),
            transform=axes.get_xaxis_transform(),
            linestyle="",
            marker="x",
            color="#d00000",
            markersize=7,
            markeredgewidth=1.8,
            clip_on=False,
            zorder=4,
        )
        axes.annotate(
            "NaN/Inf",
            (line.odd[0], 0.0),
            xycoords=axes.get_xaxis_transform(),
            xytext=(4, 5),
            textcoords="offset points",
            color="#d00000",
            fontsize="small",
        )


def _look(number: int) -> dict[str, Any]:
    """Return colour and dashes of a run."""
    colours = len(_COLOURS)
    return {"color": _COLOURS[number % colours], "linestyle": _DASHES[number // colours % len(_DASHES)]}


def _plain(text: str) -> str:
    """Put a tag on one line; a glyph stands for what cannot be printed."""
    return "".join(sign if sign.isprintable() else "·" for sign in text)


def _cut(text: str, longest: int) -> str:
    """Shorten in the middle: tags differ at their ends."""
    return text if len(text) <= longest else f"{text[: longest // 3]}…{text[longest // 3 + 1 - longest :]}"


if __name__ == "__main__":
    sys.exit(main())
