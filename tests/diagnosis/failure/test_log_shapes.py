"""A traceback is read behind any prefix, from interleaved ranks, and out of a logger's JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import product, zip_longest

import pytest

from mcp_server.diagnosis.failure.diagnose import Diagnosis, RunFacts, diagnose
from mcp_server.diagnosis.live.output_monitor import OutputMonitor
from mcp_server.text.lines import number_lines
from tests.support.rows import for_each

MAIN = """Traceback (most recent call last):
  File "/home/me/train.py", line 88, in <module>
    main()
  File "/home/me/train.py", line 61, in main
    {}
"""
ERRORS = {
    "oom_gpu": MAIN.format("loss.backward()")
    + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB",
    "import_error": MAIN.format("import flash_attn") + "ModuleNotFoundError: No module named 'flash_attn'",
    "data_error": MAIN.format("state = torch.load(path)")
    + "FileNotFoundError: [Errno 2] No such file or directory: '/ckpt/last.pt'",
    "python_error": MAIN.format("batch['labels']").replace("train.py", "batch.py")
    + "KeyError: 'labels'\n\nDuring handling of the above exception, another exception occurred:\n\n"
    + MAIN.format("raise RuntimeError('batch without labels') from None")
    + "RuntimeError: batch without labels",
    "config_error": MAIN.format("cfg.optim.lrr")
    + "omegaconf.errors.ConfigAttributeError: Key 'lrr' is not in struct\n    full_key: optim.lrr",
    "cuda_error": MAIN.format("y = model(x)")
    + "RuntimeError: CUDA error: device-side assert triggered\n"
    + "CUDA kernel errors might be asynchronously reported at some other API call.\n"
    + "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
}
ROOTS = {
    "oom_gpu": "torch.OutOfMemoryError: CUDA out of memory.",
    "import_error": "ModuleNotFoundError: No module named 'flash_attn'",
    "data_error": "FileNotFoundError: [Errno 2] No such file or directory: '/ckpt/last.pt'",
    "python_error": "RuntimeError: batch without labels",
    "config_error": "omegaconf.errors.ConfigAttributeError: Key 'lrr' is not in struct",
    "cuda_error": "RuntimeError: CUDA error: device-side assert triggered",
}
PREFIXES: dict[str, Callable[[int], str]] = {
    "torchrun rank": lambda n: "[rank1]: ",
    "torchrun default": lambda n: "[default0]:",
    "torchrun role and rank": lambda n: "[trainer0]:[rank1]: ",
    "role": lambda n: "[trainer3]:",
    "Rank": lambda n: "[Rank 3] ",
    "rank colon": lambda n: "rank 3: ",
    "rank dash": lambda n: "rank-3> ",
    "index": lambda n: "[0] ",
    "index colon": lambda n: "[0]: ",
    "node": lambda n: "node3 | ",
    "node in brackets": lambda n: "[node-03.cluster] ",
    "slurm label": lambda n: "0: ",
    "slurm label, wide": lambda n: " 3: ",
    "docker compose": lambda n: "svc-1  | ",
    "docker compose, names": lambda n: "trainer-worker-1  | ",
    "mpirun": lambda n: "[1,3]<stderr>:",
    "Ray": lambda n: "(pid=1234, ip=10.0.0.7) ",
    "Ray actor": lambda n: "(WorkerDict pid=1234, ip=10.0.0.7) ",
    "pid": lambda n: "[pid 4117] ",
    "time": lambda n: f"2025-03-01 10:00:{n % 60:02d},{n * 37 % 1000:03d} ",
    "time of day": lambda n: f"[10:00:{n % 60:02d}] ",
    "seconds": lambda n: f"[{n / 7:10.3f}] ",
    "loguru": lambda n: f"2025-03-01 10:00:{n % 60:02d}.{n * 37 % 1000:03d} | ERROR    | __main__:main:88 - ",
    "asctime": lambda n: f"2025-03-01 10:00:{n % 60:02d},{n * 37 % 1000:03d} - trainer - ERROR - ",
    "level and name": lambda n: "ERROR:trainer.loop:",
    "kubernetes": lambda n: f"2025-03-01T10:00:{n % 60:02d}.{n * 7919 % 10**9:09d}Z stderr F ",
    "syslog": lambda n: f"Mar  1 10:00:{n % 60:02d} gpu07 train[4117]: ",
    "counted lines": lambda n: f"{n:06d}| ",
    "time and rank": lambda n: f"10:00:{n % 60:02d} rank=2 INFO ",
}  # fmt: skip


def failure(text: str, exit_code: int | None = None) -> Diagnosis:
    found = diagnose(number_lines(text.encode()), exit_code)
    assert found is not None
    return found


def read_live(log: str) -> Iterator[str | None]:
    """Yield the line that a monitor suspects, where the log arrives at once and line by line."""
    for pieces in ([f"{log}\n".encode()], [f"{line}\n".encode() for line in log.split("\n")]):
        monitor = OutputMonitor({}, started_s=0)
        for at_s, piece in enumerate(pieces, 1):
            monitor.read_output(piece, at_s)
        yield monitor.suspect.line if monitor.suspect else None


@pytest.mark.slow
@for_each(product(PREFIXES, ERRORS))
def test_a_prefix_is_learned_from_the_header_of_the_traceback(name: str, kind: str) -> None:
    steps = [f"step {n} loss {9 / n:.3f}" for n in range(1, 30)]
    lines = [*steps, *ERRORS[kind].split("\n")]
    log = "\n".join(PREFIXES[name](n) + line for n, line in enumerate(lines))
    for found in (failure(log), failure(log, 1)):
        assert found.kind == kind
        assert ROOTS[kind] in found.line
    for live in read_live(log):
        assert live is not None, "the run may go on for hours"
        assert ROOTS[kind] in live or "KeyError: 'labels'" in live


@pytest.mark.parametrize("prefix", ["[Rank {}] ", "rank {}: ", "node{} | ", "[trainer{}]:[rank{}]: ", "10:00:07 [{}] "])
def test_the_traceback_of_the_first_failing_rank_is_put_together(prefix: str) -> None:
    first = ERRORS["data_error"].split("\n")
    second = (MAIN.format("dist.barrier()") + "RuntimeError: [1] is setting up NCCL communicator").split("\n")
    mixed = []
    for ours, theirs in zip_longest(first, ["", *second]):
        mixed += [prefix.format(2, 2) + ours] if ours is not None else []
        mixed += [prefix.format(1, 1) + theirs] if theirs else []
    found = failure("\n".join(mixed))
    assert (found.kind, ROOTS["data_error"] in found.line) == ("data_error", True)
    assert "torch.load" in " ".join(found.context)


@pytest.mark.parametrize("field", ["exc_info", "stack", "error", "exception", "message"])
@pytest.mark.parametrize("kind", ERRORS)
def test_a_traceback_in_a_field_of_json_is_read(field: str, kind: str) -> None:
    lines = [json.dumps({"level": "info", "step": n, "loss": 1 / n}) for n in range(1, 9)]
    lines.append(json.dumps({"ts": "2025-03-01T10:00:00Z", "level": "error", "a": 'b "c" \\', field: ERRORS[kind]}))
    found = failure("\n".join(lines))
    assert (found.kind, found.line_number) == (kind, 9)
    assert found.line.startswith(ROOTS[kind])


def test_a_long_traceback_in_json_is_read_to_its_end() -> None:
    frames = "".join(f'  File "/lib/torch/nn/module.py", line {n}, in forward\n    return x\n' for n in range(200))
    raised = f"Traceback (most recent call last):\n{frames}ValueError: bad batch"
    log = json.dumps({"level": "error", "exc_info": raised})
    assert failure(log).line == "ValueError: bad batch"
    assert None not in list(read_live(log))


def test_an_exception_in_a_field_of_json_is_read_where_the_level_is_error() -> None:
    lines = [json.dumps({"level": level, "error": "ValueError: bad batch"}) for level in ("warning", "error")]
    assert failure("\n".join(lines), 1).line == "ValueError: bad batch"
    assert diagnose(number_lines(lines[0].encode())) is None


GROUP = """step 1 loss 2
  + Exception Group Traceback (most recent call last):
  |   File "/home/me/train.py", line 12, in <module>
  |     asyncio.run(main())
  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/home/me/train.py", line 5, in work
    |     read(path)
    | FileNotFoundError: [Errno 2] No such file or directory: '/d/x.pt'
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "/home/me/train.py", line 7, in other
    |     raise ValueError("late")
    | ValueError: late
    +------------------------------------
