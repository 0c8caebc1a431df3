"""Prints the summary of a finished or stopped collection."""

from __future__ import annotations

from rollyard.analysis.charts.labels import pluralize
from rollyard.analysis.report.formatting import reward
from rollyard.records.io.durations import duration
from rollyard.records.io.rollout_paths import RolloutPaths
from rollyard.records.io.terminal import plain_line
from rollyard.records.rollouts.status_file import read_status
from rollyard.records.scores.running_mean import ClusteredMean
from rollyard.records.types import CollectionStatus, State
from rollyard.services.rollouts.failure_summary import most_frequent_failure
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.rollouts.shared.shared_records import MergeResult


def summary(state: State, progress: CollectionProgress, paths: RolloutPaths, why: str, refused: int) -> None:
    """Print the summary of a collection.

    `why`: why the collection stopped early; empty if it did not.
    `refused`: number of rollouts whose tasks the environment rejected.
    """
    complete = progress.measured == progress.expected
    print(f"{'collected' if complete else state}: {progress.measured} of {progress.expected} rollouts measured")
    if why:
        print(f"  stopped       {plain_line(why)}")
    _print_means(progress)
    if progress.collected:
        print(f"  speed         {progress.rate:.1f} rollouts/s, {progress.collected} in {duration(progress.elapsed_s)}")
    print(f"  rollouts      {paths.output}")
    abandoned = progress.failed - progress.masked
    if progress.failed_attempts or abandoned:
        kinds = ", ".join(f"{kind} {count}" for kind, count in progress.kinds.most_common()) or "of an earlier command"
        failed = f"{progress.failed_attempts} attempts failed ({kinds}), {abandoned} rollouts abandoned"
        print(f"  failures      {failed}")
        if common := most_frequent_failure(paths.failures):
            print(f"                {common}")
        print(f"                {paths.failures}")
    missing = progress.expected - progress.measured
    if refused:
        print(f"  refused       {refused} rollouts were rejected by the environment (bad_task); see the failures file")
    if masked := progress.masked:
        reason = "their environment or agent says that they have no score (mask_sample, failure_kind)"
        print(f"  masked        {pluralize(masked, 'rollout')} in the file: {reason}")
    if (open_count := missing - refused - masked) > 0:
        changed = "restart ng_run if you changed a server's code; " if progress.kinds["server_error"] else ""
        print(f"  next          {changed}repeat the command to collect the {open_count} missing rollouts")
    elif not missing:
        print(f"  next          ng_reward_profile {paths.output}  (a report)")
        print(f"                ng_viewer {paths.output}  (the rollouts, in a browser)")


def worker_summary(
    state: State, progress: CollectionProgress, paths: RolloutPaths, why: str, result: MergeResult | None
) -> None:
    """Print the summary of one worker of a collection. `result`: what was merged; None if this worker ended before."""
    if result is None:
        print(f"{state}: {progress.collected} rollouts measured by this worker; other workers may still be running")
    else:
        print(
            f"{'collected' if state == 'complete' else state}: {result.measured} of {result.expected} rollouts measured"
        )
    if why:
        print(f"  stopped       {plain_line(why)}")
    status = read_status(paths.output) if result else None
    if status is not None:
        _print_status(status)
    if progress.collected:
        print(f"  this worker   {pluralize(progress.collected, 'rollout')} in {duration(progress.elapsed_s)}")
    if result is None:
        print("  next          repeat the command to rejoin; the shards are merged when all rollouts are done")
        return
    if result.superseded:
        print(f"  superseded    {result.superseded} rollouts were measured twice; the output has the first lease's")
    print(f"  rollouts      {paths.output}")
    if result.refused:
        print(f"  refused       {result.refused} rollouts were rejected by the environment (bad_task)")
    missing = result.expected - result.measured
    if missing > result.refused:
        print(f"  failures      {paths.failures}")
        print(f"  next          repeat the command to collect the {missing - result.refused} missing rollouts")
    elif not missing:
        print(f"  next          ng_reward_profile {paths.output}  (a report)")


def _print_status(status: CollectionStatus) -> None:
    """Print the means of each dataset and of the merged output, from its status."""
    names = {name: plain_line(name) for name in status.datasets}
    width = max(map(len, names.values()), default=0)
    for name, part in status.datasets.items():
        solved = "" if part.successes is None else f"success {_share(part.successes, part.measured)}, "
        mean = _plus_minus(part.mean_reward, part.reward_stderr)
        print(f"  {names[name]:<{width}}  {solved}mean reward {mean}, {pluralize(part.tasks, 'task')}")
    if status.successes is not None and status.measured:
        print(f"  success rate  {_share(status.successes, status.measured)}")
    if status.mean_reward is not None:
        print(f"  mean reward   {_plus_minus(status.mean_reward, status.reward_stderr)}")
    elif status.datasets:
        print("  mean reward   not averaged over all datasets")


def _share(solved: int, measured: int) -> str:
    return f"{solved / measured:.2%} ({solved} / {measured})"


def _plus_minus(value: float, stderr: float | None) -> str:
    return reward(value) if stderr is None else f"{reward(value)} ± {reward(stderr)}"


def _print_means(progress: CollectionProgress) -> None:
    """Print the means of each dataset in a mixture, then the overall means."""
    means = progress.means()
    names = {name: plain_line(name) for name in means.datasets}
    width = max(map(len, names.values()), default=0)
    for name, (mean, success) in means.datasets.items():
        solved = "" if success is None else f"success {_rate(success, progress.scores.parts[name].solved)}, "
        print(f"  {names[name]:<{width}}  {solved}mean reward {_mean(mean)}, {pluralize(mean.tasks, 'task')}")
    if means.success is not None:
        print(f"  success rate  {_rate(means.success, progress.successes or 0)}")
    if means.reward is not None:
        print(f"  mean reward   {_mean(means.reward)}")
    elif means.why_no_reward:
        print(f"  mean reward   not averaged over all datasets: {plain_line(means.why_no_reward)}")
    if any(one and one.stderr is not None for one in (means.success, means.reward)):
        print("                ± is one SE, clustered by task")


def _rate(found: ClusteredMean, solved: int) -> str:
    """Format a rate with its standard error, or, if it is 0% or 100%, with a confidence interval."""
    counted = f"({solved} / {found.rollouts})"
    if found.stderr is not None:
        return f"{found.value:.2%} ± {found.stderr:.2%} {counted}"
    if (interval := found.share_interval) is None:
        return f"{found.value:.2%} {counted}"
    return f"{found.value:.2%} {counted}, 95% interval {interval[0]:.2%} to {interval[1]:.2%}"


def _mean(found: ClusteredMean) -> str:
    error = "" if found.stderr is None else f" ± {reward(found.stderr)}"
    return f"{reward(found.value)}{error}"
