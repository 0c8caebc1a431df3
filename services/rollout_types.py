"""Types of the JSON objects that a rollout is made of: dataset row, run request, conversation, tokens, rollout row.

They describe plain dicts and cost nothing at run time. Every object may hold further keys: the environment's own, or
those of another stack. Only `Required` keys are promised, and what arrives from a model or over the network is checked
where it is read, not here. `pydantic.TypeAdapter(RolloutRow).validate_python(row)` checks a row of a file.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, Required

from typing_extensions import TypedDict  # pydantic takes no other before Python 3.12

from rollyard.services.types import FinishReason


class AgentRef(TypedDict, total=False):
    """Names the agent that plays a row."""

    name: Required[str]
    """Server name."""
    type: str
    """The family, as NeMo Gym's rows give it. The name alone decides."""


# --- tokens ---------------------------------------------------------------------------------------------------------


class TokenBreak(TypedDict):
    """Where a turn's prompt differs from the ids that the turn before ended with."""

    reason: str
    """Why the prompt was rendered from messages instead of being continued by ids."""
    position: int
    """Index of the first id that differs."""
    expected_length: int
    """Ids of the turn before, prompt and generation together."""
    prompt_length: int
    """Ids of this turn's prompt."""
    expected: list[int]
    """At most 8 ids of the turn before, from `position` on."""
    found: list[int]
    """At most 8 ids of this turn's prompt, from `position` on."""


class PolicyVersion(TypedDict, total=False):
    """Which weights sampled a turn."""

    policy_version: str | None
    """None where the engine holds weights that are not known."""
    policy_fingerprint: str
    """Digest of the files that this version was loaded from; absent where they were not seen."""
    policy_version_end: str | None
    """The version at the turn's end; absent where it is the same."""
    policy_fingerprint_end: str
    weight_versions: list[dict[str, Any]]
    """vLLM's own spans of the generated tokens (`version`, `start`, `end`), where there are several."""
    version_of: Literal["token", "turn"]
    """Whether the engine named the version of each token, or it was read off the time of the turn."""


class SamplingRecord(PolicyVersion, total=False):
    """How a turn was sampled, as far as the engine or the request tells. A neutral value may be absent."""

    temperature: float
    top_p: float
    top_k: int
    """-1 or 0: all tokens."""
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    stop: str | list[str]
    stop_token_ids: list[int]
    ignore_eos: bool
    include_stop_str_in_output: bool
    repetition_detection: Any
    """vLLM's own object."""
    constrained: list[str]
    """What changed the model's distribution, by the name of the request's field; absent where nothing did."""
    constraints: dict[str, Any]
    """The values of these fields. One of more than 4000 bytes is replaced by its `bytes` and `sha256`."""
    not_enforced: list[str]
    """Constraints of the request that this token backend cannot enforce."""
    logprobs_mode: str | None
    """vLLM's `--logprobs-mode`; None where it is not known."""


_Break = TypedDict("_Break", {"break": NotRequired[TokenBreak]})  # a Python keyword as a key


class TokenTrace(_Break, total=False):
    """Where a turn's tokens come from, and how they continue those of the turn before.

    `break`: present where the prompt does not begin with exactly the ids of the turn before.
    """

    segment: Required[int]
    """From 0; one more after each break."""
    way: str
    """The token backend."""
    context: str
    """24 hexadecimal digits: fingerprint of the tools and the conversation up to the end of this turn."""
    escaped: list[str]
    """Special tokens that were escaped in the request's texts."""
    sampling: SamplingRecord


class TokenHistory(TypedDict, total=False):
    """What the last item of a model call carries for training. The last two lists have the same length."""

    prompt_token_ids: list[int]
    """The whole prompt of this model call, all earlier turns included."""
    generation_token_ids: list[int]
    generation_log_probs: list[float]
    """Natural logarithms, one per generated token; `token_trace.sampling.logprobs_mode` tells of what distribution."""
    token_trace: TokenTrace
    """Absent where another stack recorded the tokens."""


class TokenTrail(TypedDict, total=False):
    """How well the recorded tokens of an episode hang together."""

    turns: Required[int]
    """Model calls with tokens, the first not counted."""
    breaks: Required[int]
    """Those of them that begin a new segment."""
    segments: Required[int]
    constrained: list[str]
    """Constraints under which any of the turns was sampled."""


# --- conversation ---------------------------------------------------------------------------------------------------


class ResponseItem(TokenHistory, total=False):
    """An item of OpenAI's Responses API, of whatever kind; `openai.types.responses` defines each kind by itself."""

    type: str
    """`message`, `reasoning`, `function_call`, `function_call_output`, ...; a message may lack it."""
    id: str | None
    status: str | None
    """`completed`, `incomplete` or `in_progress`."""
    role: str
    """Of a message: `user`, `system`, `developer` or `assistant`."""
    content: str | list[Any] | None
    """Of a message or of reasoning: text, or content parts."""
    summary: list[Any]
    """Of reasoning."""
    encrypted_content: str | None
    """Of reasoning whose text the endpoint keeps."""
    call_id: str
    """Of a call and its output."""
    name: str
    """Of a call: the tool."""
    arguments: str
    """Of a call: a JSON object as text, as the model wrote it, so that it may be invalid."""
    output: str | list[Any]
    """Of a call's output: text, or content parts."""


