"""The table of programs: what they start, what an interpreter runs, and which of them leave a command as it was."""

import pytest

from mcp_server.command.programs import Entry, find_entry, find_main, keeps_path, unwrap
from mcp_server.command.shell import parse


@pytest.mark.parametrize(
    ("command", "kind", "value", "arguments"),
    [
        ("python train.py a b", "script", "train.py", "a b"),
        ("python -u -W ignore -X dev train.py a", "script", "train.py", "a"),
        ("python -Wignore::Warning:cm train.py", "script", "train.py", ""),
        ("python3.12 -um pkg.train a", "module", "pkg.train", "a"),
        ("python -mpkg a", "module", "pkg", "a"),
        ("python -c pass a", "code", "pass", "a"),
        ("python main.py fit -c x.yaml", "script", "main.py", "fit -c x.yaml"),
        ("python -- train.py", "script", "train.py", ""),
        ("python", "input", "", ""),
        ("python - a", "input", "", "a"),
        ("bash -x run.sh a", "script", "run.sh", "a"),
        ("bash -o pipefail run.sh", "script", "run.sh", ""),
        ("bash -o pipefail -euc text a", "code", "text", "a"),
        ("sh -s a", "input", "", "a"),
        ("bash /dev/stdin", "input", "", ""),
        (". ./env a", "script", "./env", "a"),
        ("torchrun --nproc 2 t.py -m x", "script", "t.py", "-m x"),
        ("torchrun -m pkg.train --lr 1", "module", "pkg.train", "--lr 1"),
    ],
)
def test_an_interpreter_runs_a_script_a_module_code_or_its_input(
    command: str, kind: str, value: str, arguments: str
) -> None:
    words = command.split()
    entry = find_entry(words)
    assert entry is not None
    assert (entry.kind, entry.value, words[entry.at + 1 :]) == (kind, value, arguments.split())


@pytest.mark.parametrize("command", ["./train.sh", "ls -c", "accelerate config", "torchrun --no-python ./a.sh t.py"])
def test_other_programs_run_nothing_of_an_interpreter(command: str) -> None:
    assert find_entry(command.split()) is None


def test_a_shell_reads_its_script_in_its_own_language() -> None:
    assert find_entry(["bash", "a"]) == Entry("script", "a", 1, is_shell=True)
    assert find_entry(["python", "a"]) == Entry("script", "a", 1)


@pytest.mark.parametrize(
    ("command", "main"),
    [
        ("python t.py", "python"),
        ("./train", "./train"),
        ("timeout -k 5 3h nice -n 5 python t.py", "python"),
        ("numactl --physcpubind all python t.py", "python"),
        ("uv run --with ray python t.py", "python"),
        ("conda run -n lab --no-capture-output python t.py", "python"),
        ("sudo -u me python t.py", "sudo"),
        ("flock /tmp/l python t.py", "python"),
        ("strace -f pkill python", None),
        ("timeout 3h pyhton t.py", None),
        ("uv run --directory sub python t.py", None),
        ("ssh host python t.py", None),
        ("docker run image python t.py", None),
        ("-x", None),
    ],
)
def test_behind_a_wrapper_only_an_interpreter_is_certain(command: str, main: str | None) -> None:
    words = command.split()
    at = find_main(words)
    assert (None if at is None else words[at]) == main


@pytest.mark.parametrize(
    ("command", "is_kept"),
    [
        ("date", True),
        ("export A=1", True),
        ("trap 'kill 0' EXIT", True),
        ("A=1", True),
        ("export PATH=/x:$PATH", False),
        ("PATH=/x", False),
        ("module load cuda", False),
        ("source env.sh", False),
        ("./setup", False),
    ],
)
def test_a_report_or_a_setting_leaves_the_path_alone(command: str, is_kept: bool) -> None:
    (simple,) = parse(command).commands
    assert keeps_path(simple.program, simple.words) is is_kept


def test_wrappers_are_taken_off_with_their_options() -> None:
    assert unwrap(["A=1", "sudo", "-u", "me", "timeout", "-s", "INT", "5", "env", "B=2", "python", "t.py"]) == (
        ("python", "t.py"),
        ("A=1", "B=2"),
        False,
    )
    assert unwrap(["xargs", "-n", "1", "kill", "-9"]) == (("kill", "-9"), (), True)


@pytest.mark.parametrize(
    ("command", "is_own"),
    [
        ("python t.py", True),
        (["/e/bin/python3.11", "-c", "import sys; sys.exit(137)"], True),
        ("cd x && python t.py", False),
        ("python t.py | tee l", False),
        ("bash t.sh", False),
        ("torchrun t.py", False),
        ("uv run python t.py", False),
        ("docker run x python t.py", False),
        ("./train", False),
    ],
)
def test_an_exit_code_is_a_programs_own_choice_where_nothing_passes_it_on(
    command: str | list[str], *, is_own: bool
) -> None:
    assert parse(command).is_one_python is is_own
