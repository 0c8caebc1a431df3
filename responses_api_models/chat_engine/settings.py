"""Settings of a model server in front of a chat engine, named as in NeMo Gym where possible."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from rollyard.records.types import Json
from rollyard.responses_api_models.conversion import Dialect
from rollyard.responses_api_models.upstream.settings import CallSettings


class ChatEngineSettings(CallSettings):
    NOT_IDENTITY: ClassVar[frozenset[str]] = CallSettings.NOT_IDENTITY | {"weights_check", "pause_lease_s"}

    return_token_id_information: bool = False
    """For training: add the engine's prompt_token_ids, generation_token_ids and generation_log_probs, and a
    token_trace, to the last item of each response. The call fails if the engine does not return them."""
    return_token_texts: bool = False
    """Also record the text of each generated token, in token_trace.texts, where the engine reports it. Trainers do not
    need it; ng_viewer shows it with the probabilities. It adds about 8 bytes per generated token to rows and
    requests."""
    token_in: Literal["auto", "generate", "completions", "off"] = "auto"
    """How to send the prompts of later turns if tokens are recorded. `generate`: as token ids, through vLLM's token-in
    endpoints (--enable-scale-out). `completions`: as token ids, through /v1/completions; this server then parses hermes
    tool calls. `off`: as messages, which are rendered and tokenized again and may differ; each prefix mismatch is
    recorded. `auto`: the first of these that the engine supports."""
    text_tool_parser: Literal["hermes"] | None = None
    """For `token_in: completions`: the model's tool call format. Without it, only conversations without tools are
    sent as token ids."""
    special_tokens_in_text: Literal["escape", "refuse", "allow"] | None = None
    """What to do with special tokens of the engine's tokenizer (such as `<|im_end|>`) that are spelled out in messages
    and tools. `escape`: insert a space, so they remain text. `refuse`: reject the call. `allow`: the tokenizer turns
    them into special tokens. Null: `escape` if tokens are recorded, otherwise `allow`."""
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs"] | None = None
    """Required --logprobs-mode of the engine; it is detected at the first turn and recorded with the tokens. Calls to
    an engine with a different mode fail. Null: either."""
    policy_version: str = "0"
    """Version of the initial weights; each weight update through this server sets a new version."""
    trainer_endpoints: bool = False
    """Expose the engine's tokenize, token-in and weight-update endpoints to callers with the run token."""
    weights_check: Literal["values", "headers", "off"] = "values"
    """What to check before engines load a folder. `values`: every weight, for NaN and infinity. `headers`: only that
    the files are complete and belong to this model. `off`: nothing, for folders that only the engines' hosts can
    read."""
    pause_lease_s: float = Field(600.0, gt=0)
    """Seconds without a control call from the trainer after which a pause ends automatically. A lease_s field in the
    pause call takes precedence."""
    send_token_ids: bool = False
    """Send the token ids of earlier turns as fields of their assistant messages, for engines that read them (such as
    NeMo RL's)."""
    uses_reasoning_parser: bool = True
    """True if the engine separates reasoning from content. False: `<think>...</think>` at the start of the content is
    the reasoning, in requests and responses."""
    reasoning_field: Literal["both", "reasoning_content", "reasoning"] = "both"
    """Fields in which the reasoning of earlier assistant messages is sent. Each vLLM version reads one and ignores the
    other."""
    replace_developer_role_with_system: bool = True
    """Send developer messages with the system role: most chat templates have no developer role, and Qwen's silently
    drops these messages."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Chat Completions field for the output token limit."""
    strict_tools: bool | None = None
    """Whether function tools are sent as strict; null: as in the request. vLLM enforces the schema of strict calls with
    a grammar, which changes the sampled distribution. Set this to false to disable the grammar, for example to use a
    different constraint such as structured_outputs."""
    chat_template_kwargs: Json | None = None
    """Chat template arguments for every call, e.g. {enable_thinking: false}; a row's own arguments take precedence."""
    sampling_overrides: Json | None = None
    """Fields that override the request in every call, e.g. {temperature: 1.0, top_p: 1.0} for training."""

    @property
    def template_arguments(self) -> Json:
        """The chat template arguments from extra_body, chat_template_kwargs and sampling_overrides."""
        given = (self.extra_body, {"chat_template_kwargs": self.chat_template_kwargs}, self.sampling_overrides)
        found = [one["chat_template_kwargs"] for one in given if one and one.get("chat_template_kwargs")]
        return {key: value for one in found if isinstance(one, dict) for key, value in one.items()}

    @property
    def token_needed_for(self) -> str:
        return "trainer_endpoints would let any local process change the policy" * self.trainer_endpoints

    @model_validator(mode="after")
    def _texts_of_recorded_tokens(self) -> Self:
        if self.return_token_texts and not self.return_token_id_information:
            raise ValueError("return_token_texts is set without return_token_id_information; set both or neither")
        return self

    @model_validator(mode="after")
    def _one_instance_for_a_trainer(self) -> Self:
        if self.trainer_endpoints and self.replicas != 1:
            raise ValueError(
                f"trainer_endpoints is set with replicas={self.replicas}: an update would reach only one of the model "
                "servers; set replicas to 1, because one server can use several engines (base_url, engine_replicas)"
            )
        return self

    @property
    def dialect(self) -> Dialect:
        both = self.reasoning_field == "both"
        return Dialect(
            developer_as_system=self.replace_developer_role_with_system,
            reasoning_fields=("reasoning_content", "reasoning") if both else (self.reasoning_field,),
            think_tags=not self.uses_reasoning_parser,
            max_tokens_field=self.max_tokens_field,
            send_token_ids=self.send_token_ids or self.return_token_id_information,
        )
