"""Builds the judge's prompt from the question, the answer and the reference."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import orjson

from rollyard.resources_servers.judging.settings import FIELD, JudgeSettings


@dataclass(frozen=True, slots=True)
class Question:
    """An answer to grade, with its question and the reference answer."""

    question: str
    response: str
    reference: str

    def digest(self, settings: JudgeSettings) -> str:
        """Return a hash of everything that determines the grade."""
        inputs = [self.question, self.response, self.reference, settings.model_dump(mode="json")]
        return hashlib.sha256(orjson.dumps(inputs, option=orjson.OPT_SORT_KEYS)).hexdigest()

    def prompt(self, code: str, settings: JudgeSettings) -> str:
        """Fill in the prompt template. Placeholders such as {reference} inside the inserted values are not expanded."""
        scale = settings.scale
        grades = f"a number from {scale[0]:g} to {scale[1]:g}" if scale else " or ".join(settings.grades)
        values = {
            "question": self.question,
            "response": self.response,
            "reference": self.reference,
            "grades": grades,
            "code": code,
        }
        return FIELD.sub(lambda found: values[found[1]], settings.prompt)
