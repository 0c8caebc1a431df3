"""All gold answers of GSM8K's test split in all forms, and 5,276 model answers with the authors' labels."""

from __future__ import annotations

import pytest

from tests.unit.resources_servers.gsm8k.test_answers import FORMS, agreements, labelled, right_golds


@pytest.mark.parametrize(("form", "wording", "strict"), FORMS)
async def test_every_gold_answer_and_solution_is_right(form: str, wording: str | None, strict: bool) -> None:
    assert await right_golds(form, wording, strict=strict, step=1) == 1319


async def test_the_grades_agree_with_the_authors_labels_of_all_model_answers() -> None:
    everything = labelled(1)
    agreed = await agreements(everything)
    assert (sum(agreed), len(agreed), sum(label for *_, label in everything)) == (5276, 5276, 2001)
