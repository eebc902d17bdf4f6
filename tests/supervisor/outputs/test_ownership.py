"""Whose a growing file with curves is, by the directories, descriptors and names that are known at that moment."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcp_server.record.claims import Claims, claim_outsider
from mcp_server.record.written_files import Outsider
from mcp_server.supervisor.outputs.outsiders import OutsiderWatch
from mcp_server.supervisor.outputs.ownership import CurveOwnership
from mcp_server.supervisor.outputs.scalar_tails import OWN
from mcp_server.supervisor.outputs.seen_files import SeenFiles
from mcp_server.supervisor.outputs.write_sessions import WriteSessions
from mcp_server.system.inotify import Inotify
from tests.support.sandbox import until

HOUR_NS = 3600 * 10**9


class Case:
    """An attempt in a directory, its files, and what others do there."""

    def __init__(self, cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cwd, self.rivals = cwd, list[Claims]()
        self.files = SeenFiles(WriteSessions(), Inotify(0), lambda: None)
        outsiders = OutsiderWatch(str(cwd), "/nowhere")
        monkeypatch.setattr(outsiders, "find_rivals", self.find_rivals)
        self.ownership = CurveOwnership("own-run", str(cwd), time.time_ns() - HOUR_NS, self.files, outsiders)

    def find_rivals(self, path: str, least: int, living: object, beside: object = None) -> list[Claims]:
        return [one for one in self.rivals if one.cwd.count("/") >= least]

    def write(self, name: str, *, hold: bool = False, append: bool = False) -> str:
        path = self.cwd / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("step,loss\n1,2\n")
        if hold:
            self.files.note_open(str(path), path.stat(), append=append)
        return str(path)

    def judge(self, path: str, *named: str) -> str | None:
        return self.ownership.judge(path, [str(self.cwd / one) for one in named], {77}, [])


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(tmp_path, monkeypatch)


def rival(case: Case, directory: str, holds: str = "", run_id: str = "other-run") -> Claims:
    """Return another run that works in a directory, and has a file open for writing."""
    files = ((holds, Path(holds).stat().st_ino),) if holds else ()
    return claim_outsider(Outsider(88, 0.0, cwd=str(case.cwd / directory).rstrip("/"), files=files), run_id)


def test_a_file_in_a_directory_that_the_attempt_names_is_its_own_beside_a_run_with_another_one(case: Case) -> None:
    case.rivals = [rival(case, "")]  # it works in the same working directory
    assert case.judge(case.write("out/a/metrics.csv"), "out/a") == OWN


def test_a_directory_of_another_run_is_its_own_though_the_attempt_has_a_file_open_above_it(case: Case) -> None:
    """As one whose output goes to outputs/nohup.txt, while another run writes outputs/b/metrics.csv."""
    case.write("outputs/nohup.txt", hold=True)
    case.rivals = [rival(case, "outputs/b")]
    assert case.judge(case.write("outputs/b/metrics.csv"), "outputs/a") is None
    case.rivals = []
    assert case.judge(str(case.cwd / "outputs/b/metrics.csv"), "outputs/a") is None, "also once that run is gone"


def test_two_runs_in_one_directory_leave_it_open_whose_a_file_is_unless_somebody_has_it_open(case: Case) -> None:
    case.rivals = [rival(case, "out")]
    path = case.write("out/metrics.csv")
    assert case.judge(path, "out") == "other-run"
    assert case.judge(case.write("out/own.csv", hold=True), "out") == OWN
    theirs, both = case.write("out/theirs.csv"), case.write("out/both.csv", hold=True)
    case.rivals = [rival(case, "out", theirs), rival(case, "out", both)]
    assert case.judge(theirs, "out") is None
    assert case.judge(both, "out") == "other-run"


def test_what_others_may_have_written_first_stays_open_though_the_attempt_appends_to_it(case: Case) -> None:
    case.rivals = [rival(case, "out")]
    path = case.write("out/metrics.csv")
    assert case.judge(path, "out") == "other-run"
    case.rivals = []
    case.files.note_open(path, Path(path).stat(), append=True)
    assert case.judge(path, "out") == "other-run"


def test_a_file_from_before_the_attempt_is_not_its_own_before_it_writes_it(case: Case) -> None:
    path = case.write("out/metrics.csv")
    os.utime(path, ns=(1, time.time_ns() - 2 * HOUR_NS))
    assert case.judge(path, "out") is None
    Path(path).touch()
    assert case.judge(path, "out") == OWN


def test_a_file_that_nothing_names_is_the_attempts_where_it_changes_again_and_nobody_else_works(case: Case) -> None:
    path = case.write("logs/metrics.csv")
    assert case.judge(path) is None, "who wrote it may be gone"
    os.utime(path, ns=(1, time.time_ns() + HOUR_NS))
    assert case.judge(path) == OWN
    case.rivals = [rival(case, "")]
    assert case.judge(path) == "other-run"


def test_the_directory_of_a_table_that_is_held_is_the_attempts_home(case: Case) -> None:
    case.write("runs/7/metrics.csv", hold=True)
    case.rivals = [rival(case, "")]
    assert case.judge(case.write("runs/7/eval.csv")) == OWN
    assert case.judge(case.write("runs/8/eval.csv")) == "other-run"


def test_a_file_whose_path_holds_the_id_of_a_run_is_that_runs_though_no_option_says_so(case: Case) -> None:
    case.rivals = [rival(case, ""), rival(case, "", run_id="third-run")]
    assert case.judge(case.write("exp/own-run/history.json")) == OWN
    assert case.judge(case.write("exp/other-run/history.json")) is None
    case.rivals = []
    assert case.judge(str(case.cwd / "exp/other-run/history.json")) is None, "also once that run is gone"


def test_an_event_file_is_whose_number_it_has(case: Case) -> None:
    path = case.write("out/events.out.tfevents.1795449656.host.77.0")
    case.rivals = [rival(case, "out", path)]
    assert case.judge(path, "out") == OWN
    assert case.judge(case.write("out/events.out.tfevents.1795449656.host.78.0"), "out") is None


@contextlib.contextmanager
def program_elsewhere(tmp_path: Path, option: str, directory: Path) -> Iterator[Path]:
    """Yield a file of ``directory`` that a training, which works elsewhere, holds open until the end."""
    directory.mkdir(parents=True)
    (tmp_path / "else").mkdir()
    (tmp_path / "else/train.py").write_text("import sys; f = open(sys.argv[2] + '/m.csv', 'w'); sys.stdin.readline()")
    shell = f'exec 3<&0; cd else; "$0" train.py {option} "$1" <&3 &'  # an orphan is nobody's child
    hold, feed = os.pipe()
    argv = ["setsid", "sh", "-c", shell, sys.executable, str(directory)]
    subprocess.run(argv, cwd=tmp_path, stdin=hold, check=True)
    try:
        until((directory / "m.csv").exists)
        yield directory / "m.csv"
    finally:
        os.close(feed)
        os.close(hold)


def test_a_program_elsewhere_that_names_the_directory_is_a_rival_and_its_descriptor_is_seen(tmp_path: Path) -> None:
    with program_elsewhere(tmp_path, "--output_dir", tmp_path / "work") as path:
        watch = OutsiderWatch(str(tmp_path / "work"), "/nowhere")
        until(lambda: bool(watch.find_rivals(str(path), 0, [])))
        (one,) = watch.find_rivals(str(path), 0, [])
        assert (one.run_id.partition(" ")[0], one.is_outsider, [*one.written]) == ("process", True, [str(path)])
        assert not watch.find_rivals(str(path), str(path).count("/"), [])


def test_a_directory_that_a_neighbour_mentions_is_its_own_where_only_one_above_speaks_for_the_attempt(
    tmp_path: Path,
) -> None:
    deep = tmp_path / "work/league"
    with program_elsewhere(tmp_path, "--league", deep) as path:
        watch, above = OutsiderWatch(str(tmp_path), "/nowhere"), str(tmp_path / "work").count("/")

        def is_named(beside: int | None) -> bool:
            return any(str(deep) in one.named for one in watch.find_rivals(str(path), 0, [], beside))

        until(lambda: is_named(above))
        assert not is_named(above + 1)
        assert not is_named(None)
