"""The metrics of a training run: groups, titles, units and meanings. docs/training.md has the same names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rollyard.analysis.charts.axis import Axis
from rollyard.analysis.metrics.loader.columns import displayable

_SHARE = Axis("share", percent=True)
_COUNT = Axis("number", integers=True)
SECONDS = Axis("seconds")
_TOKENS = Axis("tokens")
_NATS = Axis("nats")


@dataclass(frozen=True, slots=True)
class Drawn:
    """A chart of one or more metrics."""

    group: str
    names: tuple[str, ...]
    """Complete names. One that ends with / stands for all metrics that begin with it, each in a chart of its own."""
    title: str
    y: Axis
    meaning: str
    noisy: bool = True
    """Whether a moving average is drawn as well."""


REWARD, EVALUATION, ROLLOUTS, UPDATE, WEIGHTS, TIME, OTHER = (
    *("Reward", "Evaluation", "Rollouts", "Update", "Weights", "Time"),
    "Other metrics",
)

CATALOG = (
    Drawn(REWARD, ("train/reward",), "Reward", Axis("reward"), "Mean reward of the measured rollouts."),
    Drawn(REWARD, ("train/correct_rate",), "Correct", _SHARE, "Share of the measured rollouts that solved the task."),
    Drawn(REWARD, ("train/reward/",), "Reward", Axis("reward"), "Mean of this part of the reward."),
    Drawn(REWARD, ("train/reward_std",), "Reward deviation", Axis("reward"), "Standard deviation of the rewards."),
    Drawn(REWARD, ("train/parse_err_rate",), "Parse errors", _SHARE, "Share of rollouts without a readable answer."),
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
    Drawn(
        UPDATE,
        ("train/kl_initial",),
        "KL from the start",
        _NATS,
        "Estimate of the KL divergence from the initial policy.",
    ),
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
            yield Drawn(OTHER, (name,), displayable(name), axis_of(name), "")


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
    return next(
        (one.y for one in CATALOG if name.startswith(tuple(part for part in one.names if part[-1] == "/"))),
        Axis("value"),
    )


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
