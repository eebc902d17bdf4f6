"""Each kind of failure proposes a next step and says one sentence about it."""

from __future__ import annotations

import re

import pytest

from mcp_server.diagnosis.advice.blocks import ADVICE_CHARS, NextStep, Scene
from mcp_server.diagnosis.advice.next_action import propose_next_step
from mcp_server.diagnosis.failure.diagnose import Diagnosis
from mcp_server.diagnosis.failure.kinds import ACTIONS, KINDS


def propose(kind: str, line: str, *, retryable: bool | None = None, **facts: str) -> NextStep:
    return propose_next_step(Scene(kind, line, **facts), retryable=retryable)


def test_every_kind_proposes_a_known_action_and_one_short_sentence() -> None:
    for kind in KINDS:
        step = propose(kind, "")
        assert step.action in ACTIONS
        assert_advice_agrees(step)
    for retryable in (True, False):
        assert propose("killed", "x", retryable=retryable).retryable == retryable


@pytest.mark.parametrize(
    ("kind", "line", "words"),
    [
        ("import_error", "ModuleNotFoundError: No module named 'flash_attn'", "flash_attn"),
        ("port_conflict", "failed to bind to [::]:29500 (errno: 98)", "Port 29500"),
        ("port_conflict", "2025-03-01 09:46:12,001 OSError: [Errno 98] Address in use", "The port is taken"),
        ("port_conflict", "OSError: [Errno 98] Address already in use", "MASTER_PORT"),
        ("data_error", "FileNotFoundError: [Errno 2] No such file or directory: '/d/x.pt'", "/d/x.pt"),
        ("config_error", "t.py: error: unrecognized arguments: --lrr 3", "--lrr 3"),
        ("auth_error", "wandb.errors.UsageError: api_key not configured (no-tty)", "WANDB_API_KEY"),
        ("auth_error", "huggingface_hub.errors.GatedRepoError: 403 Client Error", "HF_TOKEN"),
        ("killed", "*** JOB 1 ON n CANCELLED AT x DUE TO TIME LIMIT ***", "time limit"),
        ("oom_gpu", "CUDA out of memory", "batch size"),
        ("port_conflict", "AssertionError: Session name session_1 does not match persisted value b'2'", "--temp-dir"),
        ("ray_error", "ConnectionError: Failed to connect to Ray cluster at 10.0.0.5:6379", "`ray status`"),
        ("ray_error", "ray.exceptions.ActorDiedError: The actor died unexpectedly", "raylet"),
        ("config_error", "ValueError: The name A (namespace=RLinf) is already taken.", "RLINF_NAMESPACE"),
        ("config_error", "mismatched input '=' expecting <EOF>", "HYDRA_FULL_ERROR"),
        ("python_error", "ValueError: invalid literal for int() with base 10: 'GPU-8a56'", "{gpu_indices}"),
        ("other", "TimeoutError: Tool call 'search' timed out after 60 s", "its timeout"),
        ("other", "RuntimeError: Failed to allocate environment: none is free", "the pool"),
    ],
)  # fmt: skip
def test_advice_names_what_the_line_names(kind: str, line: str, words: str) -> None:
    assert words in propose(kind, line).advice


# What the text of an advice must say, and what it must not, for each action.
SAYS = {
    "stop": (".", r"(?i)\bretry\b(?! (?:nothing))|as is\b"),
    "retry": (r"(?i)\bretry|resume|start again", r"launch_run again"),
    "retry_changed": (r"(?i)lower|halve|fewer|raise|less|change|smaller|PREALLOCATE", r"as is\b|(?i:retry once)"),
    "retry_later": (r"later", r"as is\b"),
    "retry_other_port": (r"(?i)port", r"as is\b"),
    "retry_other_gpu": (r"another GPU", r"as is\b"),
}


def assert_advice_agrees(step: NextStep | Diagnosis) -> None:
    must, must_not = SAYS[step.action]
    advice = step.advice
    assert step.retryable == (step.action != "stop")
    if not advice:  # nothing is known but the line
        return
    assert re.search(must, advice), advice
    assert not re.search(must_not, advice), advice
    assert len(advice) <= ADVICE_CHARS
    assert advice.count(";") <= 1, advice  # two steps at most


def test_a_kill_that_was_meant_is_never_advised_to_be_retried() -> None:
    for line in ("Killed", "CANCELLED AT x", "KeyboardInterrupt", "PREEMPTED", "TIME LIMIT", "x"):
        for retryable in (True, False):
            step = propose("killed", line, retryable=retryable)
            assert step.retryable == retryable
            assert_advice_agrees(step)


def test_a_process_that_holds_most_of_the_gpu_is_named() -> None:
    line = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
        "79.15 GiB of which 1.00 GiB is free. Process {} has {} GiB memory in use. Including non-PyTorch memory, this "
        "process has {} GiB memory in use."
    )
    other = propose("oom_gpu", line.format(4117, "70.20", "7.90"))
    assert (other.action, "4117" in other.advice) == ("retry_other_gpu", True)
    assert propose("oom_gpu", line.format(4117, "0.50", "77.60")).action == "retry_changed"


def test_advice_stays_short_whatever_the_line_holds() -> None:
    for kind in KINDS:
        for line in (
            "x" * 4_000,
            "No module named '" + "x" * 4_000,
            "{0} No such file or directory: '{1}{2}" + "/a" * 900,
        ):
            assert len(propose(kind, line).advice) <= ADVICE_CHARS


def test_advice_names_no_tool_that_does_not_exist() -> None:
    tools = {"launch_run", "wait_run", "read_log", "capture_pane", "list_runs", "kill_run", "gpu_check"}
    lines = ("CUDA out of memory", "No module named 'x'", "File exists: '/x'", "arguments are required: x", "wandb")
    advice = {propose(kind, line).advice for kind in KINDS for line in lines}
    named = {word for sentence in advice for word in re.findall(r"\b[a-z]+_(?:runs?|log|pane|check)\b", sentence)}
    assert named <= tools
