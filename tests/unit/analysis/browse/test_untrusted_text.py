"""Nothing that a model wrote controls the terminal, whichever page shows it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.segment import Segment
from textual.color import Color

from rollyard.analysis.browse.palette import DARK
from rollyard.analysis.browse.parts.plain_filter import PlainFilter
from rollyard.analysis.browse.text.structured import structured
from rollyard.analysis.browse.text.typesetter import Typesetter
from rollyard.analysis.browse.text.visible import value_text, visible, visible_line
from rollyard.records.types import Json
from tests.support.rollout_files import row, write, write_failures
from tests.support.terminal_pages import browsing

ATTACKS = {
    "clipboard (OSC 52)": "\x1b]52;c;cm0gLXJmIC8=\x07",
    "title (OSC 0)": "\x1b]0;pwned\x1b\\",
    "hyperlink (OSC 8)": "\x1b]8;;http://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "clear screen": "\x1b[2J\x1b[H",
    "colour": "\x1b[31mred",
    "8-bit CSI": "\x9b2J",
    "8-bit OSC": "\x9d52;c;cm0=\x9c",
    "carriage return": "good\rbad",
    "backspace": "safe\x08\x08\x08\x08evil",
    "bell": "\x07",
    "bidi override": "\u202egnp.exe",
    "bidi isolate": "\u2066abc\u2069",
    "tags": "\U000e0041\U000e0042",
    "surrogate": "\ud83d",
    "zero width": "in\u200bvisible",
}
FORBIDDEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
    "|[\U000e0000-\U000e0fff]"
)


@pytest.mark.parametrize("text", ATTACKS.values(), ids=ATTACKS)
def test_text_has_no_control_characters_however_it_is_set(text: str) -> None:
    setter = Typesetter(40, DARK)
    markdown = f"# {text}\n\n* `{text}`\n\n[{text}](http://{text})\n\n```\n{text}\n```\n\n<b>{text}</b>\n\n$x{text}$"
    strips = [
        *setter.verbatim(text),
        *setter.prose(markdown),
        *setter.wrapped(text),
        *structured(f'{{"a": {text!r}}}', setter),
        *structured(text, setter),
        *setter.pairs([(text, text, None)]),
    ]
    shown = "".join(strip.text for strip in strips) + visible(text) + visible_line(text) + value_text([text])
    assert not FORBIDDEN.search(shown.replace("\n", ""))


@pytest.mark.parametrize("text", ATTACKS.values(), ids=ATTACKS)
def test_the_filter_in_front_of_the_driver_lets_no_text_pass_unseen(text: str) -> None:
    (segment,) = PlainFilter().apply([Segment(text)], Color.parse("black"))
    assert not FORBIDDEN.search(segment.text)


def hostile(text: str) -> Json:
    """A row with the text in every place that a page shows."""
    output = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": f"**{text}**"}]},
        {"type": "function_call", "name": f"f{text}", "arguments": f'{{"x{text}": "{text}"}}', "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": text},
    ]
    made = row(0, 0, 0.5, expected_answer=text, extracted_answer=text, reason=text, finish_reason=text)
    made["responses_create_params"] = {"input": [{"role": "user", "content": text}], "instructions": text}
    made["response"] = {"output": output}
    return {**made, "agent_ref": {"name": text}, f"key{text}": text}


async def test_no_page_contains_a_control_character(tmp_path: Path) -> None:
    text = "go\rb\x9b2J\u202egnp\x1b]52;c;c=\x07"  # short: pages cut long texts
    path = write(tmp_path / "x.jsonl", [hostile(text)])
    write_failures(path, [(0, 0, text)])
    async with browsing(path, size=(160, 60)) as reader:
        await reader.sees("1 rollout", visible_line(text)[:6])
        pages = [reader.screen]
        await reader.press("enter")
        await reader.sees("Verdict", "Tool call")
        pages.append(reader.screen)
        await reader.press("m")
        pages.append(reader.screen)
        await reader.press("escape", "f")
        await reader.sees("Show rollouts")
        pages.append(reader.screen)
        await reader.press("escape", "c")
        await reader.sees("Columns")
        pages.append(reader.screen)
    assert not FORBIDDEN.search("".join(pages).replace("\n", ""))


def test_long_paragraphs_and_long_code_are_shown_as_they_are_because_parsing_them_would_take_long() -> None:
    setter = Typesetter(100_000, DARK)
    for text in ("*a* " * 2000, "[" * 9000):
        assert "".join(strip.text for strip in setter.prose(text)).strip() == text.strip()
    assert "".join(strip.text for strip in setter.prose("*a* b")).strip() == "a b"
    colours = [
        {segment.style.color for strip in setter.prose(f"```java\n{code}\n```") for segment in strip if segment.style}
        for code in ("return 1; " * 10, "return 1; " * 1000)
    ]
    assert len(colours[0]) > len(colours[1])
