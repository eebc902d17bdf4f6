"""No spelling of a secret passes, however the stream is cut, and nothing else is lost."""

import base64
import html
import json
import random
import re
import shlex
import string
from collections.abc import Callable
from itertools import combinations, pairwise
from urllib.parse import quote, quote_plus

import pytest

from mcp_server.text.log_text import clean_lines
from mcp_server.text.redaction import Redactor
from mcp_server.text.secret_spellings import SHORTEST_PART, SHORTEST_SECRET
from tests.support.secret_spellings import INVISIBLE, SPELLINGS

TOKEN = "hf_9x7QwErTy"
KEY = "hf_aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1&"
MASK = b"[secret:TOKEN]"
PRIVATE_KEY = """-----BEGIN OPENSSH PRIVATE KEY-----
b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW
QyNTUxOQAAACDdXqRxu3l6uKeOvQm0Zc4u4sYJ9w1n2e7p5Jm8q0bHNQAAAJgxP2wXMT9s
-----END OPENSSH PRIVATE KEY-----
"""


def redacted(secrets: dict[str, str], *chunks: bytes) -> bytes:
    redactor = Redactor(secrets)
    return b"".join(redactor.feed(chunk) for chunk in chunks) + redactor.flush()


def one_by_one(stream: bytes) -> list[bytes]:
    return [stream[i : i + 1] for i in range(len(stream))]


def cut(stream: bytes, *places: int) -> list[bytes]:
    edges = [0, *places, len(stream)]
    return [stream[a:b] for a, b in pairwise(edges)]


def test_a_secret_is_masked_wherever_the_stream_is_cut_in_two() -> None:
    stream = f"login {TOKEN} ok".encode()
    for place in range(len(stream) + 1):
        assert redacted({"TOKEN": TOKEN}, *cut(stream, place)) == b"login " + MASK + b" ok", place


def test_a_secret_is_masked_wherever_the_stream_is_cut_in_three() -> None:
    stream = f"<{TOKEN}>".encode()
    for places in combinations(range(len(stream) + 1), 2):
        assert redacted({"TOKEN": TOKEN}, *cut(stream, *places)) == b"<" + MASK + b">", places


def test_a_secret_is_masked_when_it_comes_byte_by_byte() -> None:
    stream = f"{TOKEN}{TOKEN} {TOKEN[:7]} {TOKEN}".encode()
    expected = MASK + MASK + b" " + TOKEN[:7].encode() + b" " + MASK
    assert redacted({"TOKEN": TOKEN}, *one_by_one(stream)) == expected


def test_empty_chunks_change_nothing() -> None:
    half = len(TOKEN) // 2
    stream = TOKEN.encode()
    assert redacted({"TOKEN": TOKEN}, b"", stream[:half], b"", b"", stream[half:], b"") == MASK


@pytest.mark.parametrize("secret", ["aaaaab", "aaaaaa", "abaaba", "ababab", "aabaaab"])
def test_a_secret_that_repeats_itself_is_found_in_a_stream_of_its_own_letters(secret: str) -> None:
    for before in range(9):
        stream = b"a" * before + secret.encode() + b"a"
        expected = stream.replace(secret.encode(), MASK)
        for place in range(len(stream) + 1):
            assert redacted({"TOKEN": secret}, *cut(stream, place)) == expected, (before, place)
        assert redacted({"TOKEN": secret}, *one_by_one(stream)) == expected, before


