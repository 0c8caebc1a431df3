"""summary: what a person wants to read when a collection is over."""

from __future__ import annotations

from services.durations import duration
from services.means import Mean
from services.store import StorePaths
from services.tally import Tally
from services.terminal import plain_line
from services.types import State


def summary(state: State, tally: Tally, paths: StorePaths, why: str, refused: int) -> None:
    """Print it. `why`: it stopped by itself; `refused`: rollouts whose task the world will never take."""
    complete = tally.measured == tally.expected
    print(f"{'collected' if complete else state}: {tally.measured} of {tally.expected} rollouts measured")
    if why:
        print(f"  stopped       {plain_line(why)}")
    if tally.successes is not None:
        print(f"  success rate  {tally.successes / tally.measured:.2%} ({tally.successes} / {tally.measured})")
    if tally.rewards.value is not None:
        print(f"  mean reward   {_reward(tally.rewards)}")
    if len(tally.by_dataset) > 1:
        datasets = {plain_line(name): rewards for name, rewards in sorted(tally.by_dataset.items())}
        width = max(map(len, datasets))
        for name, rewards in datasets.items():
            print(f"    {name:<{width}}  {_reward(rewards)}, {rewards.count} rollouts")
    if tally.collected:
        print(f"  speed         {tally.rate:.1f} rollouts/s, {tally.collected} in {duration(tally.elapsed_s)}")
    print(f"  rollouts      {paths.output}")
    if tally.failed_attempts or tally.failed:
        kinds = ", ".join(f"{kind} {count}" for kind, count in tally.kinds.most_common()) or "of an earlier command"
        print(f"  failures      {tally.failed_attempts} attempts ({kinds}); rollouts given up: {tally.failed}")
        print(f"                {paths.failures}")
    missing = tally.expected - tally.measured
    if refused:
        print(f"  refused       {refused} by the world for good (bad_task): the failures file says why")
    if missing > refused:
        print(f"  next          the same command again collects the {missing - refused} that are missing")
    elif not missing:
        print(f"  next          ng_reward_profile +jsonl_fpath={paths.output}  (a report)")
        print(f"                ng_viewer +jsonl_fpath={paths.output}  (the rollouts, in a browser)")


def _reward(rewards: Mean) -> str:
    error = f" ± {rewards.stderr:.4f} (standard error)" if rewards.stderr is not None else ""
    return f"{rewards.value:.4f}{error}"
