"""What no trial may touch: named by its proposal, or changed while it ran."""

from pathlib import Path

import pytest

from mcp_server.errors import BadArgument
from mcp_server.record.code.protected_files import changed, digest, find_matches, find_shadows
from mcp_server.sweeps.trials.proposals import capture, checkout, read_base
from mcp_server.sweeps.trials.protection import check_protect, violations
from tests.support.repository import git, make_repository
from tests.support.tampering import AT_RUN_TIME, PROPOSED, PROTECT, Change


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "project")


def test_a_pattern_is_a_path_a_directory_or_a_glob() -> None:
    files = ["a.py", "eval/b.py", "evaluate.py", "src/eval_c.py"]
    assert find_matches(files, ["eval/"]) == ["eval/b.py"]
    assert find_matches(files, ["./eval", "a.py"]) == ["a.py", "eval/b.py"]
    assert find_matches(files, ["*eval*.py"]) == ["eval/b.py", "evaluate.py", "src/eval_c.py"]


@pytest.mark.parametrize(("name", "change"), PROPOSED)
def test_a_proposal_that_touches_what_is_protected_is_named(project: Path, name: str, change: Change) -> None:
    base = read_base(project)
    (project / "train.py").write_text("lr = 0.2\n")
    change(project / name)
    made = capture(project, base, worktree=project, text="x")
    assert violations(made.files, PROTECT, repository=project, base=base) == [name]


def test_a_plain_change_touches_nothing_protected(project: Path) -> None:
    base = read_base(project)
    names = ["train.py", "model.py", "evaluation.py", "lib/prepare_data.py", "torch_utils.py", "data.py", "notes.md"]
    assert violations(names, PROTECT, repository=project, base=base) == []


def test_a_module_shadows_where_python_would_import_it_first() -> None:
    names = ["pkg/__init__.py", "pkg/model.py", "eval/score.py", "tools/run.py"]
    new = ["pkg/types.py", "tools/types.py", "score.py", "torch.py", "pkg/torch.py", "queue/__init__.py", "queue2.py"]
    found = find_shadows(new, names, ("eval/",), ("torch",))
    assert found == ["tools/types.py", "score.py", "torch.py", "queue/__init__.py"]


def test_protect_that_matches_nothing_is_refused_with_near_names(project: Path) -> None:
    base = read_base(project)
    with pytest.raises(BadArgument, match=r"'preprae\.py' matches nothing in .*Near it: prepare\.py"):
        check_protect(project, base, ["train.py", "preprae.py"])
    with pytest.raises(BadArgument, match="'~/none-of-this' matches nothing"):
        check_protect(project, base, ["~/none-of-this"])


def test_protect_is_relative_to_the_project_wherever_it_may_be(project: Path, tmp_path: Path) -> None:
    (project / "data").mkdir()
    (project / "data/train.bin").write_text("x")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/tokens").write_text("x")
    given = [str(project / "prepare.py"), "./eval/", "data/", "*.py", str(tmp_path / "cache")]
    assert check_protect(project, read_base(project), given) == [
        *("prepare.py", "eval", "data", "*.py", str(tmp_path / "cache"))
    ]


def test_a_protected_file_that_differs_from_the_base_is_refused(project: Path) -> None:
    (project / "prepare.py").write_text("SECONDS = 9\n")
    with pytest.raises(BadArgument, match=r"prepare\.py differs from [0-9a-f]{7} in .*Commit it, or leave it out"):
        check_protect(project, read_base(project), ["prepare.py"])
    assert check_protect(project, read_base(project), ["train.py"]) == ["train.py"]


@pytest.mark.parametrize(("name", "change"), AT_RUN_TIME)
def test_a_file_that_changed_while_a_run_had_it_is_named(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, change: Change
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in (project / "data/train.bin", tmp_path / "cache/tokens"):
        path.parent.mkdir()
        path.write_text("1 2 3\n")
    base = read_base(project)
    protect = check_protect(project, base, [*PROTECT, "~/cache"])
    there = checkout(project, base, tmp_path / "cells/t1.0", links=protect)
    (there / "eval/__pycache__").mkdir()
    before = digest(project, base, protect, there)
    (there / "train.py").write_text("lr = 0.2\n")
    (there / "model.pt").write_text("weights\n")
    (there / "eval/__pycache__/score.cpython-313.pyc").write_text("made by an import\n")
    assert changed(before, digest(project, base, protect, there)) == []
    target = project if name.startswith(".git/") else there
    change(Path(name).expanduser() if name.startswith("~") else target / name)
    assert changed(before, digest(project, base, protect, there)) == [name]


def test_contents_are_read_as_far_as_the_limit_and_times_of_all(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_server.record.code.protected_files._MOST_HASHED_BYTES", 10)
    (tmp_path / "big").write_bytes(b"x" * 11)
    (tmp_path / "small").write_bytes(b"x" * 3)
    facts = digest(project, read_base(project), [str(tmp_path / "big"), str(tmp_path / "small")], project)
    assert len(facts[str(tmp_path / "small")].split()) == 5
    assert len(facts[str(tmp_path / "big")].split()) == 4


def test_a_loop_of_links_and_a_link_that_leads_nowhere_have_an_end(project: Path, tmp_path: Path) -> None:
    (project / "data").mkdir()
    (project / "data/again").symlink_to(project / "data")
    (project / "data/gone").symlink_to(tmp_path / "none")
    facts = digest(project, read_base(project), ["data"], project)
    assert "data/gone" in facts
    assert not [name for name in git(project, "status", "--porcelain").splitlines() if name]
