"""A long text within JSON is read piece by piece, by value."""

import json

import pytest

from mcp_server.record.ray.ray_head import read_json_text

TEXT = 'step 1\nloss "0.5" \\ \\\\n \t 损失 😀 \ud83d alone \ud83d\n end \\'


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 13, 4096])
@pytest.mark.parametrize("is_ascii", [True, False])
def test_a_text_is_the_same_however_it_comes(size: int, is_ascii: bool) -> None:
    data = json.dumps({"logs": TEXT, "more": 1}, ensure_ascii=is_ascii)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert "".join(read_json_text(pieces, "logs")) == TEXT


def test_null_is_no_text_and_what_is_cut_off_or_something_else_is_an_error() -> None:
    assert list(read_json_text(['{"logs": null}'], "logs")) == []
    for bad in (['{"logs": "step 1'], ['{"logs": "a\\x"}'], ["<html>" + "x" * 5000], ["[]"], ['{"logs": "\\ud83d']):
        with pytest.raises(ValueError, match="not an object with a text 'logs'"):
            list(read_json_text(bad, "logs"))
