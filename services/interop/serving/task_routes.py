"""The routes that list tasks. OpenEnv and ORS have the same ones.

A task is `{"split", "index"}`: rows contain the expected answers, so they are not sent to clients.
"""

from __future__ import annotations

from fastapi import FastAPI, HTTPException, Request

from rollyard.records.types import Json
from rollyard.services.interop.serving.environment import ServedEnvironment
from rollyard.services.interop.serving.json_body import read_object


def add_task_routes(app: FastAPI, environment: ServedEnvironment) -> None:
    """Add the routes of one environment."""
    tasks = environment.tasks

    @app.get("/list_environments")
    async def list_environments() -> list[str]:
        return [environment.name]

    @app.get("/{env_name}/splits")
    async def splits(env_name: str) -> list[Json]:
        check_name(environment, env_name)
        return [{"name": tasks.split, "type": tasks.split}]

    @app.post("/{env_name}/tasks")
    async def list_tasks(env_name: str, request: Request) -> Json:
        await _asked(environment, env_name, request)
        return {"tasks": [_task(tasks.split, index) for index in range(len(tasks))], "env_name": environment.name}

    @app.post("/{env_name}/num_tasks")
    async def num_tasks(env_name: str, request: Request) -> Json:
        await _asked(environment, env_name, request)
        return {"num_tasks": len(tasks)}

    @app.post("/{env_name}/task")
    async def task(env_name: str, request: Request) -> Json:
        index = (await _asked(environment, env_name, request)).get("index")
        tasks.row(index)
        return {"task": _task(tasks.split, index), "env_name": environment.name}

    @app.post("/{env_name}/task_range")
    async def task_range(env_name: str, request: Request) -> Json:
        asked = await _asked(environment, env_name, request)
        indices = tasks.between(asked.get("start"), asked.get("stop"))
        return {"tasks": [_task(tasks.split, index) for index in indices], "env_name": environment.name}


def check_name(environment: ServedEnvironment, name: str) -> None:
    """Raise HTTPException (404) unless this is the environment's name, in any case."""
    if name.lower() != environment.name.lower():
        raise HTTPException(404, f"there is no environment {name[:100]!r}; this server has {environment.name!r}")


async def _asked(environment: ServedEnvironment, name: str, request: Request) -> Json:
    check_name(environment, name)
    asked = await read_object(request)
    environment.tasks.check_split(asked.get("split"))
    return asked


def _task(split: str, index: object) -> Json:
    return {"split": split, "index": index}
