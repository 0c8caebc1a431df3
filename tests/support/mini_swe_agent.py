"""mini-swe-agent as a program_agent, and the turns of the policy that it plays with."""

from __future__ import annotations

import json
from pathlib import Path

from rollyard.records.types import Json
from rollyard.responses_api_models.vllm_model.app import VllmModel, VllmModelSettings
from rollyard.services.server.app import Context
from tests.support.toy_tokenizer import END, encode_letters

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def turn(text: str, *commands: str) -> list[int]:
    """The tokens of a turn that runs these commands, as no tokenizer would encode its text."""
    calls = [{"name": "bash", "arguments": {"command": command}} for command in commands]
    written = [text, *(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)]
    return [*encode_letters("\n".join(written)), END]


def model(context: Context) -> VllmModel:
    """A model server that records tokens, of an engine at http://engine:1."""
    options: Json = {"base_url": "http://engine:1/v1", "model": "tiny", "return_token_id_information": True}
    options |= {"logprobs_mode": "processed_logprobs", "text_tool_parser": "hermes"}
    return VllmModel(VllmModelSettings(**options), context)


def program(environment: Path) -> Json:
    """The settings of a program_agent for the mini-swe-agent of a virtual environment."""
    command = [str(environment / "bin" / "mini"), "--yolo", "--exit-immediately"]
    return {
        "program": [*command, "-m", "openai/policy", "-t", "{instruction}"],
        "env": {
            "OPENAI_BASE_URL": "{base_url}",
            "OPENAI_API_KEY": "{api_key}",
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "LITELLM_LOCAL_MODEL_COST_MAP": "true",
            "LANG": "C.UTF-8",
        },
    }
