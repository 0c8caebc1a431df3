"""IFEval as a server, and its task rows."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
import pytest

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.resources_servers.ifeval.app import instructions, server
from rollyard.resources_servers.ifeval.prepare import main
from tests.support.waiting import deadline_s
from tests.unit.resources_servers.answers.grading import DATA, in_process_server, rows_of

ROW: Json = {"instruction_id_list": ["punctuation:no_comma", "startend:quotation"], "kwargs": [{}, {"num_words": None}]}


async def test_a_verdict_has_strict_and_loose_scores_on_both_levels() -> None:
    async with in_process_server(server) as environment:
        both = await environment.verdict(ROW, '"text"')
        framed = await environment.verdict(ROW, 'Sure, here:\n"text"')
        half = await environment.verdict(ROW, "text")
    keys = ("reward", "strict_score", "lenient_score", "inst_level_strict", "inst_level_loose")
    assert [both[key] for key in keys] == [1.0, 1.0, 1.0, 1.0, 1.0]
    assert [framed[key] for key in keys] == [0.0, 0.0, 1.0, 0.0, 1.0]
    assert [half[key] for key in keys] == [0.0, 0.0, 0.0, 0.5, 0.5]
    assert half["follow_instruction_list"] == [True, False]
    assert half["reason"] == "not followed: startend:quotation"


async def test_the_reward_can_be_the_share_of_instructions_or_the_loose_score() -> None:
    async with in_process_server(server, reward="instruction") as environment:
        assert (await environment.verdict(ROW, "text"))["reward"] == 0.5
    async with in_process_server(server, score="lenient") as environment:
        assert (await environment.verdict(ROW, 'Sure, here:\n"text"'))["reward"] == 1.0


async def test_reasoning_and_the_empty_lines_around_it_are_not_part_of_the_answer() -> None:
    kwargs = {"num_paragraphs": 2, "nth_paragraph": 1, "first_word": "first"}
    row = {"instruction_id_list": ["length_constraints:nth_paragraph_first_word"], "kwargs": [kwargs]}
    answer = "First one.\n\nSecond one."
    async with in_process_server(server) as environment:
        assert (await environment.verdict(ROW, '<think>one, two</think>\n\n"text"'))["reward"] == 1.0
        assert (await environment.verdict(ROW, '<think>"text"'))["reward"] == 0.0
        for text in (answer, f"\n\n{answer}", f"<think>hm</think>\n\n{answer}", f"\n{answer}\n\n"):
            assert (await environment.verdict(row, text))["reward"] == 1.0


async def test_without_langdetect_it_refuses_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "langdetect", None)
    with pytest.raises(OperatorError, match=r"pip install 'rollyard\[ifeval\]'"):
        async with in_process_server(server):
            pass


async def test_the_example_rows_are_served() -> None:
    async with in_process_server(server) as environment:
        answer = await environment.stack.transport.send("GET", "http://environment:1/examples", b"", {}, deadline_s())
    assert len(orjson.loads(answer.body)) == 5


def test_rows_keep_the_datasets_keys(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    main(["--local", str(DATA / "ifeval" / "input_data.jsonl"), "--output", str(out), "--form", "lm_eval"])
    rows = rows_of(out)
    assert (len(rows), rows[0]["id"], sum(len(row["kwargs"]) for row in rows)) == (541, "ifeval_1000", 834)
    assert rows[0]["responses_create_params"] == {
        "input": [{"role": "user", "content": rows[0]["prompt"]}],
        "max_output_tokens": 1280,
    }


ROWS = rows_of(DATA / "ifeval" / "input_data.jsonl")
EVERY_KEY = sorted({key for row in ROWS for kwargs in row["kwargs"] for key in kwargs})
WORDS = "length_constraints:number_words"
KEYWORDS = "keywords:existence"
NTH = {"num_paragraphs": 3, "nth_paragraph": 4, "first_word": "a"}


def as_parquet_row(row: Json) -> Json:
    """Return the row as in the hub's Parquet file: with the keys of all kinds, null if unused, and 3.0 for 3."""
    padded = [{key: kwargs.get(key) for key in EVERY_KEY} for kwargs in row["kwargs"]]
    floats = [{k: float(v) if isinstance(v, int) else v for k, v in kwargs.items()} for kwargs in padded]
    return {**row, "kwargs": floats}


