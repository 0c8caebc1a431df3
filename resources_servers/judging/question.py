"""What is graded, and the prompt that it makes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import orjson

from rollyard.resources_servers.judging.settings import FIELD, JudgeSettings


@dataclass(frozen=True, slots=True)
class Question:
    """One answer to grade."""

    question: str
    response: str
    reference: str

    def digest(self, settings: JudgeSettings) -> str:
        """Hash of everything that decides the grade."""
        asked = [self.question, self.response, self.reference, settings.model_dump(mode="json")]
        return hashlib.sha256(orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)).hexdigest()

    def prompt(self, code: str, settings: JudgeSettings) -> str:
        """The template with its fields filled in, in one pass: a value that holds {reference} stays as it is."""
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
