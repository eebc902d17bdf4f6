"""`runward install` shows what it changes, asks, and overwrites nothing silently."""

import argparse
import io
import json
import os
import stat
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_server.cli.setup import install as module
from mcp_server.cli.setup.client_settings import out_of_mcp_json
from mcp_server.cli.setup.file_edits import Edit, apply_edits
from mcp_server.errors import BadArgument
from mcp_server.resources.documents import find_folder, list_files

COMMAND = ["/opt/venv/bin/runward", "serve"]
AGENTS = sorted(path.name for path in list_files("agents"))

Install = Callable[..., int]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install as a user whose home is ``home`` and who stands in ``project``, without any other program at hand."""
    for name in ("home", "project", "bin"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setattr(module, "server_command", lambda *_: COMMAND)
    monkeypatch.setattr("sys.stdin", io.StringIO())

    def call(client: str, *, project: bool = False, yes: bool = False, command: str = "install", **more: object) -> int:
        options = {"env": [], "approve_launches": False, **more}
        return module.run(argparse.Namespace(command=command, client=client, project=project, yes=yes, **options))

    return call


class Person:
    """Somebody at a terminal who answers every question alike."""

    def __init__(self, answer: str) -> None:
        self.answer, self.asked = answer, list[str]()

    def isatty(self) -> bool:
        return True

    def __call__(self, question: str) -> str:
        self.asked.append(question)
        return self.answer


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Person]:
    def sits_down(answer: str) -> Person:
        somebody = Person(answer)
        monkeypatch.setattr("sys.stdin", somebody)
        monkeypatch.setattr("builtins.input", somebody)
        return somebody

    return sits_down


PATHS = {"PATH": "/usr/bin:/bin"}


def program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# --- the files


def test_a_project_gets_agents_and_registration(run: Install, tmp_path: Path) -> None:
    assert run("claude", project=True, yes=True) == 0
    project = tmp_path / "project"
    assert files(project) == sorted(
        [".mcp.json", ".claude/settings.json", *(f".claude/agents/{name}" for name in AGENTS)]
    )
    assert (project / ".claude/agents/eval-monitor.md").read_bytes() == (
        find_folder("agents") / "eval-monitor.md"
    ).read_bytes()
    entry = json.loads((project / ".mcp.json").read_text())["mcpServers"]["runward"]
    assert entry == {"type": "stdio", "command": COMMAND[0], "args": ["serve"]}
    assert files(tmp_path / "home") == []


def test_a_second_time_changes_nothing(run: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("claude", project=True, yes=True)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "project").rglob("*")}
    capsys.readouterr()
    assert run("claude", project=True) == 0
    assert capsys.readouterr().out.count("Nothing to change.") == 1
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "project").rglob("*")} == before


def test_without_a_terminal_nothing_is_changed_but_shown(
    run: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("codex") == 1
    out = capsys.readouterr().out
    assert '+command = "/opt/venv/bin/runward"' in out
    assert "--yes confirms" in out
    assert files(tmp_path) == []


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("YES", 0), ("n", 1), ("", 1), ("sure", 1)])
def test_a_person_is_asked_once_about_all_files_and_reads_their_names_first(
    run: Install,
    person: Callable[[str], Person],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    answer: str,
    status: int,
) -> None:
    somebody = person(answer)
    assert run("claude", project=True) == status
    assert len(somebody.asked) == 1
    out = capsys.readouterr().out
    assert [out.count(f"create  {tmp_path / 'project'}"), "+++" in out] == [len(AGENTS) + 2, False]
    assert bool(files(tmp_path / "project")) == (status == 0)


def test_the_differences_are_shown_on_request(
    run: Install, person: Callable[[str], Person], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter("dy")
    person("y")
    monkeypatch.setattr("builtins.input", lambda _: next(answers))
    assert run("codex") == 0
    assert '+command = "/opt/venv/bin/runward"' in capsys.readouterr().out


def test_a_file_of_the_user_is_shown_and_replaced_only_when_confirmed(
    run: Install, person: Callable[[str], Person], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "home/.claude/agents/eval-monitor.md"
    mine.parent.mkdir(parents=True)
    mine.write_text("my own\n")
    mine.chmod(0o640)
    assert run("claude") == 1
    assert mine.read_text() == "my own\n"
    assert "-my own" in capsys.readouterr().out
    person("y")
    run("claude")
    assert mine.read_text() == (find_folder("agents") / "eval-monitor.md").read_text()
    assert stat.S_IMODE(mine.stat().st_mode) == 0o640


def test_what_changed_while_a_person_thought_is_left_alone(
    run: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "home/.codex/config.toml"
    config.parent.mkdir()
    config.write_text('model = "a"\n')

    class Slow(Person):
        def __call__(self, question: str) -> str:
            config.write_text('model = "b"\n')
            return "y"

    monkeypatch.setattr("sys.stdin", slow := Slow("y"))
    monkeypatch.setattr("builtins.input", slow)
    assert run("codex") == 1
    assert config.read_text() == 'model = "b"\n'
    assert "changed in the meantime" in capsys.readouterr().err


def test_a_link_of_the_user_is_followed_and_stays_a_link(run: Install, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.toml"
    real.write_text('model = "a"\n')
    link = tmp_path / "home/.codex/config.toml"
    link.parent.mkdir()
    link.symlink_to(real)
    assert run("codex", yes=True) == 0
    assert link.is_symlink()
    assert tomllib.loads(real.read_text())["mcp_servers"]["runward"]["tool_timeout_sec"] == 1200


@pytest.mark.parametrize("linked", [".mcp.json", ".claude", ".claude/agents", ".claude/agents/eval-monitor.md"])
def test_a_link_in_a_project_does_not_choose_what_is_overwritten(
    run: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str], linked: str
) -> None:
    outside = tmp_path / "outside"
    if linked.endswith((".json", ".md")):
        outside.write_text("{}")
    else:
        outside.mkdir()
    link = tmp_path / "project" / linked
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(outside)
    assert run("claude", project=True, yes=True) == 1
    assert "outside of this project" in capsys.readouterr().err
    assert (outside.read_text() == "{}") if outside.is_file() else (list(outside.iterdir()) == [])


def test_what_is_no_file_is_left_alone(run: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "project/.mcp.json")
    (tmp_path / "project/.claude/agents/eval-monitor.md").mkdir(parents=True)
    circle = tmp_path / "project/.claude/agents/launcher-monitor.md"
    circle.symlink_to(circle)
    assert run("claude", project=True, yes=True) == 1
    said = capsys.readouterr().err
    assert (said.count("not an ordinary file"), said.count(f"{circle} was left as it is: ")) == (2, 1)
    assert len(files(tmp_path / "project")) == len(AGENTS) - 1


def test_a_project_that_is_gone_is_said(run: Install, tmp_path: Path) -> None:
    (tmp_path / "project").rmdir()
    with pytest.raises(BadArgument, match="cd to the project first"):
        run("claude", project=True, yes=True)


def test_what_cannot_be_written_is_told_and_the_rest_goes_on(
    run: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "project/.claude").write_text("a file where a directory should be")
    assert run("claude", project=True, yes=True) == 1
    assert capsys.readouterr().err.count("was left as it is: Not a directory") == len(AGENTS) + 1
    assert (tmp_path / "project/.mcp.json").is_file()


def test_what_a_foreign_file_holds_does_not_reach_the_terminal_raw(
    run: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = tmp_path / "project/.claude/agents/eval-monitor.md"
    agent.parent.mkdir(parents=True)
    agent.write_text("\x1b[2Jnothing to see\x9b1m\n")
    run("claude", project=True)
    out = capsys.readouterr().out
    assert "-?[2Jnothing to see?1m" in out
    assert "\x1b" not in out


def test_a_program_inside_the_project_is_named_as_everybody_finds_it(
    run: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = str(tmp_path / "project/.venv/bin/runward")
    monkeypatch.setattr(module, "server_command", lambda *_: [inside, "serve"])
    run("claude", project=True, yes=True)
    program(tmp_path / "project/.venv/bin/runward", 'echo "$0 $@"')
    below = tmp_path / "project/a/b"
    below.mkdir(parents=True)
    entry = json.loads((tmp_path / "project/.mcp.json").read_text())["mcpServers"]["runward"]
    assert str(tmp_path) not in json.dumps(entry)
    assert "${" not in json.dumps(entry)  # clients take it for a variable of theirs
    for directory in (tmp_path / "project", below):
        line = [entry["command"], *entry["args"]]
        done = subprocess.run(line, cwd=directory, capture_output=True, text=True, env=PATHS, check=True)
        assert done.stdout == f"{inside} serve\n"


# --- Claude Code and the Inspector themselves


CLAUDE = """
echo "$@" >> "$HOME/calls"
case "$2" in
  remove) rm "$HOME/.claude.json" ;;
  add) printf '{"mcpServers": {"runward": {"command": "%s", "args": ["%s"]}}}' "$7" "$8" > "$HOME/.claude.json" ;;
