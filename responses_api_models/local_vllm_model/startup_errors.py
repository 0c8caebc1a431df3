"""Causes: why vLLM did not start, read from its log: what was found, and what to do. The lines are those of 0.32.

Only errors are looked at: vLLM's warnings name many of the same things and go on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

PORT_TAKEN = "another process took its port; start it again"

_SMALLER = "lower max_model_len, raise gpu_memory_utilization, or take more GPUs (tensor_parallel_size)"
_WHO = "nvidia-smi shows what else is on the GPU"
_CAUSES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (
            r"keeper: cannot start '(.+?)': (.+)",
            "there is no command {0} ({1}): install vLLM where this server runs, or name the vllm of another "
            "environment, vllm_command=[/path/to/bin/vllm]",
        ),
        (
            r"unrecognized arguments: (.+)",
            "this vLLM does not know {0}: it is too old for it, or the flag is misspelt. Leave it away "
            "(enable_scale_out: false, logprobs_mode: null, extra_flags) or update vLLM",
        ),
        (r"error: argument (\S+?):? (.+)", "vLLM refuses {0}: {1}"),
        (r"invalid tool call parser: (\S+) \(chose from \{ ?(.+?) ?\}\)", "no tool_call_parser {0}; there are {1}"),
        (
            r"invalid reasoning parser: (\S+) \(chose from \{ ?(.+?) ?\}\)"
            r"|Reasoning parser '(\S+)' not found. Available parsers: ([^\"]+)",
            "no reasoning_parser {0}{2}; there are {1}{3}",
        ),
        (r"OSError: \[Errno 98\]|error while attempting to bind|DistNetworkError: .*EADDRINUSE", PORT_TAKEN),
        (
            r"Failed to infer device type|No CUDA GPUs are available|no CUDA-capable device|Found no NVIDIA driver",
            "vLLM finds no GPU: nvidia-smi shows whether the driver sees one, CUDA_VISIBLE_DEVICES whether it is "
            "hidden; without a GPU it takes the CPU build of vLLM",
        ),
        (r"NVIDIA driver on your system is too old \(found version (\d+)\)", "the GPU's driver ({0}) is too old"),
        (r"no kernel image is available", "this build of vLLM (or torch) holds no code for this kind of GPU"),
        (
            r"World size \((\d+)\) is larger than the number of available GPUs \((\d+)\)",
            "it needs {0} GPUs and finds {1}: lower tensor_parallel_size, or join machines with Ray (ray_address)",
        ),
        (
            r"Free memory on device (\S+) \((\S+?)/(\S+?) GiB\) on startup is less than desired GPU memory utilization "
            r"\((\S+?), (\S+?) GiB\)",
            "{1} of {2} GiB are free on {0} and gpu_memory_utilization={3} asks for {4}: lower it, or end what holds "
            f"the rest ({_WHO})",
        ),
        (
            r"Available memory on node \d+ \((\S+?)/(\S+?) GiB\) on startup is less than desired CPU memory "
            r"utilization \((\S+?), (\S+?) GiB\)",
            "{0} of {1} GiB of memory are free and gpu_memory_utilization={2} (on a CPU: of its memory) asks for {3}: "
            "lower it, or say how much the KV cache may take, extra_flags={{kv_cache_memory_bytes: 4294967296}}",
        ),
        (
            r"max seq len \((\d+)\), \((\S+?) GiB KV cache is needed, which is larger than the available KV cache "
            r"memory \((\S+?) GiB\)",
            f"a conversation of max_model_len={{0}} needs {{1}} GiB of KV cache and there are {{2}}: {_SMALLER}",
        ),
        (r"No available memory for the cache blocks", f"the model leaves no memory for a KV cache: {_SMALLER}"),
        (r"CUDA out of memory|OutOfMemoryError", f"the GPU's memory ran out: {_SMALLER}; {_WHO}"),
        (
            r"max_model_len \((\d+)\) is greater than the derived max_model_len \((.+?)\)",
            "max_model_len={0} is more than the model was made for ({1}): lower it",
        ),
        (
            r"GatedRepoError|gated repo|Access to model .+ is restricted|40[13] Client Error",
            "the hub refuses the model: accept its licence on its page, and give HF_TOKEN (environment or "
            "`hf auth login`)",
        ),
        (
            r"OfflineModeIsEnabled|LocalEntryNotFoundError|offline mode is enabled|couldn't connect to",
            "the model is not on this disk and the hub is out of reach (or HF_HUB_OFFLINE is set): download it "
            "first, or give its folder as model",
        ),
        (
            r"RepositoryNotFoundError|404 Client Error|not a valid model identifier|Repo id must|HFValidationError"
            r"|Invalid repository ID or local directory",
            "the model is neither a folder with a config.json nor a name on the hub: check model (and HF_TOKEN, "
            "when it is private)",
        ),
        (r"Cannot find any model weights with `(.+?)`", "{0} holds no weights (*.safetensors)"),
        (
            r"Model architectures \[(.+?)\] (?:are not supported|failed to be inspected)|model type `(.+?)` but",
            "this vLLM does not know the model's architecture: a newer vLLM may",
        ),
        (
            r"Can't load tokenizer|backend tokenizer|Tokenizer class .+ does not exist",
            "the model's folder holds no tokenizer that can be read: copy its tokenizer files there, or set "
            "extra_flags={{tokenizer: FOLDER}}",
        ),
        (r"chat template (?:string|path).*doesn't exist", "the chat template that extra_flags names does not exist"),
        (r"Failed to import Ray|No module named 'ray'", "ray_address needs the package ray beside vLLM"),
        (
            r"Cannot provide a placement group|has no GPU available|Current node has no",
            "the Ray cluster has not enough free GPUs (`ray status` shows them), or none on this machine",
        ),
        (
            r"Could not find any running Ray instance|Failed to connect to (?:the )?(?:Ray|GCS)|ray\.init.*failed",
            "no Ray cluster answers at ray_address",
        ),
        (
            r"ncclSystemError|ncclUnhandledCudaError|NCCL error",
            "the GPUs cannot talk to each other: environment={{NCCL_DEBUG: INFO}} shows more",
        ),
        (
            r"Timed out waiting for engine core processes to start",
            "loading takes longer than VLLM_ENGINE_READY_TIMEOUT_S: leave it away, then start_timeout_s holds",
        ),
        (r"No space left on device", "a disk (or /dev/shm) is full"),
        (r"No module named '(.+?)'|No package metadata was found for (\S+)", "vLLM's environment lacks a package"),
    )
)
_HARMLESS = re.compile(r"^(?:\([^)]*\) )?(?:INFO|WARNING|DEBUG) ")
_PREFIX = re.compile(r"^\([^)]*\) (?:ERROR [^\]]*\] ?)?")
_ERROR = re.compile(r"^\s*(?:\w+\.)*\w+(?:Error|Exception|Exit): .+")
_SECOND_HAND = re.compile(r"[Ss]ee (?:root cause|stack trace)|initialization failed|EngineDeadError")


def cause_of(lines: Sequence[str]) -> str | None:
    """The cause that the log names, and what to do about it."""
    errors = list(_errors(lines))
    for pattern, words in _CAUSES:
        for line in errors:
            if found := pattern.search(line):
                return words.format(*(group or "" for group in found.groups()))
    return None


def error_of(lines: Sequence[str]) -> str | None:
    """The last error that is not merely the echo of another process's."""
    own = [line for line in _errors(lines) if _ERROR.match(line) and not _SECOND_HAND.search(line)]
    return own[-1].strip() if own else None


def _errors(lines: Sequence[str]) -> Iterator[str]:
    return (_PREFIX.sub("", line) for line in lines if not _HARMLESS.match(line))
