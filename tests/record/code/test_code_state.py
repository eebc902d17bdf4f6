"""What counts as a change of code between two moments."""

import os
from pathlib import Path

from mcp_server.record.code.code_state import CodeChange, add_digests, find_change, load_code_state, read_code_state


def test_a_change_is_another_content_and_not_another_time(tmp_path: Path) -> None:
    for name in ("same.py", "touched.py", "edited.py", "longer.py", "gone.py", "a.yaml", "b.yaml"):
        (tmp_path / name).write_text("x = 1\n")
    named = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    add_digests(read_code_state([str(tmp_path)], named)).write(tmp_path)
    (tmp_path / "touched.py").write_text("x = 1\n")
    os.utime(tmp_path / "touched.py", ns=(1, 1))
    (tmp_path / "edited.py").write_text("x = 2\n")
    os.utime(tmp_path / "edited.py", ns=(1, 1))
    (tmp_path / "longer.py").write_text("x = 10\n")
    (tmp_path / "gone.py").unlink()
    (tmp_path / "new.py").write_text("")
    for path in named:
        path.write_text("x = 10\n")
    former = load_code_state(tmp_path)
    assert former is not None
    change = find_change(former, {str(tmp_path / "b.yaml")})  # a.yaml is that of another cell
    assert sorted(Path(path).name for path in change.changed) == ["b.yaml", "edited.py", "gone.py", "longer.py"]
    assert change.perhaps == ()


def test_a_file_that_was_not_read_may_have_changed_when_only_its_time_differs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x = 1\n")
    former = read_code_state([str(tmp_path)], [])
    os.utime(tmp_path / "train.py", ns=(1, 1))
    assert find_change(former, ()) == CodeChange(perhaps=(str(tmp_path / "train.py"),))
    assert add_digests(former) == former  # it is not as it was: its digest would be of another moment


def test_what_is_not_the_runs_code_is_not_looked_at(tmp_path: Path) -> None:
    for name in (".git/a.py", "venv/a.py", "own/pyvenv.cfg", "own/lib/a.py", "runs/1/a.py", "src/a.py", "data.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert set(read_code_state([str(tmp_path)], []).files) == {str(tmp_path / "src/a.py")}


def test_a_damaged_state_is_none_and_damaged_files_are_left_out(tmp_path: Path) -> None:
    assert load_code_state(tmp_path) is None
    (tmp_path / "code.json").write_text("[")
    assert load_code_state(tmp_path) is None
    (tmp_path / "code.json").write_text('{"files": {"/a": [1, 2, "x"], "/b": [1, "2", "x"], "/c": 3}}')
    state = load_code_state(tmp_path)
    assert state is not None
    assert list(state.files) == ["/a"]
