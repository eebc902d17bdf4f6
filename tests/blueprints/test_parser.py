"""Blueprints as agents and people write them: ``tests/data/blueprints`` has them, the tables below their values."""

# ruff: noqa: RUF001 - people write full-width punctuation

import random
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from mcp_server.blueprints.headings import SECTIONS
from mcp_server.blueprints.parser import Blueprint, parse_blueprint

SPELLINGS = Path(__file__).parents[1] / "data" / "blueprints"
H = 3600.0
COMMAND = "python -m ajet.launcher --conf conf/math.yaml --with-ray"
ALL_DEFAULTS = tuple(f"exp_{name}" for name in SECTIONS if name != "launch_command")


@dataclass(frozen=True)
class Expected:
    """The values of a spelling; the defaults are the experiment that most of them describe."""

    launch_command: str = COMMAND
    purpose: str = "Train Qwen on gsm8k with LoRA rank 16"
    codebase_dir: str | None = "/data/exp/code"
    venv_exe: str | None = "/data/exp/venv/bin/python"
    yaml_path: str | None = "/data/exp/code/conf/math.yaml"
    result_dir: str | None = "/data/exp/results/math"
    time_limit_s: float = 12 * H
    first_step_timeout_s: float = 1200.0
    first_step_pattern: str | None = None
    defaults_used: tuple[str, ...] = ("first_step_timeout_s",)


EXPECTED = {
    "template": Expected(),
    "explained": Expected(
        yaml_path="conf/math.yaml",
        launch_command=f'cd /data/exp/code && \\\nexport APP_PATH="/tmp/pack" && \\\n{COMMAND}',
        first_step_timeout_s=1800.0,
        first_step_pattern=r"(?i)(?<![a-z\d_])kl[\s_/-]*loss(?![a-z\d_])",
        defaults_used=(),
    ),
    "list_of_contents": Expected(
        purpose="Train Qwen on gsm8k with LoRA rank 16 Everything else as in blueprint 3",
        launch_command=f"cd /data/exp/code && \\\nsource /data/exp/venv/bin/activate && \\\n{COMMAND}",
    ),
    "numbered": Expected(first_step_timeout_s=2400.0, defaults_used=()),
    "bold": Expected(),
    "one_line_each": Expected(),
    "assignments": Expected(result_dir="/data/exp/results/math/"),
    "front_matter": Expected(),
    "chinese": Expected(first_step_timeout_s=1800.0, defaults_used=()),
    "chinese_words": Expected(),
    "chinese_lines": Expected(),
    "plain_words": Expected(),
    "shouting": Expected(),
    "quoted": Expected(),
    "table": Expected(first_step_timeout_s=1500.0, defaults_used=()),
    "wrapped": Expected(),
    "list_of_sections": Expected(),
    "windows": Expected(launch_command="python -m ajet.launcher \\\n  --conf conf/math.yaml \\\n  --with-ray"),
    "comments": Expected(),
    "variables": Expected(
        launch_command="export WANDB_MODE=offline\nexport HYDRA_FULL_ERROR=1\n"
        "timeout ${MaxTime} python -m ajet.launcher --conf ${exp_yaml_path} "
        '--out "{exp_result_dir}/$RUN" --limit $exp_max_time'
    ),
    "prompts": Expected(
        launch_command="export NCCL_DEBUG=INFO\npython -m ajet.launcher \\\n--conf conf/math.yaml --with-ray"
    ),
    "inline_code": Expected(),
    "background": Expected(
        launch_command=f"mkdir -p logs\nnohup {COMMAND} 2>&1 | tee logs/a.log",
        venv_exe=None,
        yaml_path=None,
        result_dir=None,
        defaults_used=("exp_venv_exe", "exp_yaml_path", "exp_result_dir", "first_step_timeout_s"),
    ),
    "only_a_command": Expected("python train.py", "", None, None, None, None, 24 * H, 1200.0, None, ()),
    "not_applicable": Expected(
        launch_command="bash run.sh",
        codebase_dir="./",
        venv_exe=None,
        yaml_path=None,
        result_dir=None,
        time_limit_s=24 * H,
        defaults_used=("exp_venv_exe", "exp_result_dir", "exp_max_time", "first_step_timeout_s"),
    ),
    "spaces": Expected(
        launch_command="CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node 2 train.py --out {exp_result_dir} "
        "--cfg '{exp_yaml_path}'",
        codebase_dir="/data/my exp/code",
        venv_exe="~/venv/bin/python3",
        yaml_path="conf/math.yaml",
        result_dir="/data/my exp/it's here",
        time_limit_s=48 * H,
    ),
    "heredoc": Expected(
        launch_command="for seed in 1 2 3; do\n    # one after the other\n    python train.py --seed $seed\ndone",
        codebase_dir=None,
        venv_exe=None,
        yaml_path=None,
        result_dir=None,
        time_limit_s=26 * H,
        defaults_used=("exp_codebase_dir", "exp_venv_exe", "exp_yaml_path", "exp_result_dir", "first_step_timeout_s"),
    ),
    "folded": Expected(),
    "highest_headings": Expected(),
    "words_in_bold": Expected(),
    "names_in_brackets_behind": Expected(),
    "mixed": Expected(first_step_timeout_s=5400.0, first_step_pattern=r"kl_loss=\d", defaults_used=()),
}
# The lines that prevent running these, and words of their faults.
REFUSED: dict[str, dict[int, str]] = {
    "two_commands": {6: "second launch command"},
    "goes_on": {3: "backslash"},
    "two_blocks": {9: "second launch command"},
    "no_command": {3: "no command"},
    "template": {2: "TODO", 4: "<path>", 6: "/path/to/", 8: "<your config>", 10: "...", 12: "<hours>"},
    "empty_contents": {4: "no command"},
    "twice": {7: "twice, first in line 5"},
    "nonsense_time": {2: "not a duration"},
    "negative_time": {2: "not above zero"},
    "zero_time": {2: "not above zero"},
    "endless_time": {2: "longer than 60 days"},
    "range": {2: "range"},
    "number_alone": {2: "not a duration"},
    "two_times": {4: "24 h in line 3, 12 h here"},
    "two_paths": {3: "second path"},
    "misspelt": {1: "did you mean [exp_launch_command]", 3: "did you mean [exp_max_time]"},
    "unclosed": {2: "never closed"},
    "open_quote": {3: "never closed"},
    "tmux": {2: "ends at once"},
    "unknown_variable": {2: "subject_dir", 4: "exp_stage"},
    "no_section": {1: "no section"},
}


