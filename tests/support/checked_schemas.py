"""Each schema of a tool is checked once a process: a client checks it once a session, which takes 10 ms a tool."""

import functools
import json
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

_check_schema = Draft202012Validator.check_schema


def check_each_schema_once() -> None:
    Draft202012Validator.check_schema = classmethod(_check)


def _check(_: type[Any], schema: Any) -> None:
    _check_text(json.dumps(schema))


@functools.cache
def _check_text(text: str) -> None:
    _check_schema(json.loads(text))
