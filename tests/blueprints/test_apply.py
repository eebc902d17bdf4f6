"""Blueprints on a host: read safely, checked against what is here, and turned into a launch."""

import os
import re
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from mcp_server.blueprints.apply import (
    BlueprintInvalid,
    BlueprintUnreadable,
    apply_blueprint,
    check_file,
    make_name,
    read_blueprint,
)
from mcp_server.blueprints.parser import parse_blueprint
from mcp_server.blueprints.paths import resolve_paths
from mcp_server.record.spec import LaunchRequest
from mcp_server.runs.launch.arguments import check_options

TEXT = """\
## [exp_purpose]
LoRA rank 16 on gsm8k: does it learn?
## [exp_codebase_dir]
{root}/code
## [exp_venv_exe]
{root}/venv/bin/python
## [exp_yaml_path]
conf/math.yaml
## [exp_launch_command]
python train.py --conf {{exp_yaml_path}} --out ${{exp_result_dir}}
## [exp_result_dir]
{root}/results
## [exp_max_time]
2 hours
## Notes
The first step is due within 5 minutes.
"""


@pytest.fixture
def blueprint(tmp_path: Path) -> Path:
    """A blueprint in a directory that has all of its paths."""
    (tmp_path / "code" / "conf").mkdir(parents=True)
    (tmp_path / "code" / "conf" / "math.yaml").touch()
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho the blueprint\\'s python\n")
    python.chmod(0o755)
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    path = tmp_path / "lora_16.md"
    path.write_text(TEXT.format(root=tmp_path))
    return path


def request(**given: object) -> LaunchRequest:
    return LaunchRequest(**{"command": "", **given})  # type: ignore[arg-type]


# --- reading