"""


@pytest.mark.parametrize("prefix", ["", "node3 | ", "[rank0]: ", "2025-03-01 10:00:01 ERROR "])
def test_the_first_exception_of_a_group_is_the_cause(prefix: str) -> None:
    log = "".join(f"{prefix}{line}\n" for line in GROUP.splitlines())
    for found in (failure(log), failure(log, 1)):
        assert (found.kind, found.line_number) == ("data_error", 10)
        assert found.line.endswith("FileNotFoundError: [Errno 2] No such file or directory: '/d/x.pt'")
    assert all(live is not None and "FileNotFoundError" in live for live in read_live(log))


STEPS = "".join(f"step {n} loss {9 / n:.3f}\n" for n in range(1, 60))
DEAD_THREAD = """Exception in thread prefetch-0:
Traceback (most recent call last):
  File "/usr/lib/python3.11/threading.py", line 1045, in _bootstrap_inner
    self.run()
  File "/home/me/data.py", line 40, in _fill
    self.queue.put(read(path))
FileNotFoundError: [Errno 2] No such file or directory: '/data/shard-7.tar'
"""


@pytest.mark.parametrize(
    "end", ["_queue.Empty", "queue.Empty", "TimeoutError: no batch for 300 s", "RuntimeError: prefetch thread died"]
)
def test_a_loop_that_starves_was_ended_by_the_exception_of_its_thread(end: str) -> None:
    found = failure(STEPS + DEAD_THREAD + STEPS + MAIN.format("batch = queue.get(timeout=300)") + end, 1)
    assert (found.kind, "/data/shard-7.tar" in found.line) == ("data_error", True)


def test_a_stall_after_the_exception_of_a_thread_is_that_exception_and_nothing_where_the_run_goes_on() -> None:
    lines = number_lines((STEPS + DEAD_THREAD + STEPS).encode())
    stalled = diagnose(lines, None, "SIGKILL", RunFacts(stopped_for="stall"))
    assert stalled is not None
    assert stalled.line.startswith("FileNotFoundError")
    later = number_lines((DEAD_THREAD + STEPS * 9).encode())
    long_after = diagnose(later, None, "SIGKILL", RunFacts(stopped_for="stall"))
    assert long_after is not None
    assert long_after.kind == "stall"
    assert diagnose(lines) is None
    assert diagnose(lines, 0) is None
