"""The results document of a run is complete, updated, keeps a person's part, has no secrets; the flag is last."""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mcp_server.errors import BadArgument
from mcp_server.record.results.notes import NOTES, append_note
from mcp_server.record.results.result_page import ADDITIONS_MARK, origin_line
from mcp_server.record.run_directory import RunDir
from mcp_server.results.finish import NotFinished, describe_finding, write_results
from mcp_server.results.outcome_answers import Finished
from mcp_server.system.git_state import read_git_state
from mcp_server.system.lock_files import take_lock
from mcp_server.text.secret_patterns import MASKED
from tests.support.ended_runs import BEGAN_S, Runs

FAILURE = {"kind": "oom_gpu", "line": "CUDA out of memory", "line_number": 812, "advice": "Halve the batch."}
ENVIRON = {"PATH": os.environ["PATH"], "WANDB_API_KEY": "hunter2-hunter2", "HOME": "/nonexistent"}
CURVES = "step,reward,loss,lr\n" + "".join(f"{n},{n % 7},{10 - n},0.001\n" for n in range(10))


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (BEGAN_S + 60,) * 2)


def done(runs: Runs, run_id: str = "cfm-7kqz", **arguments: Any) -> Finished:
    store = runs.store
    options = {"result_dir": str(runs.path / "out"), "environ": ENVIRON, **arguments}
    return write_results(store.observe(run_id), store, runs.scalars, **options)


def git(directory: Path, *words: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *who, *words], cwd=directory, check=True, capture_output=True)


def test_the_document_has_every_part(runs: Runs, tmp_path: Path) -> None:
    blueprint = tmp_path / "blueprint.md"
    blueprint.write_text("# [exp_purpose]\nDoes a smaller step help?\n\n# [exp_yaml_path]\nconf/cfm.yaml\n")
    gpus = {"GPU-1": {"peak_mib": 40536, "mean_util": 71.5}}
    cwd = runs.add(
        state="failed",
        failure=FAILURE,
        progress={"step": 9, "gpus": gpus},
        blueprint=str(blueprint),
        params={"lr": 0.1},
    )
    put(cwd / "progress.csv", CURVES)
    put(cwd / "out/checkpoint-500/model.safetensors", "x" * 2048)
    put(cwd / "eval.md", "| task | mean_reward |\n| --- | --- |\n| a | 0.5 |\n| b | 0.25 |\n")
    put(cwd / "conf/cfm.yaml", "lr: 0.1\nmax_tokens: 512\n")
    put(cwd / "uv.lock", "version = 1\n")
    answer = done(runs, summary="# It helps\nA little.")
    text = Path(answer.results_path).read_text()
    for part in (
        "# Results: Does a smaller step help?",
        "## Summary\n\n### It helps\nA little.",
        "**failed**",
        "- Took: 1:02:03",
        "- Failure: oom_gpu (line 812 of the log): `CUDA out of memory`",
        "- Advice: Halve the batch.",
        "| reward | 0 (0) | 2 (9) | 6 (6) | max |  |",
        "| loss | 10 (0) | 1 (9) | 1 (9) | min |  |",
        "| lr | 0.001 (0) | 0.001 (9) | 0.001 to 0.001 | range |  |",
        "| a | 0.5 |\n| b | 0.25 |",
        f"| `{cwd}/out/checkpoint-500` | 500 |  | 2 KiB |",
        "```bash\npython train.py --lr 1e-4 --lr 0.1\n```",
        '- Parameters: `{"lr": 0.1}`',
        f"`{cwd}/conf/cfm.yaml`, as it is now:\n\n```yaml\nlr: 0.1\nmax_tokens: 512\n```",
        "- `GPU-1`: peak memory 40536 MiB, mean utilisation 71.5 %",
        f"- Packages: `{cwd}/uv.lock`, sha256 ",
        "The state of the code is unknown: not a git repository",
    ):
        assert part in text
    assert answer.status == "written"
    assert [Path(one).name for one in answer.files] == ["experiment_log.md", "results.md", "finish.flag"]
    flag = json.loads(Path(answer.flag_path or "").read_text())
    assert (flag["run_id"], flag["state"], flag["ended_at"]) == ("cfm-7kqz", "failed", "2026-11-21T16:32:03.000Z")
    assert (flag["failure"], flag["results"]) == ("oom_gpu", "results.md")