def test_a_blueprint_is_read_through_a_link_with_home_and_with_a_directory(
    blueprint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = blueprint.with_name("link.md")
    link.symlink_to(blueprint)
    monkeypatch.setenv("HOME", str(blueprint.parent))
    for path, cwd in ((str(blueprint), None), (str(link), None), ("~/lora_16.md", None), ("lora_16.md", "~")):
        file, content = read_blueprint(path, cwd)
        assert (file.parent, content.ok) == (blueprint.parent, True)


def hostile(where: Path) -> dict[str, str]:
    """Paths that are not blueprints, and the reasons."""
    os.mkfifo(where / "fifo.md")
    (where / "dangling.md").symlink_to(where / "nothing.md")
    (where / "loop.md").symlink_to(where / "loop.md")
    (where / "to_fifo.md").symlink_to(where / "fifo.md")
    (where / "large.md").write_bytes(b"a" * 1_000_001)
    (where / "latin.md").write_bytes("exp_purpose: größer".encode("latin-1"))
    (where / "train.py").write_text("# exp_purpose: a")
    (where / "nul.md").write_bytes(b"exp_purpose: a\0b")
    (where / "utf16.md").write_text("exp_purpose: a", encoding="utf-16")
    return {
        "blueprint.md": "must be absolute",
        "../blueprint.md": "must be absolute",
        "": "must be absolute",
        "~nobody-of-this-name/b.md": "",
        str(where): "not a regular file",
        str(where / "missing.md"): "No such file",
        str(where / "train.py"): "a program",
        str(where / "fifo.md"): "not a regular file",
        str(where / "to_fifo.md"): "not a regular file",
        str(where / "dangling.md"): "No such file",
        str(where / "loop.md"): "symbolic links",
        str(where / "large.md"): "longer than",
        str(where / "latin.md"): "UTF-8",
        str(where / "utf16.md"): "UTF-8",
        str(where / "nul.md"): "not text",
        str(where / "a\0b.md"): "null",
        str(where / ("a" * 300)): "too long",
        "/dev/zero": "not a regular file",
        "/dev/stdin": "",
        "/dev/tty": "",
        "/proc/self/mem": "",
    }


def test_a_path_that_is_not_a_text_file_is_refused_without_waiting(tmp_path: Path) -> None:
    for path, cause in hostile(tmp_path).items():
        with pytest.raises(BlueprintUnreadable, match="Nothing was done") as refused:
            read_blueprint(path)
        assert cause in refused.value.reason


@pytest.mark.parametrize("line", ["first step pattern: {word}", "---\nfirst_step_pattern: {word}\n---"])
def test_nothing_of_a_file_that_is_not_a_blueprint_is_shown(tmp_path: Path, line: str) -> None:
    path = tmp_path / "notes.md"
    path.write_text(f"# hidden word\n{line.format(word='hidden word')}\nhidden word\n")
    answer = check_file(str(path))
    assert not answer.ok
    assert "hidden word" not in answer.model_dump_json()


def test_the_content_of_a_file_that_is_not_a_blueprint_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.write_text("# accounts\nroot:x:0:0:hush:/root:/bin/bash\n")
    answer = check_file(str(path))
    assert not answer.ok
    assert "hush" not in answer.model_dump_json()
    assert "accounts" not in answer.model_dump_json()


# --- checking


def test_a_check_has_every_section_with_paths_and_variables_filled_in(blueprint: Path) -> None:
    root = blueprint.parent
    assert check_file(str(blueprint)).model_dump() == {
        "ok": True,
        "purpose": "LoRA rank 16 on gsm8k: does it learn?",
        "codebase_dir": f"{root}/code",
        "venv_exe": f"{root}/venv/bin/python",
        "yaml_path": f"{root}/code/conf/math.yaml",
        "launch_command": f"python train.py --conf {root}/code/conf/math.yaml --out {root}/results",
        "result_dir": f"{root}/results",
        "time_limit_s": 7200.0,
        "first_step_timeout_s": 300.0,
        "defaults_used": [],
        "notes": "The first step is due within 5 minutes.",
        "problems": [],
    }


def test_a_path_that_is_missing_here_is_a_problem_with_its_line_and_the_document_stays_ok(tmp_path: Path) -> None:
    path = tmp_path / "b.md"
    (tmp_path / "results").touch()
    path.write_text(TEXT.format(root=tmp_path))
    answer = check_file(str(path))
    assert answer.ok
    assert [problem.line for problem in answer.problems] == [4, 6, 8, 12]
    assert not (tmp_path / "code").exists()


def test_missing_sections_have_defaults_next_to_the_blueprint(tmp_path: Path) -> None:
    path = tmp_path / "ablation.md"
    path.write_text("[exp_launch_command]: python train.py --out {exp_result_dir} --s ${MaxTime}\n")
    answer = check_file(str(path))
    assert (answer.ok, answer.codebase_dir, answer.result_dir) == (True, str(tmp_path), str(tmp_path / "ablation"))
    assert (answer.venv_exe, answer.yaml_path) == (None, None)
    assert (answer.time_limit_s, answer.first_step_timeout_s) == (86_400, 1_200)
    assert answer.launch_command == f"python train.py --out {tmp_path}/ablation --s 86400"
    assert not (tmp_path / "ablation").exists()
    assert resolve_paths(tmp_path / "bare", parse_blueprint("")).result_dir == tmp_path / "bare.results"


def test_a_directory_of_a_virtual_environment_means_its_python(blueprint: Path) -> None:
    blueprint.write_text(blueprint.read_text().replace("venv/bin/python", "venv"))
    assert check_file(str(blueprint)).venv_exe == str(blueprint.parent / "venv/bin/python")


def test_a_python_named_by_its_activation_is_the_python_beside_it(blueprint: Path, tmp_path: Path) -> None:
    named = f"{tmp_path}/venv/bin/python"
    blueprint.write_text(blueprint.read_text().replace(named, f"source {tmp_path}/venv/bin/activate"))
    assert check_file(str(blueprint)).venv_exe == named


# --- filling in


def test_a_blueprint_completes_a_request(blueprint: Path) -> None:
    root = blueprint.parent
    filled = apply_blueprint(request(), *read_blueprint(str(blueprint)), keyword="ajet", environ={"PATH": "/usr/bin"})
    assert filled.command == f"python train.py --conf {root}/code/conf/math.yaml --out {root}/results"
    assert filled.cwd == f"{root}/code"
    assert filled.env == {"PATH": f"{root}/venv/bin:/usr/bin", "VIRTUAL_ENV": f"{root}/venv"}
    assert (filled.time_limit_s, filled.first_step_timeout_s) == (7200.0, 300.0)
    assert filled.name == "ajet-lora_16"
    assert filled.tags == ["ajet", "blueprint:lora_16"]


def test_explicit_arguments_win(blueprint: Path, tmp_path: Path) -> None:
    given = request(
        command=["true"],
        name="mine",
        cwd=str(tmp_path),
        env={"PATH": "/bin", "A": "1"},
        tags=["x"],
        time_limit_s=5.0,
        first_step_timeout_s=6.0,
        first_step_pattern="step",
        queue=True,
    )
    filled = apply_blueprint(given, *read_blueprint(str(blueprint)), environ={})
    left = {"tags": ["x", "blueprint:lora_16"], "env": {**given.env, "VIRTUAL_ENV": f"{tmp_path}/venv"}}
    assert asdict(filled) == {**asdict(given), **left}


def test_python_in_the_command_is_the_blueprints_python(blueprint: Path) -> None:
    filled = apply_blueprint(request(), *read_blueprint(str(blueprint)))
    run = subprocess.run(["bash", "-c", str(filled.command)], env=dict(filled.env), stdout=subprocess.PIPE, check=False)
    assert run.stdout == b"the blueprint's python\n"


def test_a_python_by_another_name_is_written_into_the_command(blueprint: Path) -> None:
    exe = blueprint.parent / "venv/bin/python3.12"
    (blueprint.parent / "venv/bin/python").rename(exe)
    text = blueprint.read_text().replace("bin/python", "bin/python3.12")
    blueprint.write_text(text.replace("python train.py", "A=1 python train.py && python3 -m python.x"))
    command = apply_blueprint(request(), *read_blueprint(str(blueprint))).command
    assert str(command).startswith(f"A=1 {exe} train.py && {exe} -m python.x --conf")


def test_a_blueprint_that_cannot_be_run_is_refused_with_all_its_lines(blueprint: Path) -> None:
    blueprint.write_text(blueprint.read_text().replace("2 hours", "soon").replace("python train.py", "<command>"))
    with pytest.raises(
        BlueprintInvalid, match=r"Line 10: .*Line 14: .*Nothing was started.*check_blueprint"
    ) as refused:
        apply_blueprint(request(), *read_blueprint(str(blueprint)))
    assert [problem.line for problem in refused.value.faults] == [10, 14]


def test_a_secret_in_the_command_is_refused_and_not_repeated(blueprint: Path) -> None:
    text = blueprint.read_text()
    blueprint.write_text(text.replace("python train.py", "WANDB_API_KEY='0123456789abcdef' python train.py"))
    answer = check_file(str(blueprint))
    assert (answer.ok, [problem.line for problem in answer.problems]) == (False, [10])
    assert "0123456789abcdef" not in answer.model_dump_json()
    with pytest.raises(BlueprintInvalid, match="Line 10: WANDB_API_KEY") as refused:
        apply_blueprint(request(), *read_blueprint(str(blueprint)))
    assert "0123456789abcdef" not in str(refused.value)
    blueprint.write_text(text.replace("python train.py", "WANDB_API_KEY=$WANDB_API_KEY python train.py"))
    assert apply_blueprint(request(), *read_blueprint(str(blueprint))).name


def test_an_argument_replaces_a_faulty_section(blueprint: Path) -> None:
    blueprint.write_text(blueprint.read_text().replace("2 hours", "soon").replace("python train.py", "<command>"))
    filled = apply_blueprint(request(command="true", time_limit_s=60.0), *read_blueprint(str(blueprint)))
    assert (filled.command, filled.time_limit_s) == ("true", 60.0)
    with pytest.raises(BlueprintInvalid, match="Line 14"):
        apply_blueprint(request(command="true"), *read_blueprint(str(blueprint)))


def test_another_hosts_paths_are_refused_before_anything_starts(blueprint: Path) -> None:
    blueprint.write_text(blueprint.read_text().replace(str(blueprint.parent), "/data/of/another/host"))
    with pytest.raises(BlueprintInvalid) as refused:
        apply_blueprint(request(), *read_blueprint(str(blueprint)))
    assert [problem.line for problem in refused.value.faults] == [4, 6, 8]


@pytest.mark.parametrize(
    ("purpose", "file", "keyword", "name"),
    [
        ("LoRA rank 16", "lora_rank_ablation.md", "", "lora_rank_ablation"),
        ("LoRA rank 16", "lora_rank_ablation.md", "ajet", "ajet-lora_rank_ablation"),
        ("LoRA rank 16", "ajet_lora_rank.md", "AJET", "AJET_lora_rank"),
        ("LoRA rank 16", "b.md", "ajet", "ajet-b-LoRA-rank"),
        ("LoRA rank 16", "blueprint_1.md", "ajet", "ajet-blueprint_1-LoRA-rank"),
        ("Hidden 128 gave 0.86 (seed 1). Does 256 give more?", "gnn_256.md", "", "gnn_256"),
        ("Seed2 of hidden 256", "b.md", "", "b-stage_1"),  # the second seed's run has the same document
        ("验证学习率的影响", "ablation_lr.md", "ajet", "ajet-ablation_lr"),
        ("验证学习率的影响", "实验.md", "", "stage_1"),
        ("验证", "blueprint.md", "", "blueprint-stage_1"),
        ("../../etc: a\\b", "b.md", "", "b-etc-a-b"),
        ("test, api_key=zQ9wT4mK7xB2nL8vzQ9wT4mK7xB2nL8v", "b.md", "", "b-stage_1"),
        (
            "word " * 100,
            "b.md",
            "a keyword that is far too long to lead",
            "a-keyword-that-is-far-too-long-t-b-word-word-word-word-word-word",
        ),
    ],
)
def test_a_run_is_named_after_keyword_and_file_and_where_that_says_little_its_purpose(
    purpose: str, file: str, keyword: str, name: str
) -> None:
    run_name = make_name(Path("/data/stage_1") / file, parse_blueprint(f"exp_purpose: {purpose}\n"), keyword)
    assert (run_name, len(run_name) <= 64) == (name, True)
    assert re.fullmatch(r"[\w-]+", run_name, re.ASCII)


# --- relative paths and options


@pytest.fixture
def two_places(tmp_path: Path) -> Path:
    """A blueprint beside its code: some files are beside it, some in the code."""
    for name in ("code/conf", "code/.venv/bin", "results", "code/runs"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("beside.yaml", "both.yaml", "code/both.yaml", "code/conf/code.yaml"):
        (tmp_path / name).touch()
    (tmp_path / "code/.venv/bin/python").symlink_to("/bin/sh")
    return tmp_path / "lora_ablation.md"


@pytest.mark.parametrize(
    ("section", "written", "command", "path"),
    [
        ("yaml_path", "beside.yaml", "python a.py", "beside.yaml"),
        ("yaml_path", "conf/code.yaml", "python a.py", "code/conf/code.yaml"),
        ("yaml_path", "both.yaml", "python a.py", "both.yaml"),
        ("yaml_path", "both.yaml", "python a.py --conf both.yaml", "code/both.yaml"),  # it runs in the code
        ("yaml_path", "missing.yaml", "python a.py", "code/missing.yaml"),
        ("venv_exe", ".venv/bin/python", "python a.py", "code/.venv/bin/python"),
        ("venv_exe", ".venv", "python a.py", "code/.venv/bin/python"),
        ("result_dir", "results", "python a.py", "results"),
        ("result_dir", "runs", "python a.py", "code/runs"),
        ("result_dir", "new/run_1", "python a.py", "new/run_1"),
        ("result_dir", "new/run_1", "python a.py --out new/run_1", "code/new/run_1"),
        ("tensorboard", "runs/tb", "python a.py", "code/runs/tb"),
        ("tensorboard", "${exp_result_dir}/tb", "python a.py", "lora_ablation/tb"),
    ],
)
def test_a_relative_path_is_beside_the_blueprint_or_in_the_code(
    two_places: Path, section: str, written: str, command: str, path: str
) -> None:
    text = f"## [exp_launch_command]\n{command}\n## [exp_codebase_dir]\n./code\n## [exp_{section}]\n{written}\n"
    two_places.write_text(text)
    assert getattr(check_file(str(two_places)), section) == str(two_places.parent / path)


OPTIONS = """\
---
recovery: {oom_gpu: [retry, {change: {num_envs: halve}}]}
params:
  num_envs: 4096
tensorboard: runs/tb
seed: 7
resume_args: [--resume]
---
## [exp_launch_command]
python train.py
"""


def test_a_blueprint_has_the_options_of_a_launch_and_arguments_win(tmp_path: Path) -> None:
    path = tmp_path / "lora_ablation.md"
    path.write_text(OPTIONS)
    filled = apply_blueprint(request(), *read_blueprint(str(path)), check_options=check_options)
    assert filled.params == {"num_envs": 4096, "seed": 7}
    assert (filled.resume_args, filled.tensorboard) == (["--resume"], f"{tmp_path}/runs/tb")
    assert filled.recovery == {"oom_gpu": ["retry", {"change": {"num_envs": "halve"}}]}
    given = request(params={"num_envs": 8, "seed": 1}, recovery="none", tensorboard="/tb", resume_args=["--go"])
    filled = apply_blueprint(given, *read_blueprint(str(path)), check_options=check_options)
    assert (filled.params, filled.recovery) == ({"num_envs": 8, "seed": 1}, "none")
    assert (filled.tensorboard, filled.resume_args) == ("/tb", ["--go"])


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (OPTIONS.replace("num_envs: 4096", "num envs: 4096"), 3, "has a name that cannot stand on a command line"),
        (OPTIONS.replace("retry,", "rety,"), 2, 'is "retry" or "stop"'),
        (OPTIONS.replace("num_envs: 4096", "wandb_key: 0123456789abcdef0123456789abcdef01234567"), 3, "WANDB_API_KEY"),
        (OPTIONS.replace("python train.py", "cd /tmp\npython train.py"), 3, "write {params} as a word"),
    ],
)
def test_an_option_that_a_launch_refuses_is_a_problem_with_its_line(
    tmp_path: Path, text: str, line: int, words: str
) -> None:
    path = tmp_path / "lora_ablation.md"
    path.write_text(text)
    answer = check_file(str(path), check_options=check_options)
    assert (answer.ok, [problem.line for problem in answer.problems]) == (False, [line])
    assert words in answer.problems[0].text
    assert "0123456789" not in answer.model_dump_json()
    with pytest.raises(BlueprintInvalid, match=f"Line {line}"):
        apply_blueprint(request(), *read_blueprint(str(path)), check_options=check_options)


