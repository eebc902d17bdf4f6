"""Files of a run in its result directory: log, plain results, and the flag last, whatever the directory holds."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from mcp_server.record.results import experiment_log, result_page
from mcp_server.record.results.experiment_log import append_launch, is_repaired, write_end
from mcp_server.record.results.result_page import (
    ADDITIONS_MARK,
    RunEnd,
    choose_document_path,
    failure_lines,
    gpu_lines,
    origin_line,
    read_origin,
    write_text,
)
from mcp_server.record.run_directory import RunDir
from mcp_server.record.spec import RunSpec
from mcp_server.system.lock_files import take_lock

FAILURE = {
    "kind": "oom_gpu",
    "line": "RuntimeError: CUDA out of memory",
    "line_number": 8,
    "advice": "Halve the batch.",
}


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    rundir = RunDir(tmp_path / "runs" / "cfm-7kqz")
    for attempt, ended_at in ((1, "2026-11-21T15:10:00.000Z"), (2, "2026-11-21T16:00:00.000Z")):
        rundir.attempt(attempt).mkdir(parents=True)
        record = {"exit_code": 1, "signal": None, "started_at": "2026-11-21T15:00:00.000Z", "ended_at": ended_at}
        rundir.exit(attempt).write_text(json.dumps(record))
    progress = {"step": 40, "metrics": {"loss": 0.25}, "gpus": {"GPU-1": {"mean_util": 71.5, "peak_mib": 40536}}}
    rundir.progress(2).write_text(json.dumps(progress))
    rundir.account.write_text("# Attempts of cfm-7kqz\n\n| attempt | failure |\n| --- | --- |\n| 1 | oom_gpu |\n")
    return rundir


def leave(rundir: RunDir, result_dir: Path | None, state: str = "failed", **facts: Any) -> str | None:
    spec = {} if result_dir is None else {"result_dir": str(result_dir)}
    end = {"text": f"{state}: exit code 1.", "failure": FAILURE, "attempts": 2, "elapsed_s": 3600.4, **facts}
    return write_end(spec, rundir, state=state, **end)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def flag(result_dir: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((result_dir / "finish.flag").read_text())
    return facts


@pytest.mark.parametrize("state", ["finished", "failed", "killed", "timed_out"])
def test_every_end_leaves_log_results_and_flag(rundir: RunDir, tmp_path: Path, state: str) -> None:
    there = tmp_path / "not" / "made" / "yet"
    assert leave(rundir, there, state) is None
    assert names(there) == ["experiment_log.md", "finish.flag", "results.md"]
    assert flag(there) == {
        "run_id": "cfm-7kqz",
        "state": state,
        "started_at": "2026-11-21T15:00:00.000Z",
        "ended_at": "2026-11-21T16:00:00.000Z",
        "elapsed_s": 3600.4,
        "attempts": 2,
        "exit_code": 1,
        "failure": "oom_gpu",
        "results": "results.md",
    }


def test_the_plain_results_have_end_failure_numbers_attempts_and_gpus(rundir: RunDir, tmp_path: Path) -> None:
    leave(rundir, tmp_path)
    text = (tmp_path / "results.md").read_text()
    assert text.startswith("<!-- runward run cfm-7kqz, written by the supervisor: ")
    for line in (
        "- End: failed: exit code 1.",
        "- Took: 1:00:00",
        "- Failure: oom_gpu (line 8 of the log): `RuntimeError: CUDA out of memory`",
        "- Advice: Halve the batch.",
        "- step: 40",
        "- loss: 0.25",
        "| 1 | oom_gpu |",
        "- `GPU-1`: peak memory 40536 MiB, mean utilisation 71.5 %",
        f"- Log: `{rundir.log(2)}`",
    ):
        assert line in text


def test_gpus_are_named_by_index_where_it_is_known(rundir: RunDir, tmp_path: Path) -> None:
    started = {"seq": 1, "kind": "started", "attempt": 2, "gpus": ["GPU-1"], "gpu_indices": [3]}
    rundir.events.write_text(json.dumps(started) + "\n")
    leave(rundir, tmp_path)
    assert "- GPU 3: peak memory 40536 MiB" in (tmp_path / "results.md").read_text()


def test_the_end_is_appended_to_the_log_once(rundir: RunDir, tmp_path: Path) -> None:
    log = tmp_path / "experiment_log.md"
    log.write_text("# Experiment\n\npython train.py\n")
    leave(rundir, tmp_path)
    once = log.read_text()
    leave(rundir, tmp_path)
    assert once.startswith("# Experiment\n\npython train.py\n\n## End of cfm-7kqz: failed\n")
    assert log.read_text() == once


def test_the_files_are_readable_for_all_whatever_the_umask_of_the_supervisor_is(rundir: RunDir, tmp_path: Path) -> None:
    there = tmp_path / "a" / "out"
    umask = os.umask(0o077)
    try:
        leave(rundir, there)
    finally:
        os.umask(umask)
    modes = {path.name: path.stat().st_mode & 0o777 for path in there.iterdir()}
    assert modes == dict.fromkeys(("experiment_log.md", "results.md", "finish.flag"), 0o644)
    assert {path.stat().st_mode & 0o777 for path in (there, there.parent)} == {0o755}


def test_without_a_result_directory_nothing_is_left(rundir: RunDir, tmp_path: Path) -> None:
    assert leave(rundir, None) is None
    assert names(tmp_path) == ["runs"]


def test_a_persons_results_are_left_alone(rundir: RunDir, tmp_path: Path) -> None:
    (tmp_path / "results.md").write_text("mine\n")
    assert leave(rundir, tmp_path) is None
    assert (tmp_path / "results.md").read_text() == "mine\n"
    assert flag(tmp_path)["results"] == "results-cfm-7kqz.md"
    assert read_origin(tmp_path / "results-cfm-7kqz.md") == ("cfm-7kqz", "the supervisor")


def test_what_a_person_added_to_plain_results_is_kept(rundir: RunDir, tmp_path: Path) -> None:
    leave(rundir, tmp_path)
    path = tmp_path / "results.md"
    path.write_text(path.read_text() + "Look at the curve.\n")
    leave(rundir, tmp_path)
    assert path.read_text().endswith(f"{ADDITIONS_MARK}\nLook at the curve.\n")
    assert path.read_text().count(ADDITIONS_MARK) == 1


def test_a_document_of_finish_blueprint_stays(rundir: RunDir, tmp_path: Path) -> None:
    text = origin_line("cfm-7kqz", "finish_blueprint") + "\nbetter\n"
    (tmp_path / "results.md").write_text(text)
    assert leave(rundir, tmp_path) is None
    assert (tmp_path / "results.md").read_text() == text
    assert flag(tmp_path)["results"] == "results.md"


def test_an_earlier_runs_document_is_renamed(rundir: RunDir, tmp_path: Path) -> None:
    text = origin_line("old-aaaa", "finish_blueprint") + "\nfirst try\n"
    (tmp_path / "results.md").write_text(text)
    leave(rundir, tmp_path)
    assert (tmp_path / "results-old-aaaa.md").read_text() == text
    assert read_origin(tmp_path / "results.md") == ("cfm-7kqz", "the supervisor")
    (tmp_path / "results.md").write_text(text)  # and once more, where its own name is taken
    assert choose_document_path(tmp_path, "cfm-7kqz") == tmp_path / "results-cfm-7kqz.md"


def test_an_older_flag_is_replaced_and_can_be_cleared(rundir: RunDir, tmp_path: Path) -> None:
    (tmp_path / "finish.flag").write_text("old")
    leave(rundir, tmp_path)
    assert flag(tmp_path)["run_id"] == "cfm-7kqz"
    result_page.remove_flag(tmp_path)
    result_page.remove_flag(str(tmp_path))
    result_page.remove_flag(tmp_path / "nowhere")
    assert not (tmp_path / "finish.flag").exists()


def test_a_flag_is_left_to_a_later_run_of_the_directory_while_it_lives(rundir: RunDir, tmp_path: Path) -> None:
    later = RunDir(rundir.path.with_name("cfm-8abc"))
    later.path.mkdir()
    there = tmp_path / "out"
    there.mkdir()
    entries = [f"## Launch of {one}\n\n- run: {one}\n- started: now\n" for one in ("cfm-7kqz", "cfm-8abc")]
    (there / "experiment_log.md").write_text("\n".join(["# Experiment log\n", *entries]))
    held = take_lock(later.lock)
    assert leave(rundir, there) is None
    assert names(there) == ["experiment_log.md", "results.md"]
    assert held is not None
    os.close(held)
    assert leave(rundir, there) is None
    assert flag(there)["run_id"] == "cfm-7kqz"


def test_the_flag_comes_last_and_whole(rundir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renamed = []
    rename = Path.rename

    def note(self: Path, target: Path) -> Path:
        renamed.append((self.parent == Path(target).parent, Path(target).name))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", note)
    leave(rundir, tmp_path)
    assert renamed == [(True, "results.md"), (True, "finish.flag")]


@pytest.mark.parametrize("name", ["experiment_log.md", "results.md", "finish.flag"])
@pytest.mark.parametrize("what", ["fifo", "directory", "link", "broken link", "device"])
def test_an_unusable_file_does_not_prevent_the_others(rundir: RunDir, tmp_path: Path, name: str, what: str) -> None:
    there, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    there.mkdir()
    elsewhere.write_text("of another program")
    place = there / name
    if what == "fifo":
        os.mkfifo(place)
    elif what == "directory":
        place.mkdir()
    else:
        place.symlink_to({"link": elsewhere, "broken link": tmp_path / "none", "device": Path("/dev/zero")}[what])
    problem = leave(rundir, there)
    assert elsewhere.read_text() == "of another program"
    assert not (tmp_path / "none").exists()
    if name == "finish.flag" and what == "directory":
        assert problem is not None
        assert "finish.flag" in problem
    else:
        assert flag(there)["state"] == "failed"
    if name == "experiment_log.md":
        assert problem is not None
    assert read_origin(there / "results.md")[0] or read_origin(there / "results-cfm-7kqz.md")[0]
    assert not [left for left in names(there) if left.startswith(".")]


def test_on_a_full_disk_an_empty_flag_ends_the_waiting(
    rundir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes, *, mode: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(result_page, "write_atomic", full)
    assert "finish.flag: No space left" in (leave(rundir, tmp_path / "out") or "")
    assert (tmp_path / "out" / "finish.flag").read_bytes() == b""
    monkeypatch.undo()
    assert leave(rundir, tmp_path / "out") is None
    assert flag(tmp_path / "out")["state"] == "failed"


@pytest.mark.parametrize("place", ["a file", "below a file", "/proc/nowhere", "\0", "x" * 300])
def test_a_directory_that_cannot_be_created_is_reported(rundir: RunDir, tmp_path: Path, place: str) -> None:
    (tmp_path / "a file").write_text("")
    there = {"a file": tmp_path / "a file", "below a file": tmp_path / "a file" / "out"}.get(place, Path(place))
    problem = leave(rundir, tmp_path / there)
    assert problem is not None
    assert problem.startswith("Not all results could be left in ")
    assert (tmp_path / "a file").read_text() == ""


def test_a_flag_may_be_left_to_a_repair_and_then_be_written(rundir: RunDir, tmp_path: Path) -> None:
    there, run_id = tmp_path / "out", rundir.run_id
    assert leave(rundir, there, flag=False) is None
    assert names(there) == ["experiment_log.md", "results.md"]
    assert not is_repaired(str(there), run_id)
    text = (there / "experiment_log.md").read_text()
    assert leave(rundir, there) is None
    assert flag(there)["state"] == "failed"
    assert (there / "experiment_log.md").read_text() == text
    assert is_repaired(str(there), run_id)


def test_a_launch_into_the_directory_repairs_the_runs_before_it(tmp_path: Path) -> None:
    launches = [RunSpec(run_id=run_id, command="true", name="a", created_at="2026-11-21") for run_id in ("a-1", "a-2")]
    for spec in launches:
        append_launch(tmp_path, spec)
    assert is_repaired(str(tmp_path), "a-1")
    assert not is_repaired(str(tmp_path), "a-2")
    assert not is_repaired(str(tmp_path / "gone"), "a-1")


def test_a_file_server_that_never_answers_does_not_hold_up_the_end(
    rundir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading  # noqa: PLC0415

    never = threading.Event()
    monkeypatch.setattr(experiment_log, "_FILE_SERVER_TIMEOUT_S", 0.05)
    monkeypatch.setattr(experiment_log, "_write_files", lambda *_, **__: never.wait(20) and [])
    problem = leave(rundir, tmp_path)
    never.set()
    assert problem == f"Not all results could be left in {tmp_path}: no answer within 0.05 s."


def test_an_internal_error_is_reported_and_raises_nothing(rundir: RunDir, tmp_path: Path) -> None:
    problem = leave(rundir, tmp_path, failure="no mapping at all")
    assert problem is not None
    assert "AttributeError" in problem


def test_writing_replaces_a_link_and_leaves_no_other_file(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("untouched")
    (tmp_path / "results.md").symlink_to(target)
    (tmp_path / f".results.md.{os.getpid()}-{threading.get_native_id()}").symlink_to(target)
    write_text(tmp_path / "results.md", "new \udcff")
    assert (target.read_text(), (tmp_path / "results.md").read_text()) == ("untouched", "new ?")
    assert names(tmp_path) == ["results.md", "target"]


def test_durations_are_written_as_clocks(tmp_path: Path) -> None:
    for seconds, clock in ((0, "0:00:00"), (59.6, "0:01:00"), (3600, "1:00:00"), (93789, "26:03:09")):
        end = RunEnd("cfm-7kqz", "finished", "finished: exit code 0.", 1, seconds, None, None, tmp_path / "log")
        assert f"- Took: {clock}" in end.lines


def test_absent_values_are_omitted() -> None:
    assert failure_lines(None) == gpu_lines(None) == []
    assert failure_lines({"kind": "other", "line": ""}) == ["- Failure: other"]
    assert gpu_lines({"GPU-1": {}, "GPU-2": {"max_c": 71}}) == ["- `GPU-1`: no samples", "- `GPU-2`: hottest 71 °C"]
    assert ADDITIONS_MARK.startswith("<!--")


def test_a_run_that_never_started_leaves_its_flag_too(tmp_path: Path) -> None:
    end: dict[str, Any] = {
        "state": "failed",
        "text": "Never started: no such GPU.",
        "failure": None,
        "attempts": 1,
        "elapsed_s": 0.0,
    }
    assert write_end({"result_dir": str(tmp_path / "out")}, RunDir(tmp_path / "runs" / "none-aaaa"), **end) is None
    assert flag(tmp_path / "out")["state"] == "failed"
    text = (tmp_path / "out" / "experiment_log.md").read_text()
    assert text.startswith("# Experiment log\n\n## End of none-aaaa: failed\n")
    assert "- Started: never" in text
