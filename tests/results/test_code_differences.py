"""Which files differ between the code of runs, as far as it was kept."""

from mcp_server.results.code_differences import CodeOfRun, describe_other_code, find_code_differences, split_diff


def test_files_that_differ_are_named_and_files_of_one_run_alone_are_not() -> None:
    one = CodeOfRun("a", files={"train.py": "1", "lib/m.py": "1", "same.py": "1", "only.py": "1"})
    other = CodeOfRun("b", files={"train.py": "2", "lib/m.py": "2", "same.py": "1"})
    assert find_code_differences([one, other]) == ["Code differs: train.py, lib/m.py."]
    assert find_code_differences([one, CodeOfRun("c")]) == []


def test_of_several_runs_those_with_equal_code_are_grouped() -> None:
    codes = [CodeOfRun(name, files={"train.py": digest}) for name, digest in zip("abc", "121", strict=True)]
    assert find_code_differences(codes) == ["Code differs: train.py. Alike: a, c."]


def test_runs_with_equal_changes_are_alike_whatever_files_were_kept_of_each() -> None:
    changes = {"train.py": "1"}
    kept = [CodeOfRun("a", "c1", {"train.py": "x"}, changes), CodeOfRun("b", "c1", {"kv.py": "y"}, changes)]
    other = CodeOfRun("c", "c1", {"train.py": "z"}, {"train.py": "2"})
    assert find_code_differences([*kept, other]) == ["Code differs: train.py. Alike: a, b."]


def test_uncommitted_changes_of_one_commit_are_compared_and_of_two_are_not() -> None:
    clean, changed = CodeOfRun("a", "c1", changes={}), CodeOfRun("b", "c1", changes={"src/m.py": "1"})
    assert find_code_differences([clean, changed]) == ["Code differs: src/m.py."]
    assert find_code_differences([clean, CodeOfRun("b", "c2", changes={"src/m.py": "1"})]) == []
    assert find_code_differences([clean, CodeOfRun("b", "c1")]) == []  # what was not committed is unknown
    assert changed.described_commit == "c1+changes"
    assert CodeOfRun("run", "c1", has_untracked=True).described_commit == "c1+untracked"
    assert describe_other_code([clean, changed, CodeOfRun("d")]) == "src/m.py"
    assert describe_other_code([clean, CodeOfRun("b", "c2")]) == "c1, c2"
    assert describe_other_code([clean, CodeOfRun("b", "c1"), CodeOfRun("d")]) == ""


def test_files_kept_under_two_commits_are_not_told_as_all_that_differs() -> None:
    codes = [CodeOfRun("a", "c1", {"det.py": "1"}, {}), CodeOfRun("b", "c2", {"det.py": "2"}, {"det.py": "2"})]
    assert describe_other_code(codes) == "det.py, c1, c2+changes"
    told = "Code differs: det.py. What else the commits c1, c2+changes changed is not compared."
    assert find_code_differences(codes) == [told]


def test_a_file_below_its_work_tree_and_below_the_directory_is_named_once() -> None:
    one = CodeOfRun("a", "c", {"m.py": "1"}, {"src/m.py": "1"})
    assert find_code_differences([one, CodeOfRun("b", "c", {"m.py": "2"}, {"src/m.py": "2"})]) == [
        "Code differs: src/m.py."
    ]


def test_a_clean_tree_has_no_changes_and_each_file_of_a_diff_its_own() -> None:
    assert split_diff("") == {}
    one = "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-1\n+2\n"
    both = split_diff(one + one.replace("x.py", "y.py"))
    assert both.keys() == {"x.py", "y.py"}


def test_a_file_that_no_command_names_is_said_to_lie_beside_those_that_ran() -> None:
    def run(name: str, train: str, script: str = "csvtrain.py") -> CodeOfRun:
        return CodeOfRun(name, "c", {script: "1"}, {"proj/train.py": train}, named=frozenset({script}))

    (note,) = find_code_differences([run("a", "1"), run("b", "2")])
    assert note == "Code differs beside the files that the commands name: proj/train.py."
    (note,) = find_code_differences([run("a", "1"), run("b", "2", "train.py")])
    assert note == "Code differs: proj/train.py."
