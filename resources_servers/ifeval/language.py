"""Which language a text is in, by langdetect, the same every time."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from typing import Any

from services.errors import OperatorError


def require_langdetect(world: str) -> None:
    """Raises OperatorError with the command that installs it."""
    if importlib.util.find_spec("langdetect") is None:
        raise OperatorError(
            f"{world} tells languages with langdetect, which is not installed: pip install 'rollyard[ifeval]'"
        )


@lru_cache(maxsize=256)
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
    factory.load_profile(PROFILES_DIRECTORY)
    return factory
