"""The words of `words.rows` tell code from what is none, each sort by its own `seen` name."""

from pathlib import Path

import pytest

from mcp_server.record.code.code_directory import stays_behind
from mcp_server.record.code.code_state import SOURCES, read_code_state
from mcp_server.text.rows import read_blocks

SEEN = {block["sort"]: block["seen"] for block in map(dict, read_blocks("record/code/words"))}


@pytest.mark.parametrize("sort", ["directory", "data", "file", "key"])
def test_what_is_no_code_stays_behind(tmp_path: Path, sort: str) -> None:
    is_directory = sort in ("directory", "data")
    assert stays_behind(tmp_path, f"src/{SEEN[sort]}", (), is_directory=is_directory)
    assert not stays_behind(tmp_path, "src/train", (), is_directory=is_directory)
    package = tmp_path / "src" / SEEN["data"]
    package.mkdir(parents=True)
    (package / "loader.py").touch()
    assert stays_behind(tmp_path, f"src/{SEEN[sort]}", (), is_directory=is_directory) == (sort != "data")


def test_sources_are_looked_at_but_not_those_of_others(tmp_path: Path) -> None:
    for name in (f"train{SEEN['source']}", f"{SEEN['skipped']}/torch.py", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    assert [Path(path).name for path in read_code_state([str(tmp_path)], []).files] == ["train.py"]
    assert SEEN["source"] in SOURCES
