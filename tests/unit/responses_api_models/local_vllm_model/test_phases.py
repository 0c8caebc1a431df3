"""vLLM's log (lines of vLLM 0.32) is summarized as what it is doing and why it failed."""

from __future__ import annotations

import pytest

from rollyard.responses_api_models.local_vllm_model.engine import kind, phase_after
from rollyard.responses_api_models.local_vllm_model.startup_errors import PORT_TAKEN, cause_of, error_of

LOG = [
    ("W1121 19:25:08.082000 4035 torch/_library/triton.py:53] Triton not available", "importing vLLM"),
    ("(APIServer pid=1) INFO 11-21 19:25:09 [api_utils.py:286] non-default args: {'model': 'm'}", "reading the config"),
    ("(APIServer pid=1) INFO 11-21 19:25:09 [model.py:733] Resolved architecture: Qwen3", "reading the config"),
    ("(EngineCore pid=2) INFO 11-21 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with", "starting the engine"),
    ("(Worker pid=3) INFO 11-21 [gpu_model_runner.py:5040] Starting to load model m...", "loading weights"),
    ("Loading safetensors checkpoint shards:  38% Completed | 3/8 [00:10<00:17,  3.4s/it]", "loading weights 3/8"),
    ("(Worker pid=3) INFO 11-21 [default_loader.py:501] Loading weights took 30.01 seconds", "profiling memory"),
    ("(Worker pid=3) INFO 11-21 [backends.py:1167] Dynamo bytecode transform time: 8.03 s", "compiling"),
    (
        "(Worker pid=3) INFO 11-21 [backends.py:399] Compiling a graph for compile range (1, 8192) takes 9 s",
        "compiling",
    ),
    ("(Worker pid=3) INFO 11-21 [monitor.py:20] torch.compile took 20.29 s in total", "profiling memory"),
    ("(Worker pid=3) INFO 11-21 [gpu_worker.py:760] Available KV cache memory: 60.1 GiB", "allocating the KV cache"),
    (
        "(EngineCore pid=2) INFO [kv_cache_utils.py:2327] GPU KV cache size: 131,072 tokens",
        "allocating the KV cache",
    ),
    ("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  51%|#####   | 26/51", "capturing CUDA graphs 26/51"),
    (
        "(EngineCore pid=2) INFO [core.py:402] init engine (profile, create kv cache, warmup model) took 9 s",
        "starting ",
    ),
    ("(APIServer pid=1) INFO [entry.py:140] Starting vLLM server on http://127.0.0.1:51561", "starting the API server"),
]


def test_the_phase_follows_the_log() -> None:
    phase = "importing vLLM"
    for line, expected in LOG:
        phase = phase_after([line], phase)
        assert phase.startswith(expected), line


def test_the_last_line_with_a_phase_counts() -> None:
    assert phase_after([line for line, _ in LOG[:6]]) == "loading weights 3/8"


def test_progress_within_a_phase_does_not_change_its_kind() -> None:
    assert kind("loading weights 3/8") == kind("loading weights") == "loading weights"


CORE = "(EngineCore pid=2) ERROR 11-21 19:26:09 [core.py:1201] "
API = "(APIServer pid=1) "
CAUSES = [
    ("cannot start vllm: No such file or directory", "the command vllm cannot be started (No such file"),
    ("vllm: error: unrecognized arguments: --enable-scale-out", "does not support --enable-scale-out: it is too old"),
    (
        "vllm serve: error: argument --dtype: invalid choice: 'float99' (choose from 'auto', 'half')",
        "vLLM rejects --dtype: invalid choice: 'float99' (choose from 'auto', 'half')",
    ),
    (
        API + "KeyError: 'invalid tool call parser: nope (chose from { hermes,mistral })'",
        "tool_call_parser nope does not exist; available are hermes,mistral",
    ),
    (
        API + "KeyError: \"Reasoning parser 'nope' not found. Available parsers: deepseek_r1, qwen3\"",
        "reasoning_parser nope does not exist; available are deepseek_r1, qwen3",
    ),
    (API + "OSError: [Errno 98] Address already in use", PORT_TAKEN),
    (API + "RuntimeError: Failed to infer device type, please set the environment variable", "vLLM finds no GPU"),
    (CORE + "RuntimeError: No CUDA GPUs are available", "vLLM finds no GPU"),
    (
        API + "ValueError: World size (8) is larger than the number of available GPUs (4) in this node. If this",
        "it needs 8 GPUs but finds 4",
    ),
    (
        CORE + "ValueError: Free memory on device cuda:0 (12.5/79.2 GiB) on startup is less than desired GPU memory "
        "utilization (0.92, 72.86 GiB). Decrease GPU memory utilization",
        "12.5 of 79.2 GiB are free on cuda:0, but gpu_memory_utilization=0.92 requires 72.86",
    ),
    (
        CORE + "ValueError: Available memory on node 0 (8.71/23.5 GiB) on startup is less than desired CPU memory "
        "utilization (0.92, 21.6 GiB). On the CPU backend",
        "extra_flags={kv_cache_memory_bytes: 4294967296}",
    ),
    (
        CORE + "ValueError: To serve at least one request with the model's max seq len (40960), (5.62 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (2.17 GiB). Based on",
        "max_model_len=40960 needs 5.62 GiB of KV cache, but only 2.17 GiB are available",
    ),
    (CORE + "ValueError: No available memory for the cache blocks. Try increasing", "leaves no memory for a KV cache"),
    (CORE + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB", "the GPU ran out of memory"),
    (
        API + "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name'",
        "neither a folder with a config.json nor the name of a hub model",
    ),
    ("huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached", "the hub cannot be reached"),
    ("requests.exceptions.HTTPError: 404 Client Error: Not Found for url", "nor the name of a hub model"),
    ("huggingface_hub.errors.GatedRepoError: 401 Client Error.", "accept its licence"),
    (CORE + "RuntimeError: Cannot find any model weights with `/models/x`", "/models/x contains no weights"),
    (API + "OSError: Can't load tokenizer for '/models/x'. If you were", "contains no readable tokenizer"),
    (API + "ModuleNotFoundError: No module named 'flash_attn'", "vLLM's environment lacks a package"),
]


@pytest.mark.parametrize(("line", "message"), CAUSES, ids=lambda text: text[-40:])
def test_common_causes_are_named(line: str, message: str) -> None:
    noise = ["(APIServer pid=1) INFO 11-21 19:25:09 [x.py:1] all is well", "Traceback (most recent call last):"]
    echo = "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above."
    cause = cause_of([*noise, line, echo])
    assert cause is not None
    assert message in cause


def test_a_warning_is_not_a_cause() -> None:
    assert cause_of(["(EngineCore pid=2) WARNING 11-21 [parallel.py:746] Address already in use. Retrying"]) is None


def test_an_unknown_cause_is_shown_as_the_original_error() -> None:
    lines = [
        CORE + "ValueError: the moon is in the wrong phase",
        API + "RuntimeError: Engine core initialization failed.",
    ]
    assert error_of(lines) == "ValueError: the moon is in the wrong phase"
    assert error_of(["nothing of the kind"]) is None
