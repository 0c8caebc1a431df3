"""Counting sentences and words."""

from __future__ import annotations

import pytest

from resources_servers.ifeval.sentences import sentences, tokens, word_count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Hello. World!", 2),
        ("Mr. Smith went to the U.S. today. He was e.g. happy.", 2),
        ("Wait... what? Yes!", 2),
        ("It costs $3.50. OK.", 2),
        ("J. K. Rowling wrote it. So did I. He left.", 3),
        ('He said "Go." She went.', 2),
        ("1. First item.\n2. Second item.", 2),
        ("We met at 5 p.m. Then we left.", 2),
        ("**Bold one.** Plain one.", 2),
        ("これは文です。次の文です。", 2),
        ("No punctuation here", 1),
        ("?!", 0),
        ("", 0),
    ],
)
def test_sentences_end_at_marks_that_end_them(text: str, count: int) -> None:
    assert len(sentences(text)) == count


def test_words_are_runs_of_letters_and_digits() -> None:
    assert word_count("It's 3.50, isn't-it?") == 7


def test_punctuation_is_no_part_of_a_word_in_capitals() -> None:
    capitals = [token for token in tokens('I "DON\'T" like **NASA**, (U.S.) or HELLO-WORLD!') if token.isupper()]
    assert capitals == ["I", "DO", "N'T", "NASA", "U.S", "HELLO-WORLD"]
