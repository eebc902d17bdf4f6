"""The pictures of a run: by content, its own, and those in event files as TensorBoard's two formats have them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.record_writer import RecordWriter

from mcp_server.results.pictures import find_event_images, find_kind

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
JPEG = b"\xff\xd8\xff\xe0" + bytes(300)


def write_events(path: Path, *events: Event, tail: bytes = b"") -> Path:
    with path.open("wb") as file:
        writer = RecordWriter(file)
        for event in events:
            writer.write(event.SerializeToString())
        writer.flush()
        file.write(tail)
    return path


def image_event(step: int, tag: str, data: bytes) -> Event:
    value = Summary.Value(tag=tag, image=Summary.Image(height=1, width=1, encoded_image_string=data))
    return Event(wall_time=1.8e9 + step, step=step, summary=Summary(value=[value]))


def tensor_event(step: int, tag: str, *images: bytes, plugin: str = "images") -> Event:
    tensor = TensorProto(dtype=DT_STRING, string_val=[b"1", b"1", *images])
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin))
    value = Summary.Value(tag=tag, tensor=tensor, metadata=metadata)
    return Event(wall_time=1.8e9 + step, step=step, summary=Summary(value=[value]))


def test_images_of_both_formats_are_found_with_tag_and_step_the_newest_first(tmp_path: Path) -> None:
    scalar = Event(step=1, summary=Summary(value=[Summary.Value(tag="loss", simple_value=0.5)]))
    events = (
        image_event(1, "policy", PNG),
        scalar,
        tensor_event(2, "samples", JPEG, PNG),
        tensor_event(3, "x", b"?" * 200),
    )
    write_events(tmp_path / "events.out.tfevents.1.host", *events, tail=b"\x01" * 20)
    found = find_event_images([tmp_path])
    assert [(one.tag, one.step, one.kind) for one in found] == [
        ("samples", 2, "jpeg"),
        ("samples", 2, "png"),
        ("policy", 1, "png"),
    ]
    assert [one.read(0, 1 << 20) for one in found] == [JPEG, PNG, PNG]
    assert found[0].read(4, 8) == JPEG[4:12]
    assert len({one.key for one in found}) == 3


def test_an_event_file_that_is_damaged_or_no_event_file_has_no_images(tmp_path: Path) -> None:
    (tmp_path / "events.out.tfevents.1.host").write_bytes(os.urandom(5_000))
    (tmp_path / "events.out.tfevents.2.host").write_bytes(b"")
    assert find_event_images([tmp_path, tmp_path / "none"]) == []


def test_another_file_under_its_name_is_not_read(tmp_path: Path) -> None:
    path = write_events(tmp_path / "events.out.tfevents.1.host", image_event(1, "a", PNG))
    (image,) = find_event_images([tmp_path])
    path.rename(tmp_path / "kept")
    path.write_bytes(b"secret" * 100)
    with pytest.raises(FileNotFoundError):
        image.read(0, 10)


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (PNG, "png"),
        (JPEG, "jpeg"),
        (b"GIF89a", "gif"),
        (b"\0\0\0\x20ftypisom", "mp4"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "webp"),
        (b"<svg onload=alert(1)>", None),
        (b"<html>", None),
        (b"RIFF\x10\0\0\0WAVE", None),
        (b"", None),
    ],
)
def test_a_picture_is_one_by_its_content(head: bytes, kind: str | None) -> None:
    assert find_kind(head) == kind