def spelling(name: str) -> str:
    return (SPELLINGS / f"{name}.md").read_bytes().decode()


def command(*lines: str, fence: str = "bash") -> Blueprint:
    return parse_blueprint("\n".join(["## [exp_launch_command]", f"```{fence}", *lines, "```"]))


@pytest.mark.parametrize("name", EXPECTED)
def test_every_spelling_has_the_values_that_its_writer_meant(name: str) -> None:
    blueprint, expected = parse_blueprint(spelling(name)), EXPECTED[name]
    assert blueprint.ok, blueprint.faults
    used = (*ALL_DEFAULTS, "first_step_timeout_s") if name == "only_a_command" else expected.defaults_used
    assert {key: getattr(blueprint, key) for key in vars(expected)} == {**vars(expected), "defaults_used": used}


@pytest.mark.parametrize("name", REFUSED)
def test_a_blueprint_that_cannot_be_run_is_refused_with_its_lines(name: str) -> None:
    blueprint = parse_blueprint(spelling(f"refused_{name}"))
    assert not blueprint.ok
    faults: dict[int, str] = {}
    for fault in blueprint.faults:
        faults[fault.line] = faults.get(fault.line, "") + fault.text
    assert faults.keys() == REFUSED[name].keys()
    assert all(word in faults[line] for line, word in REFUSED[name].items()), faults


def test_every_spelling_is_in_a_table() -> None:
    files = {path.stem for path in SPELLINGS.glob("*.md")}
    assert files == {*EXPECTED, *(f"refused_{name}" for name in REFUSED)}
    assert len(EXPECTED) >= 24


