"""Detects the language of a text with langdetect. Results are deterministic."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

LANGUAGES = (
    "af", "ar", "bg", "bn", "ca", "cs", "cy", "da", "de", "el", "en", "es", "et", "fa", "fi", "fr", "gu", "he", "hi",
    "hr", "hu", "id", "it", "ja", "kn", "ko", "lt", "lv", "mk", "ml", "mr", "ne", "nl", "no", "pa", "pl", "pt", "ro",
    "ru", "sk", "sl", "so", "sq", "sv", "sw", "ta", "te", "th", "tl", "tr", "uk", "ur", "vi", "zh-cn", "zh-tw",
)  # fmt: skip
"""The language codes that langdetect supports. This list makes it possible to check rows without langdetect."""


@lru_cache(maxsize=16)  # several instructions may check the variants of one text
def language_of(text: str) -> str | None:
    """Return the language code, such as `en` or `zh-cn`, or None if the language cannot be detected."""
    from langdetect import LangDetectException  # type: ignore[import-untyped]

    detector = _factory().create()
    detector.append(text)
    try:
        return str(detector.detect())
    except LangDetectException:
        return None


@lru_cache(maxsize=1)
def _factory() -> Any:
    from langdetect import DetectorFactory
    from langdetect.detector_factory import PROFILES_DIRECTORY  # type: ignore[import-untyped]

    factory = DetectorFactory()
    factory.seed = 0  # langdetect samples at random, so results for similar languages would vary
    # In a fixed order, because the order of files in a folder depends on the file system and would affect ties.
    factory.load_json_profile([(Path(PROFILES_DIRECTORY) / code).read_text("utf-8") for code in LANGUAGES])
    return factory
