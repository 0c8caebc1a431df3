"""Chooses which of Rollyard's agents plays for one that only NeMo Gym has.

An agent is replaced only if ours makes the same calls to the environment. Agents with a program, a protocol or prompts
of their own are refused; `python:` or `venv:` in their entry runs NeMo Gym's program instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rollyard.records.types import Json


@dataclass(frozen=True)
class Replacement:
    """The agent that plays instead."""

    implementation: str
    why: str
    """What both agents do, as a clause."""
    settings: Json = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    """NeMo Gym's name of a setting -> ours."""


_SINGLE_CALL = Replacement(
    "simple_agent", "one model call; tool calls are part of the answer and are not run", {"execute_tools": False}
)
_TOOLS = Replacement(
    "simple_agent", "tool calls until the model answers", renamed={"tool_call_timeout": "tool_timeout_s"}
)
_REPLACEMENTS = {
    "gymnasium_agent": Replacement(
        "turn_agent",
        "/reset, then one /step per model message; the reward is the sum of the steps",
        {"sum_steps": True},
    ),
    "non_executing_simple_agent": _SINGLE_CALL,
    "tool_simulation_agent": _SINGLE_CALL,
    "finance_agent": _TOOLS,
    "browsecomp_agent": _TOOLS,
}
_KEPT = frozenset({"entrypoint", "host", "port", "resources_server", "model_server", "datasets", "max_steps"})
_KEPT_ALWAYS = frozenset({"model_timeout_s", "tool_timeout_s", "start_timeout_s", "replicas", "domain", "verified"})


def replacement(implementation: str) -> Replacement | None:
    """Return the agent that plays instead of NeMo Gym's `implementation`; None if none does the same."""
    return _REPLACEMENTS.get(implementation)


def replaced_settings(raw: Json, chosen: Replacement) -> tuple[Json, list[str]]:
    """Return the settings of the agent that plays instead, and the names of those that have no counterpart."""
    renamed = {chosen.renamed.get(key, key): value for key, value in raw.items()}
    kept = {key: value for key, value in renamed.items() if key in _KEPT | _KEPT_ALWAYS}
    dropped = [key for key in raw if chosen.renamed.get(key, key) not in kept]
    return {**kept, **chosen.settings}, dropped


def refusal(name: str, implementation: str) -> str:
    """Return the message for an agent that nothing of ours replaces."""
    return (
        f"{name}: Rollyard has no agent {implementation!r}, and none that makes the same calls. To run NeMo Gym's own, "
        f"set python: or venv: in its entry (++{name}.responses_api_agents.{implementation}.venv=/path/to/venv); "
        f"or leave the agent out with '~{name}'"
    )