def test_the_line_of_a_value_is_known() -> None:
    lines = parse_blueprint(spelling("explained")).lines
    text = spelling("explained").splitlines()
    assert text[lines["codebase_dir"] - 1].endswith("/data/exp/code")
    assert text[lines["launch_command"] - 1].startswith("cd /data/exp/code")
    assert text[lines["max_time"] - 1] == "${MaxTime} = 12 hours"


def test_a_purpose_of_several_lines_is_one_paragraph() -> None:
    text = (
        "## [exp_purpose]\n- description: why\nWe want to see:\n- whether lr: 1e-4 holds\n### More\n> a reward of 3.5\n"
    )
    assert parse_blueprint(text).purpose == "why We want to see: whether lr: 1e-4 holds a reward of 3.5"


def test_of_very_many_problems_the_first_are_listed_and_the_rest_counted() -> None:
    blueprint = command(*(f"python a{n}.py" for n in range(1_000)))
    assert len(blueprint.faults) == 51
    assert (blueprint.ok, blueprint.faults[-1].text) == (False, "949 more problems up to here.")


def test_hints_and_remarks_of_sections_are_kept_as_notes() -> None:
    text = """## [exp_launch_command]
python a.py
## [exp_yaml_path]
- path: /data/a.yaml
- hint: lora_rank must be 16
- hint 2:
- warning 1: ...

Do not edit it.
## [exp_max_time]
24 hours (the queue of the cluster)
## Notes
Secrets: WANDB_API_KEY
"""
    assert parse_blueprint(text).notes.splitlines() == [
        "Secrets: WANDB_API_KEY",
        "[exp_yaml_path] Do not edit it.",
        "[exp_yaml_path] hint: lora_rank must be 16",
        "[exp_max_time] the queue of the cluster",
    ]


def test_notes_have_no_sections() -> None:
    assert parse_blueprint(spelling("template")).notes.endswith("- n_gpus_per_node = 8")
    assert "ajet.launcher" not in parse_blueprint(spelling("template")).notes


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["python train.py"], "python train.py"),
        (["$ python train.py"], "python train.py"),
        (["(venv) $ python train.py"], "python train.py"),
        (["root@gpu4:/data# python train.py", "Loading"], "python train.py"),
        (["cd /data && python train.py"], "cd /data && python train.py"),
        (["cd /data", "export A=1", "python train.py"], "cd /data\nexport A=1\npython train.py"),
        (["# first", "python train.py  # really", "", "# last"], "python train.py"),
        (["python train.py --color '#fff' # red"], "python train.py --color '#fff'"),
        (["python train.py \\  ", "  --lr 1 \\", "# rate", "  --wd 2"], "python train.py \\\n  --lr 1 \\\n  --wd 2"),
        (["python train.py --text 'two", "lines'"], "python train.py --text 'two\nlines'"),
        (["python train.py &"], "python train.py"),
        (["nohup python train.py > log.txt 2>&1 &"], "nohup python train.py > log.txt 2>&1"),
        (["python a.py && python b.py"], "python a.py && python b.py"),
        (["A=1 B='x y' python train.py"], "A=1 B='x y' python train.py"),
        (
            ["conda activate rl", "ray start --head", "python train.py"],
            "conda activate rl\nray start --head\npython train.py",
        ),
        (
            ["cat > a.yaml <<'EOF'", "lr: 1", "EOF", "python train.py"],
            "cat > a.yaml <<'EOF'\nlr: 1\nEOF\npython train.py",
        ),
        (
            ["cd conf && test -f a.yaml", "wandb login", "hf download Qwen/Qwen3-8B", "A=1 python train.py"],
            "cd conf && test -f a.yaml\nwandb login\nhf download Qwen/Qwen3-8B\nA=1 python train.py",
        ),
        (["python train.py --prompt '<think>'"], "python train.py --prompt '<think>'"),
        (["export A=1"], None),
        (["# nothing"], None),
        (["python train.py &&"], "python train.py &&"),
    ],
)
def test_a_code_block_is_one_command(lines: list[str], text: str | None) -> None:
    assert command(*lines).launch_command == text


