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
CHANGES: dict[str, Callable[[str], str]] = {
    "unchanged": lambda text: text,
    "one word fewer": lambda text: text.rpartition(" ")[0],
    "one word more": lambda text: f"{text} extra",
    "twice": lambda text: f"{text}\n\n{text}",
    "capitals": str.upper,
    "lower case": str.lower,
    "titles": str.title,
    "bold": lambda text: f"**{text}**",
    "in quotes": lambda text: f' "{text}"\n',
    "in other quotes": lambda text: f"“{text}”",
    "inside a word": lambda text: f"pre{text}post",
    "hyphens": lambda text: text.replace(" ", "-"),
    "commas": lambda text: text.replace(" ", ", "),
    "a dot": lambda text: f"{text}.",
    "whitespace": lambda text: f"\n\n  {text}  \n",
    "an introduction": lambda text: f"Sure, here it is:\n\n{text}",
    "a closing line": lambda text: f"{text}\nI hope this helps!",
    "a frame": lambda text: f"Sure:\n{text}\nBye.",
    "Windows": lambda text: f"{text}\n\nend".replace("\n", "\r\n"),
    "separators": lambda text: text.replace("\n", "\u2028"),
    "a fence": lambda text: f"```json\n{text}\n```",
    "a Python fence": lambda text: f"```python\n{text}\n```",
    "an open fence": lambda text: f"```{text}",
    "the end of a fence": lambda text: f"{text}\n```",
    "stars": lambda text: "\n".join(f"* {line}" for line in text.split("\n")),
    "dashes": lambda text: "*\n" + "\n".join(f"- {line}" for line in text.split("\n")),
    "numbers": lambda text: "\n".join(f"1. {line}" for line in text.split("\n")),
    "three stars": lambda text: f"***\n{text}\n***\n{text}\n***",
    "six stars": lambda text: f"{text}\n******\nother",
    "eleven stars": lambda text: f"{text}\n***********\nother",
    "a postscript": lambda text: f"{text}\nP.S. more, p. p. s. and P.P.S",
    "marks": lambda text: f"{text} [a] [] [x\ny] *a* **b** * c * <<>> <<a\nb>> <<<c>>> ****",
    "sections": lambda text: f"{text} Section 1 SECTION2 Section  3 Day 1 Sections 5 Section\n6 of six",
    "capital words": lambda text: f"{text} {CAPITALS}",
    "emoji": lambda text: text.replace(" ", " 😀 "),
    "English before it": lambda text: f"{ENGLISH}. {text}",
    "JSON": lambda text: json.dumps({"a": text}),
    "two JSON objects": lambda text: '{"a": 1}\n{"b": 2}',
    "empty": lambda text: " \n",
    "long": lambda text: f"{text}\n" * 50,
}


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
        for name, change in CHANGES.items():
            result = outcome(kind, checked, change(text))
            assert (result.strict, result.loose) == lm_eval_verdict(kind, kwargs, change(text)), (name, kwargs)
