"""docs/your-own-data.md, followed from its first command to its last. docs/publish.md needs a wheel: see
tests/external/packages/test_plugins.py."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from tests.support.commands import command, in_thread, ng_run
from tests.support.doc_pages import commands, page, write_files
from tests.support.stacks import read_rows

PAGE = page("your-own-data.md")


async def test_rows_of_csv_of_a_hub_data_set_and_of_a_mixture_are_prepared_and_collected(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_files(PAGE, here)
    typed = [words for words in commands(PAGE) if words[0] != "hf"]
    assert [words[0] for words in typed] == [
        *("ng_prepare_data", "ng_run", "ng_collect_rollouts", "ng_prepare_data", "ng_collect_rollouts")
    ]
    from_csv, run, collect, from_hub, collect_mixture = typed
    downloaded = here / from_hub[1]
    downloaded.parent.mkdir(parents=True)
    table = importlib.import_module("pyarrow").table({"question": ["1 + 1?"], "answer": ["So it is #### 2"]})
    importlib.import_module("pyarrow.parquet").write_table(table, downloaded)
    for words in (from_csv, from_hub):
        prepared = await in_thread(*words, capsys=capsys)
        assert prepared.status == 0, prepared.err
    rows = [*read_rows(here / "data/quiz.jsonl"), *read_rows(here / "data/gsm8k.jsonl")]
    assert [(row["expected_answer"], row.get("level")) for row in rows] == [
        *(("42", "1"), ("125", "2"), ("So it is #### 2", None))
    ]
    prompts = [row["responses_create_params"]["input"][0]["content"] for row in rows]
    assert prompts[0] == "What is 19 + 23? Put your final answer inside \\boxed{}."
    async with ng_run(*run[1:], "+colocate=true", "+head_port=0", cwd=here):
        for words, count in ((collect, 2), (collect_mixture, 2)):
            collected = await command(*words, cwd=here)
            assert collected.status == 0, collected.err
            output = here / words[words.index("--output") + 1]
            assert len({row["_ng_task_index"] for row in read_rows(output)}) == count
    mixed = {row["responses_create_params"]["input"][0]["content"] for row in read_rows(here / "results/mix.jsonl")}
    assert "Solve this problem.\nWhat is 19 + 23?" in mixed


async def test_the_messages_of_the_page_are_printed_and_nothing_is_written(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_files(PAGE, here)
    (words,) = (words for words in commands(PAGE) if words[1:2] == ["data/quiz.csv"])
    expected = re.findall(r"^data/quiz\.csv: (row 1: .*)$", PAGE, re.MULTILINE)
    assert len(expected) == 2
    for change, message in zip((("problem,", "problm,"), ("question: problem, ", "")), expected, strict=True):
        wrong = [word.replace(*change) for word in words]
        done = await in_thread(*wrong, capsys=capsys)
        assert done.status == 2
        assert message in done.err
    assert not (here / "data/quiz.jsonl").exists()
