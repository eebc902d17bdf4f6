"""Each kind of failure proposes a next step and says one sentence about it."""

from __future__ import annotations

import re

import pytest

from mcp_server.diagnosis.failure.kinds import ACTIONS, ADVICE_CHARS, KINDS, action_for, advice_for


def test_every_kind_proposes_a_known_action_and_one_short_sentence() -> None:
    for kind, policy in KINDS.items():
        assert policy.action in ACTIONS
        assert policy.retryable == policy.action.startswith("retry")
        assert len(policy.advice) <= ADVICE_CHARS
        for retryable in (True, False):
            assert action_for(kind, "x", retryable=retryable).startswith("retry") == retryable


@pytest.mark.parametrize(
    ("kind", "line", "words"),
    [
        ("import_error", "ModuleNotFoundError: No module named 'flash_attn'", "flash_attn"),
        ("port_conflict", "failed to bind to [::]:29500 (errno: 98)", "Port 29500"),
        ("port_conflict", "OSError: [Errno 98] Address already in use", "MASTER_PORT"),
        ("data_error", "FileNotFoundError: [Errno 2] No such file or directory: '/d/x.pt'", "/d/x.pt"),
        ("config_error", "t.py: error: unrecognized arguments: --lrr 3", "--lrr 3"),
        ("auth_error", "wandb.errors.UsageError: api_key not configured (no-tty)", "WANDB_API_KEY"),
        ("auth_error", "huggingface_hub.errors.GatedRepoError: 403 Client Error", "HF_TOKEN"),
        ("killed", "*** JOB 1 ON n CANCELLED AT x DUE TO TIME LIMIT ***", "time limit"),
        ("oom_gpu", "CUDA out of memory", "num_envs"),
        ("port_conflict", "AssertionError: Session name session_1 does not match persisted value b'2'", "--temp-dir"),
        ("ray_error", "ConnectionError: Failed to connect to Ray cluster at 10.0.0.5:6379", "`ray status`"),
        ("ray_error", "ray.exceptions.ActorDiedError: The actor died unexpectedly", "raylet"),
        ("config_error", "ValueError: The name A (namespace=RLinf) is already taken.", "RLINF_NAMESPACE"),
        ("config_error", "mismatched input '=' expecting <EOF>", "HYDRA_FULL_ERROR"),
        ("config_error", "Error in call to target 'model.Net':", "HYDRA_FULL_ERROR"),
        ("python_error", "ValueError: invalid literal for int() with base 10: 'GPU-8a56'", "{gpu_indices}"),
        ("other", "TimeoutError: Tool call 'search' timed out after 60 s", "its timeout"),
        ("other", "RuntimeError: Failed to allocate environment: none is free", "the pool"),
    ],
)  # fmt: skip
def test_advice_names_what_the_line_names(kind: str, line: str, words: str) -> None:
    assert words in advice_for(kind, line)


def test_a_retry_waits_for_a_ray_that_does_not_answer() -> None:
    assert action_for("ray_error", "Failed to connect to Ray cluster at 10.0.0.5:6379", retryable=True) == "retry_later"
    assert action_for("ray_error", "The actor died unexpectedly", retryable=True) == "retry"


def test_advice_stays_short_whatever_the_line_holds() -> None:
    for kind in KINDS:
        for line in (
            "x" * 4_000,
            "No module named '" + "x" * 4_000,
            "{0} No such file or directory: '{1}{2}" + "/a" * 900,
        ):
            assert len(advice_for(kind, line)) <= ADVICE_CHARS


def test_advice_names_no_tool_that_does_not_exist() -> None:
    tools = {"launch_run", "wait_run", "read_log", "capture_pane", "list_runs", "kill_run"}
    lines = ("CUDA out of memory", "No module named 'x'", "File exists: '/x'", "arguments are required: x", "wandb")
    advice = {advice_for(kind, line) for kind in KINDS for line in lines}
    named = {word for sentence in advice for word in re.findall(r"\b[a-z]+_(?:runs?|log|pane|check)\b", sentence)}
    assert named <= tools