def test_several_seeds_are_several_launches_unless_the_command_takes_them(tmp_path: Path) -> None:
    path = tmp_path / "lora_ablation.md"
    path.write_text("[exp_launch_command]: python train.py\n[exp_seeds]: 3, 1, 2\n")
    answer = check_file(str(path))
    assert (answer.ok, answer.seeds, [problem.line for problem in answer.problems]) == (False, [3, 1, 2], [2])
    with pytest.raises(BlueprintInvalid, match=r"Line 2: .*a run takes one: .*params=\{\"seed\": 3\}"):
        apply_blueprint(request(), *read_blueprint(str(path)))
    assert apply_blueprint(request(params={"seed": 1}), *read_blueprint(str(path))).params == {"seed": 1}
    path.write_text("[exp_launch_command]: python train.py --seeds ${exp_seeds}\n[exp_seeds]: 3, 1, 2\n")
    filled = apply_blueprint(request(), *read_blueprint(str(path)))
    assert (filled.command, filled.params) == ("python train.py --seeds 3 1 2", {})


HELPER = "[exp_launch_command]\n```bash\ntensorboard --logdir out &\npython train.py{place}\n```\n\n"


def test_the_remedy_for_several_seeds_works_where_a_helper_stands_before_the_training(tmp_path: Path) -> None:
    path = tmp_path / "lora_ablation.md"
    path.write_text(HELPER.format(place="") + "[exp_seeds]: 3, 1, 2\n")
    (problem,) = check_file(str(path), check_options=check_options).problems
    assert "write {params} as a word of its own" in problem.text
    path.write_text(HELPER.format(place="") + "[exp_seeds]: 3\n")
    with pytest.raises(BlueprintInvalid, match=r"Line 7: \[exp_seeds\] has no position .*write \{params\} as a word"):
        apply_blueprint(request(), *read_blueprint(str(path)), check_options=check_options)
    path.write_text(HELPER.format(place=" {params}") + "[exp_seeds]: 3, 1, 2\n")
    filled = apply_blueprint(request(params={"seed": 3}), *read_blueprint(str(path)), check_options=check_options)
    assert filled.params == {"seed": 3}


