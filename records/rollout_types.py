"""Types of the JSON objects of a rollout: dataset row, run request, conversation, tokens, rollout row.

They describe plain dicts and have no run-time cost. Every object may have additional keys, from its environment or from
another stack. Only `Required` keys are guaranteed. Data from a model or the network is validated where it is read,
not here. `pydantic.TypeAdapter(RolloutRow).validate_python(row)` validates a row of a file.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, Required

from typing_extensions import TypedDict  # pydantic requires this one before Python 3.12

from rollyard.records.types import FinishReason


class PrefixMismatch(TypedDict):
    """A prefix mismatch: where a turn's prompt differs from the token ids of the previous turn."""

    reason: str
    """Why the prompt was rendered from messages instead of continuing the token ids."""
    position: int
    """Index of the first token id that differs."""
    expected_length: int
    prompt_length: int
    expected: list[int]
    """At most 8 token ids of the previous turn, starting at `position`."""
    found: list[int]
    """At most 8 token ids of this turn's prompt, starting at `position`."""


class PolicyVersion(TypedDict, total=False):
    """The version of the weights that sampled a turn."""

    policy_version: str | None
    """None if the engine's weights are unknown."""
    policy_fingerprint: str
    """Digest of the files from which this version was loaded; absent if they were not accessible."""
    policy_version_end: str | None
    """The version at the turn's end; absent if it is the same."""
    policy_fingerprint_end: str
    weight_versions: list[dict[str, Any]]
    """vLLM's spans of the generated tokens (`version`, `start`, `end`), if there are several."""
    version_of: Literal["token", "turn"]
    """`token`: the engine reported the version of each token. `turn`: it was derived from the turn's time."""


class SamplingRecord(PolicyVersion, total=False):
    """A turn's sampling parameters, if the engine or the request specifies them. Neutral values may be absent."""

    temperature: float
    top_p: float
    top_k: int
    """-1 or 0 means all tokens."""
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
    constrained: list[str]
    """Request fields that changed the model's distribution; absent if there are none."""
    constraints: dict[str, Any]
    """The values of these fields. A value of more than 4000 bytes is replaced by its size (`bytes`) and `sha256`."""
    not_enforced: list[str]
    """Constraints in the request that this token backend cannot enforce."""
    logprobs_mode: str | None
    """vLLM's `--logprobs-mode`; None if unknown."""


_Break = TypedDict("_Break", {"break": NotRequired[PrefixMismatch]})  # a Python keyword as a key


class TokenTrace(_Break, total=False):
    """The origin of a turn's tokens, and how they continue those of the previous turn.

    `break`: present if the prompt does not begin with the exact ids of the previous turn.
    """

    segment: Required[int]
    """Index of the segment. It starts at 0 and increases with each break."""
    way: str
    context: str
    """Fingerprint (24 hexadecimal digits) of the tools and the conversation up to the end of this turn."""
    escaped: list[str]
    """Special tokens that were escaped in the text of the request."""
    sampling: SamplingRecord
    texts: list[str]
    """The text of each generated token, if the setting `return_token_texts` is true and the engine reports them."""


class TokenHistory(TypedDict, total=False):
    """Training fields of the last item of a model call. The two `generation_` lists have the same length."""

    prompt_token_ids: list[int]
    """The entire prompt of this model call, including all earlier turns."""
    generation_token_ids: list[int]
    generation_log_probs: list[float]
    """Natural log-probabilities of generated tokens; `token_trace.sampling.logprobs_mode` names the distribution."""
    token_trace: TokenTrace
    """Absent if another stack recorded the tokens."""


class PrefixMismatchSummary(TypedDict, total=False):
    """Summary of the prefix mismatches in an episode's recorded tokens."""

    turns: Required[int]
    """Number of model calls with recorded tokens, not counting the first."""
    breaks: Required[int]
    segments: Required[int]
    constrained: list[str]


class AgentRef(TypedDict, total=False):
    """The agent that runs a row's episode."""

    name: Required[str]
    type: str
    """The server's family, as in NeMo Gym's rows. The name alone identifies the agent."""


# --- conversation ---------------------------------------------------------------------------------------------------


class ResponseItem(TokenHistory, total=False):
    """An item of OpenAI's Responses API, of any type; `openai.types.responses` defines each type separately."""

    type: str
    """`message`, `reasoning`, `function_call`, `function_call_output`, ...; messages may omit it."""
    id: str | None
    status: str | None
    role: str
    content: str | list[Any] | None
    """Content of a message or a reasoning item: a string or a list of parts."""
    summary: list[Any]
    encrypted_content: str | None
    """Encrypted reasoning, from endpoints that do not reveal its text."""
    call_id: str
    name: str
    arguments: str
    """Arguments of a tool call as JSON text. It may be invalid, because it is exactly what the model wrote."""
    output: str | list[Any]
    """Output of a tool call: a string or a list of parts."""


class Usage(TypedDict, total=False):
    """Token counts of a Response; in a rollout, the sum over all model calls."""

    input_tokens: int
    input_tokens_details: dict[str, Any]
    output_tokens: int
    output_tokens_details: dict[str, Any]
    """Contains `reasoning_tokens`, the number of tokens in reasoning items."""
    total_tokens: int


