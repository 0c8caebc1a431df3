r"""Finds answers in a model's text: in boxes, tags and phrases, or as its last number or formula.

An answer with an alternative (`\boxed{5} or 6`) is correct only if both values are correct, so that a policy gains
nothing by giving several.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from functools import lru_cache

from rollyard.resources_servers.answers.extraction import MASK, FoundAnswer, formulas, last_row, masked, scan, together
from rollyard.resources_servers.answers.latex import choice, parts, plain_spelling, words
from rollyard.resources_servers.answers.quantity import quantity

MAX_CHARACTERS = 3000
"""Maximum length of a box. Without a limit, each unclosed box would be searched to the end of the text."""
MAX_BOXES = 50
"""Maximum number of boxes that are considered, counted from the end of the text."""
_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_DENIED = re.compile(r"\b(?:not|rather than|instead of)[ $*({\[\\]{0,9}$", re.I)
_BARE_BOX = re.compile(r"[^\s$\\{}.,;]+")
_OR_BEFORE = re.compile(
    r"(?:^|\.\s|\n|\b(?:either|answer is|answer:|maybe|perhaps|possibly|it is|it['’]s))\s*\$?(-?\d[\d.,/]*)\$?,? +\(?"
    r"(?:or|maybe|perhaps|possibly) +(?:(?:maybe|perhaps|possibly) +)?(?:\$|\\[(\[]|\*\*)?\s*$",
    re.I,
)
r"""Matches a value and an `or` before a box, but not `which is $13+15$, or \boxed{28}`, where the box restates the
value."""
_BESIDE = 150
"""Number of characters before a box that are searched for a different value."""
_MAX_DEPTH = 5


@lru_cache(maxsize=1)
def boxed(text: str) -> FoundAnswer | None:
    r"""Return the last box, combined with the boxes adjacent to it: `1, 2` for `\boxed{1} or \boxed{2}`.

    Cached, because the strict and the lenient search of a text both begin with it.
    """
    found = list(_boxes(text))
    last = last_row(text, found)
    if last is None or not last.whole:
        return last
    first = found[-1][0] if not last.parts else found[-len(last.parts)][0]
    beside = [*_before(text, first), *(last.parts or (last.text,))]
    alone = [each.text for _, each in found if each.whole]
    return together(last, beside)._replace(every=tuple(dict.fromkeys(alone)))


def _boxes(text: str) -> Iterator[tuple[int, FoundAnswer]]:
    end = 0
    for match in deque(_BOX.finditer(text), MAX_BOXES):
        if match.start() < end:  # a nested box repeats the same value
            continue
        if _DENIED.search(text, max(match.start() - _BESIDE, 0), match.start()):
            continue
        box = _box(text, match.end())
        # A literal `\boxed{...}` is a quotation from the prompt.
        if box is None or (box.text and not box.text.strip(". ")):
            continue
        end = box.end
        yield match.start(), box


def _box(text: str, start: int) -> FoundAnswer | None:
    if text[start : start + 1] == "{":
        end = closing(text, start)
        if end is None:
            return FoundAnswer("unclosed", "boxed", start, whole=False)
        return FoundAnswer(_unnested(text[start + 1 : end].strip()), "boxed", end + 1)
    bare = _BARE_BOX.match(text, start)
    return FoundAnswer(bare.group(), "boxed", bare.end()) if bare else None


def _unnested(inner: str) -> str:
    """Remove any boxes and braces that enclose the whole content."""
    for _ in range(_MAX_DEPTH):
        nested = _BOX.match(inner)
        start = nested.end() if nested else 0
        if inner[start : start + 1] != "{" or closing(inner, start) != len(inner) - 1:
            return inner
        inner = inner[start + 1 : -1].strip()
    return inner


def closing(text: str, opening: int) -> int | None:
    """Return the position of the brace that closes the one at `opening`, or None if it is not within the limit."""
    depth, position, end = 0, opening, min(len(text), opening + MAX_CHARACTERS)
    while position < end:
        if text[position] == "\\":
            position += 1
        elif text[position] == "{":
            depth += 1
        elif text[position] == "}":
            depth -= 1
            if depth == 0:
                return position
        position += 1
    return None


def _before(text: str, start: int) -> list[str]:
    r"""Return the alternative before a box, such as 5 in `5 or \boxed{6}`."""
    match = _OR_BEFORE.search(text, max(start - _BESIDE, 0), start)
    return [match[1]] if match else []


MAX_LINE_LENGTH = 3000
MAX_TAGS = 50
"""Maximum number of markers of each kind that are considered, counted from the end of the text."""
_HASHES = re.compile(r"####[ \t]*(?![ \t]|[^\W\d_]{2})")
"""Matches `####` before an answer, but not in a Markdown heading such as `#### Step 2`."""
_MINERVA = re.compile(r"(final answer is:?)|\.?\s{0,9}I hope it is correct", re.IGNORECASE)
_TAG = re.compile(r"<(/?)(?:final_?)?answer>", re.IGNORECASE)


def tagged(text: str) -> FoundAnswer | None:
    """Return the content of the last `<answer>` tag, which may be unclosed: `</answer>` is a common stop string."""
    opening, found = None, list[tuple[int, FoundAnswer]]()
    for match in deque(_TAG.finditer(text), MAX_TAGS):
        if not match[1]:
            opening = match
        elif opening is not None:
            inner = _content(text[opening.end() : match.start()])
            found.append((opening.start(), FoundAnswer(inner, "answer_tag", match.end())))
            opening = None
    if opening is not None and text[opening.end() :].strip():
        return FoundAnswer(_content(text[opening.end() :]), "answer_is", len(text))
    return last_row(text, found)


def _content(inner: str) -> str:
    """Return the answer in a tag's content, which may consist of whole sentences."""
    later = phrased(inner)
    return later.text if later else undecorated(inner)


