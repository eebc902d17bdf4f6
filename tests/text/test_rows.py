"""Blocks of `key: value` lines are read as they stand, from a directory and from a zipapp."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_server.backends.supervisor_copy import pack_zipapp
from mcp_server.text import rows

TEXT = r"""# A comment, and no block

kind:  one
line:  a\b: "c"  # no comment
seen:    two spaces before
# between
seen:  last

kind:  two"""


def test_a_value_stands_as_it_is_and_an_empty_line_ends_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_read_text", lambda _name: TEXT)
    first = [("kind", "one"), ("line", r'a\b: "c"  # no comment'), ("seen", "  two spaces before"), ("seen", "last")]
    assert list(rows.read_blocks("any")) == [first, [("kind", "two")]]


def test_every_file_of_the_package_can_be_read_and_no_line_has_another_form() -> None:
    files = sorted(Path(rows.__file__).parents[1].rglob("*.rows"))
    assert len(files) > 20
    for path in files:
        for line in path.read_text("utf-8").split("\n"):
            if line and not line.startswith("#"):
                assert re.fullmatch(r"[a-z]{2,5}: {0,4}", line[:7]), (path.name, line)
            assert line == line.rstrip() or line.startswith("seen:"), (path.name, line)


def test_a_zipapp_holds_the_files(tmp_path: Path) -> None:
    (tmp_path / "program.pyz").write_bytes(pack_zipapp())
    code = "from mcp_server.text.rows import read_blocks; print(len(list(read_blocks('diagnosis/failure/failures'))))"
    argv = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        f"import sys; sys.path.insert(0, {str(tmp_path / 'program.pyz')!r}); {code}",
    ]
    assert int(subprocess.check_output(argv, text=True)) > 300
