"""Plays a task's first sample with an empty answer before the server starts, to find what cannot work."""

from __future__ import annotations

from rollyard.records.errors import OperatorError, RollyardError
from rollyard.resources_servers.inspect_task.inspect_package import InspectPackage
from rollyard.resources_servers.inspect_task.message_items import items_of
from rollyard.resources_servers.inspect_task.solver_episode import SolverEpisode
from rollyard.resources_servers.inspect_task.task_loading import LoadedTask


async def rehearse(package: InspectPackage, task: LoadedTask) -> None:
    """Raise OperatorError if the solver fails or needs several answers, or if a scorer fails or needs a grader."""
    sample_id, sample = next(iter(task.samples.items()))
    episode = SolverEpisode(package, task, sample, sample_id, None)
    step = "its solver fails"
    try:
        await episode.start()
        items_of(episode.request.messages)
        has_tools = bool(episode.request.tools)
        await episode.finish("")
        if not episode.finished and not has_tools:
            raise OperatorError(
                f"the solver of {task.name} calls the model again after its answer, such as self_critique; "
                "an episode ends with the first message without a tool call. Expected a solver that calls it once, "
                "or has tools"
            )
        for name, scorer in task.scorers.items():
            step = f"its scorer {name} fails on an empty answer"
            await episode.score(scorer)
    except RollyardError as error:
        if isinstance(error, OperatorError):
            raise
        raise OperatorError(f"{task.name} cannot be an environment: {error}") from error
    except Exception as error:  # the task's own code runs here
        problem = f"{type(error).__name__}: {error}"
        raise OperatorError(
            f"{task.name} cannot be an environment: {step} ({problem}); rehearse: false skips this"
        ) from error
    finally:
        await episode.close()
