"""The wire format of NeMo Evaluator's `gym://` environments: a task by its index, and a verdict on plain text.

    POST /seed_session {"idx": 3}                          -> {prompt, expected_answer, metadata, messages, system}
    POST /verify       {"response": "...", "expected": "...", "metadata": {...}}
                                                           -> {reward, extracted_answer, scoring_details, metadata}

The evaluator opens no session and sends many requests over one cookie jar, so the task of a verdict is found by the
`metadata` that it returns unchanged, never by a cookie. Without a served dataset the evaluator has rows of its own; the
metadata then contains their fields.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.records.search_path import INSTALLED
from rollyard.records.types import Json
from rollyard.resources_servers.environment import EnvironmentSettings
from rollyard.services.server.settings import ServerSettings

INDEX = "problem_idx"
DATASET = "served_dataset"
"""Keys of the metadata: the row's index, and the name of the dataset that it refers to."""
_ANSWERS = ("expected_answer", "answer")
_VERDICT_FIELDS = ("reward", "extracted_answer", "metadata")


def is_index_request(body: Json) -> bool:
    """Return True for a request for a task of the served dataset, False for one that contains a row itself."""
    return body.keys() == {"idx"}


def is_text_request(body: Json) -> bool:
    """Return True for a request for a verdict on plain text, in which `response` is a string instead of an object."""
    return "expected" in body and isinstance(body.get("response"), str)


def index_of(body: Json, dataset: str) -> int | None:
    """Return which row of the served dataset a text request is about; None if it is about a row of the evaluator."""
    metadata = _metadata(body)
    index = metadata.get(INDEX)
    return index if isinstance(index, int) and metadata.get(DATASET) == dataset else None


def row_in(body: Json) -> Json:
    return {**_metadata(body), "expected_answer": body["expected"]}


def as_request(row: Json, text: str) -> Json:
    part = {"type": "output_text", "text": text, "annotations": []}
    message = {"id": "msg_text", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    response = {"id": "resp_text", "object": "response", "status": "completed", "output": [message]}
    return {**row, "response": response}


def task(index: int, dataset: str, row: Json, added: Json) -> Json:
    """Return the task in the evaluator's format, and under `additions` in Rollyard's.

    `added`: the input and tools that the environment adds to the row.
    """
    params = row.get("responses_create_params") or {}
    items: list[Json] = [*added.get("input", ()), *_items(params.get("input"))]
    if isinstance(instructions := params.get("instructions"), str) and instructions:
        items.insert(0, {"role": "system", "content": instructions})
    tools = params.get("tools") or added.get("tools") or []
    messages = [{"role": item["role"], "content": _text(item.get("content"))} for item in items if item.get("role")]
    prompts = [message["content"] for message in messages if message["role"] == "user"]
    known = {"responses_create_params", "agent_ref", *_ANSWERS}
    metadata = {key: value for key, value in row.items() if key not in known and not isinstance(value, list | dict)}
    if isinstance(extra := row.get("verifier_metadata"), dict):
        metadata["verifier_metadata"] = extra
    if tools:
        metadata["tools"] = tools
    answer = next((row[key] for key in _ANSWERS if row.get(key) is not None), "")
    return {
        "prompt": prompts[-1] if prompts else "",
        "expected_answer": answer if isinstance(answer, str) else str(answer),
        "metadata": {**metadata, INDEX: index, DATASET: dataset},
        "messages": messages,
        "system": None,
        "additions": {"input": items, **({"tools": tools} if tools else {})},
    }


def text_verdict(verdict: Mapping[str, Any]) -> Json:
    answer = verdict.get("extracted_answer")
    return {
        "reward": verdict["reward"],
        "extracted_answer": answer if isinstance(answer, str | None) else str(answer),
        "scoring_details": {key: value for key, value in verdict.items() if key not in _VERDICT_FIELDS},
        "metadata": {},
    }


def _metadata(body: Json) -> Json:
    metadata = body.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _items(given: Any) -> list[Json]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return [item for item in given if isinstance(item, dict)] if isinstance(given, list) else []


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))