def boxed_or_tagged(text: str) -> FoundAnswer | None:
    """Return the last box or the last tag, whichever begins later. For a box inside a tag, that is the box."""
    box, tag = boxed(text), tagged(text)
    if tag is None or box is None:
        return box or tag
    return tag if any(not sign[1] for sign in _TAG.finditer(text, box.end, tag.end)) else box


def hashes(text: str) -> FoundAnswer | None:
    """Return the last non-empty answer in GSM8K's format, `#### 18`, combined with those adjacent to it."""
    found, end = deque[tuple[int, FoundAnswer]](), len(text)
    for match in reversed(deque(_HASHES.finditer(text), MAX_TAGS)):
        line = text[match.end() : min(end, match.end() + MAX_LINE_LENGTH)].partition("\n")[0].rstrip()
        if line:
            found.appendleft((match.start(), FoundAnswer(line.strip("* "), "hashes", match.end() + len(line))))
        end = match.start()
    return last_row(text, found)


def minerva(text: str) -> FoundAnswer | None:
    opening, last = None, None
    for match in scan(_MINERVA, text):
        if match[1]:
            opening = match.end()
        elif opening is not None:
            last = (opening, match)
    if last is None:
        return None
    opening, ending = last
    return FoundAnswer(text[opening : ending.start()].strip(), "final_answer", ending.end())


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


def phrased(text: str) -> FoundAnswer | None:
    """Find an answer such as `The answer is 18.` or `Answer: 18`. It extends to the end of the sentence.

    The last phrase that is followed by a value counts. If none is, the last phrase that is followed by any text counts.
    """
    matches = {
        match.end(): match
        for opening in (_OPENING, _HEADING, _JSON)
        for match in deque(scan(opening, text), MAX_CANDIDATES)
    }
    fallback, with_value = None, list[tuple[int, FoundAnswer]]()
    for _, match in sorted(matches.items()):
        found = _json_value(text, match) if match.re is _JSON else _after(text, match)
        if found is not None and _HAS_VALUE.search(found.text):
            with_value.append((match.start(), found))
        fallback = found or fallback
    return last_row(text, with_value) or fallback


