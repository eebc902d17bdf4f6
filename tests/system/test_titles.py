"""The words that runward's own processes show in `ps`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mcp_server.system.own_process import SUPERVISOR, supervised_run, supervisor_title

_SHOW = (
    "import os, sys\n"
    "from mcp_server.system.own_process import set_title\n"
    "before = dict(os.environ)\n"
    "set_title(sys.argv[1:3])\n"
    "assert sys.argv[3] == 'train.py', sys.argv\n"
    "environ = open('/proc/self/environ', 'rb').read()\n"
    "assert b'MARK=python train' in environ.split(b'\\0'), environ\n"
    "assert dict(os.environ) == before\n"
    "sys.stdout.buffer.write(open('/proc/self/cmdline', 'rb').read() + b'|' + open('/proc/self/comm', 'rb').read())\n"
)


def show(*words: str) -> tuple[list[str], str]:
    done = subprocess.run(
        [sys.executable, "-c", _SHOW, *words, "train.py"],
        env={"MARK": "python train", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        check=True,
    )
    line, _, name = done.stdout.decode().rpartition("|")
    return line.rstrip("\0").split("\0"), name.strip()


def test_a_process_shows_the_title_alone_and_keeps_its_environment_and_arguments() -> None:
    assert show("runward-supervisor", "t.r.a.i.n") == (["runward-supervisor", "t.r.a.i.n"], "runward")


def test_a_word_that_does_not_fit_is_left_out_and_the_environment_is_not_overwritten(tmp_path: Path) -> None:
    code = _SHOW.replace("sys.argv[1:3]", "['runward-supervisor', 'x' * 100_000]").replace("sys.argv[3]", "'train.py'")
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"MARK": "python train", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        check=True,
    )
    assert done.stdout.rpartition(b"|")[0].rstrip(b"\0") == b"runward-supervisor"


@pytest.mark.parametrize("run_id", ["train-7kqz", "python", "ray-2mxw", "a"])
def test_the_title_holds_no_word_of_the_run_id_and_gives_it_back(run_id: str) -> None:
    title = supervisor_title(run_id)
    assert supervised_run(title) == run_id
    assert not any(word in " ".join(title) for word in ("train", "python", "ray", "7kqz"))


def test_former_supervisors_are_recognised_and_others_are_not() -> None:
    former = ["/usr/bin/python3", "-I", "-S", "/opt/mcp_server/supervisor", "/home/of/runs/cfm-7kqz"]
    assert supervised_run(former) == "cfm-7kqz"
    assert supervised_run([SUPERVISOR]) == ""
    assert supervised_run(["python", "train.py"]) is None
    assert supervised_run([]) is None
