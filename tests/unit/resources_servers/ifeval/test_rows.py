"""Rows of the dataset in its published formats, and rows that cannot be scored."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.resources_servers.ifeval.app import server
from rollyard.resources_servers.ifeval.prepare import main
from rollyard.resources_servers.ifeval.scoring import instructions
from tests.unit.resources_servers.answers.grading import DATA, in_process_server, rows_of

FILE = DATA / "ifeval" / "input_data.jsonl"
ROWS = rows_of(FILE)
EVERY_KEY = sorted({key for row in ROWS for kwargs in row["kwargs"] for key in kwargs})
WORDS = "length_constraints:number_words"
KEYWORDS = "keywords:existence"
NTH = {"num_paragraphs": 3, "nth_paragraph": 4, "first_word": "a"}


def as_parquet_row(row: Json) -> Json:
    """Return the row as in the hub's Parquet file: with the keys of all kinds, null if unused, and 3.0 for 3."""
    padded = [{key: kwargs.get(key) for key in EVERY_KEY} for kwargs in row["kwargs"]]
    return {
        **row,
        "kwargs": [{k: float(v) if isinstance(v, int) else v for k, v in kwargs.items()} for kwargs in padded],
    }


def test_null_keys_of_other_kinds_do_not_change_a_row() -> None:
    assert [instructions(as_parquet_row(row)) for row in ROWS] == [instructions(row) for row in ROWS]
    assert (len(ROWS), sum(len(instructions(row)) for row in ROWS)) == (541, 834)


def test_every_value_of_the_rows_is_in_its_instruction() -> None:
    for row in ROWS:
        for (_, parsed), kwargs in zip(instructions(row), row["kwargs"], strict=True):
            assert parsed.model_dump() == kwargs, row["key"]


def test_null_kwargs_mean_no_kwargs(tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(
        orjson.dumps({"key": 1, "prompt": "p", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [None]})
    )
    main(["--local", str(source), "--output", str(out)])
    assert rows_of(out)[0]["kwargs"] == [{}]


UNREADABLE = [
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
    (
        ["language:response_language"],
        [{"language": "zh"}],
        "found 'zh'",
    ),
    (["length_constraints:number_paragraphs"], [{"num_paragraphs": 0}], "found 0"),
    (["length_constraints:nth_paragraph_first_word"], [NTH], "nth_paragraph is 4"),
]


@pytest.mark.parametrize(("kinds", "kwargs", "message"), UNREADABLE)
async def test_a_row_that_no_text_or_every_text_follows_is_refused_with_its_id(
    kinds: object, kwargs: object, message: str
) -> None:
    row: Json = {"id": "ifeval_7", "instruction_id_list": kinds, "kwargs": kwargs}
    async with in_process_server(server) as environment:
        answer = await environment.ask(row, "text")
    assert answer.status == 422
    detail = orjson.loads(answer.body)["detail"]
    assert "IFEval row ifeval_7: " in detail
    assert message in detail


@pytest.mark.parametrize(("kinds", "kwargs", "message"), UNREADABLE)
def test_preparing_an_invalid_row_stops_with_its_number_and_the_reason(
    tmp_path: Path, kinds: object, kwargs: object, message: str
) -> None:
    source = tmp_path / "in.jsonl"
    good: Json = {"prompt": "p", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    bad = {**good, "instruction_id_list": kinds, "kwargs": kwargs}
    source.write_bytes(orjson.dumps(good) + b"\n" + orjson.dumps(bad))
    with pytest.raises(OperatorError) as stopped:
        main(["--local", str(source), "--output", str(tmp_path / "out.jsonl")])
    assert "row 1 " in str(stopped.value)
    assert message.split("'")[0] in str(stopped.value)
    assert not (tmp_path / "out.jsonl").exists()
