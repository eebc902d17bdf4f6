"""A state directory with very many ended runs: copies of one real run, each under its own id, a minute apart."""

from __future__ import annotations

import json
import os
import shutil
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

_LETTERS = "abcdefghjkmnpqrstvwxyz23456789"
_SIZES = ("40m", "160m", "410m", "1b")
_MOST_LINKS = 60_000  # to one file: ext4 allows 65,000


def multiply(original: Path, times: int) -> list[str]:
    """Copy an ended run's directory under ``times`` other ids, each a minute older than the one before.

    Names, tags and parameters vary as in a lab: a tag for each hundred, one for all of a size. Returns the ids.
    """
    spec = json.loads((original / "spec.json").read_text())
    exit_record = json.loads((original / "attempts/1/exit.json").read_text())
    events = [json.loads(line) for line in (original / "events.jsonl").read_text().splitlines()]
    ids, source = [], original
    for number in range(1, times + 1):
        size = _SIZES[number % len(_SIZES)]
        run_id = f"{spec['name']}-{size}-{_suffix(number)}"
        copy = original.with_name(run_id)
        if number % _MOST_LINKS:
            shutil.copytree(source, copy, copy_function=os.link)
        else:
            source = shutil.copytree(original, copy)
        older = timedelta(minutes=number)
        own: dict[str, Any] = {"run_id": run_id, "session": run_id, "name": f"{spec['name']}-{size}"}
        own |= {"created_at": _earlier(spec["created_at"], older), "tags": [size, f"batch-{number // 100}"]}
        _write(copy / "spec.json", json.dumps({**spec, **own}))
        times_of = {name: _earlier(exit_record[name], older) for name in ("started_at", "ended_at")}
        _write(copy / "attempts/1/exit.json", json.dumps({**exit_record, **times_of}))
        lines = [json.dumps({**event, "at": _earlier(event["at"], older)}) for event in events]
        _write(copy / "events.jsonl", *lines)
        ids.append(run_id)
    return ids


def _suffix(number: int) -> str:
    letters = ""
    for _ in range(4):
        number, digit = divmod(number, len(_LETTERS))
        letters += _LETTERS[digit]
    return letters


def _earlier(at: str, by: timedelta) -> str:
    return (datetime.fromisoformat(at) - by).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _write(path: Path, *lines: str) -> None:
    path.unlink()  # it is the original's as well
    path.write_text("".join(f"{line}\n" for line in lines))
