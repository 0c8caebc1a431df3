"""A model of inspect_ai that a model server of the run answers."""

from __future__ import annotations

from typing import Any

from rollyard.records.errors import Failure, FailureKind
from rollyard.resources_servers.base import Models
from rollyard.resources_servers.inspect_task.inspect_package import InspectPackage
from rollyard.resources_servers.inspect_task.message_items import items_of
from rollyard.services.responses.response_validity import is_answer, message_text


def grader_model(package: InspectPackage, models: Models, server: str, timeout_s: float) -> Any:
    """Return the model. A call fails with the server's Failure; tools are not supported."""

    async def respond(messages: list[Any], tools: list[Any], _: Any) -> Any:
        if tools:
            detail = f"a scorer offers tools to the grader {server}; only graders without tools are supported"
            raise Failure(FailureKind.BAD_TASK, detail)
        response = await models.respond(server, {"input": items_of(messages)}, timeout_s=timeout_s)
        texts = [message_text(item) for item in response["output"] if is_answer(item)]
        return package.model.ModelOutput.from_content(server, "".join(texts))

    return package.policy(respond)
