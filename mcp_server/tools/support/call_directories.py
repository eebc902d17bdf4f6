"""Which directory the work of a call looks at, by its arguments alone: calls about one share a number of threads."""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mcp_server.store.run_store import RunStore

_FILES, _DIRECTORIES = ("path", "blueprint", "params"), ("cwd", "logdir", "result_dir", "tensorboard")
_LOOKS_AT_FILES_OF_RUNS = frozenset({"read_tb", "compare_runs", "finish_blueprint"})
_MOST_CHARS = 500


def find_directories(tool_name: str, arguments: Mapping[str, Any], store: RunStore) -> str:
    """Return the directories that a call looks at, as one text; empty where it looks at records of runs alone."""
    return " and ".join(sorted(set(_list_directories(tool_name, arguments, store))))[:_MOST_CHARS]


def _list_directories(tool_name: str, arguments: Mapping[str, Any], store: RunStore) -> Iterator[str]:
    common = arguments.get("common")
    places = {**common, **arguments} if isinstance(common, Mapping) else arguments
    for argument in (*_DIRECTORIES, *_FILES):
        if isinstance(path := places.get(argument), str) and path:
            yield os.path.normpath(Path(path).parent if argument in _FILES else path)
    if tool_name in _LOOKS_AT_FILES_OF_RUNS:
        for argument in ("run_id", "run_ids", "compare"):
            words = arguments.get(argument)
            for word in words if isinstance(words, list) else [words]:  # as sent: of any type
                if isinstance(word, str) and word:
                    yield store.find_known_directory(word) or word
