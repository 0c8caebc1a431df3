"""Stop sequences in a text that arrives in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollyard.responses_api_models.convert.anthropic import StopSequences

TEXT = st.text(alphabet="ab ", max_size=20)
SEQUENCES = st.lists(st.text(alphabet="ab ", min_size=1, max_size=4), max_size=3)


def cut(pieces: list[str], sequences: list[str]) -> tuple[str, str | None]:
    stop = StopSequences(sequences)
    shown = "".join(stop.feed(piece) for piece in pieces)
    return (shown if stop.matched is not None else shown + stop.rest()), stop.matched


@given(TEXT, SEQUENCES)
def test_the_division_into_pieces_does_not_change_the_result(text: str, sequences: list[str]) -> None:
    assert cut([text], sequences) == cut(list(text), sequences)


@given(TEXT, SEQUENCES)
def test_the_text_before_the_sequence_contains_no_sequence(text: str, sequences: list[str]) -> None:
    shown, matched = cut([text], sequences)
    assert not any(sequence in shown for sequence in sequences)
    assert text.startswith(shown + (matched or "")) and (matched is not None or shown == text)


@pytest.mark.parametrize(
    ("text", "sequences", "expected"),
    [
        ("one END two", ["END"], ("one ", "END")),
        ("aab", ["ab"], ("a", "ab")),
        ("abcd", ["bcd", "c"], ("ab", "c")),
        ("no", ["x"], ("no", None)),
        ("almost EN", ["END"], ("almost EN", None)),
    ],
)
def test_the_text_ends_at_the_sequence_that_is_complete_first(
    text: str, sequences: list[str], expected: tuple[str, str | None]
) -> None:
    assert cut([text], sequences) == expected