@pytest.mark.parametrize(
    "lines",
    [
        ["export A=1"],
        ["python a.py", "python b.py"],
        ["python train.py &&"],
        ["python train.py --name 'x"],
        ["screen -dmS x python train.py"],
        ["tmux send-keys -t x 'python train.py' Enter"],
        ["python train.py --conf ..."],
        ["python train.py --conf /path/to/conf.yaml"],
        ['python train.py --conf "<config path>"'],
        ["python train.py --n TODO"],
    ],
)
def test_a_block_without_exactly_one_command_is_refused(lines: list[str]) -> None:
    blueprint = command(*lines)
    assert not blueprint.ok
    assert all(3 <= fault.line < 3 + len(lines) for fault in blueprint.faults)


@pytest.mark.parametrize("line", ["python train.py &", "python train.py > log 2>&1", "python train.py &> log"])
def test_a_command_with_a_harmless_fault_is_not_refused(line: str) -> None:
    blueprint = command(line)
    assert (blueprint.ok, [fault.line for fault in blueprint.faults]) == (True, [3])


@pytest.mark.parametrize(
    "line", ["python a.py 2>&1 | tee log", "python a.py 2> err.txt", "python a.py >/dev/null", "nohup a.sh"]
)
def test_a_command_that_runs_as_written_has_no_problem(line: str) -> None:
    assert command(line).faults == ()


def test_a_block_of_another_language_is_not_a_command() -> None:
    text = "## [exp_launch_command]\n```yaml\nlr: 1\n```\n```bash\npython a.py\n```\n```text\npython prints this\n```\n"
    assert parse_blueprint(text).launch_command == "python a.py"


def test_a_plain_number_takes_its_unit_from_the_heading() -> None:
    for heading in (
        "## [exp_max_time] (hours)",
        "## [exp_max_time] (in hours)",
        "## Max time (h)",
        "## 最长时间（小时）",
    ):
        blueprint = parse_blueprint(f"{heading}\n36\n## [exp_launch_command]\npython a.py\n")
        assert (blueprint.time_limit_s, heading) == (36 * H, heading)


@pytest.mark.parametrize(
    ("note", "seconds", "pattern"),
    [
        ("First step success timeout: 25 minutes", 1500, None),
        ("The first KL loss value must be there within 40 minutes.", 2400, None),
        ('If "actor/kl_loss" is not printed: the first step failed after 30 min', 1800, None),
        (
            'The first step is due within 30 min (look for "actor/kl_loss")',
            1800,
            r"(?i)(?<![a-z\d_])actor[\s_/-]*kl[\s_/-]*loss(?![a-z\d_])",
        ),
        ("第一步应在 40 分钟内完成", 2400, None),
        ("The second run takes 40 minutes.", 1200, None),
        ("Step 1: download the model, 30 minutes", 1200, None),
        ("第一次运行需要 30 分钟下载模型", 1200, None),
        ("The first step took 5 minutes in earlier runs.", 1200, None),
        ("first_step_pattern: `step=\\d+`", 1200, r"step=\d+"),
    ],
)
def test_the_first_step_rule_comes_from_the_notes(note: str, seconds: float, pattern: str | None) -> None:
    blueprint = parse_blueprint(f"[exp_launch_command]: python a.py\n\n## Notes\n- {note}\n")
    assert (blueprint.first_step_timeout_s, blueprint.first_step_pattern) == (seconds, pattern)


@pytest.mark.parametrize(
    ("line", "shows"),
    [
        ("step:1 - actor/kl_loss:0.001", True),
        ("{'KL loss': 0.3}", True),
        ("use_kl_loss: True, 'kl_loss_coef': 0.001, kl_loss_type=low_var_kl", False),
    ],
)
def test_a_quoted_metric_is_not_its_setting(line: str, *, shows: bool) -> None:
    blueprint = parse_blueprint(
        '[exp_launch_command]: python a.py\n## Notes\n- The first "kl loss" is due within 30 min\n'
    )
    assert bool(re.search(blueprint.first_step_pattern or "", line)) is shows


