"""Rollyard: rollouts of language models in environments, for evaluation and training.

The public API. `import rollyard` imports no other module, not even of the standard library: each name is imported from
its module when it is first used. This keeps the import cheap in every process, and possible in the sandbox, whose
Python has no other packages.
"""

import sys

TYPE_CHECKING = False  # type checkers treat it as True; importing it from `typing` would load that module
if TYPE_CHECKING:
    from rollyard import errors, testing
    from rollyard.agents.base import Agent, AgentSettings
    from rollyard.agents.episode import Episode
    from rollyard.api import annotate, collect, connect, read_rollouts, stack
    from rollyard.records.rewards import VerdictField
    from rollyard.records.types import FinishReason
    from rollyard.resources_servers.base import (
        BadTask,
        Environment,
        EnvironmentSettings,
        InvalidToolCall,
        ToolResult,
        Turn,
        Verdict,
        Verification,
        serve,
        tool,
    )
    from rollyard.resources_servers.judge import Judge, JudgeSettings
    from rollyard.resources_servers.rubric import Rubric, Score
    from rollyard.responses_api_models.base import ModelServer
    from rollyard.services.server.settings import ServerSettings

    __version__: str

__all__ = [
    "Agent",
    "AgentSettings",
    "BadTask",
    "Environment",
    "EnvironmentSettings",
    "Episode",
    "FinishReason",
    "InvalidToolCall",
    "Judge",
    "JudgeSettings",
    "ModelServer",
    "Rubric",
    "Score",
    "ServerSettings",
    "ToolResult",
    "Turn",
    "Verdict",
    "VerdictField",
    "Verification",
    "__version__",
    "annotate",
    "collect",
    "connect",
    "errors",
    "read_rollouts",
    "serve",
    "stack",
    "testing",
    "tool",
]

_HOMES = {
    "rollyard.agents.base": ("Agent", "AgentSettings"),
    "rollyard.agents.episode": ("Episode",),
    "rollyard.api": ("annotate", "collect", "connect", "read_rollouts", "stack"),
    "rollyard.resources_servers.base": (
        *("BadTask", "Environment", "EnvironmentSettings", "InvalidToolCall", "ToolResult", "Turn"),
        *("Verdict", "Verification", "serve", "tool"),
    ),
    "rollyard.resources_servers.judge": ("Judge", "JudgeSettings"),
    "rollyard.resources_servers.rubric": ("Rubric", "Score"),
    "rollyard.responses_api_models.base": ("ModelServer",),
    "rollyard.services.server.settings": ("ServerSettings",),
    "rollyard.records.types": ("FinishReason",),
    "rollyard.records.rewards": ("VerdictField",),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module, metadata

    value: object
    if name == "__version__":
        value = metadata.version(__name__)
    elif home := next((home for home, names in _HOMES.items() if name in names), None):
        value = getattr(import_module(home), name)
    else:
        value = import_module(f"{__name__}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _FormerPaths:
    """Finds modules under the paths that they had before 0.2. Goes with 0.3."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> object:
        if not name.startswith("rollyard."):
            return None
        from rollyard.former_paths import find_spec

        return find_spec(name)


class _FormerFolders:
    """Gives modules that were folders before 0.2 a search path, as modules below them are searched for only then."""

    NAMES = (
        "rollyard.resources_servers.harbor_task.dockerfile",
        "rollyard.responses_api_models.chat_engine.token_backends",
        "rollyard.responses_api_models.chat_engine.token_history",
        "rollyard.responses_api_models.streaming",
        "rollyard.services.config.nemo_gym",
        "rollyard.services.config.overrides",
        "rollyard.services.config.server_code",
        "rollyard.services.http.access",
        "rollyard.services.interop.nemo_gym",
        "rollyard.services.interop.openenv",
        "rollyard.services.interop.ors",
        "rollyard.testing",
    )

    @classmethod
    def find_spec(cls, name: str, path: list[str] | None = None, target: object = None) -> object:
        if name not in cls.NAMES:
            return None
        from importlib.machinery import PathFinder

        if (spec := PathFinder.find_spec(name, path)) is not None:
            spec.submodule_search_locations = []
        return spec


sys.meta_path.insert(0, _FormerFolders)  # type: ignore[arg-type]
sys.meta_path.append(_FormerPaths)  # type: ignore[arg-type]  # its type would import a module