def _after(text: str, opening: re.Match[str]) -> FoundAnswer | None:
    """Return the sentence after the phrase, or all values of a list on the lines after it."""
    blank = _BLANK.match(text, opening.end())
    position = blank.end() if blank else opening.end()
    if opening.re is _HEADING and len(text) - position > SECTION:
        return None
    bullet = _BULLET.match(text, position)
    value, end = sentence(text, bullet.end() if bullet else position)
    if "\n" in text[opening.end() : position] and (below := _below(text, end, bullet)):
        return together(FoundAnswer(value, "answer_is", below[-1][1]), [value, *(line for line, _ in below)])
    value = undecorated(_COPULA.sub("", value))
    if "|" in opening.group() or text[position : position + 1] == "|":  # a cell of a table
        value = undecorated(value.partition("|")[0])
    return FoundAnswer(value, "answer_is", end) if value else None


def _below(text: str, end: int, bullet: re.Match[str] | None) -> list[tuple[str, int]]:
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


def _json_value(text: str, opening: re.Match[str]) -> FoundAnswer | None:
    r"""Parse a JSON value leniently, because models often write `\frac` where JSON requires `\\frac`."""
    match = _JSON_VALUE.match(text, opening.end())
    if match is None:
        return None
    value = next(group for group in match.groups() if group is not None).replace("\\\\", "\\").strip()
    return FoundAnswer(value.replace('"', "") if match[3] else value, "answer_is", match.end()) if value else None


MAX_FORMULAS = 20
"""Maximum number of formulas that are considered, counted from the end of the text."""
_NUMBER = re.compile(
    r"(?<![\da-zA-Z_.,/])(?:-\s?)?\$?-?(?:\d{1,3}(?:,\d{3})+(?!,?\d)|\d+)(?:\.\d+)?(?:%|π|√\(?\d+\)?)?|(?<![\da-zA-Z_.])-?\.\d+"
    r"|(?<![\da-zA-Z_.,/])-?\d*√\(?\d+\)?"
)

_OR = r"\b(?:or|and|maybe|perhaps|possibly|alternatively)\b(?: (?:maybe|perhaps|possibly|even|also))?"
_ALTERNATIVE = re.compile(rf"(?: [^\W\d_]+){{0,2}},? ?\(?{_OR} ?(?:[a-z] ?= ?)?\$?")
_DENIED_NUMBER = re.compile(r"\b(?:not|rather than|instead of) ?\$?$", re.IGNORECASE)
_JOINED = re.compile(rf"[ ,(]*{_OR}[ (]*")


def dollars(text: str) -> FoundAnswer | None:
    """Return the last formula between dollar signs or LaTeX brackets, combined with the formulas adjacent to it."""
    last = deque(formulas(text), MAX_FORMULAS)
    return last_row(text, [(each.start, FoundAnswer(each.text, "last_formula", each.end)) for each in last], _JOINED)


def number(text: str) -> FoundAnswer | None:
    """Return the last number, together with the number before it if the two are alternatives, as in `18 or 19`."""
    last = deque(scan(_NUMBER, text), 3)
    if len(last) > 1 and _DENIED_NUMBER.search(text, max(last[-1].start() - 20, 0), last[-1].start()):
        last.pop()
    if not last:
        return None
    found = FoundAnswer(last[-1].group().replace(" ", ""), "last_number", last[-1].end())
    before = last[-2] if len(last) > 1 else None
    if before and _ALTERNATIVE.fullmatch(text, before.end(), last[-1].start()):
        return together(found, [before.group().replace(" ", ""), found.text])
    return found