class Response(TypedDict, total=False):
    """An OpenAI Response. In a rollout: the episode's last one, but with the output items of all of them."""

    output: Required[list[ResponseItem]]
    id: str
    object: str
    created_at: float
    status: str | None
    error: Any
    incomplete_details: dict[str, Any] | None
    """Contains `reason`: `max_output_tokens` or `content_filter`."""
    finish_reason: str
    """Rollyard extension that reports `unreadable_call`, which the Responses API cannot express."""
    model: str
    usage: Usage | None
    background: bool | None
    instructions: str | list[Any] | None
    max_output_tokens: int | None
    metadata: dict[str, Any] | None
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, Any] | None
    service_tier: str | None
    temperature: float | None
    text: dict[str, Any] | None
    tool_choice: str | dict[str, Any]
    tools: list[Any]
    top_logprobs: int | None
    top_p: float | None
    truncation: str | None
    user: str | None


class CreateParams(TypedDict, total=False):
    """Request parameters of the Responses API. All other parameters of the API are allowed as well."""

    input: Required[str | list[ResponseItem]]
    instructions: str | None
    tools: list[Any] | None
    metadata: dict[str, Any] | None
    """`extra_body` contains a JSON object as text, with engine-specific fields such as a seed."""
    temperature: float | None
    top_p: float | None
    max_output_tokens: int | None


# --- rows -----------------------------------------------------------------------------------------------------------


class _RolloutIndex(TypedDict, total=False):
    _ng_task_index: int
    """Zero-based index of the input row, not counting blank lines."""
    _ng_rollout_index: int


class DatasetRow(TypedDict):
    """A line of a dataset. All other keys belong to the environment, which receives the entire row."""

    responses_create_params: NotRequired[CreateParams]
    """May be absent if the environment adds the input."""
    agent_ref: NotRequired[AgentRef | None]
    dataset_name: NotRequired[str]


class EpisodeTimings(TypedDict, total=False):
    """Wall time of each stage in seconds and numbers of calls, summed over the episode."""

    seed_s: float
    model_s: float
    tool_s: float
    """Absent if the model called no tool."""
    verify_s: float
    total_s: float
    model_calls: int
    tool_calls: int


class TurnSteps(TypedDict, total=False):
    """What the agent for turn-based environments adds to a rollout."""

    step_rewards: list[float]
    """The reward for each of the model's turns, 0 for a turn without an action."""
    total_reward: float
    terminated: bool
    info: dict[str, Any]
    reset_info: dict[str, Any]
    final_observation: str | list[dict[str, Any]]
    """The environment's last observation, which the model never sees."""


class PlayedEpisode(TurnSteps):
    """What an agent adds to the row before the environment verifies it."""

    responses_create_params: CreateParams
    """The first request to the model, including the items that the environment returned from `/seed_session`."""
    response: Response
    token_trail: NotRequired[PrefixMismatchSummary]
    """Summary of prefix mismatches; present if tokens were recorded."""


class RolloutKeys(_RolloutIndex, total=False):
    """Keys that the collector writes, overwriting existing values. The last two may be absent."""

    _ng_attempt_index: int
    """Number of earlier failed attempts of this rollout, including those of earlier commands."""
    _ng_task_key: str
    """Hash of 16 hexadecimal digits, which is equal for duplicate tasks in any file."""
    agent_ref: AgentRef
    _ng_code: str
    """Short digest of the servers' code; absent for the first version of a collection."""
    _ng_trace_id: str
    """Trace of the episode in OpenTelemetry, if it was traced: 32 hexadecimal digits."""


class RolloutRow(RolloutKeys, total=False):
    """A measured rollout in `output_jsonl_fpath`: the keys of the dataset row, the episode and the verdict.

    Only `reward` is guaranteed: other stacks may omit the rest.
    """

    reward: Required[float]
    """Finite, between -1e60 and 1e60."""
    responses_create_params: CreateParams
    response: Response
    dataset_name: str
    success: bool
    extracted_answer: Any
    """The answer found in the response, None if there is none; present if the environment compares answers."""
    reward_components: dict[str, float]
    """The parts of the reward by name; present if the environment reports them."""
    _ng_verdict_fields: list[dict[str, Any]]
    """The fields that explain the reward, as VerdictField; present if the environment declares them."""
    _ng_renamed: dict[str, str]
    """Maps keys that the task and the verdict have in common to the key that was used instead: `verdict_<key>` for the
    verdict's value, `row_<key>` for a value of the task that is no score; present if there are any."""
    finish_reason: FinishReason | str
    """Why the episode ended; absent in rows of NeMo Gym's agents."""
    truncated: bool
    timings: EpisodeTimings
    token_trail: PrefixMismatchSummary
    mask_sample: bool
    """NeMo Gym's flag for a rollout that is excluded from all averages."""
    failure_kind: str
    """Why the rollout is masked; only in rows from other stacks."""


class TurnRolloutRow(RolloutRow, TurnSteps):
    """A measured rollout of a turn-based environment. Others can use the keys of `TurnSteps` differently."""
