"""Small names of NeMo Gym's `cli` and `server_utils` modules, with the same fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

HEAD_SERVER_KEY_NAME = "head_server"


class BaseServerConfig(BaseModel):
    """Address of a server."""

    host: str
    port: int
    num_workers: int | None = None


class GlobalConfigDictParserConfig(BaseModel):
    """Where the config of a run comes from."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    dotenv_path: Path | None = None
    """The env.yaml file; None: the one in the working directory. It may be absent."""
    initial_global_config_dict: Any = None
    """A mapping or OmegaConf DictConfig that overrides all files."""
    skip_load_from_cli: bool = False
    """Must be true: a trainer's command line is not that of a run."""
    skip_load_from_dotenv: bool = False
    hide_secrets: bool = False
    """Has no effect, because secrets are always hidden."""
