"""The one launch command of a blueprint: out of code blocks, lists and prose into lines that bash runs. Pure."""

# ruff: noqa: RUF001 - people write full-width punctuation, and it is looked for here

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mcp_server.blueprints.sections import Item, Problem, Section, items

# What stands before a command and belongs to it: it prepares, and is over in a moment.
_PREPARES = frozenset(
    """export cd source . set unset ulimit module conda mamba activate pushd popd mkdir eval trap umask alias
    echo printf which nvidia-smi sleep date pwd ls wait true deactivate shopt stty hostname whoami nproc
    test [ [[ : cp ln rm touch chmod df free uname""".split()  # noqa: SIM905 - as bash lists them
)
_PREPARES_TWO = re.compile(
    r"(ray (start|stop)|pip3? (install|list)|python3? -m pip|uv (sync|pip)|git |wandb (login|offline)"
    r"|(hf|huggingface-cli) (login|download))\b"
)
_PROGRAMS = frozenset(
    """python python3 bash sh zsh torchrun accelerate deepspeed uv poetry conda mamba make doit nohup env srun mpirun
    ray docker time timeout numactl taskset exec xvfb-run sudo node cargo go just hydra pixi pdm hatch setsid stdbuf
    tmux screen sbatch""".split()  # noqa: SIM905 - as above
)
_SHELLS = frozenset({"bash", "sh", "shell", "zsh", "console", "shell-session", "terminal", "shellscript"})
_NO_LANGUAGE = frozenset({"", "text", "txt", "cmd", "plaintext", "command"})
_OUTPUT = re.compile(
    r"^\W*(?:expected|sample|example|typical)\s+(?:console |log )?outputs?\b.{0,60}$"
    r"|\b(?:outputs?|prints?)\W{0,4}[:：]\W*$|输出\W{0,4}$",
    re.IGNORECASE,
)
_OTHER_LABELS = re.compile(
    r"(description|desc|hint|note|warning|example|e\.g|remark|comment|why|notes|说明|提示|注意|备注|描述|警告|示例|例如)\s*\d*"
)
_PROMPT = re.compile(
    r"^(?:\([\w.-]+\)\s*)?(?:[\w.-]+@[\w.-]+[:\s][^$#\s]*\s*)?\$\s+|^[\w.-]+@[\w.-]+:[^$#\s]*#\s+|^>\s+(?!&)"
)
_ASSIGNS = re.compile(r"^(?:export\s+)?[A-Za-z_]\w*=")
_LEADING = re.compile(r"""^(?:[A-Za-z_]\w*=(?:"[^"]*"|'[^']*'|[^\s"'])*\s+)+""")
_BLOCKS = re.compile(r"<<-?\s*['\"]?\w|^\s*(?:for|while|until|if|case|function|select)\b|^\s*(?:\{|\()\s*$|\(\)\s*\{")
_DETACHED = re.compile(r"\b(?:tmux\s+(?:\S+\s+)*?new(?:-session)?\b.*\s-\w*d|tmux\s+(?:\S+\s+)*send|screen\s+-\w*d)")
_TO_FILE = re.compile(r"(?<![\d&<>])(?:1|&)?>>?\s*(?P<file>(?!&|/dev/)[^\s&;|<>]+)(?:\s+2>(?:&1|\S+))?\s*$")


@dataclass(frozen=True)
class Command:
    """A launch command, the line of the document where it begins, and what is wrong with it."""

    text: str | None
    line: int
    wrong: tuple[Problem, ...] = ()


def command_of(section: Section) -> Command:
    """Return the launch command that ``section`` holds; preparing lines before it belong to it."""
    wrong: list[Problem] = []
    found: list[tuple[int, str]] = []
    for piece in _pieces(section, wrong):
        found += _logical(piece, wrong)
    real = [(line, text) for line, text in found if not _prepares(text)]
    if not real:
        if found:
            wrong.append(
                Problem(found[0][0], "only prepares (variables, directories): the launch command itself is missing.")
            )
        return Command(None, section.line, tuple(wrong))
    for line, text in real[1:]:
        wrong.append(
            Problem(
                line,
                f"a second launch command, {text[:60]!r}: a blueprint has one launch command. "
                "Should it belong to it, join them with &&.",
            )
        )
    last = real[0][0]
    lines = [text for line, text in found if line <= last]
    lines[-1], more = _kept_running(real[0][0], lines[-1])
    return Command("\n".join(lines), real[0][0] if len(lines) == 1 else found[0][0], (*wrong, *more))


