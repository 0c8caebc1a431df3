"""Compares verdicts with those of lm_eval's code, on texts that follow an instruction and on variations of them.

Intended differences are left out: the number of sentences (lm_eval downloads a model for them), texts without a
language, NaN in JSON, and the two rows whose letter is a punctuation mark.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from rollyard.resources_servers.ifeval.app import outcome
from rollyard.resources_servers.ifeval.instruction import KINDS, instruction
from rollyard.resources_servers.ifeval.sentences import sentences
from tests.unit.resources_servers.answers.grading import DATA, rows_of
from tests.unit.resources_servers.ifeval.following_texts import ENGLISH, text_that_follows

Kwargs = dict[str, Any]
LmEvalVerdict = Callable[[str, Kwargs, str], tuple[bool, bool]]
CAPITALS = "NASA U.S. HI-FI 3D R&D A,B A/B X_Y CANNOT DON'T it's CEO's (OK) “EH” A: B; C! D?E…F—G--H *I* <J> É"
TEMPLATES = [
    "{}", "{} extra", "{0}\n\n{0}", "**{}**", ' "{}"\n', "“{}”", "pre{}post", "{}.", "\n\n  {}  \n", " \n", "```{}",
    "Sure, here it is:\n\n{}", "{}\nI hope this helps!", "Sure:\n{}\nBye.", "```json\n{}\n```", "```python\n{}\n```",
    "{}\n```", "***\n{0}\n***\n{0}\n***", "{}\n******\nother", "{}\n***********\nother",
    "{}\nP.S. more, p. p. s. and P.P.S", "{} [a] [] [x\ny] *a* **b** * c * <<>> <<a\nb>> <<<c>>> ****",
    "{} Section 1 SECTION2 Section  3 Day 1 Sections 5 Section\n6 of six", f"{{}} {CAPITALS}", f"{ENGLISH}. {{}}",
    '{{"a": 1}}\n{{"b": 2}}',
]  # fmt: skip
CHANGES: list[Callable[[str], str]] = [
    *(template.format for template in TEMPLATES),
    *(str.upper, str.lower, str.title),
    lambda text: text.rpartition(" ")[0],
    *(lambda text, new=new: text.replace(" ", new) for new in ("-", ", ", " 😀 ")),
    *(lambda text, new=new: text.replace("\n", f"\n{new}") for new in ("* ", "- ", "1. ")),
    lambda text: f"{text}\n\nend".replace("\n", "\r\n"),
    lambda text: text.replace("\n", "\u2028"),
    lambda text: json.dumps({"a": text}),
    lambda text: f"{text}\n" * 50,
]


@pytest.fixture
def lm_eval_verdict(monkeypatch: pytest.MonkeyPatch) -> LmEvalVerdict:
    """(strict, loose) according to lm_eval."""
    nltk, langdetect = importlib.import_module("nltk"), importlib.import_module("langdetect")
    monkeypatch.setattr(nltk.data, "find", lambda *_: "there")  # lm_eval downloads punkt on import
    monkeypatch.setattr(nltk.tokenize, "sent_tokenize", lambda text, _: sentences(text))
    monkeypatch.setattr(langdetect.DetectorFactory, "seed", 0)
    monkeypatch.setattr(langdetect.detector_factory, "_factory", None)
    utils = importlib.import_module("lm_eval.tasks.ifeval.utils")

    def verdict(kind: str, kwargs: Kwargs, text: str) -> tuple[bool, bool]:
        example = utils.InputExample(0, [kind], "", [kwargs])
        strict = utils.test_instruction_following_strict(example, text)
        loose = utils.test_instruction_following_loose(example, text)
        return strict.follow_all_instructions, loose.follow_all_instructions

    return verdict


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"length_constraints:number_sentences"}))
def test_verdicts_equal_lm_evals_strict_and_loose_ones(kind: str, lm_eval_verdict: LmEvalVerdict) -> None:
    rows = rows_of(DATA / "ifeval" / "input_data.jsonl")
    items = [item for row in rows for item in zip(row["instruction_id_list"], row["kwargs"], strict=True)]
    matching_kwargs = [
        kwargs for item_kind, kwargs in items if item_kind == kind and kwargs.get("letter") not in ("#", "!")
    ]
    distinct = {json.dumps(kwargs): kwargs for kwargs in matching_kwargs}
    for kwargs in distinct.values():
        checked, text = instruction(kind, kwargs), text_that_follows(kind, kwargs)
        for change in CHANGES:
            result = outcome(kind, checked, change(text))
            assert (result.strict, result.loose) == lm_eval_verdict(kind, kwargs, change(text)), (change(text), kwargs)
