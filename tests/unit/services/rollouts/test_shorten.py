"""The size of a partial conversation is bounded, and what is missing is said."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest

from rollyard.records.types import Json
from rollyard.services.rollouts.run_answer import shortened


def message(text: str, role: str = "assistant", **more: Any) -> Json:
    return {"type": "message", "role": role, "content": [{"type": "output_text", "text": text}], **more}


def output_of(row: Json) -> list[Json]:
    found: list[Json] = row["response"]["output"]
    return found


def test_a_conversation_that_fits_is_complete() -> None:
    fields = {"level": 3, "responses_create_params": {"input": "unused", "temperature": 0.5}}
    row, omitted = shortened(fields, [message("Play.", "user")], [message("up"), message("down")], 10_000)
    assert omitted is None
    assert row == {
        "level": 3,
        "responses_create_params": {"temperature": 0.5, "input": [message("Play.", "user")]},
        "response": {"output": [message("up"), message("down")]},
    }


def test_items_are_removed_from_the_middle_and_the_place_is_said() -> None:
    row, omitted = shortened({}, [message("Play.", "user")], [message(f"move {n}") for n in range(200)], 4000)
    texts = [item["content"][0]["text"] for item in output_of(row)]
    assert omitted is not None
    head = omitted.after - 1
    assert texts[:head] == [f"move {n}" for n in range(head)]
    assert texts[head:] == [f"move {n}" for n in range(200 - len(texts) + head, 200)]
    assert omitted.items == 200 - len(texts) > 0
    assert row["responses_create_params"]["input"] == [message("Play.", "user")]


def test_tokens_are_removed_before_any_text() -> None:
    turn = message("up", generation_token_ids=list(range(2000)), generation_log_probs=[0.5] * 2000)
    row, omitted = shortened({}, [], [turn, message("down")], 4000)
    assert output_of(row) == [message("up"), message("down")]
    assert omitted is not None and (omitted.tokens, omitted.items, omitted.texts) == (1, 0, 0)


def test_the_middle_of_a_long_text_is_removed_and_the_text_says_so() -> None:
    row, omitted = shortened({}, [], [message("begin " + "x" * 50_000 + " end")], 4000)
    text = output_of(row)[0]["content"][0]["text"]
    assert text.startswith("begin ") and text.endswith(" end") and "characters omitted" in text
    assert omitted is not None and omitted.texts == 1


def test_the_largest_fields_of_the_row_are_removed_and_named() -> None:
    fields = {
        "level": 3,
        "tests": list(range(5000)),
        "responses_create_params": {"tools": [{"a": n} for n in range(2000)]},
    }
    row, omitted = shortened(fields, [], [message("up")], 4000)
    assert row["level"] == 3 and "tests" not in row
    assert omitted is not None and set(omitted.fields) == {"tests", "responses_create_params.tools"}


def test_an_item_that_cannot_be_encoded_is_replaced() -> None:
    nested: Any = "deep"
    for _ in range(500):
        nested = [nested]
    row, _ = shortened({}, [], [message("up"), {"type": "message", "content": nested}], 4000)
    assert output_of(row) == [message("up"), {"type": "unreadable"}]


@pytest.mark.parametrize("seed", range(8))
def test_the_row_never_exceeds_the_limit(seed: int) -> None:
    rng = random.Random(f"shorten {seed}")
    limit = rng.choice([1000, 5000, 40_000])

    def text() -> str:
        return "".join(rng.choice(['"', "é", "x", "\n", "☃"]) for _ in range(rng.randint(0, 3000)))

    start = [message(text(), "user") for _ in range(rng.randint(0, 5))]
    output = [message(text(), generation_token_ids=[1] * rng.randint(0, 500)) for _ in range(rng.randint(0, 60))]
    fields = {f"field{n}": text() for n in range(rng.randint(0, 10))}
    row, omitted = shortened(fields, start, output, limit)
    assert len(orjson.dumps(row)) <= limit
    conversation = [*row["responses_create_params"]["input"], *output_of(row)]
    assert len(conversation) + (omitted.items if omitted else 0) == len(start) + len(output)
