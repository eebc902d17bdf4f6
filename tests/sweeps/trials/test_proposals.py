"""Proposals are commits that leave a person's repository as it was."""

import subprocess
from pathlib import Path

import pytest

from mcp_server.errors import BadArgument
from mcp_server.sweeps.trials.proposals import (
    Proposal,
    capture,
    checkout,
    merge,
    move_tip,
    read_base,
    remove_checkout,
    save_ref,
    tip,
)
from tests.support.repository import git, make_repository, picture


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "project")


def edit(directory: Path, old: str, new: str, name: str = "train.py") -> None:
    text = (directory / name).read_text()
    assert old in text
    (directory / name).write_text(text.replace(old, new))


def propose(project: Path, old: str, new: str) -> Proposal:
    """The proposal of one changed line, whose work tree is as before afterwards."""
    edit(project, old, new)
    try:
        return capture(project, "HEAD", worktree=project, text=f"{old} -> {new}")
    finally:
        git(project, "checkout", "-q", "train.py")


def test_a_worktree_becomes_the_commit_of_all_its_files_but_ignored_ones(project: Path) -> None:
    edit(project, "lr = 0.1", "lr = 0.2")
    (project / "new.py").write_text("x = 1\n")
    (project / "eval/score.py").unlink()
    (project / "run.log").write_text("ignored\n")
    made = capture(project, "HEAD", worktree=project, text="a higher rate")
    assert made.files == ("eval/score.py", "new.py", "train.py")
    assert git(project, "ls-tree", "-r", "--name-only", made.commit).split() == [
        *(".gitignore", "new.py", "prepare.py", "train.py")
    ]
    assert git(project, "show", f"{made.commit}:train.py") == (project / "train.py").read_text()
    assert git(project, "log", "-1", "--format=%P %an %s", made.commit).split() == [
        *(git(project, "rev-parse", "HEAD").strip(), "runward", "a", "higher", "rate")
    ]
    assert "-lr = 0.1\n+lr = 0.2\n" in made.diff
    assert made.tree == git(project, "rev-parse", f"{made.commit}^{{tree}}").strip()


def test_neither_the_index_nor_the_stash_nor_a_file_of_the_person_changes(project: Path) -> None:
    edit(project, "lr = 0.1", "lr = 0.3")
    git(project, "stash")
    edit(project, "steps = 10", "steps = 20")
    git(project, "add", "train.py")
    edit(project, "momentum = 0.9", "momentum = 0.8")
    (project / "notes.txt").write_text("mine\n")
    hook = project / ".git/hooks/post-checkout"
    hook.write_text("#!/bin/sh\ntouch hooked\n")
    hook.chmod(0o755)
    (project / ".git/hooks/reference-transaction").write_text("#!/bin/sh\nexit 1\n")
    (project / ".git/hooks/reference-transaction").chmod(0o755)
    before = picture(project)
    made = capture(project, "HEAD", worktree=project, text="more steps")
    assert "steps = 20" in made.diff
    assert "momentum = 0.8" in made.diff
    assert "notes.txt" in made.files
    save_ref(project, "s", "t1", made.commit)
    there = checkout(project, made.commit, project.parent / "t1")
    assert (there / "train.py").read_text() == (project / "train.py").read_text()
    assert not (there / "hooked").exists()
    assert move_tip(project, "s", made.commit, None)
    remove_checkout(project, project.parent / "t1")
    assert picture(project) == before
    assert len(git(project, "worktree", "list").splitlines()) == 1
    assert git(project, "branch", "--format=%(refname:short)").split() == ["main", "runward/s"]


def test_a_change_that_git_was_told_to_overlook_is_part_of_the_proposal(project: Path) -> None:
    git(project, "update-index", "--assume-unchanged", "train.py")
    git(project, "update-index", "--skip-worktree", "prepare.py")
    edit(project, "lr = 0.1", "lr = 0.2")
    edit(project, "SECONDS = 2", "SECONDS = 9", "prepare.py")
    before = picture(project)
    assert capture(project, "HEAD", worktree=project, text="hidden").files == ("prepare.py", "train.py")
    assert picture(project) == before


def test_a_change_within_the_same_second_and_of_the_same_size_is_seen(project: Path) -> None:
    for value in range(10):
        (project / "train.py").write_text(f"lr = {value}\n")
        git(project, "add", "train.py")
        (project / "train.py").write_text(f"lr = {9 - value}\n")
        assert f"+lr = {9 - value}\n" in capture(project, "HEAD", worktree=project, text="racy").diff


