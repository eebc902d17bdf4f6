"""A far host that lies, sends too much, or names what is not its own, changes and stops nothing else."""

import copy
import inspect
import io
import json
import re
import zlib
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from mcp_server.backends.ssh.far_answers import decompress, read_answer, read_report
from mcp_server.backends.ssh.mirror import Mirror
from mcp_server.backends.ssh.ssh_channel import Channel, _Question
from mcp_server.errors import HostUnreachable
from mcp_server.record.codec import decode
from mcp_server.record.relay_channel import MOST_CONTENT_BYTES, REQUESTS, read_frame
from mcp_server.record.state import Liveness, LivenessReport
from mcp_server.relay.handlers import Answers
from mcp_server.relay.run_watch import RunWatch
from mcp_server.relay.supervisor_start import State

SPEC = json.dumps({"owner": "mallory"}).encode()


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    for runs in ("runs", "hosts/other/runs", "hosts/lab/runs"):
        (tmp_path / runs / "a-run").mkdir(parents=True)
        (tmp_path / runs / "a-run" / "spec.json").write_text('{"owner": "ana"}')
    (tmp_path / "hosts/lab/runs/a-run").rename(tmp_path / "hosts/lab/runs/own")
    return Mirror(tmp_path / "hosts" / "lab")


def push(run_id: str, name: str = "spec.json", content: bytes = SPEC, **more: Any) -> tuple[dict[str, Any], bytes]:
    return {"push": "run", "run": run_id, "files": [[name, 0, len(content)]], **more}, content


def contents(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("run_id", ["../../../runs/a-run", "../../other/runs/a-run", "{root}/runs/a-run", "..", ""])
def test_a_host_names_no_run_but_its_own(mirror: Mirror, tmp_path: Path, run_id: str) -> None:
    run_id, before = run_id.format(root=tmp_path), contents(tmp_path)
    channel = Channel(mirror)
    channel._take({"push": "gone", "run": run_id}, b"")
    with pytest.raises(ValueError, match="not a run id"):
        channel._take(*push(run_id, report={"liveness": "dead", "reason": ""}))
    assert contents(tmp_path) == before


def test_a_host_takes_the_place_of_no_run_elsewhere(mirror: Mirror, tmp_path: Path) -> None:
    before = contents(tmp_path)
    mirror.apply(*push("a-run"), LivenessReport(Liveness.DEAD))
    assert contents(tmp_path) == before
    assert mirror.read_dead("a-run") is None


def test_a_run_keeps_the_owner_that_is_known_here(mirror: Mirror) -> None:
    mirror.apply(*push("own", content=b'{"owner": "mallory", "session": "own"}'))
    assert json.loads((mirror.runs / "own" / "spec.json").read_bytes()) == {"owner": "ana", "session": "own"}


@pytest.mark.parametrize("name", ["../spec.json", "/tmp/x", "supervisor.lock", "attempts/1/../../x", "attempts/1/x"])
def test_a_host_writes_no_file_but_those_of_a_record(mirror: Mirror, tmp_path: Path, name: str) -> None:
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="not a file of a run"):
        mirror.apply(*push("own", name))
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "frame", [b'{"bytes": -7}\n', b'{"bytes": 900000000000}\n', b'{"bytes": "x"}\n', b"5\n", b"[" * 200_000 + b"\n"]
)
def test_a_frame_of_impossible_size_or_shape_is_none(frame: bytes) -> None:
    with pytest.raises(ValueError, match=r"frame|deep"):
        read_frame(io.BytesIO(frame + b"data"))


def test_no_more_is_unpacked_than_was_asked_for() -> None:
    whole = b"\0" * MOST_CONTENT_BYTES
    assert decompress(zlib.compress(whole)) == whole
    for data in (zlib.compress(whole + b"\0"), b"not compressed"):
        with pytest.raises(OSError, match="the host sent"):
            decompress(data)


