"""Rollouts as trajectories in ATIF, the Agent Trajectory Interchange Format, and back (`trajectory_of`, `row_of`).

What ATIF has a field for is written to that field and read from it. The rest is in the extension field
`extra.rollyard` of the document and of its steps: the difference between the row and what a reader makes of ATIF's own
fields. In the other direction, what a rollout row has no place for is in the row's key `_ng_atif`. So neither direction
loses anything, and a document that another program changes is read as changed. A difference is a JSON Patch (RFC 6902)
of the operations add, remove and replace.

A step is one model call with the results of its tools, or one message of another speaker. The steps before the first
answer are the prompt; examples of answers in it are marked `is_copied_context`.
"""

from __future__ import annotations

import base64
import binascii
import copy
import hashlib
import json
import mimetypes
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal, cast

from pydantic import Field, ValidationError, model_validator

from rollyard.records.rollout_types import RolloutRow
from rollyard.records.tokens import ids_of, is_from_model, log_probs_of
from rollyard.records.types import Json, Record, items, mapping, text_of, whole_number

VERSION = "ATIF-v1.7"
READ_VERSIONS = tuple(f"ATIF-v1.{minor}" for minor in range(9))
OURS = "rollyard"
"""Key of Rollyard's part of an `extra`."""
LEFTOVER = "_ng_atif"
"""Key of a rollout row: a JSON Patch with what a trajectory of another program has beyond the row."""
IMAGES = "images"
"""Folder of images, beside the document."""
NO_VERSION = "unknown"
_IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_DATA_URL = re.compile(r"data:([\w/+.-]+);base64,(.*)", re.DOTALL)
_IN_CALLS = frozenset({"function_call_output", "custom_tool_call_output"})


# --- documents --------------------------------------------------------------------------------------------------------


class Source(Record):
    media_type: str
    path: str
    """A path relative to the document, an absolute one, or a URL."""
    duration_sec: float | None = None
    """Of audio, since version 1.8."""


class ContentPart(Record):
    type: Literal["text", "image", "audio"]
    text: str | None = None
    source: Source | None = None

    @model_validator(mode="after")
    def _has_its_content(self) -> ContentPart:
        if (self.text is None) == (self.type == "text") or (self.source is None) != (self.type == "text"):
            wanted, other = ("text", "source") if self.type == "text" else ("source", "text")
            raise ValueError(f"a part of type {self.type!r} has the field {wanted!r}, and no {other!r}")
        return self


Content = str | list[ContentPart]


class ToolCall(Record):
    tool_call_id: str
    function_name: str
    arguments: Json
    extra: Json | None = None


class SubagentRef(Record):
    trajectory_id: str | None = None
    session_id: str | None = None
    trajectory_path: str | None = None
    extra: Json | None = None

    @model_validator(mode="after")
    def _leads_somewhere(self) -> SubagentRef:
        if self.trajectory_id is None and self.trajectory_path is None:
            raise ValueError("expected trajectory_id or trajectory_path, found neither")
        return self


class ObservationResult(Record):
    source_call_id: str | None = None
    content: Content | None = None
    subagent_trajectory_ref: list[SubagentRef] | None = None
    extra: Json | None = None


class Observation(Record):
    results: list[ObservationResult]


class Metrics(Record):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    extra: Json | None = None


class Step(Record):
    step_id: Annotated[int, Field(ge=1)]
    timestamp: str | None = None
    source: Literal["system", "user", "agent"]
    model_name: str | None = None
    reasoning_effort: str | float | None = None
    message: Content
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    observation: Observation | None = None
    metrics: Metrics | None = None
    is_copied_context: bool | None = None
    llm_call_count: Annotated[int, Field(ge=0)] | None = None
    extra: Json | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> Step:
        if self.timestamp is not None:
            datetime.fromisoformat(self.timestamp.replace("Z", "+00:00"))
        of_agents = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics")
        if self.source != "agent" and (found := [name for name in of_agents if getattr(self, name) is not None]):
            raise ValueError(
                f"found {', '.join(found)} in a step whose source is {self.source!r}; only an agent has it"
            )
        if self.source == "agent" and self.llm_call_count == 0 and (self.metrics or self.reasoning_content is not None):
            raise ValueError("llm_call_count is 0, but there are metrics or reasoning_content of a model call")
        known = {call.tool_call_id for call in self.tool_calls or ()}
        for result in self.observation.results if self.observation else ():
            if result.source_call_id is not None and result.source_call_id not in known:
                raise ValueError(
                    f"source_call_id {result.source_call_id!r} is not the tool_call_id of a call of this step"
                )
        return self