def test_a_conflicted_and_a_linked_worktree_are_taken_as_their_files_are(project: Path, tmp_path: Path) -> None:
    git(project, "worktree", "add", "-q", str(tmp_path / "agent"), "-b", "agent")
    edit(tmp_path / "agent", "lr = 0.1", "lr = 0.4")
    assert capture(project, "HEAD", worktree=tmp_path / "agent", text="x").files == ("train.py",)
    git(tmp_path / "agent", "commit", "-qam", "rate")
    edit(project, "lr = 0.1", "lr = 0.5")
    git(project, "commit", "-qam", "other rate")
    with pytest.raises(subprocess.CalledProcessError):
        git(project, "merge", "agent")
    made = capture(project, "HEAD", worktree=project, text="by hand")
    assert git(project, "show", f"{made.commit}:train.py") == (project / "train.py").read_text()


def test_modes_links_and_odd_names_are_kept(project: Path) -> None:
    (project / "run me.sh").write_text("true\n")
    (project / "run me.sh").chmod(0o755)
    (project / "link").symlink_to("train.py")
    (project / "ünï\n.py").write_text("1\n")
    made = capture(project, "HEAD", worktree=project, text="odd")
    assert set(made.files) == {"run me.sh", "link", "ünï\n.py"}
    listed = git(project, "ls-tree", "-r", made.commit)
    assert "100755" in listed
    assert "120000" in listed


def test_the_same_change_on_another_base_has_the_same_patch_id(project: Path) -> None:
    base = git(project, "rev-parse", "HEAD").strip()
    first = propose(project, "lr = 0.1", "lr = 0.2")
    edit(project, "momentum = 0.9", "momentum = 0.5")
    git(project, "commit", "-qam", "next to it")
    second = propose(project, "lr = 0.1", "lr = 0.2")
    third = propose(project, "lr = 0.1", "lr = 0.25")
    assert first.patch_id == second.patch_id != third.patch_id
    assert first.tree != second.tree
    assert len(first.patch_id) == len(base)


def test_nothing_that_differs_is_the_base(project: Path) -> None:
    base = git(project, "rev-parse", "HEAD").strip()
    tree = git(project, "rev-parse", "HEAD^{tree}").strip()
    assert capture(project, "HEAD", worktree=project, text="none") == Proposal(base, tree, "", (), "", base)


def test_a_worktree_is_based_on_the_trial_from_which_it_differs_least(project: Path) -> None:
    base, first = read_base(project), propose(project, "lr = 0.1", "lr = 0.2").commit
    other = propose(project, "steps = 10", "steps = 20").commit
    edit(project, "lr = 0.1", "lr = 0.2")
    edit(project, "momentum = 0.9", "momentum = 0.8")
    made = capture(project, base, worktree=project, nearer=(first, other), text="on the first")
    assert made.base == first
    assert "+momentum = 0.8\n" in made.diff
    assert "-lr = 0.1" not in made.diff
    git(project, "checkout", "-q", "train.py")
    edit(project, "print(lr)", "print(lr, flush=True)")
    assert capture(project, base, worktree=project, nearer=(first, other), text="on the base").base == base


def test_a_patch_applies_even_where_its_lines_are_counted_wrongly(project: Path) -> None:
    edit(project, "lr = 0.1", "lr = 0.2")
    patch = git(project, "diff")
    git(project, "checkout", "-q", "train.py")
    whole = capture(project, "HEAD", patch=patch, text="p")
    assert whole.files == ("train.py",)
    wrong = patch.replace("@@ -1,6 +1,6 @@", "@@ -1,9 +1,7 @@")
    assert wrong != patch
    assert capture(project, "HEAD", patch=wrong, text="p").tree == whole.tree


def test_a_patch_that_does_not_apply_names_file_and_line(project: Path) -> None:
    patch = "--- a/train.py\n+++ b/train.py\n@@ -3,2 +3,2 @@\n-lr = 7\n+lr = 8\n momentum = 0.9\n"
    with pytest.raises(BadArgument, match=r"patch: does not apply to [0-9a-f]{7}: train\.py:3\. Nothing was done\."):
        capture(project, "HEAD", patch=patch, text="p")
    with pytest.raises(BadArgument, match="No valid patches"):
        capture(project, "HEAD", patch="lr = 8", text="p")
    with pytest.raises(BadArgument, match=r"is of 1 MiB, and 1 MiB is the most"):
        capture(project, "HEAD", patch="+" * (2**20 + 1), text="p")


