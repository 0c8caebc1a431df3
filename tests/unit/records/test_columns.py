from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollyard.records.data_files import DataFiles, is_plain
from rollyard.records.errors import OperatorError
from rollyard.records.rows import rows_of
from rollyard.records.types import Json
from tests.unit.services.datasets.files import mixture, write_rows

TEXT = 'problem,solution,note\r\n"1,5 + 1?\n""In words""",007,\r\n\r\nWhat is √4?,2,x\r\n'
ROWS = [
    {"problem": '1,5 + 1?\n"In words"', "solution": "007", "note": ""},
    {"problem": "What is √4?", "solution": "2", "note": "x"},
]


def values(path: Path) -> list[Json]:
    found = list(rows_of(path))
    assert not any(row.problem for row in found)
    return [row.value for row in found]


@pytest.mark.parametrize("name", ["a.csv", "A.CSV", "a.csv.gz", "a.tsv"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"], ids=["plain", "bom"])
def test_delimited_text_has_one_row_of_strings_a_record(name: str, bom: bytes, tmp_path: Path) -> None:
    text = TEXT.replace(",", "\t").replace("1\t5", "1,5") if ".tsv" in name else TEXT
    data = bom + text.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert values(tmp_path / name) == ROWS
    assert not is_plain(tmp_path / name)


def test_a_value_may_be_longer_than_the_limit_of_the_csv_module(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"question\n{'x' * 300_000}\n")
    assert len(values(tmp_path / "a.csv")[0]["question"]) == 300_000


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a,b\n1,2\n3\n", r"after line 1: row 2 has 1 values, and the first line names 2 columns \(a, b\)"),
        (b"a,b\n1,2,3\n", "row 1 has 3 values"),
        (b"a,a\n1,2\n", r"different names in the first line \(found: a, a\)"),
        (b"a,\n1,2\n", "different names in the first line"),
        (b'a,b\n1,"2\n', "row 1: unexpected end of data"),
        (b'a,b\n1,"2"x\n', "row 1: ',' expected after '\"'"),
        (b"a,b\n1,\xff\n", "can't decode byte 0xff"),
    ],
)
def test_damaged_delimited_text_is_refused_with_its_row_and_columns(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(data)
    with pytest.raises(OperatorError, match=message):
        list(rows_of(tmp_path / "a.csv"))


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., list[Json]]:
    def make(path: str = "a.csv", **settings: Any) -> list[Json]:
        dataset = {"name": "a", "path": path, "shuffle": False, **settings}
        return list(mixture(tmp_path, dataset).rows())

    (tmp_path / "a.csv").write_text(TEXT)
    return make


def test_columns_become_fields_and_the_others_stay(made: Callable[..., list[Json]]) -> None:
    (first, _) = made(columns={"question": "problem", "expected_answer": "solution"})
    fields = {"question": '1,5 + 1?\n"In words"', "expected_answer": "007", "note": ""}
    assert fields.items() <= first.items() and "problem" not in first and "solution" not in first


def test_the_prompt_is_filled_with_the_renamed_fields_and_braces_of_latex_stay(made: Callable[..., list[Json]]) -> None:
    rows = made(columns={"question": "problem"}, prompt="{question} Use \\boxed{}. {{x}}")
    prompt = {"role": "user", "content": "What is √4? Use \\boxed{}. {x}"}
    assert rows[1]["responses_create_params"]["input"] == [prompt]


def test_a_prompt_keeps_the_other_parameters_of_a_row(tmp_path: Path, made: Callable[..., list[Json]]) -> None:
    params = {"input": "old", "temperature": 0.5}
    write_rows(tmp_path / "a.jsonl", [{"question": "Why?", "responses_create_params": params}])
    (row,) = made("a.jsonl", prompt="Tell me: {question}")
    prompt = {"role": "user", "content": "Tell me: Why?"}
    assert row["responses_create_params"] == {"input": [prompt], "temperature": 0.5}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"columns": {"question": "problm"}}, r"a\.csv: row 1: there is no column 'problm', did you mean 'problem'"),
        ({"columns": {"question": "problm"}}, r"\(columns: problem, solution, note\)"),
        ({"columns": {"note": "problem"}}, "has a field 'note' already"),
        ({"prompt": "{question}"}, "the prompt needs the field 'question', .*missing; the row has note, problem"),
    ],
)
def test_a_missing_column_is_named_with_the_columns_found(
    settings: Json, message: str, made: Callable[..., list[Json]]
) -> None:
    with pytest.raises(OperatorError, match=message):
        made(**settings)


def test_the_file_behind_renamed_columns_stays_an_input_that_no_output_may_replace(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TEXT)
    found = mixture(tmp_path, {"name": "a", "path": "a.csv", "columns": {"question": "problem"}})
    assert found.files == {tmp_path / "a.csv"}


def save_to_disk(folder: Path, *shards: list[Json]) -> Path:
    """Write what `datasets.Dataset.save_to_disk` writes: Arrow streams, and state.json with their names."""
    import orjson
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import ipc

    folder.mkdir(parents=True)
    names = [f"data-{number:05}-of-{len(shards):05}.arrow" for number in range(len(shards))]
    for name, rows in zip(names, shards, strict=True):
        table = pyarrow.Table.from_pylist(rows)
        with ipc.new_stream(str(folder / name), table.schema) as writer:
            writer.write_table(table)
    (folder / "state.json").write_bytes(orjson.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text('{"splits": {}}')
    return folder


def test_a_folder_of_save_to_disk_is_read_in_the_order_of_its_parts(tmp_path: Path) -> None:
    save_to_disk(tmp_path / "saved", [{"n": 1}, {"n": 2}], [{"n": 3}])
    for name in ("saved", "saved/"):
        file = DataFiles([tmp_path]).get(name)
        assert [row.value["n"] for row in rows_of(file)] == [1, 2, 3]