@pytest.mark.parametrize(("known", "told"), [({"step": 9}, "at step 9 of 50."), ({}, "at step 9.")])
def test_a_step_has_its_total_where_the_output_counts_the_same(runs: Runs, known: dict[str, int], told: str) -> None:
    cwd = runs.add(state="killed", progress={**known, "total_steps": 50})
    put(cwd / "progress.csv", CURVES)
    assert told in Path(done(runs).results_path).read_text()


def test_a_run_that_left_nothing_has_a_document_too(runs: Runs) -> None:
    runs.add()
    text = Path(done(runs).results_path).read_text()
    for part in ("None seen: looked below", "**finished**"):
        assert part in text


def test_a_lost_run_is_finished_without_inventing_an_end(runs: Runs) -> None:
    runs.add(state=None)
    answer = done(runs)
    assert answer.state == "lost"
    flag = json.loads(Path(answer.flag_path or "").read_text())
    assert (flag["state"], flag["ended_at"], "exit_code" in flag) == ("lost", None, False)
    assert "Its supervisor is gone and wrote no end" in Path(answer.results_path).read_text()


def test_a_second_call_updates_the_document_and_keeps_a_persons_part(runs: Runs) -> None:
    cwd = runs.add()
    first = done(runs, summary="first")
    path = Path(first.results_path)
    path.write_text(path.read_text() + "\nMy own remarks: hunter2-hunter2\n")
    put(cwd / "metrics.json", '{"mean_reward": 0.75}')
    second = done(runs, summary="second")
    text = path.read_text()
    assert second.files == first.files
    assert "second" in text
    assert "first" not in text.replace("first (step)", "")
    assert "| mean_reward | 0.75 |" in text
    assert text.count(ADDITIONS_MARK) == 1
    assert text.endswith(f"{ADDITIONS_MARK}\n\nMy own remarks: hunter2-hunter2\n")
    done(runs)
    assert path.read_text().endswith(f"{ADDITIONS_MARK}\n\nMy own remarks: hunter2-hunter2\n")
    assert (path.parent / "experiment_log.md").read_text().count("## End of cfm-7kqz") == 1


def test_recorded_figures_are_never_replaced_by_nothing(runs: Runs) -> None:
    cwd = runs.add(command="python train.py --output_dir out")
    put(cwd / "metrics.json", '{"mean_reward": 0.75}')
    put(cwd / "out/checkpoint-500/model.safetensors", "x" * 2048)
    first = Path(done(runs).results_path).read_text()
    (cwd / "metrics.json").unlink()
    (cwd / "out/checkpoint-500/model.safetensors").unlink()
    for _ in range(2):  # a third call keeps them as well
        answer = done(runs)
        text = Path(answer.results_path).read_text()
        for part in ("| mean_reward | 0.75 |", f"| `{cwd}/out/checkpoint-500` | 500 |"):
            assert part in first
            assert text.count(part) == 1
        assert "Evaluations and Checkpoints as an earlier call recorded them: their files are not found now." in (
            answer.notes or []
        )


def test_a_summary_stays_until_another_is_given(runs: Runs) -> None:
    runs.add()
    summary = "# It helps\n\nA little:\n\n```bash\n# as before\n```\n\n## Why\nUnknown."
    first = Path(done(runs, summary=summary).results_path).read_text()
    assert "### It helps" in first
    assert Path(done(runs).results_path).read_text() == first
    assert "It helps" not in Path(done(runs, summary="It does not.").results_path).read_text()


def test_several_callers_at_once_leave_one_document_and_one_note(runs: Runs) -> None:
    runs.add()
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: done(runs, summary="x"), range(12)))
    assert {answer.status for answer in answers} == {"written"}
    assert (runs.path / "out" / "experiment_log.md").read_text().count("## End of") == 1
    assert sorted(path.name for path in (runs.path / "out").iterdir()) == [
        "experiment_log.md",
        "finish.flag",
        "results.md",
    ]


def test_the_document_names_the_python_and_a_changed_blueprint(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "pyvenv.cfg").write_text("version = 3.11.7\n")
    blueprint = tmp_path / "blueprint.md"
    runs.add(blueprint=str(blueprint), env={"VIRTUAL_ENV": f"{tmp_path}/venv"})
    text = Path(done(runs).results_path).read_text()
    assert f"- Python: `{tmp_path}/venv/bin/python`, 3.11.7" in text
    assert f"- {blueprint} no longer exists." in text
    blueprint.write_text("# [exp_purpose]\nAnother\n")
    assert f"- {blueprint} was changed after the run's start" in Path(done(runs).results_path).read_text()


