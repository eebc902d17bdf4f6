"""The words of the command line: wrong verbs, errors, completion."""

import subprocess

import pytest

from mcp_server.__main__ import main
from mcp_server.cli.output import name_verbs
from mcp_server.cli.parser import list_words
from mcp_server.cli.setup.completion import render


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("status", "runward ls?"),
        ("list", "runward ls?"),
        ("stop", "runward kill?"),
        ("docter", "runward doctor?"),
        ("launch", "the tool launch_run"),
        ("xyzzy", "runward --help"),
    ],
)
def test_a_wrong_verb_is_answered_with_the_right_one(capsys: pytest.CaptureFixture[str], word: str, hint: str) -> None:
    with pytest.raises(SystemExit) as left:
        main([word])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert (hint in said, said.count("\n")) == (True, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Run not found: 'x'. Call list_runs.", "Run not found: 'x'. Type: runward ls."),
        ("Call wait_run('cfm-7kqz'), and wait.", "Type: runward wait cfm-7kqz, and wait."),
        ("Pass queue=true, or call gpu_check.", "Pass queue=true, or type: runward gpu."),
        ("capture_pane(session='a') shows it.", "runward attach a shows it."),
        ("my_wait_run_x stays", "my_wait_run_x stays"),
    ],
)
def test_errors_name_verbs_instead_of_tools(text: str, said: str) -> None:
    assert name_verbs(text) == said


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (["runward", "wa"], {"wait", "watch"}),
        (["runward", "install", "c"], {"claude", "codex"}),
        (["runward", "logs", "--fol"], {"--follow"}),
        (["runward", "wait", "cfm-"], {"cfm-7kqz"}),
        (["runward", "doctor", "cfm-"], set()),
    ],
)
def test_bash_completes_verbs_flags_and_runs(tmp_path: object, line: list[str], found: set[str]) -> None:
    script = f"""mkdir -p {tmp_path}/runs/cfm-7kqz; export RUNWARD_HOME={tmp_path}
{render("bash")}
COMP_WORDS=({" ".join(line)}); COMP_CWORD={len(line) - 1}; _runward; printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == found


def test_the_other_shells_know_every_verb() -> None:
    for shell in ("zsh", "fish"):
        assert all(verb in render(shell) for verb in list_words())
