"""Defines GSM8K's prompt formats, and how to extract the answer in each of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rollyard.records.types import Json
from rollyard.resources_servers.answers.grader import AnswerForm, narrowed
from rollyard.resources_servers.answers.prompts import chat, completion, with_shots
from rollyard.resources_servers.answers.quantity import quantity
from rollyard.resources_servers.answers.reading.answer_phrases import phrased
from rollyard.resources_servers.answers.reading.boxes import boxed
from rollyard.resources_servers.answers.reading.extraction import Found
from rollyard.resources_servers.answers.reading.fallback import number
from rollyard.resources_servers.answers.reading.sentence_values import CHANGED, bare_value, values
from rollyard.resources_servers.answers.reading.tags import boxed_or_tagged, hashes, minerva

SYSTEM = r"First, think step by step. Then put your final answer inside \boxed{...}."
MAX_OUTPUT_TOKENS = 512
_HASHES = re.compile(r"#### (-?[0-9.,]+)")
_ANSWER_IS = re.compile(
    r"The answer is (-?[0-9.,]+)."
)  # as in the harness, the last dot is unescaped and matches any character
_LEADING = re.compile(r"[^\d\-.$]*((?:-\s?)?\$?\s?-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:\s*/\s*\d+)?%?)")
_VARIABLE = re.compile(r"[xyn]\b")
_RANGE = re.compile(r"[$ ]{0,3}[\d.,]{1,40}(?: ?(?:to|-|–|;) ?|, ?(?<=[, ]))\$?\d[^=]*$")


def gold_number(answer: str) -> str | None:
    """Return the number after the last `####` of a GSM8K solution, or `answer` if it is a number, or else None."""
    last = answer.rpartition("####")[2].strip()
    return last if quantity(last) is not None else None


def same_digits(gold: str, answer: str) -> bool:
    """Return whether both are equal, ignoring commas, dollar signs and a final period, as lm-eval does."""

    def bare(text: str) -> str:
        return re.sub(r"[,$]", "", text).removesuffix(".")

    return bare(gold) == bare(answer)


def _first(pattern: re.Pattern[str], method: str, text: str) -> Found | None:
    match = pattern.search(text)
    return Found(match.group(1), method, match.end(1)) if match else None


def _numbers_in(text: str) -> list[str]:
    """Return the number in each of the sentence's values, from its start or from after its last equals sign."""
    return [_number_in(value) for value in values(text)]


def _number_in(text: str) -> str:
    """Extract the number, as in `9 * 2 = $18 a day` -> `$18`. Return the text unchanged if other words change the
    number.
    """
    text = bare_value(text)
    if quantity(text, any_words=True) is not None:
        return text
    last = text.rpartition("=")[2]
    match = _LEADING.match(last)
    if (
        match is None
        or _VARIABLE.match(last, match.end())
        or CHANGED.search(text[: len(text) - len(last) + match.start(1)])
    ):
        return text
    return text if _RANGE.match(text, match.start(1)) and last == text else match[1]


_LENIENT = (
    boxed_or_tagged,
    narrowed(hashes, _numbers_in),
    narrowed(minerva, _numbers_in),
    narrowed(phrased, _numbers_in),
    number,
)
ANSWER_FORMS = {
    "chat": AnswerForm(stops=(), strict=boxed, lenient=_LENIENT),
    "lm_eval": AnswerForm(
        stops=("Question:", "</s>", "<|im_end|>"),
        strict=lambda text: _first(_HASHES, "hashes", text),
        lenient=_LENIENT,
        matches=same_digits,
    ),
    "lm_eval_cot": AnswerForm(
        stops=("Q:", "</s>", "<|im_end|>"),
        strict=lambda text: _first(_ANSWER_IS, "answer_is", text),
        lenient=_LENIENT,
        matches=same_digits,
    ),
}


def create_params(form: str, question: str, shots: Sequence[tuple[str, str]] = (), system: str = SYSTEM) -> Json:
    """Build the request parameters. `shots` are (question, answer) pairs, used only in the lm-eval formats."""
    stops = ANSWER_FORMS[form].stops
    if form == "chat":
        return chat(question, system)
    template = "Question: {}\nAnswer:" if form == "lm_eval" else "Q: {}\nA:"
    examples = [(template.replace("{}", shot), answer) for shot, answer in shots]
    prompt = with_shots(examples, template.replace("{}", question))
    return completion(prompt, stops, MAX_OUTPUT_TOKENS)
