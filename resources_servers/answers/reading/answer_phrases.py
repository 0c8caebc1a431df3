"""Finds answers that a phrase introduces: `The answer is 12.`, `## Answer`, `答案是 12。`, `Ответ: 12`, `"answer": 12`.

The last phrase that is followed by a value counts. If none is, the last phrase that is followed by any text counts.
"""

from __future__ import annotations

import re
from collections import deque

from rollyard.resources_servers.answers.reading.adjacent_values import last_row, together
from rollyard.resources_servers.answers.reading.extraction import Found, scan
from rollyard.resources_servers.answers.reading.sentence_values import is_value, sentence, undecorated

MAX_CANDIDATES = 40
"""Maximum number of phrases that are considered, counted from the end of the text."""
MAX_LINES = 10
SECTION = 400
"""Maximum length of the section under an `Answer` heading. A longer section is reasoning, not an answer."""
_MARKS = r"[ \t*_]{0,8}"
_ENGLISH = (
    r"\b(?:answers?(?: ?\(s\))?|solutions (?=[^:\n]{0,99}\bare\b)|(?:correct|right) (?:option|choice|letter)"
    r"|final (?:result|value|solution)|result(?=[*_]{0,3} ?[:=]))"
    r"(?: (?:to|of|for)\b[^.:\n=]{1,99}?)?"
    rf"(?:{_MARKS}[:：|=]|{_MARKS}\b(?:is|are|would be|should be|must be|becomes)\b"
    rf"(?: (?:simply|just|therefore|thus|then|indeed|exactly|hence|actually|now)\b)?{_MARKS}[:：]?)"
)
_EUROPEAN = (
    r"\b(?:respuesta|réponse|antwort|ergebnis|resposta|risposta|antwoord|odpowiedź|cevap|svar)"
    r"(?: (?:final|finale|correcta|correcte|correta|corretta|est[aá] bien))?"
    rf"{_MARKS}(?:\s?[:：=]|\b(?:es|est|ist|lautet|beträgt|é|è|to|är|er)(?!\w)){_MARKS}[:：]?"
    rf"|\b(?:ответ(?:ом)?|відповідь){_MARKS}"
    r"(?:[:：=—–-]|\b(?:равен|равна|равно|является|это|есть|будет)\b|(?= [-$\d\\]))[ \t*_]{0,8}[:：]?"
)
_ASIAN = (
    r"(?:答案|正确选项|最终结果|答え|正解)(?:应该|應該)?[*_ ]{0,4}(?:是|为|為|等于|选|選|は|=|[:：])[*_ ]{0,4}[:：]?"
    r"|故选[:：]?|(?<!\w)(?:최종 ?|따라서 ?)?(?:정답|답)[*_ ]{0,4}(?:은|는|[:：])"
    r"|(?:الإجابة|الجواب)(?: النهائية| الصحيحة| النهائي)?[*_ ]{0,4}(?:هي|هو|[:：])[*_ ]{0,4}[:：]?"
    r"|(?:उत्तर|जवाब)[*_ ]{0,4}(?:है|[:：])?[*_ ]{0,4}[:：]?"
)
_OPENING = re.compile(rf"(?:{_ENGLISH}|{_EUROPEAN}|{_ASIAN}|^[*_]{{0,3}}A(?:ns)?[.:][*_]{{0,3}})", re.I | re.M)
_HEADING = re.compile(
    r"^[#*_>| \t-]{0,12}(?:the )?(?:(?:final |correct )?answer|final result|答案|最终答案|ответ)[*_| \t]{0,12}$",
    re.I | re.M,
)
_JSON = re.compile(r"[\"'](?:final[_ ]?)?answer[\"']\s{0,9}:\s{0,9}", re.I)
_JSON_VALUE = re.compile(
    r"\"((?:[^\"\\\n]|\\.){0,500})\"|'([^'\n]{0,500})'|\[([^\[\]\n]{0,500})\]|([^\"'\[,}\n][^,}\n]{0,500})"
)
_BLANK = re.compile(r"(?:[ \t*_]*+(?:(?:[=-]{3,}+|\|[-:| ]++)[ \t]*+)?\n){0,5}")
_BULLET = re.compile(r"[ \t]{0,8}(?:(?:[-•>]|\*(?!\*))[ \t]+|\|[ \t]*)?(?=\S)")
_HAS_VALUE = re.compile(r"\d|\\[a-zA-Z]|\$|^\W*[A-Z]\W*$|\([A-Z]\)")
_COPULA = re.compile(r"\s*(?:です|である|だ|になります|입니다|이다|है|होगा)$")


def phrased(text: str) -> Found | None:
    """Find an answer such as `The answer is 18.` or `Answer: 18`. It extends to the end of the sentence."""
    matches = {
        match.end(): match
        for opening in (_OPENING, _HEADING, _JSON)
        for match in deque(scan(opening, text), MAX_CANDIDATES)
    }
    fallback, with_value = None, list[tuple[int, Found]]()
    for _, match in sorted(matches.items()):
        found = _json_value(text, match) if match.re is _JSON else _after(text, match)
        if found is not None and _HAS_VALUE.search(found.text):
            with_value.append((match.start(), found))
        fallback = found or fallback
    return last_row(text, with_value) or fallback


def _after(text: str, opening: re.Match[str]) -> Found | None:
    """Return the sentence after the phrase, or all values of a list on the lines after it."""
    blank = _BLANK.match(text, opening.end())
    position = blank.end() if blank else opening.end()
    if opening.re is _HEADING and len(text) - position > SECTION:
        return None
    bullet = _BULLET.match(text, position)
    value, end = sentence(text, bullet.end() if bullet else position)
    if "\n" in text[opening.end() : position] and (below := _below(text, end, bullet)):
        return together(Found(value, "answer_is", below[-1][1]), [value, *(line for line, _ in below)])
    value = undecorated(_COPULA.sub("", value))
    if "|" in opening.group() or text[position : position + 1] == "|":  # a cell of a table
        value = undecorated(value.partition("|")[0])
    return Found(value, "answer_is", end) if value else None


def _below(text: str, end: int, bullet: re.Match[str] | None) -> list[tuple[str, int]]:
    """Return the remaining lines of a list of values, with their end positions."""
    found = list[tuple[str, int]]()
    while text[end : end + 1] == "\n" and len(found) < MAX_LINES:
        begin = _BULLET.match(text, end + 1)
        if bool(bullet and bullet.group()) != bool(begin and begin.group()):
            break
        value, end = sentence(text, begin.end() if begin else end + 1)
        if not value or not is_value(value):
            break
        found.append((value, end))
    return found


def _json_value(text: str, opening: re.Match[str]) -> Found | None:
    r"""Parse a JSON value leniently, because models often write `\frac` where JSON requires `\\frac`."""
    match = _JSON_VALUE.match(text, opening.end())
    if match is None:
        return None
    value = next(group for group in match.groups() if group is not None).replace("\\\\", "\\").strip()
    return Found(value.replace('"', "") if match[3] else value, "answer_is", match.end()) if value else None
