"""The base model of everything that a tool returns."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer


class Answer(BaseModel):
    """Base of all tool results. Fields that are None are omitted; whole numbers have no decimals."""

    model_config = ConfigDict(frozen=True)

    @model_serializer(mode="wrap")
    def _leave_out_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: _plain(value) for name, value in handler(self).items() if value is not None}


def _plain(value: Any) -> Any:
    """Return 30 for 30.0, which is the same in JSON and a token less."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT else value


_EXACT = 2.0**53