@pytest.mark.parametrize(
    ("text", "limit_s", "first_s"),
    [
        ("24小时(第一步最多 20 分钟)", 24 * H, 1200),
        ("36 hours (first step within 25 min)", 36 * H, 1500),
        ("12h, first step: 30 min", 12 * H, 1800),
        ("12 h. If no first KL loss within 20 minutes, fail.", 12 * H, 1200),
        ("First step 10 minutes; total 5 hours", 5 * H, 600),
        ("1 day, 12 hours, 25 minutes for the first step", 36 * H, 1500),
        ("- content 1: 8 hours\n- content 2: first step, within 20 minutes", 8 * H, 1200),
        ("20 minutes to the first step", 24 * H, 1200),
    ],
)
def test_a_limit_and_the_first_step_rule_may_share_a_line(text: str, limit_s: float, first_s: float) -> None:
    blueprint = parse_blueprint(f"[exp_launch_command]: python a.py\n## [exp_max_time]\n{text}\n")
    assert (blueprint.ok, blueprint.time_limit_s, blueprint.first_step_timeout_s) == (True, limit_s, first_s)


def test_output_of_a_command_is_not_a_second_command() -> None:
    blocks = "```\npython a.py\n```\nExpected output:\n```\nstep 1/100 loss 2.3\n```\n"
    assert parse_blueprint(f"## [exp_launch_command]\n{blocks}").launch_command == "python a.py"
    assert (
        parse_blueprint(f"## [exp_launch_command]\nThis is what it prints:\n{blocks}").launch_command == "python a.py"
    )
    other = blocks.replace("Expected output", "If memory runs out").replace("step 1/100 loss 2.3", "python a.py --half")
    blueprint = parse_blueprint(f"## [exp_launch_command]\n{other}")
    assert [fault.line for fault in blueprint.faults] == [7]


def test_a_limit_with_the_shells_default_is_that_default() -> None:
    blueprint = parse_blueprint("[exp_launch_command]: python a.py\n## [exp_max_time]\n${MaxTime:-36h}\n")
    assert (blueprint.ok, blueprint.time_limit_s) == (True, 36 * H)


def test_python_without_a_path_is_this_hosts_python() -> None:
    blueprint = parse_blueprint("[exp_venv_exe]: python3\n[exp_launch_command]: python a.py\n")
    assert (blueprint.ok, blueprint.venv_exe) == (True, None)
    assert "exp_venv_exe" not in blueprint.defaults_used  # it is written


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("/srv/my code/proj", "/srv/my code/proj"),
        ('"/srv/my code/proj"', "/srv/my code/proj"),
        ("/srv/my code", "/srv/my code"),
        (r"/srv/my\ code/proj", "/srv/my code/proj"),
        ("/srv/code on machine 2", None),
        ("/srv/code use this one", None),
        ("/srv/code, as before", "/srv/code"),
        ("/srv/code (as before)", "/srv/code"),
        ("/srv/a /srv/b", None),
    ],
)
def test_a_path_with_spaces_is_whole_and_a_path_with_a_remark_is_refused(written: str, path: str | None) -> None:
    blueprint = parse_blueprint(f"[exp_launch_command]: python a.py\n[exp_codebase_dir]: {written}\n")
    assert (blueprint.codebase_dir, [fault.line for fault in blueprint.faults]) == (path, [] if path else [2])


def test_a_heading_in_two_languages_has_no_inline_text() -> None:
    blueprint = parse_blueprint(
        "# 【exp_purpose】 实验目的\n比较 PPO\n# 【exp_launch_command】 启动命令\npython a.py\n"
    )
    assert (blueprint.purpose, blueprint.launch_command) == ("比较 PPO", "python a.py")


def test_a_first_step_pattern_that_never_ends_is_refused() -> None:
    blueprint = parse_blueprint("[exp_launch_command]: python a.py\n## Notes\nfirst_step_pattern: (a+)+\n")
    assert (blueprint.ok, blueprint.faults[0].line) == (False, 3)


