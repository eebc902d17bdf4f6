"""The drawing process of plot.py: ``python -I drawing.py`` reads panels as JSON from stdin, writes a picture to stdout.

It imports matplotlib and nothing of this package, so it runs wherever its interpreter finds matplotlib.
"""

import importlib.util
import io
import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

if importlib.util.find_spec("matplotlib") is None:
    sys.exit(3)  # plot.py says how to install it
import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

MOST_BYTES = 200_000

_WIDTH, _HEIGHT, _DPI = 9.0, 5.0, 100  # inches; 900 x 500 pixels
_PAPER = 12.0, 9.0, 150  # inches, and pixels an inch
_WIDER_FROM = 4  # panels: three columns, and smaller letters
_LOG_SPAN = 10**2.5  # from which a logarithmic axis shows more
_LONGEST_TITLES = {1: 100, 2: 48, 3: 32}  # characters, by columns
_LONGEST_LABEL, _SHORT_LABEL = 40, 16
_COLOURS = ("#1f6fb4", "#e1701a", "#2c9c4b", "#c0392b", "#8157b3", "#7a5548", "#d65fa6", "#6f7680")
_DASHES = ("-", "--", ":")
_Styles = Mapping[str, Mapping[str, Any]]  # by label


def main() -> int:
    """Draw the panels of stdin, as plot.Panel has them."""
    request = json.load(sys.stdin)
    sys.stdout.buffer.write(_draw(request["panels"], request["form"]))
    return 0


def is_log(values: Sequence[float]) -> bool:
    """Return whether an axis should be logarithmic: all values positive, over more than 2.5 decades."""
    return bool(values) and min(values) > 0 and max(values) / min(values) > _LOG_SPAN


def format_step(step: float) -> str:
    """Return a step as an axis has room for it: ``900``, ``1.5k``, ``20M``."""
    for unit, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if unit <= abs(step) < 1000 * unit:
            return f"{step / unit:.4g}{sign}"
    return f"{step:.3g}"


def _draw(panels: Sequence[Mapping[str, Any]], form: str) -> bytes:
    """Draw all panels, the last one across the picture where it stands alone. A missing glyph is only a warning."""
    warnings.simplefilter("ignore")
    small = len(panels) >= _WIDER_FROM
    columns = 3 if len(panels) > _WIDER_FROM else 2 if len(panels) > 1 else 1
    rows = -(-len(panels) // columns)
    mpl.rcParams.update({"font.size": 8 if small else 9, "svg.fonttype": "none"})
    width, height, dpi = _PAPER if form else (_WIDTH, _HEIGHT, _DPI)
    figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    labels = list(
        dict.fromkeys(
            label
            for panel in panels
            for label in (*(each["label"] for each in (*panel["curves"], *panel["bars"])), *panel["lines"])
        )
    )
    styles = {label: _style(number) for number, label in enumerate(labels)}  # a run has one style in all panels
    for number, panel in enumerate(panels, start=1):
        is_wide = bool(form) and number == len(panels) and number % columns == 1
        axes = figure.add_subplot(rows, columns, (number, number + columns - 1) if is_wide else number)
        draw = _draw_bars if panel["bars"] else _draw_parallel if panel["axes"] else _draw_panel
        draw(axes, panel, styles, is_last_row=bool(form) or number > len(panels) - columns)
        title = _fit(panel["title"], _LONGEST_TITLES[columns]) + ("  (log)" if axes.get_yscale() == "log" else "")
        axes.set_title(title, fontweight="bold", fontsize="medium", parse_math=False)
        axes.spines[["top", "right"]].set_visible(False)
    if len(labels) > 1:
        _draw_legend(figure, styles)
    if form:
        buffer = io.BytesIO()
        figure.savefig(buffer, format=form)
        return buffer.getvalue()
    for dpi in (_DPI, _DPI // 2):
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=dpi, pil_kwargs={"optimize": True})
        if buffer.tell() <= MOST_BYTES:
            break
    return buffer.getvalue()


def _draw_legend(figure: Any, styles: _Styles) -> None:
    figure.legend(
        [Line2D([], [], linewidth=2, **style) for style in styles.values()],
        [_fit(label, _LONGEST_LABEL) for label in styles],
        loc="outside upper center",
        ncols=min(len(styles), 6 if max(map(len, styles)) <= _SHORT_LABEL else 3),
        frameon=False,
    )
    for text in figure.legends[0].get_texts():
        text.set_parse_math(False)


def _draw_panel(axes: Any, panel: Mapping[str, Any], styles: _Styles, *, is_last_row: bool) -> None:
    curves = panel["curves"]
    values = [value for curve in curves for value in curve["values"]]
    stepless = all(len(set(curve["steps"])) == 1 for curve in curves) and any(len(c["steps"]) > 1 for c in curves)
    for curve in curves:
        counted = {**curve, "steps": range(len(curve["steps"])), "middle": ((), ())} if stepless else curve
        _draw_curve(axes, counted, styles[curve["label"]], faint=0.4 if len(curves) == 1 else 0.2)
    if is_log(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: format_step(step)))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if is_last_row or stepless:
        axes.set_xlabel("point (no steps were logged)" if stepless else "step")
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.margins(x=0.01)
    if not values:
        axes.set_yticks([])
        axes.text(0.5, 0.5, "no finite value", transform=axes.transAxes, ha="center", va="center", color="#888888")


