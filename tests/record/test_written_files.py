"""The record of written files: what was written is read back, within its limits."""

import json
from pathlib import Path

import pytest

from mcp_server.record.written_files import MOST_FILES, Outputs, WrittenFile, read_outputs, write_outputs


def test_a_record_is_read_back(tmp_path: Path) -> None:
    files = (WrittenFile("/p/a.pt", 1, 2, 3, open=True, append=True), WrittenFile("/p/\udce9", 4, 5, 6, listed=True))
    outputs = Outputs("2026-11-22T10:00:00.000Z", True, False, frozenset({7, 8}), ("/p/out",), files[:1], ("/p/s",))
    write_outputs(tmp_path / "outputs.json", outputs)
    assert read_outputs(tmp_path / "outputs.json") == outputs
    write_outputs(tmp_path / "outputs.json", Outputs(files=files))
    assert [path.name for path in tmp_path.iterdir()] == ["outputs.json"]


def test_of_too_much_the_newest_is_kept_and_the_cut_is_said(tmp_path: Path) -> None:
    for length, most in ((10, MOST_FILES), (2000, 600)):
        files = tuple(WrittenFile(f"/p/{'x' * length}/{n}", n, 1, 1) for n in range(MOST_FILES + 5))
        write_outputs(tmp_path / "outputs.json", Outputs(files=files))
        assert (tmp_path / "outputs.json").stat().st_size <= 2**20 + 1
        read = read_outputs(tmp_path / "outputs.json")
        assert read is not None
        assert read.cut
        assert read.files[-1] == files[-1]
        assert len(read.files) <= most


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"layout": 2}', '{"layout": 1, "files": [{}]}', '{"layout": 1, "pids": 5}']
)
def test_a_record_that_is_none_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "outputs.json").write_text(text)
    assert read_outputs(tmp_path / "outputs.json") is None
    assert read_outputs(tmp_path / "missing") is None


def test_absent_parts_are_empty(tmp_path: Path) -> None:
    (tmp_path / "outputs.json").write_text(json.dumps({"layout": 1}))
    assert read_outputs(tmp_path / "outputs.json") == Outputs()
