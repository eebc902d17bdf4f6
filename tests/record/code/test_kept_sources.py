"""The code of an attempt is kept and laid out again byte for byte: files, links, modes; what cannot be is named."""

from __future__ import annotations

import os
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_server.record.code.code_snapshot import CodeSnapshot
from mcp_server.record.code.drift import find_changed_code
from mcp_server.record.code.kept_sources import find_obstacle, keep_sources, look_at_inputs, restore_sources
from mcp_server.system.git_state import GitState, read_git_state

WHO = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
CODE = (".py", ".sh", ".bin", ".txt", ".cfg")


def git(directory: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(directory), *WHO, *words], check=True, capture_output=True)


def make_project(root: Path) -> Path:
    root.mkdir()
    (root / "pkg").mkdir()
    (root / "train.py").write_text("from pkg import net\nprint(1)\n")
    (root / "pkg" / "net.py").write_text("WIDTH = 1\n")
    (root / "pkg" / "old.py").write_text("OLD = 1\n" * 20)
    (root / "run.sh").write_text("#!/bin/sh\npython train.py\n")
    (root / "run.sh").chmod(0o755)
    (root / "logo.bin").write_bytes(bytes(range(256)))
    (root / "link.py").symlink_to("train.py")
    (root / "crlf.txt").write_bytes(b"a\r\nb\r\n")
    (root / ".gitignore").write_text("data/\n*.pt\n")
    return root


def commit(root: Path) -> None:
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one")


def dirty(root: Path) -> None:
    (root / "train.py").write_text("print(2)\n")


def untracked(root: Path) -> None:
    (root / "new").mkdir()
    (root / "new" / "loss.py").write_text("LOSS = 'l2'\n")
    (root / "latin.py").write_bytes(b"# caf\xe9\n")


def renamed(root: Path) -> None:
    git(root, "mv", "pkg/old.py", "pkg/newer.py")
    (root / "crlf.txt").unlink()


def moded(root: Path) -> None:
    (root / "run.sh").chmod(0o644)
    (root / "train.py").chmod(0o755)


def relinked(root: Path) -> None:
    (root / "link.py").unlink()
    (root / "link.py").symlink_to("pkg/net.py")
    (root / "pkg" / "net.py").unlink()
    (root / "pkg" / "net.py").symlink_to("old.py")


def binary(root: Path) -> None:
    (root / "logo.bin").write_bytes(os.urandom(5000))
    (root / "more.bin").write_bytes(b"\0\1\2")


def retyped(root: Path) -> None:
    (root / "link.py").unlink()
    (root / "link.py").mkdir()
    (root / "link.py" / "inner.py").write_text("IN = 1\n")
    (root / "train.py").unlink()
    (root / "train.py").symlink_to("run.sh")


def staged(root: Path) -> None:
    (root / "staged.py").write_text("A = 1\n")
    git(root, "add", "staged.py")
    (root / "staged.py").write_text("A = 2\n")