_NEAR = 150
"""Maximum distance between an answer and an alternative, in characters."""
_OFFERED = re.compile(
    r"(?:[\s$.*)]|\\[)\]])*[(,;]?\s*(?:but\s+)?(?:(?:or|maybe|perhaps|possibly|alternatively|或者?)(?![\w=]),?"
    r"|(?:it|the answer|this)\s+(?:could|might|may)\s+(?:also\s+|even\s+)?be\b)\s*(?=\S)",
    re.IGNORECASE,
)
_MARKED = frozenset(("boxed", "answer_tag", "final_answer", "hashes"))
"""Methods that find an answer which the text marks as final. Another final answer after it contradicts it."""
_SOLUTION = re.compile(
    r"\bthe (?:final )?(?:solution|value|result|total) (?:is|equals)\b:? *(?=[-$\\\d(*]|[a-zA-Z] *=)", re.IGNORECASE
)
_SOLUTIONS = re.compile(r"\bsolutions\b", re.IGNORECASE)
"""Matches `The solutions are`, which may explain an answer that counts or adds them."""
_CORRECTED = re.compile(
    r"\bnot\b[^.!?\n]{1,60}?,? but(?: (?:rather|actually|it is))? +(?=[-$\\\d(*]|[A-Z]\b)", re.IGNORECASE
)
_COMMENT = re.compile(
    r"\b(?:in|as|that|this|is|are|was|well|correct|right|wrong|reasonable|consistent|valid|unique|clear|obvious|above|below"
    r"|boxed|simple|complete|final|indeed|exact|confirmed|verified|only|now|then|the|it|we|therefore)\b"
)
_DIGIT = re.compile(r"\d")
_SYMBOL = re.compile(r"\\(?:sqrt|pi)(?![a-z])|(?<![a-zA-Z\\])[a-z](?![a-zA-Z])")
_FORMULA = re.compile(r"\d|\\[a-zA-Z]|[=^+]|[a-z]\b")
_AND = re.compile(r"(?:[\s$*]|\\[)\]])*and\s+(?=\$?-?\d[\d.,/]*\$?\s*$)")


def with_alternatives(text: str, found: FoundAnswer) -> FoundAnswer:
    r"""Add the alternatives that `text` offers after the answer `found`: `\boxed{5} or 6`."""
    offered = _offered(text, found.end) or (_announced(text, found) if found.method in _MARKED else [])
    return together(found, [*(found.parts or (found.text,)), *offered]) if offered else found


def _offered(text: str, end: int) -> list[str]:
    match = _OFFERED.match(text, end, end + _NEAR) or _AND.match(text, end, end + _NEAR)
    if match is None:
        return []
    named = values(sentence(text, match.end())[0])
    return [bare_value(each) for each in named] if is_value(named[0]) else []


def _announced(text: str, found: FoundAnswer) -> list[str]:
    """Return other values of the answer's kind that the text after the answer announces as final."""
    rest = text[found.end :]
    if not rest.strip():
        return []
    announced = [
        each.text
        for each in (phrased(rest), hashes(rest))
        if each is not None and not _SOLUTIONS.search(rest, max(each.end - len(each.text) - _NEAR, 0), each.end)
    ]
    announced += [sentence(rest, match.end())[0] for match in (*_SOLUTION.finditer(rest), *_CORRECTED.finditer(rest))]
    named = [bare_value(value) for each in announced for value in values(each)]
    return [other for other in named if other and _differs(found.text, other)]


def _differs(answer: str, other: str) -> bool:
    """Return whether `other` is a value of the same kind as `answer`, in another spelling or of another value."""
    if plain_spelling(answer) == plain_spelling(other):
        return False
    number = quantity(answer, any_words=True)
    if number is not None:
        other = other if "=" in answer else other.rpartition("=")[2]
        read = quantity(other, any_words=True)
        if read is None:
            several = sum(bool(_DIGIT.search(part)) for part in parts(other.strip("()[]{}\\ "))) > 1
            return is_value(other) and (several or (_DIGIT.search(other) and _SYMBOL.search(other)) is not None)
        scale = 1 if read.percent == number.percent else 100
        return read.value not in (number.value, number.value * scale, number.value / scale)
    chosen, given = words(answer), words(other)
    if choice(answer) is not None or (chosen is not None and len(chosen) == 1):
        letter = choice(other) or choice(other.partition(" ")[0])
        return letter is not None and letter[0].casefold() != (choice(answer) or (chosen or "",))[0].casefold()
    if chosen is not None:
        alike = given is not None and len(given.split()) <= len(chosen.split())
        return alike and given != chosen and not _COMMENT.search(given or "")
    return given is None and is_value(other) and bool(_FORMULA.search(other))


