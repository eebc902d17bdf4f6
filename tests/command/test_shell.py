"""A command line is parsed as bash reads it, as far as its readers need."""

from __future__ import annotations

import subprocess
import time

import pytest

from mcp_server.command.shell import Redirection, SimpleCommand, is_literal, parse
from mcp_server.command.words import Word, expand_word


def words_of_bash(line: str) -> list[str]:
    script = f"set -f +B; printf '%s\\0' {line}"
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split("\0")[:-1]


@pytest.mark.parametrize(
    "line",
    [
        "python train.py --lr 3e-4",
        "  a   b  ",
        "a'b c'd\"e f\"g",
        "'it'\"'\"'s' \"say \\\"hi\\\"\" a\\ b \\'",
        "'' \"\" x''",
        "\"a\\\\b \\$x \\q\" '\\n'",
        "run#1 a#b # a comment",
        "a=1 'b=2 c' --x={1..3} [ab]*",
        "a\\\nb c",
        '"two\nlines" "joined \\\nline"',
        'a"b"\\\nc d',
    ],
)
def test_words_are_those_of_bash(line: str) -> None:
    assert parse(line).words == words_of_bash(line)


def test_a_line_is_a_list_of_programs_with_their_redirections_and_separators() -> None:
    command = parse("cd /x && A=1 nohup python train.py 2>&1 >> 'my log' | tee out; rm -f y &")
    assert command.commands == (
        SimpleCommand(("cd", "/x"), (), "&&"),
        SimpleCommand(
            ("A=1", "nohup", "python", "train.py"), (Redirection(">&", "1", "2"), Redirection(">>", "my log")), "|"
        ),
        SimpleCommand(("tee", "out"), (), ";"),
        SimpleCommand(("rm", "-f", "y"), (), "&"),
    )
    assert [each.program for each in command.commands] == ["cd", "python", "tee", "rm"]
    assert command.ends_in_background


def test_a_quoted_operator_is_a_word() -> None:
    assert parse("find . -exec rm {} ';' -o -name '&&'").commands == (
        SimpleCommand(("find", ".", "-exec", "rm", "{}", ";", "-o", "-name", "&&")),
    )


@pytest.mark.parametrize("line", ["echo $(date && python x.py", "(cd a); python x.py", "python - <<EOF\nx\nEOF\ny"])
def test_nothing_is_certain_after_a_parenthesis_or_a_here_document(line: str) -> None:
    assert not parse(line).commands[-1].is_certain


# Each is one word of bash, and none of its quotes, blanks, parentheses or operators ends it.
SUBSTITUTED = [
    "--nproc_per_node=$(nvidia-smi -L | wc -l)",
    "--nproc_per_node=`nvidia-smi -L | wc -l`",
    '--dir="$(dirname "$(pwd)")/a b"',
    "x$(echo ')' \"a b\" | tr b c; (true && echo d))y",
    "$((1 + 2))-$((3 * (4 + 5)))",
    '"${HOME:-a b}/${NONE:-"c d"}"',
    "${NONE:-$(echo 'a b' | cat)}",
    "\"`echo a b`\"c'd e'",
    "$(echo a # it's ) a comment\n)",
    "--name=$(date +%H >/dev/null 2>&1 && echo $'it\\'s')",
    "<(sort /dev/null)",
    "a\\ b\"$(echo 'c d')\"$'e f'",
    "$HOME/$UID",
    "it\\'s",
]


@pytest.mark.parametrize("word", SUBSTITUTED)
def test_a_substitution_is_part_of_its_word(word: str) -> None:
    command = parse(f"torchrun {word} train.py --x {word} 2>&1 | tee log")
    assert [token.raw for token in command.tokens] == (
        ["torchrun", word, "train.py", "--x", word, "2", ">&", "1", "|", "tee", "log"]
    )
    assert [each.program for each in command.commands] == ["torchrun", "tee"]
    assert all(each.is_certain for each in command.commands)


@pytest.mark.parametrize(
    ("line", "quote"), [("echo 'a", "'"), ('echo "a', '"'), ("echo a\\", "\\"), ("echo 'a' \"b", '"')]
)
def test_an_open_quote_leaves_words_and_no_commands(line: str, quote: str) -> None:
    command = parse(line)
    assert (command.open_quote, command.commands) == (quote, ())
    assert command.words == line.split()


def test_a_comment_begins_at_the_start_of_a_word() -> None:
    assert parse("python a#b --x '# y' # z").comments == (len("python a#b --x '# y' "),)
    assert parse('python a#b "c"#d $(e # f\n)').comments == ()


def test_a_list_is_one_program_word_by_word() -> None:
    command = parse(["python", "a b", "&&", "$x"])
    assert command.is_one_program
    assert command.words == ["python", "a b", "&&", "$x"]


def test_flags_of_what_prepares_or_passes_on_text_are_no_options() -> None:
    line = "mkdir -p out && conda run -n rl python t.py --lr 1 2>&1 | tee -a out/x.log | grep -v DEBUG; test -e out"
    assert parse(line).split_options()[0] == {"n": "rl", "lr": "1"}
    assert parse("head -c 5 file").split_options()[0] == {"c": "5"}, "alone it is the work"


def test_options_have_the_last_value_of_their_name() -> None:
    line = "A=1 python -m cfm.train --lr 0.1 --lr=0.2 --amp -s -3 +trainer.epochs=5 data --flag && tee log"
    assert parse(line).split_options() == (
        {"A": "1", "m": "cfm.train", "lr": "0.2", "amp": "true", "s": "-3", "trainer.epochs": "5", "flag": "true"},
        ["python", "data", "&&", "tee", "log"],
    )


@pytest.mark.parametrize("word", ["$HOME/x", "`pwd`", "a*", "{params}", "a,b", "host:/x", "~bob/x", "-", "a b"])
def test_a_word_that_a_shell_or_runward_replaces_is_not_literal(word: str) -> None:
    assert not is_literal(word)


@pytest.mark.slow
def test_a_long_line_is_parsed_in_linear_time() -> None:
    begun_s = time.process_time()
    for part in ("a ", "'b' ", '"c', "\\", "$'", "((", "<<a ", "$(", '"$(', "`", "`'", "${", "<( ", '"$(a "b") " '):
        parse(part * 25_000)
    assert time.process_time() - begun_s < 5


def test_a_word_knows_its_substitutions() -> None:
    (command,) = parse("""echo a"b $(c "d") ${e:-$(f)} $((1+`g`))"$'x\\n' <(h) '$(i)' \\$j""").commands
    found = [part for word in command.words if isinstance(word, Word) for part in word.substitutions]
    assert [(part.opening, part.text) for part in found] == [
        ("$(", 'c "d"'),
        ("$(", "f"),
        ("$(", "g"),
        ("$'", "x\n"),
        ("<(", "h"),
    ]
    assert expand_word(command.words[1], lambda part: part.text.upper())[:8] == 'ab C "D"'


def test_an_array_is_one_word_and_hides_nothing_behind_it() -> None:
    command = parse('A=(1 "x y" $(z)) B+=(2); python t.py # (')
    assert [each.words for each in command.commands] == [('A=(1 "x y" $(z))', "B+=(2)"), ("python", "t.py")]
    assert all(each.is_certain for each in command.commands)
    assert command.commands[0].program == ""
