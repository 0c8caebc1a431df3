"""Types of the JSON objects that record the tokens of a model call. Like `rollout_types`, they describe plain dicts."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, Required

from typing_extensions import TypedDict  # pydantic requires this one before Python 3.12


class PrefixMismatch(TypedDict):
    """A prefix mismatch: where a turn's prompt differs from the token ids of the previous turn."""

    reason: str
    """Why the prompt was rendered from messages instead of continuing the token ids."""
    position: int
    """Index of the first token id that differs."""
    expected_length: int
    """Number of token ids in the previous turn's prompt and generation together."""
    prompt_length: int
    """Number of token ids in this turn's prompt."""
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
    """vLLM's `repetition_detection` object, unchanged."""
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
    """The token backend that handled the turn."""
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
    """Number of these calls whose prompt starts a new segment."""
    segments: Required[int]
    constrained: list[str]
    """Constraints that applied to at least one turn."""
