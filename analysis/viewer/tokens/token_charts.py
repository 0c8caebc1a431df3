"""Draws the tokens of a run: the distribution of log-probabilities, and means by turn, position and policy version."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rollyard.analysis.charts.axis import Axis
from rollyard.analysis.charts.chart import Chart, chart, table
from rollyard.analysis.charts.histogram import Bar, histogram
from rollyard.analysis.charts.labels import pluralize, share, short
from rollyard.analysis.charts.line_plot import Line, Point, lines
from rollyard.analysis.metrics.estimate import Estimate
from rollyard.analysis.metrics.tokens.place_figures import PlaceFigures, figures_at
from rollyard.analysis.metrics.tokens.token_tally import BIN_NATS, BINS, LAST_TURN, POSITIONS, Place, TokenTally

_NATS = Axis("nats")
_TOKENS = Axis("tokens (logarithmic)", integers=True, log10=True)
_HEAD = ["tokens", "mean log-probability", "from", "to", "below 1%", "entropy at least"]


def token_charts(tally: TokenTally) -> list[Chart]:
    """Return the charts for which there is data."""
    if not tally.tokens:
        return []
    turns, positions = figures_at(tally, Place.TURN), figures_at(tally, Place.POSITION)
    tenths, versions = figures_at(tally, Place.TENTH), figures_at(tally, Place.VERSION)
    charts = [log_prob_histogram(tally)]
    if len(turns) > 1:
        charts.append(_by_place("by_turn", "By turn", "turn", turns, _turn))
    if len(positions) > 1:
        meaning = "Only long answers have late positions."
        charts.append(_by_place("by_position", "By position in the answer", "token", positions, _position, meaning))
        charts.append(_by_place("by_tenth", "By tenth of the answer", "tenth", tenths, _tenth))
    if len(versions) > 1:
        names = tally.versions

        def version(number: int) -> str:
            return names[number]

        meaning = "Versions in the order of their first token in the file."
        charts.append(_by_place("by_version", "By policy version", "version", versions, version, meaning))
    return charts


def log_prob_histogram(tally: TokenTally) -> Chart:
    """Draw the number of tokens by log-probability, on a logarithmic scale."""
    last = max(index for index in range(BINS) if tally.histogram[index])
    bars, rows = [], []
    for index in range(last, -1, -1):
        count = int(tally.histogram[index])
        high, low = -index * BIN_NATS, -(index + 1) * BIN_NATS
        name = f"below {short(high)}" if index == BINS - 1 else f"{short(low)} to {short(high)}"
        tip = f"log-probability {name} ({_chance(index)}): {pluralize(count, 'token')}"
        # A single token would have a bar without height, and no token one below the axis.
        bars.append(Bar(low, high, max(math.log10(count), 0.06) if count else 0.0, tip))
        rows.append(([name, _chance(index), f"{count:,}", share(count / tally.tokens)], None))
    sure = int(tally.histogram[0])
    caption = (
        f"{share(sure / tally.tokens)} of {pluralize(tally.tokens, 'token')} have a log-probability above "
        f"{short(-BIN_NATS)} ({share(math.exp(-BIN_NATS), 0)})."
    )
    svg = histogram(f"Tokens by log-probability. {caption}", bars, Axis("log-probability"), _TOKENS)
    numbers = table(["log-probability", "probability", "tokens", "share"], rows[::-1])
    return chart("log_prob_histogram", "Log-probabilities", svg, caption, numbers)


def _by_place(
    name: str, title: str, axis: str, found: Sequence[PlaceFigures], label: Callable[[int], str], more: str = ""
) -> Chart:
    """Draw the mean log-probability, and a lower bound of the entropy if there is one, by place."""
    drawn = [Line("log-probability", [_point(one.number, label(one.number), one.log_prob) for one in found])]
    entropies = [(one.number, one.entropy) for one in found if one.entropy is not None]
    # Of other tokens than those of the first curve, it could not be compared with it.
    if all(one.bounded == one.tokens for one in found):
        negative = [(number, _negated(estimate)) for number, estimate in entropies]
        drawn.append(Line("−entropy", [_point(number, label(number), one) for number, one in negative]))
    first, last = found[0], found[-1]
    caption = (
        f"Mean log-probability {short(first.log_prob.mean)} in {axis} {label(first.number)}, "
        f"{short(last.log_prob.mean)} in {axis} {label(last.number)}. {more}"
    ).strip()
    svg = lines(f"{title}, with 95% intervals. {caption}", drawn, Axis(axis, integers=True, names=label), _NATS)
    rows = [
        (
            [
                *(label(one.number), f"{one.tokens:,}", short(one.log_prob.mean), *_bounds(one.log_prob)),
                *(share(one.rare.mean), "–" if one.entropy is None else short(one.entropy.mean)),
            ],
            None,
        )
        for one in found
    ]
    return chart(name, title, svg, caption, table([axis, *_HEAD], rows))


def _point(number: int, name: str, one: Estimate) -> Point:
    reach = "" if one.low is None or one.high is None else f", 95% interval {short(one.low)} to {short(one.high)}"
    return Point(number, one.mean, one.low, one.high, f"{name}: {short(one.mean)}{reach}")


def _negated(one: Estimate) -> Estimate:
    low, high = one.low, one.high
    return Estimate(
        mean=-one.mean, stderr=one.stderr, low=None if high is None else -high, high=None if low is None else -low
    )


def _bounds(one: Estimate) -> list[str]:
    return ["–" if value is None else short(value) for value in (one.low, one.high)]


def _chance(index: int) -> str:
    """Return the probabilities of a bin."""
    high = math.exp(-index * BIN_NATS)
    return f"below {high:.1g}" if index == BINS - 1 else f"{_percent(high * math.exp(-BIN_NATS))} to {_percent(high)}"


def _percent(value: float) -> str:
    return share(value, 0) if value >= 0.1 else f"{100 * value:.2g}%"


def _turn(number: int) -> str:
    return f"{number} or later" if number == LAST_TURN else str(number)


def _position(number: int) -> str:
    first = int(POSITIONS[min(number, len(POSITIONS) - 1)])
    if number >= len(POSITIONS) - 1:
        return f"{first + 1:,} or later"
    last = int(POSITIONS[number + 1])
    return f"{last:,}" if last == first + 1 else f"{first + 1:,}–{last:,}"


def _tenth(number: int) -> str:
    return str(number + 1)
