"""The pictures that a run wrote: files in its directories, and images in its event files."""

import contextlib
import hashlib
import os
import re
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mcp_server.record.curves.event_records import plugin_name
from mcp_server.record.curves.protobuf import BYTES, VARINT, Malformed, find_fields, to_signed
from mcp_server.record.state import Run
from mcp_server.results.checkpoints import step_in_name
from mcp_server.results.run_files import limited_scan, list_tree, result_roots, select_own
from mcp_server.scalars.locate import EventFiles, MetricLocation
from mcp_server.scalars.tensorboard.find import list_event_files
from mcp_server.store.attribution.attribution import OwnFiles
from mcp_server.system.files import open_regular

PICTURE_ENDS = (".png", ".jpg", ".jpeg", ".gif", ".mp4", ".webp")
_MOST, _MOST_FILES = 200, 2_000
_LARGEST = 32 << 20  # an image in an event file
_SMALLEST = 100  # a record that holds an image
_SCAN_S = 2.0
_MAGIC = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF87a": "gif", b"GIF89a": "gif"}
_COUNTED = re.compile(r"(?<!\d)0\d{2,}(?!\d)")  # `samples-000500`: a number with zeros in front is none of a date
_HEADER = struct.Struct("<QI")  # the length of a record and its checksum; behind the record is another one
_FOOTER = 4


@dataclass(frozen=True)
class Picture:
    """A picture: a file, or ``size_bytes`` at ``offset`` of an event file. ``identity``: device and inode of its file.

    ``tag``: of an image in an event file.
    """

    path: Path
    kind: str
    size_bytes: int
    changed_s: float
    identity: tuple[int, int]
    step: int | None = None
    tag: str = ""
    offset: int = 0

    @property
    def key(self) -> str:
        """A name for it that says nothing and stays the same."""
        return hashlib.sha256(f"{self.offset} {os.fspath(self.path)}".encode(errors="surrogateescape")).hexdigest()[:24]

    def read(self, start: int, count: int) -> bytes:
        """Return a part of it. OSError: another file has its name now."""
        with open_regular(self.path, follow_links=bool(self.tag)) as file:
            status = os.fstat(file.fileno())
            if (status.st_dev, status.st_ino) != self.identity:
                raise FileNotFoundError
            file.seek(self.offset + start)
            return file.read(max(0, min(count, self.size_bytes - start)))


def find_kind(head: bytes) -> str | None:
    """Return which kind of picture begins with ``head``, None where it is none that a page shows."""
    if head[4:8] == b"ftyp":
        return "mp4"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)


def find_pictures(run: Run, own: OwnFiles) -> list[Picture]:
    """Return the newest 200 picture files of a run, newest first. A file is a picture by its content."""
    changed: dict[Path, float] = {}
    for root in result_roots(run, own):
        for _, entries in list_tree(limited_scan(), root):
            changed |= {e.path: e.changed_s for e in entries if not e.is_dir and e.path.suffix.lower() in PICTURE_ENDS}
    newest = sorted(changed, key=lambda path: (-changed[path], path))[:_MOST_FILES]
    pictures = []
    for path in sorted(select_own(newest, own), key=lambda path: (-changed[path], path)):
        with contextlib.suppress(OSError), open_regular(path, follow_links=False) as file:
            status = os.fstat(file.fileno())
            if (kind := find_kind(file.read(16))) is not None:
                where = status.st_dev, status.st_ino
                step = step_in_name(path.stem)
                if step is None and (counted := _COUNTED.search(path.stem)) is not None:
                    step = int(counted[0])
                pictures.append(Picture(path, kind, status.st_size, status.st_mtime, where, step))
        if len(pictures) == _MOST:
            break
    return pictures


def find_event_images(locations: Iterable[MetricLocation]) -> list[Picture]:
    """Return the newest 200 images in the event files at ``locations``, of those that can be read in two seconds."""
    until_s, images = time.monotonic() + _SCAN_S, list[Picture]()
    for path in _list_event_files(locations):
        with contextlib.suppress(OSError, Malformed):
            for image in _read_images(path, until_s):
                images.append(image)
                del images[: -_MOST * 4]
    return sorted(images, key=lambda one: (-one.changed_s, one.tag))[:_MOST]


def _list_event_files(locations: Iterable[MetricLocation]) -> Iterator[Path]:
    for location in locations:
        if isinstance(location, EventFiles):
            yield from (location.path / name for name in location.attempts)
        elif isinstance(location, Path):
            with contextlib.suppress(OSError):
                yield from list_event_files(location)


def _read_images(path: Path, until_s: float) -> Iterator[Picture]:
    with open_regular(path) as file:
        status = os.fstat(file.fileno())
        identity, at = (status.st_dev, status.st_ino), 0
        while at + _HEADER.size < status.st_size and time.monotonic() < until_s:
            file.seek(at)
            length, _ = _HEADER.unpack(file.read(_HEADER.size))
            begin, at = at + _HEADER.size, at + _HEADER.size + length + _FOOTER
            if not _SMALLEST <= length <= _LARGEST or at > status.st_size:
                continue
            record = file.read(length)
            for tag, image in _find_images(record):
                if (kind := find_kind(image)) is not None:
                    step = next(iter(find_fields(record, 2, VARINT)), 0)
                    walls = find_fields(record, 1, 1)
                    wall_s = struct.unpack("<d", walls[0])[0] if walls else status.st_mtime
                    offset = begin + record.index(image)
                    yield Picture(path, kind, len(image), wall_s, identity, to_signed(step, 64), tag, offset)


def _find_images(record: bytes) -> Iterator[tuple[str, bytes]]:
    for summary in find_fields(record, 5, BYTES):
        for value in find_fields(summary, 1, BYTES):
            tag = b"".join(find_fields(value, 1, BYTES)[:1]).decode(errors="replace")
            for image in find_fields(value, 4, BYTES):  # of TensorFlow 1, PyTorch and tensorboardX
                yield from ((tag, data) for data in find_fields(image, 4, BYTES))
            metadata = b"".join(find_fields(value, 9, BYTES)[:1])
            for tensor in find_fields(value, 8, BYTES) if plugin_name(metadata) == "images" else ():
                yield from ((tag, data) for data in find_fields(tensor, 8, BYTES)[2:])  # behind width and height