@pytest.mark.parametrize("before", [b"", b"u", b"us", b"usr", b"user:"])
@pytest.mark.parametrize("after", [b"", b"@", b"@h", b"@host", b"\n"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_base64_is_masked_in_every_alignment(before: bytes, after: bytes, encode: object) -> None:
    secret = "p>?~\xff\xfe?>hunter2?>\xfb"  # its digits hold + and /, or - and _
    assert callable(encode)
    encoded: bytes = encode(before + secret.encode() + after)

    for stream in (encoded, encoded.rstrip(b"=")):
        shown = redacted({"TOKEN": secret}, *one_by_one(b"basic " + stream + b" sent"))
        assert shown.startswith(b"basic ")
        assert shown.endswith(b" sent")
        assert MASK in shown
        # Only digits that belong to a neighbour, wholly or in part, are left.
        left = shown.removeprefix(b"basic ").removesuffix(b" sent").replace(MASK, b"").rstrip(b"=")
        assert len(left) <= (len(before) + len(after)) * 8 / 6 + 3


@pytest.mark.parametrize("width", [64, 76])
def test_wrapped_base64_is_masked_whole(width: int) -> None:
    secret = "".join(chr(33 + i % 90) for i in range(150))
    digits = base64.b64encode(secret.encode())
    wrapped = b"\n".join(digits[i : i + width] for i in range(0, len(digits), width))
    assert redacted({"TOKEN": secret}, b"key:\n", *one_by_one(wrapped), b"\n") == b"key:\n" + MASK + b"\n"


@pytest.mark.parametrize("before", [b"u", b"me:", b"x-access-token:"])
def test_wrapped_base64_is_masked_behind_a_user_name_too(before: bytes) -> None:
    secret = "github_pat_" + "".join(chr(65 + i * 7 % 26) for i in range(82))  # as long as GitHub's
    digits = base64.b64encode(before + secret.encode())
    for width in (64, 76):
        wrapped = b"\n".join(digits[i : i + width] for i in range(0, len(digits), width)) + b"\n"
        shown = redacted({"TOKEN": secret}, *one_by_one(wrapped))
        left = shown.replace(MASK, b"").replace(b"\n", b"").rstrip(b"=")
        assert len(left) <= len(before) * 8 / 6 + 8, shown


@pytest.mark.parametrize(
    "spell",
    [
        pytest.param(lambda s: s.encode().hex(), id="hex"),
        pytest.param(lambda s: s.encode().hex().upper(), id="HEX"),
        pytest.param(quote, id="a URL's path"),
        pytest.param(lambda s: quote(s, safe=""), id="a URL's component"),
        pytest.param(quote_plus, id="a form"),
        pytest.param(lambda s: json.dumps(s)[1:-1], id="JSON"),
        pytest.param(lambda s: s, id="as it is"),
    ],
)
def test_encoded_spellings_are_masked_wherever_they_are_cut(spell: object) -> None:
    secret = 'pä/ss wörd+"1"&\\x'
    assert callable(spell)
    spelling: str = spell(secret)
    stream = b"x=" + spelling.encode() + b";"
    for place in range(len(stream) + 1):
        assert redacted({"TOKEN": secret}, *cut(stream, place)) == b"x=" + MASK + b";", place


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\n    "])
def test_every_line_of_a_key_is_masked_whatever_separates_its_lines(newline: bytes) -> None:
    lines = PRIVATE_KEY.strip().encode().split(b"\n")
    stream = b"cat id\n" + newline.join(lines) + b"\ndone\n"
    for chunks in (one_by_one(stream), [stream], stream.splitlines(keepends=True)):
        shown = redacted({"TOKEN": PRIVATE_KEY}, *chunks)
        assert shown.startswith(b"cat id\n" + MASK)
        assert shown.endswith(b"done\n")
        assert not any(line in shown for line in lines)


def test_a_value_is_masked_with_and_without_the_white_space_around_it() -> None:
    secrets = {"TOKEN": f" {TOKEN}\n"}
    assert redacted(secrets, f"<{TOKEN}>".encode()) == b"<" + MASK + b">"
    assert TOKEN.encode() not in redacted(secrets, *one_by_one(f"< {TOKEN}\n>".encode()))


BEGIN_ALIKE = {"SHORT": "hunter22", "LONG": "hunter22-and-more"}


def test_the_longer_of_two_secrets_that_begin_alike_is_masked() -> None:
    for secrets in (BEGIN_ALIKE, dict(reversed(BEGIN_ALIKE.items()))):
        shown = redacted(secrets, b"a hunter22-and-more b hunter22 c")
        assert shown == b"a [secret:LONG] b [secret:SHORT] c"


def test_the_longer_of_two_secrets_that_begin_alike_is_masked_wherever_the_stream_is_cut() -> None:
    stream = b"a hunter22-and-more b hunter22 c"
    for chunks in (one_by_one(stream), *(cut(stream, place) for place in range(len(stream) + 1))):
        assert redacted(BEGIN_ALIKE, *chunks) == b"a [secret:LONG] b [secret:SHORT] c", chunks


def test_the_shorter_of_two_secrets_that_begin_alike_is_masked_when_the_stream_ends_with_it() -> None:
    for end in (b"", b"-", b" x"):
        assert redacted(BEGIN_ALIKE, *one_by_one(b"a hunter22" + end)) == b"a [secret:SHORT]" + end


def test_two_secrets_have_masks_of_their_own_names() -> None:
    secrets = {"HF_TOKEN": "hf_abcdef", "WANDB_API_KEY": "0123456789abcdef"}
    shown = redacted(secrets, *one_by_one(b"0123456789abcdef hf_abcdef"))
    assert shown == b"[secret:WANDB_API_KEY] [secret:HF_TOKEN]"


def test_a_random_stream_cut_at_random_loses_its_secrets_and_nothing_else() -> None:
    rng = random.Random(7)
    for _ in range(400):
        secrets = {
            name: "".join(rng.choices("ab", k=rng.randint(SHORTEST_SECRET, 9)))
            for name in ("A", "B")[: rng.randint(1, 2)]
        }
        pieces = [*secrets.values(), "a", "b", "ab", "\n", *(value[:-1] for value in secrets.values())]
        stream = "".join(rng.choices(pieces, k=rng.randint(1, 30))).encode()
        chunks = cut(stream, *sorted(rng.choices(range(len(stream) + 1), k=rng.randint(0, 12))))
        shown = redacted(secrets, *chunks)

        assert not any(value.encode() in shown for value in secrets.values()), (secrets, chunks)
        if len(secrets) == 1:  # of two that overlap both are hidden, whole
            assert shown.replace(b"[secret:A]", secrets["A"].encode()) == stream, (secrets, chunks)


def test_how_a_random_stream_is_cut_does_not_change_what_is_shown() -> None:
    rng = random.Random(11)
    for _ in range(400):
        secret = "".join(rng.choices("ab", k=rng.randint(SHORTEST_SECRET, 9)))
        stream = "".join(rng.choices([secret, secret[:-1], secret[1:], "a", "b"], k=20)).encode()
        chunks = cut(stream, *sorted(rng.choices(range(len(stream) + 1), k=rng.randint(0, 20))))
        assert redacted({"TOKEN": secret}, *chunks) == stream.replace(secret.encode(), MASK), (secret, chunks)


def test_a_line_that_is_complete_is_shown_at_once() -> None:
    redactor = Redactor({"TOKEN": TOKEN, "KEY": PRIVATE_KEY})
    assert redactor.feed(b"step 1\n") == b"step 1\n"
    assert redactor.flush() == b""


def test_only_an_end_that_may_begin_a_secret_is_held_back_until_the_stream_ends() -> None:
    redactor = Redactor({"TOKEN": TOKEN})
    assert redactor.feed(b"token hf_9x") == b"token "
    assert redactor.feed(b"7Q") == b""
    assert redactor.flush() == b"hf_9x7Q"
    assert redactor.flush() == b""


def test_without_secrets_the_stream_is_untouched() -> None:
    redactor = Redactor({})
    for chunk in (b"", b"[secret:X]", bytes(range(256)), TOKEN.encode()):
        assert redactor.feed(chunk) == chunk
    assert redactor.flush() == b""


def test_bytes_that_are_no_text_pass_unchanged() -> None:
    stream = bytes(range(256)) * 2
    assert redacted({"TOKEN": TOKEN}, *one_by_one(stream)) == stream


def test_a_whole_text_is_masked_in_one_call() -> None:
    redactor = Redactor({"TOKEN": TOKEN})
    assert redactor.text(f"train.py --token={TOKEN} é \udcff") == "train.py --token=[secret:TOKEN] é \ufffd"
    assert redactor.flush() == b""


def test_a_secret_that_is_not_utf_8_is_masked() -> None:
    secret = b"p\xe4ssword".decode(errors="surrogateescape")  # as os.environ holds it
    assert redacted({"TOKEN": secret}, b"<p\xe4ssword>") == b"<" + MASK + b">"


@pytest.mark.parametrize("between", INVISIBLE.values(), ids=INVISIBLE)
def test_a_secret_with_something_unseen_in_it_is_still_a_secret(between: str) -> None:
    stream = b"key " + between.encode().join(TOKEN[i : i + 5].encode() for i in range(0, len(TOKEN), 5)) + b" ok"
    for chunks in ([stream], one_by_one(stream), *(cut(stream, place) for place in range(len(stream)))):
        assert redacted({"TOKEN": TOKEN}, *chunks) == b"key " + MASK + b" ok", chunks


@pytest.mark.parametrize("between", INVISIBLE.values(), ids=INVISIBLE)
def test_what_the_text_for_agents_leaves_out_hides_no_secret(between: str) -> None:
    stream = f"key {between.join(KEY)} ok\n".encode()
    for chunks in ([stream], one_by_one(stream)):
        shown = redacted({"TOKEN": KEY}, *chunks)
        assert " ".join(line.text for line in clean_lines(shown)) == "key [secret:TOKEN] ok"


def longest_part(shown: str) -> int:
    """Return the length of the longest part of KEY that can be read in ``shown``, whatever its case and separators."""
    letters = "".join(c for c in shown.lower() if c.isalnum())
    key = "".join(c for c in KEY.lower() if c.isalnum())
    parts = (n for n in range(len(key), 0, -1) for i in range(len(key) - n + 1) if key[i : i + n] in letters)
    return next(parts, 0)


@pytest.mark.parametrize("spell", SPELLINGS.values(), ids=SPELLINGS)
def test_ordinary_spellings_of_a_secret_are_masked(spell: Callable[[str], str]) -> None:
    spelling = spell(KEY)
    stream = f"a line\nkey: {spelling}\nloss 0.5\n".encode()
    for chunks in ([stream], one_by_one(stream), *(cut(stream, place) for place in range(0, len(stream), 7))):
        shown = redacted({"TOKEN": KEY}, *chunks).decode(errors="replace")  # a cut separator
        assert MASK.decode() in shown
        assert shown.startswith("a line\nkey: ")
        assert shown.endswith("loss 0.5\n")
        assert longest_part(shown) < 8, shown
        left = shown.replace(MASK.decode(), "").removeprefix("a line\nkey: ").removesuffix("\nloss 0.5\n")
        assert len(left) < max(len(spelling) // 2, 24), shown  # a label, an offset, an end


HOSTILE = {
    "a first letter and NULs": (b"h", b"\0"),
    "a title without an end": (b"h\x1b]", b"a"),
    "base64 and line ends": (base64.b64encode(b"hf_aB3")[:3], b"\n"),
    "base64 and spaces": (base64.b64encode(b"hf_aB3")[:3], b" \n"),
    "digits and separators": (b"68665f", b", "),
    "letters and separators": (b"h f a B 3", b" - "),
    "first letters": (b"", b"h\0"),
    "escapes": (b"h", b"\x1b"),
    "strings without an end": (b"h", b"\x1bPh"),
}


@pytest.mark.parametrize(("begin", "rest"), HOSTILE.values(), ids=HOSTILE)
def test_little_is_held_back_whatever_comes(begin: bytes, rest: bytes) -> None:
    redactor = Redactor({"TOKEN": KEY})
    stream = begin + rest * (300_000 // len(rest))
    fed = passed = 0
    for at in range(0, len(stream), 4_096):
        fed += len(chunk := stream[at : at + 4_096])
        passed += len(redactor.feed(chunk))
        assert fed - passed <= 8_192, at
    assert passed + len(redactor.flush()) == len(stream)


def test_a_secret_in_a_title_or_an_address_that_nobody_sees_is_masked() -> None:
    for stream in (b"\x1b]0;%s\x07", b"\x1b]8;;https://x/?t=%s\x1b\\here\x1b]8;;\x1b\\", b"\x1bP%s\x1b\\"):
        shown = redacted({"TOKEN": TOKEN}, *one_by_one(stream % TOKEN.encode()))
        assert shown == stream % MASK


def test_a_secret_between_characters_that_are_erased_again_is_masked() -> None:
    for between in ("x\b", "\b"):
        assert redacted({"TOKEN": TOKEN}, f"key {between.join(TOKEN)} ok".encode()) == b"key " + MASK + b" ok"
    bold = "".join(f"{character}\b{character}" for character in TOKEN)
    assert redacted({"TOKEN": TOKEN}, f"key {bold} ok".encode()).decode().count(TOKEN[1:]) == 0


def test_words_and_numbers_of_a_long_value_are_not_masked_alone() -> None:
    redactor = Redactor({"PHRASE": "correct-horse-battery-staple-2024", "NUMBER": "12345678.12345678.0"})
    text = "correct the horse: battery 0.12345678, staple 2024-12-01 12:34:56\n"
    assert redactor.text(text) == text
    assert redactor.text("Correct Horse Battery Staple 2024") == "[secret:PHRASE]"


KEY_ALPHABETS = {"base62": string.ascii_letters + string.digits, "hexadecimal": "0123456789abcdef"}


@pytest.mark.parametrize("alphabet", KEY_ALPHABETS.values(), ids=KEY_ALPHABETS)
@pytest.mark.parametrize("length", [12, 19, 22, 40, 128])
def test_every_part_of_a_key_of_eight_characters_is_masked(alphabet: str, length: int) -> None:
    rng = random.Random(length)
    for _ in range(8):
        key = ""
        while len(re.findall("[a-z](?=[A-Z0-9])|[A-Z](?=[a-z0-9])|[0-9](?=[a-zA-Z])", key)) <= length / 4:
            key = "".join(rng.choices(alphabet, k=length))
        redactor = Redactor({"TOKEN": key})
        for size in (SHORTEST_PART, SHORTEST_PART + 1, length - 1):
            begin = rng.randrange(length - size + 1)
            part = key[begin : begin + size].encode()
            assert redacted({"TOKEN": key}, *one_by_one(b"= %s;\n" % part)).count(part[3:-1]) == 0, (key, part)
            assert redactor.text(f"= {part.decode()};") == "= [secret:TOKEN];", (key, part)


def test_a_mixed_part_of_a_phrase_is_masked() -> None:
    value = "s3cr3tvalueABCd-ef9"
    for part in (value[:8], value[:9], value[2:14], value[3:14]):
        assert Redactor({"TOKEN": value}).text(f"<{part}>") == "<[secret:TOKEN]>"


@pytest.mark.parametrize(
    "spell",
    [
        shlex.quote,
        lambda value: repr(value.encode()),
        lambda value: json.dumps(json.dumps(value)),
        html.escape,
        lambda value: quote(value, safe="").lower(),
    ],
    ids=["shell", "bytes", "json in json", "html", "lower percent"],
)
def test_a_quoted_secret_is_still_a_secret(spell: Callable[[str], str]) -> None:
    value = "Ab'c$D/e\"F<g>h&I"  # with capitals, which an address in lower case loses
    shown = redacted({"TOKEN": value}, spell(value).encode())
    assert MASK in shown
    assert b"g" not in shown.replace(MASK, b"").replace(b"&quot;", b"")