class ServedDataset:
    """The rows of one file. Rows of a plain file are read again on demand; those of other formats stay in memory."""

    def __init__(
        self, name: str, file: Any, rows: Sequence[tuple[int, int]] | Sequence[Json], prompts: dict[bytes, int]
    ) -> None:
        """`prompts`: digest of each `responses_create_params` that only one row has -> index of the row."""
        self.name = name
        self._file = file
        self._rows = rows
        self._prompts = prompts

    def __len__(self) -> int:
        return len(self._rows)

    def row_with_prompt(self, params: object) -> Json:
        index = self._prompts.get(_digest(params)) if params else None
        return {} if index is None else self.row(index)

    def row(self, index: object) -> Json:
        """Return a row. Raises Failure bad_request if there is no row with this index."""
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(self):
            detail = f"idx is {index!r:.100}; the dataset {self.name!r} has {len(self)} rows, numbered from 0"
            raise Failure(FailureKind.BAD_REQUEST, detail)
        found = self._rows[index]
        if isinstance(found, dict):
            return dict(found)
        from rollyard.records.rows import row_at

        try:
            return row_at(self._file, *found)
        except OperatorError as error:
            raise Failure(FailureKind.SERVER_ERROR, str(error)) from error


async def configured_dataset(settings: ServerSettings, folder: Path | None) -> ServedDataset | None:
    """Open the dataset of the setting `served_dataset`; None without it. `folder`: the environment's. Raises
    OperatorError, as `open_dataset` does.
    """
    assert isinstance(settings, EnvironmentSettings)
    if settings.served_dataset is None:
        return None
    roots = [Path.cwd(), *([folder] if folder else [])]
    return await asyncio.to_thread(open_dataset, settings.served_dataset, settings.datasets, roots)


def open_dataset(wanted: str, entries: Sequence[Json], roots: Sequence[Path]) -> ServedDataset:
    """Open the dataset that `wanted` names: an entry of the config's `datasets`, or a file in one of the roots. Raises
    OperatorError if there is none, or if one of its rows is not a task.
    """
    # Imported late: they support every dataset format, and most servers serve no dataset.
    from rollyard.records.data_files import DataFiles, is_plain
    from rollyard.records.rows import rows_of

    named = {str(entry.get("name")): entry for entry in entries}
    address = str(named.get(wanted, {}).get("jsonl_fpath") or wanted)
    if wanted in named and address == wanted:
        raise OperatorError(f"served_dataset is {wanted!r}, an entry of `datasets` without jsonl_fpath: add it")
    file = DataFiles([*roots, INSTALLED]).find(address)
    if file is None:
        known = f"the entries of `datasets` are {', '.join(named)}" if named else "`datasets` has no entries"
        places = ", ".join(map(str, [*roots, INSTALLED]))
        raise OperatorError(
            f"served_dataset is {wanted!r}, and there is no file {address} in {places}; {known}. "
            "Set it to the name of an entry or to the path of a file"
        )
    plain = is_plain(file)
    places_of_rows: list[tuple[int, int]] = []
    values: list[Json] = []
    prompts: dict[bytes, int] = {}
    repeated: set[bytes] = set()
    for index, row in enumerate(rows_of(file)):
        if row.problem:
            raise OperatorError(f"served_dataset {address}: line {row.line}{row.problem}")
        if params := row.value.get("responses_create_params"):
            if (digest := _digest(params)) in prompts:
                repeated.add(digest)
            prompts[digest] = index
        if plain:
            places_of_rows.append((row.offset, row.line_hash))
        else:
            values.append(row.value)
    for digest in repeated:
        del prompts[digest]
    return ServedDataset(wanted, file, places_of_rows if plain else values, prompts)


def _digest(params: object) -> bytes:
    return hashlib.blake2b(orjson.dumps(params, option=orjson.OPT_SORT_KEYS), digest_size=16).digest()


def missing_dataset() -> Failure:
    detail = (
        "no dataset is served, so there is no task idx to play: set served_dataset of this server to the name of an "
        "entry of its `datasets` or to the path of a JSON Lines file, or send the row itself"
    )
    return Failure(FailureKind.BAD_REQUEST, detail)
