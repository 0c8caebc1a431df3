"""Rows whose texts test how comfortably a rollout can be read: Markdown, formulas, code, boards, tokens with texts."""

from __future__ import annotations

import random
import re

from rollyard.records.types import Json

ANSWER = """## The plan

The cost is $5 or $6, and *not* **10**. With $x^2 + y^2 = 1$ we get

$$
\\frac{1}{2} \\int_0^1 x \\, dx = \\boxed{\\tfrac14}
$$

```python
def move(board):  # a comment
    return "Up"
```

| move | reward |
|---|---:|
| 1 | 2 |
| 3 | 4 |

#####
#.P_#
#####

1. push the *box*
2. see [the rules](https://example.org/rules) <b>now</b>
"""
FORMULA_BOMBS = (
    "$$\\def\\a{\\a\\a}\\a$$",
    "$$\\href{javascript:alert(1)}{x}$$",
    "$$" + "{" * 900 + "x" + "}" * 900 + "$$",
    "$\\label{main}\\ref{main} y$",
    "$\\rule{9999em}{9999em} z$",
)
_PIECES = (
    *("*", "**", "***", "_", "__", "`", "``", "```", "~~~", "~~", "#", "## ", "- ", "1. ", "> ", "| ", "|---|", "---"),
    *("$", "$$", "\\(", "\\)", "\\[", "\\]", "\\", "<b>", "</b>", "<script>", "&amp;", "&lt;", "<!-- x -->", "![a](b)"),
    *("[a](javascript:alert(1))", "https://x.org/_a_", "\n", "\n", "\r\n", "\t", "  ", "\u00a0", "\u3000", "🎉"),
    *("שלום", "word", "a", "7", "#####\n#.P_#", "\n```python\n", "\n| a | b |\n|---|--:|\n| 1 | 22 |\n", ".", '"'),
)
BOARDS = "SFFF\nFHFH\n\nThe board:\n##_##\n#_XO#\n##P#\nNext."
TURNS = 5
SYSTEM = "You play Sokoban.\n" + "\n".join(f"Rule number {rule} is long." for rule in range(40))


def reading_rows() -> list[Json]:
    """One rollout with everything, one with attacks on the rendering, and one with boards in its prompt."""
    prompts: list[list[Json]] = [[{"role": "user", "content": text}] for text in ("go", BOARDS)]
    return [_row(0, _prompt(), _turns()), _row(1, prompts[0], [_answer(_attacks())]), _row(2, prompts[1], [])]


def searched_rows() -> list[Json]:
    """One rollout with two matches far apart, also among its tokens, and one with a match in each of 300 calls."""
    text = f"needle {'word ' * 4000}needle"
    long = {**_answer(text), **_tokens(text)}
    call = {"type": "function_call", "name": "step", "arguments": '{"choice": "needle"}'}
    calls = [{**call, "call_id": f"c{number}"} for number in range(300)]
    prompt: list[Json] = [{"role": "user", "content": "go"}]
    return [_row(0, prompt, [long]), _row(1, prompt, calls)]


def drawn_messages() -> list[str]:
    """500 short messages of Markdown's marks, HTML, formulas and all kinds of spaces, the same in every run."""
    draws = random.Random(27)
    return [f"{number}: {''.join(draws.choices(_PIECES, k=draws.randint(0, 40)))}" for number in range(500)]


def drawn_rows() -> list[Json]:
    """The drawn messages in rollouts of 100, every second one a prompt."""
    messages = drawn_messages()
    return [
        _row(
            start,
            [{"role": "user", "content": messages[start]}],
            [
                {"role": "user", "content": text} if number % 2 else _answer(text)
                for number, text in enumerate(messages[start + 1 : start + 100])
            ],
        )
        for start in range(0, len(messages), 100)
    ]


def _row(task: int, prompt: list[Json], output: list[Json]) -> Json:
    return {
        "_ng_task_index": task,
        "_ng_rollout_index": 0,
        "reward": 1.0,
        "responses_create_params": {"input": prompt},
        "response": {"output": output},
    }


def _prompt() -> list[Json]:
    shots = [
        message
        for shot in range(3)
        for message in (
            {"role": "user", "content": f"Example question {shot}"},
            {"role": "assistant", "content": f"Example answer {shot}"},
        )
    ]
    question = "\n".join([*(f"Line {line} of the instructions." for line in range(90)), "Now solve **this** one."])
    return [{"role": "system", "content": SYSTEM}, *shots, {"role": "user", "content": question}]


def _turns() -> list[Json]:
    output: list[Json] = []
    for turn in range(1, TURNS):
        thought = f"Thought of turn {turn}: the needle is *here* 🎉."
        call = {"type": "function_call", "call_id": f"c{turn}", "name": "step", "arguments": '{"choice": "Up"}'}
        raw = f"<think>{thought}</think>\n<tool_call>\nstep {call['arguments']}\n</tool_call><|im_end|>"
        output += [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": thought}]},
            {**call, **_tokens(raw)},
            {"type": "function_call_output", "call_id": f"c{turn}", "output": '{"reward": -0.1, "board": "#P#"}'},
        ]
    return [*output, {**_answer(ANSWER), **_tokens(f"{ANSWER}<|im_end|>")}]


def _answer(text: str) -> Json:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def _tokens(raw: str) -> Json:
    """Tokens of a turn: words, with the emoji as three tokens that the engine could not decode."""
    texts = []
    for word in re.findall(r"\s?[\w.#]+|\s|.", raw, re.DOTALL):
        texts += ["\ufffd"] * 3 if word == "🎉" else [word]
    log_probs = [(-0.01, -0.3, -1.5, -3.0, -6.0)[place % 5] for place in range(len(texts))]
    ids = [100 + place for place in range(len(texts))]
    trace = {"segment": 0, "way": "generate", "texts": texts}
    return {
        "prompt_token_ids": [1, 2, 3],
        "generation_token_ids": ids,
        "generation_log_probs": log_probs,
        "token_trace": trace,
    }


def _attacks() -> str:
    return "\n\n".join(
        [
            "[go](javascript:alert(1)) ![x](http://192.0.2.1/x.png) <img src=x onerror=alert(1)>",
            "<javascript:alert(1)> [ref]\n\n[ref]: data:text/html,<script>alert(1)</script>",
            "```html\n<script>alert(1)</script>\n```",
            *FORMULA_BOMBS,
            "> " * 400 + "deep",
            "- " * 400 + "deep",
            "_a" * 20_000,
        ]
    )
