"""Settings of a model server in front of a chat engine; names as in NeMo Gym where it has them."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from rollyard.responses_api_models.convert.conversion import Dialect
from rollyard.responses_api_models.upstream.settings import CallSettings
from rollyard.services.types import Json


class ChatEngineSettings(CallSettings):
    """How an engine that speaks Chat Completions is spoken to, wherever it runs."""

    NOT_IDENTITY: ClassVar[frozenset[str]] = CallSettings.NOT_IDENTITY | {"weights_check", "pause_lease_s"}

    return_token_id_information: bool = False
    """For training: the last item of each answer carries prompt_token_ids, generation_token_ids and
    generation_log_probs as the engine made them, beside token_trace. An answer without them is a failure."""
    token_in: Literal["auto", "generate", "completions", "off"] = "auto"
    """How a later turn's prompt reaches the engine when tokens are recorded. `generate`: as token ids, through vLLM's
    token-in endpoints (--enable-scale-out). `completions`: as token ids, through /v1/completions; tool calls are then
    read here, in hermes format. `off`: as messages, rendered and tokenized anew, which may drift: each break is
    recorded. `auto`: the first of them that the engine has."""
    text_tool_parser: Literal["hermes"] | None = None
    """For `token_in: completions`: how the model writes tool calls. Without it only conversations without tools go
    that way."""
    special_tokens_in_text: Literal["escape", "refuse", "allow"] | None = None
    """Special tokens of the engine's tokenizer (`<|im_end|>`) spelled out in messages and tools. `escape`: a space is
    put into them, so that they stay text. `refuse`: the call is refused. `allow`: they become the real ones. Null:
    `escape` where tokens are recorded, else `allow`."""
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs"] | None = None
    """What the engine's --logprobs-mode has to be; it is found out at the first turn and recorded with the tokens. An
    engine with another one is refused. Null: either."""
    policy_version: str = "0"
    """Version of the weights at the start; a weight update through this server sets the next."""
    trainer_endpoints: bool = False
    """Open the engine's tokenize, token-in and weight-update calls to callers with the run token."""
    weights_check: Literal["values", "headers", "off"] = "values"
    """What is looked at before engines load a folder: `values` reads every weight for NaN and infinity, `headers` only
    that the files are whole and this model's, `off` nothing, for folders that only the engines' machines see."""
    pause_lease_s: float = Field(600.0, gt=0)
    """Longest silence of a trainer after /pause, in seconds; then the policy resumes by itself. A call's own lease_s
    comes before it."""
    send_token_ids: bool = False
    """Send the token ids of earlier turns back on their assistant messages, for engines (NeMo RL's) that read them."""
    uses_reasoning_parser: bool = True
    """The engine separates reasoning from content. False: `<think>...</think>` at the beginning of the content is the
    reasoning, in both directions."""
    reasoning_field: Literal["both", "reasoning_content", "reasoning"] = "both"
    """Where earlier reasoning is sent on an assistant message. Each vLLM reads one of the two and ignores the other."""
    replace_developer_role_with_system: bool = True
    """Most chat templates know no developer role; Qwen's drops such a message without a word."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Name of the limit on output tokens in Chat Completions."""
    strict_tools: bool | None = None
    """Whether function tools are sent as strict; null: as the request says. vLLM forces strict calls to fit their
    schema by a grammar, which changes what the model can say; false leaves it free (and lets another constraint, e.g.
    structured_outputs, take effect)."""
    chat_template_kwargs: Json | None = None
    """Arguments for the chat template of every call, e.g. {enable_thinking: false}; a row's own win."""
    sampling_overrides: Json | None = None
    """Fields forced onto every call, whatever the request says, e.g. {temperature: 1.0, top_p: 1.0} for training."""

    @property
    def template_arguments(self) -> Json:
        """Arguments of the chat template that come from the settings, by any of their names."""
        given = (self.extra_body, {"chat_template_kwargs": self.chat_template_kwargs}, self.sampling_overrides)
        found = [one["chat_template_kwargs"] for one in given if one and one.get("chat_template_kwargs")]
        return {key: value for one in found if isinstance(one, dict) for key, value in one.items()}

    @property
    def token_needed_for(self) -> str:
        """See `ServerSettings.token_needed_for`."""
        return "trainer_endpoints would let any program of this machine change the policy" * self.trainer_endpoints

    @model_validator(mode="after")
    def _one_instance_for_a_trainer(self) -> Self:
        if self.trainer_endpoints and self.replicas > 1:
            raise ValueError(
                f"trainer_endpoints with replicas={self.replicas}: an update would reach one model server, and the "
                "others would not know of it; use one, which spreads calls over all engines (base_url, engine_replicas)"
            )
        return self

    @property
    def dialect(self) -> Dialect:
        """What the converter must know."""
        both = self.reasoning_field == "both"
        return Dialect(
            developer_as_system=self.replace_developer_role_with_system,
            reasoning_fields=("reasoning_content", "reasoning") if both else (self.reasoning_field,),
            think_tags=not self.uses_reasoning_parser,
            max_tokens_field=self.max_tokens_field,
            send_token_ids=self.send_token_ids or self.return_token_id_information,
        )
