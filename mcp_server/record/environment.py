"""The environment that a run inherits from the process that launches or requeues it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from mcp_server.text.regex import compile_lazily
from mcp_server.text.secret_patterns import holds_a_secret

# Variables of the launcher itself, of another terminal, and of the agent's client. Programs act on those of a client:
# CLAUDECODE stops a Claude Code in a run, CODEX_SANDBOX_NETWORK_DISABLED and VSCODE_* change tests and tools.
_NOT_INHERITED = compile_lazily(
    r"RUNWARD_.*|TMUX|TMUX_PANE|TERM|TERM_PROGRAM.*|COLUMNS|LINES|_|SHLVL|PWD|OLDPWD"
    r"|CLAUDECODE|CLAUDE_(?:CODE|AGENT_SDK|PLUGIN|PROJECT)_.*|CLAUDE_(?:ENV_FILE|EFFORT)|AI_AGENT"
    r"|CODEX_.*|GEMINI_CLI.*|CURSOR_.*|VSCODE_.*|ELECTRON_RUN_AS_NODE"
    r"|MCP_(?:TOOL_)?TIMEOUT|MCP_(?:CLIENT|CONNECTION|SERVER_CONNECTION|OAUTH|XAA)_.*|MAX_MCP_OUTPUT_TOKENS"
)


def base_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the part of ``environ`` that a run inherits: without secrets, terminals, and variables of launchers."""
    inherited = {n: v for n, v in environ.items() if not holds_a_secret(n, v) and not _NOT_INHERITED.fullmatch(n)}
    if not any(name in inherited for name in ("LANG", "LC_ALL", "LC_CTYPE")):
        inherited["LANG"] = "C.UTF-8"  # clients pass on no locale, and logs are UTF-8
    return inherited
