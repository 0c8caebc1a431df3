"""The forms in which GSM8K is asked, and how each one's answers are read."""

from __future__ import annotations

import re
from collections.abc import Sequence

from resources_servers.answers.extraction import Found, boxed, hashes, minerva, number, phrased, tagged
from resources_servers.answers.judge import Reading, narrowed
from resources_servers.answers.prompts import chat, completion, with_shots
from resources_servers.answers.quantity import quantity
from services.types import Json

SYSTEM = r"First, think step by step. Then put your final answer inside \boxed{...}."
MAX_OUTPUT_TOKENS = 512
_HASHES = re.compile(r"#### (-?[0-9.,]+)")
_ANSWER_IS = re.compile(r"The answer is (-?[0-9.,]+).")  # the harness leaves its last dot unescaped: any character
_LEADING = re.compile(r"[^\d\-.$]*((?:-\s?)?\$?\s?-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:\s*/\s*\d+)?%?)")
_HEDGED = re.compile(
    r"(?:[^\d=]*\b(?:not|between|either|neither)\b|[^\d=]*[\d.,]+ ?(?:or|to|-|–) ?\$?\d[^=]*$)", re.IGNORECASE
)


def gold_number(answer: str) -> str | None:
    """The number behind the last `####` of a GSM8K solution, or the number that `answer` is; None if it is none."""
    last = answer.rpartition("####")[2].strip()
    return last if quantity(last) is not None else None


def same_digits(gold: str, answer: str) -> bool:
    """lm-eval's exact match: equal once commas, dollars and one final dot are gone."""

    def bare(text: str) -> str:
        return re.sub(r"[,$]", "", text).removesuffix(".")

    return bare(gold) == bare(answer)


def _first(pattern: re.Pattern[str], method: str, text: str) -> Found | None:
    match = pattern.search(text)
    return Found(match.group(1), method, match.end(1)) if match else None


def _number_in(text: str) -> str:
    """The number that a sentence begins with, or that its last equation ends with: `9 * 2 = $18 a day` -> `$18`."""
    text = text.strip().strip("*$ ") if text.count("$") == 2 else text
    if quantity(text, any_words=True) is not None:
        return text
    match = _LEADING.match(text.rpartition("=")[2])
    return match.group(1) if match and not _HEDGED.match(text) else text


_LENIENT = (
    boxed,
    tagged,
    narrowed(hashes, _number_in),
    narrowed(minerva, _number_in),
    narrowed(phrased, _number_in),
    number,
)
READINGS = {
    "chat": Reading(stops=(), strict=boxed, lenient=_LENIENT, any_words=True),
    "lm_eval": Reading(
        stops=("Question:", "</s>", "<|im_end|>"),
        strict=lambda text: _first(_HASHES, "hashes", text),
        lenient=_LENIENT,
        matches=same_digits,
        any_words=True,
    ),
    "lm_eval_cot": Reading(
        stops=("Q:", "</s>", "<|im_end|>"),
        strict=lambda text: _first(_ANSWER_IS, "answer_is", text),
        lenient=_LENIENT,
        matches=same_digits,
        any_words=True,
    ),
}


def create_params(form: str, question: str, shots: Sequence[tuple[str, str]] = (), system: str = SYSTEM) -> Json:
    """What the model is asked. `shots`: (question, answer) pairs for the lm-eval forms. Raises KeyError."""
    stops = READINGS[form].stops
    if form == "chat":
        return chat(question, system)
    asked = "Question: {}\nAnswer:" if form == "lm_eval" else "Q: {}\nA:"
    prompt = with_shots([(asked.replace("{}", shot), answer) for shot, answer in shots], asked.replace("{}", question))
    return completion(prompt, stops, MAX_OUTPUT_TOKENS)