MAX_SENTENCE = 2000
"""Maximum length of a sentence; the rest is ignored."""
_SENTENCE_END = re.compile(
    r"(?<!approx)(?<!i\.e)(?<!e\.g)\.(?=[*_\"'”)\]]{0,4}(?:\s|$))|[\n。！？।؟]|(?<!\d)．|</|[!?](?=[*_\"'”)\]]{0,4}\s+[A-Z])"
)
_JUNCTION = re.compile(
    rf"(?<![\w\\])(?:and/or|and|or|maybe|perhaps|possibly|alternatively|(?:could|might|may)(?: also)? be)(?![\w=])"
    rf"|;|,(?=\s*{MASK})|或者?|和|以及|または|또는"
    rf"|(?<=[\d{MASK}}}*]) ?\((?=-?[\d./{MASK}]{{1,99}}"
    r"(?: [^()]{0,40}\b(?:also|possible|alternative)\b[^()]{0,40})?\))"
    rf"|(?<=[\d{MASK}] )(?:y|o|e|et|ou|und|oder|и|или)(?= [-\d{MASK}])"
)
_REASON = re.compile(
    r"(?<![\w\\])(?:since|because|as|where|which|so|thus|given|rather than|instead of|due to|hence|when|if|not|for"
    r"|but(?! (?:it |also )?(?:maybe|perhaps|possibly|could|might|may)\b)|or (?:about|approximately|roughly|around))\b"
    r"|(?<=\s)[—–-](?=\s[^\W\d_]{3})|因为|而不是|不是"
)
"""Words that introduce a reason, a rounded value or an excluded value. The answer ends before them."""
_FILLER = re.compile(r"(?:[\s,;:]|\b(?:and|or|but|also|even|it|be|is|either|both|then|equivalently|just|simply)\b)*")
_VERB = re.compile(r"\b(?:is|are|was|were|has|have|had|be|we|it|he|she|they|then|so|can|will|makes?|gives?)\b")
_WORD = re.compile(r"(?<![\\a-zA-Z])[^\W\d_]{2,}")
_VALUE = re.compile(rf"[\d{MASK}\\]|^\W*[A-Z]\W*$|\([A-Z]\)|(?<![^\W\d_])[a-z] *=")
_INTRODUCTION = re.compile(r"^(?:(?:either|both|option|choice|letter) +(?=\(?[-$\\\dA-Z])|(?:so|thus|hence),? )", re.I)
_CLOSING = re.compile(
    r" is (?:(?:the|our|my) (?:\w+ )?answer|correct|right)[.!*]*$| (?:is|are) (?:also|another)\b.*$", re.I
)
_RELATION = re.compile(r"[<>≤≥∈∪]|\\(?:le|ge|leq|geq|in|cup)(?![a-zA-Z])")
_TEXT = re.compile(r"\\(?:text|mbox|textbf|mathrm) *\{[^{}]*\}")
CHANGED = re.compile(
    r"\b(?:(?:between|minus|negative|at (?:least|most)|(?:more|less|fewer|greater) than|up to|neither|either)"
    r"|(?:half|twice|thrice|double|triple|a third|a quarter)(?: of)?(?: the)?"
    r"|(?:not|maybe|perhaps|possibly|one of)(?: \w+){0,2})"
    r"[\s$*(]*$",
    re.IGNORECASE,
)
"""Words directly before a number that change or negate its value."""
_SCALE = re.compile(
    r"[*_ ]{0,4}\b(squared|cubed|hundred|thousand|million|billion|trillion|dozen|lakh|crore|percent|factorial)s?\b",
    re.I,
)
_LEAD = re.compile(
    r"[^\d\\=(){}\[\]^+*/]*\b(?:is|are|be|was|were|equals?|equal to|(?:it|that)['’]s|has|have|gets?|makes?|exactly|just"
    r"|only|simply|about|approximately|roughly|option|choice|number|costs?|earns?|needs?|total of)\b:?"
    r" *(?=[-+$€£.\d(\\])",
    re.IGNORECASE,
)
_REMARK = re.compile(r"\s\([^()=]*=[^()]*\)$")


