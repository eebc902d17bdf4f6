"""The experiment log: the exact command of each launch, one entry for each end, and a person's text untouched."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcp_server.record.results.experiment_log import ResultDirUnusable, append_launch, write_end
from mcp_server.record.results.result_page import EXPERIMENT_LOG
from mcp_server.record.run_directory import RunDir
from mcp_server.record.spec import RunSpec

FAILED: dict[str, Any] = {
    "state": "failed",
    "text": "failed: exit code 1.",
    "failure": None,
    "attempts": 2,
    "elapsed_s": 1.0,
}


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "runs" / "cfm-7kqz")


def spec(run_id: str = "lora-7kqz", command: str = "python train.py") -> RunSpec:
    return RunSpec(run_id=run_id, command=command, cwd="/data/code", host="gpu4", created_at="2026-11-21T15:30:45.123Z")


def test_the_log_has_the_exact_command_before_anything_runs(tmp_path: Path) -> None:
    results = tmp_path / "a" / "results"
    launched = replace(spec(command="python train.py --name 'a ``` b'"), blueprint=f"{tmp_path}/b.md")
    append_launch(results, launched)
    text = (results / EXPERIMENT_LOG).read_text()
    assert text.startswith(
        "# Experiment log\n\n## Launch of lora-7kqz\n<!-- runward launch of lora-7kqz -->\n\n"
        "````bash\npython train.py --name 'a ``` b'\n````\n\n- run: lora-7kqz\n"
    )
    for line in (
        "launched: 2026-11-21T15:30:45.123Z",
        "host: gpu4",
        "directory: /data/code",
        f"blueprint: {tmp_path}/b.md",
    ):
        assert f"- {line}\n" in text
    assert "exec python train.py --name 'a ``` b'\n````\n" in text


def test_the_command_has_its_parameters_and_no_secret(tmp_path: Path) -> None:
    command = "python train.py {params} --api-key abcdef123456 | tee x"
    append_launch(tmp_path, replace(spec(command=command), params={"num_envs": 8192, "note": "a b"}))
    text = (tmp_path / EXPERIMENT_LOG).read_text()
    assert "```bash\npython train.py --num_envs 8192 --note 'a b' --api-key [masked] | tee x\n```\n" in text
    assert "abcdef123456" not in text


@pytest.mark.parametrize("text", [None, "# Mine\n", "## Launch of cfm-7kqz\n\nI write about it.\n"])
def test_an_end_without_the_entry_of_its_launch_has_the_command_first(
    rundir: RunDir, tmp_path: Path, text: str | None
) -> None:
    log = tmp_path / EXPERIMENT_LOG
    if text is not None:
        log.write_text(text)
    launched = {**spec("cfm-7kqz").facts(), "result_dir": str(tmp_path)}
    for _ in range(2):
        assert write_end(launched, rundir, **FAILED) is None
    text_after = log.read_text()
    assert text_after.startswith(text or "# Experiment log\n")
    assert text_after.count("<!-- runward launch of cfm-7kqz -->\n\n```bash\npython train.py\n```\n") == 1
    assert text_after.index("<!-- runward launch of") < text_after.index("## End of cfm-7kqz")


def test_a_launch_of_a_former_version_is_not_repeated(rundir: RunDir, tmp_path: Path) -> None:
    log = tmp_path / EXPERIMENT_LOG
    log.write_text("# Experiment log\n\n## Launch of cfm-7kqz\n\n- run: cfm-7kqz\n- started: now\n")
    assert write_end({**spec("cfm-7kqz").facts(), "result_dir": str(tmp_path)}, rundir, **FAILED) is None
    assert log.read_text().count("Launch of") == 1


def test_a_log_keeps_earlier_launches_and_a_persons_text(tmp_path: Path) -> None:
    log = tmp_path / EXPERIMENT_LOG
    log.write_text("my own words")
    append_launch(tmp_path, spec("first-1"))
    append_launch(tmp_path, spec("second-2"))
    text = log.read_text()
    assert text.startswith("my own words\n\n## Launch of first-1\n")
    assert text.count("## Launch of") == 2


def test_a_log_that_is_not_a_regular_file_is_refused(tmp_path: Path) -> None:
    for name in ("fifo", "link", "directory"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "fifo" / EXPERIMENT_LOG)
    (tmp_path / "link" / EXPERIMENT_LOG).symlink_to(tmp_path / "target")
    (tmp_path / "directory" / EXPERIMENT_LOG).mkdir()
    (tmp_path / "file").touch()
    for place in (tmp_path / "fifo", tmp_path / "link", tmp_path / "directory", tmp_path / "file"):
        with pytest.raises(ResultDirUnusable, match="Nothing was started"):
            append_launch(place, spec())
    assert not (tmp_path / "target").exists()


def test_an_entry_that_does_not_fit_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append_launch(tmp_path / "old", spec())
    before = (tmp_path / "old" / EXPERIMENT_LOG).read_bytes()
    whole = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: whole(fd, data[:20]))
    for place in ("old", "new"):
        with pytest.raises(ResultDirUnusable, match="No space left"):
            append_launch(tmp_path / place, spec())
    assert (tmp_path / "old" / EXPERIMENT_LOG).read_bytes() == before
    assert list((tmp_path / "new").iterdir()) == []


def test_a_launch_whose_old_flag_cannot_be_removed_leaves_no_entry(tmp_path: Path) -> None:
    (tmp_path / "finish.flag").mkdir()
    with pytest.raises(ResultDirUnusable, match=r"an old finish\.flag cannot be removed"):
        append_launch(tmp_path, spec())
    assert [path.name for path in tmp_path.iterdir()] == ["finish.flag"]
    (tmp_path / EXPERIMENT_LOG).write_text("mine\n")
    with pytest.raises(ResultDirUnusable):
        append_launch(tmp_path, spec())
    assert (tmp_path / EXPERIMENT_LOG).read_text() == "mine\n"
