"""Whether an answer means the gold one, by math-verify. May take for ever: run it in a worker."""

from __future__ import annotations

import logging
import re
import warnings
from functools import lru_cache
from typing import Any

from resources_servers.answers.equality import DECIMALS, Comparison, brackets, without_name
from resources_servers.answers.latex import tidied

_RELATION = re.compile(r"=|<|>|\\(?:le|ge|ne|in)(?![a-z])|\\text\s*\{[^{}]*(?:or|and)[^{}]*\}")


def thorough(gold: str, answer: str) -> Comparison:
    """math-verify's opinion on a pair that `quick` left open."""
    gold, answer = without_name(gold, answer)
    gold, answer = _ordered_alike(gold, answer)
    golds, answers = _parsed(gold), _parsed(answer)
    if not answers:
        return Comparison(equal=False, reason="the answer is not mathematics that can be read")
    if not _equal(golds, answers, 6, 15):
        return Comparison(equal=False, reason="not equal")
    exact = "." not in gold + answer or _equal(golds, answers, 12, 30)
    return Comparison(equal=True, exact=exact, reason="equal" if exact else f"equal to {DECIMALS} decimals")


def quiet() -> None:
    """Keep math-verify from writing what it reads into logs. For the process that calls `thorough`."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")


def _ordered_alike(gold: str, answer: str) -> tuple[str, str]:
    """A pair without its parentheses would be read as a set, whose order is lost; a list in them as a pair."""
    gold, answer = tidied(gold), tidied(answer)
    if "," in gold and "," in answer and not _RELATION.search(gold + answer):
        if brackets(gold) == "(" and not brackets(answer) and "(" not in answer and "[" not in answer:
            return gold, f"({answer})"
        if brackets(answer) == "(" and not brackets(gold) and "(" not in gold and "[" not in gold:
            return gold, answer[1:-1]
    return gold, answer


@lru_cache(maxsize=256)
def _parsed(text: str) -> tuple[Any, ...]:
    from math_verify import LatexExtractionConfig, parse  # type: ignore[import-untyped]

    # A worker has limits of its own, on CPU time; the library's are on wall time, and a busy machine would decide.
    read = parse(f"\\boxed{{{text}}}", extraction_config=[LatexExtractionConfig()], parsing_timeout=None)
    return tuple(read)


def _equal(golds: tuple[Any, ...], answers: tuple[Any, ...], rounding: int, precision: int) -> bool:
    from math_verify import verify

    return bool(
        verify(
            list(golds),
            list(answers),
            float_rounding=rounding,
            numeric_precision=precision,
            allow_set_relation_comp=True,
            timeout_seconds=None,
        )
    )
