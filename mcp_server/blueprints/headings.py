"""Which line of a document begins a section of a blueprint, in the many spellings that people use. Pure."""

# ruff: noqa: RUF001, RUF002 - people write full-width punctuation, which is searched for here

from __future__ import annotations

import re
from dataclasses import dataclass

from mcp_server.blueprints.markdown import SourceLine

NOTES = "notes"
# Names of the sections. A section's own name is the first one with `exp_` in front.
NAMES = {
    "purpose": "purpose|experiment purpose|goal|objective|aim|实验目的|目的|实验目标|目标",
    "codebase_dir": "codebase dir|codebase directory|codebase path|codebase|code dir|code directory|code path|"
    "main experiment code path|experiment code path|repo|repository|project dir|project directory|project root|"
    "working directory|代码目录|代码路径|主实验代码路径|实验代码路径|工程目录|项目目录|代码库目录|代码库|工作目录",
    "venv_exe": "venv exe|venv|venv path|venv python|python|python exe|python executable|python path|"
    "python interpreter|interpreter|virtual environment|python virtual environment|python virtual environment path|"
    "python 解释器|python解释器|解释器|python 路径|python路径|虚拟环境|虚拟环境路径|python虚拟环境路径|python虚拟环境|"
    "python 虚拟环境|python 虚拟环境路径|解释器路径|python 可执行文件",
    "yaml_path": "yaml path|yaml|yaml file|yaml config|config|config file|config path|config yaml|configuration|"
    "configuration file|experiment config file path|experiment configuration file path|配置文件|配置文件路径|"
    "实验配置文件路径|实验配置文件|配置|yaml 路径|yaml路径|yaml 文件|yaml文件",
    "launch_command": "launch command|launch cmd|launch|command|cmd|run command|training command|train command|"
    "training execution command|start command|启动命令|训练命令|运行命令|执行训练的命令|执行命令|命令|启动指令",
    "result_dir": "result dir|result directory|result path|result|results|results dir|results directory|results path|"
    "result data storage path|output dir|output directory|output path|output|结果目录|结果路径|结果数据存储路径|"
    "结果存储路径|输出目录|输出路径|结果",
    "max_time": "max time|maximum time|maxtime|max runtime|max run time|maximum runtime|maximum run time|"
    "max duration|time limit|timeout|最长时间|最大时间|最长运行时间|最大运行时间|运行时间上限|时间限制|时限|运行时间",
    NOTES: "notes|other notes|additional notes|remarks|其他说明|备注|附加说明|其他备注|补充说明|注意事项|其他",
}
SECTIONS = tuple(name for name in NAMES if name != NOTES)
_SECTION_BY_ALIAS = {alias: name for name, aliases in NAMES.items() for alias in aliases.split("|")}
NO_HASHES = 7  # the level of a heading without #: every other heading ends its section
_MAX_LABEL_WORDS = 8  # a longer label is a sentence
MAX_LINE_CHARS = 8_000  # the rest of a longer line is ignored

# Marks of lists that markdown does not know: bullets, and numbers in brackets, in Chinese, or within a paragraph.
LOOSE_MARK = re.compile(r"^(?:•\s+|\(?\d{1,3}[.)、）]\s*(?![\d.])|[一二三四五六七八]、\s*)")
LOOSE_HASHES = re.compile(r"^(#{1,6})(?!#)\s*")  # without a blank, too, which markdown wants
_BRACKETED = re.compile(r"^[\[【［〔]\s*([^\[\]【】［］〔〕]{2,60}?)\s*[\]】］〕](?!\()")
_BRACKETS_BEHIND = re.compile(r"(?<=[\s`*])[\[【［]\s*(exp[^\[\]【】］]{2,40})[\]】］]", re.IGNORECASE)
_OWN_NAME = re.compile(r"^exp(?:[\s_-][A-Za-z]+){1,3}", re.IGNORECASE)
_SEPARATOR = re.compile(r"^\s*(?:[(（][^()（）]{0,200}[)）]\s*){0,3}(?:[:：=＝]|—|–|-\s|->|→|$)\s*")
_MARKS_AND_PICTURES = re.compile(r"^[*_`~\s\u2190-\u2bff\ufe0f\U0001f000-\U0001faff]+")
_LABEL = re.compile(
    r"^(?P<label>[^:：=＝/\\\"'`|;{}$.<>]{1,60}?)\s*(?:[(（][^()（）]{0,200}[)）]\s*){0,3}(?::(?!//)|：|(?<=\s)=\s|＝)\s*(?P<value>.*)$"
)


@dataclass(frozen=True)
class Heading:
    """A line that may begin a section. ``strength``: of several spellings of a section the strongest counts.

    ``inline`` is the text behind the section's name. ``is_row``: a table row, which ends on its line.
    """

    section: str
    strength: int
    level: int
    text: str
    inline: str
    is_row: bool = False


