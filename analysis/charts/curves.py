"""Charts by training step: of metrics, of a series of rollout files and, run as a module, of means over runs."""

from __future__ import annotations

import itertools
import math
import statistics
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollyard.analysis.charts.charts import (
    MAX_COLUMNS,
    Chart,
    Line,
    Point,
    chart,
    column,
    drawn_indexes,
    lines,
    plot,
    ranges,
    spot,
    table,
)
from rollyard.analysis.charts.svg import (
    STYLE,
    Axis,
    AxisScale,
    PlotFrame,
    Svg,
    Value,
    drawing,
    escaped,
    mark,
    seconds,
    share,
    short,
    tag,
    text,
)
from rollyard.analysis.metrics.columns import displayable
from rollyard.analysis.metrics.estimators import Estimate
from rollyard.analysis.metrics.run_pair import REWARD, SOLVE_RATE
from rollyard.analysis.metrics.training_steps import (
    COMPONENTS,
    LOG_PROB,
    RARE_TOKENS,
    TOKEN_ENTROPY,
    ZERO_VARIANCE,
    Curve,
    MetricsFile,
)
from rollyard.records.errors import OperatorError, did_you_mean
from rollyard.records.jsonl import replace
from rollyard.records.scores import t_975
from rollyard.records.script import ScriptParser, run_script
from rollyard.records.terminal import pluralize
from rollyard.records.types import Record

# The metrics of a training run: groups, titles, units and meanings. docs/training.md has the same names.

_SHARE = Axis("share", percent=True)
_COUNT = Axis("number", integers=True)
SECONDS = Axis("seconds")
_TOKENS = Axis("tokens")
_NATS = Axis("nats")


@dataclass(frozen=True, slots=True)
class Drawn:
    group: str
    names: tuple[str, ...]
    """Complete names. One that ends with / stands for all metrics that begin with it, each in a chart of its own."""
    title: str
    y: Axis
    meaning: str
    noisy: bool = True
    """Whether a moving average is drawn as well."""


REWARDS, EVALUATION, ROLLOUTS, UPDATE, WEIGHTS, TIME = "Reward", "Evaluation", "Rollouts", "Update", "Weights", "Time"

