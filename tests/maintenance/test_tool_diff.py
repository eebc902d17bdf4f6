"""The difference of two sets of tool schemas: what breaks callers comes first."""

from typing import Any

from tests.maintenance.tool_diff import FOLDER, ROOT, describe, find_breaks, read_tree


def tool(required: tuple[str, ...] = (), **arguments: dict[str, Any]) -> dict[str, Any]:
    return {"inputSchema": {"properties": arguments, "required": list(required)}}


TEXT, NUMBER = {"type": "string"}, {"type": "number"}


def test_what_is_gone_required_or_narrower_breaks_callers() -> None:
    before = {"a": tool(), "b": tool(x=TEXT, y={"anyOf": [TEXT, NUMBER]}, z={"enum": ["one", "two"]})}
    after = {"b": tool(("new",), y=TEXT, z={"enum": ["one"]}, new=TEXT)}
    assert list(find_breaks(before, after)) == [
        "`a` is gone",
        "`b(x=)` is gone",
        "`b(y=)` no longer takes number",
        '`b(z=)` no longer takes "two"',
        "`b(new=)` is required now",
    ]


def test_a_new_tool_an_optional_argument_and_a_wider_type_break_nobody() -> None:
    before, after = {"b": tool(x=TEXT)}, {"a": tool(), "b": tool(x={"anyOf": [TEXT, NUMBER]}, y=TEXT)}
    assert list(find_breaks(before, after)) == []
    assert "breaks" not in describe(before, after)
    assert '+   "y"' in describe(before, after)


def test_the_same_tools_have_no_difference() -> None:
    tools = read_tree(ROOT / FOLDER)
    assert len(tools) >= 13
    assert describe(tools, tools).endswith("No tool changed.")