def filled(command: str, values: Mapping[str, str]) -> str:
    """Put ``values`` where the command says ``${name}``, ``$name`` or ``{name}``; what it assigns itself is left."""
    names = [name for name in values if not re.search(rf"(?:^|[\s;&]){re.escape(name)}=", command)]
    if not names:
        return command
    any_name = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    place = re.compile(rf"\$?\{{\s*(?P<braced>{any_name})\s*(?::-[^{{}}]*)?\}}|\$(?P<plain>{any_name})(?!\w)")
    told, end, quote = [], 0, ""
    for match in place.finditer(command):
        value = values[match["braced"] or match["plain"]]
        quote, _ = _scan(command[end : match.start()], quote)
        told += [command[end : match.start()], _quoted(value, quote)]
        end = match.end()
    return "".join(told) + command[end:]


def unknown_names(command: str) -> list[str]:
    """Return variables that only a blueprint could fill in, and none does: ``${exp_something}``."""
    assigned = set(re.findall(r"(?:^|[\s;&])([A-Za-z_]\w*)=", command))
    asked = re.findall(r"\$?\{\s*(exp_\w+)\s*\}|\$(exp_\w+)", command, re.IGNORECASE)
    return [name for pair in asked for name in pair if name and name not in assigned]


def looks_like_command(text: str) -> bool:
    """Whether a line outside of code blocks is a command rather than prose."""
    rest = _LEADING.sub("", text + " ").strip().rstrip("\\")
    if not rest:
        return bool(_ASSIGNS.match(text))
    first = rest.split()[0].rstrip(";")
    if first in _PROGRAMS | _PREPARES or re.match(
        r"(?:\.{1,2}|~|\$\{?\w+\}?)?/[\w.$/{}-]+$|python[0-9.]+$|[\w./-]+\.(?:sh|py)$", first
    ):
        return not re.search(r"[。！？]|[a-z]\.$", text)
    named = bool(re.match(r"[a-z][\w.-]*$", first)) and not re.search(r"[。，；！？]|\.$|\w, \w", text)
    return named and (" -" in rest or "=" in rest or len(rest.split()) == 1)


def _pieces(section: Section, wrong: list[Problem]) -> Iterator[list[tuple[int, str]]]:
    """Yield runs of lines that may be commands: of code blocks if there are any, else of items, else inline code."""
    if re.fullmatch(r"[|>][+-]?", section.inline):
        yield _folded(section)
        return
    said = [item for item in items(section) if not _OTHER_LABELS.fullmatch(item.label)]
    if (blocks := _blocks_of(section)) and not looks_like_command(section.inline.strip("`")):
        yield from blocks
        return
    outside = [item for item in said if not item.code]
    lines = list(_bare_lines(section, outside))
    for number, text in _going_on(section, lines):
        wrong.append(Problem(number, f"goes on with {text[:40]!r}? Then end the line above with a backslash."))
    if lines:
        yield lines
        return
    for item in outside:
        spans = [span for span in re.findall(r"`([^`]+)`", item.text) if " " in span.strip()]
        if spans:
            yield [(item.line, span) for span in spans]


def _blocks_of(section: Section) -> list[list[tuple[int, str]]]:
    """Return the code blocks that may hold the command; what is marked as shell counts before the others."""
    blocks: dict[int, list[tuple[int, str]]] = {}
    language: dict[int, str] = {}
    above = ""
    for line in section.lines:
        if line.fence is None:
            above = line.text if line.text.strip() else above
        elif line.block in blocks or not blocks or not _OUTPUT.search(above):  # the first is the command
            blocks.setdefault(line.block, []).append((line.number, line.text))
            language[line.block] = (line.fence.split() or [""])[0].strip("{}.")
    for group in (_SHELLS, _NO_LANGUAGE):
        if chosen := [lines for block, lines in blocks.items() if language[block] in group]:
            return chosen
    return []


def _folded(section: Section) -> list[tuple[int, str]]:
    """Return the lines below ``exp_launch_command: |`` or ``>``, as YAML reads them."""
    lines = [(line.number, line.text) for line in section.lines if line.text.startswith((" ", "\t"))]
    if section.inline.startswith(">") and lines:
        return [(lines[0][0], " ".join(text.strip() for _, text in lines))]
    return lines