@pytest.mark.slow
def test_a_file_of_nearly_1_mb_is_read_in_bounded_time(tmp_path: Path) -> None:
    path = tmp_path / "lora_ablation.md"
    for line in ("step 3/4 loss 0.1\n", "- a note, and more\n", "a" * 100_000 + "\n", "> words of a quote\n"):
        notes = line * (990_000 // len(line))
        path.write_text(f"## [exp_launch_command]\npython train.py\n## Notes\n{notes}## [exp_max_time]\n2 h\n")
        begun = time.process_time()
        answer = check_file(str(path))
        assert (answer.ok, answer.time_limit_s, answer.launch_command) == (True, 7200, "python train.py")
        assert time.process_time() - begun < 10


@pytest.mark.parametrize("empty", ["none", "N/A", ""])
def test_a_command_that_names_a_configuration_that_is_not_there_is_refused(blueprint: Path, empty: str) -> None:
    blueprint.write_text(blueprint.read_text().replace("conf/math.yaml", empty))
    check = check_file(str(blueprint))
    assert not check.ok
    assert any("names exp_yaml_path" in problem.text for problem in check.problems)
    with pytest.raises(BlueprintInvalid, match="names exp_yaml_path"):
        apply_blueprint(request(), *read_blueprint(str(blueprint)))
    assert apply_blueprint(request(command="python train.py"), *read_blueprint(str(blueprint))).command


# --- the python that nobody wrote


@pytest.mark.parametrize("name", ["venv", ".venv"])
@pytest.mark.parametrize("section", ["", "## [exp_venv_exe]\n", "## [exp_venv_exe]\ndefault\n"])
def test_a_virtual_environment_is_used_where_the_section_is_empty(tmp_path: Path, name: str, section: str) -> None:
    python = tmp_path / "code" / name / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to("/bin/true")
    file = tmp_path / "exp.md"
    file.write_text(f"## [exp_codebase_dir]\ncode\n{section}## [exp_launch_command]\npython train.py\n")
    check = check_file(str(file))
    assert check.venv_exe == str(python)
    assert "exp_venv_exe" in check.defaults_used
    written_out = section.replace("default", "").strip() or "## [exp_venv_exe]"
    file.write_text(f"## [exp_codebase_dir]\ncode\n{written_out}\nnone\n## [exp_launch_command]\npython train.py\n")
    assert check_file(str(file)).venv_exe is None


def test_what_an_argument_gives_is_not_demanded_from_the_document(tmp_path: Path) -> None:
    file = tmp_path / "exp.md"
    file.write_text("## [exp_codebase_dir]\n<path>\n## [exp_yaml_path]\nmissing.yaml\n## [exp_max_time]\nsoon\n")
    given = request(cwd=str(tmp_path), command="python a.py", time_limit_s=60.0)
    applied = apply_blueprint(given, file, parse_blueprint(file.read_text()))
    assert (applied.cwd, applied.command, applied.time_limit_s) == (str(tmp_path), "python a.py", 60.0)
    with pytest.raises(BlueprintInvalid, match="exp_max_time"):
        apply_blueprint(request(cwd=str(tmp_path), command="python a.py"), file, parse_blueprint(file.read_text()))
    sections = ("codebase_dir", "yaml_path", "launch_command", "max_time")
    assert check_file(str(file), given=sections).ok
    assert not check_file(str(file)).ok


def test_relative_paths_are_looked_for_in_the_directory_that_an_argument_gives(tmp_path: Path) -> None:
    for name in ("doc", "code/configs", "code/.venv/bin"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "code/configs/a.yaml").touch()
    python = tmp_path / "code/.venv/bin/python"
    python.symlink_to(sys.executable)
    file = tmp_path / "doc" / "exp.md"
    command = "python a.py --c ${exp_yaml_path} --root ${exp_codebase_dir}"
    file.write_text(f"## [exp_yaml_path]\nconfigs/a.yaml\n## [exp_launch_command]\n`{command}`\n")
    with pytest.raises(BlueprintInvalid, match="exp_yaml_path"):
        apply_blueprint(request(), *read_blueprint(str(file)))
    code = tmp_path / "code"
    applied = apply_blueprint(request(cwd=str(code)), *read_blueprint(str(file)))
    assert applied.command == f"python a.py --c {code}/configs/a.yaml --root {code}"
    assert applied.env["PATH"].startswith(f"{python.parent}:")
    assert check_file(str(file), str(code), given=("codebase_dir",)).problems == []


@pytest.mark.parametrize("limit", ["2 to 3 days", "soon", "8 hours (A100: 10 hours)", "8 hours, better 10 hours", ""])
def test_a_limit_that_nobody_can_read_is_replaced_by_the_argument(tmp_path: Path, limit: str) -> None:
    file = tmp_path / "exp.md"
    file.write_text(f"## [exp_launch_command]\n`python a.py`\n## [exp_max_time]\n{limit}\n")
    assert apply_blueprint(request(time_limit_s=60.0), *read_blueprint(str(file))).time_limit_s == 60.0


@pytest.mark.parametrize("text", ["", "First this:\n`python a.py`\n`python b.py`", "<command>", "as usual"])
def test_a_command_that_nobody_can_read_is_replaced_by_the_argument(tmp_path: Path, text: str) -> None:
    file = tmp_path / "exp.md"
    file.write_text(f"## [exp_purpose]\nDoes it help?\n## [exp_launch_command]\n{text}\n")
    with pytest.raises(BlueprintInvalid, match="exp_launch_command"):
        apply_blueprint(request(), *read_blueprint(str(file)))
    assert apply_blueprint(request(command="python c.py"), *read_blueprint(str(file))).command == "python c.py"


@pytest.mark.parametrize(
    ("section", "given"),
    [
        ("## [exp_tensorboard]\nthe usual directory\n", {"tensorboard": "/tmp/tb"}),
        ("## [exp_params]\nlr: 1e-4 or 1e-3\n", {"params": {"lr": 1e-4}}),
        ("## Notes\nFirst step: 20\n", {"first_step_timeout_s": 60.0}),
        ("## [exp_codebse_dir]\n/data/code\n", {"cwd": "/tmp"}),
    ],
)
def test_an_argument_replaces_whatever_its_section_fails_to_say(
    tmp_path: Path, section: str, given: dict[str, object]
) -> None:
    file = tmp_path / "exp.md"
    file.write_text(f"## [exp_launch_command]\n`python a.py`\n{section}")
    with pytest.raises(BlueprintInvalid):
        apply_blueprint(request(), *read_blueprint(str(file)))
    assert apply_blueprint(request(**given), *read_blueprint(str(file))).command == "python a.py"
