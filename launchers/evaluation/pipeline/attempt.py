"""Attempt: starts what an evaluation needs, collects the missing rollouts, and stops everything again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

from rollyard.launchers.evaluation.pipeline.control.control_requests import ControlRequests
from rollyard.launchers.evaluation.pipeline.identity import check_weights
from rollyard.launchers.evaluation.pipeline.plan import EvalPlan
from rollyard.launchers.evaluation.pipeline.stages.collection_stage import CollectionStage, Outcome
from rollyard.launchers.evaluation.pipeline.stages.ray_stage import start_ray
from rollyard.launchers.evaluation.pipeline.stages.running_stages import RunningStages
from rollyard.launchers.evaluation.pipeline.stages.servers_stage import start_servers
from rollyard.launchers.evaluation.pipeline.stages.vllm_stage import VllmStage
from rollyard.launchers.evaluation.pipeline.tracker import EvalTracker
from rollyard.records.io.durations import duration
from rollyard.records.run_types import HeadFile


@dataclass(frozen=True)
class Attempt:
    """One attempt to finish an evaluation."""

    plan: EvalPlan
    environ: Mapping[str, str]
    requests: ControlRequests
    tracker: EvalTracker

    async def run(self) -> Outcome:
        """Collect all missing rollouts.

        Raises RunError if something crashed, so that another attempt may succeed, OperatorError if it would not, and
        EvaluationEnding if the user has ended the evaluation.
        """
        stages = RunningStages(self.requests)
        try:
            head = await self._start(stages)
            return await CollectionStage(self.plan, self.environ, stages, self.tracker, head).run()
        finally:
            await stages.stop()

    async def _start(self, stages: RunningStages) -> HeadFile:
        plan, source = self.plan, self.plan.source
        if source.kind == "running":
            return HeadFile(run_id="", url=f"http://{plan.config.head}", pid=0)
        ray = plan.config.ray_head_node_address
        if plan.ray_command:
            self._starting("ray", "Ray", plan.folder.ray_log)
            ray = await stages.until_done(start_ray(plan, self.environ, stages))
        base_url, key = source.base_url, source.api_key
        if source.kind == "served":
            self._starting("vllm", "vLLM", plan.folder.vllm_log)
            started = time.monotonic()
            starting = VllmStage.start(
                *(plan, self.environ, stages, ray, self.tracker.print_line),
                has_worked=self.tracker.state.measured > 0,
            )
            vllm = await stages.until_done(starting)
            stages.monitor(vllm.until_unhealthy(plan.config.vllm.health_timeout_s))
            await asyncio.to_thread(check_weights, plan.config, plan.identity, plan.here)
            self._ready("vLLM", started, vllm.base_url)
            base_url, key = vllm.base_url, vllm.key
        self._starting("servers", "servers", plan.folder.servers_log)
        started = time.monotonic()
        head = await stages.until_done(start_servers(plan, self.environ, stages, base_url, key, ray))
        self._ready("servers", started, head.url)
        self.tracker.print_line(f"  {'rollouts':<10} collecting, log: {plan.folder.collection_log}")
        return head

    def _starting(self, stage: str, name: str, log: object) -> None:
        self.tracker.update(stage=stage, state="running")
        self.tracker.print_line(f"  {name:<10} starting, log: {log}")

    def _ready(self, name: str, started: float, url: str) -> None:
        self.tracker.print_line(f"  {name:<10} ready at {url} after {duration(time.monotonic() - started)}")