def test_a_heading_in_a_code_block_is_text() -> None:
    blueprint = command("python a.py --note '", "## [exp_max_time]", "1 hour'")
    assert (blueprint.ok, blueprint.time_limit_s) == (True, 24 * H)


@pytest.mark.slow
def test_a_text_too_large_for_a_blueprint_is_refused() -> None:
    assert not parse_blueprint("a" * 1_000_001).ok
    assert not parse_blueprint("\n" * 200_000).ok
    assert not parse_blueprint("[exp_launch_command]: python a.py" + " --x" * 100_000).ok


@pytest.mark.slow
def test_no_text_makes_it_raise_and_every_problem_has_a_line() -> None:
    texts = [path.read_bytes().decode() for path in sorted(SPELLINGS.glob("*.md"))]
    pieces = """``` ` ** # [ ] exp_ exp_launch_command | : = <!-- --> \\ ' " $ { } && - ~~~ > 1. 12: PT ( ² １２ ：
    （""".split()  # noqa: SIM905
    pieces += ["\n", "\r", "\0", "\ud800", "\t", "    "]
    chance = random.Random(5)
    for _ in range(1_200):
        text = chance.choice(texts)
        for _ in range(chance.randint(1, 8)):
            at = chance.randrange(len(text) + 1)
            other = chance.choice(texts)
            begin = chance.randrange(len(other))
            text = chance.choice(
                [
                    text[:at] + chance.choice(pieces) * chance.choice([1, 1, 40]) + text[at:],
                    text[:at] + text[at + chance.randint(1, 40) :],
                    text[:at] + other[begin : begin + chance.randint(1, 200)] + text[at:],
                ]
            )
        blueprint = parse_blueprint(text)
        lines = text.replace("\r\n", "\n").replace("\r", "\n").count("\n") + 1
        assert all(1 <= fault.line <= lines for fault in blueprint.faults), text
        assert not blueprint.ok or (blueprint.launch_command and 0 < blueprint.time_limit_s <= 60 * 24 * H), text


@pytest.mark.parametrize(
    "path",
    [
        *("somewhere under /w/out", "like /w/old but with suffix _2", "next to /w/out", "anything but /w/out"),
        *("a subfolder of /w/out", "/w/out*", "/w/out/?", "/w/out/[date]", "/w/out/XX", "/w/out/seed{0..3}"),
    ],
)
def test_a_place_that_is_told_by_another_path_is_no_path(path: str) -> None:
    blueprint = parse_blueprint(f"[exp_launch_command]: python a.py\n## [exp_result_dir]\n{path}\n")
    assert not blueprint.ok
    assert any("[exp_result_dir]" in fault.text for fault in blueprint.faults)


@pytest.mark.parametrize(
    "time", ["3h/seed", "not 3 hours", "3 hours after the first step", "every 3 hours", "3 hours?"]
)
def test_a_duration_that_is_not_the_limit_is_refused(time: str) -> None:
    blueprint = parse_blueprint(f"[exp_launch_command]: python a.py\n## [exp_max_time]\n{time}\n")
    assert not blueprint.ok
    assert any("[exp_max_time]" in fault.text for fault in blueprint.faults)


@pytest.mark.parametrize("value", ["3e-4 or 1e-4", "0,0003", "4096 -> 2048", "4,096"])
def test_a_parameter_with_more_than_one_value_is_refused(value: str) -> None:
    blueprint = parse_blueprint(f"[exp_launch_command]: python a.py\n## [exp_params]\nlr: {value}\n")
    assert not blueprint.ok
    assert any("[exp_params]" in fault.text for fault in blueprint.faults)


def test_options_alone_are_no_command_and_struck_parameters_are_deleted() -> None:
    assert not parse_blueprint("## [exp_launch_command]\nAs last time plus `--lr 3e-4`\n").ok
    blueprint = parse_blueprint("[exp_launch_command]: python a.py\n## [exp_params]\n~~lr: 1~~\nlr: 2\n")
    assert (blueprint.ok, blueprint.options.params) == (True, {"lr": 2})