def test_every_value_of_the_rows_is_in_its_instruction_and_null_keys_of_other_kinds_do_not_change_it() -> None:
    assert [instructions(as_parquet_row(row)) for row in ROWS] == [instructions(row) for row in ROWS]
    assert (len(ROWS), sum(len(instructions(row)) for row in ROWS)) == (541, 834)
    for row in ROWS:
        assert [parsed.arguments for _, parsed in instructions(row)] == row["kwargs"], row["key"]


def test_null_kwargs_mean_no_kwargs_and_an_invalid_row_stops_with_its_number_and_the_reason(tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    good: Json = {"key": 1, "prompt": "p", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [None]}
    source.write_bytes(orjson.dumps(good))
    main(["--local", str(source), "--output", str(out)])
    assert rows_of(out)[0]["kwargs"] == [{}]
    source.write_bytes(orjson.dumps(good) + b"\n" + orjson.dumps({**good, "instruction_id_list": ["nonsense"]}))
    with pytest.raises(OperatorError, match=r"row 1 .*nonsense"):
        main(["--local", str(source), "--output", str(tmp_path / "none.jsonl")])
    assert not (tmp_path / "none.jsonl").exists()


UNREADABLE: list[tuple[object, object, str]] = [
    (None, None, "instruction_id_list"),
    ([], [], "instruction_id_list"),
    ([5], [{}], "instruction 5"),
    (["keywords:letter_frequency"], [{"letter": "ab", "let_relation": "at least", "let_frequency": 1}], "letter:"),
    (["nonsense"], [{}], "instruction 'nonsense'"),
    ([["a"]], [{}], "instruction ['a']"),
    ([WORDS], "[{}]", "kwargs '[{}]'"),
    ([WORDS], [], "kwargs []"),
    ([WORDS], ["x"], f"{WORDS}: kwargs are 'x'"),
    ([WORDS], [{"num_words": 3}], f"{WORDS}: relation:"),
    ([WORDS], [{"num_words": None, "relation": "at least"}], f"{WORDS}: num_words:"),
    ([WORDS], [{"num_words": True, "relation": "at least"}], "num_words: found True"),
    ([WORDS], [{"num_words": 3.5, "relation": "at least"}], "found 3.5"),
    ([WORDS], [{"num_words": -1, "relation": "at least"}], "num_words:"),
    ([WORDS], [{"num_words": 3, "relation": "around"}], "found 'around'"),
    ([KEYWORDS], [{"keywords": "a"}], "found 'a'"),
    ([KEYWORDS], [{"keywords": ["a", " "]}], "keywords: 1: found ' '"),
    (["keywords:frequency"], [{"keyword": " ", "frequency": 1, "relation": "at least"}], "found ' '"),
    (["startend:end_checker"], [{"end_phrase": ""}], "found ''"),
    (["language:response_language"], [{"language": "zh"}], "found 'zh'"),
    (["length_constraints:number_paragraphs"], [{"num_paragraphs": 0}], "found 0"),
    (["length_constraints:nth_paragraph_first_word"], [NTH], "nth_paragraph is 4"),
]


async def test_a_row_that_no_text_or_every_text_follows_is_refused_with_its_id() -> None:
    async with in_process_server(server) as environment:
        for kinds, kwargs, message in UNREADABLE:
            answer = await environment.ask({"id": "ifeval_7", "instruction_id_list": kinds, "kwargs": kwargs}, "text")
            assert answer.status == 422
            detail = orjson.loads(answer.body)["detail"]
            assert "IFEval row ifeval_7: " in detail and message in detail
