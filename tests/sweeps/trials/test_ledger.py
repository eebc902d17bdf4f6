"""The table of trials in the project: the usual columns, whole, and out of git's sight."""

from dataclasses import replace
from pathlib import Path

import pytest

from mcp_server.errors import BadArgument
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.sweeps.trials.ledger import TrialRow, check_ledger, list_rows, render_ledger, write_ledger
from mcp_server.sweeps.trials.trials import OpenSweep, read_trials
from tests.support.repository import git, make_repository, picture
from tests.support.sweeps import TRIALS, write_open_sweep

ROWS = (
    TrialRow("t0", "kept", "the base", "a" * 40, mean=0.15, memory_gib=44.04, n=4, sd=0.003, steps=950, runs=4),
    TrialRow("t1", "discarded", "lr .2\tand\nmore", "b" * 40, "t0", "ann", 0.16, 0.003, 1, -3.1, 44.0, 940, 1),
    TrialRow("t2", "undecided", "lr .15", "c" * 40, "t0", "ann", 0.149, 0.003, 4, 0.4, None, 940, 9),
    TrialRow("t3", "no_metric", "deeper", "d" * 40, "t0", "bob", runs=1, params="depth=4"),
)


def make_sweep(tmp_path: Path, project: Path) -> OpenSweep:
    """An open sweep of a project, by its record."""
    directory = write_open_sweep(tmp_path / "home", TRIALS)
    store = RunStore(StateHome.of({"RUNWARD_HOME": str(tmp_path / "home")}))
    seen = read_trials(store.sweeps.observe(directory.sweep_id))
    return replace(seen, plan=replace(seen.plan, repository=str(project)))


def test_the_first_columns_and_words_are_those_of_the_public_loops() -> None:
    assert render_ledger("val_loss", ROWS).split("\n") == [
        "commit\tval_loss\tmemory_gb\tstatus\tdescription\ttrial\tbase\tby\tn\tsd\tgain_sd\tsteps\truns",
        "aaaaaaa\t0.150000\t44.0\tkeep\tthe base\tt0\t\t\t4\t0.003\t\t950\t4",
        "bbbbbbb\t0.160000\t44.0\tdiscard\tlr .2 and more\tt1\tt0\tann\t1\t0.003\t-3.10\t940\t1",
        "ccccccc\t0.149000\t\tundecided\tlr .15\tt2\tt0\tann\t4\t0.003\t0.40\t940\t9",
        "ddddddd\t\t\tcrash\tdeeper (depth=4)\tt3\tt0\tbob\t0\t\t\t\t1",
        "",
    ]


def test_git_ignores_the_table_in_this_clone_alone_and_is_told_once(tmp_path: Path) -> None:
    project = make_repository(tmp_path / "mono", {"proj/train.py": "1\n"})
    exclude = project / ".git/info/exclude"
    exclude.write_text("*.o")
    seen = make_sweep(tmp_path, project / "proj")
    for _ in range(2):
        write_ledger(seen)
        (project / "proj/results.tsv").write_text("an older one")
    write_ledger(seen)
    assert exclude.read_text() == "*.o\n/proj/results.tsv\n"
    assert git(project, "status", "--porcelain") == ""
    assert (project / "proj/results.tsv").read_text() == render_ledger("val_loss", list_rows(seen))
    assert not (project / ".gitignore").exists()


def test_a_table_that_git_ignores_already_changes_no_other_file(tmp_path: Path) -> None:
    project = make_repository(tmp_path / "project", {".gitignore": "*.tsv\n"})
    before = picture(project)
    write_ledger(make_sweep(tmp_path, project))
    assert {name for name in picture(project) if name not in before} == {"results.tsv"}
    assert {name: value for name, value in picture(project).items() if name in before} == before


def test_without_a_repository_the_table_is_written_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    write_ledger(make_sweep(tmp_path, tmp_path / "project"))
    assert [path.name for path in (tmp_path / "project").iterdir()] == ["results.tsv"]


def test_a_table_that_is_right_or_not_wanted_is_left_alone(tmp_path: Path) -> None:
    project = make_repository(tmp_path / "project")
    seen = make_sweep(tmp_path, project)
    write_ledger(seen)
    before = picture(project)
    write_ledger(seen)
    write_ledger(replace(seen, plan=replace(seen.plan, ledger="")))
    assert picture(project) == before


def test_a_file_of_a_person_is_never_replaced(tmp_path: Path) -> None:
    check_ledger(tmp_path, "results.tsv")
    (tmp_path / "results.tsv").write_text(render_ledger("loss", ROWS))
    check_ledger(tmp_path, "results.tsv")
    (tmp_path / "mine.tsv").write_text("commit\tval_bpb\tmemory_gb\tstatus\tdescription\n")
    (tmp_path / "link.tsv").symlink_to(tmp_path / "results.tsv")
    for name in ("mine.tsv", "link.tsv"):
        with pytest.raises(BadArgument, match="is there, and no sweep wrote it"):
            check_ledger(tmp_path, name)
    for name in ("../x.tsv", "/x.tsv", "none/x.tsv", "train.py", ""):
        with pytest.raises(BadArgument, match=r"is no \.tsv file below"):
            check_ledger(tmp_path, name)
