"""The end of a log, an exit status and a few hints become a kind and the line that proves it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mcp_server.diagnosis.failure.diagnose import Diagnosis, RunFacts, diagnose
from mcp_server.diagnosis.failure.kinds import KINDS
from mcp_server.diagnosis.failure.statements import parse_statement
from mcp_server.diagnosis.live.fatal_lines import FATAL_WORDS, may_be_fatal
from mcp_server.text.lines import Line, number_lines
from tests.support.logs import CAUGHT, EXCEPTIONS, FAILED_LOGS, FEW_STEPS, HEALTHY_LOGS, STEPS, TRACE, LabelledLog
from tests.support.rows import for_each


def diagnose_text(text: str, exit_code: int | None = None, signal: str | None = None, **hints: Any) -> Diagnosis | None:
    return diagnose(number_lines(text.encode()), exit_code, signal, RunFacts(**hints))


def failure(text: str, exit_code: int | None = None, signal: str | None = None, **hints: Any) -> Diagnosis:
    found = diagnose_text(text, exit_code, signal, **hints)
    assert found is not None
    return found


@for_each(EXCEPTIONS)
def test_an_exception_is_classified_by_its_type_and_its_message(kind: str, raised: str) -> None:
    found = failure(f"Step 10: loss=1.2\n{TRACE}{raised}\n")
    assert (found.kind, found.line, found.line_number) == (kind, raised.strip(), 7)


@for_each(FAILED_LOGS)
def test_the_line_that_proves_a_failure_is_found_among_what_else_was_printed(log: LabelledLog) -> None:
    found = failure(log.text)
    assert (found.kind, found.line) == (log.kind, log.line)
    assert found.line_number is not None
    assert found.line in log.text.split("\n")[found.line_number - 1]


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"timeout", "other"}))
def test_every_kind_has_samples(kind: str) -> None:
    assert sum(name == kind for name, _ in EXCEPTIONS) + sum(log.kind == kind for log in FAILED_LOGS) >= 2


@for_each(HEALTHY_LOGS)
def test_a_healthy_log_is_not_called_failed(log: LabelledLog) -> None:
    assert diagnose_text(log.text) is None
    assert diagnose_text(log.text, 0) is None


@for_each(log.text for log in HEALTHY_LOGS)
def test_a_run_that_failed_for_sure_is_never_called_healthy(log: str) -> None:
    for exit_code, signal in ((1, None), (None, "SIGKILL"), (139, None), (255, None)):
        found = failure(log, exit_code, signal)
        assert found.kind in KINDS
        assert found.line
        assert (found.line_number is None) == (not log)


@pytest.mark.parametrize(
    ("exit_code", "signal", "kind", "retryable"),
    [
        (1, None, "other", None),
        (3, None, "other", None),
        (124, None, "timeout", False),
        (137, None, "killed", True),
        (137, "SIGKILL", "killed", True),
        (None, "SIGKILL", "killed", True),
        (143, None, "killed", True),
        (None, "SIGTERM", "killed", True),
        (129, None, "killed", True),
        (130, None, "killed", False),
        (None, "SIGINT", "killed", False),
        (139, None, "segfault", True),
        (None, "SIGSEGV", "segfault", True),
        (134, None, "segfault", True),
        (None, "SIGABRT", "segfault", True),
        (135, None, "segfault", True),
        (136, None, "segfault", True),
        (None, "SIGXCPU", "killed", True),
        (None, "SIGRTMIN+3", "killed", True),
        (-9, None, "other", None),
        (1_000_000, None, "other", None),
    ],
)
def test_without_evidence_the_exit_status_decides(
    exit_code: int | None, signal: str | None, kind: str, retryable: bool | None
) -> None:
    found = failure(FEW_STEPS, exit_code, signal)
    assert (found.kind, found.retryable) == (kind, retryable)
    assert found.line == "step 8 loss 0.1250"


def test_an_attempt_without_output_has_no_line_that_another_could_repeat() -> None:
    assert failure("", 42).is_silent
    assert not failure("step 3", 42).is_silent


def test_an_option_that_getopt_refuses_is_proof_and_no_value_of_the_word_before_it() -> None:
    found = failure("sleep: unrecognized option '--a'\nTry 'sleep --help' for it.", 1, command="sleep 100 --a 1")
    assert (found.kind, found.line, found.retryable) == ("config_error", "sleep: unrecognized option '--a'", False)
    assert "value of 100" not in found.advice


def test_a_code_that_a_program_chose_itself_is_no_signal_unless_its_output_says_so() -> None:
    assert failure(FEW_STEPS, 137, is_own_code=True).kind == "other"
    assert failure(f"{FEW_STEPS}Killed", 137, is_own_code=True).kind == "killed"


@pytest.mark.parametrize(
    ("log", "exit_code", "kind", "line"),
    [
        ("./run.sh: line 3: pyhton: command not found", 127, "config_error", None),
        ("python: can't open file '/w/tain.py': [Errno 2] No such file or directory", 2, "data_error", None),
        ("bash: ./run.sh: Permission denied", 126, "data_error", None),
        ("step 8 loss 0.5", 127, "config_error", None),
        ("step 8 loss 0.5", 126, "config_error", None),
        ("step 8 loss 0.5\nConnection to lab closed.", 3, "other", "step 8 loss 0.5"),
        ("bash: ./none.sh: No such file or directory", 127, "data_error", None),
        ("/usr/bin/python: No module named trainer", 1, "import_error", None),
        ("ERROR: No matching distribution found for flash-attn==9", 1, "import_error", None),
        ("usage: t.py [-h]\nt.py: error: unrecognized arguments: -x", 2, "config_error", None),
        ("Usage: t.py LR\nbad LR", 2, "config_error", "bad LR"),
        ("ERROR: directory /d does not exist\nbye", 1, "data_error", "ERROR: directory /d does not exist"),
        ("loading\nCUDA out of memory in layer 3\nbye", 1, "oom_gpu", "CUDA out of memory in layer 3"),
        (f"{FEW_STEPS}FATAL: gave up\nmake: *** [Makefile:3: train] Error 1", 2, "other", "FATAL: gave up"),
        (f"{TRACE}ValueError: first\n{STEPS}", 1, "python_error", "ValueError: first"),
        (f"{CAUGHT}OSError: /d/7.png\n{STEPS}", 1, "other", STEPS.splitlines()[-1]),
        (f"{TRACE}ValueError: x\nSegmentation fault (core dumped)", 139, "python_error", "ValueError: x"),
        (f"{TRACE}torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", 137, "killed", None),
        ("Exception in thread T:\n" + CAUGHT + "OSError: lost", 1, "python_error", "OSError: lost"),
        ("srun: error: n1: task 0: Exited with exit code 7", 7, "other", None),
    ],
)  # fmt: skip
def test_an_exit_status_turns_a_hint_into_a_proof(log: str, exit_code: int, kind: str, line: str | None) -> None:
    found = failure(log, exit_code)
    assert (found.kind, found.line) == (kind, line or log.splitlines()[-1])


def test_an_exit_code_of_zero_leaves_only_a_divergence() -> None:
    assert diagnose_text(f"{TRACE}ValueError: x\n", 0) is None
    assert diagnose_text("Killed", 0) is None
    assert diagnose_text(STEPS, 0, oom_killed=True) is None
    assert failure("Loss is nan, stopping training", 0).kind == "divergence"
    assert failure(STEPS, 0, diverged="step 9 loss nan", diverged_number=9).line == "step 9 loss nan"


def test_divergence_seen_in_the_metrics_counts_unless_something_stronger_failed() -> None:
    metrics: dict[str, Any] = {"diverged": " step 9 loss nan ", "diverged_number": 9}
    found = failure(STEPS, None, **metrics)
    assert (found.kind, found.line, found.line_number, found.retryable) == ("divergence", "step 9 loss nan", 9, False)
    assert failure(STEPS, 1, **metrics).kind == "divergence"
    assert failure(f"{TRACE}KeyboardInterrupt", None, **metrics).kind == "killed"
    assert failure(f"{TRACE}KeyError: 'x'", 1, **metrics).kind == "python_error"
    assert failure(f"{TRACE}ValueError: Input contains NaN.", 1, **metrics).line == "ValueError: Input contains NaN."
    assert failure(f"{TRACE}ValueError: Input contains NaN.", 1, **metrics).kind == "divergence"


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        (FEW_STEPS, "oom_host"),
        (f"{FEW_STEPS}Killed", "oom_host"),
        (f"{TRACE}EOFError", "oom_host"),
        (f"{TRACE}RuntimeError: DataLoader worker (pid(s) 3) exited unexpectedly", "oom_host"),
        (f"{TRACE}ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.", "oom_host"),
        (f"{TRACE}ValueError: x", "python_error"),
    ],
)
def test_a_run_killed_by_the_oom_killer_ran_out_of_host_memory(log: str, kind: str) -> None:
    assert failure(log, 1, oom_killed=True).kind == kind
    assert failure(log, None, "SIGKILL", oom_killed=True).kind == kind


def test_an_attempt_stopped_for_a_stall_is_a_stall_unless_it_printed_its_own_error() -> None:
    found = failure(
        f"{FEW_STEPS}{TRACE}torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15",
        1,
        stopped_for="stall",
    )
    assert (found.kind, found.line, found.action) == ("stall", "step 8 loss 0.1250", "retry")
    silence = "No progress for 20 s after step 8. Last line: waits for data"
    heard = failure(FEW_STEPS, None, "SIGINT", stopped_for="stall", silence=silence)
    assert heard.line == silence, "a line of the log alone proves no stall"
    assert failure("", None, "SIGKILL", stopped_for="stall").line == "(no output)"
    assert failure(f"{TRACE}ValueError: x", None, "SIGTERM", stopped_for="stall").kind == "python_error"


def test_without_output_the_line_says_so() -> None:
    assert diagnose_text("") is None
    found = failure("", 1)
    assert (found.kind, found.line, found.line_number, found.context) == ("other", "(no output)", None, ())


@pytest.mark.parametrize(
    ("line", "retryable"),
    [
        ("slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2025-01-01T00:00:00 DUE TO TIME LIMIT ***", False),
        ("slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2025-01-01T00:00:00 ***", False),
        ("slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2025-01-01T00:00:00 DUE TO PREEMPTION ***", True),
        ("slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2025-01-01T00:00:00 DUE TO NODE FAILURE ***", True),
        ("=>> PBS: job killed: walltime 3603 exceeded limit 3600", False),
        (f"{TRACE}KeyboardInterrupt", False),
        (f"{TRACE}torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 1", True),
        (f"{TRACE}torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15", True),
        (f"{TRACE}torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 2", False),
        ("[INFO] [launch.py:328:sigkill_handler] Main process received SIGINT, exiting", False),
        ("[INFO] [launch.py:328:sigkill_handler] Main process received SIGTERM, exiting", True),
        ("Killed", True),
        ("Terminated", True),
    ],
)
def test_the_cause_of_a_kill_decides_whether_to_retry(line: str, retryable: bool) -> None:
    found = failure(FEW_STEPS + line)
    assert (found.kind, found.retryable) == ("killed", retryable)
    assert (found.action == "stop") == (not retryable)


def test_the_context_holds_the_users_last_frames_and_the_exception_without_prefixes() -> None:
    trace = [
        'File "/home/me/train.py", line 9, in <module>',
        "  main()",
        'File "/home/me/net.py", line 5, in forward',
        "  return self.lin(x)",
        'File "/opt/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 117, in forward',
        "  return F.linear(input, self.weight)",
    ]
    text = "".join(f"[rank{rank}]: {line}\n" for rank in range(8) for line in (
        "Traceback (most recent call last):", *("  " + line for line in trace), "RuntimeError: mat1 and mat2 shapes",
    ))  # fmt: skip
    found = failure(text)
    assert found.line == "[rank0]: RuntimeError: mat1 and mat2 shapes"
    assert found.context == (*("  " + line for line in trace[:4]), "RuntimeError: mat1 and mat2 shapes")


def test_the_context_of_a_statement_is_its_neighbouring_lines() -> None:
    assert failure(f"{FEW_STEPS}Killed\nbye").context == ("step 7 loss 0.1429", "step 8 loss 0.1250", "Killed", "bye")


@for_each(raised for _, raised in EXCEPTIONS)
def test_the_context_is_a_handful_of_lines_with_the_root_line_among_them(raised: str) -> None:
    found = failure(TRACE + raised)
    assert raised.strip() in found.context
    assert len(found.context) <= 6


def test_a_faulty_gpu_asks_for_another_one() -> None:
    assert failure(f"{TRACE}RuntimeError: CUDA error: uncorrectable ECC error encountered").action == "retry_other_gpu"
    assert failure(f"{TRACE}RuntimeError: CUDA error: device-side assert triggered").action == "stop"


def test_a_window_of_numbered_lines_keeps_its_numbers() -> None:
    found = diagnose([Line(1_000_003, "  a"), Line(1_000_004, "Killed")])
    assert found is not None
    assert (found.line, found.line_number) == ("Killed", 1_000_004)


# --- lines of a live run that could prove a failure


@pytest.mark.parametrize("line", [
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
    "[rank3]: ValueError: x",
    "(TaskRunner pid=7) KeyError: 'x'",
    " 3%|#| 3/100 [00:01<00:30, 3.0it/s]RuntimeError: x",
    "KeyboardInterrupt",
    "Segmentation fault (core dumped)",
    "slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2025-01-01T00:00:00 ***",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.",
    "[E ProcessGroupNCCL.cpp:828] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL() ran for 9 ms",
    "terminate called after throwing an instance of 'c10::Error'",
    "t.py: error: unrecognized arguments: -x",
    "Killed",
])  # fmt: skip
def test_a_line_that_could_be_the_proof_is_fatal(line: str) -> None:
    assert may_be_fatal(line)


@pytest.mark.parametrize("line", [
    "wandb: Network error (ReadTimeout), entering retry loop.",
    "[Rank 0] step=8, MemAllocated=11.5GB, MaxMemAllocated=12.5GB",
    "/opt/x.py:3: FutureWarning: this will raise an error in a future version.",
    "WARNING: Error in PredictCost() for the op",
    "MeanSquaredError: 0.02",
    "val_error: 0.3",
    "  File \"/opt/x.py\", line 3, in f",
    "        raise ValueError('x')",
    "        ValueError: if the path is not there",
    "UserWarning: x",
    "NCCL WARN could not close a window",
    "Exception ignored in: <function Pool.__del__ at 0x7f>",
    "step 3 loss 0.2",
    "",
])  # fmt: skip
def test_ordinary_lines_are_not_fatal(line: str) -> None:
    assert not may_be_fatal(line)


def test_every_fatal_line_holds_a_fatal_word() -> None:
    assert len(FATAL_WORDS) <= 12
    lines = [raised for _, raised in EXCEPTIONS]
    lines += [line for log in FAILED_LOGS for line in log.text.split("\n")]
    telling = [line for line in lines if parse_statement(line) or may_be_fatal(line)]
    assert len(telling) > 250
    for line in telling:
        assert not may_be_fatal(line) or any(word in line for word in FATAL_WORDS)


def test_a_divergence_says_since_which_step_and_line() -> None:
    lines = [Line(n, f"step {n} loss {0.5 if n < 9 else math.nan}") for n in range(1, 40)]
    since = ("loss has been nan in 31 readings in a row, since step 9.", lines[8].text)
    failure = diagnose(lines, 0, run_facts=RunFacts(diverged=lines[-1].text, diverged_since=since))
    assert failure is not None
    assert (failure.kind, failure.line_number) == ("divergence", 9)
    assert failure.context == ("loss has been nan in 31 readings in a row, since step 9, line 9.",)


SAYS = "raise RuntimeError('NCCL error: unhandled system error, CUDA out of memory')"


@pytest.mark.parametrize(
    ("log", "kind", "line"),
    [
        (
            f"{TRACE}    if k: {SAYS}\n          ^^^^^^^\nOutOfBudget: none left\n",
            "python_error",
            "OutOfBudget: none left",
        ),
        (
            f"{TRACE}    {SAYS}\nRuntimeError: NCCL error: unhandled 3\n",
            "nccl_error",
            "RuntimeError: NCCL error: unhandled 3",
        ),
        (f"{TRACE}    {SAYS}\nStep: 3\nLoss: 0.5\nKeyError: 'lr'\n", None, "KeyError: 'lr'"),
        (f"{TRACE}    {SAYS}\n    ~~~~~^^\n", "python_error", 'File "/home/me/train.py", line 5, in main'),
        (f"train.py:3: UserWarning: slow\n  {SAYS}\n", "other", None),
        (f"│ ❱ 12 │   {SAYS} │\nKeyError: 'lr'\n", None, "KeyError: 'lr'"),
        ("  NCCL error: unhandled system error\n", "nccl_error", "NCCL error: unhandled system error"),
    ],
)
def test_code_that_python_prints_is_no_proof_of_what_it_says(log: str, kind: str | None, line: str | None) -> None:
    found = diagnose(number_lines(log.encode()), 1)
    assert found is not None
    assert found.kind == (kind or found.kind)
    assert found.kind not in ({"nccl_error", "oom_gpu"} - {kind})
    if line is not None:
        assert found.line == line


@for_each(
    (line, logged)
    for line in (
        "GPU memory allocation failed",
        "CUDA memory allocation failure on device 0",
        "memory allocation failed on GPU 0: 12 GiB",
        "HIP: unable to allocate 2048 bytes of memory",
        "could not allocate memory on device cuda:0",
        "Failed to allocate 402653184 bytes on device 'cuda:0'",
        "Triton Error [CUDA]: out of memory",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY",
        "failed to allocate 890.06M (933298432 bytes) from device: HIP_ERROR_OutOfMemory",
        "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
        "Failed to allocate memory for requested buffer of size 2147483648 (BFCArena)",
    )
    for logged in (f"{TRACE}RuntimeError: {line}\n", f"{line}\n", f"[rank0] ERROR: {line}\n")
)
def test_gpu_memory_that_was_not_given_is_a_lack_of_it_in_whatever_words(line: str, logged: str) -> None:
    found = failure(f"Step 10: loss=1.2\n{logged}", 1)
    assert (found.kind, line in found.line) == ("oom_gpu", True)


@for_each(
    [
        "CUDA pinned memory allocation failed",
        "host memory allocation failed",
        "shared memory allocation failed on device",
        "GPU memory allocation succeeded, validation failed",
        "memory allocation failed: out of memory",
        "Out of Memory Error: failed to allocate data of size 16.0 MiB",
        "cannot allocate vector of size 7.5 Gb",
    ]
)
def test_other_memory_is_not_the_gpus(line: str) -> None:
    assert failure(f"Step 10: loss=1.2\n{TRACE}RuntimeError: {line}\n", 1).kind != "oom_gpu"
