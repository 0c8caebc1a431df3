"""Starts the servers of an evaluation with `ng_run` and waits until they are ready."""

from __future__ import annotations

from collections.abc import Mapping

from rollyard.launchers.evaluation.pipeline import commands
from rollyard.launchers.evaluation.pipeline.plan import EvalPlan
from rollyard.launchers.evaluation.pipeline.stages.running_stages import RunningStages
from rollyard.records.run_types import HeadFile
from rollyard.services.config.overrides.command_line import as_override, title
from rollyard.services.runtime.programs.program import Program
from rollyard.services.runtime.programs.servers import until_ready


async def start_servers(
    plan: EvalPlan, environ: Mapping[str, str], stages: RunningStages, base_url: str, key: str, ray: str | None
) -> HeadFile:
    """Start `ng_run` and return its head once all servers are ready."""
    command = commands.run_command(plan, base_url)
    if ray is not None:
        command.append(as_override("ray_head_node_address", ray))
    variables = {**environ, commands.KEY_VARIABLE: key}
    process = await Program.start("ng_run", command, plan.folder.servers_log, variables, plan.here, title(command))
    stages.add(process)
    return await until_ready(process, plan.here)
