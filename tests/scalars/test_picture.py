"""The picture of scalars: drawn by another process, always of one size, for any values."""

import io
import json
import math
import random
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from mcp_server.scalars import drawing, picture
from mcp_server.scalars.picture import Curve, NotDrawn, Panel, draw_picture


def size(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


@pytest.mark.slow
def test_six_panels_of_noise_are_one_picture_of_bounded_size() -> None:
    rng = random.Random(0)
    steps = list(range(picture.CURVE_POINTS))
    lines = [Curve(f"run-{n}", steps, [rng.gauss(n, 1) for _ in steps], [5, 600]) for n in range(4)]
    png = draw_picture([Panel(f"Episode_Reward/a_rather_long_name_{n}", lines) for n in range(8)])
    assert size(png) in {(900, 500), (450, 250)}
    assert len(png) <= drawing.MOST_BYTES


def test_odd_values_are_drawn() -> None:
    panels = [
        Panel("nothing finite $x_1^", [Curve("a", [], [], [1, 2])]),
        Panel("one point ж", [Curve("a", [5], [2.0])]),
        Panel("log", [Curve("a", [1, 2, 3], [1e-5, 1.0, 1e4], [], ([1.5, 2.5], [0.1, 10.0]))]),
        Panel("large steps", [Curve("a", [-(2**63), 2**63 - 1], [1.0, 1.0])]),
    ]
    assert size(draw_picture(panels)) == (900, 500)


def pixels(png: bytes) -> NDArray[np.int64]:
    """Rows, columns, red green blue."""
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(np.int64)


def near(image: NDArray[np.int64], *colour: int) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = (np.abs(image - np.array(colour)) < 40).all(axis=-1)
    return mask


def test_a_run_has_one_colour_in_all_panels_and_in_the_legend() -> None:
    first, second = (Curve(name, [0, 1], [value, value]) for name, value in (("first", 1.0), ("second", 2.0)))
    image = pixels(draw_picture([Panel("both", [first, second]), Panel("second alone", [second])]))
    seen = [
        [bool(near(part, *colour).any()) for colour in ((0x1F, 0x6F, 0xB4), (0xE1, 0x70, 0x1A))]
        for part in (image[:40], image[60:480, :440], image[60:480, 460:])
    ]
    assert seen == [[True, True], [True, True], [False, True]]


def test_points_without_steps_are_drawn_next_to_each_other() -> None:
    image = pixels(draw_picture([Panel("loss", [Curve("a", [0] * 50, [float(n % 7) for n in range(50)])])]))
    columns = np.flatnonzero(near(image, 0x1F, 0x6F, 0xB4).any(axis=0))
    assert columns[-1] - columns[0] > 600, "not one line from top to bottom"


def test_without_matplotlib_the_error_names_the_install_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # an interpreter without site-packages
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(NotDrawn) as refusal:
        draw_picture([Panel("a", [Curve("a", [1], [1.0])])])
    assert str(refusal.value) == (
        "matplotlib is not installed. No picture was drawn. A person can run: pip install 'matplotlib>=3.9'"
    )


def test_the_error_of_a_failed_drawing_process_is_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(NotDrawn, match="ended with 1"):
        draw_picture([Panel("a", [Curve("a", [1], [1.0])])])


def test_a_process_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "_TIME_LIMIT_S", 0.001)
    with pytest.raises(NotDrawn, match="took longer"):
        draw_picture([Panel("a", [Curve("a", [1], [math.pi])])])


def test_the_caller_of_draw_picture_does_not_load_matplotlib() -> None:
    code = """
import json, sys
from mcp_server.scalars.picture import Curve, Panel, draw_picture
png = draw_picture([Panel("a", [Curve("a", [1, 2], [1.0, 2.0])])])
print(json.dumps([len(png) > 1000, sorted({"matplotlib", "numpy", "PIL"} & set(sys.modules))]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (json.loads(done.stdout), done.stderr) == ([True, []], "")
