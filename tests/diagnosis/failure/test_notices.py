"""A line about another process is quoted only where no stream names a cause; a box is one message."""

from __future__ import annotations

import pytest

from mcp_server.diagnosis.failure.diagnose import Diagnosis, diagnose
from mcp_server.text.lines import number_lines

CROSS = "\N{MULTIPLICATION SIGN}"
STEPS = "step 10 loss 2.1\nstep 11 loss 2.0\n"
DIED = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
DRIVER = 'Traceback (most recent call last):\n  File "/w/main.py", line 8, in <module>\n    ray.get(x)\n' + DIED

ACTOR = ["Traceback (most recent call last):", '  File "/w/w.py", line 9, in run', "    env.reset()", "KeyError: 'obs'"]


def diagnose_text(text: str, exit_code: int | None = None) -> Diagnosis:
    failure = diagnose(number_lines(text.encode()), exit_code)
    assert failure is not None
    return failure


@pytest.mark.parametrize("exit_code", [None, 1])
@pytest.mark.parametrize(
    ("text", "kind", "line"),
    [
        (
            f"{STEPS}(Saver pid=9) 2026-01-01 10:00:00 ERROR saver: OSError: [Errno 28] No space left on device: '/x'\n"
            "Job 'raysubmit_1' failed: Job entrypoint command failed with exit code 1\n",
            "disk_full",
            "No space left",
        ),
        (
            f"{STEPS}[rank2] ERROR: loss is nan at iteration 44, stopping\n[launcher] rank 2 exited with code 1\n",
            "divergence",
            "loss is nan",
        ),
        (
            f'{STEPS}worker-0 | Traceback (most recent call last):\nworker-0 |   File "/a/t.py", line 3, in f\n'
            "worker-0 |     raise ValueError(3)\nworker-0 | ValueError: bad shape 3\nJobSet train failed: train-0\n",
            "python_error",
            "bad shape 3",
        ),
        (f"{STEPS}{DRIVER}(A pid=77) RuntimeError: CUDA error: misaligned address\n", "cuda_error", "misaligned"),
        (
            "".join(f"(Rollout pid=31, ip=1.2.3.4) {line}\n" for line in ACTOR)
            + "".join(f"(Learner pid=32, ip=1.2.3.4) step {n} loss 0.2\n" for n in range(5))
            + DRIVER,
            "python_error",
            "KeyError: 'obs'",
        ),
        (
            "2026-11-20 03:10:44 ERROR worker 3: CUDA out of memory. Tried to allocate 2 GiB\n"
            "subprocess.CalledProcessError: Command '['torchrun', 'x.py']' returned non-zero exit status 1.\n",
            "oom_gpu",
            "CUDA out of memory",
        ),
    ],
)
def test_the_cause_in_another_stream_is_quoted_and_not_the_notice(
    text: str, kind: str, line: str, exit_code: int | None
) -> None:
    failure = diagnose_text(text, exit_code)
    assert failure.kind == kind
    assert line in failure.line


@pytest.mark.parametrize(
    "before",
    [
        "",
        STEPS,
        "(W pid=9) ERROR saver: OSError: [Errno 28] No space left on device\n"
        + "".join(f"(W pid=9) step {n} loss 2.0\n" for n in range(6)),
        "(W pid=9) ERROR shard 7: FileNotFoundError: [Errno 2] No such file or directory: 's7', skipping it\n",
    ],
)
def test_a_notice_is_quoted_where_no_cause_stands_in_the_last_lines_of_a_stream(before: str) -> None:
    failure = diagnose_text(before + DRIVER, 1)
    assert (failure.kind, failure.line) == ("ray_error", DIED.strip())


def test_a_command_that_the_program_judges_is_no_failure_of_the_run() -> None:
    log = "[swe] instance 2: command exited with code 137, reward 0\nstep 4 reward 0.33\nstep 5 reward 0.41\n"
    assert diagnose(number_lines(log.encode())) is None


def test_an_error_of_a_task_is_of_the_class_that_its_name_holds() -> None:
    head = DRIVER.replace(DIED, "ray.exceptions.RayTaskError({}): ray::go() (pid=3, ip=1.1.1.1)\n")
    frame = '  File "/w/main.py", line 4, in go\n    raise\n'
    for name, line, kind in [
        ("CustomBudget", "mypkg.errors.CustomBudget: out of budget 5", "python_error"),
        ("gaierror", "socket.gaierror: [Errno -2] Name or service not known", "network_error"),
        ("ArrowInvalid", "pyarrow.lib.ArrowInvalid: Not a Parquet file", "data_error"),
    ]:
        failure = diagnose_text(head.format(name) + frame + line + "\n")
        assert (failure.kind, failure.line) == (kind, line)
    assert diagnose_text(head.format("BadZipFile")).kind == "data_error"  # the log ends there


@pytest.mark.parametrize(
    ("text", "kind", "line"),
    [
        (
            f"  {CROSS} Failed to fetch `https://x.org/simple/torch/`\n  ├─▶ Request failed after 3 retries\n"
            "  ╰─▶ dns error: failed to lookup address: Temporary failure in name resolution\n",
            "network_error",
            f"{CROSS} Failed to fetch `https://x.org/simple/torch/`",
        ),
        (
            f"  {CROSS} Failed to build `apex==0.1`\n  ╰─▶ Call to `build_wheel` failed (exit status: 1)\n\n"
            "      [stderr]\n      ModuleNotFoundError: No module named 'torch'\n",
            "import_error",
            f"{CROSS} Failed to build `apex==0.1`",
        ),
        (
            "PackagesNotFoundError: The following packages are not available from current channels:\n\n  - foo=9\n",
            "import_error",
            "PackagesNotFoundError: The following packages are not available from current channels:",
        ),
        (
            "thread 'main' panicked at src/main.rs:4:7:\ncalled `Result::unwrap()` on an `Err` value: Os { code: 28, "
            'kind: StorageFull, message: "No space left on device" }\n',
            "disk_full",
            "called `Result::unwrap()` on an `Err` value: Os { code: 28, kind: StorageFull, message: "
            '"No space left on device" }',
        ),
        (
            "panic: runtime error: integer divide by zero\n\ngoroutine 1 [running]:\nmain.main()\n",
            "python_error",
            "panic: runtime error: integer divide by zero",
        ),
    ],
)
def test_the_head_of_a_box_or_the_message_of_a_panic_is_quoted(text: str, kind: str, line: str) -> None:
    failure = diagnose_text(STEPS + text, 1)
    assert (failure.kind, failure.line) == (kind, line)