def test_a_text_of_toml_over_several_lines_is_read_as_toml_has_it() -> None:
    command = "exp_launch_command = '''\npython t.py \\\n  --a=1\n'''"
    text = f'```toml\nexp_purpose = "Does it help?"\n{command}\nexp_max_time = "7h"\n```\n'
    blueprint = parse_blueprint(text)
    assert str(blueprint.launch_command).split() == ["python", "t.py", "\\", "--a=1"]
    assert blueprint.time_limit_s == 7 * 3600


def test_the_head_of_a_table_of_sections_is_no_part_of_the_purpose_above_it() -> None:
    table = "| section | value |\n| --- | --- |\n| [exp_max_time] | 10 min |\n"
    blueprint = parse_blueprint(f"**[exp_purpose]** Does it help?\n\n{table}")
    assert (blueprint.purpose, blueprint.time_limit_s) == ("Does it help?", 600)
    own = "## [exp_purpose]\nWhich of these?\n| a | b |\n| - | - |\n| 1 | 2 |\n"
    assert "a | b" in parse_blueprint(own).purpose


@pytest.mark.parametrize("key", ["exp_launch_command", "exp_purpose", "exp_codebase_dir"])
def test_an_empty_list_in_front_matter_is_no_value(key: str) -> None:
    blueprint = parse_blueprint(f"---\n{key}: []\nexp_max_time: 1 h\n---\n")
    assert not blueprint.ok


@pytest.mark.parametrize(
    ("name", "written", "path"),
    [
        ("result_dir", "`/data/x`; logs go to `/data/x/logs`", "/data/x"),
        ("result_dir", "`/data/x` or `/data/x/logs`", None),
        ("codebase_dir", "/srv/x; run it in /srv/x/train", None),
        ("result_dir", "/data/x -> symlink to /mnt/y", "/data/x"),
        ("yaml_path", "conf/a.yaml (it includes conf/b.yaml)", "conf/a.yaml"),
        ("yaml_path", "conf/a.yaml; the big run has conf/b.yaml", None),
        ("codebase_dir", "/srv/x @ 4be1f02", "/srv/x"),
    ],
)
def test_a_path_of_something_else_behind_the_path_is_a_remark(name: str, written: str, path: str | None) -> None:
    blueprint = parse_blueprint(f"[exp_launch_command]: python a.py\n## [exp_{name}]\n{written}\n")
    assert (getattr(blueprint, name) if blueprint.ok else None) == path


@pytest.mark.parametrize(
    ("written", "is_none"),
    [
        ("There is none.", True),
        ("(no config file)", True),
        ("no YAML: the flags below are the configuration.", True),
        ("we don't use one", True),
        ("not decided yet", False),
        ("no, the usual one", False),
    ],
)
def test_a_sentence_that_denies_a_configuration_is_none(written: str, *, is_none: bool) -> None:
    blueprint = parse_blueprint(f"[exp_launch_command]: python a.py\n## [exp_yaml_path]\n{written}\n")
    assert (blueprint.ok, blueprint.yaml_path) == (is_none, None)


def test_a_field_that_an_issue_form_left_empty_is_empty() -> None:
    form = "### [exp_purpose]\n\nHelps?\n\n### [exp_venv_exe]\n\n{}\n"
    used = {text: parse_blueprint(form.format(text)).defaults_used for text in ("_No response_", "", "none")}
    assert "exp_venv_exe" in used["_No response_"]
    assert used["_No response_"] == used[""] != used["none"]


WHOLE = """## [exp_purpose]
Is it hot?
## [exp_codebase_dir]
/lab
## [exp_venv_exe]
python
## [exp_yaml_path]
none
## [exp_launch_command]
```
python kiln.py
```
{command_notes}
## [exp_result_dir]
/lab/out
## [exp_max_time]
{limit}
## Notes
{notes}
"""


def parse_whole(limit: str = "5 minutes", notes: str = "", command_notes: str = "") -> Blueprint:
    return parse_blueprint(WHOLE.format(limit=limit, notes=notes, command_notes=command_notes))


