"""The recorder of written files, on real processes: what stays open, what is open for a moment, what children write."""

import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mcp_server.record.curves.tails import CurveRow
from mcp_server.record.run_directory import now, write_json
from mcp_server.record.written_files import Outputs, WrittenFile, read_outputs, write_outputs
from mcp_server.supervisor.outputs.recorder import OutputRecorder
from mcp_server.system import processes
from tests.support.sandbox import until


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "home/runs/x-1111/attempts/1").mkdir(parents=True)
    return tmp_path / "work"


def start(work: Path, code: str, *words: str) -> tuple["subprocess.Popen[bytes]", OutputRecorder]:
    argv = [sys.executable, "-c", f"import sys; {code}", *words]
    child = subprocess.Popen(
        argv, cwd=work, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def living() -> list[processes.Process]:
        own = processes.find_process(child.pid)
        return [own, *processes.descendants(child.pid)] if own else []

    recorder = OutputRecorder(work.parent / "home/runs/x-1111/attempts/1/outputs.json", living, argv, str(work), {})
    recorder.start()
    return child, recorder


def end(child: "subprocess.Popen[bytes]", recorder: OutputRecorder) -> Outputs:
    child.communicate(timeout=60)
    recorder.flush()
    recorder.close()
    assert recorder.problem is None
    outputs = read_record(recorder)
    assert outputs is not None
    assert outputs.ended
    return outputs


def read_record(recorder: OutputRecorder) -> Outputs | None:
    return read_outputs(recorder._path)


def is_recorded(recorder: OutputRecorder, name: str) -> bool:
    outputs = read_record(recorder)
    return outputs is not None and any(one.path.endswith(name) and one.open for one in outputs.files)


def test_a_file_that_stays_open_is_recorded_while_it_is_and_as_it_was_left(work: Path) -> None:
    code = "f = open('log.txt', 'a'); r = open('/etc/passwd'); f.write('x' * 9); f.flush(); "
    code += "sys.stdin.readline(); f.write('yy')"
    child, recorder = start(work, code)
    until(lambda: is_recorded(recorder, "/log.txt"))
    outputs = end(child, recorder)
    (one,) = [one for one in outputs.files if not one.listed]
    status = (work / "log.txt").stat()
    assert (one.path, one.inode) == (str(work / "log.txt"), status.st_ino)
    assert (one.size, one.changed_ns, one.open, one.append) == (11, status.st_mtime_ns, False, True)
    assert child.pid in outputs.pids


def test_what_a_child_writes_and_names_is_recorded(work: Path) -> None:
    inner = "import sys; f = open('child.txt', 'w'); sys.stdin.readline()"
    code = f"import subprocess; subprocess.run([sys.executable, '-c', {inner!r}, '--logdir', 'logs/x'])"
    child, recorder = start(work, code)
    until(lambda: is_recorded(recorder, "/child.txt"))
    outputs = end(child, recorder)
    assert len(outputs.pids) >= 2
    assert str(work / "logs/x") in outputs.directories


def test_files_that_were_missed_are_listed_in_the_directories_that_were_named(work: Path) -> None:
    (work / "out").mkdir()
    (work / "out/old.pt").write_text("old")
    os.utime(work / "out/old.pt", (1, 1))
    code = "sys.stdin.readline(); [open(f'{d}/new.pt', 'w').close() for d in ('out', '.')]"
    child, recorder = start(work, code, "--output_dir", "out")
    until(lambda: read_record(recorder) is not None)
    outputs = end(child, recorder)
    assert str(work / "out/new.pt") in [one.path for one in outputs.files]
    assert str(work / "out/old.pt") not in [one.path for one in outputs.files]
    assert outputs.directories == (str(work / "out"),)


def test_a_file_that_changed_after_it_was_closed_is_unsure(work: Path) -> None:
    code = "f = open('a.json', 'w'); f.write('{}'); f.flush(); sys.stdin.readline(); f.close(); sys.stdin.readline()"
    child, recorder = start(work, code)
    until(lambda: is_recorded(recorder, "/a.json"))
    assert child.stdin is not None
    child.stdin.write(b"\n")
    child.stdin.flush()
    until(lambda: not is_recorded(recorder, "/a.json"))
    (work / "a.json").write_text("another run's")
    outputs = end(child, recorder)
    assert [(one.path, one.unsure) for one in outputs.files] == [(str(work / "a.json"), True)]


def settled(recorder: OutputRecorder, name: str) -> bool:
    outputs = read_record(recorder)
    return outputs is not None and any(
        one.path.endswith(name) and not (one.open or one.unsure or one.listed) for one in outputs.files
    )


def write_on(child: "subprocess.Popen[bytes]") -> None:
    assert child.stdin is not None
    child.stdin.write(b"\n")
    child.stdin.flush()


def test_a_file_is_as_the_attempt_left_it_until_somebody_else_writes_it(work: Path) -> None:
    code = "f = open('a.json', 'w'); sys.stdin.readline(); f.write('{}'); f.close(); sys.stdin.readline()"
    child, recorder = start(work, code)
    until(lambda: is_recorded(recorder, "/a.json"))
    write_on(child)
    until(lambda: settled(recorder, "/a.json"))
    outputs = end(child, recorder)
    (one,) = outputs.files
    status = (work / "a.json").stat()
    assert (one.size, one.changed_ns, one.unsure) == (status.st_size, status.st_mtime_ns, False)


def test_a_file_that_another_process_overwrites_at_the_same_time_is_unsure(work: Path) -> None:
    code = "f = open('a.json', 'w'); f.write('{}'); f.flush(); sys.stdin.readline(); f.close(); sys.stdin.readline()"
    child, recorder = start(work, code)
    until(lambda: is_recorded(recorder, "/a.json"))
    (work / "a.json").write_text("another run's")
    write_on(child)
    until(lambda: not is_recorded(recorder, "/a.json"))
    outputs = end(child, recorder)
    assert [(Path(one.path).name, one.unsure) for one in outputs.files] == [("a.json", True)]


def test_a_file_and_a_directory_that_are_renamed_into_place_stay_the_attempts(work: Path) -> None:
    (work / "tmp-ck").mkdir()
    code = "f = open('tmp-ck/a.tmp', 'w'); f.write('{}'); sys.stdin.readline(); f.close(); "
    code += "import os; os.rename('tmp-ck/a.tmp', 'tmp-ck/a.json'); os.rename('tmp-ck', 'ck'); sys.stdin.readline()"
    child, recorder = start(work, code)
    until(lambda: is_recorded(recorder, "/a.tmp"))
    write_on(child)
    until(lambda: settled(recorder, "ck/a.json"))
    (one,) = end(child, recorder).files
    assert (one.path, one.unsure) == (str(work / "ck/a.json"), False)


def test_a_program_that_no_supervisor_started_is_an_outsider_with_its_files(work: Path) -> None:
    (work / "train.py").write_text("import sys; f = open('other.csv', 'w'); sys.stdin.readline()")
    stranger = subprocess.Popen([sys.executable, "train.py", "--output_dir", "out"], cwd=work, stdin=subprocess.PIPE)
    try:
        until((work / "other.csv").exists)
        child, recorder = start(work, "f = open('own.csv', 'w'); sys.stdin.readline()")
        until(lambda: is_recorded(recorder, "/own.csv"))
        outputs = end(child, recorder)
    finally:
        stranger.communicate(timeout=60)
    (one,) = outputs.outsiders
    assert (one.pid, one.cwd, one.directories) == (stranger.pid, str(work), (str(work / "out"),))
    assert one.files == ((str(work / "other.csv"), (work / "other.csv").stat().st_ino),)
    assert one.until_s == 0.0
    assert [Path(one.path).name for one in outputs.files if not one.listed] == ["own.csv"]


def test_an_event_file_that_is_open_for_instants_deep_in_old_directories_makes_its_directory_the_attempts(
    work: Path,
) -> None:
    """As a second training of rsl_rl does: only its own directory is new, four levels down, and not watched."""
    task = work / "logs/rsl_rl/walk"
    (task / "former").mkdir(parents=True)
    (task / "former/model_9.pt").touch()
    for number in range(600):  # of a project's own, which are listed first
        (work / f"{number}.py").touch()
    code = """
import os, pathlib
sys.stdin.readline()
new = pathlib.Path('logs/rsl_rl/walk/new'); new.mkdir()
(new / f'events.out.tfevents.1795449656.host.{os.getpid()}.0').write_bytes(b'x')
(new / 'events.out.tfevents.1795449656.host.1.0').write_bytes(b'x')
(new / 'model_5.pt').write_bytes(b'x')
"""
    child, recorder = start(work, code)
    until(lambda: (outputs := read_record(recorder)) is not None and child.pid in outputs.pids)
    files = {Path(one.path).name: one for one in end(child, recorder).files}
    own = f"events.out.tfevents.1795449656.host.{child.pid}.0"
    assert set(files) == {own, "events.out.tfevents.1795449656.host.1.0", "model_5.pt"}
    assert [name for name, one in files.items() if not one.listed] == [own]


def test_saved_paths_are_absolute(work: Path) -> None:
    child, recorder = start(work, "sys.stdin.readline()")
    recorder.note_saved("ck/step_10")
    assert end(child, recorder).saved == (str(work / "ck/step_10"),)


def test_a_stop_request_is_heard_at_once_and_one_from_before_the_watch_too(work: Path) -> None:
    run = work.parent / "home/runs/x-1111"
    heard = queue.Queue[None]()
    recorder = OutputRecorder(run / "attempts/1/outputs.json", list, [], str(work), {}, lambda: heard.put(None))
    recorder.start()
    heard.get(timeout=60)  # the watch begins: whoever is told looks
    assert recorder.hears_stop_requests
    write_json(run / "other.json", {})
    write_json(run / "stop.json", {"by": "a test"})
    heard.get(timeout=60)
    recorder.flush()
    recorder.close()
    assert (heard.qsize(), recorder.hears_stop_requests, recorder.problem) == (0, False, None)


def test_without_inotify_no_stop_request_is_heard(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_server.system.inotify.Inotify.add", lambda *_: False)
    sampled = threading.Event()

    def living() -> list[processes.Process]:
        sampled.set()
        return []

    recorder = OutputRecorder(work.parent / "home/runs/x-1111/attempts/1/outputs.json", living, [], str(work), {})
    recorder.start()
    assert sampled.wait(60)
    assert not recorder.hears_stop_requests
    recorder.flush()
    recorder.close()


@pytest.mark.parametrize("by", ["output", "a file"])
def test_an_idle_attempt_is_looked_at_again_as_soon_as_it_does_something(
    work: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    looks = queue.Queue[None]()
    monkeypatch.setattr("mcp_server.supervisor.outputs.recorder._FIRST_S", 1000.0)  # no look by itself
    child = subprocess.Popen(["sleep", "60"], cwd=work)
    own = processes.find_process(child.pid)
    assert own is not None

    def living() -> list[processes.Process]:
        looks.put(None)
        return [own]

    recorder = OutputRecorder(work.parent / "home/runs/x-1111/attempts/1/outputs.json", living, [], str(work), {})
    recorder._living, recorder._used_s = [own], processes.cpu_used_s(child.pid)  # as after an earlier look
    recorder._outsiders_due_s = time.monotonic()
    inspected = queue.Queue[None]()
    monkeypatch.setattr(recorder._outsiders, "inspect_processes", lambda *_: inspected.put(None))
    recorder.start()
    looks.get(timeout=60)
    until(lambda: recorder._is_idle and recorder._path.exists())  # it waits by then
    assert inspected.empty(), "who writes nothing is no outsider, and the machine may have many processes"
    if by == "output":
        recorder.note_output()
    else:
        (work / "result.txt").write_text("1")
        inspected.get(timeout=60)
    looks.get(timeout=60)
    recorder.flush()
    recorder.close()
    child.kill()
    child.wait()
    assert recorder.problem is None


def test_a_directory_that_the_command_mentions_is_in_the_record_before_all_files_are_listed(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that comes between the end and the listing says what it leaves out, instead of nothing."""
    for name in ("used", "read"):
        (work.parent / name).mkdir()
        (work.parent / name / "former.json").write_text("{}")
        os.utime(work.parent / name / "former.json", (1, 1))
    early: list[Outputs | None] = []
    code = "open(sys.argv[1] + '/late.json', 'w').close()"
    child, recorder = start(work, code, str(work.parent / "used"), str(work.parent / "read"))
    list_changed = recorder._files.list_changed

    def read_first(*arguments: Any) -> None:
        early.append(read_record(recorder))
        list_changed(*arguments)

    monkeypatch.setattr(recorder._files, "list_changed", read_first)
    outputs = end(child, recorder)
    assert early[0] is not None
    assert not early[0].ended
    assert set(early[0].mentioned) == {str(work.parent / "used"), str(work.parent / "read")}
    assert outputs.mentioned == (str(work.parent / "used"),)


def test_rows_that_an_earlier_attempt_wrote_are_not_this_ones(work: Path) -> None:
    """The program names the file alone: no word of the command leads there."""
    curve, home = work / "heal/trace.jsonl", work.parent / "home/runs/x-1111/attempts"
    curve.parent.mkdir()
    curve.write_text("".join(f'{{"step": {step}, "loss": 0.5}}\n' for step in range(1, 21)))
    os.utime(curve, (1e9, 1e9))
    for number in ("1", "2"):
        (home / number).mkdir(parents=True, exist_ok=True)
    status = curve.stat()
    file = WrittenFile(str(curve), status.st_ino, status.st_size, status.st_mtime_ns, append=True)
    write_outputs(home / "1/outputs.json", Outputs(at=now(), ended=True, files=(file,)))
    steps = queue.Queue[int]()
    code = "f = open('heal/trace.jsonl', 'a'); print(file=f, flush=True, *[input()])"
    child = subprocess.Popen([sys.executable, "-c", code], cwd=work, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def living() -> list[processes.Process]:
        own = processes.find_process(child.pid)
        return [own] if own else []

    def take(_: str, rows: list[CurveRow], other: str) -> None:
        assert other == ""
        for row in rows:
            steps.put(row.step)

    argv = [sys.executable, "-c", code]
    recorder = OutputRecorder(home / "2/outputs.json", living, argv, str(work), {}, on_rows=take)
    recorder.start()
    until(lambda: is_recorded(recorder, "trace.jsonl"))
    child.communicate(b'{"step": 21, "loss": 0.4}\n', timeout=60)
    recorder.flush()
    recorder.close()
    assert recorder.problem is None
    assert [steps.get(timeout=60) for _ in range(steps.qsize())] == [21]


def test_rows_in_a_linked_directory_of_outputs_are_seen_while_the_attempt_runs(work: Path) -> None:
    """As in a copy of kept code, whose directories of outputs lead to those of the project."""
    (work.parent / "project").mkdir()
    (work / "exp").symlink_to(work.parent / "project")
    steps = queue.Queue[int]()
    program = """
import os, time
os.mkdir("exp/a")
for step in range(1, 2000):
    with open("exp/a/history.jsonl", "a") as file:
        print('{"step": %d, "loss": 0.5}' % step, file=file)
    time.sleep(0.05)
"""
    (work / "train.py").write_text(program)
    child = subprocess.Popen([sys.executable, "train.py"], cwd=work)

    def living() -> list[processes.Process]:
        own = processes.find_process(child.pid)
        return [own] if own else []

    def take(_: str, rows: list[CurveRow], other: str) -> None:
        for row in rows:
            steps.put(row.step)

    path = work.parent / "home/runs/x-1111/attempts/1/outputs.json"
    recorder = OutputRecorder(path, living, ["python", "train.py"], str(work), {}, on_rows=take)
    recorder.start()
    try:
        assert steps.get(timeout=60) == 1
    finally:
        child.kill()
        end(child, recorder)
