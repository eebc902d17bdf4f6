"""The launch command of a blueprint, from code blocks, lists or prose, as lines that bash runs. Pure."""

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from mcp_server.blueprints.fields import FILL_IN_WORD, NEGATION, PLACEHOLDER, PROSE_WORDS, BlueprintReader
from mcp_server.blueprints.front_matter import YamlFault, fold_scalar
from mcp_server.blueprints.headings import OPTIONS, SECTIONS, Section, SectionItem
from mcp_server.blueprints.markdown import SourceLine, code_spans
from mcp_server.blueprints.sections import is_explanation, read_items
from mcp_server.command.programs import PAUSES, PREPARES, PYTHON_LAUNCHERS, REPORTS, RUNNERS, SETTINGS, SHELLS, WRAPPERS
from mcp_server.command.shell import SimpleCommand, parse
from mcp_server.command.words import read_characters, scan_quotes
from mcp_server.text.rows import read_patterns, read_words

_RX = read_patterns("blueprints/patterns", "command")

# Lines behind a command that only report are left out: their exit code would be the run's.
_REPORTING_PROGRAMS = REPORTS | SETTINGS | PAUSES | {"popd"}
_WORDS = read_words("blueprints/words")
_PROGRAMS = frozenset(_WORDS["programs"]).union(WRAPPERS, RUNNERS, SHELLS, PYTHON_LAUNCHERS, PREPARES)
_PROGRAMS -= frozenset(_WORDS["no programs"])
_SHELL_LANGUAGES, _PLAIN_LANGUAGES = _WORDS["shells"], ("", *_WORDS["plain texts"])
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?[^\n]*\n.*?^\s*\1\s*$", re.DOTALL | re.MULTILINE)


Lines = list[tuple[int, str]]  # line numbers and texts


Refuse = Callable[[int, str], None]  # of a line, with the cause


def read_command(reader: BlueprintReader) -> str | None:
    """Return the launch command of a document, with the preparing lines in front of it."""
    section = reader.sections.get("launch_command")
    if section is None:
        if reader.sections:
            reader.refuse("launch_command", 1, "is missing: write one launch command.")
        return None
    before = len(reader.faults)

    def refuse(line: int, cause: str) -> None:
        reader.refuse("launch_command", line, cause)

    def remark(line: int, cause: str) -> None:
        reader.refuse("launch_command", line, cause, fatal=False)

    text = _read_argv(reader, section)
    if text is None:
        commands = [command for piece in _find_pieces(section, refuse) for command in _join_lines(piece, refuse)]
        text = _choose_launch(reader, commands, refuse, remark)
    if text is None:
        placeholders = [
            item for item in read_items(section) if reader.has_placeholder("launch_command", item.line, item.text)
        ]
        if len(reader.faults) == before and not placeholders:
            refuse(section.line, "holds no command: write one launch command.")
        return None
    _find_leftovers(text, reader.lines["launch_command"], section, refuse)
    return text


def _choose_launch(reader: BlueprintReader, commands: Lines, refuse: Refuse, remark: Refuse) -> str | None:
    """Return the one launch among commands, with the lines around it that belong to it; None without one."""
    for line, text in commands:
        if _RX.python_line.match(text):
            refuse(line, f"{text[:60]!r} is Python, not a shell command: write the command as a shell runs it.")
            return None
    launches = [(line, text) for line, text in commands if not _only_prepares(text)]
    stops = {text for _, text in launches if _RX.stops.fullmatch(text)}
    last = next((text for _, text in reversed(launches) if text not in stops), "")
    helpers = [text for _, text in commands if text != last and _is_helper(text, last)]
    others = {*helpers, *(stops if helpers else ())}
    launches = [(line, text) for line, text in launches if text not in others]
    if not launches:
        if commands:
            refuse(commands[0][0], "only prepares (variables, directories): the launch command itself is missing.")
        return None
    line, launch = launches[0]
    reader.lines["launch_command"] = commands[0][0]
    if launch.startswith("-"):
        refuse(line, f"{launch[:60]!r} is no command, but options of one.")
    for command in [] if _RX.shell_block.search(launch) else parse(launch).commands:
        if command.separator == "(" and command.words:
            bracket = " ".join(command.words)[-40:]
            refuse(line, f"bash cannot read the bracket behind {bracket!r}: write the command alone.")
            break
    for at, text in (*launches[1:], *((line, text) for text in _find_later(launch))):
        cause = f"a second launch command, {text[:60]!r}: a blueprint has one launch command. "
        refuse(at, f"{cause}If it belongs to the first, join them with &&.")
    first = commands.index(launches[0])
    behind = [command for command in commands[first + 1 :] if _only_prepares(command[1]) or command[1] in others]
    launch = _keep_in_foreground(line, launch, refuse, remark)
    kept = _keep_behind(behind, refuse, remark, has_helpers=bool(helpers))
    if (copied := _find_copied_mark(commands)) is not None:
        refuse(*copied)
    return "\n".join([*(text for _, text in commands[:first]), launch, *kept])


