"""Starts the servers of an evaluation with `ng_run` and waits until they are ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rollyard.services.config.overrides.command_line import title
from rollyard.services.evaluation.pipeline import commands
from rollyard.services.evaluation.pipeline.model_source import KEY_VARIABLE
from rollyard.services.evaluation.pipeline.plan import EvalPlan
from rollyard.services.evaluation.pipeline.stages.running_stages import RunningStages
from rollyard.services.run_types import HeadFile
from rollyard.services.runtime.programs.program import Program
from rollyard.services.runtime.programs.servers import until_ready


async def start_servers(
    plan: EvalPlan,
    environ: Mapping[str, str],
    stages: RunningStages,
    ray: str | None,
    show: Callable[[str], None],
) -> HeadFile:
    """Start `ng_run` and return its head once all servers are ready. `show` receives each line about their start."""
    command = commands.run_command(plan, ray)
    variables = {**environ, KEY_VARIABLE: plan.source.api_key}
    shown = 0

    def show_new(printed: str) -> None:
        nonlocal shown
        lines = printed[: printed.rfind("\n") + 1].splitlines()
        for line in lines[shown:]:
            if line.startswith("  policy_model "):
                show(line)
        shown = len(lines)

    process = await Program.start("ng_run", command, plan.folder.servers_log, variables, plan.here, title(command))
    stages.add(process)
    return await until_ready(process, plan.here, show_new if plan.served else lambda printed: None)