def test_plain_results_of_the_supervisor_are_replaced_and_a_persons_are_not(runs: Runs, tmp_path: Path) -> None:
    runs.add()
    results = tmp_path / "out" / "results.md"
    put(results, origin_line("cfm-7kqz", "the supervisor") + "\nfew words\n")
    assert done(runs).results_path == str(results)
    assert "few words" not in results.read_text()
    put(results, "A person wrote this.\n")
    answer = done(runs)
    assert results.read_text() == "A person wrote this.\n"
    assert answer.results_path == str(tmp_path / "out" / "results-cfm-7kqz.md")
    assert "results.md was written by a person and was not changed." in (answer.notes or [])


def test_an_older_run_leaves_the_flag_and_results_of_a_newer_one(runs: Runs, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    runs.add("old-aaaa", result_dir=out)
    runs.add("new-aaaa", created_at="2026-11-21T15:40:00.000Z", result_dir=out)
    newer = done(runs, "new-aaaa")
    before = Path(newer.results_path).read_text(), Path(newer.flag_path or "").read_text()
    older = done(runs, "old-aaaa")
    assert older.flag_path is None
    assert older.results_path == f"{out}/results-old-aaaa.md"
    assert (Path(newer.results_path).read_text(), Path(newer.flag_path or "").read_text()) == before


def test_a_finding_names_the_document_that_is_the_runs_own(runs: Runs, tmp_path: Path) -> None:
    out = tmp_path / "out"
    runs.add("old-aaaa", result_dir=str(out))
    done(runs, "old-aaaa", summary="One seed.")
    runs.add("new-aaaa", created_at="2026-11-21T15:40:00.000Z", result_dir=str(out))
    done(runs, "new-aaaa", summary="Two seeds.")

    def find(run_id: str) -> str | None:
        return describe_finding(runs.store.observe(run_id), runs.store.run_directory(run_id), with_page=False)

    assert find("old-aaaa") == f"old-aaaa: One seed. | {out}/results-old-aaaa.md"
    assert find("new-aaaa") == f"new-aaaa: Two seeds. | {out}/results.md"
    (out / "results-old-aaaa.md").unlink()
    assert find("old-aaaa") == "old-aaaa: One seed."


def test_a_verdict_stands_in_the_document_and_a_conclusion_is_told_once(runs: Runs, tmp_path: Path) -> None:
    runs.add(result_dir=str(tmp_path / "out"))
    finished = done(runs, summary="It learned.", verdict="keep")
    assert "## Summary\n\nIt learned.\n\n## Verdict\n\n**keep**" in Path(finished.results_path).read_text()
    record = runs.store.run_directory("cfm-7kqz")
    append_note(record.path / NOTES, {"by": "ada", "verdict": "keep", "text": "It learned."})
    found = describe_finding(runs.store.observe("cfm-7kqz"), record, with_page=False)
    assert found == f"cfm-7kqz: keep: It learned. (ada) | {finished.results_path}"
    assert "**keep**" in Path(done(runs, summary=None).results_path).read_text(), "a second call keeps it"


def test_a_live_run_is_refused(runs: Runs, tmp_path: Path) -> None:
    runs.add(state=None)
    lock = take_lock(RunDir(runs.home.runs / "cfm-7kqz").lock)
    assert lock is not None
    with pytest.raises(NotFinished, match=r"still running; nothing was written. Call wait_run"):
        done(runs)
    os.close(lock)
    assert not (tmp_path / "out").exists()


def test_the_results_of_a_run_of_no_blueprint_are_in_its_record(runs: Runs) -> None:
    runs.add()
    finished = done(runs, result_dir=None, summary="It learned.")
    record = runs.store.run_directory("cfm-7kqz")
    assert finished.results_path == str(record.path / "results" / "results.md")
    assert "It learned." in Path(finished.results_path).read_text()
    run = runs.store.observe("cfm-7kqz")
    assert describe_finding(run, record, with_page=False) == f"cfm-7kqz: It learned. | {finished.results_path}"


@pytest.mark.parametrize(
    "place", ["relative", "/", "~nobody-here/x", "/dev/null/x", "/proc/x", "a\0b", "/" + "x" * 300]
)
def test_a_directory_that_cannot_be_is_refused(runs: Runs, place: str) -> None:
    runs.add()
    with pytest.raises(BadArgument, match="result_dir: "):
        done(runs, result_dir=place)


def test_another_owners_run_is_left_alone(runs: Runs, tmp_path: Path) -> None:
    runs.add()
    with pytest.raises(NotFinished, match="belongs to 'alice', you are 'bob'; nothing was written"):
        done(runs, caller="bob")
    assert not (tmp_path / "out").exists()
    assert done(runs, caller="alice").status == "written"


@pytest.mark.parametrize("name", ["experiment_log.md", "results.md", "code.diff"])
def test_fifos_do_not_block_and_links_are_not_followed(runs: Runs, tmp_path: Path, name: str) -> None:
    runs.add()
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "target").write_text("untouched")
    os.mkfifo(out / name)
    assert Path(done(runs).flag_path or "").is_file()
    (out / name).unlink()
    (out / name).symlink_to(tmp_path / "target")
    assert Path(done(runs).flag_path or "").is_file()
    assert (tmp_path / "target").read_text() == "untouched"


