"""Training sequences in the formats of other trainers."""

from __future__ import annotations

import pytest

from rollyard.training.sequences.exports import rollout_sample_fields, training_traces, trl_rollouts
from rollyard.training.sequences.training_sequence import SequenceRules, training_sequences
from tests.support.doc_pages import page, programs
from tests.unit.training.recorded_turns import row, turn

SEQUENCES = training_sequences(row(turn([1, 2], [3]), turn([1, 2, 3, 4], [5]), turn([8], [9])), SequenceRules())


def test_trls_columns_have_an_entry_per_sequence() -> None:
    assert trl_rollouts(SEQUENCES) == {
        "prompt_ids": [[1, 2], [8]],
        "completion_ids": [[3, 4, 5], [9]],
        "logprobs": [[-0.3, 0.0, -0.5], [-0.9]],
        "env_mask": [[1, 0, 1], [1]],
    }


def test_training_traces_have_the_fields_of_openenv() -> None:
    assert training_traces(SEQUENCES)[0] == {
        "node_id": "0",
        "prompt_token_ids": [1, 2],
        "completion_token_ids": [3, 4, 5],
        "per_token_logps": [-0.3, 0.0, -0.5],
        "loss_mask": [1, 0, 1],
    }


def test_the_lists_of_a_rollout_sample_cover_prompt_and_completion() -> None:
    sample = rollout_sample_fields(SEQUENCES[0], 0.5, version=3, group=7, metrics={"reward": 1.0})
    assert sample["input_ids"] == [1, 2, 3, 4, 5]
    assert sample["completion_mask"] == [0, 0, 1, 0, 1]
    assert sample["old_log_probs"] == [0.0, 0.0, -0.3, 0.0, -0.5]
    assert (sample["advantage"], sample["model_version"], sample["group_id"]) == (0.5, 3, 7)


def test_the_program_of_the_page_prints_the_sequences_of_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    [program] = [text for text in programs(page("tokens.md")) if "training_sequences" in text]
    exec(program, {"row": row(turn([1, 2], [3]), turn([1, 2, 3, 4], [5]))})
    assert capsys.readouterr().out == "2 3 2 1.0\n"