CATALOG = (
    Drawn(REWARDS, ("train/reward",), "Reward", Axis("reward"), "Mean reward of the measured rollouts."),
    Drawn(REWARDS, ("train/correct_rate",), "Correct", _SHARE, "Share of the measured rollouts that solved the task."),
    Drawn(REWARDS, ("train/reward/",), "Reward", Axis("reward"), "Mean of this part of the reward."),
    Drawn(REWARDS, ("train/reward_std",), "Reward deviation", Axis("reward"), "Standard deviation of the rewards."),
    Drawn(REWARDS, ("train/parse_err_rate",), "Parse errors", _SHARE, "Share of rollouts without a readable answer."),
    Drawn(EVALUATION, ("eval/",), "Evaluation", Axis("value"), "Evaluation after this many updates.", noisy=False),
    Drawn(ROLLOUTS, ("train/avg_completion_length",), "Length", _TOKENS, "Mean number of generated tokens."),
    Drawn(ROLLOUTS, ("train/total_completion_tokens",), "Generated tokens", _TOKENS, "Of all measured rollouts."),
    Drawn(ROLLOUTS, ("train/zero_variance_rate",), "Equal rewards", _SHARE, "Share of groups with equal rewards."),
    Drawn(ROLLOUTS, ("train/skipped_groups",), "Skipped groups", _COUNT, "Groups that were not trained on."),
    Drawn(ROLLOUTS, ("train/failed_rollouts",), "Failed rollouts", _COUNT, "Rollouts without a result."),
    Drawn(ROLLOUTS, ("train/failed_rollouts/",), "Failed", _COUNT, "Rollouts that failed for this reason."),
    Drawn(ROLLOUTS, ("train/ending/",), "Ended", _SHARE, "Share of the measured rollouts that ended this way."),
    Drawn(ROLLOUTS, ("train/seq_too_long_rate",), "Too long", _SHARE, "Share of sequences over max_seq_len."),
    Drawn(UPDATE, ("train/loss",), "Loss", Axis("loss"), "Loss of the update."),
    Drawn(UPDATE, ("train/entropy",), "Entropy", _NATS, "Mean entropy of the policy per token."),
    Drawn(UPDATE, ("train/kl",), "KL", _NATS, "Estimate of the KL divergence from the policy that sampled."),
    Drawn(UPDATE, ("train/kl_initial",), "KL from the start", _NATS, "Estimate of the KL from the initial policy."),
    Drawn(UPDATE, ("train/ratio_mean", "train/ratio_max"), "Ratio", Axis("ratio"), "New to recorded probabilities."),
    Drawn(UPDATE, ("train/clip_rate",), "Clipped", _SHARE, "Share of tokens whose ratio is clipped."),
    Drawn(UPDATE, ("train/grad_norm",), "Gradient norm", Axis("norm"), "Before it is limited."),
    Drawn(UPDATE, ("train/learning_rate",), "Learning rate", Axis("rate"), "Of the optimizer.", noisy=False),
    Drawn(WEIGHTS, ("train/parity_mean", "train/parity_max"), "Parity", _NATS, "Engine against trainer, per token."),
    Drawn(WEIGHTS, ("train/stale_rate",), "Stale tokens", _SHARE, "Share of tokens that older weights sampled."),
    Drawn(WEIGHTS, ("train/staleness_mean",), "Staleness", Axis("updates"), "Mean age of the weights, per token."),
    Drawn(WEIGHTS, ("train/policy_lag",), "Policy lag", _COUNT, "Largest age of the weights behind a token."),
    Drawn(TIME, ("perf/step_s",), "Step time", SECONDS, "Duration of the step."),
    Drawn(TIME, ("perf/rollout_wait_s",), "Waiting for rollouts", SECONDS, "Part of the step."),
    Drawn(TIME, ("perf/update_s",), "Update", SECONDS, "Part of the step."),
    Drawn(TIME, ("perf/publish_s",), "Weight sync", SECONDS, "Part of the step."),
    Drawn(TIME, ("perf/tokens_per_s",), "Tokens per second", Axis("tokens/s"), "Generated tokens by step time."),
    Drawn(TIME, ("perf/rollouts_per_s",), "Rollouts per second", Axis("rollouts/s"), "Measured rollouts by step time."),
)


def charted(names: Iterable[str]) -> Iterator[Drawn]:
    """Yield the charts of these metrics, in the order of the catalog; metrics that it lacks come last."""
    known = dict.fromkeys(names)
    used: set[str] = set()
    for one in CATALOG:
        for found in _members(one, known):
            if set(found.names) - used:
                used |= set(found.names)
                yield found
    for name in known:
        if name not in used:
            yield Drawn("Other metrics", (name,), displayable(name), axis_of(name), "")


def title_of(name: str) -> str:
    """Return the short name of a metric, such as `correct` for train/correct_rate and `eval reward`."""
    found = next((one.title for one in CATALOG if one.names == (name,)), None)
    return displayable(name.replace("/", " ").replace("_", " ")) if found is None else found.lower()


def axis_of(name: str) -> Axis:
    """Return the axis of a metric. Rates are shares, and names that end with _s durations."""
    for one in CATALOG:
        if name in one.names or name.replace("eval/", "train/") in one.names:
            return one.y
    if name.endswith(("_rate", "/accuracy")):
        return _SHARE
    if name.endswith("_s"):
        return SECONDS
    groups = (one for one in CATALOG if one.names[0][-1] == "/")
    return next((one.y for one in groups if name.startswith(one.names)), Axis("value"))


def _members(one: Drawn, known: dict[str, None]) -> Iterator[Drawn]:
    [first, *_] = one.names
    if not first.endswith("/"):
        if chosen := tuple(name for name in one.names if name in known):
            yield Drawn(one.group, chosen, one.title, one.y, one.meaning, one.noisy)
        return
    for name in known:
        if name.startswith(first):
            title = f"{one.title}: {displayable(name.removeprefix(first))}"
            yield Drawn(one.group, (name,), title, axis_of(name), one.meaning, one.noisy)


