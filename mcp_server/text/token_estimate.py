"""An estimate of what a text costs a model in tokens, without a tokeniser. Pure."""

from __future__ import annotations

import re

from mcp_server.text.regex import compile_lazily

_PIECES = compile_lazily(r"([A-Za-z]+)|(\d+)|(\s+)|([!-/:-@\[-`{-~]+)|(.)", re.DOTALL)
# A word of an answer is one token; the letters of an id are about two a token, digits three, punctuation three.
_WORD = compile_lazily(r"[a-z]{4,9}")
_LETTERS, _DIGITS, _MARKS = 2.2, 3, 3


def estimate_tokens(text: str) -> int:
    """Return about how many o200k tokens ``text`` has. For this server's answers it is 0 to 30 % too many."""
    tokens = 0.0
    for letters, digits, blanks, marks, other in _PIECES.findall(text):
        if letters:
            tokens += 1 if _WORD.fullmatch(letters) else -(-len(letters) // _LETTERS)
        elif digits:
            tokens += -(-len(digits) // _DIGITS)
        elif marks:
            tokens += -(-len(marks) // _MARKS)
        elif other:
            tokens += 1.5
        elif blanks != " ":
            tokens += 1
    return round(tokens)
