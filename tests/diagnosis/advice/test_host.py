"""Advice is checked on this host where that costs nothing, and points at the server, command or hint of the line."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcp_server.diagnosis.advice.blocks import Scene
from mcp_server.diagnosis.advice.next_action import propose_next_step
from mcp_server.diagnosis.log_file import examine_log


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A short one: advice has 160 characters."""
    with tempfile.TemporaryDirectory(prefix="h") as directory:
        yield Path(directory).resolve()


def advise(kind: str, line: str, **facts: str) -> str:
    return propose_next_step(Scene(kind, line, message=line, **facts)).advice


def test_a_missing_module_that_the_program_has_wants_a_path_and_no_package(tmp_path: Path) -> None:
    line = "ModuleNotFoundError: No module named 'models'"
    assert "the program's own" not in advise("import_error", line, cwd=str(tmp_path))
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "weights.json").touch()  # a directory of data is no package
    assert "the program's own" not in advise("import_error", line, cwd=str(tmp_path))
    (tmp_path / "models" / "net.py").touch()
    assert f"set PYTHONPATH={tmp_path}" in advise("import_error", line, cwd=str(tmp_path))
    assert "the program's own" not in advise("import_error", line)  # the log of another host


def test_a_missing_file_is_compared_with_its_neighbours(tmp_path: Path) -> None:
    line = "python: can't open file '{}': [Errno 2] No such file or directory"
    (tmp_path / "train.py").touch()
    advice = advise("data_error", line.format(tmp_path / "trian.py"), cwd=str(tmp_path))
    assert "beside it is train.py" in advice
    advice = advise("data_error", line.format(tmp_path / "scripts" / "deep" / "a.py"), cwd=str(tmp_path))
    assert advice.startswith(f"{tmp_path}/scripts does not exist")


def test_the_mount_that_is_full_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"OSError: [Errno 28] No space left on device: '{tmp_path}/ckpt.pt'"
    free = os.statvfs(tmp_path)
    full = os.statvfs_result((free.f_bsize, 4096, 2**30, 100, 100, *free[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    mount = next(str(each) for each in (tmp_path, *tmp_path.parents) if os.path.ismount(each))
    assert f"{mount} has" in advise("disk_full", line, cwd=str(tmp_path))
    monkeypatch.undo()
    roomy = os.statvfs_result((free.f_bsize, 4096, 2**30, 2**29, 2**29, *free[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: roomy)
    assert " has " not in advise("disk_full", line, cwd=str(tmp_path))


def test_a_host_without_a_driver_is_called_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "RuntimeError: Found no NVIDIA driver on your system."
    monkeypatch.setattr("mcp_server.diagnosis.advice.next_action._DRIVERS", (str(tmp_path / "version"),))
    assert "This host has no NVIDIA driver" in advise("cuda_error", line, cwd=str(tmp_path))
    (tmp_path / "version").touch()
    assert "This host has no" not in advise("cuda_error", line, cwd=str(tmp_path))


@pytest.mark.parametrize("given", ["--dataset coco2", "--dataset=coco2", "data.name=coco2", "+data.name='coco2'"])
def test_a_refused_value_of_the_command_is_corrected_there(given: str) -> None:
    line = "ValueError: no such data set: 'coco2'"
    advice = advise("python_error", line, log=f"python train.py {given} --lr 1\nstep 1", place="src/data.py:3 in load")
    assert "coco2 is the value of " in advice
    assert "in the command" in advice
    assert "src/data.py" not in advice


@pytest.mark.parametrize(
    ("kind", "line", "near", "said"),
    [
        (
            "network_error",
            "HTTPError: 503 Server Error: x for url: http://127.0.0.1:9000/v1",
            "",
            "127.0.0.1:9000 answers 503",
        ),
        (
            "python_error",
            "Exception: Request failed: 500, at http://localhost:8000/infer",
            "",
            "localhost:8000 answers 500",
        ),
        (
            "network_error",
            "ConnectError: Error 111 connecting to localhost:7000. Connection refused.",
            "",
            "Nothing answers at",
        ),
        (
            "network_error",
            "openai.InternalServerError: Error code: 502 - {}",
            'POST http://10.3.0.7:8001/v1 "HTTP/1.1 502 Bad Gateway"',
            "10.3.0.7:8001 answers 502",
        ),
    ],
)
def test_a_server_of_the_users_own_is_blamed_and_not_the_network(kind: str, line: str, near: str, said: str) -> None:
    step = propose_next_step(Scene(kind, line, near=near, message=line))
    assert said in step.advice
    assert "own output" in step.advice
    assert step.action == "retry_later"


def test_a_server_of_somebody_else_is_not() -> None:
    for line in ("HTTPError: 503 Server Error: x for url: https://huggingface.co/api", "X: Error code: 500 - {}"):
        assert "own output" not in advise("network_error", line)


def test_a_hint_of_the_program_is_quoted_whole() -> None:
    hint = "pip install -U 'jsonargparse[signatures]>=4.27.7'"
    line = f"ModuleNotFoundError: Requirement 'jsonargparse[signatures]>=4.27.7' not met. HINT: Try running `{hint}`"
    assert hint in advise("import_error", line)
    assert "--lr" in advise("config_error", "No such option: --lrate Did you mean --lr?", near="Usage: x\n--lrate")


def test_the_learning_rate_is_cleared_only_where_the_first_of_all_steps_is_nan() -> None:
    facts = {"near": "The loss is nan, since step 1."}
    assert "not the cause" in propose_next_step(Scene("divergence", "x", **facts)).advice
    for log in ("epoch 1 step 900 loss 2.31", "Resuming from out/last.ckpt"):
        assert "not the cause" not in propose_next_step(Scene("divergence", "x", log=log, **facts)).advice


def test_diagnose_looks_at_this_host_where_the_log_is_of_a_program_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, work = tmp_path / "train.log", tmp_path / "work"
    (work / "ops").mkdir(parents=True)
    for name in ("train.py", "ops/knn.py"):
        (work / name).touch()
    frame = f'  File "{work}/train.py", line 1, in <module>\n    import ops\n'
    log.write_text(f"Traceback (most recent call last):\n{frame}ModuleNotFoundError: No module named 'ops'\n")
    for where in (tmp_path, work, work / "ops"):
        monkeypatch.chdir(where)
        failure = examine_log(log, 1, cwd=None).failure
        assert failure is not None
        assert ("the program's own" in failure.advice) == (where == work)
    assert examine_log(log, 1).failure != examine_log(log, 1, cwd=str(work)).failure
