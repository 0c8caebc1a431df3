"""CPU per turn on one, two and three hosts of a Ray cluster: network namespaces on this host, which share its cores.

    python -m tests.external.ray.hosts      # as root, with ray and iproute2

Each host runs one process of each server, and the first also the collector and the model endpoint.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks import workloads
from benchmarks.commands import ModelEndpoint, Run, collect, model_endpoint, stack
from benchmarks.scale import KINDS, SPREAD, Play, Point, host_cpu, measure
from benchmarks.tables import host, markdown, table, write_between
from tests.external.ray.clusters import Node, short_folder
from tests.support.machines import simulated_machines

HOSTS = (1, 2, 3)
BEGIN, END = "<!-- hosts: begin -->", "<!-- hosts: end -->"
PLAY = Play(512, 0.2)
SECONDS = 20.0


@contextmanager
def playing(play: Play) -> Iterator[tuple[Run, ModelEndpoint]]:
    """Start a cluster with a host for each replica, an endpoint and a stack, and let them play."""
    with ExitStack() as cluster:
        machines = cluster.enter_context(simulated_machines("rs", play.replicas))
        folder = cluster.enter_context(short_folder())
        (first, on_first), *others = machines.prefixes.items()
        head = cluster.enter_context(Node.head(folder, first, on_first))
        for address, prefix in others:
            cluster.enter_context(Node.member(folder, head, address, prefix))
        cluster.enter_context(machines.inside_bridge())
        script = cluster.enter_context(
            model_endpoint(
                *("--spread", str(SPREAD)),
                latency_ms=1000 * play.latency_s,
                turns=play.turns,
                host=first,
                prefix=on_first,
            )
        )
        temporary = Path(cluster.enter_context(tempfile.TemporaryDirectory()))
        config = workloads.game(script.url, "trivial", replicas=play.replicas)
        options = [f"+server_roots=[{workloads.plug_ins(temporary / 'plugins')}]"]
        options.append(f"+ray_head_node_address={head.address}")
        run = cluster.enter_context(stack(temporary, config, *options, prefix=on_first))
        rows = workloads.plain_rows(run.folder / "warm.jsonl", 4)
        collect(run, workloads.AGENT, rows, parallel=32, repeats=workloads.REPEATS).finish()
        yield run, script


def line(point: Point) -> list[object]:
    return [
        str(point.play.replicas),
        f"{point.rate / point.play.turns:.0f}",
        point.total_ms,
        *(point.ms[name] for name in KINDS),
        " / ".join(f"{value:,.1f}" for value in point.tool_ms),
        str(point.lost),
        str(point.failed_attempts),
        str(point.sessions_left),
        host_cpu(point),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="page whose table to replace")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="duration of a point at the ideal rate")
    options = parser.parse_args(arguments)
    os.environ["RAY_AUTH_MODE"] = "disabled"  # otherwise the hosts would need the token of this user, if there is one
    lines = []
    for hosts in HOSTS:
        play = Play(PLAY.parallel, PLAY.latency_s, replicas=hosts)
        with playing(play) as (run, script):
            lines.append(line(measure(run, script, play, options.seconds)))
        print(f"{hosts} hosts: {lines[-1][1]} episodes/s, {lines[-1][2]:.2f} ms per turn", flush=True)
    title = f"Hosts of a Ray cluster, {PLAY.parallel} in flight, {PLAY.latency_s:g} s, CPU ms per turn"
    columns = ["hosts", "episodes/s", "all", *KINDS.values(), "tool call p50 / p99, ms"]
    columns += ["lost", "failed attempts", "sessions left", "CPU (others)"]
    table(title, columns, lines)
    if options.write:
        parts = [f"Measured on {host()}.", "", f"**{title}**", "", *markdown(columns, lines), ""]
        write_between(options.write, BEGIN, END, "\n".join(parts))
        print(f"wrote the table to {options.write}")


if __name__ == "__main__":
    main()
