"""Run the Sokoban evaluation of a model with ng_eval: 200 puzzles, 16 rollouts each.

The scripts run_*_eval.sh call it. Its settings are environment variables, which
data/qwen3_4b_eval/README.md lists. Further arguments are options of ng_eval, such as limit=5.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from rollyard.records.errors import OperatorError
from rollyard.records.script import ScriptParser, run_script
from rollyard.resources_servers.grl_sokoban.checkpoint_resume_rollouts import write_remaining
from rollyard.services.config.overrides import format_value, parse_overrides

FOLDER = Path(__file__).resolve().parent
PUZZLES = FOLDER / "data" / "qwen3_4b_eval" / "test_examples_200.jsonl"

Value = str | int | float | list[str]
_DEFAULTS: Mapping[str, tuple[str, Value]] = {
    "TENSOR_PARALLEL_SIZE": ("vllm.tensor_parallel_size", 1),
    "GPU_MEMORY_UTILIZATION": ("vllm.gpu_memory_utilization", 0.85),
    "MAX_MODEL_LEN": ("vllm.max_model_len", 8192),
    "VLLM_PORT": ("vllm.port", 10240),
    "NUM_REPEATS": ("num_repeats", 16),
    "NUM_SAMPLES_IN_PARALLEL": ("num_samples_in_parallel", 32),
    "TEMPERATURE": ("responses_create_params.temperature", 0.8),
    "MAX_OUTPUT_TOKENS": ("responses_create_params.max_output_tokens", 4096),
    "MAX_ATTEMPTS": ("max_attempts", 1),
    "PAUSE_S": ("pause_s", 10.0),
}
"""Environment variable -> key of ng_eval and default value."""
_SERVING = "vllm."


def settings(environ: Mapping[str, str], output: Path) -> dict[str, Value]:
    """Return the keys of ng_eval for these environment variables. Raises OperatorError if a value is not a number."""
    model, url = environ.get("MODEL_NAME"), environ.get("policy_base_url")
    if not model:
        raise OperatorError("MODEL_NAME is not set; expected a name on the Hugging Face Hub, a folder, or builtin")
    served = url is None and model != "builtin"
    found: dict[str, Value] = {"model": f"vllm/{model}" if served else model}
    if url is not None and model != "builtin":
        found["policy_base_url"] = url
    found |= {"environments": ["grl_sokoban"], "input_jsonl_fpath": str(PUZZLES), "output_dir": str(output)}
    for variable, (key, default) in _DEFAULTS.items():
        if served or not key.startswith(_SERVING):
            found[key] = _number(variable, environ.get(variable), default)
    if served:
        found["start_ray"] = True
    return found


def overrides(found: Mapping[str, Value]) -> list[str]:
    return [f"{key}={format_value(value, bare=False)}" for key, value in found.items()]


def announce(given: Mapping[str, Any]) -> None:
    """Print what an earlier run has collected, and write the prompts that it still lacks. `given`: keys of ng_eval."""
    output, source = Path(str(given["output_dir"])), Path(str(given["input_jsonl_fpath"]))
    rollouts, repeats, limit = output / "rollouts.jsonl", given["num_repeats"], given.get("limit")
    if not rollouts.is_file() or not rollouts.stat().st_size or not source.is_file():
        return
    if not isinstance(repeats, int) or not isinstance(limit, int | None):
        return  # ng_eval explains what is wrong with them
    if left := write_remaining(source, rollouts, output / "remaining_prompts.jsonl", repeats, limit):
        print(f"[INFO] Resuming collection with {left} remaining prompts")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Replace this process by ng_eval, which passes on its exit status and signals."""
    parser = ScriptParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about = "name of the evaluation's folder in data/, such as qwen3_4b_eval"
    parser.add_argument("folder", nargs="?", default="qwen3_4b_eval", help=about)
    options, more = parser.parse_known_args(arguments)
    output = Path(os.environ.get("OUTPUT_DIR") or FOLDER / "data" / options.folder).absolute()
    found = settings(os.environ, output)
    if str(found["model"]).startswith("vllm/"):
        os.environ.setdefault("HF_HOME", ".cache/")  # the documented place of the weights, in the working directory
    program = _ng_eval()
    with suppress(OperatorError):  # ng_eval explains what is wrong with its options
        announce({**found, **{override.key: override.value for override in parse_overrides(more)}})
    sys.stdout.flush()
    os.execv(program, [program, *overrides(found), *more])


def _ng_eval() -> str:
    beside = Path(sys.executable).with_name("ng_eval")
    program = str(beside) if beside.is_file() else shutil.which("ng_eval")
    if program is None:
        raise OperatorError("ng_eval was not found; install Rollyard (make setup) and activate its environment")
    return program


def _number(variable: str, text: str | None, default: Value) -> Value:
    if not text:
        return default
    convert: Callable[[str], Value] = int if isinstance(default, int) else float
    try:
        return convert(text)
    except ValueError as error:
        raise OperatorError(f"{variable} is {text!r}; expected a number, such as {default}") from error


if __name__ == "__main__":
    run_script(main)
