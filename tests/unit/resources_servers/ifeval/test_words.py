"""Counting words, and words in capitals."""

from __future__ import annotations

import pytest

from rollyard.resources_servers.ifeval.instruction import word_count, words_in_capitals


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("It's 3.50, isn't-it?", 7),
        ("snake_case word", 2),
        ("cafe\u0301 au lait", 3),
        ("हिंदी में लिखा", 3),
        ("এটি বাংলা ভাষায়", 3),
        ("می\u200cشود این", 2),
        ("நான் தமிழ்", 2),
        ("❤️ two 1️⃣ 😀", 2),
        ("--- ... !", 0),
    ],
)
def test_a_combining_mark_neither_splits_a_word_nor_counts_as_one(text: str, count: int) -> None:
    assert word_count(text) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('I "DON\'T" like **NASA**, (U.S.) or HI-FI!', 6),
        ("HELLO,WORLD R&D A/B 3D COVID-19 X_Y", 8),
        ("WORD--WORD—WORD–WORD WORD...WORD", 6),
        ("WORD******other <<a\nb>>WORD [NO] {YES} `CODE` ‘HM’ “EH”", 7),
        ("CANNOT GONNA GIMME LEMME GOTTA", 10),
        ("IT'S NASA's O'CLOCK ROCK’N’ROLL", 7),
        ("don't Mixed É ẞ Ⅷ 42 ...", 3),
        ("#TAG @ME $USD 50%OFF A=B 3,000", 5),
    ],
)
def test_upper_case_words_are_split_like_the_penn_treebank(text: str, count: int) -> None:
    assert words_in_capitals(text) == count