esac
"""


@pytest.fixture
def claude(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """A stand-in of Claude Code, and what it was called with."""
    program(tmp_path / "bin/claude", CLAUDE)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    calls = tmp_path / "home/calls"
    return lambda: calls.read_text().splitlines() if calls.exists() else []


def register(tmp_path: Path, entry: dict[str, object]) -> None:
    (tmp_path / "home/.claude.json").write_text(json.dumps({"mcpServers": {"runward": entry}}))


def test_claude_code_registers_the_server_itself(
    run: Install, claude: Callable[[], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("claude", yes=True) == 0
    assert claude() == ["mcp add --scope user runward -- /opt/venv/bin/runward serve"]
    assert files(tmp_path / "home/.claude/agents") == AGENTS
    assert capsys.readouterr().out.index(".claude/settings.json") > 0
    assert run("claude") == 0
    assert "Nothing to change." in capsys.readouterr().out


def test_an_older_runward_is_replaced_and_something_else_is_shown_and_left(
    run: Install, claude: Callable[[], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register(tmp_path, {"command": "/old/runward", "args": ["serve"]})
    assert run("claude", yes=True) == 0
    assert [line.split()[1] for line in claude()] == ["remove", "add"]
    register(tmp_path, {"type": "http", "url": "https://box/mcp", "headers": {"Authorization": "Bearer s3cr3t"}})
    capsys.readouterr()
    assert run("claude", yes=True) == 1
    out = capsys.readouterr().out
    assert "https://box/mcp (with Authorization: values not shown)" in out
    assert "s3cr3t" not in out
    assert "claude mcp remove --scope user runward && claude mcp add" in out
    assert run("claude", command="uninstall", yes=True) == 1
    assert len(claude()) == 2


@pytest.mark.parametrize("project", [False, True])
def test_what_install_put_there_uninstall_takes_out(
    run: Install, claude: Callable[[], list[str]], tmp_path: Path, *, project: bool
) -> None:
    assert run("claude", project=project, yes=True) == 0
    assert run("codex", project=project, yes=True) == 0
    mine = tmp_path / ("project" if project else "home") / ".claude/agents/eval-monitor.md"
    mine.write_text("changed since")
    for client in ("claude", "codex"):
        assert run(client, project=project, command="uninstall", yes=True) == 0
    left = {Path(path).name: (tmp_path / path).read_text() for path in files(tmp_path) if not path.startswith("bin")}
    assert left.pop("eval-monitor.md") == "changed since"
    assert left.keys() <= {"calls"}
    mine.unlink()
    mine.parent.rmdir()
    mine.parent.parent.rmdir()
    assert [path for path in (tmp_path / ("project" if project else "home")).iterdir() if path.name != "calls"] == []
    assert not project or claude() == []


# --- Codex


def test_codex_gets_the_server_its_variables_and_skills(run: Install, tmp_path: Path) -> None:
    assert run("codex", yes=True, env=["MY_TOKEN"]) == 0
    entry = tomllib.loads((tmp_path / "home/.codex/config.toml").read_text())["mcp_servers"]["runward"]
    assert entry["required"] is True
    assert {"LD_LIBRARY_PATH", "HF_HOME", "https_proxy", "MY_TOKEN"} <= set(entry["env_vars"])
    assert "tools" not in entry  # --yes lets no command start without a question
    skills = tmp_path / "home/.codex/skills"
    assert "runward-monitor-run" in {path.name for path in skills.iterdir()}
    for skill in skills.iterdir():
        front = (skill / "SKILL.md").read_text().split("---")[1]
        assert f"name: {skill.name}\n" in front
        assert "description: " in front
        assert "{{" not in (skill / "SKILL.md").read_text()


def test_launches_without_a_question_are_what_a_person_asks_for(
    run: Install, person: Callable[[str], Person], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "home/.codex/config.toml"

    def tools() -> object:
        return tomllib.loads(config.read_text())["mcp_servers"]["runward"].get("tools")

    assert run("codex", yes=True) == 0
    assert tools() is None
    assert run("codex", yes=True, approve_launches=True) == 0
    assert tools() == {name: {"approval_mode": "approve"} for name in ("launch_run", "launch_sweep")}
    assert run("codex", command="uninstall", yes=True) == 0
    assert not config.exists()
    for client in ("claude", "inspector"):
        with pytest.raises(BadArgument, match="keeps no approval of single tools"):
            run(client, yes=True, approve_launches=True)
    assert run("codex", project=True, yes=True) == 0
    assert "trusted project" in capsys.readouterr().out


def test_beside_the_plugin_claude_code_gets_no_second_server_and_codex_no_second_skills(
    run: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, config = tmp_path / "home/.claude/settings.json", tmp_path / "home/.codex/config.toml"
    for file, text in ((settings, '{"enabledPlugins": {"runward@x": true}}'), (config, '[plugins."runward@x"]\n')):
        file.parent.mkdir()
        file.write_text(text)
    assert run("claude", yes=True) == 1
    out = capsys.readouterr().out
    assert ("each tool twice" in out, "claude plugin uninstall runward@x" in out) == (True, True)
    assert "mcp__plugin_runward_runward__read_log" in settings.read_text()
    assert run("codex", yes=True) == 0
    entry = tomllib.loads(config.read_text())["mcp_servers"]["runward"]
    assert {"PYTHONPATH", "MUJOCO_GL", "WANDB_MODE"} <= set(entry["env_vars"])
    assert files(tmp_path / "home") == [".claude/settings.json", ".codex/config.toml"]


@pytest.mark.parametrize("project", [True, False])
def test_opencode_gets_one_file_with_server_and_wakes(run: Install, tmp_path: Path, project: bool) -> None:
    assert run("opencode", project=project, yes=True) == 0
    place = "project/.opencode" if project else "home/.config/opencode"
    assert files(tmp_path) == [f"{place}/plugins/runward.js"]
    assert 'const RUNWARD = ["/opt/venv/bin/runward"]\n' in (tmp_path / place / "plugins/runward.js").read_text()
    assert run("opencode", project=project, yes=True, command="uninstall") == 0
    assert files(tmp_path) == []


# --- programs that are not there, and the Inspector


def test_without_claude_code_its_line_is_printed(run: Install, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("claude", yes=True) == 1
    assert "claude mcp add --scope user runward -- /opt/venv/bin/runward serve" in capsys.readouterr().out


@pytest.mark.parametrize(("version", "status"), [("v20.20.2", 1), ("v22.18.0", 1), ("v22.19.0", 7), ("v24.1.0", 7)])
def test_the_inspector_starts_on_a_node_that_is_its_own(
    run: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str], version: str, status: int
) -> None:
    program(tmp_path / "bin/node", f"echo {version}")
    program(tmp_path / "bin/npx", 'echo "$@" > "$HOME/calls"; exit 7')
    assert run("inspector", yes=True) == status
    assert "npx -y @modelcontextprotocol/inspector@2 /opt/venv/bin/runward serve" in capsys.readouterr().out
    assert (tmp_path / "home/calls").exists() == (status == 7)


def test_the_inspector_is_not_started_unasked(run: Install, tmp_path: Path) -> None:
    program(tmp_path / "bin/node", "echo v24.1.0")
    program(tmp_path / "bin/npx", 'echo "$@" > "$HOME/calls"')
    assert run("inspector") == 1
    assert files(tmp_path / "home") == []


@pytest.mark.parametrize("nested", [True, False], ids=["nested 100,000 deep", "20 GiB"])
def test_a_hostile_file_of_a_project_is_left_as_it_is(tmp_path: Path, nested: bool) -> None:
    file = tmp_path / ".mcp.json"
    file.write_text("[" * 100_000)
    if not nested:
        os.truncate(file, 20 << 30)
    assert not apply_edits([Edit(file, tmp_path, out_of_mcp_json)], sure=True)
    assert file.stat().st_size in (100_000, 20 << 30)
