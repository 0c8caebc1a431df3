"""Reads what detectors need from a rollout row: the model's texts and calls, the prompt, the answers. All untrusted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rollyard.analysis.findings.answer_text import fenced, last_stated, number_of
from rollyard.analysis.findings.file_actions import FileAction, file_actions
from rollyard.records.rewards import VerdictField, fields_of
from rollyard.records.types import Json, items, mapping, text_of

_MAX_TEXT = 100_000
"""Characters of a text that are examined. Longer texts are examined up to this length."""
_MAY_MATTER = re.compile(
    r"test|spec\.|customize|verifier|grader|verdict|reward|bin/p|solution|oracle|answer_key|gold", re.IGNORECASE
)
_GSM8K_MARK = "####"
"""In GSM8K's rows, it precedes the gold answer, which ends its explanation."""


@dataclass(frozen=True)
class Call:
    name: str
    arguments: str
    output: str | None
    """None if the output is not recorded."""


class RowView:
    """A rollout row. Values are computed when they are first used."""

    def __init__(self, row: Json) -> None:
        self.row = row

    @cached_property
    def output(self) -> list[Json]:
        return [mapping(item) for item in items(mapping(self.row.get("response")).get("output"))]

    @cached_property
    def messages(self) -> list[str]:
        """The model's messages in order, without its reasoning."""
        return [
            _text(item.get("content"))
            for item in self.output
            if item.get("type", "message") == "message" and item.get("role", "assistant") == "assistant"
        ]

    @cached_property
    def final_message(self) -> str:
        return self.messages[-1] if self.messages else ""

    @cached_property
    def text(self) -> str:
        """Everything that the model wrote except tool calls, reasoning included."""
        return "\n".join(filter(None, self._texts()))[:_MAX_TEXT]

    @cached_property
    def calls(self) -> list[Call]:
        outputs = {
            text_of(item.get("call_id")): _text(item.get("output"))
            for item in self.output
            if item.get("type") == "function_call_output"
        }
        outputs.pop("", None)  # without an id
        calls = (item for item in self.output if item.get("type") == "function_call")
        texts = ([text_of(item.get(key)) for key in ("name", "arguments", "call_id")] for item in calls)
        return [Call(name, arguments, outputs.get(call_id)) for name, arguments, call_id in texts]

    @cached_property
    def file_actions(self) -> list[list[FileAction]]:
        """What each call does to files that may belong to tests, verdicts or solutions."""
        return [
            file_actions(call.name, call.arguments) if _MAY_MATTER.search(call.arguments) else [] for call in self.calls
        ]

    @cached_property
    def tools(self) -> frozenset[str]:
        offered = items(mapping(self.row.get("responses_create_params")).get("tools"))
        return frozenset(filter(None, (text_of(mapping(tool).get("name")) for tool in offered)))

    @cached_property
    def prompt(self) -> str:
        """The text of the request, instructions included."""
        request = mapping(self.row.get("responses_create_params"))
        given = request.get("input")
        parts = [text_of(request.get("instructions"))]
        parts += [given] if isinstance(given, str) else [_text(mapping(item).get("content")) for item in items(given)]
        return "\n".join(filter(None, parts))[:_MAX_TEXT]

    @cached_property
    def gold_answers(self) -> tuple[str, ...]:
        """The answers that the environment accepts; none if there is only a bound, such as the optimal moves."""
        found = (field.value(self.row) for field in self._fields if field.role == "expected" and field.exact)
        each = (one for value in found for one in (value if isinstance(value, list) else [value]))
        return tuple(filter(None, map(_gold, map(_scalar, each))))

    @property
    def expected(self) -> str:
        """The first gold answer, or ''."""
        return next(iter(self.gold_answers), "")

    @property
    def expected_output(self) -> str:
        """What a program has to print, or the gold answer; '' if the row has neither."""
        return text_of(self.row.get("expected_output")) or self.expected

    @cached_property
    def gold_number(self) -> float | None:
        """The number that the first gold answer stands for; None if it is not certainly one."""
        return number_of(self.expected)

    @cached_property
    def extracted(self) -> str | None:
        """The answer that the environment extracted; '' if it found none. None without such a field or a text in it."""
        for field in self._fields:
            if field.role == "extracted" and field.is_in(self.row):
                value = field.value(self.row)
                return None if isinstance(value, (list, dict, bool)) else _scalar(value)
        return None

    @cached_property
    def final_answer(self) -> str:
        """The extracted answer or, if none is recorded, the last answer in a box, in a tag or after `####`; or ''."""
        return self.extracted or last_stated(self.final_message)

    @cached_property
    def code(self) -> list[str]:
        """The programs in the final message: its fenced blocks, and the extracted answer if it has several lines."""
        found = fenced(self.final_message)
        return [*found, self.extracted] if self.extracted and "\n" in self.extracted else found

    @cached_property
    def limits(self) -> dict[str, Any]:
        """The limits of the environment that the row reports, by the last name of their path."""
        return {field.keys[-1]: field.value(self.row) for field in self._fields if field.role == "limit"}

    @cached_property
    def _fields(self) -> tuple[VerdictField, ...]:
        return fields_of(self.row, ("expected", "extracted", "limit"))

    @property
    def finish_reason(self) -> str:
        return text_of(self.row.get("finish_reason"))

    def _texts(self) -> Iterator[str]:
        for item in self.output:
            kind = item.get("type", "message")
            if kind == "reasoning":
                yield _text(item.get("content")) or _text(item.get("summary"))
            elif kind == "message" and item.get("role", "assistant") == "assistant":
                yield _text(item.get("content"))


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content[:_MAX_TEXT]
    parts = (part if isinstance(part, str) else text_of(mapping(part).get("text")) for part in items(content))
    return "\n".join(filter(None, parts))[:_MAX_TEXT]


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return value.strip()
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else ""


def _gold(text: str) -> str:
    return text.rpartition(_GSM8K_MARK)[2].strip()
