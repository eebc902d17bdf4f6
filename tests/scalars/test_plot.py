"""The picture of scalars: drawn elsewhere, always of one size, whatever the values are."""

import io
import json
import math
import random
import struct
import subprocess
import sys

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from mcp_server.scalars import plot
from mcp_server.scalars.plot import Line, NotDrawn, Panel, is_log, picture, short


def size(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def test_six_panels_of_noise_are_one_picture_of_bounded_size() -> None:
    rng = random.Random(0)
    steps = list(range(plot.POINTS))
    lines = [Line(f"run-{n}", steps, [rng.gauss(n, 1) for _ in steps], [5, 600]) for n in range(4)]
    png = picture([Panel(f"Episode_Reward/a_rather_long_name_{n}", lines) for n in range(8)])
    assert size(png) in {(900, 500), (450, 250)}
    assert len(png) <= plot.MOST_BYTES


def test_odd_values_are_drawn() -> None:
    panels = [
        Panel("nothing finite $x_1^", [Line("a", [], [], [1, 2])]),
        Panel("one point ж", [Line("a", [5], [2.0])]),
        Panel("log", [Line("a", [1, 2, 3], [1e-5, 1.0, 1e4], [], ([1.5, 2.5], [0.1, 10.0]))]),
        Panel("large steps", [Line("a", [-(2**63), 2**63 - 1], [1.0, 1.0])]),
    ]
    assert size(picture(panels)) == (900, 500)


def pixels(png: bytes) -> NDArray[np.int64]:
    """Rows, columns, red green blue."""
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(np.int64)


def near(image: NDArray[np.int64], *colour: int) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = (np.abs(image - np.array(colour)) < 40).all(axis=-1)
    return mask


def test_a_run_has_one_colour_in_all_panels_and_in_the_legend() -> None:
    first, second = (Line(name, [0, 1], [value, value]) for name, value in (("first", 1.0), ("second", 2.0)))
    image = pixels(picture([Panel("both", [first, second]), Panel("second alone", [second])]))
    seen = [
        [bool(near(part, *colour).any()) for colour in ((0x1F, 0x6F, 0xB4), (0xE1, 0x70, 0x1A))]
        for part in (image[:40], image[60:480, :440], image[60:480, 460:])
    ]
    assert seen == [[True, True], [True, True], [False, True]]


def test_points_without_steps_stand_side_by_side() -> None:
    image = pixels(picture([Panel("loss", [Line("a", [0] * 50, [float(n % 7) for n in range(50)])])]))
    columns = np.flatnonzero(near(image, 0x1F, 0x6F, 0xB4).any(axis=0))
    assert columns[-1] - columns[0] > 600, "not one line from top to bottom"


@pytest.mark.parametrize(
    ("values", "logarithmic"),
    [([1, 1000], True), ([1, 100], False), ([-1, 1000], False), ([0, 1000], False), ([], False), ([1e-9, 1], True)],
)
def test_an_axis_is_logarithmic_where_positive_values_span_decades(values: list[float], logarithmic: bool) -> None:
    assert is_log([Line("a", list(range(len(values))), values)]) == logarithmic


@pytest.mark.parametrize(
    ("step", "written"),
    [(900, "900"), (1500, "1.5k"), (2_000_000, "2M"), (1.25e9, "1.25G"), (-3000, "-3k"), (0.5, "0.5"), (4e18, "4e+18")],
)
def test_steps_are_written_short(step: float, written: str) -> None:
    assert short(step) == written


def test_a_process_that_fails_is_told_by_its_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(NotDrawn, match="ended with 1"):
        picture([Panel("a", [Line("a", [1], [1.0])])])


def test_a_process_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot, "_TIME_LIMIT_S", 0.001)
    with pytest.raises(NotDrawn, match="took longer"):
        picture([Panel("a", [Line("a", [1], [math.pi])])])


def test_whoever_asks_for_a_picture_does_not_load_matplotlib() -> None:
    code = """
import json, sys
from mcp_server.scalars.plot import Line, Panel, picture
png = picture([Panel("a", [Line("a", [1, 2], [1.0, 2.0])])])
print(json.dumps([len(png) > 1000, sorted({"matplotlib", "numpy", "PIL"} & set(sys.modules))]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (json.loads(done.stdout), done.stderr) == ([True, []], "")
