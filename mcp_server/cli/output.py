"""Output shared by the verbs of the command line."""

import json
from typing import Any


def print_json(value: Any) -> None:
    """Print a JSON value for scripts."""
    print(json.dumps(value, ensure_ascii=False, indent=2))
