"""An engine with almost no CPU cost that implements vLLM's token endpoints. Measures the overhead of the model server.

All responses are encoded at startup, with the size of vLLM 0.32's: an episode of 6 turns whose prompts grow from 500 to
4,000 ids. Each turn has 100 ids with their logprobs and one tool call. The ids are random, but turns are joined as by a
ChatML template, so that later turns are contiguous wherever their prompts are sent as ids.
"""

from __future__ import annotations

import random
import struct
from typing import Any

import orjson
import uvloop

from benchmarks.scripted_model import http, serve
from rollyard.records.types import Json

TURNS = 6
FIRST, GENERATED, NEW = 500, 100, 600
"""Token ids of the first prompt, of a generated turn, and of the observation between two turns."""
FRAME = 300
"""Token ids of the tools and the placeholder conversation in a rendered prompt."""
END = 151645
"""The id that ends a turn, Qwen's <|im_end|>."""
ARGUMENTS = orjson.dumps({"actions": ["Up", "Down", "Left", "Right"] * 12}).decode()
TOOL: Json = {
    "type": "function",
    "name": "step",
    "description": "Play moves in order and return the board after them. " * 10,
    "parameters": {"type": "object", "properties": {"actions": {"type": "array", "items": {"type": "string"}}}},
    "strict": False,
}
OBSERVATION = "\n".join(["##########__#O__X__P__#__####"] * 60)
"""About 600 token ids."""
_SHORT, _OTHER = b'"add_generation_prompt":false', b'"content":"x"}]'
_PLACEHOLDER = b'"content":"x"}'
_TOOL_OUTPUT = b'"tool_call_id"'
_PARAMS: Json = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "min_p": 0.0,
    "stop": [],
    "stop_token_ids": [],
    "max_tokens": 512,
    "logprobs": 0,
    "skip_special_tokens": False,
    "output_kind": 2,
    "skip_clone": True,
    "bad_pieces": [],
    "skip_reading_prefix_cache": False,
}


class Prepared:
    """Encoded responses."""

    def __init__(self) -> None:
        rng = random.Random(0)
        self._rng = rng
        self.turn = [*self._ids(GENERATED - 1), END]
        self.log_probs = [_float32(-rng.expovariate(3.0)) for _ in self.turn]
        new = [198, *self._ids(NEW - 4), 151644, 77091, 198]
        prompt = self._ids(FIRST)
        self.first = http(self._rendered(prompt))
        self.chat = []
        for _ in range(TURNS):
            self.chat.append(http(self._chat(prompt)))
            prompt = [*prompt, *self.turn, *new]
        frame = self._ids(FRAME)
        self.plain = http(_without_tokens(self._chat([])))
        short, other = [*frame, 87, END, 198], [*frame, 88, END, 198]
        self.renderings = [http(self._rendered(ids)) for ids in (short, other, [*frame, 87, END, *new])]
        self.tokenized = [http({"tokens": ids, "count": len(ids)}) for ids in (short, other, [*frame, 87, END, *new])]
        self.generated = http(self._generated())
        self.derendered = http(_without_tokens(self._chat([])))
        self.completed = http(self._completed())

    def answer(self, request: bytes) -> bytes:
        """Return the response to a complete HTTP request."""
        path = request[5 : request.find(b" ", 5)]
        if path == b"/inference/v1/generate":
            return self.generated
        if path == b"/v1/chat/completions/derender":
            return self.derendered
        if path == b"/v1/completions":
            return self.completed
        if path in (b"/v1/chat/completions/render", b"/tokenize"):
            if _PLACEHOLDER not in request:
                return self.first
            which = 2 if _SHORT not in request else 0 if _OTHER in request else 1
            return (self.renderings if path.endswith(b"render") else self.tokenized)[which]
        if b'"return_token_ids":true' not in request:
            return self.plain
        return self.chat[min(request.count(_TOOL_OUTPUT), TURNS - 1)]

    def _ids(self, count: int) -> list[int]:
        """Return ids whose decimal length is distributed as in ordinary text, for a vocabulary of 150,000."""
        return [int(150_000 ** self._rng.uniform(0.3, 1.0)) for _ in range(count)]

    def _chat(self, prompt: list[int]) -> Json:
        function = {"name": "step", "arguments": ARGUMENTS}
        call = {"id": "chatcmpl-tool-9d638853ee141859", "type": "function", "function": function}
        message: Json = {"role": "assistant", "content": None, "refusal": None, "annotations": None, "audio": None}
        message |= {"function_call": None, "tool_calls": [call], "reasoning": None}
        entry: Json = {"token": " word", "bytes": [32, 119, 111, 114, 100], "top_logprobs": []}
        content = [{**entry, "logprob": log_prob} for log_prob in self.log_probs]
        choice = {"index": 0, "message": message, "logprobs": {"content": content}, "finish_reason": "tool_calls"}
        choice |= {"stop_reason": None, "token_ids": self.turn, "routed_experts": None}
        envelope = {"id": "chatcmpl-89bcae1ecfcb0675", "object": "chat.completion", "created": 0, "model": "tiny"}
        return {**envelope, "choices": [choice], "usage": _usage(len(prompt)), "prompt_token_ids": prompt}

    def _rendered(self, ids: list[int]) -> Json:
        request = {"request_id": "chatcmpl-8f87c04278e93d43", "token_ids": ids, "features": None, "model": "tiny"}
        return {**request, "sampling_params": _PARAMS, "output_mode": "tokens", "stream": False, "priority": 0}

    def _generated(self) -> Json:
        content: list[Json] = []
        for token, log_prob in zip(self.turn, self.log_probs, strict=True):
            entry: Json = {"token_id": token, "logprob": log_prob, "rank": 1}
            content.append({**entry, "top_logprobs": [entry]})
        choice: Json = {"index": 0, "finish_reason": "stop", "stop_reason": None, "token_ids": self.turn}
        choice |= {"weight_versions": [{"version": "default", "start": 0, "end": GENERATED}]}
        choice |= {"logprobs": {"content": content}}
        envelope = {"request_id": "generate-tokens-8f87c04278e93d43", "model": "tiny", "created": 0}
        return {**envelope, "usage": _usage(0), "output_mode": "tokens", "choices": [choice]}

    def _completed(self) -> Json:
        text = f'<tool_call>\n{{"name": "step", "arguments": {ARGUMENTS}}}\n</tool_call>'
        pieces = [" word"] * GENERATED
        logprobs: dict[str, Any] = {"text_offset": list(range(0, 5 * GENERATED, 5)), "tokens": pieces}
        logprobs |= {"token_logprobs": self.log_probs, "top_logprobs": [{" word": value} for value in self.log_probs]}
        choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": "stop", "token_ids": self.turn}
        envelope = {"id": "cmpl-85f64defacf2fe67", "object": "text_completion", "created": 0, "model": "tiny"}
        return {**envelope, "choices": [choice], "usage": _usage(0)}


def _without_tokens(response: Json) -> Json:
    (choice,) = response["choices"]
    return {**response, "prompt_token_ids": None, "choices": [{**choice, "logprobs": None, "token_ids": None}]}


def _usage(prompt: int) -> Json:
    return {"prompt_tokens": prompt, "completion_tokens": GENERATED, "total_tokens": prompt + GENERATED}


def _float32(value: float) -> float:
    """Return the value as engines write it to JSON: a 32-bit float with 17 digits."""
    read: float = struct.unpack("f", struct.pack("f", value))[0]
    return read


if __name__ == "__main__":
    uvloop.run(serve(Prepared().answer))
