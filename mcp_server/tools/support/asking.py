"""Questions to the person at a client: the form, whether it can be shown, and the policy that only people decide."""

from collections.abc import Collection
from typing import Any, Literal

from mcp.server.mcpserver import Elicit, ElicitationResult
from pydantic import BaseModel, Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from mcp_server.errors import ConfigInvalid
from mcp_server.text.invisible import escape_unsendable
from mcp_server.tools.support.context import Call, ServerContext


class Confirm(BaseModel):
    """The form that a person fills in."""

    run_id: str = Field(
        default="",
        description="Type the run id, of several runs their number, to stop; anything else leaves them alone",
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the form's schema. Codex shows no form whose schema has a title or a description of its own."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        return {name: value for name, value in schema.items() if name not in ("title", "description")}


def put_question(question: str) -> Elicit[Confirm]:
    """Return a question, as every protocol can carry it."""
    return Elicit(escape_unsendable(question), Confirm)  # older protocols send it as a request, past all middleware


def read_answer(
    answer: ElicitationResult[Confirm], allowed: Collection[str], *, came_at_once: bool
) -> Literal["confirmed", "declined"] | None:
    """Return what the person decided who was to type one of ``allowed``; None where a program cancelled at once."""
    if answer.action == "accept":
        return "confirmed" if answer.data.run_id.strip() in allowed else "declined"
    return None if answer.action == "cancel" and came_at_once else "declined"


def find_people_rule(server: ServerContext) -> str:
    """Return the rule that only people stop runs here, and why; empty where agents may. Blocks."""
    rule = "On this machine only a person may stop runs"
    if server.environ.get("RUNWARD_KILL_POLICY") == "human":
        return rule
    if server.home.read_kill_policy() != "human":
        return ""
    try:
        server.home.read_config()
    except ConfigInvalid as error:
        return f"{rule}, as its settings may say so and cannot be read ({error.cause.rstrip('.')})"
    return rule


def can_ask(ctx: Call) -> bool:
    """Return whether the client declared that it can ask a person."""
    elicitation = ctx.client_capabilities.elicitation if ctx.client_capabilities else None
    if elicitation is None or (elicitation.form is None and elicitation.url is not None):
        return False
    return ctx.protocol_version == "2026-07-28" or bool(ctx.session.can_send_request)
