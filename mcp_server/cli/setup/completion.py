"""`runward completion bash|zsh|fish`: completes verbs, flags and the ids of runs, without starting this program."""

import argparse
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence

from mcp_server.cli.parser import list_words

_MOST_RUNS = 200  # the newest
_RUNS = "${RUNWARD_HOME:-${XDG_STATE_HOME:-$HOME/.local/state}/runward}/runs"
_HOW = {
    "bash": 'eval "$(runward completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(runward completion zsh)"   # in ~/.zshrc, behind compinit',
    "fish": "runward completion fish > ~/.config/fish/completions/runward.fish",
}
_FISH_RUNS = f"""function __runward_runs
  set -l home $HOME/.local/state/runward
  set -q XDG_STATE_HOME; and set home $XDG_STATE_HOME/runward
  set -q RUNWARD_HOME; and set home $RUNWARD_HOME
  command ls -t $home/runs 2>/dev/null | head -n {_MOST_RUNS}
end"""


def run(arguments: argparse.Namespace) -> int:
    """Print the script of a shell, and on a terminal how it is used."""
    if sys.stdout.isatty():
        print(f"To use it: {_HOW[arguments.shell]}", file=sys.stderr)
    print(render(arguments.shell))
    return 0


def render(shell: str) -> str:
    """Return the script that a shell reads."""
    verbs = list_words()
    if shell == "fish":
        return "\n".join([_FISH_RUNS, *_list_fish_rules(verbs)])
    cases = "\n".join(
        f"    {verb}) words={_join(word for word in words if word != 'RUN')}; runs={int('RUN' in words)} ;;"
        for verb, words in verbs.items()
    )
    head = "autoload -Uz bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return f"""{head}_runward() {{
  local words='' runs=0 current="${{COMP_WORDS[COMP_CWORD]}}"
  if [ "$COMP_CWORD" -eq 1 ]; then
    words={_join(verbs)}
  else
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
  fi
  if [ "$runs" = 1 ]; then
    words="$words $(command ls -t "{_RUNS}" 2>/dev/null | head -n {_MOST_RUNS})"
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _runward runward"""


def _list_fish_rules(verbs: Mapping[str, Sequence[str]]) -> Iterator[str]:
    yield f"complete -c runward -n __fish_use_subcommand -f -a {_join(verbs)}"
    for verb, words in verbs.items():
        rule = f"complete -c runward -n '__fish_seen_subcommand_from {verb}'"
        yield from (f"{rule} -l {word[2:]}" for word in words if word.startswith("--"))
        if plain := [word for word in words if not word.startswith("-") and word != "RUN"]:
            yield f"{rule} -f -a {_join(plain)}"
        if "RUN" in words:
            yield f"{rule} -f -a '(__runward_runs)'"


def _join(words: Iterator[str] | Sequence[str] | Mapping[str, object]) -> str:
    return shlex.quote(" ".join(words))