def _going_on(section: Section, lines: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield lines right below a command that are options and no command: nothing joins them to it."""
    taken = {number for number, _ in lines}
    for line in section.lines:
        if line.number - 1 in taken and line.number not in taken and re.match(r"\s*--?[A-Za-z]", line.text):
            yield line.number, line.text.strip()


def _bare_lines(section: Section, said: Iterable[Item]) -> Iterator[tuple[int, str]]:
    """Yield the lines of commands that stand in no code block, with those that continue them."""
    raw = {line.number: line.text for line in section.lines if line.fence is None}
    whole = {item.line: item for item in said}
    continued = False
    for number in sorted({*raw, *whole}):
        item = whole.get(number)
        text = raw.get(number, "").strip() if continued else item.text if item else ""
        if not text:
            continued = False
            continue
        whole_in = re.fullmatch(r"`([^`]+)`|\"([^\"]+)\"|'([^']+)'", text)
        bare = (whole_in[1] or whole_in[2] or whole_in[3]).strip() if whole_in else text
        if continued or (item and (_PROMPT.match(_raw(raw, number, bare)) or looks_like_command(bare))):
            yield number, bare
            continued = bare.rstrip().endswith(("\\", "&&", "||", "|"))


def _raw(raw: Mapping[int, str], number: int, text: str) -> str:
    return (
        text if text.startswith("$") else raw.get(number, "").strip() if raw.get(number, "").startswith("$") else text
    )


def _logical(piece: list[tuple[int, str]], wrong: list[Problem]) -> Iterator[tuple[int, str]]:
    """Join the physical lines of one piece to commands; strip prompts and comments."""
    texts = [text for _, text in piece if text.strip()]
    depth = min((len(text) - len(text.lstrip()) for text in texts), default=0)
    if any(_BLOCKS.search(text) for text in texts) and not any(_PROMPT.match(text[depth:]) for text in texts):
        first = next(number for number, text in piece if text.strip())
        yield first, "\n".join(text[depth:].rstrip() for _, text in piece).strip("\n")
        return
    prompted = any((prompt := _PROMPT.match(text[depth:])) and prompt[0][0] != ">" for text in texts)
    begun, quote = 0, ""
    parts: list[str] = []
    for number, text in piece:
        line = text[depth:].rstrip() if text.strip() else ""
        if prompted and not parts and not _PROMPT.match(line):
            continue  # what the command printed
        line = _PROMPT.sub("", line, count=1)
        if not quote and (not line.strip() or line.lstrip().startswith("#")):
            continue
        quote, comment = _scan(line, quote)
        line = line[:comment].rstrip()
        begun = begun or number
        parts.append(line)
        if quote or line.endswith(("\\", "&&", "||", "|")):
            continue
        yield begun, "\n".join(parts).strip()
        begun, parts = 0, []
    if parts:
        whole = "\n".join(parts).strip().rstrip("\\").rstrip()
        if quote:
            wrong.append(Problem(begun, "a quote is opened here and never closed."))
        elif whole.endswith(("&&", "||", "|")):
            wrong.append(Problem(piece[-1][0], f"ends with {whole.split()[-1]}: the rest of the command is missing."))
        yield begun, whole


def _prepares(text: str) -> bool:
    """Whether a command only prepares another: all its parts do."""
    if _BLOCKS.search(text):
        return False
    flat = text.replace("\\\n", " ")
    for part in re.split(r"&&|\|\||;|\n", flat):
        words = _LEADING.sub("", part.strip() + " ").split()
        if words and words[0] not in _PREPARES and not _PREPARES_TWO.match(" ".join(words[:3])):
            return False
    return True


def _kept_running(line: int, text: str) -> tuple[str, list[Problem]]:
    """Return a command that stays in the foreground, and what was wrong with it."""
    wrong = []
    if re.search(r"(?<!&)&\s*(?:disown\b.*)?$", text):
        text = re.sub(r"\s*(?<!&)&\s*(?:disown\b.*)?$", "", text)
        wrong.append(
            Problem(
                line,
                "the trailing & is left out: the run would end at once. It outlives the agent anyway.",
                fatal=False,
            )
        )
    if _DETACHED.search(text):
        wrong.append(Problem(line, "starts a session of its own and ends at once: write the command that runs in it."))
    elif to_file := _TO_FILE.search(text):
        told = f"its output goes to {to_file['file']}, where nobody watches it: leave that out, it is logged anyway."
        wrong.append(Problem(line, told, fatal=False))
    return text, wrong


def _scan(text: str, quote: str = "") -> tuple[str, int | None]:
    """Return the quote that is open at the end of ``text``, and where its comment begins; ``quote`` is open before."""
    escaped = False
    for index, char in enumerate(text):
        if escaped:
            escaped = False
        elif char == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#" and index and text[index - 1].isspace():
            return quote, index
    return quote, None


def _quoted(value: str, quote: str) -> str:
    if quote == '"':
        return re.sub(r'(["\\$`])', r"\\\1", value)
    return value.replace("'", "'\\''") if quote else shlex.quote(value)
