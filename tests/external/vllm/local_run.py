"""A run that starts vLLM itself: its config, its processes, and calls to its model server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import orjson
from omegaconf import OmegaConf

from rollyard.records.data_files import INSTALLED
from rollyard.records.types import Json
from rollyard.services.runtime.stack import Stack
from tests.external.vllm.calls import CALL
from tests.external.vllm.engine import ENVIRONMENT, LONGEST, Engine, start_s
from tests.support.local_engines import MARK, marked_processes
from tests.support.processes import parent_of

MODEL = "responses_api_models/local_vllm_model/configs/local_vllm_model.yaml"
WORLD = "resources_servers/grl_sokoban/configs/grl_sokoban.yaml"
ENGINE_CORE, WORKER, API = "VLLM::EngineCor", "VLLM::Worker", "vllm"


def local_config(model: Path, mark: str, **more: Any) -> Json:
    variables = {**ENVIRONMENT, MARK: mark}
    settings: Json = {
        "model": str(model),
        "vllm_command": [str(Path(sys.executable).with_name("vllm"))],
        "served_model_name": "tiny",
        "dtype": "float32",
        "max_model_len": LONGEST,
        "environment": variables,
        "extra_flags": {"enforce_eager": True, "kv_cache_memory_bytes": 134217728, "max_num_seqs": 32},
        "strict_tools": False,  # the grammar of a strict tool would replace the regex
        "extra_body": {"structured_outputs": {"regex": CALL}},
        "return_token_id_information": True,
        "start_timeout_s": start_s(),
        **more,
    }
    tree = OmegaConf.merge(
        *(OmegaConf.load(INSTALLED / path) for path in (MODEL, WORLD)),
        {"policy_model_name": "tiny", "policy_model": {"responses_api_models": {"local_vllm_model": settings}}},
    )
    plain: Any = OmegaConf.to_container(tree, resolve=True)
    del plain["policy_model_name"]
    return dict(plain)


def processes_of(mark: str) -> dict[str, int]:
    """Name -> pid of the engine's running processes; `reaper` is the parent of its API server."""
    pids = {Path(f"/proc/{pid}/comm").read_text().strip(): pid for pid in marked_processes(mark)}
    if API in pids:
        pids["reaper"] = parent_of(pids[API])
    return pids


def engine_of(stack: Stack) -> Engine:
    """The engine itself, with the key that its model server has given it."""
    process = Path(f"/proc/{processes_of(mark_of(stack))[API]}")
    words = (process / "cmdline").read_text().split("\0")
    variables = dict(line.partition("=")[::2] for line in (process / "environ").read_text().split("\0"))
    return Engine(f"http://127.0.0.1:{words[words.index('--port') + 1]}", variables["VLLM_API_KEY"])


def mark_of(stack: Stack) -> str:
    return stack.folder.path.parents[2].name


TOKEN = "the run's token"


async def sent(stack: Stack, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    (url,) = stack.registry.directory().servers["policy_model"]
    headers = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}
    content = b"" if body is None else orjson.dumps(body)
    answer = await stack.client.transport.send(method, url + path, content, headers, start_s())
    return answer.status, orjson.loads(answer.body)
