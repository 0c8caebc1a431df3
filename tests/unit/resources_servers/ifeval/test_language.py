"""Language detection."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollyard.records.io.search_path import INSTALLED
from rollyard.resources_servers.ifeval.language import LANGUAGES, language_of
from tests.unit.resources_servers.ifeval.following_texts import ENGLISH, SAMPLES, follows


def test_the_language_of_a_text_is_the_same_every_time() -> None:
    for code, text in SAMPLES.items():
        for _ in range(3):
            assert follows("language:response_language", f"{text} ", language=code) == (True, True), code


@pytest.mark.parametrize(
    "kind", ["language:response_language", "change_case:english_lowercase", "change_case:english_capital"]
)
@pytest.mark.parametrize("text", ["https://example.com", "me@example.com", "12345 ...", "😀", "A@B.CO"])
def test_a_text_without_a_language_matches_none_unlike_in_lm_eval(kind: str, text: str) -> None:
    kwargs = {"language": "en"} if kind.startswith("language") else {}
    assert follows(kind, text, **kwargs) == (False, False)


def test_a_variant_without_a_language_follows_nothing_unlike_in_lm_eval() -> None:
    assert follows("language:response_language", f"{ENGLISH}\n***", language="kn") == (False, False)


@pytest.mark.parametrize("mixed", [f"{SAMPLES['hi']} {ENGLISH}", f"{ENGLISH}. {SAMPLES['de']}", SAMPLES["pt"][:12]])
def test_a_text_is_in_one_language_at_most(mixed: str) -> None:
    assert sum(follows("language:response_language", mixed, language=code)[0] for code in LANGUAGES) == 1


def test_detection_does_not_depend_on_the_process_or_the_order() -> None:
    texts = [text[:size] for text in (*SAMPLES.values(), ENGLISH) for size in (3, 9, 30, 200)]
    program = (
        "import sys, json\n"
        "from rollyard.resources_servers.ifeval.language import language_of\n"
        "texts = json.load(sys.stdin)\n"
        "print(json.dumps([language_of(text) for text in reversed(texts)]))"
    )
    other = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        check=True,
        cwd=INSTALLED,
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )
    assert json.loads(other.stdout) == [language_of(text) for text in texts][::-1]


def test_the_listed_languages_are_those_that_langdetect_supports() -> None:
    from langdetect.detector_factory import PROFILES_DIRECTORY  # type: ignore[import-untyped]

    assert sorted(file.name for file in Path(PROFILES_DIRECTORY).iterdir()) == list(LANGUAGES)
