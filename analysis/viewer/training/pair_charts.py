"""Draws the log-probabilities of engine and trainer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from rollyard.analysis.charts.axis import Axis
from rollyard.analysis.charts.chart import Chart, chart, table
from rollyard.analysis.charts.histogram import Bar, histogram
from rollyard.analysis.charts.labels import pluralize, share, short, signed
from rollyard.analysis.charts.scatter import Pair, scatter
from rollyard.analysis.viewer.training.pair_file import PairFile, TokenPair

_ENGINE, _TRAINER = Axis("engine's log-probability"), Axis("trainer's log-probability")
_TOKENS = Axis("tokens (logarithmic)", integers=True, log10=True)


def pair_charts(found: PairFile) -> list[Chart]:
    """Return the charts for which there is data."""
    charts = []
    if found.sample:
        pairs = [*((pair, False) for pair in found.sample), *((pair, True) for pair in found.largest)]
        charts = [_against(found, pairs), _differences(pairs)]
    if sum(found.counts):
        charts.append(_ratios(found))
    return charts


def _against(found: PairFile, pairs: Sequence[tuple[TokenPair, bool]]) -> Chart:
    points = [Pair(pair.engine, pair.trainer, _tip(pair), marked) for pair, marked in pairs]
    caption = (
        f"{pluralize(len(found.sample), 'token')} chosen at random, and in the second colour the "
        f"{len(found.largest)} with the largest differences. On the line, both agree."
    )
    if found.not_finite:
        caption += f" {pluralize(found.not_finite, 'token')} without a finite log-probability cannot be drawn."
    svg = scatter(f"Engine against trainer. {caption}", points, _ENGINE, _TRAINER, diagonal=True)
    return chart("engine_trainer", "Engine against trainer", svg, caption)


def _differences(pairs: Sequence[tuple[TokenPair, bool]]) -> Chart:
    points = [Pair(pair.engine, pair.trainer - pair.engine, _tip(pair), marked) for pair, marked in pairs]
    caption = "Trainer minus engine: do unlikely tokens differ more?"
    svg = scatter(f"Difference. {caption}", points, _ENGINE, Axis("difference in nats"))
    return chart("difference", "Difference", svg, caption)


def _ratios(found: PairFile) -> Chart:
    """Draw the histogram of all tokens of the update. Its bins are not equally wide, so that each has a number."""
    edges, total = found.edges, sum(found.counts)
    names = [
        f"below {signed(edges[0])}",
        *(f"{signed(low)} to {signed(high)}" for low, high in pairwise(edges)),
        f"above {signed(edges[-1])}",
    ]
    bars, rows = [], []
    for index, (name, count) in enumerate(zip(names, found.counts, strict=True)):
        height = max(math.log10(count), 0.06) if count else 0.0
        bars.append(Bar(index, index + 1, height, f"log-ratio {name}: {pluralize(count, 'token')}"))
        rows.append(([name, f"{count:,}", share(count / total, 2)], None))

    def edge(number: int) -> str:
        return signed(edges[number - 1]) if 1 <= number <= len(edges) else ""

    middle = len(edges) // 2
    inside = found.counts[middle]
    caption = (
        f"{share(inside / total, 1)} of {pluralize(total, 'token')} differ by less than {short(edges[middle])} nats; "
        f"{share(found.clipped / total, 2)} are clipped. Ratios are the trainer's probability to the engine's."
    )
    ticks = [float(number) for number in range(1, len(edges) + 1)]
    svg = histogram(f"Log-ratios. {caption}", bars, Axis("log-ratio", names=edge), _TOKENS, ticks)
    return chart("log_ratios", "Log-ratios", svg, caption, table(["log-ratio", "tokens", "share"], rows))


def _tip(pair: TokenPair) -> str:
    clipped = ", clipped" if pair.clipped else ""
    difference = signed(pair.trainer - pair.engine)
    return f"id {pair.id}: engine {short(pair.engine)}, trainer {short(pair.trainer)}, difference {difference}{clipped}"
