"""Responses <-> Chat Completions, both ways, as pure functions on plain dicts. The door of two rooms.

    request_to_chat            a Responses create request, as a chat engine wants it     } a model server in front of
    chat_to_response           the engine's completion, as a Response                    } a chat engine
    chat_request_to_responses  a chat create request, as a Responses one                 } a chat client in front of
    response_to_chat           a Response, as a chat completion                          } any model server

One turn of the model is one assistant message in chat and several items in Responses:

    message.reasoning_content / .reasoning   <->  {"type": "reasoning", "summary": [...]}
    message.content                          <->  {"type": "message", "role": "assistant", "content": [output_text]}
    message.tool_calls[i]                    <->  {"type": "function_call", "call_id", "name", "arguments"}
    {"role": "tool", "tool_call_id"}         <->  {"type": "function_call_output", "call_id", "output"}

Fields that neither side knows are carried over as they are. Nothing the model wrote is judged here: tool arguments
stay the string that came, JSON or not.
"""

from rollyard.responses_api_models.convert.answers import chat_to_response, response_to_chat
from rollyard.responses_api_models.convert.requests import (
    Dialect,
    apply_metadata,
    chat_request_to_responses,
    request_to_chat,
)

__all__ = [
    "Dialect",
    "apply_metadata",
    "chat_request_to_responses",
    "chat_to_response",
    "request_to_chat",
    "response_to_chat",
]
