"""Formats rules and their results as text."""

from __future__ import annotations

from rollyard.analysis.gate.records import Decision, RuleResult
from rollyard.analysis.gate.rules import GateRule
from rollyard.analysis.report.comparison_report import change


def requirement_of(rule: GateRule) -> str:
    """Return the rule as text: `solve_rate: at most 1.00 points lower`."""
    name = rule.metric if rule.dataset is None else f"{rule.dataset}: {rule.metric}"
    better, worse = ("lower", "higher") if rule.lower_is_better else ("higher", "lower")
    if rule.min_gain is not None:
        return f"{name}: more than {_amount(rule.metric, rule.min_gain)} {better}"
    return f"{name}: at most {_amount(rule.metric, rule.max_drop or 0.0)} {worse}"


def reason_of(result: RuleResult, alpha: float) -> str:
    """Return a sentence on why the rule's decision was made."""
    if result.low is None or result.high is None:
        return "No interval can be estimated from these tasks."
    level = f"{100 * (1 - alpha):.6g}% interval"
    reach = f"{_signed(result.metric, result.low)} to {_signed(result.metric, result.high)}"
    limit = change(result.metric, result.least_gain)
    gain = f"{level} of the gain, {reach}"
    if result.decision == Decision.GO:
        return f"The whole {gain}, is above {limit}."
    if result.decision == Decision.NO_GO:
        return f"The whole {gain}, is below {limit}."
    needed = (
        ""
        if result.tasks_needed is None
        else f" An equally good candidate would need about {result.tasks_needed:,} tasks for a GO ({result.tasks:,} "
        "here)."
    )
    return f"The {gain}, contains {limit}: too little data to tell.{needed}"


def _amount(metric: str, amount: float) -> str:
    return change(metric, amount).lstrip("+")


def _signed(metric: str, amount: float) -> str:
    return change(metric, amount).removesuffix(" points")