def test_the_document_has_the_commit_and_the_uncommitted_changes(runs: Runs) -> None:
    cwd = runs.add()
    git(cwd, "init")
    put(cwd / "train.py", "lr = 1\nkey = ''\n")
    git(cwd, "add", ".")
    git(cwd, "commit", "-m", "First try")
    put(cwd / "train.py", "lr = 2\napi_key = 'abcdef123456'\nother = 'hunter2-hunter2'\n")
    put(cwd / "notes.txt", "x")
    put(cwd / "evil", "")
    (cwd / "evil").write_text(f"#!/bin/sh\ntouch {cwd}/ran\n")
    (cwd / "evil").chmod(0o755)
    for setting in ("core.fsmonitor", "diff.external", "core.pager", "pager.diff", "core.sshCommand"):
        git(cwd, "config", setting, str(cwd / "evil"))
    put(cwd / ".gitattributes", "*.py filter=evil diff=evil\n")
    for setting in ("filter.evil.clean", "filter.evil.process", "diff.evil.textconv", "diff.evil.command"):
        git(cwd, "config", setting, str(cwd / "evil"))
    git(cwd, "config", "filter.evil.required", "true")
    answer = done(runs)
    out = Path(answer.results_path).parent
    text, diff = Path(answer.results_path).read_text(), (out / "code.diff").read_text()
    assert not (cwd / "ran").exists()
    assert "First try" in text
    assert "- Not committed: see `code.diff`" in text
    assert "- Untracked files, which the diff lacks: .gitattributes, evil, notes.txt" in text
    assert f"-lr = 1\n-key = ''\n+lr = 2\n+api_key = '{MASKED}'\n+other = '[secret:WANDB_API_KEY]'\n" in diff
    assert "hunter2" not in text + diff
    (out / "code.diff").write_text("another's")
    assert str(out / "code-cfm-7kqz.diff") in done(runs).files
    assert (out / "code.diff").read_text() == "another's"
    git(cwd, "config", "filter.a=b.clean", str(cwd / "evil"))  # -c cannot name it
    put(cwd / ".gitattributes", "*.py filter=a=b\n")
    assert "its settings name a filter that would run: 'a=b'" in Path(done(runs).results_path).read_text()
    assert not (cwd / "ran").exists()


def test_a_long_difference_is_cut(tmp_path: Path) -> None:
    git(tmp_path, "init")
    put(tmp_path / "data.txt", "1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "x")
    put(tmp_path / "data.txt", "0123456789\n" * 200_000)
    code = read_git_state(tmp_path, ENVIRON)
    assert (code.cut, len(code.diff)) == (True, 1_000_000)
    assert len(code.commit) == 40


@pytest.mark.parametrize(
    "command",
    ["WANDB_API_KEY=hunter2-hunter2 python train.py", "python train.py --api-key abcdef123456", "echo hunter2-hunter2"],
)
def test_no_secret_reaches_a_file(runs: Runs, command: str) -> None:
    runs.add(command=command, secrets=["WANDB_API_KEY"], env={"MY_TOKEN": "0123456789abcdefghij"})
    answer = done(runs, summary="the key is hunter2-hunter2")
    for path in map(Path, answer.files):
        for secret in ("hunter2-hunter2", "abcdef123456", "0123456789abcdefghij"):
            assert secret not in path.read_text()
    assert "Secrets, by name: WANDB_API_KEY" in Path(answer.results_path).read_text()
