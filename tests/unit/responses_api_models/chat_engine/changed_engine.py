"""A token engine some of whose answers are changed or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rollyard.records.types import Json
from tests.support.token_engine import Refused, TokenEngine


class Changed(TokenEngine):
    """Passes what it answers at paths that end in `path` through `change`, which may raise Refused."""

    def __init__(self, script: list[list[int]], path: str | tuple[str, ...], change: Callable[[Json], Json]) -> None:
        super().__init__(script)
        self._changed, self.change = path, change

    def _answers(self, path: str) -> Callable[[Json], Json]:
        answers = super()._answers(path)
        return (lambda body: self.change(answers(body))) if path.endswith(self._changed) else answers


def refuse(status: int = 404) -> Callable[[Json], Json]:
    def change(answer: Json) -> Json:
        raise Refused("no", status)

    return change


def choice(**fields: Any) -> Callable[[Json], Json]:
    """Replace fields of the generated choice; not those of a probe, which has no usage."""

    def change(answer: Json) -> Json:
        return {**answer, "choices": [{**answer["choices"][0], **fields}]} if "usage" in answer else answer

    return change


def logprobs(edit: Callable[[list[Any]], object]) -> Callable[[Json], Json]:

    def change(answer: Json) -> Json:
        if "usage" in answer:
            found = answer["choices"][0]["logprobs"]
            entries = found.get("content") or found["token_logprobs"]
            edit(entries)
        return answer

    return change