def converted(root: Path) -> None:
    (root / ".gitattributes").write_text("*.cfg text eol=crlf\n")
    (root / "a.cfg").write_bytes(b"x\r\ny\r\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "two")


def submodule(root: Path) -> None:
    part = make_project(root.parent / "part")
    commit(part)
    git(root, "submodule", "add", "-q", str(part), "third")
    git(root, "commit", "-qm", "with a part")
    (root / "third" / "train.py").write_text("print('part')\n")
    (root / "third" / "more.py").write_text("MORE = 1\n")


def advanced(root: Path) -> None:
    submodule(root)
    git(root / "third", "commit", "-qam", "in the part")


def read_tree(root: Path) -> dict[str, tuple[int, bytes]]:
    """Files and links of code by path, with mode and content."""
    tree = {}
    for directory, names, files in os.walk(root):
        names[:] = [name for name in names if name not in (".git", "data")]
        for path in (Path(directory, name) for name in (*files, *names)):
            name = str(path.relative_to(root))
            if path.is_symlink():
                tree[name] = -1, os.fsencode(path.readlink())
            elif path.is_file() and path.name not in (".git", "model.pt"):
                tree[name] = path.stat().st_mode & 0o111, path.read_bytes()
    return tree


def keep(root: Path, cwd: Path, kept: Path, *, uses_git: bool = True) -> CodeSnapshot:
    state = read_git_state(cwd, os.environ) if uses_git else GitState()
    kept.mkdir()
    sources = keep_sources(cwd, state if state.commit else GitState(), kept, {})
    assert sources.root == str(root), state
    return replace(CodeSnapshot(git=state, archive=sources), directory=kept)


def test_files_of_commits_between_are_named_and_new_ones_behind_them(tmp_path: Path) -> None:
    root = make_project(tmp_path / "p")
    commit(root)
    dirty(root)
    former = keep(root, root, tmp_path / "kept")
    (root / "pkg" / "net.py").write_text("WIDTH = 2\n")
    git(root, "commit", "-qam", "two")
    (root / "train.py").write_text("print(3)\n")
    (root / "eval.py").write_text("print(4)\n")
    commits, names = find_changed_code(former, str(root), lambda cwd: read_git_state(cwd, os.environ)) or ("", [])
    assert commits.startswith("commit ")
    assert names == ["pkg/net.py", "train.py", "eval.py (new)"]


EDITS = (dirty, untracked, renamed, moded, relinked, binary, retyped, staged, converted, submodule, advanced)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["root", "below"])
@pytest.mark.parametrize("edit", [lambda _: None, *EDITS], ids=["clean", *(each.__name__ for each in EDITS)])
def test_code_in_git_is_laid_out_as_it_was(tmp_path: Path, edit: Callable[[Path], None], place: str) -> None:
    root = make_project(tmp_path / "project")
    commit(root)
    edit(root)
    (root / "data").mkdir()
    (root / "data" / "x.bin").write_bytes(b"x")
    (root / "model.pt").write_bytes(b"m")
    snapshot = keep(root, root if place == "root" else root / "pkg", tmp_path / "kept")
    before = read_tree(root)
    for path in ("train.py", "pkg/net.py", "new/loss.py", "third/train.py"):  # all of it is edited since
        if (root / path).exists():
            (root / path).unlink()
            (root / path).write_text("raise SystemExit('edited')\n")
    git(root, "commit", "-qam", "since")
    assert find_obstacle(snapshot) == ""
    restore_sources(snapshot, tmp_path / "code" / "again")
    there = tmp_path / "code" / "again"
    data = {name: there / name for name in ("data", "model.pt")}
    assert {name: path.readlink() for name, path in data.items()} == {name: root / name for name in data}
    for link in data.values():
        link.unlink()
    assert read_tree(there) == before


@pytest.mark.parametrize("edit", [untracked, moded, binary], ids=lambda each: each.__name__)
def test_code_without_git_is_laid_out_as_it_was(tmp_path: Path, edit: Callable[[Path], None]) -> None:
    root = make_project(tmp_path / "project")
    edit(root)
    (root / "data").mkdir()
    snapshot = keep(root, root, tmp_path / "kept", uses_git=False)
    before = read_tree(root)
    (root / "train.py").write_text("other")
    restore_sources(snapshot, tmp_path / "code" / "again")
    (tmp_path / "code" / "again" / "data").unlink()
    assert read_tree(tmp_path / "code" / "again") == before


def test_what_is_not_kept_is_named_and_keys_are_never_copied(tmp_path: Path) -> None:
    root = make_project(tmp_path / "project")
    commit(root)
    (root / ".env").write_text("A=1\n")
    (root / "key.py").write_text('TOKEN = "hf_9sKdmQ2xZ81LpWvTqqqqabcdefghijklmn"\n')
    (root / "big.py").write_bytes(b"x" * (9 << 20))
    snapshot = keep(root, root, tmp_path / "kept")
    why = find_obstacle(snapshot)
    assert "key.py: holds a secret" in why
    assert "big.py: 9,437,184 bytes" in why
    with tarfile.open(tmp_path / "kept" / "sources.tar.gz") as archive:
        content = archive.extractfile("key.py")
        assert archive.getnames() == ["key.py"]
        assert content is not None
        assert b"hf_9s" not in content.read()


def test_a_commit_that_is_gone_is_named(tmp_path: Path) -> None:
    root = make_project(tmp_path / "project")
    commit(root)
    snapshot = keep(root, root, tmp_path / "kept")
    gone = replace(snapshot, git=replace(snapshot.git, commit="0" * 40))
    assert find_obstacle(gone) == f"{root} has no commit {'0' * 12}"
    assert find_obstacle(replace(snapshot, git=replace(snapshot.git, root=str(tmp_path / "no")))) != ""


def test_data_that_a_command_names_is_known_by_size_and_time(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("{}\n")
    command = ["python", "t.py", "--train_file", "train.jsonl", "--resume_from", "/none/model.pt"]
    found = {Path(one.path).name: one for one in look_at_inputs(command, {}, str(tmp_path))}
    assert (found["train.jsonl"].size_bytes, found["train.jsonl"].modified_ns > 0) == (3, True)
    assert found["model.pt"].size_bytes == -1


def test_a_link_to_data_elsewhere_is_no_code_and_makes_no_difference(tmp_path: Path) -> None:
    """As a copy of kept code has to the directories that are not code."""
    root = make_project(tmp_path / "project")
    commit(root)
    before = keep(root, root, tmp_path / "before").archive.digest
    (root / "outputs").symlink_to(tmp_path)
    assert keep(root, root, tmp_path / "after").archive.digest == before
