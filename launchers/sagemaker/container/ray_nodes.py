"""Waits until a Ray cluster has a number of nodes.

python -m rollyard.launchers.sagemaker.container.ray_nodes ADDRESS NODES SECONDS
"""

from __future__ import annotations

import sys
import time

from rollyard.services.http.ray_address import connect

POLL_S = 1.0


def main() -> int:
    """Return 0 when enough nodes are alive, 1 if that takes longer than the limit."""
    address, wanted, limit_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    ray = connect(address, "a job on several hosts")
    deadline = time.monotonic() + limit_s
    while True:
        alive = sorted(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"])
        if len(alive) >= wanted:
            return 0
        if time.monotonic() > deadline:
            print(f"{len(alive)} of {wanted} hosts joined within {limit_s:.0f} s: {', '.join(alive)}", file=sys.stderr)
            return 1
        time.sleep(POLL_S)


if __name__ == "__main__":
    sys.exit(main())
