"""Draws the figures of a series of steps, each with its interval."""

from __future__ import annotations

from collections.abc import Mapping

from rollyard.analysis.charts.axis import Axis
from rollyard.analysis.charts.chart import Chart, chart, table
from rollyard.analysis.charts.labels import share, short
from rollyard.analysis.charts.line_plot import Line, Point, lines
from rollyard.analysis.metrics.estimate import Estimate
from rollyard.analysis.metrics.training.row_numbers import COMPONENTS, LOG_PROB, RARE_TOKENS, TOKEN_ENTROPY
from rollyard.analysis.metrics.training.step_summary import REWARD, SOLVE_RATE, ZERO_VARIANCE

_KNOWN = {
    SOLVE_RATE: ("Solve rate", Axis("solved", percent=True), "Share of the measured rollouts that solved their task."),
    REWARD: ("Mean reward", Axis("reward"), "Mean over the measured rollouts."),
    "output_tokens": ("Output tokens", Axis("tokens"), "Mean number of tokens that the model generated."),
    "turns": ("Turns", Axis("turns"), "Mean number of model calls."),
    "tool_calls": ("Tool calls", Axis("calls"), "Mean number of tool calls."),
    LOG_PROB: (
        "Entropy, estimated",
        Axis("nats"),
        "Mean over rollouts of the mean negative log-probability of their generated tokens, which is the entropy of a "
        "policy that is sampled at temperature 1.",
    ),
    RARE_TOKENS: (
        "Tokens below 1%",
        Axis("share of tokens", percent=True, zoomed=True),
        "Mean over rollouts of the share of generated tokens whose probability was below 1%.",
    ),
    TOKEN_ENTROPY: (
        "Entropy, at least",
        Axis("nats"),
        "Mean over rollouts of the entropy per token, of which the recorded alternatives give a lower bound.",
    ),
    ZERO_VARIANCE: (
        "Groups without variance",
        Axis("share of tasks", percent=True),
        "Share of the tasks with several rollouts whose rewards are all equal: they have no gradient in GRPO.",
    ),
}


def step_chart(name: str, figures: Mapping[int, Estimate], links: Mapping[int, str]) -> Chart:
    """Draw a figure by step. `links`: the page of each step."""
    title, axis, meaning = _known(name)
    figures = {step: drawn(name, one) for step, one in figures.items()}
    steps = sorted(figures)
    write = share if axis.percent else short
    points = [
        Point(step, one.mean, one.low, one.high, f"step {step:,}: {_text(one, axis)}", links.get(step))
        for step, one in sorted(figures.items())
    ]
    first, last = figures[steps[0]], figures[steps[-1]]
    range_text = f"{write(first.mean)} at step {steps[0]:,}, {write(last.mean)} at step {steps[-1]:,}"
    caption = f"{range_text}. {meaning}"
    svg = lines(
        f"{title} by step, with 95% intervals. {caption}", [Line("", points)], Axis("step", integers=True), axis
    )
    rows = [
        ([f"{step:,}", write(one.mean), *_bounds(one, axis)], links.get(step)) for step, one in sorted(figures.items())
    ]
    return chart(name, title, svg, caption, table(["step", axis.title, "from", "to"], rows))


def figure_title(name: str) -> str:
    """Return the title of a figure."""
    return _known(name)[0]


def figure_text(name: str, one: Estimate) -> str:
    """Format a figure with its interval: `41.7% (12.3–71.0%)`."""
    axis, shown = _known(name)[1], drawn(name, one)
    low, high = _bounds(shown, axis)
    text = (share if axis.percent else short)(shown.mean)
    return f"{text} ({low.removesuffix('%')}–{high})" if low else text


def drawn(name: str, one: Estimate) -> Estimate:
    """Return a figure as it is drawn: log-probabilities as the entropy that they estimate."""
    if name != LOG_PROB:
        return one
    low, high = (None if bound is None else -bound for bound in (one.high, one.low))
    return Estimate(mean=-one.mean, stderr=one.stderr, low=low, high=high)


def group_of(name: str) -> str:
    """Return the title of the group of charts that a figure belongs to."""
    if name in (SOLVE_RATE, REWARD) or name.startswith(f"{COMPONENTS}."):
        return "Results"
    return "Behaviour" if name in _KNOWN else "Other numbers of the verdict"


def _known(name: str) -> tuple[str, Axis, str]:
    if name.startswith(f"{COMPONENTS}."):
        return f"Reward: {name.removeprefix(f'{COMPONENTS}.')}", Axis("reward"), "Mean of this part of the reward."
    return _KNOWN.get(name) or (name, Axis("value"), "Mean over the rollouts that have this field.")


def _text(one: Estimate, axis: Axis) -> str:
    write = share if axis.percent else short
    low, high = _bounds(one, axis)
    return f"{write(one.mean)}, 95% interval {low} to {high}" if low else f"{write(one.mean)}, no interval"


def _bounds(one: Estimate, axis: Axis) -> tuple[str, str]:
    write = share if axis.percent else short
    return ("", "") if one.low is None or one.high is None else (write(one.low), write(one.high))
