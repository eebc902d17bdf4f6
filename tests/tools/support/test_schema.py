"""What a tool's failure tells the model: a sentence with the cause, never a traceback and never nothing."""

import errno
import re
from pathlib import Path

import anyio
import pytest
from mcp.client import Client
from mcp.types import TextContent

from mcp_server.errors import RunwardError
from mcp_server.serve.app import build
from mcp_server.text.formatting import shorten_quotes
from mcp_server.tools.support.schema import READ_ONLY, tool

pytestmark = pytest.mark.anyio


async def _full() -> None:
    raise OSError(errno.ENOSPC, "No space left on device", "/data/secret-name")


async def fill() -> str:
    """Fill the disk."""
    await _full()
    return ""


async def fill_in_parts() -> str:
    """Fill the disk in a task of its own."""
    async with anyio.create_task_group() as group:
        group.start_soon(_full)
    return ""


async def test_what_the_machine_cannot_do_is_said_without_a_file_s_name(tmp_path: Path) -> None:
    server = build({"RUNWARD_HOME": str(tmp_path)})
    for function in (fill, fill_in_parts):
        server._tool_manager._tools[function.__name__] = tool(function, title="Fill", annotations=READ_ONLY)
    async with Client(server) as client:
        for name in ("fill", "fill_in_parts"):
            result = await client.call_tool(name, {})
            (block,) = result.content
            assert result.is_error
            assert isinstance(block, TextContent)
            assert block.text == f"{name} was cut off: No space left on device. Runs go on; list_runs names them."


async def lack_memory() -> str:
    """Work without memory."""
    raise MemoryError


async def lack_threads() -> str:
    """Work without threads."""
    raise RuntimeError("can't start new thread")


async def test_what_the_server_has_run_out_of_is_named(tmp_path: Path) -> None:
    server = build({"RUNWARD_HOME": str(tmp_path)})
    shortages = {lack_memory: "no memory is left", lack_threads: "no thread can be started"}
    for function in shortages:
        server._tool_manager._tools[function.__name__] = tool(function, title="Work", annotations=READ_ONLY)
    async with Client(server) as client:
        for function, shortage in shortages.items():
            result = await client.call_tool(function.__name__, {})
            (block,) = result.content
            assert result.is_error
            assert isinstance(block, TextContent)
            assert shortage in block.text


async def test_a_fault_of_the_product_is_named_by_its_place_and_quotes_nothing(tmp_path: Path) -> None:
    async def divide(words: str) -> str:
        """Render text as what it is not."""
        return shorten_quotes(len(words), 9)  # type: ignore[arg-type]

    server = build({"RUNWARD_HOME": str(tmp_path)})
    server._tool_manager._tools["divide"] = tool(divide, title="Divide", annotations=READ_ONLY)
    async with Client(server) as client:
        result = await client.call_tool("divide", {"words": "s3cr3t"})
    (block,) = result.content
    assert result.is_error
    assert isinstance(block, TextContent)
    assert re.match(r"divide met a fault of runward itself: TypeError in text/formatting.py:\d+\. ", block.text)
    assert "list_runs" in block.text
    assert "s3cr3t" not in block.text


SECRET = "s3cr3t-" * 60


async def refuse(words: list[str]) -> str:
    """Refuse what it is given."""
    raise RunwardError(f"No such words: {', '.join(words)}.", "Nothing was done.", f"Write {words[0]!r} out.")


async def test_a_refusal_quotes_the_ends_of_long_words_and_no_part_of_a_secret(tmp_path: Path) -> None:
    server = build({"RUNWARD_HOME": str(tmp_path), "WANDB_API_KEY": SECRET})
    server._tool_manager._tools["refuse"] = tool(refuse, title="Refuse", annotations=READ_ONLY)
    inputs = (["w" * 9_000], ["a b " * 3_000], [SECRET, "x" * 400], {"k" * 9_000: 1}, 7)
    async with Client(server) as client:
        texts = []
        for words in inputs:
            result = await client.call_tool("refuse", {"words": words})
            assert result.is_error
            texts += [block.text for block in result.content if isinstance(block, TextContent)]
        other = await client.call_tool("refuse", {"w" * 9_000: 1, "words": []})
        texts += [block.text for block in other.content if isinstance(block, TextContent)]
        numeric = await client.call_tool("compare_runs", {"run_ids": 7})
        texts += [block.text for block in numeric.content if isinstance(block, TextContent)]
    assert len(texts) == len(inputs) + 2
    assert max(map(len, texts)) < 6_100
    assert len(texts[0]) < 800
    assert texts[0].startswith("No such words: www")
    assert "Nothing was done. Write 'www" in texts[0]
    assert texts[0].endswith("w' out.")
    assert "s3cr3t" not in texts[2]
    assert texts[-1].startswith("compare_runs was not called: run_ids takes ")
    assert "union" not in texts[-1]


async def test_a_wrong_word_is_answered_with_the_words_of_all_types_that_fit(tmp_path: Path) -> None:
    async with Client(build({"RUNWARD_HOME": str(tmp_path)})) as client:
        result = await client.call_tool("list_runs", {"state": "done"})
    (text,) = [block.text for block in result.content if isinstance(block, TextContent)]
    assert text.startswith("list_runs was not called: state takes 'queued', 'starting'")
    assert "'live' or 'ended'" in text
    assert "literal" not in text