def test_a_commit_gives_its_tree_and_an_unknown_one_is_refused(project: Path) -> None:
    made = propose(project, "lr = 0.1", "lr = 0.2")
    again = capture(project, "HEAD", commit=made.commit[:10], text="same")
    assert (again.tree, again.patch_id, again.files) == (made.tree, made.patch_id, made.files)
    for word in ("0" * 40, "--all", "nope"):
        with pytest.raises(BadArgument, match=r"commit: .* has no commit"):
            capture(project, "HEAD", commit=word, text="x")


def test_params_need_no_repository(tmp_path: Path, project: Path) -> None:
    first = capture(tmp_path, "", params={"lr": 0.1, "b": 2}, text="x")
    assert (first.commit, first.tree, first.files) == ("", "", ())
    assert first.patch_id == capture(tmp_path, "", params={"b": 2, "lr": 0.1}, text="y").patch_id
    base = git(project, "rev-parse", "HEAD").strip()
    within = capture(project, base, params={"lr": 0.1}, text="x")
    assert (within.commit, within.tree) == (base, git(project, "rev-parse", "HEAD^{tree}").strip())


def test_sources_that_are_none_or_two_are_refused(project: Path) -> None:
    with pytest.raises(BadArgument, match="none of worktree, patch, commit, params is given"):
        capture(project, "HEAD", text="x")
    with pytest.raises(BadArgument, match="worktree and patch of worktree, patch, commit, params"):
        capture(project, "HEAD", worktree=project, patch="", text="x")


def test_a_large_file_is_refused_before_git_stores_it(project: Path) -> None:
    (project / "model.pt").write_bytes(b"\0" * (5 * 2**20 + 1))
    before = git(project, "count-objects")
    with pytest.raises(BadArgument, match=r"model\.pt is of 5 MiB.*a checkpoint\?.*info/exclude"):
        capture(project, "HEAD", worktree=project, text="x")
    assert git(project, "count-objects") == before
    git(project, "add", "model.pt")
    git(project, "commit", "-qm", "large")
    with pytest.raises(BadArgument, match="a checkpoint"):
        capture(project, "HEAD~1", commit="HEAD", text="x")


def test_another_repository_and_a_nested_one_are_refused(project: Path, tmp_path: Path) -> None:
    other = make_repository(tmp_path / "other")
    with pytest.raises(BadArgument, match="belongs to another repository"):
        capture(project, "HEAD", worktree=other, text="x")
    with pytest.raises(BadArgument, match="not a git repository"):
        capture(project, "HEAD", worktree=tmp_path, text="x")
    make_repository(project / "nested")
    with pytest.raises(BadArgument, match="nested/ in it: a repository of its own"):
        capture(project, "HEAD", worktree=project, text="x")


def test_a_file_outside_of_paths_is_refused_unless_it_is_protected(project: Path) -> None:
    edit(project, "lr = 0.1", "lr = 0.2")
    edit(project, "SECONDS = 2", "SECONDS = 9", "prepare.py")
    with pytest.raises(BadArgument, match=r"changes prepare\.py, and this sweep allows train\.py"):
        capture(project, "HEAD", worktree=project, paths=("train.py",), text="x")
    made = capture(project, "HEAD", worktree=project, paths=("train.py",), protect=("prepare.py",), text="x")
    assert made.files == ("prepare.py", "train.py")


def test_a_directory_below_the_top_has_names_and_runs_of_its_own(tmp_path: Path) -> None:
    project = make_repository(tmp_path / "mono", {"lib/x.py": "1\n", "proj/train.py": "2\n"}) / "proj"
    (project / "train.py").write_text("3\n")
    (project.parent / "lib/x.py").write_text("4\n")
    made = capture(project, "HEAD", worktree=project, text="x")
    assert made.files == ("../lib/x.py", "train.py")
    there = checkout(project, made.commit, tmp_path / "t1")
    assert there == tmp_path / "t1/proj"
    assert (there / "train.py").read_text() == "3\n"
    patch = "--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-2\n+3\n"
    assert capture(project, "HEAD", patch=patch, text="x").files == ("train.py",)


def test_a_filter_program_of_the_clone_never_runs(project: Path, tmp_path: Path) -> None:
    git(project, "config", "filter.evil.smudge", f"touch {tmp_path}/ran")
    git(project, "config", "filter.evil.clean", f"touch {tmp_path}/ran")
    (project / ".gitattributes").write_text("*.py filter=evil\n")
    edit(project, "lr = 0.1", "lr = 0.2")
    made = capture(project, "HEAD", worktree=project, text="x")
    checkout(project, made.commit, tmp_path / "t1")
    assert not (tmp_path / "ran").exists()


