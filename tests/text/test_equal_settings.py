"""Settings that mean the same are equal, and only those."""

import pytest

from mcp_server.command.shell import find_directory
from mcp_server.results.comparison_cells import find_differences
from mcp_server.text.equal_settings import Place, find_equal_forms

HERE, THERE = Place("/w/a", "/v/bin/python"), Place("/w/b", "/v/bin/python3")


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("lr", "1e-3", "0.001"),
        ("lr", "1.0e-03", ".001"),
        ("iters", "1000", "1e3"),
        ("eps", "0", "0.0"),
        ("bf16", "True", "true"),
        ("config", "low.json", "/w/a/low.json"),
        ("config", "./conf/low.json", "/w/a/conf/low.json"),
        ("command", "python train.py low.json", "/v/bin/python /w/a/train.py low.json"),
        ("command", "python3 train.py", "/v/bin/python3 train.py"),
    ],
)
def test_equal_settings_are_equal(name: str, one: str, other: str) -> None:
    forms = find_equal_forms(name, [one, other], [HERE, HERE])
    assert forms[0] == forms[1]


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("lr", "0.001", "0.0010001"),
        ("id", "007", "7"),
        ("run_id", "1e3", "1000"),
        ("model.version", "1.10", "1.1"),
        ("config", "low.json", "/w/a/low.json"),  # of another directory
        ("command", "python train.py", "/other/bin/python train.py"),
        ("command", "/v/bin/python3.11 train.py", "/v/bin/python train.py"),
        ("bf16", "true", "1"),
        ("lr", "nan", "NaN"),
        ("lr", "", "0"),
        ("seed", f"1{30 * '0'}1", f"1{30 * '0'}2"),
        ("seed", 1_100_000 * "9", "9"),
    ],
)
def test_what_is_not_certainly_equal_differs(name: str, one: str, other: str) -> None:
    forms = find_equal_forms(name, [one, other], [THERE, HERE])
    assert forms[0] != forms[1]


def test_equal_texts_are_equal_wherever_a_run_ran() -> None:
    assert find_differences([{"command": "/x/y a.py adam"}] * 2, [HERE, THERE]) == ([], [])


def test_a_setting_that_one_run_lacks_differs() -> None:
    assert find_differences([{"lr": "1e-3"}, {}, {"lr": "0.001"}], [HERE] * 3)[0] == ["lr"]


def test_a_path_below_the_directory_that_a_command_enters_equals_its_absolute_form() -> None:
    entered = find_directory("cd code && tensorboard --logdir o &\npython train.py --c base.json", "/p")
    assert (entered, find_directory("cd $CODE && python train.py", "/p"), find_directory(["cd", "a"], "/p")) == (
        "/p/code",
        "/p",
        "/p",
    )
    first, second = find_equal_forms("c", ["base.json", "/p/code/base.json"], [Place(entered), Place("/x")])
    assert first == second