def find_section(name: str) -> str | None:
    """Return the section that ``name`` means, as in ``[Exp Launch-Command]`` or ``启动命令``, or None."""
    plain = re.sub(r"[\s_-]+", " ", name.strip().strip("*_`[]【】").lower()).strip()
    return _SECTION_BY_ALIAS.get(plain.removeprefix("exp ")) or _SECTION_BY_ALIAS.get(plain)


# Strengths. Names that are not the section's own count only where its own name is absent.
HASHED, BRACKETED, OWN_NAME, _ALIAS_HASHED, _ALIAS_BOLD, ALIAS_LABEL = 5, 4, 3, 2, 1, 0


def find_heading(line: SourceLine) -> Heading | None:
    """Return the section that a line begins, or None."""
    level, text = line.level, line.content
    if not level and (hashes := LOOSE_HASHES.match(text)):
        level, text = len(hashes[1]), text[hashes.end() :]
    if level:
        text = text.strip().rstrip("#").strip()
    if text.startswith("|"):
        return _read_row(text)
    unmarked = LOOSE_MARK.sub("", text, count=1).strip()
    is_listed = not level and (bool(line.list_mark) or unmarked != text)
    is_bold = unmarked.startswith(("**", "__"))
    clean = _MARKS_AND_PICTURES.sub("", unmarked)
    if level and (behind := _BRACKETS_BEHIND.search(clean)) and (name := find_section(behind[1])) is not None:
        return Heading(name, HASHED, level, clean, clean[behind.end() :].strip(" *:：`"))
    level = level or NO_HASHES
    if bracketed := _BRACKETED.match(clean):
        name, rest = find_section(bracketed[1]), clean[bracketed.end() :].lstrip("*_`")
        if name is not None and not rest.startswith("["):
            separator = _SEPARATOR.match(rest)
            inline = rest[separator.end() :] if separator else rest
            inline = "" if find_section(inline) == name else inline  # its name in another language
            is_sure = is_bold or separator or not is_listed
            strength = HASHED if level != NO_HASHES else BRACKETED if is_sure else OWN_NAME
            return Heading(name, strength, level, clean, inline.strip("* "))
    if own_name := _OWN_NAME.match(clean):
        for end in reversed([word.end() for word in re.finditer(r"[A-Za-z]+", own_name[0])]):
            name, rest = find_section(clean[:end]), re.sub(r"^[*_`]+", "", clean[end:])
            separator = _SEPARATOR.match(rest)
            if name is not None and (separator or level != NO_HASHES or is_bold):
                strength = HASHED if level != NO_HASHES else BRACKETED if is_bold else OWN_NAME
                return Heading(name, strength, level, clean, rest[separator.end() :].strip("* ") if separator else rest)
    return _find_alias(clean, level, is_bold=is_bold, is_listed=is_listed)


def _find_alias(clean: str, level: int, *, is_bold: bool, is_listed: bool) -> Heading | None:
    """Return the section of a heading in ordinary words: ``Launch command``, ``实验目的：…``."""
    words = clean.replace("**", "").replace("__", "").replace("`", "")
    label, value = split_label(words)
    name = find_section(re.sub(r"[(（].*", "", label or words))
    if name is None or (is_listed and name == NOTES and not label):
        return None
    if level != NO_HASHES:
        return Heading(name, _ALIAS_HASHED, level, clean, value if label else "")
    if is_bold:
        return Heading(name, _ALIAS_BOLD, level, clean, value if label else "")
    return Heading(name, ALIAS_LABEL, level, clean, value) if label else None


def _read_row(text: str) -> Heading | None:
    """Return the section of a table row: ``| [exp_purpose] | why |``."""
    cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", text.strip().strip("|"))]
    if len(cells) < 2 or (name := find_section(re.sub(r"[(（].*", "", cells[0]))) is None:  # noqa: PLR2004 - name and value
        return None
    strength = BRACKETED if "exp" in cells[0].lower() else ALIAS_LABEL
    return Heading(name, strength, NO_HASHES, cells[0], cells[1], is_row=True)


def split_label(text: str) -> tuple[str, str]:
    """Split ``path (absolute): /x`` into label and value.

    The label is empty if there is none.
    """
    match = _LABEL.match(text)
    if (
        match is None
        or " -" in match["label"]
        or len(match["label"].split()) > _MAX_LABEL_WORDS
        or not re.search(r"[^\W\d_]", match["label"])
    ):
        return "", text
    label = match["label"].strip(" *_[]【】").lower()
    return label, match["value"].strip().removeprefix("**").strip()


def plain_text(line: SourceLine) -> str:
    """Return a line without marks of quotes, lists and bold, and without table bars."""
    text = LOOSE_MARK.sub("", line.plain, count=1).strip()
    return text.strip("| ").replace("\\|", "|") if text.startswith("|") else text
