"""A stand-in for a training program: saves checkpoints and traces like one, without a model."""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from pathlib import Path

import yaml


def safetensors(size: int) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(size)


def main() -> None:
    config = yaml.safe_load(Path(sys.argv[1]).read_text())
    run = Path(os.environ["RLVR_RUN_DIR"])
    training = config.get("training", {})
    print("model", config["model"]["path"], flush=True)
    if "RAY_ADDRESS" in os.environ and training.get("ray"):
        import ray

        ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False)
        where = ray.remote(scheduling_strategy="SPREAD", num_cpus=1)(lambda: ray.util.get_node_ip_address())
        addresses: set[str] = set()
        while len(addresses) < training["ray"]:
            addresses |= set(ray.get([where.remote() for _ in range(2 * training["ray"])]))
        print("nodes", *sorted(addresses), flush=True)
        ray.shutdown()
    for step in range(1, training.get("steps", 1) + 1):
        folder = run / "checkpoints" / f"step_{step}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(safetensors(training.get("bytes", 1000)))
        with Path(os.environ["RLVR_TRACE_PATH"]).open("a") as trace:
            trace.write(json.dumps({"type": "counter", "name": "metrics", "ts": step}) + "\n")
        print("step", step, os.environ.get("CUDA_VISIBLE_DEVICES", "-"), flush=True)
        time.sleep(training.get("pause_s", 0))
    sys.exit(training.get("status", 0))


if __name__ == "__main__":
    main()
