"""`python -m tests.clients`: the interactive Claude Code, Codex, OpenCode with a scripted model, as people meet them.

Needs Claude Code 2.1.330 or newer (`npm install @anthropic-ai/claude-code`), in PATH or in RUNWARD_CLAUDE, and tmux.
Codex (`npm install @openai/codex`) and OpenCode (`npm install opencode-ai`), in PATH or in RUNWARD_CODEX and
RUNWARD_OPENCODE, are tried where they are installed. Nothing leaves this machine: the models are scripts on loopback,
and the keys placeholders. Words name the parts to try (`waking`, `codex`, `plugin`), RUNWARD_WAKE_COUNT how many ends
are to wake each client.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mcp_server.record.state import Run, posix
from tests.clients.codex import WAKES, describe_wakes, find_servers, kill_servers, try_declining, try_hook, try_waking
from tests.clients.opencode import try_waking as try_waking_opencode
from tests.clients.scripted_model import Block, Conversation, ScriptedModel, say, use
from tests.support.sandbox import Sandbox

_KEY = "placeholder-not-a-key"
_PATIENCE_S = 120.0
_PREFIX = "mcp__runward__"
_CONNECTED_S = 5.0  # a client has listed the tools by then
_SECOND_WAKE_S = 5.0  # within which a second wake for the same news would come


@dataclass(frozen=True)
class Terminal:
    """Claude Code in a tmux session of its own."""

    sandbox: Sandbox
    claude: str
    url: str
    more: Mapping[str, str] = field(default_factory=dict)  # of its environment

    @property
    def screen(self) -> str:
        return self.sandbox.tmux("capture-pane", "-p", "-t", "claude")

    def start(self, *words: str) -> None:
        path = self.sandbox.path
        environ = {
            "HOME": str(path),
            "PATH": os.environ["PATH"],
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": _KEY,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            **self.more,
        }
        variables = [f"{name}={value}" for name, value in environ.items()]
        command = ["env", "-i", *variables, self.claude, "--mcp-config", str(path / "mcp.json"), "--strict-mcp-config"]
        place = str(path / "project")
        self.sandbox.tmux("new-session", "-d", "-s", "claude", "-x", "150", "-y", "45", "-c", place, *command, *words)
        self.wait_for("shift+tab")  # below the prompt

    def type(self, text: str) -> None:
        self.sandbox.tmux("send-keys", "-t", "claude", "-l", text)
        self.wait_for(text)
        self.press("Enter")

    def press(self, key: str) -> None:
        self.sandbox.tmux("send-keys", "-t", "claude", key)

    def wait_for(self, text: str) -> None:
        _until(lambda: text in self.screen, f"{text!r} on the screen", lambda: self.screen)

    def leave(self) -> None:
        """Quit Claude Code, also where it asks what to do with open tasks."""
        self.type("/exit")
        _until(lambda: "Exit and stop" in self.screen or not self.is_open, "the exit", lambda: self.screen)
        if self.is_open:
            self.press("Enter")
        _until(lambda: not self.is_open, "the exit", lambda: self.screen)

    @property
    def is_open(self) -> bool:
        return "claude" in self.sandbox.tmux("list-sessions", "-F", "#{session_name}").split()


def main() -> int:
    """Try what only a real client can show; return 1 when something else came out."""
    claude = os.environ.get("RUNWARD_CLAUDE") or shutil.which("claude")
    if claude is None:
        print("Claude Code is needed: npm install @anthropic-ai/claude-code, or name it in RUNWARD_CLAUDE.")
        return 2
    version = subprocess.run([claude, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    print(f"Claude Code {version}")
    names = sys.argv[1:]
    attempts: list[tuple[Callable[[Sandbox, str], str], str]] = [
        (_try_task, claude),
        (_try_waking_tasks, claude),
        (_try_waking_monitor, claude),
        (_try_escape, claude),
        (_try_plugin, claude),
    ]
    if codex := os.environ.get("RUNWARD_CODEX") or shutil.which("codex"):
        attempts += [(try_declining, codex), (try_hook, codex), (try_waking, codex)]
    if opencode := os.environ.get("RUNWARD_OPENCODE") or shutil.which("opencode"):
        attempts += [(try_waking_opencode, opencode)]
    for attempt, program in attempts:
        if names and not any(name in f"{attempt.__module__}.{attempt.__name__}" for name in names):
            continue
        with tempfile.TemporaryDirectory(prefix="runward-clients-") as place:
            sandbox = Sandbox(Path(place), f"runward-clients-{os.getpid()}")
            try:
                print(attempt(sandbox, program), flush=True)
            except AssertionError as error:
                print(f"FAILED {attempt.__name__}: {error}", flush=True)
                return 1
            finally:
                sandbox.close()
    return 0


def _try_task(sandbox: Sandbox, claude: str) -> str:
    """Launch, wait as a task, leave, continue at a new server, end the run: the model is woken with the answer."""
    os.mkfifo(gate := sandbox.path / "gate")

    def script(conversation: Conversation) -> Block:
        if "<task-notification>" in conversation.text:
            return say("I was woken.")
        if not conversation.uses:
            return use(f"{_PREFIX}launch_run", command=f"read -r < {gate}; exit 3")
        if len(conversation.uses) == 1:
            return use(f"{_PREFIX}wait_run", run_ids=_run_id(conversation), until="end")
        return say("My turn ends.")

    model = ScriptedModel(script)
    with model.serve() as url:
        terminal = _prepare(sandbox, claude, url)
        terminal.start()
        terminal.type("Watch a run")
        terminal.wait_for("My turn ends.")
        terminal.wait_for("1 MCP task")
        terminal.leave()
        terminal.start("--continue")
        terminal.wait_for("1 MCP task")
        asked = len(model.conversations)
        _kill_server(sandbox, terminal)
        gate.write_text("\n")
        terminal.wait_for("I was woken.")
        woken = model.conversations[asked]
    run = _only_run(sandbox)
    assert len(model.conversations) == asked + 1, "the model was asked more than once"
    assert re.search(r"exit_code\W+3\b", woken.text), woken.text[-2000:]
    late_s = woken.at_s - posix(str(run.ended_at))
    return f"A task over /exit, --continue and a killed server: woken {late_s:.2f} s after the end, 0 calls in between."


def _try_waking_tasks(sandbox: Sandbox, claude: str) -> str:
    return _try_waking(sandbox, claude, tasks=True)


def _try_waking_monitor(sandbox: Sandbox, claude: str) -> str:
    return _try_waking(sandbox, claude, tasks=False)


def _try_waking(sandbox: Sandbox, claude: str, *, tasks: bool) -> str:
    """Let an idle Claude Code hear of the end of each run by a turn, once, also where the server was killed.

    ``tasks``: by a wait as a task, else by the plugin's monitor, and nobody waits.
    """
    os.mkfifo(gate := sandbox.path / "gate")
    asked: list[tuple[float, str]] = []  # when, and the last block
    ends = [0]

    def script(conversation: Conversation) -> Block:
        last = json.dumps(conversation.blocks[-1])
        is_answer = "tool_result" in last
        is_news = "<task-notification>" in last or "timeout_s=0" in last
        if not conversation.uses or (is_news and not is_answer):
            asked.append((conversation.at_s, last))
            if len(asked) <= WAKES:
                return use(f"{_PREFIX}launch_run", command=f"read -r < {gate}; exit 3", name=f"run{len(asked)}")
        elif tasks and is_answer and conversation.uses[-1].endswith("launch_run"):
            return use(f"{_PREFIX}wait_run", run_ids=_run_id(conversation), until="end")
        ends[0] += 1
        return say("My turn ends.")

    model = ScriptedModel(script)
    late_s = list[float]()
    with model.serve() as url:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        off = {} if tasks else {"CLAUDE_CODE_DISABLE_MCP_TASKS": "1"}
        terminal = replace(_prepare(sandbox, claude, url), more={**sandbox.environ, "PATH": path, **off})
        terminal.start("--plugin-dir", str(Path(__file__).parents[2] / "plugin"))
        terminal.type("Watch a run")
        for number in range(1, WAKES + 1):
            _until(lambda: ends[0] >= number, f"turn {number}", lambda: terminal.screen)  # noqa: B023
            if number % 2:
                kill_servers(sandbox)
            gate.write_text("\n")
            _until(lambda: len(asked) > number, f"the wake by run {number}", lambda: terminal.screen)  # noqa: B023
            run = next(run for run in sandbox.store.list_runs() if run.spec.name == f"run{number}")
            late_s.append(asked[number][0] - posix(str(run.ended_at)))
        time.sleep(_SECOND_WAKE_S)
    way = "whose wait is a task" if tasks else "without tasks, by its monitor"
    return describe_wakes(f"Claude Code, {way}", len(asked) - 1, late_s)


def _kill_server(sandbox: Sandbox, terminal: Terminal) -> None:
    """Kill the process that serves, once the client has listed its tools."""
    _until(lambda: len(find_servers(sandbox)) == 1, "a server", lambda: terminal.screen)
    time.sleep(_CONNECTED_S)
    kill_servers(sandbox)


def _try_escape(sandbox: Sandbox, claude: str) -> str:
    """Ask to stop a run, and press Esc in the dialog: the run goes on."""

    def script(conversation: Conversation) -> Block:
        if not conversation.uses:
            return use(f"{_PREFIX}launch_run", command="sleep 600")
        if len(conversation.uses) == 1:
            return use(f"{_PREFIX}kill_run", run_id=_run_id(conversation))
        return say(
            f"The answer was {re.findall(r'declined|killed|confirmation_required', conversation.results[-1])[0]}."
        )

    model = ScriptedModel(script)
    with model.serve() as url:
        terminal = _prepare(sandbox, claude, url)
        terminal.start()
        terminal.type("Stop a run")
        terminal.wait_for("Stop this run?")
        time.sleep(1)  # a person reads
        terminal.press("Escape")
        terminal.wait_for("The answer was")
        assert "The answer was declined." in terminal.screen, terminal.screen
    assert _only_run(sandbox).state == "running"
    return "Esc in the dialog of kill_run: declined, the run goes on."


def _try_plugin(sandbox: Sandbox, claude: str) -> str:
    """Load the plugin, and let the model stop a training by its name in the shell: it reads the call that does it."""

    def script(conversation: Conversation) -> Block:
        if not conversation.uses:
            return use("Bash", command="pkill -f no_such_training; true", description="stop")
        return say("My turn ends.")

    model = ScriptedModel(script)
    with model.serve() as url:
        terminal = _prepare(sandbox, claude, url)
        plugin = str(Path(__file__).parents[2] / "plugin")
        words = [claude, "-p", "Stop it", "--plugin-dir", plugin, "--allowedTools", "Bash"]
        environ = {"HOME": str(sandbox.path), "ANTHROPIC_BASE_URL": terminal.url, "ANTHROPIC_API_KEY": _KEY}
        environ |= {**sandbox.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        place = sandbox.path / "project"
        subprocess.run(words, env=environ, cwd=place, capture_output=True, timeout=_PATIENCE_S, check=True)
    assert "kill_run(run_id)" in model.conversations[-1].text, model.conversations[-1].text[-2000:]
    return "The plugin's hook: the model reads kill_run beside the answer of its pkill."


def _prepare(sandbox: Sandbox, claude: str, url: str) -> Terminal:
    """Write the settings of a person who has used Claude Code before, and knows this server."""
    path = sandbox.path
    (path / "project").mkdir()
    (path / ".claude").mkdir()
    trusted = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True, "allowedTools": []}
    _write(
        path / ".claude.json",
        {
            "hasCompletedOnboarding": True,
            "theme": "dark",
            "customApiKeyResponses": {"approved": [_KEY[-20:]], "rejected": []},
            "projects": {str(path / "project"): trusted},
        },
    )
    _write(path / ".claude" / "settings.json", {"permissions": {"allow": ["mcp__runward"]}})
    server = {"command": sys.executable, "args": ["-m", "mcp_server"], "env": sandbox.environ}
    _write(path / "mcp.json", {"mcpServers": {"runward": server}})
    return Terminal(sandbox, claude, url)


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def _run_id(conversation: Conversation) -> str:
    """Return the run of the newest launch."""
    launches = [result for result in conversation.results if "next_step" in result]
    return str(re.findall(r"run_id\W+([a-z0-9-]+)", launches[-1])[0])


def _only_run(sandbox: Sandbox) -> Run:
    (run,) = sandbox.store.list_runs()
    return run


def _until(condition: Callable[[], bool], what: str, shown: Callable[[], str]) -> None:
    give_up_s = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_s, f"{what} did not come about:\n{shown()}"
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
