"""What the scripted model says when an environment asks it to judge.

Which verdict it gives depends only on the text of the question, so that two runs with the same answers get the same
verdicts, and different answers often get different ones.
"""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import Any

FORMATS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"label: (\w+)\nactor_aliases_json", (
        '{{"selected_answer": "{0}", "answer_class": "correct_answer", "rationale": "."}}',
        '{{"selected_answer": null, "answer_class": "incorrect_answer", "rationale": "."}}',
    )),
    (r"quality_class=unacceptable", tuple(
        f'{{"quality_class": "{quality}", "uses_protected_rationale": false, "uses_unsupported_proxy": false, '
        '"rationale": "."}' for quality in ("high", "low")
    )),
    (r"only with CORRECT or INCORRECT", ("CORRECT", "INCORRECT")),
    (r"NOT_ATTEMPTED|\bA: CORRECT", ("A", "B", "C")),
    (r"##\s*Equivalence\s*Judgement", ("## Equivalence Judgement\nTRUE", "## Equivalence Judgement\nFALSE")),
    (r"<points>", ("<points>7 out of 7</points>", "<points>1 out of 7</points>")),
    (r"\\boxed\{Correct\}|\\boxed\{Incorrect\}", (r"\boxed{Correct}", r"\boxed{Incorrect}")),
    (r"(?i)judgement:", ("Judgement: YES", "Judgement: NO")),
    (r"(?i)\[correct\]", ("[Correct]", "[Incorrect]")),
    (r"(?i)harmful request", tuple(
        f"Harmful request: no\nResponse refusal: {refusal}\nHarmful response: no" for refusal in ("no", "yes")
    )),
    (r"(?i)response harm:", ("Response harm: unharmful", "Response harm: harmful")),
    (r"(?i)refusal:", ("Refusal: no", "Refusal: yes")),
    (r"score_1", ('{"score_1": 4, "score_2": 2, "ranking": 2}', '{"score_1": 1, "score_2": 5, "ranking": 6}')),
    (r"PASS", ('{"result": "PASS", "explanation": "."}', '{"result": "FAIL", "explanation": "."}')),
    (r"correct: ", ("correct: yes", "correct: no")),
    (r"(?s)\\boxed\{.*0\.5|0\.5.*\\boxed\{", (r"\boxed{1}", r"\boxed{0.5}", r"\boxed{0}")),
    (r'"verdict"', ('{"verdict": "YES", "reason": "."}', '{"verdict": "NO", "reason": "."}')),
    (r"(?i)score", ("Score: 8/10", "Score: 3/10")),
)  # fmt: skip
"""A pattern that the question contains -> the verdicts in the format that it asks for.

With a group in the pattern, `{0}` in a verdict is what it matched, and braces are doubled.
"""
OTHERWISE = ("CORRECT", "INCORRECT")


def verdict(asked: list[tuple[str, str]], schema: dict[str, Any] | None) -> str:
    """The answer to the question; an object of the JSON schema if there is one, unless the question asks for more."""
    question = "\n".join(text for _, text in asked)
    number = int.from_bytes(sha256(question.encode()).digest()[:4])
    choices = _choices(question)
    if schema is not None and not choices[0].startswith("{"):
        return json.dumps(_instance(schema, number))
    return choices[number % len(choices)]


def _instance(schema: dict[str, Any], number: int) -> Any:
    """An object of a schema, in which choices and truth values depend on the number."""
    if named := schema.get("enum"):
        return named[number % len(named)]
    kind = schema.get("type")
    if kind == "object":
        return {name: _instance(part, number) for name, part in (schema.get("properties") or {}).items()}
    if kind == "array":
        return [_instance(schema.get("items") or {}, number)]
    plain = {"boolean": number % 2 == 0, "integer": number % 2, "number": number % 2 / 2, "null": None}
    return plain.get(kind, ".") if isinstance(kind, str) else "."


def _choices(question: str) -> tuple[str, ...]:
    labels = sorted(set(re.findall(r"\[\[[A-Z_!<>=]+\]\]", question)))
    if len(labels) > 1:
        return tuple(labels)
    for pattern, choices in FORMATS:
        if found := re.search(pattern, question):
            return tuple(choice.format(*found.groups()) for choice in choices) if found.groups() else choices
    return OTHERWISE
