"""Which line of a document begins a section of a blueprint, in the many ways that people write it. Pure."""

# ruff: noqa: RUF001, RUF002 - people write full-width punctuation, and it is looked for here

from __future__ import annotations

import re
from dataclasses import dataclass

NOTES = "notes"
# How the sections are called; the first name is the section's own, with `exp_` before it.
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
_SECTION_OF = {alias: name for name, aliases in NAMES.items() for alias in aliases.split("|")}
BY_ITSELF = 7  # the level of a heading without #: every other heading ends its section
_MOST_WORDS = 8  # of a label; what has more is a sentence
LONGEST_LINE = 8_000  # characters; what is longer is looked at no further

MARKER = re.compile(r"^\s*(?:>\s?)*\s*(?:[-*+•]\s+|\(?\d{1,3}[.)、）]\s*(?![\d.])|[一二三四五六七八]、\s*)?")
HASHES = re.compile(r"^\s*(?:>\s*)*(#{1,6})(?!#)\s*")
_BRACKETED = re.compile(r"^[\[【［〔]\s*([^\[\]【】［］〔〕]{2,60}?)\s*[\]】］〕](?!\()")
_BEHIND = re.compile(r"(?<=[\s`*])[\[【［]\s*(exp[^\[\]【】］]{2,40})[\]】］]", re.IGNORECASE)
_BARE = re.compile(r"^exp(?:[\s_-][A-Za-z]+){1,3}", re.IGNORECASE)
_SEPARATOR = re.compile(r"^\s*(?:[(（][^()（）]{0,200}[)）]\s*){0,3}(?:[:：=＝]|—|–|-\s|->|→|$)\s*")
_LABEL = re.compile(
    r"^(?P<label>[^:：=＝/\\\"'`|;{}$.<>]{1,60}?)\s*(?:[(（][^()（）]{0,200}[)）]\s*){0,3}(?::(?!//)|：|(?<=\s)=\s|＝)\s*(?P<value>.*)$"
)


@dataclass(frozen=True)
class Head:
    """A line that may begin a section; the strongest spelling of a section counts."""

    name: str
    strength: int
    level: int
    heading: str
    inline: str
    closed: bool = False


def section_of(name: str) -> str | None:
    """Return which section ``name`` means: ``[Exp Launch-Command]``, ``启动命令``; None for none of them."""
    plain = re.sub(r"[\s_-]+", " ", name.strip().strip("*_`[]【】").lower()).strip()
    return _SECTION_OF.get(plain.removeprefix("exp ")) or _SECTION_OF.get(plain)


# How sure a line is to begin a section. Names that are not the section's own count only where its own is absent.
HASHED, BRACKETS, OWN_NAME, _ALIAS_HASHED, _ALIAS_BOLD, ALIAS_LABEL = 5, 4, 3, 2, 1, 0


def head_of(line: str) -> Head | None:
    """Return which section a line begins, if it looks like that."""
    hashes = HASHES.match(line)
    level = len(hashes[1]) if hashes else BY_ITSELF
    text = line[hashes.end() :].strip().rstrip("#").strip() if hashes else line
    if text.lstrip().startswith("|"):
        return _row(text)
    text = MARKER.sub("", text, count=1).strip()
    bold = text.startswith(("**", "__"))
    clean = re.sub(r"^[*_`~\s\u2190-\u2bff\ufe0f\U0001f000-\U0001faff]+", "", text)  # marks and little pictures
    listed = text != line.strip() and not hashes
    if hashes and (behind := _BEHIND.search(clean)) and (name := section_of(behind[1])) is not None:
        return Head(name, HASHED, level, clean, clean[behind.end() :].strip(" *:：`"))
    if bracketed := _BRACKETED.match(clean):
        name, rest = section_of(bracketed[1]), clean[bracketed.end() :].lstrip("*_`")
        if name is not None and not rest.startswith("["):
            separator = _SEPARATOR.match(rest)
            inline = rest[separator.end() :] if separator else rest
            inline = "" if section_of(inline) == name else inline  # its name in another language
            sure = bold or separator or not listed
            return Head(name, HASHED if hashes else BRACKETS if sure else OWN_NAME, level, clean, inline.strip("* "))
    if bare := _BARE.match(clean):
        for end in reversed([word.end() for word in re.finditer(r"[A-Za-z]+", bare[0])]):
            name, rest = section_of(clean[:end]), re.sub(r"^[*_`]+", "", clean[end:])
            separator = _SEPARATOR.match(rest)
            if name is not None and (separator or hashes or bold):
                strength = HASHED if hashes else BRACKETS if bold else OWN_NAME
                return Head(name, strength, level, clean, rest[separator.end() :].strip("* ") if separator else rest)
    return _alias(clean, level, bold=bold, listed=listed)


def _alias(clean: str, level: int, *, bold: bool, listed: bool) -> Head | None:
    """Return the section of a heading in ordinary words: ``Launch command``, ``实验目的：…``."""
    words = clean.replace("**", "").replace("__", "").replace("`", "")
    label, value = labelled(words)
    if (name := section_of(re.sub(r"[(（].*", "", label or words))) is None or (listed and name == NOTES and not label):
        return None
    if level != BY_ITSELF:
        return Head(name, _ALIAS_HASHED, level, clean, value if label else "")
    if bold:
        return Head(name, _ALIAS_BOLD, level, clean, value if label else "")
    return Head(name, ALIAS_LABEL, level, clean, value) if label else None


def _row(text: str) -> Head | None:
    """Return the section of a table's row: ``| [exp_purpose] | why |``."""
    cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", text.strip().strip("|"))]
    if len(cells) < 2 or (name := section_of(re.sub(r"[(（].*", "", cells[0]))) is None:  # noqa: PLR2004 - name and value
        return None
    own = "exp" in cells[0].lower()
    return Head(name, BRACKETS if own else ALIAS_LABEL, BY_ITSELF, cells[0], cells[1], closed=True)


def labelled(text: str) -> tuple[str, str]:
    """Split ``path (absolute): /x`` into label and value; an empty label where there is none."""
    match = _LABEL.match(text)
    if (
        match is None
        or " -" in match["label"]
        or len(match["label"].split()) > _MOST_WORDS
        or not re.search(r"[^\W\d_]", match["label"])
    ):
        return "", text
    label = match["label"].strip(" *_[]【】").lower()
    return label, match["value"].strip().removeprefix("**").strip()


def plain(text: str) -> str:
    """Return a line without quote, list and bold marks, and table bars."""
    text = MARKER.sub("", text, count=1).strip()
    if text.startswith("|"):
        text = text.strip("| ").replace("\\|", "|")
    return re.sub(r"\*\*([^*]*)\*\*", r"\1", text).strip() if "**" in text else text
