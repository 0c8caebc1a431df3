from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest

from rollyard.interop.episode_player import row_of
from rollyard.interop.rows import TRAINERS, columns_for, main
from rollyard.records.errors import OperatorError
from tests.support.stacks import EXAMPLES, read_rows


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_adapter_finds_the_row_in_the_columns(trainer: str) -> None:
    row = read_rows(EXAMPLES)[0]
    columns = columns_for(trainer, row, 3)
    found = {"openrlhf": columns.get("label"), "slime": columns.get("metadata", {}).get("row")}
    assert row_of(found.get(trainer) or columns.get("row")) == row


def test_messages_have_the_roles_of_chat_templates_and_text() -> None:
    part = {"type": "input_text", "text": "Hello."}
    row = {"responses_create_params": {"input": [{"role": "developer", "content": [part]}]}}
    assert columns_for("skyrl", row, 0)["prompt"] == [{"role": "system", "content": "Hello."}]


def test_a_file_is_written_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "verl.jsonl"
    assert main(["verl", str(EXAMPLES), str(output)]) == 0
    assert len(read_rows(output)) == len(read_rows(EXAMPLES)) and "for verl" in capsys.readouterr().out
    with pytest.raises(OperatorError, match="exists already"):
        main(["verl", str(EXAMPLES), str(output)])


def test_an_invalid_row_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"responses_create_params": {"input": "a"}}\n[1]\n')
    with pytest.raises(OperatorError, match="line 2"):
        main(["slime", str(tmp_path / "rows.jsonl"), str(tmp_path / "out.jsonl")])


@pytest.mark.parametrize("given", ["no json", {"prompt": "a"}, 7])
def test_what_is_not_a_row_is_refused(given: object) -> None:
    with pytest.raises(OperatorError, match="responses_create_params"):
        row_of(given)


def test_a_prompt_may_be_an_array() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    array: Any = numpy.empty(2, dtype=object)
    array[:] = messages
    assert row_of(None, array)["responses_create_params"]["input"] == messages
