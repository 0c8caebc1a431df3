"""Converts requests and responses between the Responses and Chat Completions APIs.

    request_to_chat            Responses create request -> chat create request   } a model server in front of
    chat_to_response           chat completion -> Response                       } a chat engine
    chat_request_to_responses  chat create request -> Responses create request   } a chat client in front of
    response_to_chat           Response -> chat completion                       } any model server

One model turn is one assistant message in Chat Completions, and several items in Responses:

    message.reasoning_content / .reasoning   <->  {"type": "reasoning", "summary": [...]}
    message.content                          <->  {"type": "message", "role": "assistant", "content": [output_text]}
    message.tool_calls[i]                    <->  {"type": "function_call", "call_id", "name", "arguments"}
    {"role": "tool", "tool_call_id"}         <->  {"type": "function_call_output", "call_id", "output"}

Fields that neither API defines are copied unchanged. The model's output is not validated: tool arguments remain the
string that the model generated, even if it is not JSON.
"""

from rollyard.responses_api_models.convert.completions import chat_to_response, response_to_chat
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
