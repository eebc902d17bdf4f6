"""Warnings of a launch: what is warned of, and what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.command.killers import find_killers, find_warnings
from mcp_server.command.shell import parse
from mcp_server.text.secret_patterns import find_keys

_DATA = Path(__file__).parents[1] / "data" / "launch_warnings"
KILLERS, ORDINARY = (
    [line.replace("\\n", "\n") for line in (_DATA / f"{name}.txt").read_text().splitlines()]
    for name in ("killers", "ordinary")
)


def test_a_flag_that_kills_stands_in_its_warning_whole() -> None:
    command = (
        "python -m ajet.launcher --conf /mnt/data/projects/experiments/configs/walker_large.yaml --seed 3 --autokill"
    )
    (warning,) = find_warnings(command)
    assert warning.startswith("`python -m ajet.launcher --conf /mnt/data/projects")
    assert "… --autokill`: it ends processes of other runs" in warning
    assert warning.endswith("leave --autokill out.")


@pytest.mark.parametrize(
    ("command", "hit", "missed"),
    [
        ("pkill -9 -f isaac", ("python", "python isaac/train.py"), ("python", "python train.py")),
        ("pkill python", ("python3", "python3 a.py"), ("sleep", "sleep python")),
        ("killall python3", ("python3", "python3 a.py"), ("python", "python a.py")),
        ("ray stop", ("sleep", "sleep 1"), None),
        ("pkill -f $NAME", ("sleep", "sleep 1"), None),
        ("pkill -u me", ("sleep", "sleep 1"), None),
    ],
)
def test_a_killer_hits_the_processes_of_its_pattern_and_without_one_all(
    command: str, hit: tuple[str, str], missed: tuple[str, str] | None
) -> None:
    (killer,) = find_killers(command)
    assert killer.hits(*hit)
    assert missed is None or not killer.hits(*missed)


def test_every_command_that_ends_processes_of_others_is_warned_of() -> None:
    assert len(set(KILLERS)) >= 200
    missed = [command for command in KILLERS if not any("on this host" in each for each in find_warnings(command))]
    assert not missed


def test_ordinary_training_commands_are_not_warned_of() -> None:
    assert len(set(ORDINARY)) >= 500
    warned = {command: warnings for command in ORDINARY if (warnings := find_warnings(command))}
    assert not warned


def test_no_word_of_an_ordinary_command_is_taken_for_a_key() -> None:
    found = {command: names for command in ORDINARY if (names := list(find_keys(parse(command).words)))}
    assert not found


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("sbatch job.sh --wait", "Add --wait"),
        ("sbatch --parsable --gres=gpu:1 job.sh", "Add --wait"),
        ("ray start --head --port 6379", "the run ends at once"),
        ("ray job submit --no-wait -- python train.py", 'backend="ray"'),
        ("ray start --head && python train.py", "ends with the command"),
        ("ssh gpu7 'cd work && python train.py'", "does not stop the command on gpu7"),
        ("ssh -t -p 2222 alice@lab python train.py", "does not stop the command on alice@lab"),
        ("ssh -o BatchMode=yes -i ~/.ssh/id lab nohup python train.py", "Use ssh -tt"),
        ("python train.py &", "The command ends with &"),
    ],
)
def test_a_command_whose_end_is_not_that_of_its_training_is_warned_of(command: str, part: str) -> None:
    (warning,) = find_warnings(command)
    assert part in warning


@pytest.mark.parametrize(
    "command",
    [
        "ssh -tt lab python train.py",
        "ssh -o RequestTTY=force -tt lab python train.py",
        "ssh -NfL 8080:localhost:80 lab; python train.py",
        "ssh -O check lab && python train.py",
        "ssh lab rsync --server -vlogDtpr . work/",
        "sbatch --wait job.sh",
        "sbatch -Wp gpu job.sh",
        "ray start --head --block",
        "ray start --block --address=10.0.0.1:6379",
        ["python", "train.py", "--note", "pkill -f x; ray stop"],
        ["echo", "pkill"],
    ],
)
def test_such_a_command_is_fine(command: str | list[str]) -> None:
    assert find_warnings(command) == []


def test_argv_is_read_as_one_program() -> None:
    assert find_warnings(["bash", "-c", "ray stop; python train.py"])
    assert find_warnings(["pkill", "-f", "train"])


def test_the_scripts_that_a_command_names_are_read_with_line_numbers() -> None:
    shell = "#!/bin/bash\n# pkill in a comment, that's all\nset -e\n\nray stop --force\npython train.py\n"
    python = (
        "import subprocess, os\nNOTE = 'pkill is a word'\ndef clean(name):\n"
        "    subprocess.run(['pkill', '-f', name])\n    os.system(f'ray stop')\n"
    )
    warnings = find_warnings("bash run.sh && python clean.py", {"run.sh": shell, "clean.py": python})
    assert [warning.partition(":")[0] for warning in warnings] == [
        "`ray stop --force` (run.sh line 5)",
        "`pkill -f x` (clean.py line 4)",
        "`ray stop` (clean.py line 5)",
    ]


def test_texts_that_a_script_writes_and_runs_are_read_on_their_lines() -> None:
    script = 'set -e\nN=$(\n  nproc\n)\ncat > end.sh <<EOF\npkill -f x\nEOF\nbash end.sh\nbash -c "$(echo ray stop)"\n'
    assert [warning.partition(":")[0] for warning in find_warnings("bash run.sh", {"run.sh": script})] == [
        "`pkill -f x` (run.sh line 8)",
        "`ray stop` (run.sh line 9)",
    ]


def test_a_long_hostile_script_is_read_in_seconds() -> None:
    for text in ('X="$X$X"\n' * 300 + 'eval "$X"', "X=$(date)\n" * 6_000, "$(" * 3000, "`" * 9999):
        assert find_warnings("bash a.sh", {"a.sh": text}) == []


def test_a_batch_script_may_wait_by_a_directive() -> None:
    assert find_warnings("bash go.sh", {"go.sh": "#!/bin/bash\n#SBATCH --wait\nsbatch inner.sh\n"}) == []
    assert find_warnings("bash go.sh", {"go.sh": "#!/bin/bash\nsbatch inner.sh\n"})


@pytest.mark.parametrize(
    "text",
    ["", "'", "$((", "{", ")", "\\", "a <<EOF", "x=(", "kill", "ssh", "ssh -p", "xargs", "env -u", "bash -c", "eval"],
)
def test_an_unfinished_command_is_read_without_an_error(text: str) -> None:
    assert find_warnings(text) == []
    assert find_warnings("true", {"a.sh": text, "a.py": text}) == []


def test_so_many_warnings_are_shown_and_braces_stay() -> None:
    warnings = find_warnings("; ".join(f"pkill -f {{name}}{n}" for n in range(50)))
    assert len(warnings) == 8
    assert warnings[0].startswith("`pkill -f {name}0`:")


@pytest.mark.parametrize(
    "command",
    [
        "X=$(echo pkill); $X -f python",
        "X=`printf pkill`; $X x",
        "C=$(printf 'pkill %s' x); eval $C",
        'A=(pkill -f x); "${A[@]}"',
    ],
)
def test_a_program_in_a_variable_is_read_from_what_is_assigned(command: str) -> None:
    assert [killer.program.name for killer in find_killers(command)] == ["pkill"]