class AgentInfo(Record):
    name: str
    version: str
    model_name: str | None = None
    tool_definitions: list[Json] | None = None
    extra: Json | None = None


class FinalMetrics(Record):
    total_prompt_tokens: int | None = None
    total_completion_tokens: int | None = None
    total_cached_tokens: int | None = None
    total_cost_usd: float | None = None
    total_steps: Annotated[int, Field(ge=0)] | None = None
    extra: Json | None = None


class Trajectory(Record):
    """A document. https://harborframework.com/docs/trajectory-format describes the fields."""

    schema_version: str
    session_id: str | None = None
    trajectory_id: str | None = None
    agent: AgentInfo
    steps: Annotated[list[Step], Field(min_length=1)]
    notes: str | None = None
    final_metrics: FinalMetrics | None = None
    continued_trajectory_ref: str | None = None
    extra: Json | None = None
    subagent_trajectories: list[Trajectory] | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> Trajectory:
        if self.schema_version not in READ_VERSIONS:
            raise ValueError(
                f"schema_version is {self.schema_version!r:.40}; expected {READ_VERSIONS[0]} to {READ_VERSIONS[-1]}"
            )
        for expected, step in enumerate(self.steps, 1):
            if step.step_id != expected:
                raise ValueError(
                    f"step_id of steps.{expected - 1} is {step.step_id}; expected {expected}, counted from 1"
                )
        names = [each.trajectory_id for each in self.subagent_trajectories or ()]
        if None in names or len(set(names)) < len(names):
            raise ValueError("expected a different trajectory_id for each of subagent_trajectories")
        return self


class StepExtension(Record):
    """`extra.rollyard` of a step."""

    place: Literal["instructions", "input", "nothing"] | None = None
    """The step's message is this create parameter itself, and no item of a list. `nothing`: a document has a step even
    if the rollout has no conversation."""
    patch: list[Json] = Field(default_factory=list)
    """JSON Patch (RFC 6902) from the items as read from the step's own fields to those of the rollout."""


class Extension(Record):
    """`extra.rollyard` of a document."""

    fields: Json = Field(default_factory=dict)
    """Keys of the rollout row that ATIF has no place for, such as the reward."""
    patch: list[Json] = Field(default_factory=list)
    """JSON Patch (RFC 6902) from the row as read from the document's own fields to that of the rollout."""
    prompt_steps: int | None = None
    """Number of steps of the prompt, if these are not all before the first answer."""
    failure: Json | None = None
    """The row of X_failures.jsonl, if the trajectory is that of a failed attempt, without its conversation."""


@dataclass(frozen=True)
class Identity:
    """What a document says of its run beyond the rollout."""

    session_id: str | None = None
    agent_version: str = NO_VERSION


def parse(data: Any) -> Trajectory:
    """Return the document. Raises ValueError that names each wrong field, what was found, and what was expected."""
    try:
        return Trajectory.model_validate(data)
    except ValidationError as error:
        raise ValueError("; ".join(_problems(error))) from error


def dump(trajectory: Trajectory) -> Json:
    return trajectory.model_dump(exclude_none=True)


def _problems(error: ValidationError, most: int = 5) -> Iterator[str]:
    found = error.errors(include_url=False)
    for each in found[:most]:
        place = ".".join(str(key) for key in each["loc"] if not str(key).startswith(("str", "list[")))
        value = each.get("input")
        shown = "" if isinstance(value, dict | list) or each["type"] == "missing" else f", found {value!r:.60}"
        message = each["msg"].removeprefix("Value error, ")
        yield f"{place}: {message[:1].lower()}{message[1:]}{shown}" if place else f"{message}"
    if len(found) > most:
        yield f"and {len(found) - most} more"


# --- a row becomes a document -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Export:
    trajectory: Trajectory
    images: Mapping[str, bytes]
    """Content by the path that the document names."""


def trajectory_of(row: Mapping[str, Any], identity: Identity) -> Export:
    """Return a rollout row as a document."""
    return _export(row, identity, None)