FEW = 60
"""Up to so many points are drawn as dots as well."""
_MIN_AVERAGED = 20
_MAX_POINTS = 1_000
_MARGIN = 0.04


def curve_plot(
    label: str,
    curves: Sequence[Curve],
    steps: tuple[int, int],
    y: Axis,
    describe: Callable[[int, int], str],
    *,
    averaged: bool = True,
) -> Svg:
    """Draw up to three curves between two steps. `averaged`: long ones faintly, with their moving averages on top."""
    values = [value for curve in curves for value in curve.values]
    first, last = float(steps[0]), float(max(steps[1], steps[0] + 1))
    across = AxisScale(first, last, ticks=5, integers=True)
    frame = PlotFrame(across, _scale(values, y), Axis("step", integers=True), y, height=90.0)
    shapes: list[Svg] = []
    for number, curve in enumerate(curves):
        shapes += _curve(frame, curve, f"s{number}", averaged and len(curve.values) >= _MIN_AVERAGED)
    area = tag("rect", {"class": "area", "x": "0", "y": frame.top, "width": "100%", "height": frame.height})
    inner = plot(frame, [*shapes, *_columns(frame, curves, describe)])
    names = _names(curves) if len(curves) > 1 else []
    return drawing(label, frame.total_height, frame.around([area, inner, *names]), "framed series curves")


