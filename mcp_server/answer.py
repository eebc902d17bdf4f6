"""The base model of everything that a tool returns."""

from typing import Any

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

from mcp_server.text.invisible import escape_all_unsendable


class Answer(BaseModel):
    """Base of all tool results: without None, whole numbers without decimals, and texts that JSON can carry."""

    model_config = ConfigDict(frozen=True)

    @model_serializer(mode="wrap")
    def _leave_out_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: _plain(value) for name, value in handler(self).items() if value is not None}


def _plain(value: Any) -> Any:
    """Return 30 for 30.0, which is the same in JSON and a token less, and texts as they may leave."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _EXACT else value
    return escape_all_unsendable(value)


_EXACT = 2.0**53
