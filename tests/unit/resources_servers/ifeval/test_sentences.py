"""Counting sentences."""

from __future__ import annotations

import pytest

from rollyard.resources_servers.ifeval.sentences import sentences


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
        ("No punctuation here", 1),
        ("?!", 0),
        ("", 0),
    ],
)
def test_sentences_end_at_marks_that_end_them(text: str, count: int) -> None:
    assert len(sentences(text)) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("My answer is no.\nMy answer is maybe.", 2),
        ("See No. 5 in Fig. 3. The answer is no. Why?", 3),
        ("Take vitamin C. It helps.", 2),
        ("Flowers of Packet A.\nWe know them.", 2),
        ("The house is x. So we write it.", 2),
        ("I was. He is. It was I. Am I?", 4),
        ("J. Smith met p. 5 of W. H. Auden.", 1),
        ("Wait … what? So … yes.", 2),
        ("Give it (1. do not say a word; 2. repeat it).", 1),
        ("I have 2. Then go.", 2),
        ("The answer:\n42.\nSo it is.", 2),
        ("In the U.S. the laws differ. In the U.S. Congress makes them.", 2),
    ],
)
def test_the_context_of_a_dot_determines_whether_it_ends_a_sentence(text: str, count: int) -> None:
    assert len(sentences(text)) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("St. Louis and St. Paul are cities.", 1),
        ("The U.S. Supreme Court met U.S. lawyers.", 1),
        ("Gov. Brown of Calif. and Sen. Lee of Va. met Rep. King Jr. of N.Y. on Jan. 5.", 1),
        ("Rev. Dr. King and Lt. Col. Smith vs. Capt. Hook, Ph.D., et al. of Acme Inc. in Washington, D.C. spoke.", 1),
        ("He lives in the U.S. She lives in the U.K. We left.", 3),
        ("He works for Acme Inc. They met at 5 p.m. Then it rained.", 3),
        ("The S.P.C.A. Building, a.k.a. the U.A.E. Tower, opened at 9 a.m. Eastern time on Mar. 5.", 1),
        ("R.S.V.P. We wait. It is made in the U.S.S.R. They know.", 4),
        ("Mt. Everest is high. Ft. Worth is not.", 2),
        ("Apples, pears, etc. are cheap. Use a tool, i.e. a hammer (e.g. mine).", 2),
        ("See Fig. 3, Sec. 2.1, No. 5 and pp. 5-7. The answer is no. Five is more.", 3),
    ],
)
def test_an_abbreviation_ends_a_sentence_only_before_a_word_that_starts_one(text: str, count: int) -> None:
    assert len(sentences(text)) == count


@pytest.mark.parametrize("label", ["1.", "**1.**", "## 1.1.", "> 3.", "  a.", "B.", "- 10."])
def test_a_list_label_is_not_a_sentence_unlike_in_punkt(label: str) -> None:
    assert len(sentences(f"{label} First item.\n{label} Second item.")) == 2


@pytest.mark.parametrize(
    "text", ["**Bold one.** Plain one.", "We met at 5 p.m. Then we left.", "これは文です。次の文です。"]
)
def test_bold_text_times_of_day_and_other_scripts_end_sentences_unlike_in_punkt(text: str) -> None:
    assert len(sentences(text)) == 2


def test_punctuation_without_a_word_is_not_a_sentence_unlike_in_punkt() -> None:
    assert [len(sentences(text)) for text in ("***", "😀", '"', "One.\n***\nTwo.")] == [0, 0, 0, 2]
