"""Event files are known to hold histograms, images, text and hyperparameters, however large these are."""

from pathlib import Path

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from mcp_server.scalars.run_scalars import Scalars
from mcp_server.scalars.tensorboard.find import list_event_files
from mcp_server.scalars.tensorboard.other_data import list_other_data
from mcp_server.store.run_store import RunStore
from mcp_server.store.state_home import StateHome
from mcp_server.views.scalar_report import ScalarQuery, build_report


def test_what_is_no_scalar_is_named_with_its_tags(tmp_path: Path) -> None:
    writer = EventFileWriter(str(tmp_path / "tb"))

    def tensor(tag: str, plugin: str) -> Summary.Value:
        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin))
        return Summary.Value(tag=tag, metadata=metadata, tensor=TensorProto(dtype=7, string_val=[b"x" * 3000]))

    image = np.random.default_rng(0).bytes(300_000)
    values = [
        Summary.Value(tag="samples", image=Summary.Image(encoded_image_string=image)),
        Summary.Value(
            tag="weights/fc1", histo=HistogramProto(min=0, max=1, bucket=[1.0] * 50, bucket_limit=[1.0] * 50)
        ),
        tensor("config/text_summary", "text"),
        tensor("_hparams_/session_start_info", "hparams"),
        Summary.Value(tag="loss", simple_value=0.5),
    ]
    for step, value in enumerate(values):
        writer.add_event(Event(wall_time=1.0, step=step, summary=Summary(value=[value])))
    writer.close()
    assert list_other_data(list_event_files(tmp_path / "tb")) == {
        "hparams": ["_hparams_/session_start_info"],
        "histograms": ["weights/fc1"],
        "images": ["samples"],
        "text": ["config/text_summary"],
    }
    home = StateHome(tmp_path / "state")
    scalars, store = Scalars(home), RunStore(home)
    notes = build_report(ScalarQuery(str(tmp_path / "tb")), scalars, store).answer.notes
    assert notes == [
        "Beside scalars, which are shown here alone, its event files hold histograms (weights/fc1), "
        "hparams (_hparams_/session_start_info), images (samples), text (config/text_summary)."
    ]
    assert build_report(ScalarQuery(str(tmp_path / "tb"), ("loss",)), scalars, store).answer.notes is None


def test_damage_and_an_empty_file_hold_nothing(tmp_path: Path) -> None:
    for number, data in enumerate((b"", b"\xff" * 5000, b"\0" * 5000)):
        (tmp_path / f"{number}.tfevents.1.h").write_bytes(data)
    assert list_other_data([*list_event_files(tmp_path), tmp_path / "gone"]) == {}