def _read_argv(reader: BlueprintReader, section: Section) -> str | None:
    """Return the command that is the section's only content, written as an array of words, ``["python", "a.py"]``."""
    rows = [(line.number, line.text) for line in section.all_lines if line.text.strip()]
    if section.exact is not None:
        rows = [(section.line, section.exact)]
    text = "\n".join(text for _, text in rows).strip().strip("`")
    try:
        words = json.loads(text) if text.startswith("[") else None
    except (ValueError, RecursionError):
        return None
    if not words or not all(isinstance(word, str) for word in words) or (len(words) > 1 and " " in words[0]):
        return None  # also several commands, or a sentence
    reader.lines["launch_command"] = rows[0][0]
    return words[0] if len(words) == 1 else shlex.join(words)


def _find_later(text: str) -> Iterator[str]:
    """Yield what a line runs behind its launch command and a semicolon, so that the exit code is not the command's."""
    commands = parse(text).commands
    if _RX.shell_block.search(text) or not all(command.is_certain for command in commands):
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
    if _RX.background.search(text) is None or _RX.training.search(text) or _RX.background.search(launch):
        return False
    scripts = [set(re.findall(r"[^\s=]+\.(?:py|sh)\b|(?<=-m )\S+", command)) for command in (text, launch)]
    return not scripts[0] & scripts[1]  # the same program twice is two runs


def _keep_behind(behind: Lines, refuse: Refuse, remark: Refuse, *, has_helpers: bool) -> list[str]:
    """Return the lines to keep behind the launch command: all if the last exits with a code of its own, else none.

    ``has_helpers``: processes in the background end with the run, so that nobody needs to stop them.
    """
    if behind and re.match(r"\s*(?:exit|return)\b", behind[-1][1]):
        return [text for _, text in behind]
    for line, text in behind:
        programs = {command.program for command in parse(text).commands} - {""}
        if programs <= {"wait", "disown"}:
            continue  # for the command itself, which stays in the foreground
        if programs <= (_REPORTING_PROGRAMS | {"kill"} if has_helpers else _REPORTING_PROGRAMS):
            remark(line, f"{text[:60]!r} is left out: behind the launch command its exit code would be the run's.")
        else:
            cause = f"{text[:60]!r} behind the launch command would hide its exit code"
            refuse(line, f"{cause}: join them with &&, or end with exit.")
    return []


def _find_copied_mark(commands: Lines) -> tuple[int, str] | None:
    """Return the line and the cause of a mark that a word processor put into a command: bash reads it as a letter."""
    for line, text in commands:
        for mark in _RX.copied.finditer(text):
            if mark["entity"] or not scan_quotes(text[: mark.start()])[0]:  # else part of a text
                cause = f"the command has {mark[0]!r}, which bash takes for a letter"
                return line + text.count("\n", 0, mark.start()), f"{cause}: type it again in plain characters."
    return None


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
    rest = _RX.leading_assignments.sub("", text + " ").strip().rstrip("\\")
    if not rest:
        return bool(_RX.assignment.match(text))
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