def test_a_base_whose_files_are_not_all_in_git_is_refused(project: Path, tmp_path: Path) -> None:
    assert read_base(project) == git(project, "rev-parse", "HEAD").strip()
    with pytest.raises(BadArgument, match=r"cwd: .* is no work tree of git: .* Run git init there and commit once"):
        read_base(tmp_path)
    (tmp_path / "new").mkdir()
    git(tmp_path / "new", "init", "-q")
    with pytest.raises(BadArgument, match=r"has no commit\. Nothing was done\. Commit once"):
        read_base(tmp_path / "new")
    with pytest.raises(BadArgument, match=r"base: .* has no commit 'nope'"):
        read_base(project, "nope")
    git(project, "config", "filter.lfs.clean", "cat")
    (project / ".gitattributes").write_text("*.bin filter=lfs\n")
    (project / "model.bin").write_text("pointer\n")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "lfs")
    with pytest.raises(BadArgument, match=r"keeps model\.bin behind a filter"):
        read_base(project)


def test_a_checkout_has_protected_data_and_environments_by_links_and_is_made_anew(
    project: Path, tmp_path: Path
) -> None:
    for name in ("data/train.bin", ".venv/pyvenv.cfg", "checkpoints.log"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text("x")
    commit = read_base(project)
    there = checkout(project, commit, tmp_path / "cells/t0.0", links=("data/", "train.py", "~/elsewhere", "/etc"))
    assert (there / "data/train.bin").read_text() == "x"
    assert (there / ".venv").is_symlink()
    assert not (there / "train.py").is_symlink()
    assert not (there / "checkpoints.log").exists()
    (there / "train.py").write_text("left by a run that died\n")
    assert (checkout(project, commit, tmp_path / "cells/t0.0") / "train.py").read_text().startswith("import")
    remove_checkout(project, tmp_path / "cells/t0.0")
    remove_checkout(project, tmp_path / "cells/t0.0")
    assert (project / "data/train.bin").exists()
    assert not (tmp_path / "cells/t0.0").exists()
    assert len(git(project, "worktree", "list").splitlines()) == 1


def test_an_edit_after_the_proposal_does_not_reach_its_run(project: Path, tmp_path: Path) -> None:
    edit(project, "lr = 0.1", "lr = 0.2")
    proposed = (project / "train.py").read_text()
    made = capture(project, "HEAD", worktree=project, text="x")
    edit(project, "lr = 0.2", "lr = 99")
    assert (checkout(project, made.commit, tmp_path / "t1") / "train.py").read_text() == proposed


def test_the_tip_moves_in_one_step_from_where_it_was_said_to_be(project: Path, tmp_path: Path) -> None:
    base, first = read_base(project), propose(project, "lr = 0.1", "lr = 0.2").commit
    second = propose(project, "lr = 0.1", "lr = 0.3").commit
    assert tip(project, "s") is None
    assert move_tip(project, "s", base, None)
    assert tip(project, "s") == base
    assert not move_tip(project, "s", first, None)
    assert move_tip(project, "s", first, base)
    assert not move_tip(project, "s", second, base)
    assert tip(project, "s") == first
    git(project, "worktree", "add", "-q", str(tmp_path / "w"), "runward/s")
    assert not move_tip(project, "s", second, first)
    assert tip(project, "s") == first
    assert git(project, "rev-parse", "main").strip() == base


def test_changes_of_different_lines_merge_and_those_of_the_same_do_not(project: Path) -> None:
    base = read_base(project)
    ours = propose(project, "lr = 0.1", "lr = 0.2").commit
    theirs = propose(project, "steps = 10", "steps = 20").commit
    merged = merge(project, base, ours, theirs, text="t2 on t1")
    assert merged is not None
    text = git(project, "show", f"{merged}:train.py")
    assert "lr = 0.2" in text
    assert "steps = 20" in text
    assert git(project, "rev-parse", f"{merged}^").strip() == ours
    assert merge(project, base, ours, propose(project, "lr = 0.1", "lr = 0.3").commit) is None


def test_the_ref_of_a_trial_outlives_garbage_collection_and_is_no_branch(project: Path) -> None:
    made = propose(project, "lr = 0.1", "lr = 0.2")
    lost = propose(project, "lr = 0.1", "lr = 0.3")
    save_ref(project, "s", "t1", made.commit)
    git(project, "gc", "-q", "--prune=now")
    assert git(project, "cat-file", "-t", made.commit).strip() == "commit"
    with pytest.raises(subprocess.CalledProcessError):
        git(project, "cat-file", "-e", lost.commit)
    assert git(project, "branch", "--all").split() == ["*", "main"]