def sentence(text: str, start: int) -> tuple[str, int]:
    """Return the text from `start` to the end of the line or sentence, and its end position. Formulas are not split."""
    window = text[start : start + MAX_SENTENCE]
    hidden = masked(window, list(formulas(window)))
    end = _SENTENCE_END.search(hidden)
    found = window[: end.start()] if end else window
    return undecorated(found), start + len(found.rstrip())


def undecorated(text: str) -> str:
    """Strip whitespace, Markdown emphasis and backticks from both ends of the text."""
    text = text.strip()
    while text and (bare := text.strip("*`").removeprefix("__").removesuffix("__").strip()) != text:
        text = bare
    return text


def values(answer: str) -> tuple[str, ...]:
    """Return the values in the text after `The answer is`, as written: at least one, which may be empty."""
    answer = _CLOSING.sub("", _INTRODUCTION.sub("", undecorated(answer[:MAX_SENTENCE])))
    spans = list(formulas(answer))
    hidden = _TEXT.sub(lambda match: MASK * len(match.group()), masked(answer, spans))
    stop = next((match.start() for match in _REASON.finditer(hidden) if _VALUE.search(hidden[: match.start()])), None)
    answer, hidden = answer[:stop], hidden[:stop]
    ends = list(_JUNCTION.finditer(hidden))
    if ends and _RELATION.search(answer):  # `x < 2 or x > 3` is one set of numbers
        return (_trimmed(_undelimited(answer)),)
    starts, stops = [0, *(end.end() for end in ends)], [*(end.start() for end in ends), len(answer)]
    named = list[str]()
    for begin, end in zip(starts, stops, strict=True):
        piece, shape = answer[begin:end], hidden[begin:end]
        if not named and not _VALUE.search(shape):
            break  # words joined by `and` are one answer
        if named:
            begin = lead.end() if (lead := _FILLER.match(shape)) else 0
            piece, shape = _CLOSING.sub("", piece[begin:]), _CLOSING.sub("", shape[begin:])
            if not piece.strip(" ()"):
                continue
            if not is_value(shape):
                break
        named.append(_trimmed(piece))
    return tuple(named) if named else (_trimmed(answer),)


def is_value(shape: str) -> bool:
    """Return whether the text is a value with at most two words around it."""
    shape = masked(shape, list(formulas(shape)))
    return bool(_VALUE.search(shape)) and not _VERB.search(shape) and len(_WORD.findall(shape)) <= 2


def bare_value(piece: str) -> str:
    """Return the formula, or the text after the verb. Return `piece` itself if its words change the value."""
    spans = list(formulas(piece))
    if spans:
        first = spans[0]
        if CHANGED.search(piece[: first.start]):
            return piece
        scale = _SCALE.match(piece, first.end)
        return f"{first.text} \\text{{ {scale[1]}}}" if scale else first.text
    lead = _LEAD.match(piece)
    return piece[lead.end() :] if lead and not CHANGED.search(lead.group().rstrip()) else piece


def _undelimited(answer: str) -> str:
    parts, position = list[str](), 0
    for formula in formulas(answer):
        parts += [answer[position : formula.start], formula.text]
        position = formula.end
    return "".join([*parts, answer[position:]])


def _trimmed(piece: str) -> str:
    """Strip trailing punctuation, a trailing remark in parentheses, and an unmatched parenthesis."""
    piece = _REMARK.sub("", undecorated(piece.strip().rstrip(" ,;:.")))
    more = sum(piece.count(sign) for sign in "([") - sum(piece.count(sign) for sign in ")]")
    if (more == 1 and piece.endswith("(")) or (more == -1 and piece.endswith(")")):
        piece = piece[:-1]
    return piece.rstrip(" ,;:").strip()
