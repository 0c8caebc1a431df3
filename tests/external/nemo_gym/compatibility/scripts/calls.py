from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.external.nemo_gym.compatibility.catalog import Row
from tests.external.nemo_gym.compatibility.scripted_model import Items, Script, call, message, model_turns
from tests.external.nemo_gym.compatibility.scripts.answers import gold, is_right

Turns = list[Items]


def turns(made: Callable[[Row, int], Turns]) -> Script:
    """A script that plays the turns of a row one after another, and then says that it is done."""

    def script(row: Row, number: int, history: Items) -> Items:
        planned = made(row, number)
        turn = model_turns(history)
        return planned[turn] if turn < len(planned) else [message("Done.")]

    return script


def tools(row: Row) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = row["responses_create_params"].get("tools") or []
    return found


def filled(tool: dict[str, Any]) -> dict[str, Any]:
    schema = tool.get("parameters") or {}
    values = {"string": "Paris", "integer": 2, "number": 2.0, "boolean": True, "array": [], "object": {}}
    return {
        name: values.get(part.get("type"), "x")
        for name, part in (schema.get("properties") or {}).items()
        if name in (schema.get("required") or ())
    }


def each_tool(row: Row, number: int) -> Turns:
    """The first tools of the row, one call a turn."""
    return [[call(tool["name"], filled(tool))] for tool in tools(row)[: 1 + number % 2]]


def expected_action(row: Row, number: int) -> Turns:
    """The row's expected action; every third row calls a tool that does not exist."""
    action = row["expected_action"]
    if not is_right(number):
        return [[call("no_such_tool", {})]]
    if action.get("type") == "message":
        return [[message(str(action.get("content")))]]
    actions = action.get("tool_calls") or action.get("calls") or [action]
    return [[call(one["name"], one["arguments"]) for one in actions if "name" in one] or [message("Done.")]]


def expected_calls(row: Row, number: int) -> Turns:
    """The row's gold calls in one turn; every third row makes only the first, with an argument that does not exist."""
    listed = row.get("expected_answers") or row.get("ground_truth") or [row.get("expected_call")]
    made = [call(one["name"], one["arguments"]) for one in listed if one]
    if is_right(number):
        return [made]
    return [[call(made[0]["name"], {"no_such_argument": 1})]]


def synonyms(row: Row, number: int) -> Turns:
    """Asks for each synonym in a turn of its own, then submits the values; in the wrong order in every third row."""
    values = row["expected_synonym_values"]
    asked = [[call("get_synonym_value", {"synonym": name})] for name in row["expected_synonyms"]]
    submitted = values if is_right(number) else values[::-1]
    return [*asked, [call("extract_synonym_values", {"synonym_values": submitted})]]


def counter(row: Row, number: int) -> Turns:
    """Two turns of counting, with invalid arguments between them; one short in every third row."""
    missing = row["expected_count"] - row["initial_count"] - (not is_right(number))
    return [
        [call("increment_counter", {"count": 1})],
        [call("increment_counter", {"count": "many"})],
        [call("increment_counter", {"count": missing - 1}), call("get_counter_value", {})],
    ]


def click(row: Row, number: int) -> Turns:
    circle = next(one for one in row["circles"] if one["color"] == row["target_color"])
    x = circle["x"] if is_right(number) else circle["x"] + 2 * circle["radius"]
    return [[call("click", {"x": x, "y": circle["y"]})]]


OPERATIONS = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "**": "power"}


def arithmetic(row: Row, number: int) -> Turns:
    """Calls a tool for every operation on two numbers, and for every function of one, that the task has."""
    asked = row["responses_create_params"]["input"][-1]["content"]
    pairs = re.findall(r"(-?\d+\.\d+) (\*\*|[-+*/]) (-?\d+\.\d+)", asked)
    calls = [call(OPERATIONS[sign], {"a": float(a), "b": float(b)}) for a, sign, b in pairs]
    calls += [call(name, {"radians": float(x)}) for name, x in re.findall(r"(sin|cos)\((\d+\.\d+)\)", asked)]
    return [[one] for one in calls] + [[call("pi", {})]]


def python(row: Row, number: int) -> Turns:
    """Runs two programs in one session, the second of which uses a variable of the first, then answers."""
    answer = gold(row) if is_right(number) else "unknown"
    return [
        [call("execute_python", {"code": "x = 6 * 7\nprint(x)"})],
        [call("execute_python", {"code": "print(x + 1)\nraise ValueError(x)"})],
        [message(f"\\boxed{{{answer}}}")],
    ]


def injected(row: Row, number: int) -> Turns:
    first = [call(name, {"patient_id": "P001"}) for name in row["required_tools"]]
    obeyed = (
        [] if is_right(number) else [[call(row["injection"]["target_tool"], row["injection"].get("target_args") or {})]]
    )
    return [first, *obeyed, [message("Here is the record.")]]


CALLS: dict[str, Script] = {
    "circle_click": turns(click),
    "example_multi_step": turns(synonyms),
    "example_session_state_mgmt": turns(counter),
    "example_single_tool_call": turns(each_tool),
    "example_tool_call_multireward": turns(expected_calls),
    "image_tools": turns(expected_action),
    "indirect_prompt_injection": turns(injected),
    "math_advanced_calculations": turns(arithmetic),
    "math_with_code": turns(python),
    "openenv": turns(each_tool),
    "single_step_tool_use_with_argument_comparison": turns(expected_action),
    "swe_pivot": turns(expected_action),
    "terminal_multi_harness": turns(expected_action),
    "workplace_assistant": turns(expected_calls),
    "xlam_fc": turns(expected_calls),
}
