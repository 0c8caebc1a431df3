#!/usr/bin/env python3
"""Report the memory of every GPU and the processes that hold it, and release torch's cache of this process.

The memory of other programs is only freed when they end. This script lists them and ends none, so that you can stop
your own: `ng_run` or `vllm serve` with Ctrl-C, an evaluation with `ng_eval stop`.
"""

import argparse
import gc
import shutil
import subprocess
import sys
from types import ModuleType

GPU_QUERY = ("--query-gpu=index,name,memory.used,memory.total", "--format=csv,noheader,nounits")
PROCESS_QUERY = ("--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader,nounits")
TIMEOUT_S = 30.0


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch = load_torch()
    if torch is not None:
        release(torch)
    if shutil.which("nvidia-smi") is None:
        if torch is None:
            print("No GPU was found: neither nvidia-smi nor a torch with CUDA. There is nothing to clear.")
        return 0
    gpus = query(GPU_QUERY)
    if not gpus:
        print("nvidia-smi found no GPU. There is nothing to clear.")
        return 0
    for index, name, used, total in gpus:
        print(f"GPU {index} ({name}): {used} of {total} MiB in use")
    processes = query(PROCESS_QUERY)
    for pid, name, used in processes:
        print(f"  process {pid} ({name}) holds {used} MiB")
    if processes:
        print("This memory is freed when these processes end. Stop those that are yours.")
    return 0


def load_torch() -> ModuleType | None:
    """Return torch, or None if it is not installed or finds no GPU."""
    try:
        import torch
    except (ImportError, OSError):  # OSError: a CUDA library is missing
        return None
    return torch if torch.cuda.is_available() else None


def release(torch: ModuleType) -> None:
    """Release what this process holds on each GPU."""
    gc.collect()
    for index in range(torch.cuda.device_count()):
        try:
            with torch.cuda.device(index):
                torch.cuda.empty_cache()
                torch.cuda.ipc_collect()
        except RuntimeError as error:  # no memory is left even for CUDA's own context
            print(f"GPU {index}: torch cannot use it: {str(error).splitlines()[0]}")
    print(f"Released torch's cache of this process on {torch.cuda.device_count()} GPU(s).")


def query(arguments: tuple[str, ...]) -> list[list[str]]:
    """Return the values that nvidia-smi prints, one list per line; empty if it fails."""
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"nvidia-smi does not answer: {error}")
        return []
    if done.returncode:
        print(f"nvidia-smi failed: {(done.stdout + done.stderr).strip()}")
        return []
    return [[value.strip() for value in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


if __name__ == "__main__":
    sys.exit(main())
