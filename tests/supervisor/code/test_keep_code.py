"""What runs is copied whole, without secrets and within bounds, and read back as it was."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from mcp_server.record.code.code_snapshot import SOURCES_ARCHIVE, CodeSnapshot, read_code_snapshot
from mcp_server.record.code.kept_sources import list_changed_sources
from mcp_server.record.run_directory import RunDir
from mcp_server.record.spec import RunSpec
from mcp_server.supervisor.code import keep_code as module
from mcp_server.supervisor.code.keep_code import KeptAttempt, keep_code
from tests.results.test_finish import git


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    rundir = RunDir(tmp_path / "runs" / "cfm-7kqz")
    rundir.attempt(1).mkdir(parents=True)
    return rundir


@pytest.fixture
def code(tmp_path: Path) -> Path:
    code = tmp_path / "code"
    (code / "conf").mkdir(parents=True)
    (code / "conf" / "small.yaml").write_text("lr: 0.1\nhf: hunter2-hunter2\ntoken: hf_abcdefghijklmnopqrst\n")
    return code


def kept(rundir: RunDir, code: Path, command: str, pid: int = 0, **spec: Any) -> CodeSnapshot:
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent"}
    secrets = {"HF": "hunter2-hunter2"}
    keep_code(KeptAttempt(rundir, RunSpec(command=command, cwd=str(code), **spec), 1, [], env, secrets, pid))
    snapshot = read_code_snapshot(rundir, 1)
    assert snapshot is not None
    return snapshot


def test_a_file_is_kept_below_its_place_without_secrets(rundir: RunDir, code: Path, tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# purpose\n")
    (tmp_path / "far.json").write_text("{}")
    snapshot = kept(rundir, code, "prog conf/small.yaml ../far.json", blueprint=str(tmp_path / "b.md"))
    names = [one.kept for one in snapshot.files]
    assert names == [f"files{tmp_path}/b.md", "files/conf/small.yaml", f"files{tmp_path}/far.json"]
    text = snapshot.read_file(snapshot.files[1])
    assert text == "lr: 0.1\nhf: [secret:HF]\ntoken: [masked]\n"
    assert (snapshot.git.problem or "").startswith("not a git repository (or any ")
    assert (snapshot.python, snapshot.notes) == ("", ())


def test_a_long_file_is_named_and_not_kept(rundir: RunDir, code: Path) -> None:
    (code / "big.json").write_text(" " * 1_000_001)
    snapshot = kept(rundir, code, "prog big.json conf/small.yaml")
    assert [(Path(one.path).name, one.kept) for one in snapshot.files] == [
        ("big.json", ""),
        ("small.yaml", "files/conf/small.yaml"),
    ]
    assert snapshot.notes == (f"{code}/big.json was not kept: it has 1,000,001 bytes.",)


def test_the_changes_are_kept_without_secrets(rundir: RunDir, code: Path) -> None:
    git(code, "init")
    (code / "train.py").write_text("lr = 1\n")
    git(code, "add", ".")
    git(code, "commit", "-m", "First")
    (code / "train.py").write_text("lr = 2\nkey = 'hunter2-hunter2'\n")
    (code / "new.py").write_text("")
    snapshot = kept(rundir, code, "prog train.py")
    assert (len(snapshot.git.commit), snapshot.git.untracked) == (40, ("new.py",))
    assert "+lr = 2\n+key = '[secret:HF]'\n" in snapshot.read_diff()


def test_a_python_that_only_the_processes_show_is_found(rundir: RunDir, code: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with child:
        snapshot = kept(rundir, code, "bash run.sh", child.pid)
        assert child.stdin is not None
        child.stdin.write(b"\n")
    assert snapshot.python == sys.executable


def test_what_a_reader_waits_for_is_there_before_the_wait_for_a_python(
    rundir: RunDir, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_find_running_python", lambda _: pytest.fail("waited first"))
    seen: list[CodeSnapshot | None] = []
    spec = RunSpec(command="bash run.sh conf/small.yaml", cwd=str(code))
    keep_code(KeptAttempt(rundir, spec, 1, [], {}, {}, 0), lambda: seen.append(read_code_snapshot(rundir, 1)))
    assert seen[0] is not None
    assert len(seen[0].files) == 1


def test_damaged_records_are_read_as_far_as_they_go(rundir: RunDir, tmp_path: Path) -> None:
    assert read_code_snapshot(rundir, 1) is None
    rundir.code(1).mkdir()
    (tmp_path / "secret").write_text("x")
    bad = {"git": [1], "files": [{"path": "/a.yaml", "kept": "../../../../../secret"}, 3], "python": 7, "notes": "no"}
    (rundir.code(1) / "snapshot.json").write_text(json.dumps(bad))
    snapshot = read_code_snapshot(rundir, 1)
    assert snapshot is not None
    assert [(one.path, snapshot.read_file(one)) for one in snapshot.files] == [("/a.yaml", None), ("", None)]
    assert (snapshot.git.commit, snapshot.python, snapshot.notes, snapshot.read_packages()) == ("", "", (), {})


def test_without_a_commit_all_sources_that_the_run_could_import_are_kept(rundir: RunDir, code: Path) -> None:
    for name in ("train.py", "pkg/model.py", "data/loader.py", "data/rows.csv", "venv/lib/x.py", "pkg/old/x.py"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text(f"name = {name!r}\nkey = 'hunter2-hunter2'\n")
    (code / "venv/pyvenv.cfg").touch()
    (code / "wandb").mkdir()
    (code / "wandb/x.py").touch()
    (code / ".runwardignore").write_text("old\n")
    (code / "study.ipynb").write_text('{"cells": []}')
    snapshot = kept(rundir, code, "papermill study.ipynb out.ipynb")
    assert [one.kept for one in snapshot.files] == ["files/study.ipynb"]
    sources = ["data/loader.py", "pkg/model.py", "train.py"]
    with tarfile.open(snapshot.directory / SOURCES_ARCHIVE) as archive:
        assert [name for name in archive.getnames() if name.endswith(".py")] == sources
        content = archive.extractfile("train.py")
        assert content is not None
        assert content.read() == b"name = 'train.py'\nkey = '[secret:HF]'\n"
    assert [one for one in snapshot.archive.left_out if ".py" in one] == [f"{one}: holds a secret" for one in sources]
    assert snapshot.notes == ()
    assert list_changed_sources(snapshot, code) == []


def test_of_a_large_directory_without_a_commit_the_sources_are_kept(rundir: RunDir, code: Path) -> None:
    (code / "train.py").write_text("x = 1\n")
    for n in range(3):
        (code / f"table{n}.txt").write_bytes(b"x" * (3 << 20))
    snapshot = kept(rundir, code, "python train.py")
    with tarfile.open(snapshot.directory / SOURCES_ARCHIVE) as archive:
        assert archive.getnames() == ["train.py"]
    assert "9 MiB to send" in snapshot.archive.left_out[0]


def test_nobodys_project_is_not_copied(rundir: RunDir, code: Path) -> None:
    (code / "train.py").touch()
    spec = RunSpec(command="prog", cwd=str(code))
    keep_code(KeptAttempt(rundir, spec, 1, [], {"HOME": str(code)}, {}, 0))
    snapshot = read_code_snapshot(rundir, 1)
    assert snapshot is not None
    why = (f"The sources below {code} were not kept: it is nobody's project.",)
    assert (snapshot.archive.files, snapshot.archive.left_out, snapshot.notes) == (0, why, why)