def _draw_bars(axes: Any, panel: Mapping[str, Any], styles: _Styles, **_: Any) -> None:
    """Draw means with their deviations, and each value as a point: a bar from 0 would hide what differs."""
    bars = panel["bars"]
    for at, bar in enumerate(bars):
        colour = styles[bar["label"]]["color"]
        low = bar["mean"] - (bar["deviation"] or 0.0)
        axes.bar(at, 2 * (bar["deviation"] or 0.0), bottom=low, color=colour, alpha=0.3, width=0.7)
        axes.plot([at - 0.35, at + 0.35], [bar["mean"]] * 2, color=colour, linewidth=2.2)
        axes.plot([at] * len(bar["values"]), bar["values"], "o", color=colour, markersize=4)
    names = [f"{_fit(bar['label'], _LONGEST_LABEL * 2 // 3)} (n {len(bar['values'])})" for bar in bars]
    axes.set_xticks(range(len(bars)), names, rotation=30, ha="right", rotation_mode="anchor", parse_math=False)
    axes.grid(visible=True, axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def _draw_parallel(axes: Any, panel: Mapping[str, Any], styles: _Styles, **_: Any) -> None:
    places = range(len(panel["axes"]))
    for label, heights in panel["lines"].items():
        axes.plot(places, heights, **styles[label], linewidth=1.6, marker="o", markersize=4, clip_on=False)
    for place, axis in enumerate(panel["axes"]):
        axes.axvline(place, color="#888888", linewidth=0.8, zorder=0)
        for height, text in axis["ticks"]:
            _note(axes, _fit(text, _SHORT_LABEL), (place, height), (5, 3), color="#444444", parse_math=False)
    names = [_fit(axis["name"], _LONGEST_LABEL) for axis in panel["axes"]]
    axes.set_xticks(list(places), names, parse_math=False)
    axes.set_yticks([])
    axes.spines[["left", "bottom"]].set_visible(False)


def _draw_curve(axes: Any, curve: Mapping[str, Any], style: Mapping[str, Any], faint: float) -> None:
    is_short, is_noisy = len(curve["values"]) <= 1, bool(curve["middle"][0])
    axes.plot(
        curve["steps"],
        curve["values"],
        **style,
        alpha=faint if is_noisy else 0.9,
        linewidth=0.7 if is_noisy else 1.3,
        marker="o" if is_short else None,
        markersize=4,
        zorder=2,
    )
    if is_noisy:
        axes.plot(*curve["middle"], **style, linewidth=1.6, zorder=3)
    if curve["band"][0]:
        axes.fill_between(curve["steps"], *curve["band"], color=style["color"], alpha=0.18, linewidth=0, zorder=1)
    if curve["odd"]:
        # At the bottom edge, whatever the values are: a NaN has no height.
        axes.plot(
            curve["odd"],
            [0.0] * len(curve["odd"]),
            transform=axes.get_xaxis_transform(),
            linestyle="",
            marker="x",
            color="#d00000",
            markersize=7,
            markeredgewidth=1.8,
            clip_on=False,
            zorder=4,
        )
        place = axes.get_xaxis_transform()
        _note(axes, "NaN/Inf", (curve["odd"][0], 0.0), (4, 5), xycoords=place, color="#d00000")


def _note(axes: Any, text: str, at: tuple[float, float], beside: tuple[int, int], **how: Any) -> None:
    axes.annotate(text, at, xytext=beside, textcoords="offset points", fontsize="small", **how)


def _style(number: int) -> dict[str, Any]:
    colours = len(_COLOURS)
    return {"color": _COLOURS[number % colours], "linestyle": _DASHES[number // colours % len(_DASHES)]}


def _fit(text: str, longest: int) -> str:
    """Return a tag on one line, shortened in its middle, since tags differ at their ends."""
    plain = "".join(sign if sign.isprintable() else "·" for sign in text)
    return plain if len(plain) <= longest else f"{plain[: longest // 3]}…{plain[longest // 3 + 1 - longest :]}"


if __name__ == "__main__":
    sys.exit(main())
