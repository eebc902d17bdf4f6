"""Services that are jobs of Ray, whose supervisors hold no lock here."""

import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mcp_server.record.ray.ray_job import mark_request, request_file
from mcp_server.record.run_directory import RunDir, boot_id, write_json
from mcp_server.record.service import Need, parse_need
from mcp_server.record.spec import RunSpec
from mcp_server.record.state import Run
from mcp_server.supervisor.services.needed_runs import ServiceAddresses, Services, _explain_http
from mcp_server.supervisor.services.service_jobs import RayWord, ask_ray
from tests.support.fake_ray import FakeRay
from tests.support.slow_answers import answer_slowly

OVER, LIVES, SILENT = RayWord(True, "Ray says FAILED of its job"), RayWord(False, ""), RayWord(None, "no answer")


@pytest.fixture
def port() -> Iterator[int]:
    """A port of this host that answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def find_closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number: int = server.getsockname()[1]
        return number


def make_lost_run(*, shared: bool, command: str = "serve") -> Run:
    spec = RunSpec(command, run_id="s", backend="ray", backend_options={"shared_disk": shared})
    return Run(spec, "lost", at_start={"host": "127.0.0.1", "boot_id": "another"})


def judge(run: Run, word: RayWord | None, port: int | None, tmp_path: Path) -> tuple[bool, list[str]]:
    said: list[str] = []
    events = SimpleNamespace(append=lambda _, text: said.append(text))
    control: Any = SimpleNamespace(spec=RunSpec(), rundir=RunDir(tmp_path / "r"), events=events)
    services = Services(control)
    services._ray = SimpleNamespace(report=lambda *_: word)  # type: ignore[assignment]
    return services._goes_on(Need("s", port), run), said


def test_a_service_has_ended_where_ray_and_its_port_say_so(port: int, tmp_path: Path) -> None:
    closed = find_closed_port()
    shared, mirrored = make_lost_run(shared=True), make_lost_run(shared=False)
    assert judge(shared, OVER, closed, tmp_path) == (False, [])
    assert judge(make_lost_run(shared=True, command=f"serve --port {closed}"), OVER, None, tmp_path) == (False, [])
    assert judge(mirrored, OVER, None, tmp_path) == (False, [])
    goes_on, said = judge(shared, OVER, port, tmp_path)
    assert goes_on
    assert said == ["s, which it needs: Ray says FAILED of its job, and it may go on: it answers. This run goes on."]


def test_what_is_unknown_of_a_service_ends_nothing_and_is_said(tmp_path: Path) -> None:
    shared, mirrored = make_lost_run(shared=True), make_lost_run(shared=False)
    assert judge(shared, None, 1, tmp_path) == (True, [])
    assert judge(shared, LIVES, 1, tmp_path) == (True, [])  # its supervisor is on another node
    for run, word in ((shared, SILENT), (shared, OVER), (mirrored, LIVES), (mirrored, SILENT)):
        goes_on, said = judge(run, word, None, tmp_path)
        assert goes_on
        assert len(said) == 1


def test_only_the_head_of_a_run_is_believed(tmp_path: Path) -> None:
    ray = FakeRay()
    try:
        rundir = RunDir(tmp_path)
        options = {"address": ray.address, "shared_disk": True}
        spec = RunSpec(run_id=rundir.run_id, backend="ray", backend_options=options, boot_id=boot_id())
        request = {"submission_id": rundir.run_id, "entrypoint": "exec sleep 600", "metadata": {}}
        write_json(request_file(rundir), mark_request(request))
        assert ask_ray(rundir, spec).is_over  # it does not know the job
        elsewhere = RunSpec(run_id=rundir.run_id, backend="ray", backend_options=options, boot_id="another")
        assert ask_ray(rundir, elsewhere).is_over is None  # as another head may listen at this loopback address
        ray.close()
        assert ask_ray(rundir, spec).is_over is None
    finally:
        ray.end()


def test_a_service_that_answers_byte_by_byte_does_not_answer_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_server.supervisor.services.needed_runs._ANSWER_S", 0.2)
    with answer_slowly("head") as address:
        assert _explain_http(f"{address}/health") == f"{address}/health does not answer yet"


def test_an_address_is_gone_after_a_minute_of_refusals_and_not_while_its_host_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock: Any = SimpleNamespace(monotonic=lambda: clock.now_s, sleep=lambda _: None, now_s=0.0)
    monkeypatch.setattr("mcp_server.supervisor.services.needed_runs.time", clock)
    unstarted = SimpleNamespace(start=lambda: None)
    monkeypatch.setattr("mcp_server.supervisor.services.needed_runs.threading.Thread", lambda **_: unstarted)
    need, answers = parse_need("10.0.0.5:6379"), {0: "", 5: "its host refuses connections", 60: "it cannot be reached"}
    why = ""
    addresses = ServiceAddresses([need], lambda _: why)
    for at_s in range(0, 200, 5):
        clock.now_s, why = float(at_s), answers.get(at_s, why)
        addresses.look()
        assert addresses.find_gone() is None, at_s
    why = answers[5]
    addresses.look()
    began_s = clock.now_s
    for later_s in range(0, 65, 5):
        clock.now_s = began_s + later_s
        addresses.look()
        assert addresses.find_gone() == ((need, why) if later_s >= 60 else None), later_s
