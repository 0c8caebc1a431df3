"""Determines from vLLM's log why it did not start and how to fix the problem. The patterns match the log lines of vLLM
0.32.

Only errors are examined, because vLLM's warnings contain many of the same phrases although nothing failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

PORT_TAKEN = "another process took its port; try again"

_SMALLER = "lower max_model_len, raise gpu_memory_utilization, or use more GPUs (tensor_parallel_size)"
_GPU_USERS = "nvidia-smi shows what else is on the GPU"
_CAUSES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), message)
    for pattern, message in (
        (
            r"^cannot start (\S+): (.+)",
            "the command {0} cannot be started ({1}): install vLLM where this server runs, or set the path to vLLM in "
            "a different environment, vllm_command=[/path/to/bin/vllm]",
        ),
        (
            r"unrecognized arguments: (.+)",
            "this vLLM does not support {0}: it is too old, or the flag is misspelled. Remove the flag "
            "(enable_scale_out: false, logprobs_mode: null, extra_flags) or update vLLM",
        ),
        (r"error: argument (\S+?):? (.+)", "vLLM rejects {0}: {1}"),
        (
            r"invalid tool call parser: (\S+) \(chose from \{ ?(.+?) ?\}\)",
            "tool_call_parser {0} does not exist; available are {1}",
        ),
        (
            r"invalid reasoning parser: (\S+) \(chose from \{ ?(.+?) ?\}\)"
            r"|Reasoning parser '(\S+)' not found. Available parsers: ([^\"]+)",
            "reasoning_parser {0}{2} does not exist; available are {1}{3}",
        ),
        (r"OSError: \[Errno 98\]|error while attempting to bind|DistNetworkError: .*EADDRINUSE", PORT_TAKEN),
        (
            r"Failed to infer device type|No CUDA GPUs are available|no CUDA-capable device|Found no NVIDIA driver",
            "vLLM finds no GPU: nvidia-smi shows whether the driver sees one, CUDA_VISIBLE_DEVICES whether it is "
            "hidden; without a GPU, install the CPU build of vLLM",
        ),
        (r"NVIDIA driver on your system is too old \(found version (\d+)\)", "the GPU's driver ({0}) is too old"),
        (r"no kernel image is available", "this build of vLLM (or torch) does not support this type of GPU"),
        (
            r"World size \((\d+)\) is larger than the number of available GPUs \((\d+)\)",
            "it needs {0} GPUs but finds {1}: lower tensor_parallel_size, or connect hosts with Ray (ray_address)",
        ),
        (
            r"Free memory on device (\S+) \((\S+?)/(\S+?) GiB\) on startup is less than desired GPU memory utilization "
            r"\((\S+?), (\S+?) GiB\)",
            "{1} of {2} GiB are free on {0}, but gpu_memory_utilization={3} requires {4}: lower it, or end the "
            f"processes that use the rest ({_GPU_USERS})",
        ),
        (
            r"Available memory on node \d+ \((\S+?)/(\S+?) GiB\) on startup is less than desired CPU memory "
            r"utilization \((\S+?), (\S+?) GiB\)",
            "{0} of {1} GiB of memory are free, but gpu_memory_utilization={2} (on a CPU, a fraction of its memory) "
            "requires {3}: lower it, or set the KV cache size, extra_flags={{kv_cache_memory_bytes: 4294967296}}",
        ),
        (
            r"max seq len \((\d+)\), \((\S+?) GiB KV cache is needed, which is larger than the available KV cache "
            r"memory \((\S+?) GiB\)",
            "a conversation of max_model_len={0} needs {1} GiB of KV cache, but only {2} GiB are available: "
            + _SMALLER,
        ),
        (r"No available memory for the cache blocks", f"the model leaves no memory for a KV cache: {_SMALLER}"),
        (r"CUDA out of memory|OutOfMemoryError", f"the GPU ran out of memory: {_SMALLER}; {_GPU_USERS}"),
        (
            r"max_model_len \((\d+)\) is greater than the derived max_model_len \((.+?)\)",
            "max_model_len={0} exceeds what the model supports ({1}): lower it",
        ),
        (
            r"GatedRepoError|gated repo|Access to model .+ is restricted|40[13] Client Error",
            "the hub denies access to the model: accept its licence on its page, and set HF_TOKEN (environment or "
            "`hf auth login`)",
        ),
        (
            r"OfflineModeIsEnabled|LocalEntryNotFoundError|offline mode is enabled|couldn't connect to",
            "the model is not on this disk and the hub cannot be reached (or HF_HUB_OFFLINE is set): download it "
            "first, or set model to its folder",
        ),
        (
            r"RepositoryNotFoundError|404 Client Error|not a valid model identifier|Repo id must|HFValidationError"
            r"|Invalid repository ID or local directory",
            "the model is neither a folder with a config.json nor the name of a hub model: check model (and HF_TOKEN, "
            "if it is private)",
        ),
        (r"Cannot find any model weights with `(.+?)`", "{0} contains no weights (*.safetensors)"),
        (
            r"Model architectures \[(.+?)\] (?:are not supported|failed to be inspected)|model type `(.+?)` but",
            "this vLLM does not support the model's architecture: try a newer vLLM",
        ),
        (
            r"Can't load tokenizer|backend tokenizer|Tokenizer class .+ does not exist",
            "the model's folder contains no readable tokenizer: copy its tokenizer files there, or set "
            "extra_flags={{tokenizer: FOLDER}}",
        ),
        (r"chat template (?:string|path).*doesn't exist", "the chat template that extra_flags names does not exist"),
        (r"Failed to import Ray|No module named 'ray'", "ray_address requires the package ray in vLLM's environment"),
        (
            r"Cannot provide a placement group|has no GPU available|Current node has no",
            "the Ray cluster does not have enough free GPUs (`ray status` shows them), or none on this host",
        ),
        (
            r"Could not find any running Ray instance|Failed to connect to (?:the )?(?:Ray|GCS)|ray\.init.*failed",
            "no Ray cluster responds at ray_address",
        ),
        (
            r"ncclSystemError|ncclUnhandledCudaError|NCCL error",
            "the GPUs cannot communicate with each other: environment={{NCCL_DEBUG: INFO}} shows more",
        ),
        (
            r"Timed out waiting for engine core processes to start",
            "loading takes longer than VLLM_ENGINE_READY_TIMEOUT_S: unset it, so that start_timeout_s applies",
        ),
        (r"No space left on device", "a disk (or /dev/shm) is full"),
        (r"No module named '(.+?)'|No package metadata was found for (\S+)", "vLLM's environment lacks a package"),
    )
)
_TRANSIENT = re.compile(
    r"EADDRINUSE|Errno 98|error while attempting to bind|out of memory|OutOfMemoryError|Free memory on device"
    r"|Available memory on node|No space left on device|Timed out|[Tt]imeout|ConnectionError"
    r"|Connection (?:reset|refused)|Temporary failure in name resolution|(?:429|50[0234]) (?:Client|Server) Error"
    r"|NCCL|nccl|placement group"
)
"""Errors that may go away: a port or memory that another program uses, the network."""
_HARMLESS = re.compile(r"^(?:\([^)]*\) )?(?:INFO|WARNING|DEBUG) ")
_PREFIX = re.compile(r"^\([^)]*\) (?:ERROR [^\]]*\] ?)?")
_ERROR = re.compile(r"^\s*(?:\w+\.)*\w+(?:Error|Exception|Exit): .+")
_DERIVED = re.compile(r"[Ss]ee (?:root cause|stack trace)|initialization failed|EngineDeadError")


def cause_of(lines: Sequence[str]) -> str | None:
    """Return a known cause that appears in the log, and how to fix it; None if none appears."""
    errors = list(_errors(lines))
    for pattern, message in _CAUSES:
        for line in errors:
            if found := pattern.search(line):
                return message.format(*(group or "" for group in found.groups()))
    return None


def error_of(lines: Sequence[str]) -> str | None:
    """Return the last error that does not merely refer to an error in a different process; None if there is none."""
    own = [line for line in _errors(lines) if _ERROR.match(line) and not _DERIVED.search(line)]
    return own[-1].strip() if own else None


def may_pass(lines: Sequence[str]) -> bool:
    """Return whether another start may succeed without a change of the settings."""
    return any(_TRANSIENT.search(line) for line in lines)


def _errors(lines: Sequence[str]) -> Iterator[str]:
    return (_PREFIX.sub("", line) for line in lines if not _HARMLESS.match(line))
