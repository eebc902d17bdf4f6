"""A far host that lies, sends too much, or names what is not its own, changes and stops nothing else."""

import io
import json
import zlib
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from mcp_server.backends.mirror import Mirror
from mcp_server.backends.ssh_channel import MOST_CONTENT_BYTES, Channel, decompress
from mcp_server.errors import HostUnreachable
from mcp_server.system.frames import read_frame

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
        channel._take(*push(run_id, liveness="dead"))
    assert contents(tmp_path) == before


def test_a_host_takes_the_place_of_no_run_elsewhere(mirror: Mirror, tmp_path: Path) -> None:
    before = contents(tmp_path)
    mirror.apply(*push("a-run", liveness="dead"))
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


def test_an_answer_without_what_was_asked_for_is_none(mirror: Mirror) -> None:
    channel, got = Channel(mirror), Future[Any]()
    channel._waiting[1] = got
    channel._take({"id": 1, "ok": {"x": 1}}, b"")
    with pytest.raises(HostUnreachable, match="its answer has no 'size'"):
        got.result(0)[0]["size"]