def _find_pieces(section: Section, refuse: Refuse) -> Iterator[Lines]:
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
            refuse(fault.line, f"the launch command is {fault.text}.")
        return
    items = [item for item in read_items(section) if not is_explanation(item.label)]
    if (blocks := _command_blocks(section)) and not looks_like_command(section.inline.strip("`")):
        yield from blocks
        return
    if joined := list(_spans_over_lines(section)):
        yield joined
        return
    items = [item for item in items if not item.is_code]
    lines = list(_unfenced_commands(section, items, refuse))
    _find_continuations(section, lines, refuse)
    _find_unread(items, refuse, has_command=bool(lines))
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
        elif line.block not in blocks and _RX.not_to_run.search(re.split(r"[.。;；!]\s*(?=\w)", above)[-1]):
            leaves_out = True
        elif line.block in blocks or not (blocks and _RX.output_introduction.search(above)):  # the first has it
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


def _find_unread(items: Iterable[SectionItem], refuse: Refuse, *, has_command: bool) -> None:
    """Refuse items outside of code blocks that belong to the command and are not read as such."""
    for item in items:
        text, excerpt = item.text, repr(item.text[:40])
        if _RX.html.match(text) or (has_command and item.label and _RX.list.fullmatch(text)):
            refuse(item.line, f"{excerpt} is not read as part of the command: write the command in a code block.")
        elif not has_command and text.lstrip().startswith("`") and text.count("`") % 2:
            refuse(item.line, f"{excerpt} begins code that ends on another line: write the command in a code block.")
        elif not has_command and code_spans(text) and NEGATION.search(re.sub(r"`[^`]*`", "", text)):
            refuse(item.line, f"says more than a command: {text[:60]!r}. Write the command alone.")


def _find_continuations(section: Section, lines: Sequence[tuple[int, str]], refuse: Refuse) -> None:
    """Refuse lines of options right below a command that no backslash joins to it."""
    numbers, texts = {number for number, _ in lines}, {text for _, text in lines}
    is_above = False
    for line in section.all_lines:
        bare = line.content.strip("` ")
        is_read = bare in texts or (line.number in numbers and line in section.lines)
        if is_above and not is_read and re.match(r"--?[A-Za-z]", bare):
            refuse(line.number, f"goes on with {bare[:40]!r}? Then end the line above with a backslash.")
        is_above = is_read


def _unfenced_commands(section: Section, items: Iterable[SectionItem], refuse: Refuse) -> Iterator[tuple[int, str]]:
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
        if continues or (item and (_RX.prompt.match(prompted) or looks_like_command(bare))):
            if not quoted and (word := _find_prose(bare)):
                place = f"{word[:20]!r} in {bare[:60]!r}"
                refuse(line.number, f"where does the command end, at {place}? Write it in a code block, alone.")
            yield line.number, bare
            continues = bare.rstrip().endswith(("\\", "&&", "||", "|"))


def _find_prose(text: str) -> str:
    """Return the word of a line outside of code with which prose begins behind the command, else an empty text."""
    before = "-"
    for word in (word for command in parse(text).commands for word in command.words):
        if _RX.prose_sign.search(word) or (word.lower() in PROSE_WORDS and not before.startswith("-")):
            return word
        before = word
    return ""


def _is_text_of(text: str, line: SourceLine) -> bool:
    return text in (line.text, line.plain, line.content) or text.strip("`") in line.text.replace("\\|", "|")