def moving_average(values: Sequence[float], indexes: Sequence[int] | None = None) -> list[float]:
    """Return the mean of each value, or those at `indexes`, and its neighbours, together about a tenth of the curve."""
    sums = [0.0, *itertools.accumulate(values)]
    reach = max(2, len(values) // 20)
    ends = [(max(0, index - reach), min(len(values), index + reach + 1)) for index in indexes or range(len(values))]
    return [(sums[end] - sums[start]) / (end - start) for start, end in ends]


def _scale(values: Sequence[float], y: Axis) -> AxisScale:
    low, high = min(values), max(values)
    if low == high:  # a constant is read best by its distance from 0
        low, high = min(low, 0.0), max(high, 0.0)
    if 0 < low < high / 2 or (y.percent and low > 0 and high - low < 0.02):
        low = 0.0
    room = _MARGIN * (high - low)
    if y.percent and low >= 0 and high <= 1:
        return AxisScale(max(0.0, low - room), max(min(1.0, high + room), 0.01), ticks=5)
    return AxisScale(low if low == 0 else low - room, high + room, ticks=5, integers=y.integers)


def _curve(frame: PlotFrame, curve: Curve, kind: str, averaged: bool) -> list[Svg]:
    chosen = drawn_indexes(curve.values, _MAX_POINTS)
    spots = [spot(frame, curve.steps[index], curve.values[index]) for index in chosen]
    shapes = [tag("polyline", {"class": f"line {kind}{' faint' if averaged else ''}", "points": " ".join(spots)})]
    if averaged:
        chosen = [part[0] for part in ranges(len(curve.values), _MAX_POINTS)]
        means = moving_average(curve.values, chosen)
        around = " ".join(spot(frame, curve.steps[at], mean) for at, mean in zip(chosen, means, strict=True))
        shapes.append(tag("polyline", {"class": f"line {kind}", "points": around}))
    elif len(spots) <= FEW:
        shapes.append(tag("path", {"class": f"spots {kind}", "d": "".join(f"M{at}h0" for at in spots)}))
    return shapes


def _columns(frame: PlotFrame, curves: Sequence[Curve], describe: Callable[[int, int], str]) -> list[Svg]:
    steps = sorted({step for curve in curves for step in curve.steps})
    if len(steps) == 1:  # a column reaches halfway to its neighbours, which this one lacks
        hit: dict[str, Value] = {"x": 0, "width": 1000, "y": frame.top, "height": frame.height}
        return [mark(describe(steps[0], steps[0]), (tag("rect", {"class": "hit", **hit}),))]
    places = [float(step) for step in steps]
    return [
        column(frame, places, part, lambda found: describe(steps[found[0]], steps[found[-1]]))
        for part in ranges(len(steps), MAX_COLUMNS)
    ]


def _names(curves: Sequence[Curve]) -> list[Svg]:
    """Name the curves at the top right, the last one first, in their colours."""
    found, right = [], 0.0
    for number, curve in reversed(list(enumerate(curves))):
        name = curve.name.rpartition("/")[2]
        found.append(text(name, "100%", 11, f"end name s{number}", dx=-right))
        right += math.ceil(7.5 * len(name)) + 14
    return found


class ChartGroup(Record):
    title: str
    charts: list[Chart]


def training_charts(curves: Mapping[str, Curve]) -> tuple[list[ChartGroup], list[str]]:
    """Return the charts, all with the same steps, and the names of metrics without one: they are 0 in every step."""
    steps = sorted({step for curve in curves.values() for step in curve.steps})
    groups: dict[str, list[Chart]] = {}
    zero = [name for name, curve in curves.items() if not any(curve.values)]
    for drawn in charted(name for name in curves if name not in zero):
        found = [curves[name] for name in drawn.names]
        groups.setdefault(drawn.group, []).append(_chart(drawn, found, (steps[0], steps[-1])))
    return [ChartGroup(title=title, charts=charts) for title, charts in groups.items()], zero


def value_text(value: float, axis: Axis) -> str:
    if axis.percent:
        return share(value)
    return seconds(value) if axis is SECONDS else short(value)


def _chart(drawn: Drawn, curves: Sequence[Curve], steps: tuple[int, int]) -> Chart:
    def describe(first: int, last: int) -> str:
        title = f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
        return f"{title}: {', '.join(_parts(drawn, curves, first, last))}"

    caption = f"{_summary(drawn, curves)} {drawn.meaning}".strip()
    label = f"{drawn.title} by step. {caption}"
    svg = curve_plot(label, curves, steps, drawn.y, describe, averaged=drawn.noisy)
    return chart("|".join(drawn.names), drawn.title, svg, caption)


def _parts(drawn: Drawn, curves: Sequence[Curve], first: int, last: int) -> Iterator[str]:
    for curve in curves:
        values = curve.values[bisect_left(curve.steps, first) : bisect_right(curve.steps, last)]
        if values:
            name = f"{curve.name.rpartition('/')[2]} " if len(curves) > 1 else ""
            mean = value_text(sum(values) / len(values), drawn.y)
            low, high = value_text(min(values), drawn.y), value_text(max(values), drawn.y)
            yield f"{name}{mean}" if len(values) == 1 else f"{name}mean {mean}, {low} to {high}"


def _summary(drawn: Drawn, curves: Sequence[Curve]) -> str:
    parts = []
    for curve in curves:
        name = f"{curve.name.rpartition('/')[2]}: " if len(curves) > 1 else ""
        last, low, high = (value_text(one, drawn.y) for one in (curve.values[-1], min(curve.values), max(curve.values)))
        parts.append(f"{name}{last} at step {curve.steps[-1]:,}, range {low} to {high}")
    return f"{'; '.join(parts)}."


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
    shown = {step: drawn(name, figures[step]) for step in sorted(figures)}
    write, points, rows = share if axis.percent else short, [], []
    for step, one in shown.items():
        low, high = _bounds(one, axis)
        reach = f"95% interval {low} to {high}" if low else "no interval"
        tip = f"step {step:,}: {write(one.mean)}, {reach}"
        points.append(Point(step, one.mean, one.low, one.high, tip, links.get(step)))
        rows.append(([f"{step:,}", write(one.mean), low, high], links.get(step)))
    first, last = (f"{write(shown[step].mean)} at step {step:,}" for step in (min(shown), max(shown)))
    caption = f"{first}, {last}. {meaning}"
    label = f"{title} by step, with 95% intervals. {caption}"
    svg = lines(label, [Line("", points)], Axis("step", integers=True), axis)
    return chart(name, title, svg, caption, table(["step", axis.title, "from", "to"], rows))


def figure_title(name: str) -> str:
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


def _bounds(one: Estimate, axis: Axis) -> tuple[str, str]:
    write = share if axis.percent else short
    return ("", "") if one.low is None or one.high is None else (write(one.low), write(one.high))


# The program: means over several runs as one picture.

_WIDTH, _GAP, _LEFT, _TITLE, _FOOT, _PLOT_HEIGHT = 420, 36, 58, 28, 62, 150.0
_MANY_POINTS = 40
_SMOOTHED_FROM = 20
# The colours of the pages; a picture follows the theme of the page that shows it.
_LIGHT = "--paper:#ffffff;--ink:#1b1f24;--soft:#545c66;--rule:#d5d9df;--strong:#7b838e;--first:#2b62c9;--second:#a84a0c"
_DARK = "--paper:#14171b;--ink:#e6e9ed;--soft:#a7b0bb;--rule:#353b44;--strong:#6f7985;--first:#7fa8f5;--second:#f0a063"


@dataclass(frozen=True, slots=True)
class MeanCurve:
    """The mean of a metric over runs, at the steps that all of them have."""

    runs: int
    steps: tuple[int, ...]
    means: tuple[float, ...]
    bands: tuple[tuple[float, float] | None, ...]
    """95 % interval of each mean over runs (Student's t); None with a single run."""
    left_out: int
    """Number of steps that only some of the runs have."""


def mean_curve(curves: Sequence[Curve], *, is_share: bool, smooth: bool = False) -> MeanCurve:
    """Average a metric over runs. `is_share`: bands end at 0 and 1.

    `smooth`: average each run over neighbouring steps first, unless it has few values, such as those of evaluations.
    """
    values = [
        dict(zip(one.steps, moving_average(one.values), strict=True))
        if smooth and len(one.values) >= _SMOOTHED_FROM
        else dict(zip(one.steps, one.values, strict=True))
        for one in curves
    ]
    common = set.intersection(*map(set, values))
    steps = tuple(sorted(common))
    columns = [[run[step] for run in values] for step in steps]
    bands = tuple(_band(column, is_share) for column in columns)
    left_out = len(set().union(*values) - common)
    return MeanCurve(len(curves), steps, tuple(map(statistics.fmean, columns)), bands, left_out)


def picture(panels: Mapping[str, MeanCurve]) -> str:
    """Return a complete SVG file with a panel for each metric. It needs no style sheet and follows light and dark."""
    columns = min(2, len(panels))
    height = _TITLE + 24 + _PLOT_HEIGHT + _FOOT
    drawn = []
    for number, (metric, curve) in enumerate(panels.items()):
        row, column = divmod(number, columns)
        x, y = column * (_WIDTH + _GAP), row * height
        place: dict[str, Value] = {"x": x + _LEFT, "y": y + _TITLE, "width": _WIDTH - _LEFT, "height": height - _TITLE}
        title = text(title_of(metric).capitalize(), x, y + 16, "panel")
        drawn.append(title + tag("svg", {**place, "overflow": "visible"}, _panel(metric, curve)))
    size = f"{columns * (_WIDTH + _GAP) - _GAP + 12:g}", f"{math.ceil(len(panels) / columns) * height:g}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-6 0 {size[0]} {size[1]}" width="{size[0]}" '
    head += f'height="{size[1]}" role="img" aria-label="{escaped(", ".join(panels))} by step">'
    paper = '<rect class="paper" x="-6" width="100%" height="100%"/>'
    return f"{head}<style>{_style()}</style>{paper}{''.join(drawn)}</svg>\n"


def _panel(metric: str, curve: MeanCurve) -> Svg:
    points = [
        Point(step, mean, band[0] if band else None, band[1] if band else None, f"step {step}")
        for step, mean, band in zip(curve.steps, curve.means, curve.bands, strict=True)
    ]
    svg = lines(f"{metric} by step", [Line("", points)], Axis("step", integers=True), axis_of(metric))
    dense = " dense" if len(points) > _MANY_POINTS else ""
    return Svg(svg.replace('class="chart framed"', f'class="chart framed{dense}"', 1))


def _summary_line(metric: str, curve: MeanCurve, axis: Axis) -> str:
    def value(index: int) -> str:
        band = curve.bands[index]
        reach = f" (95% interval {value_text(band[0], axis)} to {value_text(band[1], axis)})" if band else ""
        return f"{value_text(curve.means[index], axis)}{reach} at step {curve.steps[index]:,}"

    omitted = f"; {curve.left_out} steps that not all runs have are left out" if curve.left_out else ""
    return f"{metric}, {pluralize(curve.runs, 'run')}: {value(0)}, {value(-1)}{omitted}"


def _band(values: Sequence[float], is_share: bool) -> tuple[float, float] | None:
    if len(values) < 2:
        return None
    mean = statistics.fmean(values)
    reach = t_975(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    low, high = mean - reach, mean + reach
    return (max(0.0, low), min(1.0, high)) if is_share else (low, high)


def _style() -> str:
    rules = STYLE.read_text(encoding="utf-8")
    own = (
        f":root{{{_LIGHT};font-family:system-ui,sans-serif}}"
        f"@media(prefers-color-scheme:dark){{:root{{{_DARK}}}}}"
        ".paper{fill:var(--paper)}.panel{font-size:14px;font-weight:600;fill:var(--ink)}"
    )
    # The sizes are those of the picture, not of a page.
    return f"{own}{rules}.chart.framed{{width:{_WIDTH - _LEFT}px;padding:0}}.dense .dot{{display:none}}"


def main(arguments: Sequence[str]) -> int:
    """Draw the picture, and print the first and the last value of each line. Return the exit status."""
    options = _parser().parse_args(arguments)
    if not options.runs:
        raise OperatorError("no training run given; expected folders of training runs")
    runs = {folder: _read(folder) for folder in options.runs}
    panels: dict[str, MeanCurve] = {}
    for metric in dict.fromkeys(options.metric or ["train/reward"]):
        axis = axis_of(metric)
        curves = [_curve_of(found, metric, folder) for folder, found in runs.items()]
        panels[metric] = mean_curve(curves, is_share=axis.percent, smooth=options.smooth)
        if not panels[metric].steps:
            raise OperatorError(f"{metric}: the runs have no step in common")
        print(_summary_line(metric, mean_curve(curves, is_share=axis.percent), axis))
    replace(options.output, picture(panels).encode())
    print(options.output)
    return 0


def _parser() -> ScriptParser:
    parser = ScriptParser(
        prog="python -m rollyard.analysis.charts.curves",
        description="Draw means over training runs as one SVG, with a panel for each metric.",
    )
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="folder of a training run")
    parser.add_argument(
        "--metric",
        action="append",
        metavar="NAME",
        help="name in metrics.jsonl; may be repeated; default: train/reward",
    )
    parser.add_argument("--smooth", action="store_true", help="draw moving averages over a tenth of 20 or more steps")
    parser.add_argument("--output", type=Path, default=Path("curves.svg"), metavar="FILE", help="default: curves.svg")
    return parser


def _read(folder: Path) -> dict[str, Curve]:
    path = folder / "metrics.jsonl"
    file = MetricsFile(path)
    file.advance()
    if not file.steps:
        raise OperatorError(f"{path} has no metrics; expected the folder of a training run that has done a step")
    return file.curves()


def _curve_of(curves: dict[str, Curve], metric: str, folder: Path) -> Curve:
    if (found := curves.get(metric)) is None:
        raise OperatorError(
            f"{folder} has no metric {metric!r}{did_you_mean(metric, curves)}; it has {', '.join(curves)}"
        )
    return found


if __name__ == "__main__":
    run_script(lambda: main(sys.argv[1:]))
