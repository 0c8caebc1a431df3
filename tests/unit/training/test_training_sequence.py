"""Training sequences: tokens, loss mask, log-probabilities and versions of a rollout."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollyard.records.types import Json
from rollyard.training.training_sequence import (
    SequenceError,
    SequenceRules,
    TrainingSequence,
    training_sequences,
    training_traces,
    trl_rollouts,
)
from tests.support.doc_pages import page, programs
from tests.unit.training.recorded_turns import row, turn

REFUSE, MASK, REWEIGHT = (SequenceRules(constrained_turns=rule) for rule in ("refuse", "mask", "reweight"))


def test_turns_that_continue_each_other_are_one_sequence_with_a_loss_on_generated_tokens() -> None:
    spans = [{"version": "v1", "start": 0, "end": 1}, {"version": "v2", "start": 1, "end": 2}]
    turns = turn([1, 2], [3, 4], weight_versions=spans), turn([1, 2, 3, 4, 5, 6], [7])
    [found] = training_sequences(row(*turns), REFUSE)
    assert found == TrainingSequence(
        prompt_ids=[1, 2],
        completion_ids=[3, 4, 5, 6, 7],
        loss_mask=[1, 1, 0, 0, 1],
        log_probs=[-0.3, -0.4, 0.0, 0.0, -0.7],
        reweighted=[0, 0, 0, 0, 0],
        versions=["v1", "v2", None, None, "v1"],
        temperature=1.0,
    )
    assert (found.length, found.loss_tokens) == (7, 3)


@pytest.mark.parametrize(
    "prompt", [[1, 2, 3, 9, 5], [9, 2, 3, 4, 5], [1, 2, 3]], ids=["generated ids differ", "prompt differs", "shorter"]
)
def test_a_prompt_that_does_not_continue_the_last_turn_starts_a_sequence(prompt: list[int]) -> None:
    first, second = training_sequences(row(turn([1, 2], [3, 4]), turn(prompt, [7])), REFUSE)
    assert (first.completion_ids, second.prompt_ids, second.completion_ids) == ([3, 4], prompt, [7])


@pytest.mark.parametrize(("mode", "temperature"), [("processed_logprobs", 0.5), ("raw_logprobs", 1.0)])
def test_another_temperature_starts_a_sequence_unless_log_probs_are_raw(mode: str, temperature: float) -> None:
    turns = turn([1], [2]), turn([1, 2], [3], temperature=0.5, logprobs_mode=mode)
    found = training_sequences(row(*turns), REFUSE)
    assert found[-1].temperature == temperature and len(found) == (2 if temperature == 0.5 else 1)


CONSTRAINED: tuple[dict[str, Any], ...] = (
    {"constrained": ["strict_tools"]},
    {"constrained": ["top_p"]},
    {"temperature": 0.0},
    {"logprobs_mode": None},
)


@pytest.mark.parametrize("sampling", CONSTRAINED, ids=str)
def test_a_constrained_turn_is_refused_by_number_or_masked_and_kept_as_context(sampling: dict[str, Any]) -> None:
    turns = turn([1], [2]), turn([1, 2], [3], **sampling), turn([1, 2, 3, 4], [5])
    with pytest.raises(SequenceError, match=r"turn 2 of 3 .*\bmask\b.*\breweight\b"):
        training_sequences(row(*turns), REFUSE)
    [found] = training_sequences(row(*turns), MASK)
    assert (found.completion_ids, found.loss_mask) == ([2, 3, 4, 5], [1, 0, 0, 1])


def test_constrained_turns_are_reweighted_where_the_sampled_distribution_is_recorded() -> None:
    strict: Json = {"constrained": ["strict_tools"]}
    turns = turn([1], [2], **strict), turn([1, 2], [3]), turn([1, 2, 3], [4], temperature=0.0)
    [found] = training_sequences(row(*turns), REWEIGHT)
    assert (found.loss_mask, found.reweighted) == ([1, 1, 0], [1, 0, 0])
    # Raw log-probabilities under a grammar are those of sampling only at temperature 1.
    for temperature, is_usable in ((1.0, 1), (0.7, 0)):
        raw = turn([1], [2], **strict, logprobs_mode="raw_logprobs", temperature=temperature)
        assert training_sequences(row(raw), REWEIGHT)[0].loss_mask == [is_usable]


def test_tokens_of_other_stacks_need_an_assumed_temperature() -> None:
    foreign = turn([1], [2])
    del foreign["token_trace"]
    with pytest.raises(SequenceError, match="record"):
        training_sequences(row(foreign), REFUSE)
    [found] = training_sequences(row(foreign), SequenceRules(assumed_temperature=0.7))
    assert (found.loss_mask, found.versions, found.temperature) == ([1], [None], 0.7)


BROKEN: dict[str, Json] = {
    "no tokens": {"reward": 1.0, "response": {"output": [{"type": "message"}]}},
    "no response": {"reward": 1.0},
    "a log-probability is missing": row({**turn([1], [2, 3]), "generation_log_probs": [-0.1]}),
    "a log-probability is NaN": row({**turn([1], [2]), "generation_log_probs": [float("nan")]}),
    "a log-probability is positive": row({**turn([1], [2]), "generation_log_probs": [0.5]}),
    "an id is negative": row(turn([1], [-2])),
    "an id is text": row({**turn([1], [2]), "generation_token_ids": ["2"]}),
    "no prompt": row({**turn([1], [2]), "prompt_token_ids": None}),
    "the trace is text": row({**turn([1], [2]), "token_trace": "x"}),
    "the output is a number": {"reward": 1.0, "response": {"output": 5}},
    "the temperature is NaN": row(turn([1], [2], temperature=float("nan"))),
    "the constraints are a number": row(turn([1], [2], constrained=3)),
    "the version is a number": row(turn([1], [2], policy_version=3)),
    "the versions of the tokens are text": row(turn([1], [2], weight_versions="v1")),
    "a span of versions begins at text": row(turn([1], [2], weight_versions=[{"version": "v1", "start": "0"}])),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_missing_and_invalid_tokens_are_an_error(broken: Json) -> None:
    with pytest.raises(SequenceError):
        training_sequences(broken, REFUSE)


@pytest.mark.parametrize("missing", ["prompt_token_ids", "generation_token_ids", "generation_log_probs"])
def test_a_later_turn_without_one_of_its_fields_is_an_error_with_its_number(missing: str) -> None:
    incomplete = turn([1, 2, 3], [4])
    del incomplete[missing]
    with pytest.raises(SequenceError, match=r"^turn 2 of 3 has"):
        training_sequences(row(turn([1], [2]), incomplete, turn([1, 2, 3, 4, 5], [6])), REFUSE)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 3), min_size=1), st.lists(st.integers(0, 3)), st.booleans()), min_size=1)
)
def test_every_generated_token_is_in_exactly_one_sequence(turns: list[tuple[list[int], list[int], bool]]) -> None:
    items, history = [], list[int]()
    for new, generated, continues in turns:
        prompt = history + new if continues else new
        items.append(turn(prompt, generated))
        history = prompt + generated
    found = training_sequences(row(*items), REFUSE)
    generated_ids = [token for _, generated, _ in turns for token in generated]
    assert [
        token for each in found for token, mask in zip(each.completion_ids, each.loss_mask, strict=True) if mask
    ] == (generated_ids)
    for each in found:
        lengths = {len(column) for column in (each.loss_mask, each.log_probs, each.reweighted, each.versions)}
        assert lengths == {len(each.completion_ids)}


SEQUENCES = training_sequences(row(turn([1, 2], [3]), turn([1, 2, 3, 4], [5]), turn([8], [9])), SequenceRules())


def test_trls_columns_and_openenvs_traces_have_an_entry_per_sequence() -> None:
    assert trl_rollouts(SEQUENCES) == {
        "prompt_ids": [[1, 2], [8]],
        "completion_ids": [[3, 4, 5], [9]],
        "logprobs": [[-0.3, 0.0, -0.5], [-0.9]],
        "env_mask": [[1, 0, 1], [1]],
    }
    assert training_traces(SEQUENCES)[0] == {
        "node_id": "0",
        "prompt_token_ids": [1, 2],
        "completion_token_ids": [3, 4, 5],
        "per_token_logps": [-0.3, 0.0, -0.5],
        "loss_mask": [1, 0, 1],
    }


def test_the_program_of_the_page_prints_the_sequences_of_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    [program] = [text for text in programs(page("tokens.md")) if "training_sequences" in text]
    exec(program, {"row": row(turn([1, 2], [3]), turn([1, 2, 3, 4], [5]))})
    assert capsys.readouterr().out == "2 3 2 1.0\n"
