"""Write a reward analysis of Sokoban rollouts in Markdown.

The format and the options are those of the GRL Sokoban evaluation. `ng_reward_profile` reports more metrics, draws
charts and compares runs.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rollyard.analysis.metrics.load import load
from rollyard.analysis.metrics.profile_records import Profile
from rollyard.analysis.report.document import escaped
from rollyard.analysis.report.formatting import coverage_sentence, measured
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.jsonl import replace
from rollyard.records.rollout_file import check_output
from rollyard.records.script import ScriptParser, run_script


def analysis(profile: Profile, model: str) -> str:
    """Return the report. Metrics are defined as in the GRL Sokoban evaluation; missing data is mentioned."""
    covered, solved, rewards, calls = profile.coverage, profile.solved, profile.rewards, profile.tool_calls
    lines = [
        f"# Reward analysis: {escaped(model)}",
        "",
        escaped(coverage_sentence(covered)),
        *map(escaped, profile.notes),
        "",
    ]
    lines += ["## Overall Metrics", "", f"- **Rollouts file**: {escaped(profile.path)}"]
    lines.append(f"- **Total Rollouts**: {covered.measured:,} ({measured(covered)})")
    if rewards is None or calls is None:
        return "\n".join([*lines, ""])
    rate = "unknown (rows report no success)"
    if solved is not None:
        rate = f"{solved.rate.mean:.2%} ({solved.rollouts:,} / {covered.measured:,})"
    lines.append(f"- **Success Rate**: {rate}")
    for name, value in (
        ("Mean", rewards.mean.mean),
        ("Median", rewards.median),
        ("Min", rewards.min),
        ("Max", rewards.max),
    ):
        lines.append(f"- **{name} Reward**: {value:.4f}")
    correlation = "none (one of the two is constant)" if calls.correlation is None else f"{calls.correlation:.4f}"
    lines += ["", "## Tool Call Statistics", "", f"- **Average Tool Calls**: {calls.mean:.2f} per rollout"]
    lines += [f"- **Min Tool Calls**: {calls.min}", f"- **Max Tool Calls**: {calls.max}"]
    lines += [f"- **Correlation (tool calls ↔ reward)**: {correlation}", "", "## Reward Distribution", ""]
    for found in rewards.most_frequent:
        share = found.rollouts / covered.measured
        lines.append(f"- **{found.reward:.4f} reward**: {found.rollouts:,} occurrences ({share:.1%})")
    if rewards.distinct > len(rewards.most_frequent):
        lines.append(f"- {rewards.distinct - len(rewards.most_frequent):,} more distinct rewards")
    lines += ["", "## Performance by Tool Call Count", ""]
    lines += ["| Tool Calls | Mean Reward | Rollout Count | Solved |", "|---:|---:|---:|---:|"]
    for by in calls.by_count:
        solved_share = "–" if by.solved is None else f"{by.solved / by.rollouts:.1%}"
        lines.append(f"| {by.tool_calls} | {by.mean_reward:.4f} | {by.rollouts:,} | {solved_share} |")
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report or write it to --output. Returns 1 if no rollout was measured.

    Raises OperatorError if the rollouts file cannot be read, RunError if the report cannot be written.
    """
    parser = ScriptParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rollouts-path", type=Path, required=True, help="rollouts file written by ng_collect_rollouts (JSON Lines)"
    )
    parser.add_argument("--model-name", default="", help="model name in the heading (default: from the rollouts)")
    parser.add_argument("--output", type=Path, help="file to write the report to (default: standard output)")
    options = parser.parse_args(arguments)
    if options.output is not None:
        check_output(options.output, [options.rollouts_path])
    try:
        profile = load(options.rollouts_path).profile
    except RunError as error:
        raise OperatorError(str(error)) from error  # the given file cannot be read
    report = analysis(profile, options.model_name or ", ".join(profile.models) or options.rollouts_path.stem)
    if options.output is None:
        print(report, end="")
    else:
        replace(options.output, report.encode())
        print(f"report written to {options.output} (rollouts: {measured(profile.coverage)})")
    return 0 if profile.coverage.measured else 1


if __name__ == "__main__":
    run_script(main)