class Usage(TypedDict, total=False):
    """Token counts of a Response; in a rollout summed over all model calls."""

    input_tokens: int
    input_tokens_details: dict[str, Any]
    output_tokens: int
    output_tokens_details: dict[str, Any]
    """Holds `reasoning_tokens`."""
    total_tokens: int


class Response(TypedDict, total=False):
    """An OpenAI Response. In a rollout: the last one of the episode, with the items of all in order."""

    output: Required[list[ResponseItem]]
    id: str
    object: str
    created_at: float
    """Unix seconds."""
    status: str | None
    error: Any
    incomplete_details: dict[str, Any] | None
    """Holds `reason`: `max_output_tokens` or `content_filter`."""
    finish_reason: str
    """Ours, where Responses have no word for it: `unreadable_call`."""
    model: str
    usage: Usage | None
    background: bool | None
    instructions: str | list[Any] | None
    max_output_tokens: int | None
    metadata: dict[str, Any] | None
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, Any] | None
    """`effort` and `summary`, as they were requested."""
    service_tier: str | None
    temperature: float | None
    text: dict[str, Any] | None
    """The output format that was requested."""
    tool_choice: str | dict[str, Any]
    tools: list[Any]
    top_logprobs: int | None
    top_p: float | None
    truncation: str | None
    user: str | None


class CreateParams(TypedDict, total=False):
    """A Responses create request. Sampling parameters and what else the API knows stand beside these keys."""

    input: Required[str | list[ResponseItem]]
    instructions: str | None
    tools: list[Any] | None
    """Tools in the Responses format: `type`, `name`, `description`, `parameters`."""
    metadata: dict[str, Any] | None
    """`extra_body` holds a JSON object as text: fields that only the engine knows, such as a seed."""
    temperature: float | None
    top_p: float | None
    max_output_tokens: int | None


# --- rows -----------------------------------------------------------------------------------------------------------


class _RolloutIndex(TypedDict, total=False):
    _ng_task_index: int
    """Which row of the input, blank lines not counted, from 0."""
    _ng_rollout_index: int
    """Which repeat of the task, from 0."""


class DatasetRow(TypedDict):
    """A line of a dataset. All further keys belong to the environment, which is given the whole row."""

    responses_create_params: CreateParams
    agent_ref: NotRequired[AgentRef | None]
    dataset_name: NotRequired[str]
    """Which dataset of a mixture the row is from."""


class RunRequest(DatasetRow, _RolloutIndex):
    """Body of `POST /run`: the row, its create parameters merged with those of the command.

    The collector always sends `agent_ref` and the two indices; a trainer may leave them out.
    """


class EpisodeTimings(TypedDict, total=False):
    """Seconds of wall time by stage (each summed over the episode), and counts."""

    seed_s: float
    model_s: float
    tool_s: float
    """Absent where the model called no tool."""
    verify_s: float
    total_s: float
    model_calls: int
    tool_calls: int


class PlayedEpisode(TypedDict):
    """What an agent adds to the row before the environment verifies it."""

    responses_create_params: CreateParams
    """As the model was asked first: with the items that the environment appended at its seed."""
    response: Response
    token_trail: NotRequired[TokenTrail]
    """Where tokens were recorded."""
    step_rewards: NotRequired[list[float]]
    """Turn-based episodes: the reward of each turn of the model, 0 for a turn without an action."""
    total_reward: NotRequired[float]
    """Turn-based episodes: the sum of `step_rewards`."""
    terminated: NotRequired[bool]
    """Turn-based episodes: the environment reached a final state."""
    info: NotRequired[dict[str, Any]]
    """Turn-based episodes: the info dictionary of the last step."""
    reset_info: NotRequired[dict[str, Any]]
    """Turn-based episodes: the info dictionary of `/reset`."""
    final_observation: NotRequired[str | list[dict[str, Any]]]
    """Turn-based episodes: what the environment observed at the end; the model never reads it."""


class RolloutKeys(_RolloutIndex, total=False):
    """What the collector writes on a row, all but `_ng_code` always. No other value of these keys survives."""

    _ng_attempt_index: int
    """Failed attempts of this rollout before, those of earlier commands included."""
    _ng_task_key: str
    """16 hexadecimal digits: equal for rows that ask the same, in whatever file."""
    agent_ref: AgentRef
    _ng_code: str
    """Short digest of the servers' code; absent for the first version of a collection."""


class RolloutRow(RolloutKeys, total=False):
    """A measured line of `output_jsonl_fpath`: the row, the episode and the verdict's keys.

    Only `reward` is certain: the rest is absent from the rows of some other stack.
    """

    reward: Required[float]
    """Finite, between -1e60 and 1e60."""
    responses_create_params: CreateParams
    response: Response
    dataset_name: str
    success: bool
    """Where the environment reports it."""
    finish_reason: FinishReason | str
    """Why the episode ended; absent in rows of NeMo Gym's agents."""
    truncated: bool
    """A limit ended the episode, not the model and not the environment."""
    timings: EpisodeTimings
    token_trail: TokenTrail
    mask_sample: bool
    """NeMo Gym's word for a rollout that counts in no mean."""
    failure_kind: str
    """On masked rows of other stacks: why."""