@pytest.mark.parametrize(
    "limit",
    [
        *(
            "5 minutes (it needs about half a minute)",
            "5 minutes. It takes about 40 s.",
            "5 minutes (finishes in 40 s)",
            "5 min (a run needs about 50 s, rollouts 20 s of it)",
        ),
        *("5 min (should take 30 s)", "5 minutes, in practice 30 s", "5 min - a normal run lasts 1 min"),
        *("5 minutes (30 s is enough)", "5 min. 30 s are usually enough.", "5 min (30 s suffice)"),
        *("5 min (it runs for about 40 s)", "5 minutes (a run: 30 s)", "5 min (one run: ~30 s)"),
    ],
)
def test_the_time_that_the_run_needs_is_a_note_beside_its_limit(limit: str) -> None:
    blueprint = parse_whole(limit)
    assert (blueprint.time_limit_s, blueprint.faults) == (300, ())


@pytest.mark.parametrize("limit", ["it runs for about 5 minutes", "5 minutes is enough"])
def test_the_time_that_the_run_needs_is_its_limit_where_no_other_stands(limit: str) -> None:
    assert parse_whole(limit).time_limit_s == 300


@pytest.mark.parametrize(
    "limit",
    [
        "5 min (it needs 10 min)",
        "5 min (10 min is enough)",
        "5 min (30 s is not enough)",
        "5 min (use 30 s)",
        "5 min (it needs 30 s per seed)",
        "5 min (it needs 30 s more)",
    ],
)
def test_a_limit_that_is_not_understood_is_a_fault_and_no_default(limit: str) -> None:
    blueprint = parse_whole(limit)
    assert not blueprint.ok
    assert "exp_max_time" not in blueprint.defaults_used


@pytest.mark.parametrize(
    ("rule", "line", "other"),
    [
        ('First step within 1 minute: the first line with "<lap 1".', "<lap 1 of 40> warp~1", "<lap 10 of 40>"),
        ('First step within 1 minute, the line containing "#1:".', "#1: loss 3", "# 1 loss"),
        ('First step within 1 minute: "trial 10/50".', "[stack] trial 10/50: 4 ok", "trial 100/50"),
    ],
)
@pytest.mark.parametrize("place", ["notes", "command_notes"])
def test_the_line_of_the_first_step_is_understood_in_the_notes_and_below_the_command(
    rule: str, line: str, other: str, place: str
) -> None:
    text = rule if place == "notes" else f"Notes: cpu only, takes half a minute. {rule}"
    blueprint = parse_whole(**{place: text})
    assert (blueprint.first_step_timeout_s, blueprint.faults) == (60, ())
    assert blueprint.first_step_pattern
    assert re.search(blueprint.first_step_pattern, line)
    assert not re.search(blueprint.first_step_pattern, other)


def test_a_line_of_the_first_step_that_is_lost_is_said() -> None:
    (fault,) = parse_whole(notes="First step within 1 minute: the first line with a lap.").faults
    assert not fault.fatal
    assert "the line of the first step is not understood" in fault.text


def test_a_section_s_own_name_needs_no_colon_before_its_value() -> None:
    lines = ["## exp_launch_command", "", "    python cv.py out=${exp_result_dir}", "", "exp_result_dir /p/out/small"]
    lines += ["exp_max_time 30 min", "exp_tensorboard /p/tb", "exp_result_dir is where the table lies"]
    blueprint = parse_blueprint("\n".join(lines))
    assert (blueprint.result_dir, blueprint.time_limit_s) == ("/p/out/small", 0.5 * H)
    assert blueprint.options.tensorboard == "/p/tb"


def test_a_time_in_brackets_is_that_of_the_words_before_it() -> None:
    text = "[exp_launch_command]: python a.py\n[exp_max_time]: 3min.\nThe 1st validation should come at it 20 (5 s)\n"
    blueprint = parse_blueprint(text)
    assert (blueprint.time_limit_s, blueprint.faults) == (180.0, ())
