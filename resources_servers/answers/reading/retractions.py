r"""Detects retracted answers: `\boxed{5}. Wait, no, it's 7.`"""

from __future__ import annotations

import re

from rollyard.resources_servers.answers.reading.extraction import scan

_RETRACTION = re.compile(
    r"""(?:(?<=[.!?\n—–$})])|(?<=[,;-]))[\s*_]{0,4}(?:
        (?:(?:hmm+|wait|oops|sorry|actually|hold\ on|ah|oh)[,.…!—–\s-]{1,4}){1,4}
          (?:no\b|scratch\ that|(?:it|that)(?:['’]s|\ is|\ should\ be)\ *(?=[-$\\*\d])
            |I\ meant|that(?:['’]s|\ is|\ was)\ (?:wrong|incorrect|not)
            |I\ (?:made|was|mis)|the\ (?:correct\ |right\ |final\ )?answer\ (?:is|should\ be))
      | no,\ (?:wait|sorry|actually|that['’]s|it['’]s|the\ (?:correct\ |right\ )?answer\ is)
      | scratch\ that | correction[:,.] | my\ mistake | I\ (?:made\ an?|have\ made\ an?)\ (?:mistake|error)
      | (?:that|this)(?:['’]s|\ is|\ was)\ (?:wrong|incorrect|not\ (?:right|correct)|a\ mistake)
    )""",
    re.VERBOSE | re.IGNORECASE,
)


def after_last_retraction(text: str) -> str:
    """Return the text after the last retraction, because every answer before it is retracted."""
    start = 0
    for match in scan(_RETRACTION, text):
        start = match.end()
    return text[start:].lstrip(",;:—– ") if start else text