def trajectory_of_failure(failure: Mapping[str, Any], identity: Identity) -> Export:
    """Return a row of X_failures.jsonl as a document, with the conversation until the failure if it was recorded."""
    partial = mapping(failure.get("partial"))
    known = dict(failure)
    if "row" in partial:
        known["partial"] = {key: value for key, value in partial.items() if key != "row"}
    return _export(mapping(partial.get("row")), identity, known)


def _export(row: Mapping[str, Any], identity: Identity, failure: Json | None) -> Export:
    own = {key: value for key, value in row.items() if key != LEFTOVER}
    draft = _draft(own, identity, failure or own)
    document = draft.document
    if leftover := items(row.get(LEFTOVER)):
        document = patched(document, leftover)
    plain, unpatched = _plain_row(parse(document), draft.images.get, exact=draft)
    for step, read, wanted in zip(document["steps"], unpatched, draft.contents, strict=False):
        extension: Json = {"place": wanted.place} if wanted.place else {}
        if not wanted.place and (changes := list(patch_between(read, wanted.items))):
            extension["patch"] = changes
        _extend(step, extension)
    known = {key: value for key, value in own.items() if key in plain}
    root: Json = {
        "fields": {key: value for key, value in own.items() if key not in plain},
        "patch": list(patch_between(plain, known)),
        "prompt_steps": None if draft.prompt_steps == _prompt_steps(document["steps"]) else draft.prompt_steps,
        "failure": failure,
    }
    root = {key: value for key, value in root.items() if value not in ([], None)}
    # Without leftovers of another program, the extension tells that the document is Rollyard's.
    _extend(document, root if root != {"fields": {}} or LEFTOVER not in row else {})
    return Export(parse(document), draft.images)


def _extend(target: Json, extension: Json) -> None:
    if extension:
        target["extra"] = {**mapping(target.get("extra")), OURS: extension}


@dataclass
class _StepContent:
    """The items of a row that are one step."""

    items: list[Any]
    place: Literal["instructions", "input", "nothing"] | None = None
    is_copied: bool = False

    @property
    def is_agent(self) -> bool:
        return any(map(is_from_model, self.items))


@dataclass
class _Draft:
    document: Json
    contents: list[_StepContent]
    prompt_steps: int
    images: dict[str, bytes] = field(default_factory=dict)


def _draft(row: Mapping[str, Any], identity: Identity, named: Mapping[str, Any]) -> _Draft:
    """Return the document without extensions. `named` has the keys of the rollout or of the failed attempt."""
    params, response = mapping(row.get("responses_create_params")), mapping(row.get("response"))
    contents: list[_StepContent] = []
    if isinstance(instructions := params.get("instructions"), str):
        contents.append(_StepContent([{"role": "system", "content": instructions}], "instructions"))
    if isinstance(given := params.get("input"), str):
        contents.append(_StepContent([{"role": "user", "content": given}], "input"))
    contents += (_StepContent(group, is_copied=True) for group in _groups(items(given)))
    prompt_steps = len(contents)
    contents += (_StepContent(group) for group in _groups(items(response.get("output"))))
    if not contents:
        contents.append(_StepContent([{"role": "system", "content": text_of(named.get("detail"))}], "nothing"))
    images: dict[str, bytes] = {}
    steps = [{"step_id": number, **_step(content, images)} for number, content in enumerate(contents, 1)]
    answers = [step for step in steps if step["source"] == "agent" and "is_copied_context" not in step]
    if mapping(row.get("timings")).get("model_calls") == len(answers):
        for step in answers:
            step["llm_call_count"] = 1
    agent: Json = {
        "name": _clean(mapping(row.get("agent_ref") or named.get("agent_ref")).get("name")) or NO_VERSION,
        "version": identity.agent_version,
    }
    if model := _clean(response.get("model")):
        agent["model_name"] = model
    if tools := [_definition(tool) for tool in items(params.get("tools")) if isinstance(tool, dict)]:
        agent["tool_definitions"] = tools
    document: Json = {"schema_version": VERSION}
    if identity.session_id is not None:
        keys = [named.get(key) for key in ("_ng_task_index", "_ng_rollout_index")]
        if "failure_kind" in named and "reward" not in named:
            keys.append(named.get("_ng_attempt_index"))
        document["session_id"] = identity.session_id
        document["trajectory_id"] = ":".join(map(str, (identity.session_id, *keys)))
    document |= {"agent": agent, "steps": steps, "final_metrics": _final_metrics(response.get("usage"), len(steps))}
    return _Draft(document, contents, prompt_steps, images)


