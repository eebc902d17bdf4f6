"""The launch command of a blueprint, from code blocks, lists or prose, as lines that bash runs. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mcp_server.blueprints.fields import NEGATION, PROSE_WORDS
from mcp_server.blueprints.front_matter import YamlFault, fold_scalar
from mcp_server.blueprints.markdown import SourceLine, code_spans
from mcp_server.blueprints.sections import BlueprintFault, Section, SectionItem, is_explanation, read_items
from mcp_server.command.programs import PAUSES, PREPARES, PYTHON_LAUNCHERS, REPORTS, RUNNERS, SETTINGS, SHELLS, WRAPPERS
from mcp_server.command.shell import SimpleCommand, parse
from mcp_server.command.words import read_characters, scan_quotes

# Lines behind a command that only report are left out: their exit code would be the run's.
_REPORTING_PROGRAMS = REPORTS | SETTINGS | PAUSES | {"popd"}
_PREPARING_COMMANDS = re.compile(
    r"(ray (start|stop)|pip3? (install|list)|python3? -m pip|uv (sync|pip)|git |wandb (login|offline)"
    r"|(hf|huggingface-cli) (login|download))\b"
)
_PLAIN_WORDS = frozenset({"command", "hash", "id", "nice", "parallel", "type", "watch"})  # a sentence has them, too
_PROGRAMS = (
    frozenset(
        """python python3 make doit srun mpirun ray docker node cargo go just hydra tmux screen sbatch""".split()  # noqa: SIM905 - words
    ).union(WRAPPERS, RUNNERS, SHELLS, PYTHON_LAUNCHERS, PREPARES)
    - _PLAIN_WORDS
)
_SHELL_LANGUAGES = frozenset({"bash", "sh", "shell", "zsh", "console", "shell-session", "terminal", "shellscript"})
_PLAIN_LANGUAGES = frozenset({"", "text", "txt", "cmd", "plaintext", "command"})
_OUTPUT_INTRODUCTION = re.compile(
    r"^\W*(?:expected|sample|example|typical)\s+(?:console |log )?outputs?\b.{0,60}$"
    r"|\b(?:outputs?|prints?|shows?|logs?|looks? like|expect\w*|should see|ausgabe)\b.{0,40}[:：]\W*$|输出.{0,8}$",
    re.IGNORECASE,
)
_NOT_TO_RUN = re.compile(
    r"\b(?:do not|don'?t|never|not to(?: be)?) (?:run|launch|start|use)\b"
    r"(?! (?:it |this )?(?:on|in|with\w*|before|as|twice|more)\b)"
    r"|\bfor (?:reference|comparison|debugging)\b|\bnot (?:for|part of|in) this (?:run|blueprint)\b|\bto resume\b"
    r"|\balready (?:done|ran|run|finished)\b|\b(?:was|were) (?:run|launched|started|trained) (?:with|by|as)\b"
    r"|nicht (?:ausführen|starten|laufen)|ne pas (?:lancer|exécuter)"
    r"|不要再?[运跑执启用]|不用再?跑|仅供(?:参考|对照)|已经?跑[完过]",
    re.IGNORECASE,
)
_PROMPT = re.compile(
    r"^(?:\([\w.-]+\)\s*)?(?:[\w.-]+@[\w.-]+[:\s][^$#\s]*\s*)?\$\s+|^[\w.-]+@[\w.-]+:[^$#\s]*#\s+|^>\s+(?!&)"
    r"|^(?:In ?\[\d*\]:|>>>)\s*!?\s*|^!(?=[A-Za-z./~])"
)
_PYTHON_LINE = re.compile(
    r"%{1,2}[a-z]\w*|(?:from\s+[\w.]+\s+)?import\s+[A-Za-z_]|[A-Za-z_][\w.]*\(.*\)\s*$|Out ?\[\d*\]:|\.\.\.:? "
)
_COPIED = re.compile(
    r"(?P<quote>[“”‘’„«»])|(?<=\s)(?P<dash>[–—−]{1,2})(?=[A-Za-z])|(?P<entity>&(?:amp|lt|gt|quot|#39|nbsp);)|(?P<blank>\u3000)|(?P<wide>[＝；＆｜])|(?P<link>\[[^\[\]\s]+\]\((?:https?://|file://|\.{0,2}/|[\w.-]+/)[^()\s]*\))"
)
_ASSIGNMENT = re.compile(r"^(?:export\s+)?[A-Za-z_]\w*=")
_LEADING_ASSIGNMENTS = re.compile(r"""^(?:[A-Za-z_]\w*=(?:"[^"]*"|'[^']*'|[^\s"'])*\s+)+""")
_SHELL_BLOCK = re.compile(
    r"<<-?\s*['\"]?\w|^\s*(?:for|while|until|if|case|function|select)\b|^\s*(?:\{|\()\s*$|\(\)\s*\{",
    re.MULTILINE,
)
_STOPS = re.compile(r"kill\s[^;&|\n]*")
_BACKGROUND = re.compile(r"\s*(?<!&)&\s*(?:disown\b.*)?$")
_TRAINING = re.compile(r"(?:^|[\W_])(?:pre)?(?:train|finetun|fine[_-]tun|sft|ppo|grpo|dpo)", re.IGNORECASE)
_DETACHED = re.compile(r"\b(?:tmux\s+(?:\S+\s+)*?new(?:-session)?\b.*\s-\w*d|tmux\s+(?:\S+\s+)*send|screen\s+-\w*d)")
_OUTPUT_TO_FILE = re.compile(r"(?<![\d&<>])(?:1|&)?>>?\s*(?P<file>(?!&|/dev/)[^\s&;|<>]+)(?:\s+2>(?:&1|\S+))?\s*$")


_HTML = re.compile(r"</?(?:pre|code|span|font|table|t[rdh]|ul|ol|li|div|p)\b[^<>]*>", re.IGNORECASE)
_LIST = re.compile(r"\[.*\]", re.DOTALL)
_PROSE_SIGN = re.compile(r"^[–—→←]$|^[\u3000-\u303f\uff00-\uff0f\uff1a-\uff1f]|[，。；！？（）,]$")
Lines = list[tuple[int, str]]  # line numbers and texts


@dataclass(frozen=True)
class LaunchCommand:
    """A launch command, the line of the document where it begins, and its faults."""

    text: str | None
    line: int
    faults: tuple[BlueprintFault, ...] = ()


def read_command(section: Section) -> LaunchCommand:
    """Return the launch command in ``section``, with the preparing lines in front of it."""
    if (argv := _read_argv(section)) is not None:
        return argv
    faults: list[BlueprintFault] = []
    commands: Lines = []
    for piece in _find_pieces(section, faults):
        commands += _join_lines(piece, faults)
    for line, text in commands:
        if _PYTHON_LINE.match(text):
            cause = f"{text[:60]!r} is Python, not a shell command: write the command as a shell runs it."
            return LaunchCommand(None, line, (BlueprintFault(line, cause),))
    launches = [(line, text) for line, text in commands if not _only_prepares(text)]
    stops = {text for _, text in launches if _STOPS.fullmatch(text)}
    last = next((text for _, text in reversed(launches) if text not in stops), "")
    helpers = [text for _, text in commands if text != last and _is_helper(text, last)]
    others = {*helpers, *(stops if helpers else ())}
    launches = [(line, text) for line, text in launches if text not in others]
    if not launches:
        if commands:
            text = "only prepares (variables, directories): the launch command itself is missing."
            faults.append(BlueprintFault(commands[0][0], text))
        return LaunchCommand(None, section.line, tuple(faults))
    if launches[0][1].startswith("-"):
        faults.append(BlueprintFault(launches[0][0], f"{launches[0][1][:60]!r} is no command, but options of one."))
    if text := _find_unreadable(launches[0][1]):
        faults.append(BlueprintFault(launches[0][0], text))
    for line, text in (*launches[1:], *((launches[0][0], text) for text in _find_later(launches[0][1]))):
        cause = f"a second launch command, {text[:60]!r}: a blueprint has one launch command. "
        faults.append(BlueprintFault(line, f"{cause}If it belongs to the first, join them with &&."))
    first = next(index for index, command in enumerate(commands) if command == launches[0])
    line, launch = commands[first]
    behind = [command for command in commands[first + 1 :] if _only_prepares(command[1]) or command[1] in others]
    launch, more = _keep_in_foreground(line, launch)
    kept, left_out = _keep_behind(behind, has_helpers=bool(helpers))
    faults += [*more, *left_out, *_find_copied_marks(commands)]
    texts = [*(text for _, text in commands[:first]), launch, *kept]
    return LaunchCommand("\n".join(texts), commands[0][0], tuple(faults))


def _read_argv(section: Section) -> LaunchCommand | None:
    """Return the command that is the section's only content, written as an array of words, ``["python", "a.py"]``."""
    rows = [(line.number, line.text) for line in section.all_lines if line.text.strip()]
    if section.exact is not None:
        rows = [(section.line, section.exact)]
    text = "\n".join(text for _, text in rows).strip().strip("`")
    if not text.startswith("["):
        return None
    try:
        words = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not words or not all(isinstance(word, str) for word in words):
        return None
    if len(words) == 1:
        return LaunchCommand(words[0], rows[0][0])
    if " " in words[0]:
        return None  # several commands, or a sentence
    return LaunchCommand(shlex.join(words), rows[0][0])


def _find_unreadable(text: str) -> str:
    """Return why bash cannot read a command, as a remark in brackets behind it; an empty text where it can."""
    for command in parse(text).commands:
        if command.separator == "(" and command.words and not _SHELL_BLOCK.search(text):
            return f"bash cannot read the bracket behind {' '.join(command.words)[-40:]!r}: write the command alone."
    return ""


def _find_later(text: str) -> Iterator[str]:
    """Yield what a line runs behind its launch command and a semicolon, so that the exit code is not the command's."""
    commands = parse(text).commands
    if _SHELL_BLOCK.search(text) or not all(command.is_certain for command in commands):
        return
    has_launch, separator = False, ""
    for command in commands:
        if command.program not in ("", "}", ")") and separator in ("", ";", "\n") and not _prepares(command):
            if has_launch and command.program not in _REPORTING_PROGRAMS | {"exit", "wait"}:
                yield " ".join(command.words)
            has_launch = True
        separator = command.separator


def _is_helper(text: str, launch: str) -> bool:
    """Return whether a line in front of the launch command starts something else than a training in the background."""
    if _BACKGROUND.search(text) is None or _TRAINING.search(text) or _BACKGROUND.search(launch):
        return False
    scripts = [set(re.findall(r"[^\s=]+\.(?:py|sh)\b|(?<=-m )\S+", command)) for command in (text, launch)]
    return not scripts[0] & scripts[1]  # the same program twice is two runs


def _keep_behind(behind: Lines, *, has_helpers: bool) -> tuple[list[str], list[BlueprintFault]]:
    """Return the lines to keep behind the launch command: all if the last exits with a code of its own, else none.

    ``has_helpers``: processes in the background end with the run, so that nobody needs to stop them.
    """
    if behind and re.match(r"\s*(?:exit|return)\b", behind[-1][1]):
        return [text for _, text in behind], []
    faults = []
    for line, text in behind:
        programs = {command.program for command in parse(text).commands} - {""}
        if programs <= {"wait", "disown"}:
            continue  # for the command itself, which stays in the foreground
        if programs <= (_REPORTING_PROGRAMS | {"kill"} if has_helpers else _REPORTING_PROGRAMS):
            cause = f"{text[:60]!r} is left out: behind the launch command its exit code would be the run's."
            faults.append(BlueprintFault(line, cause, fatal=False))
        else:
            cause = (
                f"{text[:60]!r} behind the launch command would hide its exit code: join them with &&, "
                "or end with exit."
            )
            faults.append(BlueprintFault(line, cause))
    return [], faults


def _find_copied_marks(commands: Lines) -> Iterator[BlueprintFault]:
    """Yield marks that a word processor put into a command, which bash reads as letters."""
    for line, text in commands:
        for mark in _COPIED.finditer(text):
            quote, _ = scan_quotes(text[: mark.start()])
            if quote and not mark["entity"]:
                continue  # part of a text
            number = line + text.count("\n", 0, mark.start())
            cause = f"the command has {mark[0]!r}, which bash takes for a letter: type it again in plain characters."
            yield BlueprintFault(number, cause)
            return


def fill_variables(command: str, values: Mapping[str, str]) -> str:
    """Replace ``${name}``, ``$name`` and ``{name}`` by ``values``, except names that the command assigns itself."""
    names = [name for name in values if not re.search(rf"(?:^|[\s;&]){re.escape(name)}=", command)]
    if not names:
        return command
    any_name = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    variable = re.compile(rf"\$?\{{\s*(?P<braced>{any_name})\s*(?::-[^{{}}]*)?\}}|\$(?P<plain>{any_name})(?!\w)")
    parts, end, quote = [], 0, ""
    for match in variable.finditer(command):
        value = values[match["braced"] or match["plain"]]
        quote, _ = scan_quotes(command[end : match.start()], quote)
        parts += [command[end : match.start()], _quote_value(value, quote)]
        end = match.end()
    return "".join(parts) + command[end:]


def find_unknown_names(command: str) -> list[str]:
    """Return variables such as ``${exp_something}``, which only a blueprint could define and none does."""
    assigned = set(re.findall(r"(?:^|[\s;&])([A-Za-z_]\w*)=", command))
    variables = re.findall(r"\$?\{\s*(exp_\w+)\s*\}|\$(exp_\w+)", command, re.IGNORECASE)
    return [name for pair in variables for name in pair if name and name not in assigned]


def looks_like_command(text: str) -> bool:
    """Return whether a line outside of code blocks is a command rather than prose."""
    rest = _LEADING_ASSIGNMENTS.sub("", text + " ").strip().rstrip("\\")
    if not rest:
        return bool(_ASSIGNMENT.match(text))
    first = rest.split()[0].rstrip(";")
    if re.match(r"[A-Za-z_]\w*\+?=\(", text):
        return True
    if first in _PROGRAMS or re.match(
        r"(?:\.{1,2}|~|\$\{?\w+\}?|\{\w+\})?/[\w.$/{}+-]+$|python[0-9.]+$|[\w./-]+\.(?:sh|py)$|[\w.-]+/(?:[\w.-]+/)*[\w.-]+$"
        r"|\$\{?\w+\}?$|\{exp_\w+\}$",
        first,
    ):
        return not re.search(r"[。！？]|[a-z]\.$", text)
    if first not in _PROGRAMS and re.search(r"\s`[^`]+ [^`]+`", rest):
        return False  # a sentence about a command
    is_program = bool(re.match(r"[a-z][\w.-]*$", first)) and not re.search(r"[。，；！？]|\.$|\w, \w", text)
    return is_program and (" -" in rest or "=" in rest or len(rest.split()) == 1)


def _find_pieces(section: Section, faults: list[BlueprintFault]) -> Iterator[Lines]:
    """Yield groups of lines that may be commands: from code blocks, else from items, else from inline code."""
    if section.exact is not None:
        yield [(section.line + index, text) for index, text in enumerate(section.exact.split("\n"))]
        return
    if re.fullmatch(r"[|>][+-]?", section.inline):
        below = [
            (line.number, line.text)
            for line in section.lines
            if line.text.startswith((" ", "\t")) or not line.text.strip()
        ]
        try:
            yield fold_scalar(section.inline, below) if below else []
        except YamlFault as fault:
            faults.append(BlueprintFault(fault.line, f"the launch command is {fault.text}."))
        return
    items = [item for item in read_items(section) if not is_explanation(item.label)]
    if (blocks := _command_blocks(section)) and not looks_like_command(section.inline.strip("`")):
        yield from blocks
        return
    if joined := list(_spans_over_lines(section)):
        yield joined
        return
    items = [item for item in items if not item.is_code]
    lines = list(_unfenced_commands(section, items, faults))
    faults += _find_continuations(section, lines)
    faults += _find_unread(items, has_command=bool(lines))
    if lines:
        yield lines
        return
    for item in items:
        if spans := [span for span in code_spans(item.text) if " " in span.strip()]:
            yield [(item.line, span) for span in spans]


def _spans_over_lines(section: Section) -> Iterator[tuple[int, str]]:
    """Yield the lines of a paragraph that is inline code over several lines; markdown joins them by a blank."""
    lines = [line for line in section.all_lines if line.fence is None]
    text = "\n".join("" if line.list_mark else line.text.rstrip() for line in lines)
    span = re.search(r"(?:^|\n)[ \t>]*`([^`\n]+\n(?:[^`\n]+\n)*[^`\n]*)`\.?(?=\n|$)", text)
    if span is not None:
        first = lines[text.count("\n", 0, span.start(1))].number
        joined = re.sub(r"(?<!\\)\n\s*", " ", span[1])
        yield from ((first + index, part) for index, part in enumerate(joined.split("\n")))


def _command_blocks(section: Section) -> list[Lines]:
    """Return the code blocks that may hold the command: those marked as shell, else those without a language."""
    blocks: dict[int, Lines] = {}
    languages: dict[int, str] = {}
    above, leaves_out = "", False
    for line in section.lines:
        if line.fence is None:
            above = line.text if line.text.strip() else above
        elif line.block not in blocks and _NOT_TO_RUN.search(re.split(r"[.。;；!]\s*(?=\w)", above)[-1]):
            leaves_out = True
        elif line.block in blocks or not blocks or not _OUTPUT_INTRODUCTION.search(above):  # the first has the command
            blocks.setdefault(line.block, []).append((line.number, line.text))
            languages[line.block] = (line.fence.split() or [""])[0].strip("{}.")
    chosen = [block for block in blocks if languages[block] in _SHELL_LANGUAGES]
    texts = {block: [text.strip() for _, text in lines if text.strip()] for block, lines in blocks.items()}
    plain = [
        block
        for block, language in languages.items()
        if language in _PLAIN_LANGUAGES
        or (language in ("python", "py") and texts[block] and texts[block][0].split()[0] in _PROGRAMS)
    ]
    plain = [block for block in plain if not leaves_out or (texts[block] and looks_like_command(texts[block][0]))]
    more = [
        block for block in plain if all(looks_like_command(text) and not _find_prose(text) for text in texts[block])
    ]
    return [blocks[block] for block in (sorted([*chosen, *more]) if chosen else plain)]


def _find_unread(items: Iterable[SectionItem], *, has_command: bool) -> Iterator[BlueprintFault]:
    """Yield items outside of code blocks that belong to the command and are not read as such."""
    for item in items:
        if _HTML.match(item.text) or (has_command and item.label and _LIST.fullmatch(item.text)):
            text = f"{item.text[:40]!r} is not read as part of the command: write the command in a code block."
            yield BlueprintFault(item.line, text)
        elif not has_command and item.text.lstrip().startswith("`") and item.text.count("`") % 2:
            text = f"{item.text[:40]!r} begins code that ends on another line: write the command in a code block."
            yield BlueprintFault(item.line, text)
        elif not has_command and code_spans(item.text) and NEGATION.search(re.sub(r"`[^`]*`", "", item.text)):
            yield BlueprintFault(item.line, f"says more than a command: {item.text[:60]!r}. Write the command alone.")


def _find_continuations(section: Section, lines: Sequence[tuple[int, str]]) -> Iterator[BlueprintFault]:
    """Yield faults for lines of options right below a command that no backslash joins to it."""
    numbers, texts = {number for number, _ in lines}, {text for _, text in lines}
    is_above = False
    for line in section.all_lines:
        bare = line.content.strip("` ")
        is_read = bare in texts or (line.number in numbers and line in section.lines)
        if is_above and not is_read and re.match(r"--?[A-Za-z]", bare):
            yield BlueprintFault(line.number, f"goes on with {bare[:40]!r}? Then end the line above with a backslash.")
        is_above = is_read


def _unfenced_commands(
    section: Section, items: Iterable[SectionItem], faults: list[BlueprintFault]
) -> Iterator[tuple[int, str]]:
    """Yield the lines of commands outside of code blocks, with their continuation lines."""
    rows = {id(line): line for line in section.all_lines if line.fence is None}
    pending = list(items)
    continues = False
    for line in rows.values():
        is_item = bool(pending) and pending[0].line == line.number and _is_text_of(pending[0].text, line)
        item = pending.pop(0) if is_item else None
        text = line.content if continues else item.text if item else ""
        if not text:
            continue  # a command that ends with a backslash goes on behind an empty line, too, for who reads it
        quoted = not continues and re.fullmatch(r"`([^`]+)`|\"([^\"]+)\"|'([^']+)'", text.strip())
        bare = (quoted[1] or quoted[2] or quoted[3]).strip() if quoted else text
        prompted = line.content if line.content.startswith("$") else bare
        if continues or (item and (_PROMPT.match(prompted) or looks_like_command(bare))):
            if not quoted and (word := _find_prose(bare)):
                text = (
                    f"where does the command end, at {word[:20]!r} in {bare[:60]!r}? Write it in a code block, alone."
                )
                faults.append(BlueprintFault(line.number, text))
            yield line.number, bare
            continues = bare.rstrip().endswith(("\\", "&&", "||", "|"))


def _find_prose(text: str) -> str:
    """Return the word of a line outside of code with which prose begins behind the command, else an empty text."""
    before = "-"
    for word in (word for command in parse(text).commands for word in command.words):
        if _PROSE_SIGN.search(word) or (word.lower() in PROSE_WORDS and not before.startswith("-")):
            return word
        before = word
    return ""


def _is_text_of(text: str, line: SourceLine) -> bool:
    return text in (line.text, line.plain, line.content) or text.strip("`") in line.text.replace("\\|", "|")


def _join_lines(piece: Lines, faults: list[BlueprintFault]) -> Iterator[tuple[int, str]]:
    """Yield the commands of one piece, each from its physical lines, without prompts and comments."""
    texts = [text for _, text in piece if text.strip()]
    depth = min((len(text) - len(text.lstrip()) for text in texts), default=0)
    if any(_SHELL_BLOCK.search(text) for text in texts) and not any(_PROMPT.match(text[depth:]) for text in texts):
        first = next(number for number, text in piece if text.strip())
        yield first, "\n".join(text[depth:].rstrip() for _, text in piece).strip("\n")
        return
    has_prompts = any((prompt := _PROMPT.match(text[depth:])) and prompt[0][0] != ">" for text in texts)
    first, quote, brackets = 0, "", 0
    parts: list[str] = []
    for number, text in piece:
        line = text[depth:].rstrip() if text.strip() else ""
        if has_prompts and not parts and not _PROMPT.match(line):
            continue  # output of the command
        line = _PROMPT.sub("", line, count=1)
        if not quote and (not line.strip() or line.lstrip().startswith("#")):
            continue
        opened = quote
        quote, comment = scan_quotes(line, quote)
        line = line[:comment].rstrip()
        if brackets or "(" in line:
            brackets = max(0, brackets + _count_brackets(line, opened))
        first = first or number
        parts.append(line)
        if quote or brackets or line.endswith(("\\", "&&", "||", "|")):
            continue
        yield first, "\n".join(parts).strip()
        first, parts = 0, []
    if parts:
        yield first, _end_command(parts, quote, brackets, first, piece[-1][0], faults)


def _end_command(
    parts: Sequence[str], quote: str, brackets: int, first: int, last: int, faults: list[BlueprintFault]
) -> str:
    """Return a command whose last line asks for more, and note what is missing."""
    command = "\n".join(parts).strip().rstrip("\\").rstrip()
    if quote:
        faults.append(BlueprintFault(first, "a quote is opened here and never closed."))
    elif brackets:
        faults.append(BlueprintFault(first, "a bracket is opened here and never closed."))
    elif command.endswith(("&&", "||", "|")):
        faults.append(BlueprintFault(last, f"ends with {command.split()[-1]}: the rest of the command is missing."))
    return command


def _only_prepares(text: str) -> bool:
    """Return whether every program of a command only prepares another command.

    In a pipe only the first program counts.
    """
    parsed = parse(text)
    if _SHELL_BLOCK.search(text) or parsed.open_quote:
        return False
    is_piped = False
    for command in parsed.commands:
        if command.program_words and not is_piped and not _prepares(command):
            return False
        is_piped = command.separator in ("|", "|&")
    return True


def _prepares(command: SimpleCommand) -> bool:
    return command.program in PREPARES or bool(_PREPARING_COMMANDS.match(" ".join(command.program_words[:3])))


def _count_brackets(line: str, quote: str) -> int:
    """Return how many round brackets outside quotes a line opens and does not close; ``quote`` is open before."""
    return sum((char == "(") - (char == ")") for _, char, _ in read_characters(line, quote))


def _keep_in_foreground(line: int, text: str) -> tuple[str, list[BlueprintFault]]:
    faults = []
    if _BACKGROUND.search(text):
        text = _BACKGROUND.sub("", text)
        cause = "the trailing & is removed: the run would end at once. It outlives the agent anyway."
        faults.append(BlueprintFault(line, cause, fatal=False))
    if _DETACHED.search(text):
        cause = "starts its own terminal session and ends at once: write the command that runs in it."
        faults.append(BlueprintFault(line, cause))
    elif (to_file := _OUTPUT_TO_FILE.search(text)) and not scan_quotes(text[: to_file.start()])[0]:
        cause = f"its output goes to {to_file['file']}, an unwatched file: remove that, the run is logged anyway."
        faults.append(BlueprintFault(line, cause, fatal=False))
    return text, faults


def _quote_value(value: str, quote: str) -> str:
    if quote == '"':
        return re.sub(r'(["\\$`])', r"\\\1", value)
    return value.replace("'", "'\\''") if quote else shlex.quote(value)
