"""Code that is sent to another host: what arrives, what is not sent again, and what is refused."""

import hashlib
import os
import resource
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mcp_server.errors import BadArgument, LaunchFailed
from mcp_server.record.code.code_directory import open_below, read_code_directory
from mcp_server.relay.code import CodeStore
from mcp_server.runs.code.code_sync import find_known, pack_commit, read_commit

LIMIT = 2**20
TOKEN = "0123456789abcdef"
EMPTY = hashlib.sha256(b"").hexdigest()


def git(directory: Path, *words: str) -> str:
    command = ["git", "-C", str(directory), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def make_repository(path: Path) -> Path:
    path.mkdir()
    (path / "train.py").write_text("print(1)\n")
    git(path, "init", "-q")
    git(path, "add", ".")
    git(path, "commit", "-q", "-m", "first")
    return path


def send_commit(store: CodeStore, here: Path, clone: Path | None = None) -> tuple[Path, int]:
    """Send the work tree as a launch does; return its directory there, and the bytes of commits that went along."""
    code = read_commit(here, os.environ, LIMIT)
    wish: dict[str, Any] = {"sync": "git", "name": "cfm", "hash": code.digest, "commit": code.commit}
    wish |= {"clone": str(clone or ""), "origin": str(here), "of": "code", "token": TOKEN}
    looked = store.look(wish)
    if looked["there"]:
        return Path(looked["directory"]), 0
    one = next((one for one in looked["repositories"] if one.get("has")), looked["repositories"][0])
    known = find_known(here, os.environ, one.get("tips") or ())
    pack = b"" if one.get("has") else pack_commit(here, os.environ, code.commit, known, LIMIT)
    store.put(TOKEN, 0, pack + code.diff)
    made = store.make({**wish, "repository": one["path"], "pack_bytes": len(pack)})
    assert made["directory"] == looked["directory"]
    return Path(made["directory"]), len(pack)


def test_a_commit_arrives_with_its_changes_and_only_what_is_missing_is_sent(tmp_path: Path) -> None:
    here, store = make_repository(tmp_path / "cfm"), CodeStore(tmp_path / "code")
    (here / "train.py").write_text("print(2)\n")
    (here / "new.bin").write_bytes(bytes(range(256)))
    git(here, "add", "new.bin")
    first, _ = send_commit(store, here)
    assert (first / "train.py").read_text() == "print(2)\n"
    assert (first / "new.bin").read_bytes() == bytes(range(256))
    assert git(first, "diff", "HEAD", "--binary") == git(here, "diff", "HEAD", "--binary")
    assert git(first, "log", "--format=%H %s") == git(here, "log", "--format=%H %s")
    (first / "output.txt").write_text("a run's")
    assert send_commit(store, here) == (first, 0)
    git(here, "commit", "-q", "-a", "-m", "second")
    second, second_bytes = send_commit(store, here)
    assert git(second, "log", "--format=%s") == "second\nfirst"
    assert 0 < second_bytes < len(pack_commit(here, os.environ, "HEAD", [], LIMIT))
    (second / "train.py").write_text("a person's\n")  # another content: it stays as it is
    third, _ = send_commit(store, here)
    assert (third.name, (third / "train.py").read_text()) == (f"{second.name}-2", "print(2)\n")
    assert (second / "train.py").read_text() == "a person's\n"


def test_a_clone_there_takes_what_it_lacks_and_nothing_of_it_changes(tmp_path: Path) -> None:
    here, store = make_repository(tmp_path / "cfm"), CodeStore(tmp_path / "code")
    git(tmp_path, "clone", "-q", str(here), "clone")
    clone = tmp_path / "clone"
    (clone / "train.py").write_text("a person's\n")
    before = git(clone, "status", "--porcelain", "--branch"), git(clone, "for-each-ref")
    git(here, "commit", "-q", "--allow-empty", "-m", "second")
    directory, sent = send_commit(store, here, clone)
    assert (git(directory, "log", "-1", "--format=%s"), 0 < sent < 500) == ("second", True)
    assert (git(clone, "status", "--porcelain", "--branch"), git(clone, "for-each-ref")) == before
    unrelated = make_repository(tmp_path / "unrelated")
    (unrelated / "train.py").write_text("print(3)\n")
    git(unrelated, "commit", "-q", "-a", "-m", "other")
    assert find_known(here, os.environ, git(unrelated, "rev-list", "HEAD").split()[:1]) == []


def test_what_git_cannot_send_is_refused_with_the_other_way(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match=r"not a git repository.*rsync"):
        read_commit(tmp_path, os.environ, LIMIT)
    here = make_repository(tmp_path / "cfm")
    with pytest.raises(BadArgument, match=r"larger than 10 B.*sync_mib"):
        pack_commit(here, os.environ, "HEAD", [], 10)
    (here / "train.py").write_text("x" * 1000)
    with pytest.raises(BadArgument, match=r"uncommitted changes .* are larger than 10 B"):
        read_commit(here, os.environ, 10)
    for name, what in (("lfs", "Git LFS"), ("git-crypt", "the filter 'git-crypt'")):
        (here / ".git/info/attributes").write_text(f"*.py filter={name}\n")
        with pytest.raises(BadArgument, match=f"{what}: git sends what it stores, not what you see"):
            read_commit(here, os.environ, LIMIT)
    (here / ".git/info/attributes").unlink()
    git(here, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(make_repository(tmp_path / "s")))
    with pytest.raises(BadArgument, match="submodules"):
        read_commit(here, os.environ, LIMIT)


def send_files(store: CodeStore, here: Path, spoil: bytes = b"") -> tuple[Path, list[str]]:
    code = read_code_directory(here, LIMIT)
    wish = {"sync": "rsync", "name": "cfm", "hash": code.digest, "files": [file.facts for file in code.files]}
    looked = store.look(wish)
    sent = list({file.digest: file for file in code.files if file.digest in looked.get("missing", ())}.values())
    if not looked["there"]:
        data = b"".join((here / file.path).read_bytes() for file in sent)
        store.put(TOKEN, 0, spoil or data)
        store.make({**wish, "token": TOKEN, "sent": [[file.digest, file.size] for file in sent]})
    return Path(looked["directory"]), [file.path for file in sent]


def test_only_code_is_sent_and_each_content_once(tmp_path: Path) -> None:
    here, store = tmp_path / "cfm", CodeStore(tmp_path / "code")
    for name in ("train.py", "src/data/__init__.py", "src/data/load.py", "data/train.bin", "outputs/1/log", ".env"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(name)
    for name in ("last.ckpt", "venv/pyvenv.cfg", ".git/config", "secrets.toml", "skip.me", "keep/a", "keep/skip/b"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(name)
    for name in ("Secrets/prod/token", ".envrc", "prod.ENV", "aws/Credentials.json", ".kube/config", "my.PEM"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(name)
    (here / ".runwardignore").write_text("# mine\nskip.*\nkeep/skip/\n")
    (here / "run.sh").write_text("#!/bin/sh\n")
    (here / "run.sh").chmod(0o700)
    (here / "link").symlink_to("train.py")
    (here / "out").symlink_to("/etc/passwd")
    latin = os.fsdecode(b"caf\xe9.txt")
    (here / latin).write_text("not UTF-8")
    code = read_code_directory(here, LIMIT)
    kept = [".runwardignore", latin, "keep/a", "link", "run.sh", "src/data/__init__.py", "src/data/load.py", "train.py"]
    assert [file.path for file in code.files] == kept
    left_out = [
        ".env",
        ".envrc",
        ".git/",
        ".kube/",
        "Secrets/",
        "aws/Credentials.json",
        "data/",
        "keep/skip/",
        "last.ckpt",
        "my.PEM",
        "out",
        "outputs/",
        "prod.ENV",
        "secrets.toml",
        "skip.me",
        "venv/",
    ]
    assert list(code.left_out) == left_out
    directory, sent = send_files(store, here)
    assert len(sent) == len(kept) - 1
    assert (os.access(directory / "run.sh", os.X_OK), str((directory / "link").readlink())) == (True, "train.py")
    assert send_files(store, here) == (directory, [])
    (here / "train.py").write_text("changed")
    changed, sent = send_files(store, here)
    assert (sent, (changed / "train.py").read_text(), (directory / "train.py").read_text()) == (
        ["train.py"],
        "changed",
        "train.py",
    )


def test_a_damaged_upload_or_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    here, store = tmp_path / "cfm", CodeStore(tmp_path / "code")
    here.mkdir()
    (here / "train.py").write_text("print(1)\n")
    with pytest.raises(LaunchFailed, match=r"train.py arrived damaged.*Nothing was started"):
        send_files(store, here, spoil=b"print(0)\n")
    assert [path.name for path in store.path.iterdir()] == ["lock"]
    with pytest.raises(LaunchFailed, match="leads out"):
        store.make(
            {
                "sync": "rsync",
                "name": "x",
                "hash": "0" * 64,
                "token": TOKEN,
                "sent": [],
                "files": [["../a", 420, 0, ""]],
            }
        )
    assert [path.name for path in store.path.iterdir()] == ["lock"]
    with (here / "large").open("wb") as file:
        file.truncate(LIMIT)
    with pytest.raises(BadArgument, match=r"1 MiB to send.*largest: large 1 MiB.*\.runwardignore"):
        read_code_directory(here, LIMIT)


def test_settings_and_filters_of_a_clone_there_change_no_file_and_start_nothing(tmp_path: Path) -> None:
    here, store = make_repository(tmp_path / "cfm"), CodeStore(tmp_path / "code")
    (here / ".gitattributes").write_text("*.py diff=spy\n")
    (here / "b.txt").write_text("b\n")
    git(here, "add", ".")
    git(here, "commit", "-q", "-m", "second")
    git(tmp_path, "clone", "-q", str(here), "clone")
    clone, spy = tmp_path / "clone", tmp_path / "spy"
    spy.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\ncat\n")
    spy.chmod(0o755)
    (clone / ".git/hooks/post-checkout").symlink_to(spy)
    (clone / ".git/info/attributes").write_text("* filter=spy\n")
    for name, value in (("core.fsmonitor", str(spy)), ("diff.spy.textconv", str(spy)), ("core.autocrlf", "true")):
        git(clone, "config", name, value)
    for name, value in (
        ("filter.spy.smudge", str(spy)),
        ("filter.spy.process", str(spy)),
        ("core.sparseCheckout", "true"),
    ):
        git(clone, "config", name, value)
    (clone / ".git/info/sparse-checkout").write_text("/train.py\n")
    (tmp_path / "started").unlink(missing_ok=True)
    directory, _ = send_commit(store, here, clone)
    assert sorted(path.name for path in directory.iterdir()) == [".git", ".gitattributes", "b.txt", "train.py"]
    assert (directory / "train.py").read_bytes() == b"print(1)\n"
    assert send_commit(store, here, clone) == (directory, 0)
    assert not (tmp_path / "started").exists()


def test_a_directory_that_is_a_trap_is_refused_on_both_sides(tmp_path: Path) -> None:
    here, store = tmp_path / "cfm", CodeStore(tmp_path / "code")
    (here / "src").mkdir(parents=True)
    (here / "src" / "key.txt").write_text("mine")
    (here / "__init__.py").touch()
    os.mkfifo(here / "pipe")
    first, _ = send_files(store, here)
    (first / "__init__.py").unlink()
    os.mkfifo(first / "__init__.py")  # by a run: the next launch does not wait for its writer
    (first / "src" / "key.txt").write_text("his.")
    second, sent = send_files(store, here)
    assert (second.name, sent) == (f"{first.name}-2", ["__init__.py", "src/key.txt"])
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "key.txt").write_text("mine")
    (here / "src").rename(here / "old")
    (here / "src").symlink_to(tmp_path / "outside")  # between the look at it and the reading
    with pytest.raises(OSError, match="moved while it was read"):
        open_below(here, "src/key.txt")
    wish = {"sync": "rsync", "name": "x", "hash": "0" * 64, "token": TOKEN, "sent": [[EMPTY, 0]]}
    store.put(TOKEN, 0, b"")
    with pytest.raises(LaunchFailed, match="could not be written"):
        store.make({**wish, "files": [["a", -1, 0, str(tmp_path / "outside")], ["a/new", 420, 0, EMPTY]]})
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["key.txt"]
    deep = here / "old"
    for _ in range(120):
        deep /= "d"
    deep.mkdir(parents=True)
    with pytest.raises(BadArgument, match="more than 100 deep"):
        read_code_directory(here, LIMIT)


def test_a_full_disk_there_leaves_no_upload_and_two_launches_make_one_directory(tmp_path: Path) -> None:
    here, store = tmp_path / "cfm", CodeStore(tmp_path / "code")
    here.mkdir()
    (here / "train.py").write_text("print(1)\n" * 1000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, hard))
    try:
        with pytest.raises(OSError, match=r"No space left|too large"):
            store.put(TOKEN, 0, b"x" * 9_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(store.path.iterdir()) == []
    code = read_code_directory(here, LIMIT)
    (file,) = code.files
    wish = {
        "sync": "rsync",
        "name": "cfm",
        "hash": code.digest,
        "files": [file.facts],
        "sent": [[file.digest, file.size]],
    }
    tokens = [f"{number:016x}" for number in range(4)]
    for token in tokens:
        store.put(token, 0, (here / "train.py").read_bytes())
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda token: store.make({**wish, "token": token})["directory"], tokens))
    assert len(set(made)) == 1
    assert len(list(store.path.iterdir())) == 3  # the directory, its marker, the lock