def _final_metrics(usage: Any, steps: int) -> Json:
    cached = mapping(mapping(usage).get("input_tokens_details")).get("cached_tokens")
    counts = {
        "total_prompt_tokens": whole_number(mapping(usage).get("input_tokens")),
        "total_completion_tokens": whole_number(mapping(usage).get("output_tokens")),
        "total_cached_tokens": whole_number(cached),
        "total_steps": steps,
    }
    return {name: count for name, count in counts.items() if count is not None}


_ORDER = {"reasoning": 0, "message": 1, "function_call": 2}


def _groups(conversation: Iterable[Any]) -> Iterator[list[Any]]:
    """Cut a conversation into steps: a model call with the results of its tools, or one item of another speaker.

    ATIF's order in a step is reasoning, one message, calls, results. An item that is not in this order begins another.
    """
    group: list[Any] = []
    last = len(_ORDER)
    for item in conversation:
        if is_from_model(item):
            rank = _ORDER.get(_kind(item), last)
            if group and (rank < last or rank == last == _ORDER["message"]):
                yield group
                group = []
            group.append(item)
            # A model call's tokens are on its last item.
            is_last = "generation_token_ids" in item or "generation_log_probs" in item
            last = len(_ORDER) + 1 if is_last else rank
        else:
            if group and not (is_from_model(group[0]) and _is_result(item)):
                yield group
                group = []
            group.append(item)
            last = len(_ORDER) + 1
    if group:
        yield group


def _kind(item: Json) -> str:
    return text_of(item.get("type")) or "message"


def _is_result(item: Any) -> bool:
    return text_of(mapping(item).get("type")).endswith("_output")


def _step(content: _StepContent, images: dict[str, bytes]) -> Json:
    if not content.is_agent:
        item = mapping(content.items[0])
        if _is_result(item):
            return {"source": "system", "message": "", "observation": {"results": [_result(item, set(), images)]}}
        source = "user" if item.get("role") == "user" else "system"
        return {"source": source, "message": _content(item.get("content"), images)}
    written = [item for item in content.items if is_from_model(item)]
    results = [item for item in content.items if not is_from_model(item)]
    calls = [item for item in written if _kind(item) == "function_call"]
    message: Json = next((item for item in written if _kind(item) == "message"), {})
    step: Json = {"source": "agent", "message": _spoken_content(message.get("content"), images)}
    if reasoning := [item for item in written if _kind(item) == "reasoning"]:
        # Empty if the endpoint does not reveal it.
        step["reasoning_content"] = "\n\n".join(text for item in reasoning for text in _reasoning_texts(item))
    if calls:
        step["tool_calls"] = [_call(item, number) for number, item in enumerate(calls)]
    if results:
        known = {call["tool_call_id"] for call in step.get("tool_calls", ())}
        step["observation"] = {"results": [_result(item, known, images) for item in results]}
    if metrics := _metrics(written):
        step["metrics"] = metrics
    if content.is_copied:
        step["is_copied_context"] = True
    return step


def _reasoning_texts(item: Json) -> Iterator[str]:
    for part in (*items(item.get("content")), *items(item.get("summary"))):
        if text := _clean(mapping(part).get("text")):
            yield text


def _call(item: Json, number: int) -> Json:
    call_id, text = _clean(item.get("call_id")), _clean(item.get("arguments"))
    return {
        "tool_call_id": call_id or f"call_{number}",
        "function_name": _clean(item.get("name")),
        "arguments": _arguments(text),
    }


def _arguments(text: str) -> Json:
    """Return the arguments of a call. A text that is no JSON object, a mistake of the model, is the argument `raw`."""
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return {"raw": text}
    return found if isinstance(found, dict) else {"raw": text}


def _result(item: Json, known: set[str], images: dict[str, bytes]) -> Json:
    call_id = item.get("call_id")
    found: Json = {"source_call_id": call_id} if isinstance(call_id, str) and call_id in known else {}
    return {**found, "content": _content(item.get("output"), images)}


