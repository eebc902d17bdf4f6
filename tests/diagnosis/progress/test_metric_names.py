"""Each block of `metrics.rows` is true of its own name."""

import pytest

from mcp_server.diagnosis.progress import named_values
from mcp_server.diagnosis.progress.named_values import EPOCH, STEP, ValueName, classify_name, is_remark
from mcp_server.text.rows import read_blocks

BITS = {"loss": 1, "reward": 2, "quality": 4, "speed": 8, "vital": 16}
COUNTS = {"step": STEP, "scope": STEP, "epoch": EPOCH, "plan": None, "window": None}


@pytest.mark.parametrize("block", [dict(block) for block in read_blocks("diagnosis/progress/metrics")])
def test_a_block_of_names_is_true_of_its_own_name(block: dict[str, str]) -> None:
    name = classify_name(block["seen"])
    if "of" in block:
        assert name is not None
        assert name.bits == BITS[block["of"]]
    elif "shown" in block:
        assert name is not None
        assert name.headline == block["shown"]
        assert block["shown"] in named_values.HEADLINES
    elif block["sort"] == "verb":
        spoken, plain = name, classify_name("loss")
        assert spoken is not None
        assert plain is not None
        assert (is_remark("the loss is nan", spoken), is_remark("loss: nan", plain)) == (True, False)
    else:
        expected = COUNTS[block["sort"]]
        assert name == (None if expected is None else ValueName(block["seen"], expected, None))


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("Average BPR loss was", "average bpr loss"),
        ("Recall@20 is now", "recall@20"),
        ("val accuracy of", "val accuracy"),
    ],
)
def test_the_verb_behind_a_name_is_no_part_of_it(said: str, name: str) -> None:
    assert getattr(classify_name(said), "text", None) == name