ANSWERS: list[tuple[str, dict[str, Any], bytes]] = [
    ("ping", {"time": 1.5}, b""),
    ("withdraw", {"withdrawn": True}, b""),
    ("code_restore", {"directory": "/home/ada/code/cfm-7kqz"}, b""),
    ("code_changes", {"changed": ["prepare.py"]}, b""),
    ("interrupt", {"reached": False}, b""),
    ("reap", {"signals_sent": ["SIGINT"], "survivors": [[7, "python"]], "unsupervised": False}, b""),
    ("leftovers", {"processes": [[7, "python"]]}, b""),
    ("screen", {"is_log": True}, b"a line"),
    ("sessions", {"sessions": ["a-run"]}, b""),
    ("read", {"size": 3, "mtime_ns": 1, "inode": 2}, zlib.compress(b"abc")),
    ("files", {"files": {"/a": [1, 2, 3]}, "cut": True}, b""),
    ("gpus", {"snapshot": {"gpus": [{"index": 0, "uuid": "GPU-0", "power_w": 1.5}]}, "holders": {"cpu-0": "x"}}, b""),
    ("paths", {"paths": {"/a": {"kind": "file", "path": "/a"}, "/b": {"kind": "missing", "near": ["/c"]}}}, b""),
    ("trees", {"directories": {"/a": [["b", 1, 2]]}, "cut": False}, b""),
    ("contents", {"sizes": [3, -1]}, zlib.compress(b"abc")),
    ("code_look", {"directory": "/a", "there": False, "missing": ["a" * 64]}, b""),
    ("code_look", {"directory": "/a", "there": False, "repositories": [{"path": "/a", "own": True, "tips": []}]}, b""),
    ("code_make", {"directory": "/a"}, b""),
    ("free_port", {"port": 2000}, b""),
    ("check", {"problems": [["python", "no torch.", "Install it."]], "found": ["Python 3.11"]}, b""),
    ("disk", {"path": "/a", "free": 5, "writable": True}, b""),
    ("preview_job", {"lines": ["#!/bin/bash", "# Slurm: Job 1 to start at once"]}, b""),
    ("preview_array", {"lines": ["#!/bin/bash", "#SBATCH --array=0-3"]}, b""),
]
ASKED = {"paths": ["/a", "/b"]}
ODD: list[Any] = [
    None,
    "x\0",
    -1,
    1e400,
    2**70,
    True,
    [],
    {},
    [None],
    {"x": None},
    [["a", "b", "c"]],
    "y" * 9_000,
    "\ud800",
]


def spoiled(value: Any) -> Iterator[Any]:
    """Yield ``value`` with each of its parts replaced by something odd, or missing."""
    yield from ODD
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        rest = copy.copy(value)
        del rest[key]
        yield rest
        for other in spoiled(value[key]):
            changed = copy.copy(value)
            changed[key] = other
            yield changed


@pytest.mark.parametrize(("name", "facts", "data"), ANSWERS, ids=lambda value: value if isinstance(value, str) else "")
def test_an_answer_is_one_to_the_request_or_none(name: str, facts: dict[str, Any], data: bytes) -> None:
    answer, _ = read_answer("lab", name, ASKED, facts, data)
    assert answer.keys() <= facts.keys()
    refusals = []
    for other in spoiled(facts):
        try:
            accepted, _ = read_answer("lab", name, ASKED, other, data)
            assert accepted.keys() <= facts.keys()
        except HostUnreachable as error:
            refusals.append(str(error))
    assert len(refusals) > len(ODD)
    for text in refusals:
        assert text.startswith("lab cannot be reached: its answer to ")
        assert "Runs there go on; nothing new is known of them." in text
        assert text.endswith("a person can look with: runward hosts lab")
        assert text.isprintable()
        assert len(text) < 1_500
    if name in ("read", "contents"):
        with pytest.raises(HostUnreachable, match="the host sent"):
            read_answer("lab", name, ASKED, facts, b"not compressed")


REPORT = {
    "liveness": "dead",
    "reason": "",
    "job_id": "12_3",
    "unreachable": {"host": "Slurm", "since": "2026-11-23T09:00:00Z", "why": "no answer"},
    "end": {
        "state": "failed",
        "reason": "Slurm: NODE_FAIL of job 12_3",
        "ended_at": "2026-11-23T09:00:00Z",
        "stopped_by": "scheduler",
        "failure": {"kind": "killed", "line": "x", "retryable": True, "action": "retry", "advice": "Again."},
    },
}


def test_a_report_on_a_run_is_one_that_slurm_can_make_or_none() -> None:
    report = read_report("lab", REPORT)
    assert (report.facts(), decode(LivenessReport, report.facts())) == (REPORT, report)
    refusals = 0
    for other in spoiled(REPORT):
        try:
            read_report("lab", other).facts()
        except HostUnreachable:
            refusals += 1
    assert refusals > len(ODD)


def test_every_request_has_the_types_of_its_answer(tmp_path: Path) -> None:
    state = State(tmp_path)
    known = {name for name, _, _ in ANSWERS}
    without_words = {"launch", "launch_array", "discard", "stop_request"}
    without_words |= {"write_documents", "code_put", "close_screens", "code_guard", "code_remove"}
    assert known | without_words | {"subscribe"} == Answers(state, RunWatch(state.runs, print)).by_name.keys()


def test_the_relay_reads_the_declared_words_of_a_request_and_no_other() -> None:
    for name, request in REQUESTS.items():
        source = inspect.getsource(getattr(Answers, f"_{name}"))
        read = set(re.findall(r"""request(?:\[|\.get\()"(\w+)""", source)) - {"data"}
        assert read == (set() if name in ("code_look", "code_make") else request.words), name


@pytest.mark.parametrize(
    "words", [5, None, [], {"a": 1}, ["HostUnreachable"], ["OSError", "x", "9" * 5_000], ["NoSuch", "a\x1b[2J"], [1]]
)
def test_an_error_of_any_shape_is_an_error_with_the_hosts_name(mirror: Mirror, words: object) -> None:
    channel, got = Channel(mirror), Future[Any]()
    channel._waiting[1] = _Question(got, 0.0, 0)
    channel._take({"id": 1, "error": words}, b"")
    error = got.exception(0)
    assert isinstance(error, OSError) or "lab" in str(error)
    assert "\x1b" not in str(error)