def _join_lines(piece: Lines, refuse: Refuse) -> Iterator[tuple[int, str]]:
    """Yield the commands of one piece, each from its physical lines, without prompts and comments."""
    texts = [text for _, text in piece if text.strip()]
    depth = min((len(text) - len(text.lstrip()) for text in texts), default=0)
    if any(map(_RX.shell_block.search, texts)) and not any(_RX.prompt.match(text[depth:]) for text in texts):
        first = next(number for number, text in piece if text.strip())
        yield first, "\n".join(text[depth:].rstrip() for _, text in piece).strip("\n")
        return
    has_prompts = any((prompt := _RX.prompt.match(text[depth:])) and prompt[0][0] != ">" for text in texts)
    first, quote, brackets = 0, "", 0
    parts: list[str] = []
    for number, text in piece:
        line = text[depth:].rstrip() if text.strip() else ""
        if has_prompts and not parts and not _RX.prompt.match(line):
            continue  # output of the command
        line = _RX.prompt.sub("", line, count=1)
        if not quote and (not line.strip() or line.lstrip().startswith("#")):
            continue
        opened = quote
        quote, comment = scan_quotes(line, quote)
        line = line[:comment].rstrip()
        if brackets or "(" in line:  # outside quotes
            signs = [char for _, char, _ in read_characters(line, opened)]
            brackets = max(0, brackets + signs.count("(") - signs.count(")"))
        first = first or number
        parts.append(line)
        if quote or brackets or line.endswith(("\\", "&&", "||", "|")):
            continue
        yield first, "\n".join(parts).strip()
        first, parts = 0, []
    if not parts:
        return
    command = "\n".join(parts).strip().rstrip("\\").rstrip()
    if quote or brackets:
        refuse(first, f"a {'quote' if quote else 'bracket'} is opened here and never closed.")
    elif command.endswith(("&&", "||", "|")):
        refuse(piece[-1][0], f"ends with {command.split()[-1]}: the rest of the command is missing.")
    yield first, command


def _only_prepares(text: str) -> bool:
    """Return whether every program of a command only prepares another command.

    In a pipe only the first program counts.
    """
    parsed = parse(text)
    if _RX.shell_block.search(text) or parsed.open_quote:
        return False
    is_piped = False
    for command in parsed.commands:
        if command.program_words and not is_piped and not _prepares(command):
            return False
        is_piped = command.separator in ("|", "|&")
    return True


def _prepares(command: SimpleCommand) -> bool:
    return command.program in PREPARES or bool(_RX.preparing_commands.match(" ".join(command.program_words[:3])))


def _keep_in_foreground(line: int, text: str, refuse: Refuse, remark: Refuse) -> str:
    if _RX.background.search(text):
        text = _RX.background.sub("", text)
        remark(line, "the trailing & is removed: the run would end at once. It outlives the agent anyway.")
    if _RX.detached.search(text):
        refuse(line, "starts its own terminal session and ends at once: write the command that runs in it.")
    elif (to_file := _RX.output_to_file.search(text)) and not scan_quotes(text[: to_file.start()])[0]:
        remark(line, f"its output goes to {to_file['file']}, an unwatched file: remove that, the run is logged anyway.")
    return text


def _quote_value(value: str, quote: str) -> str:
    if quote == '"':
        return re.sub(r'(["\\$`])', r"\\\1", value)
    return value.replace("'", "'\\''") if quote else shlex.quote(value)


def _find_leftovers(text: str, line: int, section: Section, refuse: Refuse) -> None:
    """Refuse a template's placeholders in a command, and variables that no section defines."""
    quoted = [match.span() for match in _HEREDOC.finditer(text)]
    comments = [match.span() for match in _RX.comment.finditer(text)] if "#" in text else []
    for placeholder in PLACEHOLDER.finditer(text):
        found, start = placeholder[0], placeholder.start()
        is_quoted = bool(scan_quotes(text[:start])[0])
        if any(first < start < end for first, end in comments) and not is_quoted:
            continue
        if is_quoted or any(first < start < end for first, end in quoted):
            # A language model's prompt may hold "<think>" and "...".
            is_fill_in = FILL_IN_WORD.search(found) or "/" in text[start - 1 : start + 1]
            if not (is_fill_in and (found.startswith("<") or "/" in found)):
                continue
        if found.startswith("XX") and re.search(r"mktemp\s+(?:-\w+\s+)*\S*$", text[:start]):
            continue
        number = next((other.number for other in section.lines if found in other.text), line)
        refuse(number, f"the launch command still holds the template's {found!r}: write the value.")
    for name in find_unknown_names(text):
        if name.lower().removeprefix("exp_") not in (*SECTIONS, *OPTIONS):
            refuse(line, f"the launch command names {name}, which no section defines.")
