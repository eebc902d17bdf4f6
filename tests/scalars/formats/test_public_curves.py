"""Curve files of public programs, labelled before the rules were tried on them, are found by content and read whole."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from mcp_server.scalars.formats.detect import find_sources
from mcp_server.scalars.reading import ScalarReader

_DATA = Path(__file__).parents[2] / "data" / "curves"


class CurveFile(NamedTuple):
    """A file with the tags that are expected of it, each with its points; a step of nan is any."""

    program: str
    path: str
    kind: str
    text: str
    tags: dict[str, list[tuple[float, float]]]


def _files() -> Iterator[CurveFile]:
    for data in sorted(_DATA.glob("*.txt")):
        for block in data.read_text().split("\n=== ")[1:]:
            head, _, body = block.partition("\n")
            program, path, kind = head.split(" | ")
            lines, tags = [], {}
            for line in body.rstrip("\n").split("\n"):
                if line.startswith("--- "):
                    words = line[4:].split(" ")
                    tag = " ".join(word for word in words if "=" not in word)
                    pairs = [word.split("=") for word in words if "=" in word]
                    tags[tag] = [(math.nan if step == "*" else float(step), float(value)) for step, value in pairs]
                else:
                    lines.append(line)
            yield CurveFile(program, path, kind, "\n".join(lines) + "\n", tags)


FILES = list(_files())


def read_found(directory: Path) -> dict[str, list[tuple[float, float]]] | None:
    """Return all points by tag of what a search of the directory finds there; None where it finds nothing."""
    sources = find_sources(directory)
    if not sources:
        return None
    found = {}
    for source in sources:
        for tag, series in ScalarReader().read(source).series.items():
            found[tag] = list(zip(series.steps.tolist(), series.values.tolist(), strict=True))
    return found


def is_equal(found: list[tuple[float, float]], wanted: list[tuple[float, float]]) -> bool:
    return [value for _, value in found] == [value for _, value in wanted] and all(
        math.isnan(step) or step == at for (at, _), (step, _) in zip(found, wanted, strict=True)
    )


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.program.replace(" ", "-"))
def test_a_file_of_a_public_program_is_a_curve_with_its_steps_or_none(file: CurveFile, tmp_path: Path) -> None:
    path = tmp_path / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(file.text)
    found = read_found(path.parent)
    if file.kind != "curve":
        assert found is None
    else:
        assert found is not None
        for tag, points in file.tags.items():
            assert is_equal(found.get(tag, []), points), (tag, found)