def _metrics(written: Sequence[Json]) -> Json:
    last = next((item for item in reversed(written) if log_probs_of(item) or "generation_token_ids" in item), None)
    if last is None:
        return {}
    prompt, generated = ids_of(last.get("prompt_token_ids")), ids_of(last.get("generation_token_ids"))
    log_probs = [float(value) for value in log_probs_of(last)]
    found = {
        "prompt_tokens": None if prompt is None else len(prompt),
        "completion_tokens": len(log_probs) if generated is None else len(generated),
        "prompt_token_ids": prompt,
        "completion_token_ids": generated,
        "logprobs": log_probs or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _definition(tool: Json) -> Json:
    """Return a tool in the form of OpenAI's chat API, which ATIF asks for."""
    if tool.get("type") != "function" or "function" in tool:
        return tool
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


def _content(value: Any, images: dict[str, bytes]) -> str | list[Json]:
    if isinstance(value, str):
        return _clean(value)
    return [part for each in items(value) if (part := _part(each, images)) is not None] or ""


def _spoken_content(value: Any, images: dict[str, bytes]) -> str | list[Json]:
    """Return what the model said. A single text, which is a list in the Responses API, is a string in ATIF."""
    content = _content(value, images)
    if isinstance(content, list) and len(content) == 1 and content[0]["type"] == "text":
        return cast(str, content[0]["text"])
    return content


def _as_parts(content: str | list[Json]) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _part(value: Any, images: dict[str, bytes]) -> Json | None:
    """Return a part of a message; None if ATIF has no place for it, such as a file."""
    part = mapping(value)
    if isinstance(text := part.get("text", part.get("refusal")), str):
        return {"type": "text", "text": _clean(text)}
    url = part.get("image_url")
    if not isinstance(url, str) or not url:
        return None
    if "://" in url[:40] and not url.startswith("data:"):
        kind = mimetypes.guess_type(url.partition("?")[0])[0]
        # A URL may say nothing of its type, but ATIF asks for one of these.
        return _image(kind if kind in _IMAGE_TYPES else "image/png", _clean(url))
    kind, data = _decoded(url)
    if kind not in _IMAGE_TYPES:
        return None
    path = f"{IMAGES}/{hashlib.sha256(data).hexdigest()[:32]}{_suffix(kind)}"
    images[path] = data
    return _image(kind, path)


def _image(media_type: str, path: str) -> Json:
    return {"type": "image", "source": {"media_type": media_type, "path": path}}


def _suffix(media_type: str) -> str:
    return f".{media_type.partition('/')[2]}"


def _decoded(url: str) -> tuple[str, bytes]:
    """Return type and content of a data: URL; an empty type if it is none."""
    found = _DATA_URL.fullmatch(url)
    try:
        return (found[1], base64.b64decode(found[2], validate=True)) if found else ("", b"")
    except binascii.Error:
        return "", b""


def _clean(value: Any) -> str:
    """Return a text without lone surrogates, which are no Unicode text; '' for anything else."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


# --- a document becomes a row -----------------------------------------------------------------------------------------


Images = Callable[[str], bytes | None]
"""Returns the content of an image by the path in the document; None if it cannot be read."""


def row_of(trajectory: Trajectory, images: Images) -> RolloutRow:
    """Return a document as a rollout row, without a reward if it has none.

    For a failed attempt, see `failure_of`. Raises ValueError if the extension of Rollyard does not fit the document.
    """
    document = dump(trajectory)
    extension = _extension(document, Extension, "extra")
    row, _ = _plain_row(trajectory, images)
    row = {**_patched(row, extension.patch, "extra"), **extension.fields}
    known = Identity() if OURS not in mapping(document.get("extra")) else _identity(trajectory)
    draft = _draft(row, known, extension.failure or row)
    if leftover := list(patch_between(draft.document, _without_ours(document))):
        row[LEFTOVER] = leftover
    return cast(RolloutRow, row)


def failure_of(trajectory: Trajectory, row: RolloutRow) -> Json | None:
    """Return the row of X_failures.jsonl, if the document is that of a failed attempt. `row`: from `row_of`."""
    failure = _extension(dump(trajectory), Extension, "extra").failure
    if failure is None or "partial" not in failure:
        return failure
    return {**failure, "partial": {**mapping(failure["partial"]), "row": row}}


def _identity(trajectory: Trajectory) -> Identity:
    return Identity(trajectory.session_id, trajectory.agent.version)


def _extension(target: Json, model: type[Any], place: str) -> Any:
    try:
        return model.model_validate(mapping(target.get("extra")).get(OURS, {}))
    except ValidationError as error:
        raise ValueError(f"{place}.{OURS}: {'; '.join(_problems(error))}") from error


def _patched(value: Any, patch: Sequence[Json], place: str) -> Any:
    try:
        return patched(value, patch) if patch else value
    except ValueError as error:
        raise ValueError(
            f"{place}.{OURS}.patch: {error}. The document was changed since its export: remove this {OURS}"
        ) from error


def _without_ours(document: Json) -> Json:
    def stripped(target: Json) -> Json:
        extra = {key: value for key, value in mapping(target.get("extra")).items() if key != OURS}
        rest = {key: value for key, value in target.items() if key != "extra"}
        return {**rest, "extra": extra} if extra else rest

    return stripped({**document, "steps": [stripped(step) for step in document["steps"]]})


def _prompt_steps(steps: Sequence[Json]) -> int:
    """Return how many steps are the prompt, unless the document gives the number: those before the first answer."""
    for number, step in enumerate(steps):
        if step["source"] == "agent" and not step.get("is_copied_context"):
            return number
    return len(steps)


def _plain_row(trajectory: Trajectory, images: Images, exact: _Draft | None = None) -> tuple[Json, list[list[Any]]]:
    """Return the row as the document's fields describe it, with the items of the steps as its extensions change them,
    or as they are in `exact`. The second value is the items of each step without the extensions.
    """
    document = dump(trajectory)
    root = _extension(document, Extension, "extra")
    steps: list[Json] = document["steps"]
    prompt_steps = root.prompt_steps if root.prompt_steps is not None else _prompt_steps(steps)
    if exact is not None:
        prompt_steps = exact.prompt_steps
    read = [_items(step, images) for step in steps]
    params: Json = {}
    parts: tuple[list[Any], list[Any]] = ([], [])
    for number, (step, found) in enumerate(zip(steps, read, strict=True)):
        if exact is not None:
            content = exact.contents[number] if number < len(exact.contents) else _StepContent(found)
            place, wanted = content.place, content.items
        else:
            extension = _extension(step, StepExtension, f"steps.{number}.extra")
            place = extension.place
            wanted = _patched(found, extension.patch, f"steps.{number}.extra")
        if place in ("instructions", "input"):
            params[place] = wanted[0]["content"] if exact is not None else step["message"]
        elif place is None:
            parts[number >= prompt_steps].extend(wanted)
    if "input" not in params:
        params["input"] = parts[0]
    agent = document["agent"]
    if definitions := agent.get("tool_definitions"):
        params["tools"] = [_tool(definition) for definition in definitions]
    response: Json = {"output": parts[1]}
    if (model := agent.get("model_name")) is not None:
        response["model"] = model
    if usage := _usage(document):
        response["usage"] = usage
    row = {"responses_create_params": params, "agent_ref": {"name": agent["name"]}, "response": response}
    return row, read


def _items(step: Json, images: Images) -> list[Any]:
    """Return the items of a step as its own fields describe them."""
    results = [_output(result, images) for result in mapping(step.get("observation")).get("results", ())]
    message = step["message"]
    if step["source"] != "agent":
        said = [{"role": step["source"], "content": _input(message, images)}] if message or not results else []
        return [*said, *results]
    written: list[Json] = []
    if (reasoning := step.get("reasoning_content")) is not None:
        written.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": reasoning}]})
    calls = step.get("tool_calls", ())
    if message or not (written or calls):
        written.append(
            {"type": "message", "role": "assistant", "content": _spoken(message, images), "status": "completed"}
        )
    for call in calls:
        arguments = json.dumps(call["arguments"], ensure_ascii=False)
        name = {"name": call["function_name"], "arguments": arguments}
        written.append({"type": "function_call", "call_id": call["tool_call_id"], **name})
    metrics = mapping(step.get("metrics"))
    for ours, theirs in (
        ("prompt_token_ids", "prompt_token_ids"),
        ("generation_token_ids", "completion_token_ids"),
        ("generation_log_probs", "logprobs"),
    ):
        if theirs in metrics:
            written[-1][ours] = metrics[theirs]
    return [*written, *results]


def _output(result: Json, images: Images) -> Json:
    call = {"call_id": result["source_call_id"]} if "source_call_id" in result else {}
    return {"type": "function_call_output", **call, "output": _input(result.get("content", ""), images)}


def _input(content: str | list[Json], images: Images) -> str | list[Json]:
    return content if isinstance(content, str) else [_read_part(part, "input_text", images) for part in content]


def _spoken(content: str | list[Json], images: Images) -> list[Json]:
    return [_read_part(part, "output_text", images) for part in _as_parts(content)]


def _read_part(part: Json, text_type: str, images: Images) -> Json:
    if part["type"] == "text":
        more: Json = {"annotations": []} if text_type == "output_text" else {}
        return {"type": text_type, "text": part["text"], **more}
    source = part["source"]
    path: str = source["path"]
    data = None if "://" in path else images(path)
    if data is not None:
        path = f"data:{source['media_type']};base64,{base64.b64encode(data).decode()}"
    if part["type"] == "audio":
        return {"type": "input_file", "file_url": path}
    return {"type": "input_image", "image_url": path}


def _tool(definition: Json) -> Json:
    function = definition.get("function")
    return {"type": "function", **function} if isinstance(function, dict) else definition


def _usage(document: Json) -> Json:
    """Return the token counts of the document, or else the sums of those of its steps, if all answers have them."""
    final = mapping(document.get("final_metrics"))
    answers = [step for step in document["steps"] if step["source"] == "agent" and not step.get("is_copied_context")]

    def total(name: str) -> int | None:
        if (stated := final.get(f"total_{name}")) is not None:
            return cast(int, stated)
        counts: list[int | None] = [mapping(step.get("metrics")).get(name) for step in answers]
        known = [count for count in counts if count is not None]
        return sum(known) if counts and len(known) == len(counts) else None

    prompt, completion, cached = map(total, ("prompt_tokens", "completion_tokens", "cached_tokens"))
    usage: Json = {}
    if prompt is not None:
        usage["input_tokens"] = prompt
    if cached is not None:
        usage["input_tokens_details"] = {"cached_tokens": cached}
    if completion is not None:
        usage["output_tokens"] = completion
    if prompt is not None and completion is not None:
        usage["total_tokens"] = prompt + completion
    return usage


def patch_between(before: Any, after: Any, path: str = "") -> Iterator[Json]:
    """Yield the operations that make `after` of `before`. A list of another length, or of numbers, is replaced."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            place = f"{path}/{_escaped(key)}"
            if key not in after:
                yield {"op": "remove", "path": place}
            elif key in before:
                yield from patch_between(before[key], after[key], place)
            else:
                yield {"op": "add", "path": place, "value": after[key]}
    elif _are_lists_of_containers(before, after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from patch_between(old, new, f"{path}/{index}")
    elif not is_same(before, after):
        yield {"op": "replace", "path": path, "value": after}


def patched(value: Any, patch: Sequence[Any]) -> Any:
    """Return a copy of `value` with the operations applied.

    Raises ValueError for an operation that does not fit the value. The message says which one.
    """
    whole = [copy.deepcopy(value)]
    for operation in patch:
        try:
            kind, path = operation["op"], operation["path"]
            *parents, last = ["0", *(_unescaped(key) for key in path.split("/")[1:])]
            target: Any = whole
            for key in parents:
                target = target[int(key)] if isinstance(target, list) else target[key]
            place: Any = int(last) if isinstance(target, list) else last
            if kind == "remove":
                del target[place]
            elif kind == "replace":
                target[place]
                target[place] = operation["value"]
            elif kind == "add" and isinstance(target, dict):
                target[place] = operation["value"]
            else:
                raise ValueError
        except (KeyError, IndexError, TypeError, AttributeError, ValueError):
            raise ValueError(f"the operation {str(operation)[:200]} does not fit the value that it changes") from None
    return whole[0]


def is_same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are the same text. Unlike in Python, 1, 1.0 and true differ."""
    return bool(one == other) and _has_same_types(one, other)


def _has_same_types(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return all(_has_same_types(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        kinds = set(map(type, one))
        if len(kinds) <= 1 and not kinds & {dict, list}:  # quickly: lists of token ids are long
            return kinds == set(map(type, other))
        return all(map(_has_same_types, one, other))
    return True


def _are_lists_of_containers(before: Any, after: Any) -> bool:
    if not (isinstance(before, list) and isinstance(after, list) and len(before) == len(after)):
        return False
    return all(isinstance(each, dict | list) for each in before)


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _unescaped(key: str) -> str:
    return key.replace("~1", "/").replace("~0", "~")
