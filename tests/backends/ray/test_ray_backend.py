"""What is asked of Ray, and what its answers mean, by value."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from mcp_server.backends.ray.job_request import check_request, describe_wait, find_address, make_request, parse_address
from mcp_server.backends.ray.ray_backend import RayBackend
from mcp_server.backends.ray.ray_watch import JobReport, judge
from mcp_server.errors import BadArgument, HostUnreachable
from mcp_server.record.events import RecordEvent
from mcp_server.record.ray.ray_head import RayHead, RayJob, RayRefused
from mcp_server.record.ray.ray_job import MARK
from mcp_server.record.spec import LaunchRequest, RunSpec
from mcp_server.record.state import Evidence, Liveness, fold
from mcp_server.supervisor.start_command import select_job_environment
from tests.support.slow_answers import SLOW_ANSWERS, answer_slowly

NEW, FRESH = {"has_events": False, "is_here": False}, {"has_events": False, "is_here": False, "is_fresh": True}
HERE, ELSEWHERE = {"has_events": True, "is_here": True}, {"has_events": True, "is_here": False}
FAILED = RayJob("FAILED", "Job entrypoint command failed with exit code 2, last available logs\nbash: no such file", 2)
STOPPED = RayJob("STOPPED", "Job was intentionally stopped.", ended_ms=1_795_399_001_186)
GAVE_UP = RayJob("FAILED", "Job supervisor actor failed to …", error_type="JOB_SUPERVISOR_ACTOR_START_TIMEOUT")
STARTED: RecordEvent = {"seq": 1, "kind": "started", "at": "2026-11-23T01:00:00.000Z"}


@pytest.mark.parametrize(
    ("report", "seen", "liveness", "state"),
    [
        (JobReport(), FRESH, Liveness.PENDING, "queued"),
        (JobReport(), NEW, Liveness.DEAD, "lost"),
        (JobReport(), ELSEWHERE, Liveness.DEAD, "lost"),
        (JobReport(RayJob("PENDING"), wait="no GPU"), NEW, Liveness.PENDING, "queued"),
        (JobReport(RayJob("PENDING")), HERE, Liveness.DEAD, "lost"),
        (JobReport(RayJob("RUNNING")), NEW, Liveness.PENDING, "queued"),
        (JobReport(RayJob("RUNNING")), HERE, Liveness.DEAD, "lost"),
        (JobReport(RayJob("RUNNING")), ELSEWHERE, Liveness.ALIVE, "running"),
        (JobReport(RayJob("RESTARTING")), NEW, Liveness.PENDING, "queued"),
        (JobReport(FAILED), NEW, Liveness.DEAD, "failed"),
        (JobReport(FAILED), HERE, Liveness.DEAD, "lost"),
        (JobReport(FAILED), ELSEWHERE, Liveness.DEAD, "lost"),
        (JobReport(RayJob("SUCCEEDED")), NEW, Liveness.DEAD, "lost"),
        (JobReport(RayJob("SUCCEEDED")), ELSEWHERE, Liveness.DEAD, "lost"),
        (JobReport(STOPPED), NEW, Liveness.DEAD, "killed"),
        (JobReport(silent="refused", since="then"), NEW, Liveness.UNREACHABLE, "starting"),
        (JobReport(silent="refused", since="then"), ELSEWHERE, Liveness.UNREACHABLE, "running"),
        (JobReport(silent="refused", since="then"), HERE, Liveness.DEAD, "lost"),
    ],
)
def test_a_state_is_what_ray_and_the_record_prove(
    report: JobReport, seen: dict[str, bool], liveness: Liveness, state: str
) -> None:
    found = judge(report, "http://head:8265", "cfm-7kqz", **seen)
    events = (STARTED,) if seen["has_events"] else ()
    run = fold(Evidence(RunSpec(run_id="cfm-7kqz"), events, supervisor=found, age_s=60.0))
    assert (found.liveness, run.state, run.job_id) == (liveness, state, "cfm-7kqz")
    if liveness is Liveness.UNREACHABLE:
        assert (run.still, run.elapsed_s(2e9)) == (f"was {state} when http://head:8265 was last heard of", None)


def test_a_job_that_ray_ended_before_its_supervisor_came_says_why() -> None:
    run = fold(Evidence(RunSpec(), supervisor=judge(JobReport(FAILED), "http://head:8265", "a", **NEW), age_s=60.0))
    assert run.reason == (
        "Ray ended the job before its supervisor started, so the command never ran: Job entrypoint command failed with "
        "exit code 2, last available logs"
    )
    assert run.failure is not None
    assert run.failure["kind"] == "ray_error"
    waited = fold(Evidence(RunSpec(), supervisor=judge(JobReport(GAVE_UP), "http://head:8265", "a", **NEW), age_s=60.0))
    assert (waited.state, waited.stopped_by) == ("failed", "scheduler")
    assert waited.failure is not None
    assert waited.failure["retryable"]
    assert "RAY_JOB_START_TIMEOUT_SECONDS" in waited.failure["advice"]
    assert run.stopped_by is None
    died = RayJob("FAILED", "Job supervisor actor died: …", error_type="JOB_SUPERVISOR_ACTOR_DIED")
    dropped = fold(Evidence(RunSpec(), supervisor=judge(JobReport(died), "http://head:8265", "a", **NEW), age_s=60.0))
    assert (dropped.state, dropped.stopped_by) == ("failed", "scheduler")
    stopped = fold(
        Evidence(RunSpec(), supervisor=judge(JobReport(STOPPED), "http://head:8265", "a", **NEW), age_s=60.0)
    )
    assert (stopped.ended_at, stopped.stopped_by) == ("2026-11-23T01:56:41.186Z", "scheduler")


def test_the_request_holds_the_job_and_neither_environment_nor_secrets() -> None:
    options = {"address": "http://head:8265", "shared_disk": True, "entrypoint_num_cpus": 2, "metadata": {"team": 7}}
    spec = RunSpec(
        command="python train.py", name="cfm", owner="alice", run_id="cfm-7kqz", gpus=2, env={"A": "1"}, secrets=["B"],
        backend="ray", backend_options=options,
    )  # fmt: skip
    assert make_request(spec, ["python3", "/state/supervisor", "/state/runs/a b"]) == {
        "submission_id": "cfm-7kqz",
        "entrypoint": "exec python3 /state/supervisor '/state/runs/a b'",
        "metadata": {"name": "cfm", "owner": "alice", "team": "7"},
        "entrypoint_num_gpus": 2,
        "entrypoint_num_cpus": 2,
    }


@pytest.mark.parametrize(
    ("gpus", "options", "text"),
    [
        (None, {}, ""),
        (
            8,
            {},
            "Ray waits for resources: the job needs 8 GPU; the cluster has 2 GPU (1 free). It never starts unless GPU "
            "are added.",
        ),
        (1, {}, "Ray has not started it yet: the job needs 1 GPU; the cluster has 2 GPU (1 free)."),
        (2, {}, "Ray waits for resources: the job needs 2 GPU; the cluster has 2 GPU (1 free)."),
        (
            None,
            {"entrypoint_num_cpus": 0.5, "entrypoint_memory": 2**31},
            "Ray waits for resources: the job needs 0.5 CPU, 2.0 GiB of memory; the cluster has 4 CPU (0 free), "
            "8.0 GiB of memory (8.0 free).",
        ),
        (
            None,
            {"entrypoint_resources": {"tpu": 1}},
            "Ray waits for resources: the job needs 1 tpu; the cluster has 0 tpu (0 free). It never starts unless tpu "
            "are added.",
        ),
    ],
)
def test_a_wait_says_what_is_needed_and_what_there_is(gpus: Any, options: dict[str, Any], text: str) -> None:
    resources = {"GPU": (1.0, 2.0), "CPU": (4.0, 4.0), "memory": (0.0, 8 * 2.0**30)}
    wait = describe_wait(RunSpec(run_id="a", gpus=gpus, backend="ray", backend_options=options), resources)
    assert set(wait.split()) == set(text.split())


def test_a_wait_in_a_cluster_that_does_not_say_what_it_has_says_so() -> None:
    wait = describe_wait(RunSpec(run_id="a", gpus=1), {})
    assert wait == "Ray waits for resources: the job needs 1 GPU; what the cluster has is unknown."


@pytest.mark.parametrize(
    ("request_", "cause"),
    [
        ({"backend_options": {"entrypoint": "x"}}, "entrypoint is set by runward"),
        ({"backend_options": {"gpus": 1}}, "is not an option of a Ray job"),
        ({"backend_options": {"entrypoint_num_gpus": 1}, "gpus": 1}, "both ask for GPUs"),
        ({"backend_options": {"entrypoint_num_gpus": "many"}}, "is a number from 0 on"),
        ({"backend_options": {"runtime_env": "x"}}, "is a table"),
        ({"backend_options": {"runtime_env": {"env_vars": {"WANDB_API_KEY": "x"}}}}, "looks like a secret"),
        ({"backend_options": {"runtime_env": {"working_dir": "."}}}, "nothing is uploaded"),
        ({"backend_options": {"shared_disk": "yes"}}, "is true or false"),
        ({"backend_options": {"address": "http://alice:pw@head:8265"}}, "is not that of a Ray dashboard: 'head:8265'"),
        ({"gpus": "4-7"}, "Ray chooses them"),
        ({"require": {"count": 1}}, "Ray chooses the GPUs"),
        ({"command": "train --device cuda:{gpu_indices}"}, "stands for leased GPUs"),
    ],
)
def test_what_ray_cannot_do_is_refused(request_: dict[str, Any], cause: str) -> None:
    with pytest.raises(BadArgument, match=cause) as refusal:
        check_request(LaunchRequest(**{"command": "true", **request_}))
    assert "pw" not in str(refusal.value)


def test_a_password_in_a_variable_is_refused_where_the_job_holds_the_script() -> None:
    variables, options = {"HTTPS_PROXY": "http://u:pw12345x@proxy:1"}, {"address": "http://head:8265"}
    with pytest.raises(BadArgument, match="env: HTTPS_PROXY holds a password, and Ray shows") as refusal:
        RayBackend().complete_spec(RunSpec(env=variables, backend_options=options), {})
    assert "pw12345x" not in str(refusal.value)
    shared = RunSpec(env=variables, backend_options={**options, "shared_disk": True})
    assert RayBackend().complete_spec(shared, {}).env == variables


@pytest.mark.parametrize("address", ["127.0.0.1:8265", "http://127.0.0.1:8265/", " http://127.0.0.1:8265"])
def test_an_address_has_one_form(address: str) -> None:
    assert parse_address(address) == "http://127.0.0.1:8265"


@pytest.mark.parametrize("address", ["ray://head:10001", "http://", "head:port", "http://head:8265?a=1", ""])
def test_an_address_of_another_kind_is_refused(address: str) -> None:
    with pytest.raises(BadArgument, match="is not that of a Ray dashboard"):
        parse_address(address)


def test_the_address_is_the_most_particular_one() -> None:
    environ = {"RAY_ADDRESS": "http://server:8265"}
    option = {"address": "option:8265"}
    assert find_address(RunSpec(backend_options=option, env=environ), environ) == "http://option:8265"
    variables = {"RAY_ADDRESS": "10.0.0.1:6379", "RAY_API_SERVER_ADDRESS": "http://run:8265"}
    assert find_address(RunSpec(env=variables), environ) == "http://run:8265"
    assert find_address(RunSpec(), environ) == "http://server:8265"
    with pytest.raises(BadArgument, match="needs the address of a dashboard"):
        find_address(RunSpec(), {"RAY_ADDRESS": "10.0.0.1:6379"})


def test_a_command_gets_what_ray_gives_to_its_job() -> None:
    job = {"RAY_ADDRESS": "a", "CUDA_VISIBLE_DEVICES": "1", "PATH": "/env/bin", "HOME": "/root", "MY": "1"}
    assert select_job_environment("tmux", {}, job) == {}
    shared = {"shared_disk": True}
    assert select_job_environment("ray", {}, job) == {}, "the supervisor of a mirrored job is not in it"
    assert select_job_environment("ray", shared, job) == {"RAY_ADDRESS": "a", "CUDA_VISIBLE_DEVICES": "1"}
    options = {**shared, "runtime_env": {"pip": ["x"], "env_vars": {"MY": "1"}}}
    assert set(select_job_environment("ray", options, job)) == {"RAY_ADDRESS", "CUDA_VISIBLE_DEVICES", "PATH", "MY"}


# --- heads that lie


class Head(ThreadingHTTPServer):
    """Answers every question alike, and refuses what is submitted."""

    answer, went_elsewhere = "", False

    class RequestHandlerClass(BaseHTTPRequestHandler):
        server: "Head"

        def do_GET(self) -> None:
            if self.path == "/elsewhere":
                self.server.went_elsewhere = True
            self.send_response({"redirect": 302, "no token": 401}.get(self.server.answer, 200))
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", str(len(self.server.answer)))
            self.end_headers()
            self.wfile.write(self.server.answer.encode())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_error(500, "already exists")

        def log_message(self, *_: object) -> None:
            pass


@pytest.fixture
def head() -> Iterator[Head]:
    with Head(("127.0.0.1", 0), Head.RequestHandlerClass) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize("answer", ["[" * 500_000, "redirect", "[]", "{"], ids=["deep", "redirect", "list", "half"])
def test_an_answer_that_is_none_is_a_refusal_and_no_token_goes_elsewhere(head: Head, answer: str) -> None:
    head.answer = answer
    with pytest.raises(RayRefused):
        RayHead(f"http://127.0.0.1:{head.server_address[1]}").find("cfm-7kqz", "")
    assert not head.went_elsewhere


def test_a_head_that_asks_for_a_token_is_refused_with_where_it_belongs(head: Head) -> None:
    head.answer = "no token"
    with pytest.raises(RayRefused, match="answers 401: no token") as refusal:
        RayHead(f"http://127.0.0.1:{head.server_address[1]}").find("cfm-7kqz", "mark")
    assert "RAY_AUTH_TOKEN" in refusal.value.remedy


def test_odd_values_of_a_head_are_left_out(head: Head) -> None:
    ray = RayHead(f"http://127.0.0.1:{head.server_address[1]}")
    head.answer = f'{{"status": "{"X" * 900}", "message": "\\u001b[31mBad", "driver_exit_code": 1{"0" * 99}, '
    head.answer += f'"end_time": 1{"0" * 99}}}'
    job = ray.find("cfm-7kqz", "")
    assert job is not None
    assert (job.status, job.exit_code, job.ended_ms, job.first_line) == ("X" * 40, None, None, "[31mBad")
    head.answer = f'{{"data": {{"clusterStatus": {{"loadMetricsReport": {{"usage": {{"GPU": [0, 1{"0" * 400}]}}}}}}}}}}'
    assert ray.read_resources() == {}


def test_the_job_of_another_with_the_same_id_is_neither_found_nor_stopped_nor_taken_for_the_one_submitted(
    head: Head,
) -> None:
    ray = RayHead(f"http://127.0.0.1:{head.server_address[1]}")
    request = {"submission_id": "cfm-7kqz", "metadata": {MARK: "ours"}}
    for theirs in ("{}", "null", "7", f'{{"{MARK}": "theirs"}}'):
        head.answer = f'{{"status": "RUNNING", "metadata": {theirs}}}'
        assert ray.find("cfm-7kqz", "ours") is None
        ray.stop("cfm-7kqz", "ours")  # which this head would refuse
        with pytest.raises(RayRefused):
            ray.submit(request)
    head.answer = f'{{"status": "RUNNING", "metadata": {{"{MARK}": "ours"}}}}'
    assert ray.find("cfm-7kqz", "ours") == ray.find("cfm-7kqz", "") == RayJob("RUNNING")
    ray.submit(request)


@pytest.mark.parametrize("answer", SLOW_ANSWERS)
def test_a_head_that_answers_byte_by_byte_counts_as_silent(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr("mcp_server.record.ray.ray_head.LOOK_S", 0.2)
    with answer_slowly(answer) as address, pytest.raises(HostUnreachable, match="no answer in time"):
        RayHead(address).find("cfm-7kqz", "")
