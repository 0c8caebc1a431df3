"""Which language a text is in, by langdetect, the same every time."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

LANGUAGES = (
    "af", "ar", "bg", "bn", "ca", "cs", "cy", "da", "de", "el", "en", "es", "et", "fa", "fi", "fr", "gu", "he", "hi",
    "hr", "hu", "id", "it", "ja", "kn", "ko", "lt", "lv", "mk", "ml", "mr", "ne", "nl", "no", "pa", "pl", "pt", "ro",
    "ru", "sk", "sl", "so", "sq", "sv", "sw", "ta", "te", "th", "tl", "tr", "uk", "ur", "vi", "zh-cn", "zh-tw",
)  # fmt: skip
"""The codes that langdetect knows. Rows are checked against them where it need not be installed."""


@lru_cache(maxsize=16)  # the readings of one text, which several of its instructions ask for
def language_of(text: str) -> str | None:
    """The language's code, such as `en` or `zh-cn`; None when the text has too little of any."""
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
    factory.seed = 0  # it draws at random, and close languages would change places
    # In an order of ours: in that of the folder, which a file system chooses, ties would fall differently elsewhere.
    factory.load_json_profile([(Path(PROFILES_DIRECTORY) / code).read_text("utf-8") for code in LANGUAGES])
    return factory
